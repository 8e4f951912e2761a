"""From written jobs to submitted ones: array grids, dependencies on arrays, firings of recurring jobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .model import Demand, Dependency, JobSpec, command_digest
from .reading.params import substitute, substitute_command


@dataclass(frozen=True, slots=True)
class Array:
    """A grid of parameters: one task per combination, the last parameter varying fastest."""

    grid: Mapping[str, Sequence[Any]]
    max_running: int | None = None
    copies: int = 1  #: tasks of each combination, which differ only in their index

    @property
    def size(self) -> int:
        return self.copies * math.prod(len(values) for values in self.grid.values())


def tasks(spec: JobSpec, array: Array) -> list[JobSpec]:
    """The tasks ``name[0]``, ``name[1]``, … of an array job."""
    combinations = itertools.product(*array.grid.values(), range(array.copies))
    return [_task(spec, array, index, dict(zip(array.grid, values, strict=False))) for index, values in enumerate(combinations)]


def _task(spec: JobSpec, array: Array, index: int, values: dict[str, Any]) -> JobSpec:
    return msgspec.structs.replace(
        spec,
        name=f"{spec.name}[{index}]",
        params={**spec.params, **values},
        command=None if spec.command is None else substitute_command(spec.command, values),
        env={name: substitute(value, values) for name, value in spec.env.items()},
        # With one key for all the second task would be a repetition of the first.
        idempotency_key=None if spec.idempotency_key is None else f"{spec.idempotency_key}[{index}]",
        array_index=index,
        array_size=array.size,
        array_cap=array.max_running,
        family=None if spec.command is None else command_digest(spec.command),
    )


def resolve_arrays(specs: Sequence[JobSpec], arrays: Mapping[str, int]) -> list[JobSpec]:
    """Dependencies on an array of the same file become dependencies on each of its tasks."""
    return [
        msgspec.structs.replace(spec, after=tuple(itertools.chain.from_iterable(_each(item, arrays) for item in spec.after)))
        if any(item.job in arrays for item in spec.after)
        else spec
        for spec in specs
    ]


def _each(dependency: Dependency, arrays: Mapping[str, int]) -> list[Dependency]:
    if dependency.job not in arrays:
        return [dependency]
    return [Dependency(f"{dependency.job}[{index}]", dependency.mode) for index in range(arrays[dependency.job])]


def with_deadlines(specs: Sequence[JobSpec]) -> list[int]:
    """Rows of the jobs with deadlines; the first and the last task of an array stand for all."""
    return [
        row for row, spec in enumerate(specs) if spec.deadline is not None and spec.array_index in (None, 0, (spec.array_size or 0) - 1)
    ]


def submissions(specs: Sequence[JobSpec]) -> list[list[JobSpec]]:
    """The jobs of each request: first all ordinary ones, so that a file is taken whole or not at all, then each recurring one."""
    ordinary = [spec for spec in specs if spec.cron is None]
    return ([ordinary] if ordinary else []) + [[spec] for spec in specs if spec.cron is not None]


def fired(spec: JobSpec, submitted_at: float, at: float) -> JobSpec:
    """The job of one firing of a recurring job: its deadlines are as far from the firing as they were from the submission."""
    tiers = tuple(msgspec.structs.replace(tier, deadline=round(tier.deadline - submitted_at + at, 3)) for tier in spec.demand.tiers)
    return msgspec.structs.replace(spec, cron=None, demand=Demand(spec.demand.kind, tiers))
