"""Division of GPUs among jobs that run on any of several numbers of them: speeds, the next GPU, and placement.

A round has three steps. `Pool` has the GPUs to divide: free ones, and those of running jobs that may be resized. A policy
chooses a number of GPUs for each job, most by `water_fill`, which hands out GPUs step by step to the job that gains most; if
every further GPU helps a job less than the one before, no other division is better. `pack` finds the GPUs: a job that keeps
its number stays in place, one that shrinks keeps some of its own, and all others get buddy cells (`Placement`), the largest
gangs first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..contract import Allocation, Bools, Floats, Gpus, Ints, Phase, Plan, Profile, Reason, View, Waiting
from ..placement.consolidated import Placement
from ..placement.victims import Victims, occupants
from .later import Later
from .levels import AT_ONCE
from .reasons import Why, waiting


class _OfMemory(Protocol):
    def __call__(self, *, memory: float) -> int: ...


class Pool:
    """Jobs and GPUs of a view that a round may divide anew; all others stay as they are.

    A running job may be resized unless the engine protects it, it shares its GPUs, or one of them is out of use.
    """

    def __init__(self, view: View) -> None:
        jobs = view.jobs
        self.view, self.jobs = view, jobs
        self.placement = Placement(view)
        self.held = jobs.held
        self._memory = np.unique(jobs.asks, return_inverse=True)  #: amounts that jobs ask for, and the place of each job's
        self.most: Ints = np.minimum(jobs.gpus_max, self._of_each(self.placement.capacity))
        self.node = self._of_each(self.placement.largest_node)  #: GPUs up to which a gang is on one node
        self.possible: Bools = jobs.gpus_min <= self.most
        self.alone = occupants(view)  #: running jobs that do not share their GPUs
        self.resizable: Bools = self._resizable()
        pending = jobs.phase == Phase.PENDING
        #: rows of the jobs that get a number of GPUs in this round, in the order of their submission
        self.rows = np.flatnonzero((pending & self.possible) | self.resizable)
        self.impossible = np.flatnonzero(pending & ~self.possible)
        #: GPUs to be divided among them
        self.budget = self.placement.free_soon() + int(self.held[self.resizable].sum())

    def _of_each(self, number: _OfMemory) -> Ints:
        """``number`` for the GPUs that each job can use."""
        amounts, which = self._memory
        return np.array([number(memory=amount) for amount in amounts.tolist()], dtype=np.int64)[which]

    def _resizable(self) -> Bools:
        jobs = self.jobs
        free: Bools = self.alone & (self.held >= jobs.gpus_min) & (self.held <= self.most)
        if jobs.protected is not None:
            free &= ~jobs.protected
        broken = ~self.view.gpus.usable[jobs.alloc_gpus]
        free[jobs.holder[broken]] = False
        return free


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Possible numbers of GPUs of a job, ascending from ``gpus_min``, and its speed on each."""

    gpus: Ints
    speed: Floats  #: work per second in that of ``gpus_min`` GPUs, or goodput

    def fewer(self, n: int) -> int:
        """The next smaller number to ``n``, 0: none. It is the fastest of them, as more GPUs on a further node may be slower."""
        below = int(np.searchsorted(self.gpus, n))
        return int(self.gpus[below - 1 - self.speed[:below][::-1].argmax()]) if below else 0


class Curves:
    """Speed curves of jobs, kept between rounds: jobs of one profile and size share theirs.

    Speeds are those on as few nodes as possible, as `Placement` puts every gang: on one if one can hold it. A job without a
    throughput table is assumed to gain nothing from further GPUs, so it gets none.
    """

    def __init__(self, *, doubling: bool = False, rising: bool = False) -> None:
        """``doubling``: only ``gpus_min`` times powers of two, which fill buddy cells without a gap.

        ``rising``: only numbers of GPUs that are faster than all fewer ones.
        """
        self._doubling, self._rising = doubling, rising
        self._profiles: Sequence[Profile] = ()
        self._known: dict[tuple[int, int, int, int], SpeedCurve] = {}

    def of(self, pool: Pool, row: int) -> SpeedCurve:
        if pool.view.profiles is not self._profiles:
            self._profiles, self._known = pool.view.profiles, {}
        jobs = pool.jobs
        profile = -1 if jobs.profile is None else int(jobs.profile[row])
        key = profile, int(jobs.gpus_min[row]), int(pool.most[row]), int(pool.node[row])
        if key not in self._known:
            self._known[key] = self._make(*key)
        return self._known[key]

    def _make(self, profile: int, least: int, most: int, node: int) -> SpeedCurve:
        throughput = self._profiles[profile].throughput if profile >= 0 else None
        if throughput is None:
            return SpeedCurve(np.array([least]), np.ones(1))
        gpus = sizes(least, max(least, most), self._doubling)  # a running job may hold GPUs of unknown memory
        rates = np.array([throughput.consolidated(n, node) for n in gpus.tolist()])
        curve = SpeedCurve(gpus, rates / rates[0])
        return _rising(curve) if self._rising else curve


def _rising(curve: SpeedCurve) -> SpeedCurve:
    """The curve without numbers of GPUs that are no faster than fewer."""
    faster = np.append(True, curve.speed[1:] > np.maximum.accumulate(curve.speed)[:-1])
    return SpeedCurve(curve.gpus[faster], curve.speed[faster])


def sizes(least: int, most: int, doubling: bool) -> Ints:
    """Numbers of GPUs from ``least`` to ``most``: all, or by doubling."""
    if doubling:
        return least * 2 ** np.arange((most // least).bit_length(), dtype=np.int64)
    return np.arange(least, most + 1)


def start(rows: Ints, least: Ints, budget: int) -> tuple[list[int], int]:
    """Those of ``rows`` that get their least number, in order, and the remaining GPUs; one that does not fit is passed over."""
    started: list[int] = []
    need = least[rows]
    smallest = np.minimum.accumulate(need[::-1])[::-1].tolist()  # of those still to come
    for row, n, rest in zip(rows.tolist(), need.tolist(), smallest, strict=True):
        if budget < rest:
            break
        if n <= budget:
            started.append(row)
            budget -= n
    return started, budget


def water_fill(gpus: Sequence[Ints], worth: Sequence[Floats], at: Sequence[int], budget: int, *, look_ahead: int = 1) -> list[int]:
    """Raise each job from option ``at[i]`` while there is a gain and GPUs are left; returns the final options.

    ``gpus[i]`` are the options of job ``i``, ascending, ``worth[i]`` their values. The step with the largest gain per GPU goes
    first, among equals that of the first job. With ``look_ahead`` a step may span several options, to skip numbers of GPUs
    without a gain of their own (a fifth GPU on another node).
    """
    ends = list(at)
    heap = [entry for i, option in enumerate(ends) if (entry := _best_step(i, gpus[i], worth[i], option, budget, look_ahead))]
    heapq.heapify(heap)
    while heap and budget > 0:
        _, i, target = heapq.heappop(heap)
        cost = int(gpus[i][target] - gpus[i][ends[i]])
        if cost <= budget:
            ends[i] = target
            budget -= cost
        if entry := _best_step(i, gpus[i], worth[i], ends[i], budget, look_ahead):
            heapq.heappush(heap, entry)
    return ends


def _best_step(i: int, gpus: Ints, worth: Floats, option: int, budget: int, look_ahead: int) -> tuple[float, int, int] | None:
    """(negative gain per GPU, job, option) of the best affordable step of a job; None: no step gains."""
    last = min(option + look_ahead, len(gpus) - 1)
    best, target = 0.0, option
    for other in range(option + 1, last + 1):
        cost = int(gpus[other] - gpus[option])
        if cost > budget:
            break
        gain = float(worth[other] - worth[option]) / cost
        if gain > best:
            best, target = gain, other
    return None if target == option else (-best, i, target)


Smaller = Callable[[int, int], int]  #: the next smaller number of GPUs for a row, 0: none


def pack(
    pool: Pool, wanted: Mapping[int, int], smaller: Smaller, *, migrate: bool = True, insist: bool = False
) -> dict[int, tuple[int, ...]]:
    """GPUs for the wanted number of each row; a row that is not in ``wanted`` gets none.

    A gang without consolidated room may, with ``migrate``, push smaller ones elsewhere. It does so if these find the same
    room elsewhere, or if it ``insists``; for its least number it always does, as it might otherwise wait for ever in a pool of
    scattered small gangs. If nothing helps it takes a ``smaller`` number of GPUs.
    """
    packing = _Packing(pool, wanted, smaller, migrate, insist)
    packing.run()
    return packing.given


class _Packing:
    """A running job is placed before others get its GPUs, so no two jobs wait for each other's."""

    def __init__(self, pool: Pool, wanted: Mapping[int, int], smaller: Smaller, migrate: bool, insist: bool) -> None:
        self.pool, self.wanted, self.smaller, self.migrate, self.insist = pool, wanted, smaller, migrate, insist
        self.placement = pool.placement
        self.given: dict[int, tuple[int, ...]] = {}
        self.staying: set[int] = set()  #: resizable rows that keep their number and their GPUs
        self.growing: set[int] = set()  #: rows that hold GPUs until they are placed anew
        self.heap: list[tuple[int, int]] = []  #: (-GPUs wanted, row) of those to be placed

    def run(self) -> None:
        pool = self.pool
        for row in np.flatnonzero(pool.resizable).tolist():
            self._running(row, int(pool.held[row]), self.wanted.get(row, 0))
        for row, n in self.wanted.items():
            if not pool.resizable[row]:
                self._push(row, n)
        while self.heap:
            n, row = heapq.heappop(self.heap)
            self._place(row, -n)

    def _running(self, row: int, held: int, n: int) -> None:
        own = tuple(self.pool.jobs.allocation(row).tolist())
        if n == held:
            self.given[row] = own
            self.staying.add(row)
        elif n < held:
            kept = self._kept(own, n)
            self.placement.release_soon(set(own) - set(kept))
            if kept:
                self.given[row] = kept
        else:
            self.growing.add(row)
            self._push(row, n)

    def _push(self, row: int, n: int) -> None:
        heapq.heappush(self.heap, (-n, row))

    def _kept(self, own: tuple[int, ...], n: int) -> tuple[int, ...]:
        """``n`` of its own GPUs, on the fewest nodes."""
        node = self.pool.view.gpus.node[list(own)].tolist()
        fullest_first = sorted(zip(own, node, strict=True), key=lambda gpu: (-node.count(gpu[1]), gpu[1], gpu[0]))
        return tuple(sorted(gpu for gpu, _ in fullest_first[:n]))

    def _place(self, row: int, n: int) -> None:
        own = self.pool.jobs.allocation(row).tolist() if row in self.growing else []
        self.placement.release(own)
        gpus = self._find(row, n)
        if gpus is None:
            self.placement.take(own)
            self._shrink(row, n, len(own))
            return
        self.placement.take(gpus)
        rest = set(own) - set(gpus)
        self.placement.take(rest)
        self.placement.release_soon(rest)
        self.growing.discard(row)
        self.given[row] = gpus

    def _find(self, row: int, n: int) -> tuple[int, ...] | None:
        memory = float(self.pool.jobs.asks[row])
        found = self.placement.find_any(n, memory=memory)
        insist = self.insist or n == int(self.pool.jobs.gpus_min[row])
        if found is None and self.migrate and self._make_room(row, n, memory, insist=insist):
            found = self.placement.find_soon(n, memory=memory)
        return found

    def _shrink(self, row: int, n: int, held: int) -> None:
        less = self.smaller(row, n)
        if held and less <= held:
            self.given[row] = tuple(self.pool.jobs.allocation(row).tolist())
            self.growing.discard(row)
            self.staying.add(row)
        elif less > 0:
            self._push(row, less)

    def _make_room(self, row: int, n: int, memory: float, *, insist: bool) -> bool:
        """Push smaller gangs elsewhere, the smallest first; they are placed after this one."""
        pool = self.pool
        others = sorted((self.staying | self.growing) - {row}, key=lambda other: (pool.held[other], other))
        movable = [other for other in others if pool.held[other] < n]
        if not movable:
            return False
        chosen = Victims.in_turn(pool.view, movable).choose(self.placement, n, memory, np.inf)
        if not insist and not self._fits_elsewhere(n, memory, chosen):
            return False
        for other in chosen:
            self.placement.release_soon(pool.jobs.allocation(other).tolist())
            self.growing.discard(other)
            if other in self.staying:
                self.staying.discard(other)
                del self.given[other]
                self._push(other, int(pool.held[other]))
        return bool(chosen)

    def _fits_elsewhere(self, n: int, memory: float, chosen: Sequence[int]) -> bool:
        """Whether the gang and all jobs that it pushes find room, in their order of placement."""
        pool, trial = self.pool, self.placement.copy()
        for row in chosen:
            trial.release_soon(pool.jobs.allocation(row).tolist())
        gangs = [(n, memory), *((int(pool.held[row]), float(pool.jobs.asks[row])) for row in chosen)]
        for size, least_memory in sorted(gangs, key=lambda gang: -gang[0]):
            gpus = trial.find_soon(size, memory=least_memory)
            if gpus is None:
                return False
            trial.take(gpus)
        return True


REJECTED = Reason("rejected", "cannot end by its deadline on the GPUs that the jobs admitted before it leave, so it was not admitted")
NEXT_ROUND = Reason("round", "waits for the next round, in which the GPUs are divided anew")


@dataclass(frozen=True, slots=True)
class Division:
    """GPUs by job (id), so it stays valid when rows change."""

    given: Mapping[int, tuple[int, ...]]
    order: Sequence[int]  #: all that get GPUs or wait, first served first
    batch_size: Mapping[int, int] = field(default_factory=dict)  #: of jobs whose batch size the policy chooses
    rejected: Sequence[int] = ()  #: jobs of ``order`` whose deadline is given up


ROUND_KEY = "round"  #: the key of a policy's memory with which `begin` stores a division and `in_round` finds it


def in_round(view: View, seconds: float) -> Plan | None:
    """The plan of the current round of so many seconds; None: a new one begins.

    A division holds for a round: between rounds the policy repeats it, while new jobs wait. So jobs stopped for a resize start on
    their planned GPUs, whatever others did meanwhile, and a plan is not changed while it is carried out. If the policy's memory is
    lost, a round just begins early. Rounds of 0 s last until the jobs that they stop have stopped.
    """
    standing = (view.memory or {}).get(ROUND_KEY)
    if standing is None or view.now < standing["began"]:
        return None
    # A multiple of the length may be slightly too low by rounding.
    goes_on = view.now < standing["began"] + seconds - AT_ONCE
    if not goes_on and not (seconds == 0 and _is_half_way(view, standing)):
        return None
    return replace(decide(Pool(view), _from_json(standing, view.gpus)), memory=view.memory)


def _is_half_way(view: View, standing: Mapping[str, Any]) -> bool:
    """Whether jobs are still stopping for a division, or have just stopped and are to start on its GPUs."""
    jobs = view.jobs
    if (jobs.phase == Phase.STOPPING).any():
        return True
    waits = set(jobs.id[jobs.phase == Phase.PENDING].tolist())
    return view.now == standing["began"] and any(job in waits for job, _ in standing["given"])


def begin(pool: Pool, division: Division, **memory: Any) -> Plan:
    """The plan of a division with which a round begins. ``memory``: the policy's further state."""
    standing = {"began": pool.view.now, **_to_json(division, pool.view.gpus)}
    return replace(decide(pool, division), memory={ROUND_KEY: standing, **memory})


def _to_json(division: Division, gpus: Gpus) -> dict[str, Any]:
    return {
        "given": [[job, [str(gpus.id[gpu]) for gpu in rows]] for job, rows in division.given.items()],
        "order": list(division.order),
        "batch_size": [list(one) for one in division.batch_size.items()],
        "rejected": list(division.rejected),
    }


def _from_json(standing: Mapping[str, Any], gpus: Gpus) -> Division:
    """The division, without allocations of which a GPU has left the pool since."""
    row_of = {name: row for row, name in enumerate(gpus.id.tolist())}
    return Division(
        {job: tuple(row_of[name] for name in names) for job, names in standing["given"] if all(name in row_of for name in names)},
        standing["order"],
        dict(standing["batch_size"]),
        standing["rejected"],
    )


def divide(
    pool: Pool,
    given: Mapping[int, tuple[int, ...]],
    order: Ints,
    *,
    batch_size: Mapping[int, int] | None = None,
    rejected: Ints | None = None,
) -> Division:
    """A division from rows."""
    ids = pool.jobs.id.tolist()
    return Division(
        {ids[row]: gpus for row, gpus in given.items()},
        [ids[row] for row in order.tolist()],
        {ids[row]: batch for row, batch in (batch_size or {}).items()},
        [] if rejected is None else [ids[row] for row in rejected.tolist()],
    )


def decide(pool: Pool, division: Division) -> Plan:
    """The plan of a division, as far as it is still possible. A running job that it does not name stays as it is."""
    jobs = pool.jobs
    row_of = {job: row for row, job in enumerate(jobs.id.tolist())}
    known = [row_of[job] for job in division.order if job in row_of]
    order = np.array([*known, *pool.rows[~np.isin(pool.rows, known)].tolist()], dtype=np.int64)
    given = _still_free(pool, division, order)
    batch = {row: division.batch_size.get(int(jobs.id[row])) for row in given}
    changed = [row for row in order.tolist() if row in given and (batch[row] or set(given[row]) != set(jobs.allocation(row).tolist()))]
    left_out = [row for row in np.flatnonzero(pool.resizable).tolist() if row not in given]
    pending = jobs.phase == Phase.PENDING
    rejected = [row_of[job] for job in division.rejected if job in row_of and pending[row_of[job]]]
    apart = [(REJECTED, rejected), (NEXT_ROUND, [row for row in order[len(known) :].tolist() if pending[row]])]
    return Plan(
        allocations={int(jobs.id[row]): Allocation(given[row], batch_size=batch[row]) for row in changed},
        preempt=[int(jobs.id[row]) for row in left_out],
        waiting=Later(lambda: _waiting(pool, _unserved(pool, given, order), apart)),
        order=Later(lambda: [int(job) for job in jobs.id[_unserved(pool, given, order)]]),
        rejected=[int(job) for job in jobs.id[rejected]],
    )


def _still_free(pool: Pool, division: Division, order: Ints) -> dict[int, tuple[int, ...]]:
    """GPUs of each row, without those that another job keeps or that have gone out of use."""
    jobs, usable, named = pool.jobs, pool.view.gpus.usable, frozenset(division.order)
    taken = np.zeros(len(usable), dtype=bool)
    fixed = (jobs.phase == Phase.ACTIVE) & ~pool.resizable
    taken[jobs.alloc_gpus[np.repeat(fixed, pool.held)]] = True
    given: dict[int, tuple[int, ...]] = {}
    for row, job in zip(order.tolist(), jobs.id[order].tolist(), strict=True):
        gpus = division.given.get(job)
        if gpus is None and job not in named:
            gpus = tuple(jobs.allocation(row).tolist())
        if not gpus or fixed[row] or jobs.phase[row] == Phase.STOPPING or taken[list(gpus)].any():
            continue
        if usable[list(gpus)].all():
            given[row] = gpus
            taken[list(gpus)] = True
    return given


def _unserved(pool: Pool, given: Mapping[int, tuple[int, ...]], order: Ints) -> Ints:
    """All present and future waiting jobs, in order of service; those that can never start come last."""
    rows = np.concatenate([order, pool.impossible])
    stays = (pool.jobs.phase == Phase.ACTIVE) & ~pool.resizable  # protected: it keeps its GPUs
    unserved: Ints = rows[~np.isin(rows, list(given)) & ~stays[rows]]
    return unserved


def _waiting(pool: Pool, rows: Ints, apart: Sequence[tuple[Reason, list[int]]]) -> list[Waiting]:
    never = Why.IMPOSSIBLE if len(pool.view.gpus) else Why.NO_GPUS
    for _, special in apart:
        rows = rows[~np.isin(rows, special)]
    why = np.where(np.isin(rows, pool.impossible), never, Why.RESOURCES)
    return [
        *waiting(pool.jobs, rows, why, pool.placement),
        *(Waiting(reason, pool.jobs.id[special]) for reason, special in apart if special),
    ]
