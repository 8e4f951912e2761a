"""Finds the guard that holds a job back: the policy is asked when it would start the job as holders lose their protection one by one."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ...policies.contract import Phase, Plan, Policy, View
from .guards import Evictions, PreemptionLimits, protection, reconcile
from .plan_check import check, check_enacted
from .policy_errors import ask


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A job that a guard keeps from starting."""

    text: str  #: names the guard and the victim
    until: float  #: when it may start (s since the epoch), inf: not before a job ends


def held_back(job: int, policy: Policy, view: View, limits: PreemptionLimits, evictions: Evictions) -> HeldBack | None:
    """The guard that keeps a waiting job from GPUs that its policy would give it; None: there is none.

    ``view``: without protection. ``policy``: an instance of its own, asked as often as bisection needs.
    """
    given = protection(view, limits)
    ends = given.protected_until[given.protected & (view.jobs.phase == Phase.ACTIVE)]
    moments = [view.now, *np.unique(ends[np.isfinite(ends)]).tolist(), math.inf]

    def starts(moment: float) -> Plan | None:
        """The plan at a moment, with every job preemptible whose protection has ended by then; None: it does not start the job."""
        jobs = dataclasses.replace(view.jobs, protected=given.protected_until > moment, protected_until=given.protected_until)
        asked = dataclasses.replace(view, jobs=jobs)
        plan = check_enacted(check(ask(policy, asked), asked))
        return plan if job in plan.allocations else None

    if starts(math.inf) is None:
        return None
    plan = starts(moments[bisect_left(moments, True, key=lambda moment: starts(moment) is not None)])
    if plan is None:  # the policy starts it when more jobs are protected, but not when fewer are
        return None
    objection = dict(reconcile(view, plan, limits, evictions).deferred).get(job)
    until = max(
        (_until(job, victim, given.protected_until[row], limits, evictions) for row, victim in _victims(job, plan, view)), default=0.0
    )
    return HeldBack(objection, until) if objection is not None and until > view.now else None


def _victims(job: int, plan: Plan, view: View) -> list[tuple[int, int]]:
    """Rows and numbers of the jobs that hold the GPUs that a plan gives to ``job``."""
    given = plan.allocations[job].gpus
    rows = [row for row in np.flatnonzero(view.jobs.held).tolist() if np.isin(view.jobs.allocation(row), given).any()]
    return [(row, int(view.jobs.id[row])) for row in rows]


def _until(job: int, victim: int, protected_until: float, limits: PreemptionLimits, evictions: Evictions) -> float:
    """When the last guard that protects a victim ends."""
    either = (evictions.gave_way.get(pair, -math.inf) + limits.cooldown for pair in ((job, victim), (victim, job)))
    return max(float(protected_until), *either)
