"""While the queue is empty, leases are open-ended, so the policy need not renew them.

They can still be taken back only at the moments at which they would have been renewed: multiples of their length.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..arrays import Bools, Floats
from ..contract import Allocation, Phase, View
from .cycle import Cycle
from .modelling import Standing, lease_ends, misplaced
from .roles import AT_ONCE, Role, Roles
from .settings import UniSchedConfig


def is_quiet(view: View, aside: Bools) -> bool:
    """Whether all jobs run on GPUs that they may keep: then no plan changes anything until a job comes or ends."""
    return bool((view.jobs.phase == Phase.ACTIVE).all()) and not misplaced(view, aside).any()


def without_end(view: View) -> Bools:
    """Jobs that hold their gangs by open-ended leases: granted while the queue was empty, or by an earlier policy."""
    jobs = view.jobs
    endless: Bools = (jobs.phase == Phase.ACTIVE) & np.isinf(lease_ends(view)) & (jobs.held == jobs.gpus_min)
    return endless


def counted_ends(view: View, roles: Roles, config: UniSchedConfig, endless: Bools) -> Floats:
    """The end of each job's lease; an open-ended one (``endless``) ends when it would next have been renewed."""
    length = np.where(roles.role == Role.SLO, config.slo_leases, 1) * config.be_lease
    renewed: Floats = np.ceil((view.now - AT_ONCE) / length) * length
    return np.where(endless, renewed, lease_ends(view))


def given_ends(view: View, standing: Standing, ends: Floats, endless: Bools) -> dict[int, Allocation]:
    """Open-ended leases that go on, with the ends that `counted_ends` gave them: from now on these are fixed."""
    until = np.maximum(ends, standing.until)  # a guard may protect longer, or for ever
    rows = np.flatnonzero(endless & standing.bound & np.isfinite(until)).tolist()
    return {int(view.jobs.id[row]): Allocation(tuple(view.jobs.allocation(row).tolist()), float(until[row])) for row in rows}


def passed_over(cycle: Cycle, view: View, length: float) -> Cycle | None:
    """The present cycle, if the policy was not asked at its begin: it keeps the choice of the last one. None: a new one begins now."""
    began = math.floor((view.now + AT_ONCE) / length) * length
    jobs = view.jobs
    held = (jobs.phase == Phase.ACTIVE) & (jobs.lease_time > view.now - began)  # running since before it began
    run_out = held & (lease_ends(view) <= began + AT_ONCE)  # expired at its begin, so that it begins now
    if view.now <= began + AT_ONCE or run_out.any() or (len(jobs) and not held.any()):
        return None
    return replace(cycle, ends=began + length, hurried=frozenset())
