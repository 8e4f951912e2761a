"""Shortest remaining time first, and shortest remaining service first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .contract import Floats, Jobs, Phase, Plan, View, tunable
from .estimate.lengths import MEASURES, TIME, all_known, measured, remaining_time
from .queues.levels import AT_ONCE, after, waking
from .queues.serving import Ranking, serve

#: A guess counts with its value at the start of the lease until it has grown by this factor: otherwise, with a hysteresis of 1, two
#: unknown jobs would take turns at every moment.
_GROWN = 1.1


class Srtf:
    """The job with the least remaining time goes first and may displace a running job with much more.

    A running job is displaced only if its remaining time is more than ``hysteresis`` times that of the
    job that wants its GPUs, so two jobs of about the same length never take turns. A job whose remaining
    time is unknown is assumed to need ``unknown`` seconds, or as long again as it has run if that is more:
    lengths of training jobs are heavy-tailed, so one that has run long is likely to run long still. Among
    unknown jobs this is least attained service first, Tiresias' order, on the scale of the known ones. While a job runs, its
    guess at its last start counts until it has grown by a tenth.
    With ``measure`` set to service, the remaining GPU-time counts (SRSF, with which Tiresias compares itself).
    """

    @dataclass(frozen=True)
    class Config:
        hysteresis: float = tunable(2.0, "factor by which a running job must have more left to be displaced", low=1.0, high=100.0)
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
        measure: str = tunable(TIME, "measure of length: the remaining time, or the remaining service (GPU-time)", choices=MEASURES)

    name: ClassVar[str] = "srtf"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        plan = serve(view, self._ranking)
        # Known remaining times only shrink, so running jobs only gain: time alone changes the turn only if a length is unknown.
        return plan if all_known(view.jobs) else waking(plan, view.now, self._next_turn(view.jobs, plan))

    def _ranking(self, jobs: Jobs) -> Ranking:
        left = measured(remaining_time(jobs, self.config.unknown), jobs, self.config.measure)
        return Ranking(
            key=left,
            claim=-left,
            hold=-self._when_held(jobs, left) / self.config.hysteresis,
            displaceable=f"jobs with more than {self.config.hysteresis:g} times its remaining {self.config.measure}",
        )

    def _when_held(self, jobs: Jobs, left: Floats) -> Floats:
        """``left`` of jobs in the value that counts while they run."""
        guessed = (jobs.phase == Phase.ACTIVE) & np.isnan(jobs.remaining)
        if not guessed.any():
            return left
        at_first = self._guess_at_first(jobs)
        return np.where(guessed & (jobs.run_time <= _GROWN * at_first), measured(at_first, jobs, self.config.measure), left)

    def _guess_at_first(self, jobs: Jobs) -> Floats:
        """Assumed remaining seconds of a job of unknown length at the start of its lease."""
        return np.maximum(jobs.run_time - jobs.lease_time, self.config.unknown)

    def _next_turn(self, jobs: Jobs, plan: Plan) -> float:
        """Seconds until the assumed need of a job of unknown length has grown so far that the first in line of any size displaces it."""
        runs, waits = after(jobs, plan)
        grows = runs & np.isnan(jobs.remaining)
        if not (grows.any() and waits.any()):
            return math.inf
        measure = self.config.measure
        left = measured(remaining_time(jobs, self.config.unknown), jobs, measure)
        sizes, size = np.unique(jobs.gpus_min[waits], return_inverse=True)
        first = np.full(len(sizes), math.inf)
        np.minimum.at(first, size, left[waits])
        levels = np.append(np.unique(first) * self.config.hysteresis, math.inf)
        level = levels[np.searchsorted(levels, self._when_held(jobs, left)[grows])]
        # From ``unknown`` on it is assumed to need as long again as it has run.
        turn = level / measured(np.ones(len(jobs)), jobs, measure)[grows]
        turn = np.maximum(turn, _GROWN * self._guess_at_first(jobs)[grows])
        # A guess that has grown by a tenth already counts in full.
        return float((turn - jobs.run_time[grows]).min()) + AT_ONCE
