"""Hydra's order on GPUs of one kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract import Plan, View, tunable
from ..estimate.lengths import remaining_time
from ..queues.laxity import has_deadline, ranks
from ..queues.serving import Ranking, serve


class Hydra:
    """Jobs with deadlines go before best-effort ones, the shortest remaining time first in each class; no job is preempted.

    Hydra (IEEE Trans. Computers 2023) as 002 ch. 5.4.4 compares with it. With GPUs of one kind its search over kinds has no
    choice, so this order by its two aims, deadlines before latency, remains.
    """

    @dataclass(frozen=True)
    class Config:
        backfill: bool = tunable(True, "jobs behind one that does not fit may start")
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)

    name: ClassVar[str] = "hydra"
    rigid: ClassVar[bool] = True
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        remaining = remaining_time(view.jobs, self.config.unknown)
        key = ranks(~has_deadline(view.jobs), remaining)
        return serve(view, Ranking(key=key, blocking=not self.config.backfill))
