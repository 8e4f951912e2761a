"""Plumber's linear programme (Kuchnik et al., MLSys 2022), solved in closed form, without its caches.

A stage that finishes r batches a second on one core is given theta cores: maximise min(r × theta) where the thetas add up to the cores
at most, and a sequential stage has one core at most. At the optimum all stages are equally fast, so theta = X / r, and X is what the
cores allow, 1 / sum(1 / r), or the slowest sequential stage. Cores are what it hands out: time that a stage waits counts like time
that it computes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stoker.runners.loaders.tuning.allocation import Load
from stoker.runners.loaders.tuning.controller import Decision, Observation, in_cores
from stoker.runners.loaders.tuning.controller_options import tunable
from stoker.runners.loaders.tuning.costs import Costs, with_workers


@dataclass(frozen=True, slots=True)
class PlumberOptions:
    traced: int = tunable(3, "windows that are measured before the programme is solved, once", low=1, high=1000)


@dataclass(frozen=True, slots=True)
class Solution:
    """Batches a second, and the cores of each stage."""

    rate: float
    cores: tuple[float, ...]


def solve(rates: Sequence[float], sequential: Sequence[bool], cores: float) -> Solution:
    """The optimum of the linear programme. ``rates``: batches a second that one core finishes of each stage, all above 0."""
    together = cores / sum(1.0 / rate for rate in rates)
    best = min([together, *(rate for rate, one in zip(rates, sequential, strict=True) if one)])
    return Solution(best, tuple(best / rate for rate in rates))


def slowest_first(loads: Sequence[Load], workers: int) -> tuple[int, ...]:
    """At most ``workers`` in all (but ``low`` each in any case), so that the slowest stage is as fast as can be.

    Each worker goes to the stage that is slowest then. No allocation of as many has a faster bottleneck: one that did would have more
    workers at the stage where this one stopped, hence fewer at another, which was given its last worker when it was slower than that.
    """
    given = [load.low for load in loads]
    queue = [(load.capacity(load.low), place) for place, load in enumerate(loads)]
    heapq.heapify(queue)
    for _ in range(workers - sum(given)):
        capacity, place = queue[0]
        if given[place] >= loads[place].most or not math.isfinite(capacity):
            break  # more at the others would be of no use
        given[place] += 1
        heapq.heapreplace(queue, (loads[place].capacity(given[place]), place))
    return tuple(given)


class Plumber:
    """Traces the pipeline, solves the linear programme once, and keeps to it."""

    name: ClassVar[str] = "plumber"
    Options: ClassVar[type[PlumberOptions]] = PlumberOptions
    relaunches: ClassVar[bool] = False

    def __init__(self, options: PlumberOptions) -> None:
        self.options = options
        self._launch()

    def _launch(self) -> None:
        self._costs = Costs(weight=0.0, surprise=math.inf)  # a plain average of the trace
        self._traced = 0

    def decide(self, seen: Observation) -> Decision:
        if seen.resized and self.relaunches:
            self._launch()
        if self._traced >= self.options.traced:
            return Decision(seen.values, "as the programme said")
        self._costs.see(seen)
        if len(self._costs.unknown(seen)) == len(seen.stages):
            return Decision(seen.values, "no item has finished yet")
        self._traced += 1
        if self._traced < self.options.traced:
            return Decision(seen.values, f"tracing, window {self._traced} of {self.options.traced}")
        return self._solved(seen)

    def _solved(self, seen: Observation) -> Decision:
        loads = self._costs.loads(seen)
        busy = [load for load in loads if load.cpu + load.wait > 0]
        best = solve([1 / (load.cpu + load.wait) for load in busy], [load.high == 1 for load in busy], seen.cpus).rate
        # Whole workers: the slowest stage first, so that what is rounded away is the least of the bottleneck.
        rounded = slowest_first(loads, max(math.floor(seen.cpus), len(loads)))
        workers = {reading.name: n for reading, n in zip(seen.stages, rounded, strict=True)}
        return Decision(with_workers(seen, workers), f"{best * seen.batch_size:,.0f} samples/s on {in_cores(seen.cpus)} by the programme")


class PlumberAdaptive(Plumber):
    """Plumber that somebody launches again whenever the machine is resized (003 ch. 5, baseline 4)."""

    name: ClassVar[str] = "plumber-adaptive"
    relaunches: ClassVar[bool] = True
