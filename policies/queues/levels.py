"""Discretised queues (Tiresias, NSDI 2019, sec. 3; 002 ch. 6.6.3): a job sinks as it is served, and is lifted when it starves.

All inputs come from the view, so a decision does not depend on who made the last one, and a replay repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import among
from ..contract import Bools, Floats, Ints, Jobs, Phase, Plan

AT_ONCE = 1e-3  #: seconds; sums of times miss a threshold by less than this, so a value so close has reached it


def service_rate(jobs: Jobs) -> Floats:
    """GPU-seconds per second of a job's service while it runs."""
    held = jobs.held
    return np.where(held > 0, held, jobs.gpus_min).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Standing:
    """The jobs' places in the queues, one row per job."""

    level: Floats  #: service that counts for the queue, in the unit of the thresholds
    rate: Floats  #: growth of a job's level per second while it runs
    queue: Ints  #: 0 is the highest
    starving: Bools  #: has waited too long for its service, so it is in the highest queue


class Queues:
    """``len(thresholds) + 1`` queues: a job whose level has reached ``thresholds[k]`` is below queue ``k``.

    A job that has waited ``starve_limit`` times as long as it has run is lifted to the highest queue; during the lease that it
    gets there, its service counts from the start of that lease. 0: no job is lifted. (Gu et al., sec. 3, count both from its
    last lift, without the wait before the first start; the view has only the sums over its life.)
    """

    def __init__(self, thresholds: Sequence[float], starve_limit: float = 0.0) -> None:
        self.thresholds = np.sort(np.asarray(thresholds, dtype=np.float64))
        self.starve_limit = starve_limit
        self.floor: Floats = np.concatenate(([-np.inf], self.thresholds))  #: the level at which each queue begins
        self._ceiling = np.concatenate((self.thresholds, [np.inf]))

    def standing(self, jobs: Jobs, now: float, *, by_service: bool) -> Standing:
        """``by_service``: levels are GPU-seconds, else seconds."""
        rate = service_rate(jobs) if by_service else np.ones(len(jobs))
        level = jobs.attained if by_service else jobs.run_time
        starving = np.zeros(len(jobs), dtype=bool)
        if self.starve_limit > 0:
            waited = now - jobs.submitted_at - jobs.run_time + AT_ONCE
            starving = (jobs.run_time > 0) & (waited >= self.starve_limit * jobs.run_time)
            before = jobs.run_time - jobs.lease_time
            lifted = (before > 0) & (waited >= self.starve_limit * before)
            anew = np.where(jobs.phase == Phase.ACTIVE, jobs.lease_time * rate, 0.0)
            level = np.where(lifted, np.minimum(anew, level), level)
        reached = np.searchsorted(self.thresholds, level + AT_ONCE * rate, side="right")
        # A running job that would starve as soon as it was stopped does not sink: it would come back at once.
        queue = np.where(starving, 0, reached)
        return Standing(level, rate, queue, starving)

    def room(self, standing: Standing) -> Floats:
        """The service left to each job until it sinks; inf in the last queue."""
        room: Floats = self._ceiling[standing.queue] - standing.level
        return room

    def next_change(self, jobs: Jobs, now: float, standing: Standing, plan: Plan) -> float:
        """Seconds until a running job of ``plan`` sinks so far that a waiting one can displace it, or one is lifted; inf: never."""
        runs, waits = after(jobs, plan)
        if not waits.any():
            return math.inf
        # A job that sinks into a queue above all waiting ones gives way to none.
        leaves = np.maximum(standing.queue, standing.queue[waits].min() - 1)
        sinks = runs & ~standing.starving
        left = (self._ceiling[leaves[sinks]] - standing.level[sinks]) / standing.rate[sinks]
        soonest = float(left.min(initial=math.inf))
        if self.starve_limit > 0:
            waited = now - jobs.submitted_at - jobs.run_time
            starves = (self.starve_limit * jobs.run_time - waited)[waits & (standing.queue > 0)]
            recovers = (waited / self.starve_limit - jobs.run_time)[runs & standing.starving] + 2 * AT_ONCE
            soonest = min(soonest, float(starves.min(initial=math.inf)), float(recovers.min(initial=math.inf)))
        return soonest


def waking(plan: Plan, now: float, wait: float) -> Plan:
    """The plan, to be made anew in ``wait`` seconds, when time alone next changes a turn; inf: never.

    The time is rounded to microseconds, so that a later computation, from sums of other times, gives the same.
    """
    return replace(plan, wake_at=round(now + max(wait, AT_ONCE), 6) if math.isfinite(wait) else None)


def after(jobs: Jobs, plan: Plan) -> tuple[Bools, Bools]:
    """The running and the waiting jobs after a plan that names only changes."""
    runs = jobs.phase == Phase.ACTIVE
    if plan.preempt:
        runs &= ~among(jobs.id, plan.preempt)
    if plan.allocations:
        runs |= among(jobs.id, plan.allocations)
    return runs, ~runs & (jobs.phase != Phase.STOPPING)


def ranks(values: Floats) -> Floats:
    """Position of each value in ascending order, from 0; equals keep their order."""
    return ranks_of(np.argsort(values, kind="stable")).astype(np.float64)


def ranks_of(order: Ints) -> Ints:
    """Position of each row in an order of the rows."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank
