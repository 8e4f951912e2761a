"""Leases while nobody waits: they have no end, so that nobody asks until somebody comes or goes.

They can still be taken back only when they would have been renewed: at the next multiple of their length.
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
    """Whether all run where they may stay: every plan leaves all as it is, whatever time passes, until somebody comes or goes."""
    return bool((view.jobs.phase == Phase.ACTIVE).all()) and not misplaced(view, aside).any()


def without_end(view: View) -> Bools:
    """Which jobs hold their gangs by a lease without an end: given while nobody waited, or by a policy before this one."""
    jobs = view.jobs
    endless: Bools = (jobs.phase == Phase.ACTIVE) & np.isinf(lease_ends(view)) & (jobs.held == jobs.gpus_min)
    return endless


def counted_ends(view: View, roles: Roles, config: UniSchedConfig, endless: Bools) -> Floats:
    """When each job's lease ends, of those without an end (``endless``) at the next moment at which it would have been renewed."""
    length = np.where(roles.role == Role.SLO, config.slo_leases, 1) * config.be_lease
    renewed: Floats = np.ceil((view.now - AT_ONCE) / length) * length
    return np.where(endless, renewed, lease_ends(view))


def given_ends(view: View, standing: Standing, ends: Floats, endless: Bools) -> dict[int, Allocation]:
    """Leases without an end that go on, with the end that they are counted with: what becomes of their jobs meanwhile does not move it."""
    until = np.maximum(ends, standing.until)  # a guard may protect longer, or for ever
    rows = np.flatnonzero(endless & standing.bound & np.isfinite(until)).tolist()
    return {int(view.jobs.id[row]): Allocation(tuple(view.jobs.allocation(row).tolist()), float(until[row])) for row in rows}


def passed_over(cycle: Cycle, view: View, length: float) -> Cycle | None:
    """The cycle that ``view.now`` is in if nobody was asked when it began: what the last one has chosen goes on. None: it begins now."""
    began = math.floor((view.now + AT_ONCE) / length) * length
    jobs = view.jobs
    held = (jobs.phase == Phase.ACTIVE) & (jobs.lease_time > view.now - began)  # since before it began; if nobody had, none did
    run_out = held & (lease_ends(view) <= began + AT_ONCE)  # then this is that moment, or a little after it
    if view.now <= began + AT_ONCE or run_out.any() or (len(jobs) and not held.any()):
        return None
    return replace(cycle, ends=began + length, hurried=frozenset())
