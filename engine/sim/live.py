"""`Jobs` cut from the simulator's table; a column is made when it is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...policies.contract import Bools, Floats, Ints, Jobs, Strings
from ..scheduling.guards import Protection
from .record_columns import RecordColumn
from .table import Table
from .truth import EARLY_SHARE, errors_stay, unlearnt


def _whole(column: int) -> Callable[[LiveJobs], Any]:
    return lambda jobs: _shown(jobs._ints[column].copy())


def _real(column: int) -> Callable[[LiveJobs], Any]:
    return lambda jobs: _shown(jobs._floats[column].copy())


def _constant(of: Callable[[Table], Any]) -> Callable[[LiveJobs], Any]:
    """A column that never changes for the jobs of the workload."""
    return lambda jobs: _shown(of(jobs._table)[jobs._rows])


def _words(of: Callable[[Table], Strings | None]) -> Callable[[LiveJobs], Any]:
    """The same for a column that a workload may lack."""
    return lambda jobs: None if of(jobs._table) is None else _constant(of)(jobs)


def _shown(column: Any) -> Any:
    """A read-only column."""
    column.flags.writeable = False
    return column


class LiveJobs(Jobs):
    """`Jobs` of a table at a moment. A policy reads few of the columns, so each is made when it is read."""

    __slots__ = ("_belief", "_floats", "_gap", "_ints", "_left", "_mistaken", "_now", "_rows", "_table", "_tiers", "_unlearnt")

    _table: Table
    _now: float
    _ints: Ints
    _floats: Floats
    _rows: Ints  #: of the workload
    _gap: Floats  #: work beyond its own end up to its maximum of iterations
    _left: Floats  #: work left; a job without GPUs has no speed
    _belief: Floats  #: believed work over true work; NaN: no belief
    _mistaken: Bools  #: whether the errors of the belief still hold
    _unlearnt: Floats  #: share of the gap that is not known yet
    _tiers: tuple[Ints, Floats, Floats]

    def __init__(self, table: Table, now: float, protection: Protection | None = None) -> None:
        """``protection``: the guards' hold on these jobs."""
        keep = object.__setattr__  # frozen, as every view
        ints, floats = table.columns()
        keep(self, "_table", table)
        keep(self, "_now", now)
        keep(self, "_ints", ints)
        keep(self, "_floats", floats)
        keep(self, "protected", None if protection is None else protection.protected)
        keep(self, "protected_until", None if protection is None else protection.protected_until)
        if protection is not None:
            keep(self, "lease_end", protection.lease_end)

    def __getattr__(self, name: str) -> Any:
        """Make a column at its first read."""
        make = _MAKE.get(name)
        if make is None:
            raise AttributeError(name)
        made = make(self)
        object.__setattr__(self, name, made)
        return made

    def plain(self) -> Jobs:
        """The same with every column made, as `dataclasses.replace` needs it."""
        return Jobs(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Jobs)})


def _left(jobs: LiveJobs) -> Floats:
    trained = np.maximum(jobs._now - jobs._floats[RecordColumn.SINCE], 0.0)  # seconds in the present lease
    left: Floats = jobs._floats[RecordColumn.LEFT] - trained * jobs._floats[RecordColumn.SPEED]
    return left


def _progress(jobs: LiveJobs) -> Floats:
    """Share of the work that is done."""
    progress: Floats = 1.0 - jobs._left / jobs._floats[RecordColumn.WORK]
    return progress


def _remaining(jobs: LiveJobs) -> Floats:
    left = jobs._left + jobs._gap * jobs._unlearnt if jobs._table.has_gaps else jobs._left
    return left * jobs._belief


def _remaining_most(jobs: LiveJobs) -> Floats:
    return (jobs._left + jobs._gap) * jobs._belief if jobs._table.has_gaps else jobs.remaining


def _uncertainty(jobs: LiveJobs) -> Floats:
    errors = jobs._table.options.errors
    early = EARLY_SHARE * jobs._unlearnt * (jobs._gap > 0) if jobs._table.has_gaps else np.zeros(len(jobs))
    known: Floats = np.sqrt((errors.duration**2 + errors.gaussian**2) * jobs._mistaken + early**2)
    known[np.isnan(jobs._floats[RecordColumn.BELIEF])] = np.nan
    return known


def _overhead(jobs: LiveJobs) -> Floats:
    costs = jobs._table.options.costs
    return np.asarray(costs.suspend + costs.resume + costs.resume_per_gpu * (jobs.gpus_min - 1.0), dtype=np.float64)


def _belief(jobs: LiveJobs) -> Floats:
    belief = jobs._floats[RecordColumn.BELIEF]
    return belief if math.isinf(jobs._table.options.errors.corrected) else np.where(jobs._mistaken | np.isnan(belief), belief, 1.0)


def _need(jobs: LiveJobs) -> Floats | None:
    """Minus the number of its need for a job whose checkpoint only some nodes can read."""
    if jobs._table.place is None:
        return None
    place = jobs._table.place[jobs._rows]
    return np.where(place >= 0, -1.0 - place, jobs.gpu_memory) if (place >= 0).any() else None


_MAKE: Mapping[str, Callable[[LiveJobs], Any]] = {
    "id": lambda jobs: jobs._rows if jobs._table.ids is None else _shown(jobs._table.ids[jobs._rows]),
    "phase": _whole(RecordColumn.PHASE),
    "gpus_min": _constant(lambda table: table.workload.gpus_min),
    "gpus_max": _constant(lambda table: table.workload.gpus_max),
    "priority": _constant(lambda table: table.workload.priority),
    "demand": _constant(lambda table: table.workload.demand),
    "preemptions": _whole(RecordColumn.PREEMPTIONS),
    "user": _constant(lambda table: table.workload.user),
    "model": _constant(lambda table: table.workload.model),
    "profile": _whole(RecordColumn.PROFILE),
    "submitted_at": _constant(lambda table: table.workload.submitted),
    "deadline": _constant(lambda table: table.deadline),
    "gpu_memory": _constant(lambda table: table.workload.gpu_memory),
    "lease_end": _real(RecordColumn.LEASE_END),
    "profile_gpus": _whole(RecordColumn.PROFILE_GPUS),
    "alloc_start": lambda jobs: jobs._table.alloc_start,
    "alloc_gpus": lambda jobs: jobs._table.alloc_gpus,
    "tier_start": lambda jobs: jobs._tiers[0],
    "tier_deadline": lambda jobs: jobs._tiers[1],
    "tier_reward": lambda jobs: jobs._tiers[2],
    "attained": lambda jobs: jobs._floats[RecordColumn.ATTAINED] + jobs.lease_time * jobs._floats[RecordColumn.RATE],
    "run_time": lambda jobs: jobs._floats[RecordColumn.RAN] + jobs.lease_time,
    "lease_time": lambda jobs: (jobs._now - jobs._floats[RecordColumn.GRANTED]) * (jobs._ints[RecordColumn.HELD] > 0),
    "remaining": _remaining,
    "remaining_most": _remaining_most,
    "uncertainty": _uncertainty,
    "overhead": _overhead,
    "progress": _progress,
    "need": _need,
    "kind": _words(lambda table: table.workload.kind),
    "backbone": _words(lambda table: table.workload.backbone),
    "share": _words(lambda table: table.workload.share),
    "begins": lambda jobs: None,  # every job may begin
    "kept": lambda jobs: None,  # every job keeps all
    "_rows": _whole(RecordColumn.JOB),
    "_tiers": lambda jobs: jobs._table.tiers(),
    "_gap": _constant(lambda table: table.gap),
    "_left": _left,
    "_belief": _belief,
    "_mistaken": lambda jobs: errors_stay(jobs.run_time, jobs._table.options.errors),
    "_unlearnt": lambda jobs: unlearnt(_progress(jobs), jobs._table.options.errors),
}
