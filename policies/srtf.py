"""Shortest remaining time first, and shortest remaining service first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .contract import Jobs, Plan, View, tunable
from .estimates import MEASURES, TIME, all_known, measured, remaining_time
from .serving import Ranking, serve


class Srtf:
    """The job with the least remaining time goes first and may displace a running job that has much more left.

    A running job is displaced only when its remaining time is more than ``hysteresis`` times that of the
    job that wants its GPUs, so two jobs of about the same length never take turns. A job whose remaining
    time is unknown is taken to need ``unknown`` seconds, or as long again as it has run when that is more:
    lengths of training jobs are heavy-tailed, so one that has run long is likely to run long still. Among
    unknown jobs this is least attained service first, whose order Tiresias uses, on the scale of the known.
    With ``measure`` set to service, what counts is remaining GPU-time (SRSF, as Tiresias compares itself with).
    """

    @dataclass(frozen=True)
    class Config:
        hysteresis: float = tunable(2.0, "how many times more a running job must have left to be displaced", low=1.0, high=100.0)
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
        measure: str = tunable(TIME, "what is short: the time that is left, or the service (GPU-time)", choices=MEASURES)

    name: ClassVar[str] = "srtf"
    rigid: ClassVar[bool] = True
    starts_alone: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        return serve(view, self.ranking)

    def ranking(self, jobs: Jobs) -> Ranking:
        left = measured(remaining_time(jobs, self.config.unknown), jobs, self.config.measure)
        return Ranking(
            key=left,
            claim=-left,
            hold=-left / self.config.hysteresis,
            steady=all_known(jobs),
            displaceable=f"jobs with more than {self.config.hysteresis:g} times its remaining {self.config.measure}",
        )
