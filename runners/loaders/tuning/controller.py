"""The contract of a controller of a data pipeline: an Observation in, the values of the knobs out.

The live pipeline and the simulated one give the same types, so a controller cannot tell them apart. A knob's unit is that of InTune
(003 ch. 4.3): workers if the stage computes, MiB if it only holds data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Protocol

Values = tuple[int, ...]  #: one value a knob, in the order of the knobs


class Unit(StrEnum):
    WORKERS = "workers"
    MIB = "MiB"


@dataclass(frozen=True, slots=True)
class Knob:
    """The settable value of one stage."""

    stage: str  #: name of the stage
    unit: Unit
    low: int = 1
    high: int = 1024

    def clip(self, value: float) -> int:
        return min(max(round(value), self.low), self.high)


@dataclass(frozen=True, slots=True)
class StageReading:
    """Measurements of a stage in the last window. Times are seconds for one item of *this* stage."""

    name: str
    workers: int
    items: int  #: finished in the window
    per_batch: float  #: items of this stage that make one batch of the pipeline's output
    cpu: float  #: CPU time of an item (thread or process time, so that contention does not inflate it); nan: none finished yet
    wait: float  #: time of an item that was neither CPU time nor waiting for a core: disk, network, sleep, lock; nan: none finished yet
    starved: float  #: fraction of its workers' time in which they had no input
    blocked: float  #: fraction of its workers' time in which its output was full
    queue: int  #: items that wait at its output
    queue_bytes: int
    item_bytes: float  #: mean size of an item of its output; nan: none finished yet
    parallel: bool = True  #: several workers can work at once; False: a serial stage, such as shuffle
    processes: bool = False  #: its workers are processes, not threads
    queue_limit: int = 0  #: most items in its output queue; 0: not known
    starting: int = 0  #: workers that are still starting; they are not among `workers`
    lock: float = 0.0  #: the part of `wait` for a lock, mostly the interpreter's; 0 also if it cannot be seen
    movable: bool = False  #: its workers may be changed from threads to processes, and back, while it runs
    stays: str = ""  #: why they may not, if that was found while it ran
    together: int = 1  #: items that a worker has in hand at once if it is a process
    #: The processes of a stage before it (or, for the source, behind it) do its work; its own workers only pass items on.
    along: bool = False

    @property
    def in_hand(self) -> int:
        """Items that a worker has at once."""
        return self.together if self.processes and not self.along else 1


@dataclass(frozen=True, slots=True)
class Observation:
    """A pipeline and its machine over the last window (003 Table 2)."""

    at: float  #: seconds since the pipeline began
    window: float  #: measured seconds, without the transition after the last change
    stages: tuple[StageReading, ...]  #: in the order of the data
    knobs: tuple[Knob, ...]
    values: Values
    batch_size: float  #: samples of a batch of the output
    throughput: float  #: samples a second that reached the consumer
    demand: float  #: samples a second that the consumer would take if it never waited: 1 / model latency; inf: no latency
    cpus: float  #: cores that this process may use; a cgroup's quota may be a fraction
    cpu_used: float  #: cores that the pipeline kept busy
    memory_used: int  #: bytes, pipeline and consumer
    memory_total: int  #: bytes that they may use
    bandwidth: float = 0.0  #: memory bandwidth of the machine, MB/s; 0: not measured
    clock: float = 0.0  #: of a core, GHz; 0: not known
    resized: bool = False  #: cpus or memory_total have changed since the last observation
    consumer_cpu: float = 0.0  #: cores that the rest of this process, the training, kept busy; not in `cpu_used`
    lock: float = 0.0  #: share of the window in which the interpreter's lock was taken; 0 also if it was not watched
    crowded: float = 0.0  #: share of the window without a free core, or share of the remaining cores that others use; 0 also if unknown

    def latency(self) -> float:
        """Seconds that the pipeline takes for a batch."""
        return self.batch_size / self.throughput if self.throughput > 0 else float("inf")


def with_along(seen: Observation) -> Observation:
    """Adds the cost of a stage whose work another's processes do to that other stage, which needs the workers for it."""
    stages = list(seen.stages)
    for place, reading in enumerate(seen.stages):
        at = _carrier(seen.stages, place) if reading.along and not math.isnan(reading.cpu) else None
        if at is None:
            continue
        carrier = stages[at]
        share = reading.per_batch / carrier.per_batch
        stages[place] = replace(reading, cpu=0.0, wait=0.0)
        stages[at] = replace(carrier, cpu=carrier.cpu + reading.cpu * share, wait=carrier.wait + reading.wait * share)
    return replace(seen, stages=tuple(stages))


def _carrier(stages: Sequence[StageReading], place: int) -> int | None:
    """The stage whose processes do its work: the last before it, or, for the source, the first behind it; None: it has just been moved."""
    before = [other for other in range(place) if not stages[other].along]
    return before[-1] if before else next((other for other, each in enumerate(stages) if each.processes and not each.along), None)


def reward(seen: Observation) -> float:
    """003 Eqn 1: throughput × (1 − memory used / memory total), with the throughput capped at the consumer's demand.

    Without the cap, noise above the consumer's demand would drive the allocation.
    """
    return min(seen.throughput, seen.demand) * max(0.0, 1.0 - seen.memory_used / seen.memory_total)


@dataclass(frozen=True, slots=True)
class Decision:
    """The values that a controller wants, and why, in words for the table `pipelines`.

    ``processes``: stages whose workers are to be processes from now on (True), or threads (False); the others stay as they are.
    ``soon``: the next window is to be a short one. ``likely``: a stage that may be moved to processes soon, "" for none; the slow part
    of their start may be prepared.
    """

    values: Values
    why: str = ""
    processes: Mapping[str, bool] = field(default_factory=dict)
    soon: bool = False
    likely: str = ""


def in_cores(cpus: float) -> str:
    """For people: ``1 core``, ``2.5 cores``."""
    return f"{cpus:g} core{'s' * (cpus != 1)}"


class Controller(Protocol):
    """Steers one pipeline: called once a window, with its observation."""

    name: ClassVar[str]

    def decide(self, seen: Observation) -> Decision:
        """The values for the next window: one a knob, within its bounds. Memory is left to the guard."""
