"""Allocations that do not look at the pipeline: one worker a stage, cores divided evenly, values set by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .....engine.errors import UsageError
from ..controller import Decision, Observation, in_cores
from ..controller_options import tunable
from ..costs import most_workers, with_workers, worker_knobs


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Nothing can be set."""


@dataclass(frozen=True, slots=True)
class FixedOptions:
    values: tuple[int, ...] = tunable((), "one value a knob, in the order of the knobs; (): as the pipeline was written", low=0)


class Unoptimised:
    """One worker a stage (003 ch. 5, baseline 1). Buffers stay as they are."""

    name: ClassVar[str] = "unoptimised"
    Options: ClassVar[type[NoOptions]] = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def decide(self, seen: Observation) -> Decision:
        return Decision(with_workers(seen, dict.fromkeys(worker_knobs(seen), 1)), "one worker a stage")


class Uniform:
    """Cores divided evenly among the stages, again after a resize (003 ch. 5, baseline 5, "Heuristic")."""

    name: ClassVar[str] = "uniform"
    Options: ClassVar[type[NoOptions]] = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def decide(self, seen: Observation) -> Decision:
        workers = even_workers(seen)
        return Decision(with_workers(seen, workers), f"{in_cores(seen.cpus)} divided evenly among {len(workers)} stages")


class Fixed:
    """Values set by hand, or those that the pipeline was written with."""

    name: ClassVar[str] = "fixed"
    Options: ClassVar[type[FixedOptions]] = FixedOptions

    def __init__(self, options: FixedOptions) -> None:
        self.options = options

    def decide(self, seen: Observation) -> Decision:
        wanted = self.options.values or seen.values
        if len(wanted) != len(seen.knobs):
            names = ", ".join(f"{knob.stage} ({knob.unit})" for knob in seen.knobs)
            raise UsageError(f"fixed: values has {len(wanted)} numbers, but the pipeline has {len(seen.knobs)} knobs: {names}")
        return Decision(tuple(knob.clip(value) for knob, value in zip(seen.knobs, wanted, strict=True)), "set by hand")


def even_workers(seen: Observation) -> dict[str, int]:
    """Workers of each stage, at least one. Cores that a serial stage cannot use go to the others."""
    stages = {reading.name: reading for reading in seen.stages}
    room = {name: most_workers(seen.knobs[place], stages[name]) for name, place in worker_knobs(seen).items() if name in stages}
    workers = dict.fromkeys(room, 1)
    spare = math.floor(seen.cpus) - len(workers)
    while spare > 0 and (growing := [name for name in workers if workers[name] < room[name]]):
        for name in growing[:spare]:
            workers[name] += 1
        spare -= min(spare, len(growing))
    return workers
