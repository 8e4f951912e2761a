"""Discretised queues (Tiresias, NSDI 2019, sec. 3.3; 002 ch. 6.6.3): a job sinks as it is served and is lifted when it starves.

Everything is read from the view, so a decision is the same whoever made the one before it, and a replay makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .contract import Bools, Floats, Ints, Jobs, Phase

AT_ONCE = 1e-3  #: seconds; sums of times miss a threshold by less than this, so what is so close to it has reached it
ENTERING = 1.0  #: seconds of service for which a job counts as entering its queue


@dataclass(frozen=True, slots=True)
class Standing:
    """Where jobs stand, one row a job."""

    level: Floats  #: service that counts for the queue, in the unit of the thresholds
    rate: Floats  #: how fast the level of a job grows while it runs
    queue: Ints  #: 0 is the highest
    entering: Bools  #: has just sunk into its queue
    starving: Bools  #: has waited too long for what it was given, so it is in the highest queue
    settled: Floats  #: seconds that it has run in its queue in this lease, 0 when it holds none


class Queues:
    """``len(thresholds) + 1`` queues: a job whose level has reached ``thresholds[k]`` is below queue ``k``.

    A job that has waited ``starve_limit`` times as long as it has run is lifted to the highest queue; for as long as the lease
    lasts that it gets there, its service is counted from the start of that lease. 0: nobody is lifted.
    """

    def __init__(self, thresholds: Sequence[float], starve_limit: float = 0.0) -> None:
        self.thresholds = np.sort(np.asarray(thresholds, dtype=np.float64))
        self.starve_limit = starve_limit
        self._floor = np.concatenate(([-np.inf], self.thresholds))
        self._ceiling = np.concatenate((self.thresholds, [np.inf]))

    def standing(self, jobs: Jobs, now: float, *, by_service: bool) -> Standing:
        """``by_service``: levels are GPU-seconds, else seconds."""
        held = np.diff(jobs.alloc_start)
        rate = np.where(held > 0, held, jobs.gpus_min).astype(np.float64) if by_service else np.ones(len(jobs))
        level = jobs.attained if by_service else jobs.run_time
        starving = np.zeros(len(jobs), dtype=bool)
        if self.starve_limit > 0:
            waited = now - jobs.submitted_at - jobs.run_time + AT_ONCE
            starving = (jobs.run_time > 0) & (waited >= self.starve_limit * jobs.run_time)
            before = jobs.run_time - jobs.lease_time
            lifted = (jobs.phase == Phase.ACTIVE) & (before > 0) & (waited >= self.starve_limit * before)
            level = np.where(lifted, np.minimum(jobs.lease_time * rate, level), level)
        reached = np.searchsorted(self.thresholds, level + AT_ONCE * rate, side="right")
        # A running job that would starve the moment it was stopped is not let sink: it would come back at once.
        queue = np.where(starving, 0, reached)
        served_here = (level - np.maximum(self._floor[queue], 0.0)) / rate
        entering = (queue > 0) & (served_here < ENTERING)
        return Standing(level, rate, queue, entering, starving, np.minimum(served_here, jobs.lease_time))

    def room(self, standing: Standing) -> Floats:
        """How much service is left to each job until it sinks, inf in the last queue."""
        room: Floats = self._ceiling[standing.queue] - standing.level
        return room

    def next_change(self, jobs: Jobs, now: float, standing: Standing) -> float | None:
        """When a running job next sinks to where somebody who waits can displace it, or one that waits is lifted; None: never."""
        pending = jobs.phase == Phase.PENDING
        if not pending.any():
            return None
        matters = (jobs.phase == Phase.ACTIVE) & (standing.queue + 1 >= standing.queue[pending].min())
        left = self.room(standing)[matters] / standing.rate[matters]
        soonest = float(left.min(initial=math.inf))
        if self.starve_limit > 0:
            waited = now - jobs.submitted_at - jobs.run_time
            starves = (self.starve_limit * jobs.run_time - waited)[pending & (standing.queue > 0)]
            recovers = (waited / self.starve_limit - jobs.run_time)[matters & standing.starving] + 2 * AT_ONCE
            soonest = min(soonest, float(starves.min(initial=math.inf)), float(recovers.min(initial=math.inf)))
        return now + max(soonest, AT_ONCE) if math.isfinite(soonest) else None


def ranks(values: Floats) -> Floats:
    """Position of each value in ascending order, from 0; equals in the order in which they stand."""
    rank = np.empty(len(values))
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank
