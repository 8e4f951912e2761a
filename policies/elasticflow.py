"""ElasticFlow: jobs with deadlines get the fewest GPUs that meet them, and none is admitted that cannot be met."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from .contract import Bools, Demand, Phase, Plan, View, tunable
from .elastic import Curve, Curves, Pool, Rounds, divide, pack, start, water_fill
from .timeline import Filling, Timeline, fill, slot_end

_LEAST_WORK = 1.0  #: seconds: a job that is about to end holds its GPUs until it has


class ElasticFlow:
    """Deadlines are guaranteed to whom they are promised (Gu et al., ASPLOS 2023).

    The minimum satisfactory share of a job is the fewest GPUs with which it ends by its deadline (section 4.1). Admission control
    fills the GPUs over time with all admitted jobs, the earliest deadline first, each with its minimum satisfactory share of
    what those before it leave (progressive filling, Algorithm 1). A job that arrives is admitted if all deadlines are still
    met with it; otherwise it is rejected, with the reason. Then every admitted job gets what its filling says for now, and GPUs
    that are left go where they save most GPU time later on (marginal return, Algorithm 2): raising a job of share m from n to n' saves
    m (f(n') - f(n)) / (f(m) (n' - n)) a GPU, f being its speed. Jobs without a deadline, or of unknown length, are best-effort
    (section 4.4): they start on what deadlines leave, in the order of their submission, and grow by the same rule.

    Numbers of GPUs double (section 4.3: buddy allocation with migration leaves no fragments). Of soft deadlines the last
    counts. A job that has run is taken to have been admitted; if its deadline can no longer be met, because estimates were
    wrong, it goes on as the first of the best-effort jobs. GPUs of jobs that may not be resized now are counted as free when
    those are done.

    Works in rounds of 60 s, the least slot of the authors. Between rounds nothing is resized, started or rejected.
    """

    @dataclass(frozen=True)
    class Config:
        slack: float = tunable(0.0, "share by which work is taken to be longer than estimated", low=0.0, high=10.0)
        overhead: float = tunable(
            0.0, "seconds that a start or change of GPUs costs, kept clear before each deadline", low=0.0, high=3600.0
        )
        judged: int = tunable(
            100, "new jobs that are admitted or rejected in one round at most; the others wait for the next", low=1, high=100_000
        )

    name: ClassVar[str] = "elasticflow"
    interval: ClassVar[float | None] = 60.0

    def __init__(self, config: Config) -> None:
        self.config = config
        self.curves = Curves(doubling=True, rising=True)
        self.rounds = Rounds(self.interval)
        self._slot = self.interval or 0.0

    def plan(self, view: View) -> Plan:
        return self.rounds.standing(view) or self._begin(Pool(view))

    def _begin(self, pool: Pool) -> Plan:
        view = pool.view
        promised, refused = self._admit(pool)
        wanted = {row: filling.now for row, filling in promised.items() if filling.now}
        asks, ran = _has_deadline(view)[pool.rows], _has_run(view)[pool.rows]
        others = (~asks | ran) & ~np.isin(pool.rows, list(promised))
        leftover = np.concatenate([pool.rows[others & asks], pool.rows[others & ~asks]])  # those that are late first
        started, left = start(leftover, view.jobs.gpus_min, pool.budget - sum(wanted.values()))
        wanted |= {row: int(view.jobs.gpus_min[row]) for row in started}
        self._grow(pool, wanted, promised, left)
        order = np.array([*sorted(promised, key=lambda row: (view.jobs.deadline[row], row)), *leftover.tolist()], dtype=np.int64)
        given = pack(pool, wanted, lambda row, n: self.curves.of(pool, row).fewer(n), insist=True)
        rejected = np.array(refused, dtype=np.int64)
        return self.rounds.begin(pool, divide(pool, given, np.append(order, rejected), rejected=rejected))

    def _admit(self, pool: Pool) -> tuple[dict[int, Filling], list[int]]:
        """Fillings of all jobs whose deadlines are promised, and rows of new jobs whose deadlines cannot be."""
        jobs = pool.jobs
        rows = pool.rows[_has_deadline(pool.view)[pool.rows]]
        ran = _has_run(pool.view)[rows]
        admission = _Admission(_free_over_time(pool, self._slot), self._slot)
        for row in sorted(rows[ran].tolist(), key=lambda row: (jobs.deadline[row], row)):
            admission.admit(self._request(pool, row))
        refused = [row for row in rows[~ran][: self.config.judged].tolist() if not admission.admit(self._request(pool, row))]
        return admission.fillings(), refused

    def _request(self, pool: Pool, row: int) -> _Request:
        jobs, config = pool.jobs, self.config
        curve = self.curves.of(pool, row)
        seconds = float(jobs.deadline[row]) - pool.view.now - config.overhead
        work = max(float(jobs.remaining[row]), _LEAST_WORK) * (1.0 + config.slack)
        return _Request(seconds, row, curve, work, work * float((curve.gpus / curve.speed).min()))

    def _grow(self, pool: Pool, wanted: dict[int, int], promised: dict[int, Filling], left: int) -> None:
        """Hand out what is left by marginal return."""
        rows = sorted({*wanted, *promised})
        curves = [_with_nothing(self.curves.of(pool, row)) for row in rows]
        share = [promised[row].share if row in promised else int(pool.jobs.gpus_min[row]) for row in rows]
        worth = [m * curve.speed / curve.speed[np.searchsorted(curve.gpus, m)] for curve, m in zip(curves, share, strict=True)]
        at = [int(np.searchsorted(curve.gpus, wanted.get(row, 0))) for row, curve in zip(rows, curves, strict=True)]
        ends = water_fill([curve.gpus for curve in curves], worth, at, left)
        wanted |= {row: n for row, curve, end in zip(rows, curves, ends, strict=True) if (n := int(curve.gpus[end]))}


class _Request(NamedTuple):
    """A deadline that is asked for; the earliest first, among equals that of the earlier job."""

    seconds: float  #: until the deadline
    row: int
    curve: Curve
    work: float  #: seconds on ``gpus_min`` GPUs
    gpu_time: float  #: the least GPU-seconds that this takes, on whatever number of GPUs


class _Admission:
    """Admitted jobs by deadline, each with its filling of what those before it leave."""

    def __init__(self, free: Timeline, slot: float) -> None:
        self._free, self._slot = free, slot
        self._requests: list[_Request] = []
        self._fillings: list[Filling] = []

    def admit(self, request: _Request) -> bool:
        """Take the job in, if all deadlines are met with it."""
        at = bisect_left(self._requests, request[:2], key=lambda other: other[:2])
        requests = [request, *self._requests[at:]]
        if len(requests) > 1 and self._overbooked([*self._requests[:at], *requests], at):
            return False
        refilled = list(self._refill(requests, self._fillings[at - 1].left if at else self._free))
        if len(refilled) < len(requests):
            return False
        self._requests[at:], self._fillings[at:] = requests, refilled
        return True

    def _overbooked(self, requests: list[_Request], at: int) -> bool:
        """Whether even the least GPU time that jobs need is more than there is by the deadline of any from ``at`` on.

        Filling would find the same, but only after many jobs: in a crowd this turns most away at once.
        """
        needed = np.cumsum([request.gpu_time for request in requests])[at:]
        there = self._free.gpu_time(np.array([request.seconds for request in requests[at:]]))
        return bool((needed > there * (1.0 + 1e-9)).any())

    def fillings(self) -> dict[int, Filling]:
        return {request.row: filling for request, filling in zip(self._requests, self._fillings, strict=True)}

    def _refill(self, requests: Sequence[_Request], left: Timeline) -> Iterator[Filling]:
        """Fillings in order, up to the first that cannot be."""
        for request in requests:
            filling = fill(left, request.curve.gpus, request.curve.speed, request.work, request.seconds, self._slot)
            if filling is None:
                return
            yield filling
            left = filling.left


def _free_over_time(pool: Pool, slot: float) -> Timeline:
    """The round's GPUs, and those of jobs that may not be resized now, as free when these are done."""
    jobs, now = pool.jobs, pool.budget
    fixed = np.flatnonzero(pool.alone & ~pool.resizable)
    remaining = np.where(np.isnan(jobs.remaining), np.inf, np.maximum(jobs.remaining, _LEAST_WORK))
    usable = pool.view.gpus.usable
    return Timeline.of(now, [(slot_end(float(remaining[row]), slot), int(usable[jobs.allocation(row)].sum())) for row in fixed.tolist()])


def _has_deadline(view: View) -> Bools:
    """Jobs that ask for a deadline which can be judged."""
    jobs = view.jobs
    asks: Bools = (jobs.demand != Demand.BEST_EFFORT) & np.isfinite(jobs.deadline) & ~np.isnan(jobs.remaining)
    return asks


def _has_run(view: View) -> Bools:
    ran: Bools = (view.jobs.phase == Phase.ACTIVE) | (view.jobs.run_time > 0)
    return ran


def _with_nothing(curve: Curve) -> Curve:
    return Curve(np.append(0, curve.gpus), np.append(0.0, curve.speed))
