"""An Observation in the agent's form: one row of numbers a knob, of the same scale on every machine.

Two layouts:

* ``stages`` (the default): the factors of 003 Table 2, and the measurements of each stage. Table 2 alone cannot tell the stages
  apart: which of them is the bottleneck can only be found by trying, anew for each job. With a row a stage one small network is the head
  of every stage, so one agent serves pipelines of any length, and each window teaches it as many lessons as there are stages.
* ``table2``: exactly the paper's state, six numbers, and the place of the knob, which names the head. One agent a length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..controller import Observation, StageReading, Unit, Values, reward

Rows = NDArray[np.float32]  #: shape (knobs, width of the layout)

MIB = 2**20
MOST_KNOBS = 8  #: knobs that the layout ``table2`` has places for
WORST_REWARD = -3.0  #: normalised reward of a window that delivered nothing, and the least that counts
SMOOTHING = 0.5  #: weight of a new measurement of an item's cost
FORGETTING = 0.985  #: of the best that was seen, each window: after 50 windows half of it counts


def _log(ratio: float, least: float, most: float) -> float:
    """Logarithm, held between bounds; 0 gives the least, inf the most, nan 0."""
    if math.isnan(ratio):
        return 0.0
    return min(max(math.log(ratio) if ratio > 0 else -math.inf, least), most)


def _ratio(above: float, below: float) -> float:
    if math.isnan(below):
        return math.nan
    return above / below if below > 0 else math.inf


@dataclass(slots=True)
class Stage:
    """Knowledge of a stage: smoothed seconds and bytes of its items, and its highest capacity."""

    cpu: float = math.nan
    wait: float = math.nan
    item_bytes: float = math.nan
    capacity: float = math.nan  #: batches a second with a core for each worker
    most: float = 0.0  #: capacity seen so far, slowly forgotten
    most_with: int = 1  #: workers at that time

    def see(self, reading: StageReading) -> None:
        for field in ("cpu", "wait", "item_bytes"):
            new, old = getattr(reading, field), getattr(self, field)
            if not math.isnan(new):
                setattr(self, field, new if math.isnan(old) else old + SMOOTHING * (new - old))
        workers = max(reading.workers, 1)  # a stage that only holds data has none, and no cost
        self.capacity = _ratio(workers, reading.per_batch * (self.cpu + self.wait))
        self.most *= FORGETTING
        if self.most < self.capacity < math.inf:
            self.most, self.most_with = self.capacity, workers


@dataclass(slots=True)
class Best:
    """The values with the highest reward, slowly forgotten; and the last ones."""

    values: Values
    earned: float
    last_values: Values
    last_earned: float

    def see(self, values: Values, earned: float) -> None:
        self.earned += math.log(FORGETTING)
        if earned > self.earned:
            self.values, self.earned = values, earned
        self.last_values, self.last_earned = values, earned


class Encoder:
    """Turns the observations of one pipeline into rows, and its rewards into numbers of the same scale. Remembers costs between windows."""

    def __init__(self, layout: str = "stages") -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout: {layout!r} is none of {', '.join(LAYOUTS)}")
        self.layout = layout
        self._stages: dict[str, Stage] = {}
        self._scale = math.nan  # samples a second that count as 1
        self._cpus = math.nan
        self._best: Best | None = None

    def encode(self, seen: Observation) -> tuple[Rows, float]:
        """Rows of this window and its normalised reward: the logarithm of Eqn 1 over the limit of the cores or the consumer."""
        for reading in seen.stages:
            self._stages.setdefault(reading.name, Stage()).see(reading)
        earned = self._normalised(seen)
        if self._best is None or seen.resized:
            self._best = Best(seen.values, earned, seen.values, earned)
        rows = LAYOUTS[self.layout](seen, self._stages, self._best, earned)
        self._best.see(seen.values, earned)
        return rows, earned

    def _normalised(self, seen: Observation) -> float:
        """Logarithmic: gains count by their ratio, so neither the pipeline's size nor the machine's matters.

        The scale is set once, and again when the cores change. If it followed the measured costs, an allocation that
        makes stages slow one another would raise its own reward.
        """
        if math.isnan(self._scale) or seen.cpus != self._cpus:
            possible = _by_cores(seen, self._stages) * seen.batch_size
            if seen.throughput <= 0 or math.isnan(possible):
                return WORST_REWARD
            self._scale = min(possible, seen.demand)
            if not math.isfinite(self._scale):  # no stage computes, and the consumer does not wait: the first window is the measure
                self._scale = seen.throughput
            self._cpus = seen.cpus
        return _log(reward(seen) / self._scale, WORST_REWARD, 1.0)


def _by_cores(seen: Observation, stages: Mapping[str, Stage]) -> float:
    """Batches a second if all cores worked for the pipeline alone; nan while a stage's cost is not known."""
    return _ratio(seen.cpus, sum(reading.per_batch * stages[reading.name].cpu for reading in seen.stages))


def free_cpus(seen: Observation) -> float:
    """Cores that are allocated to no worker."""
    return seen.cpus - sum(value for knob, value in zip(seen.knobs, seen.values, strict=True) if knob.unit is Unit.WORKERS)


def _table2(seen: Observation, stages: Mapping[str, Stage], best: Best, earned: float) -> Rows:
    if len(seen.knobs) > MOST_KNOBS:
        raise ValueError(f"layout: table2 has places for {MOST_KNOBS} knobs, this pipeline has {len(seen.knobs)}")
    state = (
        _log(seen.latency(), -7.0, 7.0) / 7,
        math.copysign(math.log2(1 + abs(free_cpus(seen))), free_cpus(seen)) / 7,
        _log((seen.memory_total - seen.memory_used) / 2**30, -3.0, 7.0) / 7,
        _log(seen.batch_size / seen.demand, -7.0, 7.0) / 7,
        _log(seen.bandwidth / 1e4, -3.0, 3.0) / 3 if seen.bandwidth else 0.0,
        seen.clock / 4,
    )
    rows = np.zeros((len(seen.knobs), len(state) + MOST_KNOBS), np.float32)
    rows[:, : len(state)] = state
    rows[np.arange(len(rows)), len(state) + np.arange(len(rows))] = 1.0
    return rows


def _stages(seen: Observation, stages: Mapping[str, Stage], best: Best, earned: float) -> Rows:
    known = sorted(stage.capacity for stage in stages.values() if math.isfinite(stage.capacity)) or [math.nan]
    delivered, demand = seen.throughput / seen.batch_size, seen.demand / seen.batch_size
    shared = (
        # Table 2, of which latencies and free resources as ratios
        _log(_ratio(demand, delivered), -3.0, 3.0) / 3,
        max(-2.0, free_cpus(seen) / seen.cpus),
        1.0 - seen.memory_used / seen.memory_total,
        _log(seen.batch_size / seen.demand, -7.0, 7.0) / 7,
        _log(seen.bandwidth / 1e4, -3.0, 3.0) / 3 if seen.bandwidth else 0.0,
        seen.clock / 4,
        # the pipeline as a whole
        math.log2(seen.cpus) / 8,
        1.0 - seen.cpu_used / seen.cpus,
        _log(_ratio(delivered, known[0]), -2.0, 1.0),  # below 0: something else than a stage's own cost holds it back
        _log(_by_cores(seen, stages) / known[0], -3.0, 3.0) / 3,
        _log(known[1] / known[0], 0.0, 2.0) if len(known) > 1 else 0.0,
        min(max(earned - best.last_earned, -1.0), 1.0),
        min(max(earned - best.earned, -1.0), 1.0),
        earned / 3,
        float(seen.throughput <= 0),
        len(seen.knobs) / 8,
    )
    readings = {reading.name: reading for reading in seen.stages}
    own = [_of_knob(seen, place, readings[knob.stage], stages[knob.stage], known[0], best) for place, knob in enumerate(seen.knobs)]
    rows = np.empty((len(own), len(shared) + len(own[0])), np.float32)
    rows[:, : len(shared)] = shared
    rows[:, len(shared) :] = own
    return rows


def _of_knob(seen: Observation, place: int, reading: StageReading, stage: Stage, slowest: float, best: Best) -> tuple[float, ...]:
    knob, value = seen.knobs[place], max(seen.values[place], 1)
    memory = knob.unit is Unit.MIB
    item_bytes = 0.0 if math.isnan(stage.item_bytes) else stage.item_bytes
    batches = value * MIB / max(item_bytes * reading.per_batch, 1.0) if memory else 0.0
    changed = seen.values[place] - best.last_values[place]
    return (
        1.0 if memory else 0.0,
        _log(stage.capacity / slowest, 0.0, 5.0) / 5,
        _log(_ratio(stage.capacity * seen.batch_size, seen.demand), -4.0, 4.0) / 4,
        math.log2(value) / 10,
        min(value / seen.cpus, 4.0) / 4 if not memory else 0.0,
        min(5.0 / value, 5.0) / 5,
        0.0 if math.isnan(stage.cpu) else stage.cpu / max(stage.cpu + stage.wait, 1e-12),
        reading.starved,
        reading.blocked,
        float(reading.parallel),
        float(reading.processes),
        _log(MIB / seen.memory_total if memory else item_bytes / seen.memory_total, -20.0, 0.0) / 20,
        reading.queue_bytes / seen.memory_total,
        math.log2(1 + batches) / 8,
        min(reading.queue_bytes / (value * MIB), 1.0) if memory else 0.0,
        math.copysign(math.log1p(abs(changed)), changed) / 2,
        float(value <= knob.low),
        # whether more workers still help: against the stage's highest capacity, and against the best reward
        _log(stage.capacity / stage.most, -1.0, 0.0) if stage.most > 0 else 0.0,
        _log(max(reading.workers, 1) / stage.most_with, -2.0, 2.0) / 2,
        _log(value / max(best.values[place], 1), -2.0, 2.0) / 2,
    )


LAYOUTS: dict[str, Callable[[Observation, Mapping[str, Stage], Best, float], Rows]] = {
    "stages": _stages,
    "table2": _table2,
}
WIDTHS = {"stages": 16 + 20, "table2": 6 + MOST_KNOBS}
VERSION = 1  #: of both layouts; weights of another version are refused
