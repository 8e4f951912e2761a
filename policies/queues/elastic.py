"""Dividing GPUs among jobs that run on any of several numbers of them: how fast each is, who gets the next GPU, and where.

A round goes in three steps. `Pool` tells what may be divided anew: GPUs that are free, and those of running jobs that may be
resized. A policy chooses a number of GPUs for each job, most by `water_fill`, which hands GPUs out one step after another to
whom they help most; where every further GPU helps a job less than the one before, no other division of the GPUs is better.
`pack` finds the GPUs: who keeps its number stays where it is, who shrinks keeps some of its own, and all others get buddy
cells (`Placement`), the largest gangs first.
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
    """Jobs and GPUs of a view that a round may divide anew; everything else stays as it is.

    A running job may be resized unless the engine protects it, it shares its GPUs, or one of them is out of use.
    """

    def __init__(self, view: View) -> None:
        jobs = view.jobs
        self.view, self.jobs = view, jobs
        self.placement = Placement(view)
        self.held = jobs.held
        self._memory = np.unique(jobs.asks, return_inverse=True)  #: amounts that jobs ask for, and which of them is whose
        self.most: Ints = np.minimum(jobs.gpus_max, self._of_each(self.placement.capacity))
        self.node = self._of_each(self.placement.largest_node)  #: GPUs up to which a gang is on one node
        self.possible: Bools = jobs.gpus_min <= self.most
        self.alone = occupants(view)  #: running jobs that share their GPUs with nobody
        self.resizable: Bools = self._resizable()
        pending = jobs.phase == Phase.PENDING
        #: rows of the jobs that get a number of GPUs in this round, in the order of their submission
        self.rows = np.flatnonzero((pending & self.possible) | self.resizable)
        self.impossible = np.flatnonzero(pending & ~self.possible)
        #: GPUs to be divided among them
        self.budget = self.placement.free_soon() + int(self.held[self.resizable].sum())

    def _of_each(self, number: _OfMemory) -> Ints:
        """What ``number`` is of the GPUs that each job can use."""
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
class Curve:
    """Numbers of GPUs that a job may be given, ascending from ``gpus_min``, and its speed on each."""

    gpus: Ints
    speed: Floats  #: work of ``gpus_min`` GPUs a second, if not goodput

    def fewer(self, n: int) -> int:
        """The number of GPUs to have instead of ``n``, 0: none. The fastest of those, as more may be slower that take another node."""
        below = int(np.searchsorted(self.gpus, n))
        return int(self.gpus[below - 1 - self.speed[:below][::-1].argmax()]) if below else 0


class Curves:
    """Speed curves of jobs, kept between rounds: jobs of one profile and size share theirs.

    Speeds are those on as few nodes as possible, where `Placement` puts every gang: on one as long as one can hold it. A job
    without a throughput table is taken to gain nothing from more than it needs, so it gets no more.
    """

    def __init__(self, *, doubling: bool = False, rising: bool = False) -> None:
        """``doubling``: only ``gpus_min`` times powers of two, which fill buddy cells without a gap.

        ``rising``: only numbers of GPUs that are faster than all fewer ones.
        """
        self._doubling, self._rising = doubling, rising
        self._profiles: Sequence[Profile] = ()
        self._known: dict[tuple[int, int, int, int], Curve] = {}

    def of(self, pool: Pool, row: int) -> Curve:
        if pool.view.profiles is not self._profiles:
            self._profiles, self._known = pool.view.profiles, {}
        jobs = pool.jobs
        profile = -1 if jobs.profile is None else int(jobs.profile[row])
        key = profile, int(jobs.gpus_min[row]), int(pool.most[row]), int(pool.node[row])
        if key not in self._known:
            self._known[key] = self._make(*key)
        return self._known[key]

    def _make(self, profile: int, least: int, most: int, node: int) -> Curve:
        throughput = self._profiles[profile].throughput if profile >= 0 else None
        if throughput is None:
            return Curve(np.array([least]), np.ones(1))
        gpus = sizes(least, max(least, most), self._doubling)  # a running job may hold GPUs of which nobody knows whether they suit it
        rates = np.array([throughput.consolidated(n, node) for n in gpus.tolist()])
        curve = Curve(gpus, rates / rates[0])
        return _rising(curve) if self._rising else curve


def _rising(curve: Curve) -> Curve:
    """Without numbers of GPUs that are no faster than fewer."""
    faster = np.append(True, curve.speed[1:] > np.maximum.accumulate(curve.speed)[:-1])
    return Curve(curve.gpus[faster], curve.speed[faster])


def sizes(least: int, most: int, doubling: bool) -> Ints:
    """Numbers of GPUs from ``least`` to ``most``: all, or by doubling."""
    if doubling:
        return least * 2 ** np.arange((most // least).bit_length(), dtype=np.int64)
    return np.arange(least, most + 1)


def start(rows: Ints, least: Ints, budget: int) -> tuple[list[int], int]:
    """Those of ``rows`` that get the least they need, in order, and what is left; who does not fit is passed over."""
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
    """Raise each job from option ``at[i]`` as long as it gains anything and GPUs are left; the option that each ends at.

    ``gpus[i]`` are the options of job ``i``, ascending, ``worth[i]`` what each is worth. The step that gains most a GPU goes
    first, among equals that of the first job. With ``look_ahead`` a step may span several options, which gets over numbers
    of GPUs that gain nothing by themselves (a fifth GPU on another node).
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
    """(negative gain a GPU, job, option) of the best affordable step of a job, None when none gains anything."""
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


Smaller = Callable[[int, int], int]  #: the next smaller number of GPUs that a row may have instead of so many, 0: none


def pack(
    pool: Pool, wanted: Mapping[int, int], smaller: Smaller, *, migrate: bool = True, insist: bool = False
) -> dict[int, tuple[int, ...]]:
    """GPUs for the number that each row is to have; a row that is not in ``wanted`` gets none.

    A gang that finds no room that is consolidated enough may, with ``migrate``, push smaller ones elsewhere. It does so where
    these find as much room again, or if it ``insists``; on the least that it needs it always does, for else it might wait for
    ever in a pool of scattered small gangs. If nothing helps it makes do with a ``smaller`` number of GPUs.
    """
    packing = _Packing(pool, wanted, smaller, migrate, insist)
    packing.run()
    return packing.given


class _Packing:
    """Nobody is placed on GPUs of a running job before that job has been dealt with, so no two wait for each other's."""

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
        """Whether the gang and all whom it pushes find room, in the order in which they will be placed."""
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


REJECTED = Reason("rejected", "cannot end by its deadline on what the jobs that were admitted before it leave, so it was not admitted")
NEXT_ROUND = Reason("round", "waits for the next round, in which the GPUs are divided anew")


@dataclass(frozen=True, slots=True)
class Division:
    """Who gets what, by job (id); it does not change when rows do."""

    given: Mapping[int, tuple[int, ...]]
    order: Sequence[int]  #: all that get GPUs or wait, first served first
    batch_size: Mapping[int, int] = field(default_factory=dict)  #: of jobs whose batch size the policy chooses
    rejected: Sequence[int] = ()  #: jobs of ``order`` whose deadline is given up


ROUND_KEY = "round"  #: the key of a policy's memory under which `in_round` finds what `begin` has put there


def in_round(view: View, seconds: float) -> Plan | None:
    """The plan of the round of so many seconds that goes on, None: a new one begins.

    A division stands for a round: who is asked between rounds repeats it, with new jobs waiting. So jobs that were stopped to be resized
    start where they were meant to, whatever the others did meanwhile, and a plan that is carried out step by step is not thrown over
    half-way. Nothing is lost with the policy's memory: a round then begins early. Rounds of 0 s last
    until what they stop has stopped.
    """
    standing = (view.memory or {}).get(ROUND_KEY)
    if standing is None or view.now < standing["began"]:
        return None
    # A multiple of the length may come out a last digit too low.
    goes_on = view.now < standing["began"] + seconds - AT_ONCE
    if not goes_on and not (seconds == 0 and _is_half_way(view, standing)):
        return None
    return replace(decide(Pool(view), _from_json(standing, view.gpus)), memory=view.memory)


def _is_half_way(view: View, standing: Mapping[str, Any]) -> bool:
    """Whether jobs are still stopping for a division, or have just stopped and are to start where it has them."""
    jobs = view.jobs
    if (jobs.phase == Phase.STOPPING).any():
        return True
    waits = set(jobs.id[jobs.phase == Phase.PENDING].tolist())
    return view.now == standing["began"] and any(job in waits for job, _ in standing["given"])


def begin(pool: Pool, division: Division, **memory: Any) -> Plan:
    """The plan of a division with which a round begins. ``memory``: what else the policy keeps in mind."""
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
    """Without the allocations of whom a GPU has left the pool since."""
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
    """The plan of a division, as far as it can still be had. A running job that it does not name stays as it is."""
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
    """GPUs of each row, without those that somebody else holds for good or that have gone out of use."""
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
    """All that wait or are to wait, in order of service, those that can never start last."""
    rows = np.concatenate([order, pool.impossible])
    stays = (pool.jobs.phase == Phase.ACTIVE) & ~pool.resizable  # protected: it keeps what it holds
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
