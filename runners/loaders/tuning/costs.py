"""The cost of each stage, learned from window to window: smoothed while it holds, forgotten when it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .allocation import Load
from .controller import Knob, Observation, StageReading, Unit, Values

MIB = 1 << 20
ENOUGH_ITEMS = 8  #: a window of fewer items counts as a fraction of one
WINDOWS_REMEMBERED = 100  #: windows for which a number of workers is remembered; later one that did not help is tried again
TRUSTED_WINDOWS = 5.0  #: windows beyond which a mean gains no more trust
TRIED_AHEAD = 2  #: times the most workers tried so far, if they crowd one another
CROWDED_COST_FACTOR = 1.15  #: times the cost of one worker alone; above this crowding is more than noise
COST_NOISE = 0.03  #: relative, of the mean cost at one number of workers
FORGETTING = 0.98  #: weight that a mean keeps from window to window
CROWDING_PRIOR = 0.005  #: pull of the crowding of workers towards none, as a fraction of the windows' weight


@dataclass(slots=True)
class Smoothed:
    """An exponentially weighted mean that starts anew after two surprises in a row on the same side.

    A single outlier (a page fault, a garbage collection) is left out; a second one means that the value has changed.
    """

    weight: float  #: of a new value once the mean has settled
    surprise: float  #: relative distance from the mean from which on a value is a surprise, unless the scatter is as wide
    mean: float = math.nan
    variance: float = 0.0
    values: float = 0.0
    pending: float = math.nan

    def see(self, value: float, trust: float = 1.0) -> bool:
        """Whether the mean starts anew. ``trust``: up to 1."""
        if math.isnan(self.mean):
            self.mean, self.values = value, trust
            return False
        off = value - self.mean
        if abs(off) > max(self.surprise * abs(self.mean), 3.0 * math.sqrt(self.variance)) / max(trust, 0.1):
            if not math.isnan(self.pending) and (self.pending - self.mean) * off > 0:
                self.mean, self.variance, self.values, self.pending = (value + self.pending) / 2, 0.0, 2.0, math.nan
                return True
            self.pending = value
            return False
        self.pending = math.nan
        self.values += trust
        gain = trust * max(self.weight, 1.0 / (self.values + 1.0))
        self.mean += gain * off
        self.variance = (1.0 - gain) * (self.variance + gain * off * off)
        return False


@dataclass(slots=True)
class _Point:
    """Seconds for a batch with so many workers."""

    workers: int
    cpu: float
    wait: float
    trust: float  #: windows in the mean
    window: int  #: the last of them

    def blend(self, newer: _Point, weight: float) -> None:
        gain = max(weight, newer.trust / (self.trust + newer.trust))
        self.cpu += gain * (newer.cpu - self.cpu)
        self.wait += gain * (newer.wait - self.wait)
        self.trust, self.window = min(self.trust + newer.trust, TRUSTED_WINDOWS), newer.window


@dataclass(slots=True)
class StageCosts:
    """Seconds of a worker for one batch of the pipeline's output, as a function of the number of workers.

    Each number of workers tried has a mean, so that knowledge of crowding outlives a change of the number.
    """

    weight: float
    surprise: float
    points: dict[int, _Point] = field(default_factory=dict)
    window: int = 0
    workers: int = 0
    steady: Smoothed | None = None  #: the cost while the number of workers stays as it is
    doubted: _Point | None = None  #: the last window, if it was an outlier

    def see(self, reading: StageReading) -> bool:
        """Whether the cost has changed, and not only with the number of workers."""
        self.window += 1
        if not reading.items or math.isnan(reading.cpu) or math.isnan(reading.wait):
            return False
        trust = min(1.0, reading.items / ENOUGH_ITEMS)
        point = _Point(reading.workers, reading.cpu * reading.per_batch, reading.wait * reading.per_batch, trust, self.window)
        if self.steady is None or self.workers != point.workers:
            self.steady, self.doubted, self.workers = Smoothed(self.weight, self.surprise), None, point.workers
        changed = self.steady.see(point.cpu + point.wait, trust)
        if changed:
            self.points.clear()
            if self.doubted:
                self._keep(self.doubted)
        # In doubt: the next window shows whether it is the first of the new cost, or an outlier.
        self.doubted = None if math.isnan(self.steady.pending) else point
        if self.doubted is None:
            self._keep(point)
        return changed

    def _keep(self, point: _Point) -> None:
        if point.workers in self.points:
            self.points[point.workers].blend(point, self.weight)
        else:
            self.points[point.workers] = point
        self.points = {count: each for count, each in self.points.items() if self.window - each.window <= WINDOWS_REMEMBERED}

    def load(self, low: int, high: int) -> Load:
        """The cost of one worker and of crowding: least squares over the numbers of workers tried."""
        points = list(self.points.values())
        weights = np.array([point.trust * FORGETTING ** (self.window - point.window) for point in points])
        service = np.array([point.cpu + point.wait for point in points])
        if not service.min() > 0:
            return Load(0.0, 0.0, low, high)
        workers = np.array([float(point.workers) for point in points])
        relative = weights / service**2  # noise is in proportion to the time
        crowded, shared = _scalability(workers, service, relative), _shared(workers, service, relative)
        # A knee has one parameter less, so it is chosen if it fits within the noise.
        noise = COST_NOISE**2 * float(weights.sum())
        curve = shared if math.isfinite(shared.error) and shared.error <= max(crowded.error, noise) else crowded
        share = float(weights @ np.array([point.cpu for point in points])) / float(weights @ service)
        load = Load(curve.alone * share, curve.alone * (1.0 - share), low, high, curve.contention, curve.coherency, curve.knee)
        tried = max(self.points)
        if load.crowding(tried) > CROWDED_COST_FACTOR and TRIED_AHEAD * tried < high:
            # Crowding is known up to the number of workers tried; beyond, it is explored in steps.
            return replace(load, high=max(low, TRIED_AHEAD * tried))
        return load


@dataclass(slots=True)
class Costs:
    """The costs of all stages, by name."""

    weight: float = 0.3
    surprise: float = 0.25
    of: dict[str, StageCosts] = field(default_factory=dict)

    def see(self, seen: Observation) -> list[str]:
        """Names of the stages whose cost has changed."""
        for reading in seen.stages:
            self.of.setdefault(reading.name, StageCosts(self.weight, self.surprise))
        return [reading.name for reading in seen.stages if self.of[reading.name].see(reading)]

    def unknown(self, seen: Observation) -> list[str]:
        """Stages of which no item has finished yet."""
        return [reading.name for reading in seen.stages if reading.name not in self.of or not self.of[reading.name].points]

    def loads(self, seen: Observation) -> list[Load]:
        """Loads of every stage; one without a knob, or not measured yet, keeps its workers."""
        places, unknown = worker_knobs(seen), self.unknown(seen)
        return [
            Load(0.0, 0.0, reading.workers, reading.workers)
            if reading.name in unknown
            else self.of[reading.name].load(*_bounds(seen, reading, places.get(reading.name)))
            for reading in seen.stages
        ]


def worker_knobs(seen: Observation) -> dict[str, int]:
    """The place of each stage's number of workers among the knobs."""
    return {knob.stage: place for place, knob in enumerate(seen.knobs) if knob.unit is Unit.WORKERS}


def with_workers(seen: Observation, workers: Mapping[str, int]) -> Values:
    """The present values, with the given workers of the named stages; within the bounds of the knobs."""
    values = list(seen.values)
    for name, place in worker_knobs(seen).items():
        if name in workers:
            values[place] = seen.knobs[place].clip(workers[name])
    return tuple(values)


def memory_knobs(seen: Observation) -> dict[int, StageReading]:
    """The stage of each knob that is counted in MiB."""
    stages = {reading.name: reading for reading in seen.stages}
    return {place: stages[knob.stage] for place, knob in enumerate(seen.knobs) if knob.unit is Unit.MIB and knob.stage in stages}


def most_workers(knob: Knob, reading: StageReading) -> int:
    """The knob's limit; one for a serial stage."""
    return knob.high if reading.parallel else max(knob.low, 1)


def _bounds(seen: Observation, reading: StageReading, place: int | None) -> tuple[int, int]:
    if place is None:
        return reading.workers, reading.workers
    return seen.knobs[place].low, most_workers(seen.knobs[place], reading)


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class _Curve(NamedTuple):
    """The time of one worker alone, its growth with their number, and the squared error over the numbers tried."""

    alone: float
    error: float
    contention: float = 0.0
    coherency: float = 0.0
    knee: float = math.inf


def _scalability(workers: Floats, service: Floats, weights: Floats) -> _Curve:
    """The universal scalability law: ridge regression of time on n − 1 and n (n − 1), neither below 0.

    If the number of workers never changed, crowding is unknown and comes out as none.
    """
    mean = float(weights @ service / weights.sum())
    best = _Curve(mean, math.inf)
    top = float(workers.max())
    if top <= 1.0 or workers.min() == top:
        return best
    terms = np.stack([np.ones_like(workers), (workers - 1) / (top - 1), workers * (workers - 1) / (top * (top - 1))], axis=1)
    lowest = math.inf
    # Two numbers of workers cannot tell one kind of crowding from the other: then it is the milder one, unless more workers did less,
    # as then some number between them did more than either.
    fell = service[workers.argmax()] / top > 1.05 * service[workers.argmin()] / workers.min()
    shapes = ((0, 1, 2), (0, 1), (0, 2), (0,)) if len(workers) > 2 else ((0, 2) if fell else (0, 1), (0,))
    for columns in shapes:
        part = terms[:, columns]
        doubt = np.diag([0.0, *[CROWDING_PRIOR * float(weights @ service**2) / float(service.max()) ** 2] * (len(columns) - 1)])
        found = np.linalg.solve(part.T @ (weights[:, None] * part) + doubt, part.T @ (weights * service))
        if (found < 0).any() or found[0] <= 0:
            continue
        error = float(weights @ (part @ found - service) ** 2)
        pulled = error + float(found @ doubt @ found)
        if pulled < lowest:
            lowest, values, alone = pulled, dict(zip(columns, found, strict=True)), float(found[0])
            linear, quadratic = float(values.get(1, 0.0)) / (top - 1), float(values.get(2, 0.0)) / (top * (top - 1))
            best = _Curve(alone, error, linear / alone, quadratic / alone)
    return best


def _shared(workers: Floats, service: Floats, weights: Floats) -> _Curve:
    """A shared thing that passes the work of ``knee`` workers: time is level up to the knee, and proportional to their number beyond.

    To tell that from crowding takes three numbers of workers, two of them clearly beyond the knee.
    """
    best = _Curve(0.0, math.inf)
    order = np.argsort(workers)
    workers, service, weights = workers[order], service[order], weights[order]
    for split in range(1, len(workers) - 1):
        alone = float(weights[:split] @ service[:split] / weights[:split].sum())
        pace = float((weights * workers)[split:] @ service[split:] / ((weights * workers)[split:] @ workers[split:]))
        knee = max(1.0, alone / pace)
        if not workers[split - 1] <= knee * CROWDED_COST_FACTOR or not knee <= workers[split] or workers[-1] < CROWDED_COST_FACTOR * knee:
            continue
        error = float(weights @ (alone * np.maximum(1.0, workers / knee) - service) ** 2)
        if error < best.error:
            best = _Curve(alone, error, knee=knee)
    return best
