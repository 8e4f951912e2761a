"""`Jobs` cut from the simulator's table without copying it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...policies.contract import Bools, Floats, Ints, Jobs
from .columns import F, I
from .options import Options
from .truth import EARLY, errors_stay, unlearnt


class Rows(Protocol):
    """What `Jobs` are cut from; see `Table`."""

    @property
    def options(self) -> Options: ...
    @property
    def has_gaps(self) -> bool: ...
    @property
    def alloc_gpus(self) -> Ints: ...
    @property
    def alloc_start(self) -> Ints: ...
    def columns(self) -> tuple[Ints, Floats]: ...
    def tiers(self) -> tuple[Ints, Floats, Floats]: ...


def _whole(row: int) -> property:
    return property(lambda self: self._ints[row])


def _real(row: int) -> property:
    return property(lambda self: self._floats[row])


def _worked_out(make: Callable[[LiveJobs], Any]) -> property:
    """A column that costs something: made at the first look."""
    name = make.__name__.lstrip("_")

    def get(self: LiveJobs) -> Any:
        if name not in self._made:
            self._made[name] = make(self)
        return self._made[name]

    return property(get)


class LiveJobs(Jobs):
    """`Jobs` of a table at a moment. A policy looks at a few of the columns, so none is made before it is looked at."""

    __slots__ = ("_floats", "_ints", "_made", "_now", "_table")
    _floats: Floats
    _ints: Ints
    _made: dict[str, Any]
    _now: float
    _table: Rows

    def __init__(self, table: Rows, now: float) -> None:
        put = object.__setattr__  # frozen, as every view
        ints, floats = table.columns()
        put(self, "_ints", ints)
        put(self, "_floats", floats)
        put(self, "_table", table)
        put(self, "_now", now)
        put(self, "_made", {})

    def plain(self) -> Jobs:
        """The same with every column made; what `dataclasses.replace` can be used on."""
        return Jobs(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Jobs)})

    def protect(self, protected: Bools, until: Floats) -> None:
        """What guards hold of these jobs; before anybody else has the view."""
        self._made.update(protected=protected, protected_until=until)

    id = _whole(I.JOB)
    phase = _whole(I.PHASE)
    gpus_min = _whole(I.GPUS_MIN)
    gpus_max = _whole(I.GPUS_MAX)
    priority = _whole(I.PRIORITY)
    demand = _whole(I.DEMAND)
    preemptions = _whole(I.PREEMPTIONS)
    user = _whole(I.USER)
    model = _whole(I.MODEL)
    profile = _whole(I.PROFILE)
    submitted_at = _real(F.SUBMITTED)
    deadline = _real(F.DEADLINE)
    gpu_memory = _real(F.MEMORY)
    lease_end = _real(F.LEASE_END)
    protected = property(lambda self: self._made.get("protected"))
    protected_until = property(lambda self: self._made.get("protected_until"))
    profile_gpus = _whole(I.PROFILE_GPUS)
    held = _whole(I.HELD)
    alloc_start = property(lambda self: self._table.alloc_start)
    alloc_gpus = property(lambda self: self._table.alloc_gpus)
    tier_start = property(lambda self: self._tiers[0])
    tier_deadline = property(lambda self: self._tiers[1])
    tier_reward = property(lambda self: self._tiers[2])

    @_worked_out
    def _tiers(self) -> Any:
        return self._table.tiers()

    @_worked_out
    def _left(self) -> Any:
        """Work left; who holds no GPUs has no speed."""
        trained = np.maximum(self._now - self._floats[F.SINCE], 0.0)  # seconds in the present lease
        return self._floats[F.LEFT] - trained * self._floats[F.SPEED]

    @_worked_out
    def attained(self) -> Any:
        return self._floats[F.ATTAINED] + self.lease_time * self._ints[I.HELD]

    @_worked_out
    def run_time(self) -> Any:
        return self._floats[F.RAN] + self.lease_time

    @_worked_out
    def lease_time(self) -> Any:
        return (self._now - self._floats[F.GRANTED]) * (self._ints[I.HELD] > 0)

    @_worked_out
    def remaining(self) -> Any:
        left = self._left + self._floats[F.GAP] * self._unlearnt if self._table.has_gaps else self._left
        return left * self._belief

    @_worked_out
    def remaining_most(self) -> Any:
        return (self._left + self._floats[F.GAP]) * self._belief if self._table.has_gaps else self.remaining

    @_worked_out
    def uncertainty(self) -> Any:
        errors = self._table.options.errors
        early = EARLY * self._unlearnt * (self._floats[F.GAP] > 0) if self._table.has_gaps else np.zeros(len(self))
        known = np.sqrt((errors.duration**2 + errors.gaussian**2) * self._mistaken + early**2)
        return np.where(np.isnan(self._floats[F.BELIEF]), np.nan, known)

    @_worked_out
    def overhead(self) -> Any:
        costs = self._table.options.costs
        return costs.suspend + costs.resume + costs.resume_per_gpu * (self.gpus_min - 1.0)

    @_worked_out
    def _belief(self) -> Any:
        """Believed work over true work, NaN: nothing is believed."""
        belief = self._floats[F.BELIEF]
        return belief if math.isinf(self._table.options.errors.corrected) else np.where(self._mistaken | np.isnan(belief), belief, 1.0)

    @_worked_out
    def _mistaken(self) -> Any:
        return errors_stay(self.run_time, self._table.options.errors)

    @_worked_out
    def _unlearnt(self) -> Any:
        return unlearnt(self.progress, self._table.options.errors)

    @_worked_out
    def progress(self) -> Any:
        return 1.0 - self._left / self._floats[F.WORK]
