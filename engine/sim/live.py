"""`Jobs` cut from the simulator's table, no more of it than is looked at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...policies.contract import Floats, Ints, Jobs
from ..guards import Protection
from .columns import Column
from .options import Options
from .truth import EARLY, errors_stay, unlearnt
from .workload import Workload


class Rows(Protocol):
    """What `Jobs` are cut from; see `Table`."""

    @property
    def workload(self) -> Workload: ...
    @property
    def options(self) -> Options: ...
    @property
    def deadline(self) -> Floats: ...
    @property
    def gap(self) -> Floats: ...
    @property
    def has_gaps(self) -> bool: ...
    @property
    def alloc_gpus(self) -> Ints: ...
    @property
    def alloc_start(self) -> Ints: ...
    def columns(self) -> tuple[Ints, Floats]: ...
    def tiers(self) -> tuple[Ints, Floats, Floats]: ...


class _Made:
    """A column that is made at the first look; after that it stands in the object itself, where Python looks first."""

    def __init__(self, make: Callable[[LiveJobs], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, jobs: LiveJobs, owner: type) -> Any:
        made = jobs.__dict__[self._name] = self._make(jobs)
        return made


def _made(make: Callable[[LiveJobs], Any]) -> Any:
    return _Made(make)


def _whole(column: int) -> Any:
    return _Made(lambda jobs: _shown(jobs._ints[column].copy()))


def _real(column: int) -> Any:
    return _Made(lambda jobs: _shown(jobs._floats[column].copy()))


def _constant(of: Callable[[Rows], Any]) -> Any:
    """A column that stands as it is for all jobs of the workload."""
    return _Made(lambda jobs: _shown(of(jobs._table)[jobs.id]))


def _shown(column: Any) -> Any:
    """To others, who may only read it."""
    column.flags.writeable = False
    return column


class LiveJobs(Jobs):
    """`Jobs` of a table at a moment. A policy looks at a few of the columns, so none is made before it is looked at."""

    _table: Rows
    _now: float
    _ints: Ints
    _floats: Floats

    def __init__(self, table: Rows, now: float) -> None:
        ints, floats = table.columns()
        self.__dict__.update(_table=table, _now=now, _ints=ints, _floats=floats)  # frozen, as every view

    def plain(self) -> Jobs:
        """The same with every column made; what `dataclasses.replace` can be used on."""
        return Jobs(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Jobs)})

    def protect(self, given: Protection) -> None:
        """What guards hold of these jobs; before anybody else has the view."""
        self.__dict__.update(protected=given.protected, protected_until=given.protected_until, lease_end=given.lease_end)

    id = _whole(Column.JOB)
    phase = _whole(Column.PHASE)
    gpus_min = _constant(lambda table: table.workload.gpus_min)
    gpus_max = _constant(lambda table: table.workload.gpus_max)
    priority = _constant(lambda table: table.workload.priority)
    demand = _constant(lambda table: table.workload.demand)
    preemptions = _whole(Column.PREEMPTIONS)
    user = _constant(lambda table: table.workload.user)
    model = _constant(lambda table: table.workload.model)
    profile = _whole(Column.PROFILE)
    submitted_at = _constant(lambda table: table.workload.submitted)
    deadline = _constant(lambda table: table.deadline)
    gpu_memory = _constant(lambda table: table.workload.gpu_memory)
    lease_end = _real(Column.LEASE_END)
    protected = _made(lambda jobs: None)
    protected_until = _made(lambda jobs: None)
    profile_gpus = _whole(Column.PROFILE_GPUS)
    held = _whole(Column.HELD)
    _gap = _constant(lambda table: table.gap)
    alloc_start = _made(lambda jobs: jobs._table.alloc_start)
    alloc_gpus = _made(lambda jobs: jobs._table.alloc_gpus)
    tier_start = _made(lambda jobs: jobs._tiers[0])
    tier_deadline = _made(lambda jobs: jobs._tiers[1])
    tier_reward = _made(lambda jobs: jobs._tiers[2])

    @_made
    def _tiers(self) -> Any:
        return self._table.tiers()

    @_made
    def _left(self) -> Any:
        """Work left; who holds no GPUs has no speed."""
        trained = np.maximum(self._now - self._floats[Column.SINCE], 0.0)  # seconds in the present lease
        return self._floats[Column.LEFT] - trained * self._floats[Column.SPEED]

    @_made
    def attained(self) -> Any:
        return self._floats[Column.ATTAINED] + self.lease_time * self._ints[Column.HELD]

    @_made
    def run_time(self) -> Any:
        return self._floats[Column.RAN] + self.lease_time

    @_made
    def lease_time(self) -> Any:
        return (self._now - self._floats[Column.GRANTED]) * (self._ints[Column.HELD] > 0)

    @_made
    def remaining(self) -> Any:
        left = self._left + self._gap * self._unlearnt if self._table.has_gaps else self._left
        return left * self._belief

    @_made
    def remaining_most(self) -> Any:
        return (self._left + self._gap) * self._belief if self._table.has_gaps else self.remaining

    @_made
    def uncertainty(self) -> Any:
        errors = self._table.options.errors
        early = EARLY * self._unlearnt * (self._gap > 0) if self._table.has_gaps else np.zeros(len(self))
        known = np.sqrt((errors.duration**2 + errors.gaussian**2) * self._mistaken + early**2)
        return np.where(np.isnan(self._floats[Column.BELIEF]), np.nan, known)

    @_made
    def overhead(self) -> Any:
        costs = self._table.options.costs
        return costs.suspend + costs.resume + costs.resume_per_gpu * (self.gpus_min - 1.0)

    @_made
    def _belief(self) -> Any:
        """Believed work over true work, NaN: nothing is believed."""
        belief = self._floats[Column.BELIEF]
        return belief if math.isinf(self._table.options.errors.corrected) else np.where(self._mistaken | np.isnan(belief), belief, 1.0)

    @_made
    def _mistaken(self) -> Any:
        return errors_stay(self.run_time, self._table.options.errors)

    @_made
    def _unlearnt(self) -> Any:
        return unlearnt(self.progress, self._table.options.errors)

    @_made
    def progress(self) -> Any:
        return 1.0 - self._left / self._floats[Column.WORK]
