"""The number of workers for each stage: exact integer optima of a model of a pipeline.

A stage needs ``cpu + wait`` seconds of one worker for a batch of the pipeline's output, and its workers slow one another by the universal
scalability law (Gunther, 1993): time × (1 + contention (n − 1) + coherency n (n − 1)), or share what lets ``knee`` of them through,
such as the interpreter's lock. The pipeline is as fast as its slowest stage, as the cores when all stages compute on them, and as its
consumer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

ROUNDING = 1e-9  #: 3.0000000001 workers are 3
BISECTIONS = 40


@dataclass(frozen=True)
class Load:
    """The cost of a stage, in seconds for one batch of the pipeline's output, and the limits of its workers."""

    cpu: float
    wait: float
    low: int = 1
    high: int = 1024  #: 1 for a stage with one order
    contention: float = 0.0
    coherency: float = 0.0
    knee: float = math.inf  #: workers that do as much as any number of them

    def crowding(self, workers: int) -> float:
        """The factor by which its workers slow one another."""
        scaled = 1.0 + self.contention * (workers - 1) + self.coherency * workers * (workers - 1)
        return max(scaled, workers / self.knee)

    def capacity(self, workers: int) -> float:
        """Batches a second of so many workers, each on a core of its own when it computes."""
        service = (self.cpu + self.wait) * self.crowding(workers)
        return workers / service if service > 0 else math.inf

    @cached_property
    def most(self) -> int:
        """Workers beyond which the stage does not get faster: n / crowding(n) rises up to n² = (1 − contention) / coherency."""
        if self.contention >= 1.0:
            return self.low
        if math.isfinite(self.knee):
            return min(max(math.ceil(self.knee - ROUNDING), self.low), self.high)
        if self.coherency <= 0.0:
            return self.high
        turn = math.floor(math.sqrt((1.0 - self.contention) / self.coherency))
        best = max(turn, turn + 1, key=lambda count: count / self.crowding(count))
        return min(max(best, self.low), self.high)

    def fewest(self, rate: float) -> int:
        """The least workers that finish ``rate`` batches a second; ``most`` if none do."""
        low, high = self.low, self.most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.capacity(middle) >= rate * (1.0 - ROUNDING) else (middle + 1, high)
        return low


def fewest(loads: Sequence[Load], rate: float) -> tuple[int, ...]:
    """The smallest allocation that reaches ``rate`` batches a second.

    A stage's rate depends on its own workers alone. So rounding up each by itself gives at once a best bottleneck, the least workers, and,
    as workers only slow one another, the least CPU time.
    """
    return tuple(load.fewest(rate) for load in loads)


def attainable(loads: Sequence[Load], cores: float, demand: float = math.inf) -> float:
    """Batches a second of the best allocation within the limits of cores, consumer, and stages that cannot grow."""
    computing = sum(load.cpu for load in loads)
    top = min(demand, cores / computing if computing > 0 else math.inf, *(load.capacity(load.most) for load in loads))
    if not math.isfinite(top) or _cores_wanted(loads, top) <= cores:
        return top
    low, high = 0.0, top  # the cores that a rate takes rise with the rate
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _cores_wanted(loads, middle) > cores else (middle, high)
    return low


def throughput(loads: Sequence[Load], workers: Sequence[int], cores: float, demand: float = math.inf) -> float:
    """Batches a second of an allocation."""
    computing = sum(load.cpu * load.crowding(count) for load, count in zip(loads, workers, strict=True))
    by_cores = cores / computing if computing > 0 else math.inf
    return min(demand, by_cores, *(load.capacity(count) for load, count in zip(loads, workers, strict=True)))


def _cores_wanted(loads: Sequence[Load], rate: float) -> float:
    return rate * (1.0 - ROUNDING) * sum(load.cpu * load.crowding(load.fewest(rate)) for load in loads)
