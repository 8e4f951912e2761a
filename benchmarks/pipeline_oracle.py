"""The best that can be had of a simulated pipeline: values, reward and throughput, by search over the model itself.

What a candidate must do is a throughput; the least workers that reach it follow stage by stage. The best of these is then improved, one
and two knobs at a time, until nothing helps. (Checked against all values of small pipelines in the tests.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from simulated_pipeline import MIB, SimulatedPipeline, Stage
from stoker.runners.loaders.tuning.controller import Unit, Values

STEPS = (-16, -5, -2, -1, 1, 2, 5, 16)
STARTS = 4  #: candidates that are improved


@dataclass(frozen=True, slots=True)
class Best:
    values: Values
    reward: float  #: Eqn 1, steady and without noise
    throughput: float  #: samples a second


def oracle(pipeline: SimulatedPipeline) -> Best:
    """The values of highest steady reward for the pipeline as it stands: its machine, its stages' costs of now."""
    known: dict[Values, float] = {}

    def reward_of(values: Values) -> float:
        if values not in known:
            known[values] = pipeline.steady_reward(values)
        return known[values]

    candidates = sorted(set(_candidates(pipeline)), key=reward_of, reverse=True)
    best = max((_improved(pipeline, start, reward_of) for start in candidates[:STARTS]), key=reward_of)
    throughput = pipeline.flow(best).throughput * pipeline.batch_size
    return Best(best, reward_of(best), throughput)


def _candidates(pipeline: SimulatedPipeline) -> Iterator[Values]:
    """For each throughput at which a stage needs one more worker: the least workers that reach it, with buffers of several sizes."""
    choices = {stage.name: _choices(stage, pipeline) for stage in pipeline.stages if stage.tunable and stage.unit is Unit.WORKERS}
    fixed = [stage for stage in pipeline.stages if stage.name not in choices]
    top = min([pipeline.consumer.batches, *(1 / (s.cpu + s.wait) / s.per_batch for s in fixed if s.cpu + s.wait > 0)])
    rates = sorted({min(rate, top) for options in choices.values() for rate, _ in options} | ({top} if math.isfinite(top) else set()))
    for rate in rates:
        workers = {name: next((count for able, count in options if able >= rate), options[-1][1]) for name, options in choices.items()}
        for batches in (1, 2, 4, 8, 16):
            yield tuple(
                knob.clip(workers[knob.stage] if knob.unit is Unit.WORKERS else _buffer(pipeline, knob.stage, batches))
                for knob in pipeline.knobs
            )


def _choices(stage: Stage, pipeline: SimulatedPipeline) -> list[tuple[float, int]]:
    """(batches a second, workers), rising in both; no more workers than would hide the waiting on every core twice over."""
    most = min(stage.high, math.ceil(2 * pipeline.machine.cpus * (1 + stage.wait / max(stage.cpu, 1e-9))))
    rising: list[tuple[float, int]] = []
    for count in range(1, max(most, 1) + 1):
        rate = count / (stage.per_batch * (stage.cpu + stage.wait) * stage.crowding(count))
        if not rising or rate > rising[-1][0]:
            rising.append((rate, count))
    return rising


def _buffer(pipeline: SimulatedPipeline, stage: str, batches: int) -> float:
    return math.ceil(batches * next(s.item_bytes for s in pipeline.stages if s.name == stage) / MIB)


def _improved(pipeline: SimulatedPipeline, start: Values, reward_of: Callable[[Values], float]) -> Values:
    best = start
    while True:
        ahead = max(_neighbours(pipeline, best), key=reward_of, default=best)
        if reward_of(ahead) <= reward_of(best):
            return best
        best = ahead


def _neighbours(pipeline: SimulatedPipeline, values: Values) -> Iterable[Values]:
    """One knob by any step, and two by one each."""
    knobs = range(len(values))
    moves = [((index, step),) for index in knobs for step in STEPS]
    pairs = [((a, da), (b, db)) for a, b in itertools.combinations(knobs, 2) for da in (-1, 1) for db in (-1, 1)]
    for move in [*moves, *pairs]:
        changed = list(values)
        for index, step in move:
            changed[index] += step
        yield tuple(knob.clip(value) for knob, value in zip(pipeline.knobs, changed, strict=True))
