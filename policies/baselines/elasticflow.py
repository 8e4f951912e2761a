"""ElasticFlow: jobs with deadlines get the fewest GPUs that meet them; a job whose deadline cannot be met is not admitted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..contract import Bools, Demand, Ints, Phase, Plan, View, tunable
from ..placement.consolidated import Placement
from ..queues.elastic import ROUND_KEY, Curves, Pool, SpeedCurve, begin, divide, in_round, pack, start, water_fill
from ..queues.timeline import Filling, Timeline, fill, follow, slot_end

_LEAST_WORK = 1.0  #: seconds: a job that is about to end holds its GPUs until it has


class ElasticFlow:
    """Admitted jobs have guaranteed deadlines (Gu et al., ASPLOS 2023).

    The minimum satisfactory share of a job is the fewest GPUs with which it ends by its deadline (section 4.1). Admission control
    fills the GPUs over time with all admitted jobs, the earliest deadline first, each with its minimum satisfactory share of
    the GPUs that the earlier ones leave (progressive filling, Algorithm 1). A new job is admitted if all deadlines are still
    met with it; otherwise it is rejected, with the reason. Then every admitted job gets the present share of its filling. Remaining
    GPUs go where they save most GPU time later (marginal return, Algorithm 2): raising a job of share m from n to n' saves
    m (f(n') - f(n)) / (f(m) (n' - n)) a GPU, f being its speed. Jobs without a deadline, or of unknown length, are best-effort
    (section 4.4): they start on the remaining GPUs, in the order of their submission, and grow by the same rule.

    Least shares of earlier jobs may fall as they progress, and leave a later job no room. So if a new filling would break a promise,
    that job gets the GPUs planned for it at its last filling, and so do all others. That plan still holds if estimates are right, no
    job fails and none is protected from a change.

    Numbers of GPUs double (section 4.3: buddy allocation with migration leaves no fragments). Promises count GPUs, not places: they need
    gangs and nodes of powers of two GPUs, all large enough for every job. Otherwise a gang may find no room in the number of GPUs
    counted for it: it may be late, and jobs that fit the remaining GPUs start there meanwhile.

    The last of several soft deadlines counts. An admitted job is never rejected; if its deadline can no longer be met, because
    estimates were wrong, it continues as the first of the best-effort jobs. GPUs of jobs that may not be resized now count as
    free after their end. Jobs that have run under another policy count as admitted, with the GPUs that they hold as their plan.

    Works in rounds of 60 s, the least slot of the authors. Between rounds nothing is resized, started or rejected.
    """

    @dataclass(frozen=True)
    class Config:
        slack: float = tunable(0.0, "share by which work is assumed to be longer than estimated", low=0.0, high=10.0)
        overhead: float = tunable(0.0, "seconds of a start or change of GPUs, reserved before each deadline", low=0.0, high=3600.0)
        judged: int = tunable(100, "most new jobs admitted or rejected in one round; the others wait for the next", low=1, high=100_000)
        round: float = tunable(60.0, "seconds from one round to the next", low=0.1, high=86400.0)

    name: ClassVar[str] = "elasticflow"
    elastic: ClassVar[bool] = True
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.round
        self.curves = Curves(doubling=True, rising=True)

    def plan(self, view: View) -> Plan:
        return in_round(view, self.interval) or self._begin(Pool(view))

    def _begin(self, pool: Pool) -> Plan:
        view = pool.view
        promises = _promises(view)
        promised, late, refused = self._admit(pool, promises)
        wanted = {row: filling.now for row, filling in promised.items() if filling.now}
        asks = _has_deadline(view)[pool.rows]
        others = ~asks | np.isin(pool.rows, late)
        leftover = np.concatenate([pool.rows[others & asks], pool.rows[others & ~asks]])  # those that are late first
        started, left = start(leftover, view.jobs.gpus_min, pool.budget - sum(wanted.values()))
        wanted |= {row: int(view.jobs.gpus_min[row]) for row in started}
        self._grow(pool, wanted, promised, left)
        order = np.array([*sorted(promised, key=lambda row: (view.jobs.deadline[row], row)), *leftover.tolist()], dtype=np.int64)
        given, placement = self._pack(pool, wanted)
        _use_up(pool, placement, given, order)
        rejected = np.array(refused, dtype=np.int64)
        promises |= dict.fromkeys(view.jobs.id[late].tolist())
        promises |= {int(view.jobs.id[row]): filling.held.brief() for row, filling in promised.items()}
        kept = [[job, plan and [plan.times.tolist(), plan.free.tolist()]] for job, plan in promises.items()]
        return begin(pool, divide(pool, given, np.append(order, rejected), rejected=rejected), promises=kept)

    def _admit(self, pool: Pool, promises: Promises) -> tuple[dict[int, Filling], list[int], list[int]]:
        """Fillings of all jobs with promised deadlines, rows of those that lose theirs, and rows of new jobs that are rejected."""
        jobs = pool.jobs
        rows = pool.rows[_has_deadline(pool.view)[pool.rows]]
        old = _has_run(pool.view)[rows] | np.isin(jobs.id[rows], list(promises))
        admission, late = self._renew(pool, promises, sorted(rows[old].tolist(), key=lambda row: (jobs.deadline[row], row)))
        refused = [row for row in rows[~old][: self.config.judged].tolist() if not admission.admit(self._request(pool, row))]
        return admission.fillings(), late, refused

    def _renew(self, pool: Pool, promises: Promises, rows: list[int]) -> tuple[_Admission, list[int]]:
        """Take in the jobs admitted before, by a new filling or, if that loses any, by the old plan; returns also the lost ones."""
        free = _free_over_time(pool, self.curves, self.interval)
        admission = _Admission(free, self.interval)
        requests = [self._request(pool, row) for row in rows]
        late = [request.row for request in requests if not admission.admit(request)]
        plans = {row: plan for row in rows if (plan := _planned(pool, promises, row)) is not None}
        if plans.keys().isdisjoint(late):
            return admission, late
        kept = _Admission(free, self.interval)
        others = [request for request in requests if request.row not in plans or not kept.keep(request, plans[request.row])]
        still_late = [request.row for request in others if not kept.admit(request)]
        return (kept, still_late) if len(still_late) < len(late) else (admission, late)

    def _request(self, pool: Pool, row: int) -> _Request:
        jobs, config = pool.jobs, self.config
        curve = self.curves.of(pool, row)
        seconds = float(jobs.deadline[row]) - pool.view.now - config.overhead
        work = max(float(jobs.remaining[row]), _LEAST_WORK) * (1.0 + config.slack)
        return _Request(seconds, row, curve, work, work * float((curve.gpus / curve.speed).min()))

    def _pack(self, pool: Pool, wanted: dict[int, int]) -> tuple[dict[int, tuple[int, ...]], Placement]:
        """GPUs for the wanted numbers, and the rest. A shrinking job keeps some of its own, unless they are in the way of a gang."""

        def smaller(row: int, n: int) -> int:
            return self.curves.of(pool, row).fewer(n)

        given = pack(pool, wanted, smaller, insist=True)
        shrunk = [row for row in np.flatnonzero(pool.resizable).tolist() if 0 < wanted.get(row, 0) < pool.held[row]]
        short = _short(wanted, given)
        if short and shrunk:
            again = Pool(pool.view)
            again.resizable[shrunk] = False
            for row in shrunk:
                again.placement.release_soon(pool.jobs.allocation(row).tolist())
            anew = pack(again, wanted, smaller, insist=True)
            if _short(wanted, anew) < short:
                return anew, again.placement
        return given, pool.placement

    def _grow(self, pool: Pool, wanted: dict[int, int], promised: dict[int, Filling], left: int) -> None:
        """Hand out the remaining GPUs by marginal return."""
        rows = sorted({*wanted, *promised})
        curves = [SpeedCurve(np.append(0, one.gpus), np.append(0.0, one.speed)) for one in (self.curves.of(pool, row) for row in rows)]
        share = [promised[row].share if row in promised else int(pool.jobs.gpus_min[row]) for row in rows]
        worth = [m * curve.speed / curve.speed[np.searchsorted(curve.gpus, m)] for curve, m in zip(curves, share, strict=True)]
        at = [int(np.searchsorted(curve.gpus, wanted.get(row, 0))) for row, curve in zip(rows, curves, strict=True)]
        ends = water_fill([curve.gpus for curve in curves], worth, at, left)
        wanted |= {row: n for row, curve, end in zip(rows, curves, ends, strict=True) if (n := int(curve.gpus[end]))}


Promises = dict[int, Timeline | None]  #: GPUs planned for each admitted job; None: its deadline was lost


def _promises(view: View) -> Promises:
    """The last round's promises to jobs that still exist."""
    memory = view.memory or {}
    at_hand, passed = set(view.jobs.id.tolist()), max(view.now - memory[ROUND_KEY]["began"], 0.0) if memory else 0.0
    return {
        job: plan and Timeline(np.array(plan[0]), np.array(plan[1], dtype=np.int64)).after(passed)
        for job, plan in memory.get("promises", ())
        if job in at_hand
    }


def _planned(pool: Pool, promises: Promises, row: int) -> Timeline | None:
    """The plan for an admitted job; None: its deadline was lost. For an unknown job the GPUs that it holds."""
    return promises.get(int(pool.jobs.id[row]), Timeline.of(int(pool.held[row]), []))


class _Request(NamedTuple):
    """A requested deadline; the earliest first, among equals that of the earlier job."""

    seconds: float  #: until the deadline
    row: int
    curve: SpeedCurve
    work: float  #: seconds on ``gpus_min`` GPUs
    gpu_time: float  #: the least GPU-seconds for this, on any number of GPUs


class _Admission:
    """Admitted jobs by deadline, each with its filling of the GPUs that the earlier ones leave."""

    def __init__(self, free: Timeline, slot: float) -> None:
        self._free, self._slot = free, slot
        self._requests: list[_Request] = []
        self._fillings: list[Filling] = []

    def admit(self, request: _Request) -> bool:
        """Admit the job, if all deadlines are met with it."""
        at = bisect_left(self._requests, request[:2], key=lambda other: other[:2])
        requests = [request, *self._requests[at:]]
        if len(requests) > 1 and self._overbooked([*self._requests[:at], *requests], at):
            return False
        refilled = list(self._refill(requests, self._fillings[at - 1].left if at else self._free))
        if len(refilled) < len(requests):
            return False
        self._requests[at:], self._fillings[at:] = requests, refilled
        return True

    def keep(self, request: _Request, planned: Timeline) -> bool:
        """Admit a job, later than all so far, on its planned GPUs, if it meets its deadline on them."""
        left = self._fillings[-1].left if self._fillings else self._free
        filling = follow(left, planned, request.curve.gpus, request.curve.speed, request.work, request.seconds, self._slot)
        if filling is None:
            return False
        self._requests.append(request)
        self._fillings.append(filling)
        return True

    def _overbooked(self, requests: list[_Request], at: int) -> bool:
        """Whether even the jobs' least GPU time exceeds the available GPU time up to the deadline of any job from ``at`` on.

        Filling would find the same, but only after many jobs: in a crowd this rejects most at once.
        """
        needed = np.cumsum([request.gpu_time for request in requests])[at:]
        there = self._free.gpu_time(np.array([request.seconds for request in requests[at:]]))
        return bool((needed > there * (1.0 + 1e-9)).any())

    def fillings(self) -> dict[int, Filling]:
        return {request.row: filling for request, filling in zip(self._requests, self._fillings, strict=True)}

    def _refill(self, requests: Sequence[_Request], left: Timeline) -> Iterator[Filling]:
        """Fillings in order, up to the first impossible one."""
        for request in requests:
            filling = fill(left, request.curve.gpus, request.curve.speed, request.work, request.seconds, self._slot)
            if filling is None:
                return
            yield filling
            left = filling.left


def _free_over_time(pool: Pool, curves: Curves, slot: float) -> Timeline:
    """The round's GPUs, and those of jobs that may not be resized now, from the end of these jobs on."""
    jobs = pool.jobs
    remaining = np.where(np.isnan(jobs.remaining), np.inf, np.maximum(jobs.remaining, _LEAST_WORK))
    usable = pool.view.gpus.usable
    releases = []
    for row in np.flatnonzero(pool.alone & ~pool.resizable).tolist():
        curve = curves.of(pool, row)
        pace = curve.speed[max(int(np.searchsorted(curve.gpus, pool.held[row], side="right")) - 1, 0)]
        releases.append((slot_end(float(remaining[row] / pace), slot), int(usable[jobs.allocation(row)].sum())))
    return Timeline.of(pool.budget, releases)


def _short(wanted: dict[int, int], given: dict[int, tuple[int, ...]]) -> int:
    """Number of wanted GPUs that are not given."""
    return sum(n - len(given.get(row, ())) for row, n in wanted.items())


def _use_up(pool: Pool, placement: Placement, given: dict[int, tuple[int, ...]], order: Ints) -> None:
    """Give GPUs counted for a gang that did not fit there to jobs of ``order`` without any, the least that each needs."""
    jobs = pool.jobs
    for row in order.tolist():
        if row in given or not placement.free_soon():
            continue
        own = tuple(jobs.allocation(row).tolist())
        if own and placement.has_soon(own):
            gpus: tuple[int, ...] | None = own
        else:
            gpus = placement.find_any(int(jobs.gpus_min[row]), memory=float(jobs.asks[row]))
        if gpus is not None:
            placement.take(gpus)
            given[row] = gpus


def _has_deadline(view: View) -> Bools:
    """Jobs with a deadline that can be checked."""
    jobs = view.jobs
    asks: Bools = (jobs.demand != Demand.BEST_EFFORT) & np.isfinite(jobs.deadline) & ~np.isnan(jobs.remaining)
    return asks


def _has_run(view: View) -> Bools:
    ran: Bools = (view.jobs.phase == Phase.ACTIVE) | (view.jobs.run_time > 0)
    return ran
