"""The memory guard, outside every controller: it predicts the memory of the wanted values, and refuses those that do not fit.

Memory is a cliff, not a slope, and no reward keeps an agent that explores from it. To the guard a pipeline is a base, plus at most so
much for each worker of a stage, plus its queues. It does not know how much, so it takes the least of its safe bounds:

* queues may come to hold their limits times the size of their items, however empty they are now;
* a worker that was never measured takes `GuardOptions.worker` and some items (the one assumption: raise it if workers take more);
* if no stage gets more than r times its workers, memory in use grows to r times at most, base included;
* if an allocation grew, memory grew by all new workers together: none of them took more than that, and as many again take no more.

That, with a margin, must stay below a fraction of the memory. Otherwise values are reduced: buffers first, then workers, each towards
its present value, and below it if even that is too much. Each observation has the memory in use, so growth by itself counts too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .controller import Observation, StageReading, Unit, Values
from .controller_options import tunable
from .costs import MIB, worker_knobs

log = logging.getLogger("stoker.loaders")

QUEUED_PER_WORKER = 2  #: items behind a stage for each of its workers, if its limit is not known
BISECTIONS = 20


@dataclass(frozen=True, slots=True)
class GuardOptions:
    fraction: float = tunable(0.85, "of the memory that may be used", low=0.05, high=1.0)
    margin: float = tunable(0.2, "added to predicted growth, for items larger than those seen", low=0.0, high=10.0)
    worker: int = tunable(1 << 30, "most bytes of an unmeasured worker, beside its items", low=0)
    unmeasured: int = tunable(2, "workers a stage before the size of any item is known", low=1, high=1024)


@dataclass(frozen=True, slots=True)
class _Held:
    """Memory in use without the queues, at these workers."""

    workers: dict[str, int]
    bytes: float

    def grown_from(self, other: _Held) -> dict[str, int]:
        """New workers of each stage, if at least one stage grew and none shrank; else nothing."""
        steps = {name: count - other.workers.get(name, count) for name, count in self.workers.items()}
        return {name: step for name, step in steps.items() if step} if min(steps.values()) >= 0 else {}


class Guard:
    """Lets values pass or reduces them. One for each pipeline; call `allow` once a window, in the order of the windows.

    ``memory``: bytes that pipeline and consumer may use; None: the observation's. It bounds the first allocation too: until an item has
    been seen, a stage gets few workers, and a buffer keeps its size.
    """

    def __init__(self, options: GuardOptions | None = None, *, memory: int | None = None) -> None:
        self.options = options or GuardOptions()
        self.memory = memory
        self._item_bytes: dict[str, float] = {}  # the largest mean size of late
        self._in_hand: dict[str, int] = {}  # items that a worker has at once
        self._now: _Held | None = None
        self._before: _Held | None = None  # at the allocation before this one
        self._smallest: _Held | None = None
        self._kinds: dict[str, bool] = {}  # whether the workers of a stage are processes
        self._said = False  # that even the least does not fit
        self._learned: dict[str, float] = {}  # most bytes of a stage's worker, from finished growth

    def allow(self, seen: Observation, wanted: Values) -> tuple[Values, str]:
        """The values that may be set, and the refusals in words; "" if none. ValueError: not one value a knob."""
        if len(wanted) != len(seen.knobs):
            raise ValueError(f"wanted: {len(wanted)} values for {len(seen.knobs)} knobs")
        wanted = tuple(knob.clip(value) for knob, value in zip(seen.knobs, wanted, strict=True))
        self._learn(seen)
        limit = self._limit(seen)
        given, predicted = self._reduced(seen, wanted, limit)
        fits = predicted <= limit or (least := self.predict(seen, given)) <= limit
        if not fits and not self._said:
            self._said = True
            log.warning(
                "memory: not even one worker a stage and the smallest buffers fit: they might take %s MiB of %s MiB allowed; "
                "the least that works is used, and it does not fit",
                f"{least / MIB:,.0f}",
                f"{limit / MIB:,.0f}",
            )
        if given == wanted:
            return wanted, ""
        return given, self._words(seen, wanted, given, predicted, limit) + ("" if fits else "; the least does not fit either")

    def allow_processes(self, seen: Observation, stage: str, wanted: int, sizes: tuple[int, int]) -> tuple[int, str]:
        """As many of the ``wanted`` processes in place of a stage's threads as fit, 0 for none, and the refusal in words.

        ``sizes``: bytes of the function's data that all of them share, and that each has. A process was never measured: it may take
        `GuardOptions.worker`, its data and some items, or as much as this process, of which it is a part.
        """
        shared, each = sizes
        limit = self._limit(seen)
        together = next(reading.together for reading in seen.stages if reading.name == stage)
        one = min(self._worker(stage, {}, together) + each, float(seen.memory_used)) * (1.0 + self.options.margin)
        held = max(self.predict(seen, seen.values), float(seen.memory_used)) + shared + each  # copied here, to be sent
        if math.isinf(held):
            return 0, f"refused {stage} in processes: how much memory an item takes is not known yet"
        count = min(wanted, max(0, math.floor((limit - held) / one))) if one > 0 else wanted
        if count == wanted:
            return wanted, ""
        might = f"might take {(held + wanted * one) / MIB:,.0f} MiB of {limit / MIB:,.0f} MiB allowed"
        return count, f"refused {stage} in {wanted} process{'es' * (wanted != 1)} (given {count or 'threads'}): {might}"

    def room(self, seen: Observation) -> float:
        """Bytes of a function's data beyond which no process can be allowed: they are copied here, to be sent, and there."""
        return max(0.0, self._limit(seen) - max(self.predict(seen, seen.values), float(seen.memory_used))) / 2

    def _limit(self, seen: Observation) -> float:
        return self.options.fraction * (seen.memory_total if self.memory is None else min(self.memory, seen.memory_total))

    # -- measured bounds

    def _learn(self, seen: Observation) -> None:
        for reading in seen.stages:
            self._in_hand[reading.name] = reading.in_hand
            if reading.item_bytes > 0:  # not nan either
                old = self._item_bytes.get(reading.name, 0.0)
                self._item_bytes[reading.name] = max(reading.item_bytes, old + 0.05 * (reading.item_bytes - old))
        if not any(reading.items for reading in seen.stages):
            return  # nothing runs, so memory in use does not show that of workers
        kinds = {reading.name: reading.processes for reading in seen.stages}
        if kinds != self._kinds:  # the memory of threads does not show that of processes
            self._kinds, self._learned, self._now, self._before, self._smallest = kinds, {}, None, None, None
        queued = sum(reading.queue_bytes for reading in seen.stages)
        workers = {reading.name: reading.workers for reading in seen.stages}
        now = _Held(workers, max(0.0, float(seen.memory_used - queued)))
        if self._now is not None and self._now.workers != workers:
            self._learned, self._before = self._bounds(self._now), self._now
        self._now = now
        if self._smallest is None or now.bytes <= self._smallest.bytes:
            self._smallest = now
        self._check(now)

    def _bounds(self, now: _Held) -> dict[str, float]:
        """Most bytes of a worker: no more than the whole growth that came with it."""
        bounds = dict(self._learned)
        for earlier in (self._before, self._smallest):
            came = now.grown_from(earlier) if earlier is not None else {}
            for name, step in came.items():
                assert earlier is not None
                bounds[name] = min(bounds.get(name, math.inf), (now.bytes - earlier.bytes) / step)
        return bounds

    def _check(self, now: _Held) -> None:
        """Forgets bounds that the newest growth exceeds: the costs, or the rest of the process, have changed."""
        came = now.grown_from(self._before) if self._before is not None else {}
        if came and self._before is not None:
            allowed = sum(step * self._worker(name, self._learned) for name, step in came.items())
            if now.bytes - self._before.bytes > allowed * (1.0 + self.options.margin):
                self._learned, self._smallest = {}, now

    def _worker(self, name: str, bounds: dict[str, float], items: int | None = None) -> float:
        """Bytes of one more worker, with ``items`` in hand; None: as many as now."""
        in_hand = 2 * self._item_bytes.get(name, 0.0) * (items or self._in_hand.get(name, 1))  # its input and its output
        return max(bounds.get(name, self.options.worker + in_hand), in_hand)

    def predict(self, seen: Observation, values: Values) -> float:
        """The most bytes that these values may take; inf if a growing part is not known yet."""
        places = worker_knobs(seen)
        counts = {r.name: values[places[r.name]] if r.name in places else r.workers for r in seen.stages}
        if self._now is None:
            few = all(counts[r.name] <= max(self.options.unmeasured, r.workers) for r in seen.stages)
            return float(seen.memory_used) if few and not _more_buffer(seen, values) else math.inf
        queues = sum(self._queue(seen, reading, counts[reading.name], values) for reading in seen.stages)
        more = {name: counts[name] - workers for name, workers in self._now.workers.items() if counts.get(name, 0) > workers}
        return self._now.bytes + self._growth(self._now, more) * (1.0 + self.options.margin) + queues

    def _growth(self, now: _Held, more: dict[str, int]) -> float:
        """The least of the bounds for so many more workers."""
        if not more:
            return 0.0
        bounds = self._bounds(now)
        one_by_one = sum(count * self._worker(name, bounds) for name, count in more.items())
        in_proportion = now.bytes * max(count / max(1, now.workers[name]) for name, count in more.items())
        return min(one_by_one, in_proportion, *(self._as_before(now, earlier, more) for earlier in (self._before, self._smallest)))

    def _as_before(self, now: _Held, earlier: _Held | None, more: dict[str, int]) -> float:
        """The growth since ``earlier``, times the highest ratio of a stage's new workers to those it got then."""
        came = now.grown_from(earlier) if earlier is not None else {}
        if earlier is None or not more.keys() <= came.keys():
            return math.inf
        again = max(count / came[name] for name, count in more.items()) * (now.bytes - earlier.bytes)
        least = (count * 2 * self._item_bytes.get(name, 0.0) * self._in_hand.get(name, 1) for name, count in more.items())
        return max(again, sum(least))

    def _queue(self, seen: Observation, reading: StageReading, workers: int, values: Values) -> float:
        """Bytes that a stage's output may come to hold."""
        size = self._item_bytes.get(reading.name, 0.0)
        for knob, value in zip(seen.knobs, values, strict=True):
            if knob.stage == reading.name and knob.unit is Unit.MIB:
                return max(value * MIB, size)  # one item always passes, however large
        return max(_limit(reading, workers) * size, float(reading.queue_bytes))

    # -- reduced values

    def _reduced(self, seen: Observation, wanted: Values, limit: float) -> tuple[Values, float]:
        """The largest fitting values on the way from the present to the wanted ones, and the prediction for the wanted ones."""
        predicted = self.predict(seen, wanted)
        if predicted <= limit:
            return wanted, predicted
        floor = tuple(min(now, want) for now, want in zip(seen.values, wanted, strict=True))
        least = tuple(knob.low for knob in seen.knobs)
        buffers = [knob.unit is Unit.MIB for knob in seen.knobs]
        # Workers make the throughput, so buffers give way first; then both go back to their present values; then below.
        workers_only = _mixed(floor, wanted, buffers)
        small_buffers = _mixed(least, floor, buffers)
        for lower, upper in ((workers_only, wanted), (floor, workers_only), (small_buffers, floor), (least, small_buffers)):
            if self.predict(seen, lower) <= limit:
                return self._between(seen, lower, upper, limit), predicted
        return least, predicted

    def _between(self, seen: Observation, lower: Values, upper: Values, limit: float) -> Values:
        """As far from ``lower`` towards ``upper`` as fits; ``lower`` fits."""
        low, high = 0.0, 1.0
        best = lower
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            tried = tuple(math.floor(a + middle * (b - a)) for a, b in zip(lower, upper, strict=True))
            if self.predict(seen, tried) <= limit:
                low, best = middle, tried
            else:
                high = middle
        for place, most in enumerate(upper):  # fractions of a proportion are given one by one
            tried = (*best[:place], min(best[place] + 1, most), *best[place + 1 :])
            if self.predict(seen, tried) <= limit:
                best = tried
        return best

    def _words(self, seen: Observation, wanted: Values, given: Values, predicted: float, limit: float) -> str:
        cut = ", ".join(
            f"{knob.stage} {want} {knob.unit} (given {give})"
            for knob, want, give in zip(seen.knobs, wanted, given, strict=True)
            if want != give
        )
        if math.isinf(predicted):
            return f"refused {cut}: how much memory an item takes is not known yet"
        return f"refused {cut}: might take {predicted / MIB:,.0f} MiB of {limit / MIB:,.0f} MiB allowed"


def _limit(reading: StageReading, workers: int) -> int:
    """Items that a queue may hold with so many workers: two for each, or as now if it is wider."""
    each = QUEUED_PER_WORKER if not reading.queue_limit else reading.queue_limit / max(1, reading.workers)
    if each > QUEUED_PER_WORKER:
        return max(reading.queue_limit, QUEUED_PER_WORKER * workers * reading.in_hand)
    return math.ceil(each * workers)


def _mixed(base: Values, other: Values, buffers: Sequence[bool]) -> Values:
    """``base`` for the buffers, ``other`` for the workers."""
    return tuple(a if is_buffer else b for a, b, is_buffer in zip(base, other, buffers, strict=True))


def _more_buffer(seen: Observation, values: Values) -> bool:
    return any(knob.unit is Unit.MIB and value > now for knob, value, now in zip(seen.knobs, values, seen.values, strict=True))
