"""Earliest deadline first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .contract import Floats, Jobs, Plan, View
from .queues.laxity import next_deadline
from .queues.levels import AT_ONCE, after, waking
from .queues.serving import Ranking, serve


class Edf:
    """The job with the earliest deadline goes first and displaces running jobs with later ones (Liu and Layland, JACM 1973).

    On one machine this meets all deadlines whenever any schedule does. A job with several deadlines counts by the next
    one. Jobs without a deadline come last, in the order of their submission, and so do jobs whose last deadline has passed: if
    an overloaded EDF still served those, it would miss the others' deadlines too. Jobs that fit may overtake one that does not.
    """

    @dataclass(frozen=True)
    class Config:
        pass

    name: ClassVar[str] = "edf"
    rigid: ClassVar[bool] = True
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        deadline = next_deadline(view.jobs, view.now)
        plan = serve(view, Ranking(key=deadline, claim=-deadline, displaceable="jobs with later deadlines"))
        return waking(plan, view.now, _next_missed(view.jobs, plan, deadline) - view.now)


def _next_missed(jobs: Jobs, plan: Plan, deadline: Floats) -> float:
    """The next time at which a running job misses a deadline, and may have to give way to a waiting one; inf: never."""
    runs, waits = after(jobs, plan)
    # A waiting job that misses its own becomes weaker, which helps no other: no room that fits them is free.
    return float(deadline[runs].min(initial=math.inf)) + AT_ONCE if waits.any() else math.inf
