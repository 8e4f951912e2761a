"""Hill climbing on a modelled latency, as tf.data's AUTOTUNE does it: the baseline of the paper, with its known weaknesses.

What is public of it (Murray et al., "tf.data: A Machine Learning Data Processing Framework", VLDB 2021; TensorFlow's
core/framework/model.cc; tf.data.experimental.AutotuneOptions), and is done here:

* an element's cost is the wall time that threads spent on it, averaged since the start: waiting counts as work, and a change of the
  cost is seen late;
* stages with workers are queues: the latency of an element is that of an M/M/1/K chain, the buffer of a stage as long as its parallelism;
* from one worker each, the parallelism that lowers the modelled latency most is raised by one, until the latency is below the processing
  time of all stages over the CPU budget, or all are at their maximum, which is the number of cores;
* it climbs again in the background, after a period that doubles up to a minute;
* the CPU budget is the number of cores at the start: a resize changes nothing until the job is launched again;
* it begins with 16 workers a stage, and buffers double while they run empty, up to half of the memory that was free at the start. It counts
  the buffers only, not what the workers hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stoker.runners.loaders.tuning.controller import Decision, Observation, in_cores
from stoker.runners.loaders.tuning.controller_options import tunable
from stoker.runners.loaders.tuning.costs import MIB, memory_knobs, most_workers, with_workers, worker_knobs

LONGEST_PERIOD = 60.0  #: seconds between two climbs


@dataclass(frozen=True, slots=True)
class AutotuneOptions:
    initial_parallelism: int = tunable(16, "workers a stage before anything was measured", low=1, high=1024)
    ram_share: float = tunable(0.5, "of the memory that is free at the start, the most that buffers may take", low=0.01, high=1.0)


@dataclass(slots=True)
class _Average:
    """Since the start, weighted by items."""

    total: float = 0.0
    items: int = 0

    def see(self, value: float, items: int) -> None:
        self.total += value * items
        self.items += items

    @property
    def mean(self) -> float:
        return self.total / self.items if self.items else math.nan


class Autotune:
    """Hill climbing on tf.data's model of the latency; keeps to the cores and the memory that there were at the start."""

    name: ClassVar[str] = "autotune"
    Options: ClassVar[type[AutotuneOptions]] = AutotuneOptions
    relaunches: ClassVar[bool] = False

    def __init__(self, options: AutotuneOptions) -> None:
        self.options = options
        self._launch()

    def _launch(self) -> None:
        self._costs: dict[str, _Average] = {}
        self._cpu_budget = 0.0
        self._ram_budget = 0.0
        self._period = 0.0
        self._next_climb = -math.inf
        self._workers: dict[str, int] = {}
        self._why = ""

    def decide(self, seen: Observation) -> Decision:
        if seen.resized and self.relaunches:
            self._launch()
        if not self._cpu_budget:
            self._cpu_budget = max(1.0, seen.cpus)
            self._ram_budget = self.options.ram_share * max(0, seen.memory_total - seen.memory_used)
            return self._begin(seen)
        for reading in seen.stages:
            if reading.items and not math.isnan(reading.cpu + reading.wait):
                cost = (reading.cpu + reading.wait) * reading.per_batch
                self._costs.setdefault(reading.name, _Average()).see(cost, reading.items)
        if not self._costs:
            return Decision(seen.values, "no element has come through yet")
        if seen.at >= self._next_climb:
            self._workers, latency = self._climb(seen)
            self._why = f"modelled latency {latency:.3g} s a batch on {in_cores(self._cpu_budget)}"
            self._period = min(max(2 * self._period, seen.window), LONGEST_PERIOD)
            self._next_climb = seen.at + self._period
        values = list(with_workers(seen, self._workers))
        grown = self._grow_buffers(seen, values)
        return Decision(tuple(values), self._why + (f"; buffer of {grown} doubled" if grown else ""))

    def _begin(self, seen: Observation) -> Decision:
        places = worker_knobs(seen)
        most = min(self.options.initial_parallelism, math.floor(self._cpu_budget))
        stages = {reading.name: reading for reading in seen.stages}
        workers = {name: min(most, most_workers(seen.knobs[place], stages[name])) for name, place in places.items() if name in stages}
        return Decision(with_workers(seen, workers), f"{most} workers a stage to begin with")

    def _climb(self, seen: Observation) -> tuple[dict[str, int], float]:
        """Workers of each stage that has a knob, and the latency that the model gives them."""
        places = worker_knobs(seen)
        costs = [self._costs[reading.name].mean if reading.name in self._costs else 0.0 for reading in seen.stages]
        high = [
            min(most_workers(seen.knobs[places[reading.name]], reading), max(1, math.floor(self._cpu_budget)))
            if reading.name in places
            else max(1, reading.workers)
            for reading in seen.stages
        ]
        workers = [seen.knobs[places[r.name]].low if r.name in places else max(1, r.workers) for r in seen.stages]
        consumer = seen.batch_size / seen.demand
        goal = sum(costs) / self._cpu_budget
        latency = modelled_latency(costs, workers, consumer)
        while latency >= goal:
            options = [place for place in range(len(workers)) if workers[place] < high[place]]
            if not options:
                break
            best = min(options, key=lambda place: modelled_latency(costs, _raised(workers, place), consumer))
            workers = _raised(workers, best)
            latency = modelled_latency(costs, workers, consumer)
        return {reading.name: n for reading, n in zip(seen.stages, workers, strict=True) if reading.name in places}, latency

    def _grow_buffers(self, seen: Observation, values: list[int]) -> str:
        """Doubles what ran empty, within the budget for all of them."""
        grown = ""
        for place, reading in memory_knobs(seen).items():
            held = sum(values[other] for other in memory_knobs(seen)) * MIB
            if reading.queue <= 1 and held + values[place] * MIB <= self._ram_budget:
                values[place], grown = seen.knobs[place].clip(values[place] * 2), reading.name
        return grown


class AutotuneAdaptive(Autotune):
    """AUTOTUNE that somebody launches again whenever the machine is resized (003 ch. 5, baseline 3)."""

    name: ClassVar[str] = "autotune-adaptive"
    relaunches: ClassVar[bool] = True


def modelled_latency(costs: Sequence[float], workers: Sequence[int], consumer: float) -> float:
    """Seconds that the consumer waits for a batch: each stage an M/M/1/K queue with a buffer as long as its parallelism.

    ``costs``: seconds of one worker a batch, in the order of the data; ``consumer``: seconds that it takes over a batch.
    """
    waited = 0.0
    for place, (cost, count) in enumerate(zip(costs, workers, strict=True)):
        after = costs[place + 1] / workers[place + 1] if place + 1 < len(costs) else consumer
        waited = wait_of_consumer(cost / count + waited, after, count)
    return waited


def wait_of_consumer(producer: float, consumer: float, buffer: int) -> float:
    """Time of a producer × the probability that the buffer is empty, in an M/M/1/K queue."""
    if producer <= 0.0:
        return 0.0
    ratio = consumer / producer
    if math.isclose(ratio, 1.0):
        return producer / (buffer + 1)
    if ratio > 1.0:  # the inverse, so that nothing overflows
        inverse = 1.0 / ratio
        return producer * (inverse**buffer - inverse ** (buffer + 1)) / (1.0 - inverse ** (buffer + 1))
    return producer * (1.0 - ratio) / (1.0 - ratio ** (buffer + 1))


def _raised(workers: Sequence[int], place: int) -> list[int]:
    return [count + (other == place) for other, count in enumerate(workers)]
