"""Least attained service first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .contract import Jobs, Phase, Plan, View, tunable
from .queues.levels import AT_ONCE, after, service_rate, waking
from .queues.serving import Ranking, serve


class Las:
    """The job with the least GPU-time so far goes first and displaces one that has had a quantum more.

    Without a quantum two jobs of equal service would take turns at every moment; with it each runs for about two quanta of
    GPU-time before it gives way. A quantum should be many times the GPU-time of a gang's suspension and resumption (22 s on one GPU,
    33 s on each of 32: 002 ch. 5.3.2.3): with a quantum that these use up, no job makes progress before it is displaced. A job
    that does not fit is passed over. (Foreground-background; two-dimensional as in Gu et al., NSDI 2019, sec. 3; Tiresias
    discretises it into queues for the same purpose.)
    """

    @dataclass(frozen=True)
    class Config:
        quantum: float = tunable(
            3600.0, "GPU-seconds more that a running job must have had to be displaced; many times the cost of a stop", low=1.0, high=1e7
        )

    name: ClassVar[str] = "las"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        if not (jobs.phase == Phase.PENDING).any():
            return Plan({})
        plan = serve(view, self._ranking)
        return waking(plan, view.now, self._next_turn(jobs, plan))

    def _ranking(self, jobs: Jobs) -> Ranking:
        attained = jobs.attained
        # So close to the quantum a running job has reached it, whatever the rounding of its service.
        hold = np.maximum(self.config.quantum - AT_ONCE * service_rate(jobs), 0.0) - attained
        return Ranking(key=attained, claim=-attained, hold=hold, displaceable="jobs that had more GPU-time")

    def _next_turn(self, jobs: Jobs, plan: Plan) -> float:
        """Seconds until a running job has had a quantum more than the first in line of any size; inf: never."""
        runs, waits = after(jobs, plan)
        sizes, size = np.unique(jobs.gpus_min[waits], return_inverse=True)
        first = np.full(len(sizes), math.inf)
        np.minimum.at(first, size, jobs.attained[waits])
        levels = np.append(np.unique(first) + self.config.quantum, math.inf)
        attained, rate = jobs.attained[runs], service_rate(jobs)[runs]
        reached = np.searchsorted(levels, attained + AT_ONCE * rate, side="right")
        return float(((levels[reached] - attained) / rate).min(initial=math.inf))
