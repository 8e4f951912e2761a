"""Estimates learnt from history, outside the ticks: the iterations of jobs that stop at a metric, the cost of suspensions, and how busy
jobs keep their GPUs.

One periodic task, so one thread: fitting a curve takes milliseconds, but no tick and no write waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...policies.estimate.learning_curves import IterationEstimate, estimate_iterations
from ..json_rows import objects
from ..scheduling.overheads import Overheads
from ..store.sqlfiles import sql
from ..store.store import Committed, Store
from .speeds import write_utilisations
from .stored_estimates import Estimate, write_estimates

log = logging.getLogger(__name__)

INTERVAL = 2.0  #: seconds between runs of the task; without new reports a run costs nothing
REFIT = 10.0  #: seconds between two fits of one job, at least
FITTING_SHARE = 0.02  #: largest share of the time spent on one job: a very long curve is fitted less often
FITTING_SECONDS_PER_LOOK = 1.0  #: seconds of fitting in one run of the task; the rest follows in the next
REMEASURE = 30.0  #: seconds between two measurements of the cost of suspensions
USE_INTERVAL = 10.0  #: seconds between two measurements of how busy jobs keep their GPUs
USE_SAMPLES_SECONDS = 60.0  #: seconds of samples for that: those from before a job trained soon drop out


@dataclass(frozen=True, slots=True)
class _Watched:
    """A job that stops at a metric: a row of the query policy/watched."""

    job: int
    metric: str
    target: float
    mode: Literal["max", "min"]
    most: int
    step: int  #: last one reported
    at_step: int | None  #: of the present estimate


@dataclass(frozen=True, slots=True)
class _Look:
    """The last fit of a job."""

    step: int = -1  #: last one reported then
    again: float = -math.inf  #: earliest time of the next fit
    failed: bool = False  #: it was logged that it can't be estimated


class Estimating:
    """Keeps `iteration_estimates` up to date, and passes on the `Overheads` whenever they may have changed."""

    def __init__(self, store: Store, adopt: Callable[[Overheads], None], clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._adopt = adopt
        self._clock = clock
        self._reported = self._moved = True  # there may be reports from before this process
        self._measured_at = self._used_at = -math.inf
        self._looks: dict[int, _Look] = {}

    def committed(self, commit: Committed) -> None:
        """Called after each commit, on the writer's thread."""
        if "watched" in commit.topics:
            self._reported = True
        if "leases" in commit.topics:
            self._moved = True

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds: due times move with it."""
        self._measured_at += by
        self._used_at += by
        self._looks = {job: replace(look, again=look.again + by) for job, look in self._looks.items()}

    def look(self) -> None:
        """The periodic task: does almost nothing without new reports."""
        now = self._clock()
        if self._moved and now - self._measured_at >= REMEASURE:
            self._moved, self._measured_at = False, now
            self._adopt(Overheads(self._store.rows("policy/overheads")))
        if now - self._used_at >= USE_INTERVAL:
            self._used_at = now
            if found := objects(self._store, "policy/utilisations", now - USE_SAMPLES_SECONDS):
                self._store.write(write_utilisations, found)
        if self._reported:
            self._reported = False  # before the tables are read: later reports are seen the next time
            if self._refit(now):
                self._reported = True

    def _refit(self, now: float) -> bool:
        """Fit the curves of jobs with new reports, those fitted longest ago first; whether some are left for later."""
        watched = [_Watched(*row) for row in self._store.rows("policy/watched")]
        self._looks = {one.job: self._looks.get(one.job, _Look()) for one in watched}
        moved = [one for one in watched if self._looks[one.job].step != one.step]
        due = sorted((one for one in moved if self._looks[one.job].again <= now), key=lambda one: self._looks[one.job].again)
        estimates, end, left = [], time.monotonic() + FITTING_SECONDS_PER_LOOK, len(moved)
        for one in due:
            began = time.perf_counter()
            failed = self._looks[one.job].failed
            self._looks[one.job] = _Look(one.step, now + REFIT, failed)
            try:
                estimates += self._estimate(one)
            except ValueError as error:  # a script may report anything; the other jobs are estimated all the same
                if not failed:
                    log.warning("job %d: its iterations can't be estimated: %s", one.job, error, extra={"action": "estimate.error"})
                failed = True
            self._looks[one.job] = _Look(one.step, now + max(REFIT, (time.perf_counter() - began) / FITTING_SHARE), failed)
            left -= 1
            if time.monotonic() > end:
                break
        if estimates:
            self._store.write(write_estimates, estimates)
        return left > 0

    def _estimate(self, one: _Watched) -> list[Estimate]:
        """The estimate; empty: too few values of the metric are known, or none has come since the last estimate."""
        with self._store.read() as con:
            curve = con.execute(sql("policy/metric_curve"), [one.job, one.metric]).fetchnumpy()
        steps, values = np.asarray(curve["step"]), np.asarray(curve["value"])
        if not len(steps) or int(steps[-1]) == one.at_step:
            return []
        start = time.perf_counter()
        found = estimate_iterations(steps, values, target=one.target, mode=one.mode, maximum=one.most, done=one.step)
        seconds = time.perf_counter() - start
        if math.isnan(found.probability):
            return []
        iterations, low, high = (math.ceil(value) for value in (found.iterations, found.low, found.high))
        spread = _spread_of_rest(found, one.step)
        return [Estimate(one.job, int(steps[-1]), iterations, low, high, found.probability, spread, len(steps), seconds)]


def _spread_of_rest(found: IterationEstimate, done: int) -> float:
    """Standard deviation of the logarithm of the iterations left, for a log-normal with their mean and the whole's deviation."""
    left = max(found.iterations - done, 1.0)
    return math.sqrt(math.log1p((found.iterations * found.log_std / left) ** 2))
