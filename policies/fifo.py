"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .contract import Plan, View, tunable
from .queues.serving import Ranking, serve


class Fifo:
    """Jobs start in the order of their submission and run to the end; no job is preempted.

    The first job that does not fit blocks the jobs behind it, so that large gangs are never overtaken;
    with ``backfill`` jobs behind it that fit may start.
    """

    @dataclass(frozen=True)
    class Config:
        backfill: bool = tunable(False, "jobs behind one that does not fit may start; a large job can then be overtaken for ever")

    name: ClassVar[str] = "fifo"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        return serve(view, Ranking(blocking=not self.config.backfill))
