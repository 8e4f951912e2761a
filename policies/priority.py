"""Preemptive priorities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .contract import Plan, View, tunable
from .queues.serving import Ranking, serve


class Priority:
    """The highest priority goes first; within one priority jobs go in the order of their submission.

    A job displaces running jobs of strictly lower priority if that lets it start: those of the lowest
    priority first, among them the most recently started, and no more than it needs. A job that cannot
    start blocks later jobs of its own priority (``backfill`` lifts that). Jobs of lower priority may use
    free GPUs, because it can displace them when its turn comes. If it waits for jobs that may not be stopped
    yet, the GPUs that it can have soonest are kept for it as they become free.
    """

    @dataclass(frozen=True)
    class Config:
        backfill: bool = tunable(False, "jobs behind one of the same priority that does not fit may start")

    name: ClassVar[str] = "priority"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        priority = view.jobs.priority.astype(np.float64)
        ranking = Ranking(
            key=-priority,
            claim=priority,
            blocking=not self.config.backfill,
            displaceable="jobs of lower priority",
        )
        return serve(view, ranking)
