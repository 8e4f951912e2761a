"""Runs of controllers on simulated pipelines: what happens to the machine, what each does about it, and how far that is from the best."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import baseline_controllers as registry
import named_pipelines as presets
from pipeline_oracle import Best, oracle
from simulated_pipeline import Consumer, SimulatedPipeline, Stage
from stoker.runners.loaders.tuning.controller import Unit, Values
from stoker.runners.loaders.tuning.costs import MIB
from stoker.runners.loaders.tuning.guard import Guard

RESIZES = (32, 64, 128, 64, 32)  #: cores, 003 ch. 5, Hardware Setup
CONVERGED = 0.95  #: of the oracle's throughput
FIRST_BUFFER = 2  #: batches, of every pipeline at its start


class Event(NamedTuple):
    """From this window on the machine has so many cores, and the UDF costs so many times what it did before."""

    window: int
    cpus: float
    recost: float = 1.0


@dataclass(frozen=True)
class Scenario:
    """A pipeline and what happens to it. ``make``: a pipeline of a seed, on the cores of the first event."""

    name: str
    make: Callable[[int], SimulatedPipeline]
    events: tuple[Event, ...]
    windows: int
    rated: bool = True  #: whether the best values are looked for, to which its runs are compared

    def phases(self) -> list[range]:
        ends = [event.window for event in self.events[1:]] + [self.windows]
        return [range(event.window, end) for event, end in zip(self.events, ends, strict=True)]


@dataclass
class Run:
    """One value a window; the ratios are of what the values of the window would give in the long run, without noise."""

    throughput: list[float] = field(default_factory=list)  #: samples a second, as measured
    cpu: list[float] = field(default_factory=list)  #: share of the cores in use
    fed: list[float] = field(default_factory=list)  #: share of the consumer's demand
    steady: list[float] = field(default_factory=list)  #: throughput over the oracle's
    reward: list[float] = field(default_factory=list)  #: Eqn 1 over the oracle's
    ooms: int = 0
    refusals: int = 0
    window: float = 5.0

    def mean(self) -> float:
        return statistics.fmean(self.throughput)

    def regret(self) -> float:
        """Share of the throughput of the best values for each window that was not had."""
        return 1.0 - statistics.fmean(self.steady)

    def converged(self, phase: range) -> float:
        """Seconds until it is within 5 % of the oracle and stays there until the next change; inf: it never is."""
        good = [self.steady[window] >= CONVERGED for window in phase]
        if not good[-1]:
            return math.inf
        last_bad = max((place for place, fine in enumerate(good) if not fine), default=-1)
        return (last_bad + 1) * self.window


def run(scenario: Scenario, controller: str, seed: int, *, guarded: bool) -> Run:
    """All windows of one pipeline under one controller, from an even division of the cores on (unoptimised: one worker a stage)."""
    pipeline, tuner, guard = scenario.make(seed), registry.create(controller), Guard()
    changes = {event.window: event for event in scenario.events}
    result, recost = Run(window=pipeline.window), 1.0
    seen = pipeline.step(first_buffers(pipeline))
    if controller != "unoptimised":
        even = registry.create("uniform").decide(seen).values
        seen = pipeline.step(guard.allow(seen, even)[0] if guarded else even)
    for window in range(scenario.windows):
        if (event := changes.get(window)) is not None:
            recost *= _happens(pipeline, event)
        wanted = tuner.decide(seen).values
        given, refused = guard.allow(seen, wanted) if guarded else (wanted, "")
        seen = pipeline.step(given)
        result.throughput.append(seen.throughput)
        result.cpu.append(seen.cpu_used / seen.cpus)
        result.fed.append(min(1.0, seen.throughput / seen.demand))
        result.refusals += bool(refused)
        if scenario.rated:
            best, up = best_of(scenario, pipeline.machine.cpus, round(recost, 6)), seen.throughput > 0
            result.steady.append(min(1.0, up * steady_throughput(pipeline) / best.throughput))
            result.reward.append(up * pipeline.steady_reward(pipeline.values) / best.reward)
    result.ooms = pipeline.ooms
    return result


def _happens(pipeline: SimulatedPipeline, event: Event) -> float:
    if event.cpus != pipeline.machine.cpus:
        pipeline.resize(cpus=event.cpus)
    if event.recost != 1.0:
        pipeline.recost("udf", event.recost)
    return event.recost


def first_buffers(pipeline: SimulatedPipeline) -> Values:
    """One worker a stage, and two batches in the buffer."""
    sizes = {stage.name: stage.item_bytes for stage in pipeline.stages}
    return tuple(
        knob.low if knob.unit is Unit.WORKERS else knob.clip(math.ceil(FIRST_BUFFER * sizes[knob.stage] / MIB)) for knob in pipeline.knobs
    )


def steady_throughput(pipeline: SimulatedPipeline) -> float:
    return pipeline.flow(pipeline.values).throughput * pipeline.batch_size


@cache
def best_of(scenario: Scenario, cpus: float, recost: float) -> Best:
    """The oracle of the scenario's pipeline on so many cores, with a UDF that costs so many times as much."""
    pipeline = scenario.make(0)
    pipeline.resize(cpus=cpus)
    if recost != 1.0:
        pipeline.recost("udf", recost)
    return oracle(pipeline)


# -- what is simulated


def resized(preset: str, interval: int) -> Scenario:
    """32 to 128 cores and back, at regular intervals (003 ch. 5.1)."""
    events = tuple(Event(place * interval, float(cpus)) for place, cpus in enumerate(RESIZES))
    return Scenario(preset, lambda seed: presets.PRESETS[preset](float(RESIZES[0]), seed=seed), events, interval * len(RESIZES))


def shifted(preset: str, interval: int) -> Scenario:
    """64 cores; the UDF costs twice as much for a while."""
    events = (Event(0, 64.0), Event(interval, 64.0, 2.0), Event(2 * interval, 64.0, 0.5))
    return Scenario(f"{preset}, UDF × 2", lambda seed: presets.PRESETS[preset](64.0, seed=seed), events, 3 * interval)


def constant(name: str, make: Callable[[int], SimulatedPipeline], windows: int) -> Scenario:
    return Scenario(name, make, (Event(0, make(0).machine.cpus),), windows, rated=False)


def of_length(count: int, windows: int) -> Scenario:
    """003 ch. 5.2.1: 128 cores, a model latency of 0."""
    return constant(f"{count} stages", lambda seed: presets.of_length(count, 128.0, seed=seed), windows)


def of_cores(cpus: int, windows: int) -> Scenario:
    """003 ch. 5.2.2: launched anew on each machine."""
    return constant(f"{cpus} cores", lambda seed: presets.custom(float(cpus), seed=seed), windows)


def of_batch(factor: float, windows: int) -> Scenario:
    """003 ch. 5.2.3: a batch of so many times as many samples, on 128 cores."""
    size = round(presets.CUSTOM_BATCH * factor)
    return constant(f"batches of {size:,}", lambda seed: _rebatched(presets.custom(128.0, seed=seed), factor, seed), windows)


def of_random(number: int, windows: int) -> Scenario:
    """One of the pipelines that nobody chose, on half its cores from the middle on."""
    cpus = presets.random_pipeline(number).machine.cpus
    events = (Event(0, cpus), Event(windows // 2, max(1.0, cpus / 2)))
    return Scenario(f"random {number}", lambda _: presets.random_pipeline(number), events, windows)


def _rebatched(base: SimulatedPipeline, factor: float, seed: int) -> SimulatedPipeline:
    def scaled(stage: Stage) -> Stage:
        if stage.per_batch > 1:
            return dataclasses.replace(stage, per_batch=stage.per_batch * factor)
        return dataclasses.replace(stage, cpu=stage.cpu * factor, wait=stage.wait * factor, item_bytes=stage.item_bytes * factor)

    consumer = Consumer(base.consumer.batches / factor, base.consumer.bytes, base.consumer.unevenness)
    stages = [scaled(stage) for stage in base.stages]
    return SimulatedPipeline(stages, base.machine, consumer, batch_size=base.batch_size * factor, noise=base.noise, seed=seed)


# -- all of them

Key = tuple[str, str, bool]  #: scenario, controller, guarded


def runs(wanted: Sequence[tuple[Scenario, str, bool]], seeds: int, tell: Callable[[str], None]) -> Mapping[Key, list[Run]]:
    """One run a seed of each; ``tell`` is called before each."""
    done: dict[Key, list[Run]] = {}
    for scenario, controller, guarded in wanted:
        key = (scenario.name, controller, guarded)
        if key in done:
            continue
        done[key] = []
        for seed in range(seeds):
            tell(f"{scenario.name}: {controller}")
            done[key].append(run(scenario, controller, seed, guarded=guarded))
    return done
