"""Shortest job first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .contract import Jobs, Plan, View, tunable
from .estimate.lengths import MEASURES, TIME, measured, total_time
from .queues.serving import Ranking, serve


class Sjf:
    """The job with the least total length goes first and runs to its end; no job is preempted.

    The length is the whole run time, or GPU-time with ``measure`` set to service, so the order of waiting jobs never changes
    while estimates stay. As in FIFO, the first job that does not fit blocks the jobs behind it unless ``backfill`` lets them start.
    """

    @dataclass(frozen=True)
    class Config:
        measure: str = tunable(TIME, "measure of length: a job's run time, or its service (GPU-time)", choices=MEASURES)
        backfill: bool = tunable(False, "jobs behind one that does not fit may start; a large job can then be overtaken for ever")
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to last at least", low=1.0, high=1e7)

    name: ClassVar[str] = "sjf"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        return serve(view, self._ranking)

    def _ranking(self, jobs: Jobs) -> Ranking:
        length = measured(total_time(jobs, self.config.unknown), jobs, self.config.measure)
        return Ranking(key=length, blocking=not self.config.backfill)
