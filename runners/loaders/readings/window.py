"""Measurements of a pipeline as a controller sees them: totals of meters and channels turned into readings of a window."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..kinds import Kinds
from ..stages import Batch, Draw, Prefetch, Shuffle, Source, Stage
from ..tuning.controller import Knob, Observation, StageReading, Values
from ..workers.passes import Pass
from . import machine
from .contention import Looks
from .meters import Totals

_LEAVES = 0.1  #: share of the cores below which a difference is noise


class _Consumer(NamedTuple):
    """Since the pipeline was made. Replaced as a whole, so that a reader sees one moment."""

    items: int = 0
    samples: int = 0  #: items of the source in them
    waited: float = 0.0  #: seconds, for the pipeline
    busy: float = 0.0  #: seconds, at work on the deliveries
    served: int = 0  #: items of the source of which `busy` is known


class _Moment(NamedTuple):
    """The begin of a window."""

    at: float
    totals: dict[int, Totals]
    consumer: _Consumer
    process: float  #: seconds of CPU time of this process
    idle: float  #: see machine.idle
    looks: Looks


@dataclass(frozen=True)
class _Costs:
    """Costs of a stage's item, kept for windows in which none was finished."""

    cpu: float = math.nan
    wait: float = math.nan
    size: float = math.nan


class Readings:
    """Measurements over all passes; the consumer's thread writes them, a tuner's reads them.

    The time between two passes is in no window. ``samples``: of an item of the source.
    """

    def __init__(self, stages: Sequence[Stage], kinds: Kinds, samples: int = 1) -> None:
        self._stages, self._kinds = stages, kinds
        self._samples = samples
        self._lock = threading.Lock()  #: for changes at a pass's begin or end, while a tuner may read
        self._made = time.perf_counter()
        self._consumer = _Consumer()
        self._earlier: dict[int, Totals] = {}  #: of passes before this one
        self._running: Pass | None = None
        self._paused: float | None = self._made  #: the time since which no pass runs
        self._window = _Moment(self._made, {}, self._consumer, time.process_time(), machine.idle(), Looks())
        self._ended_at = self._window.process  #: CPU time of this process when the last pass ended
        self.looked = 0.0  #: seconds of CPU time for watching the interpreter's lock in ended passes
        self._observed = False  #: a tuner has asked
        self._costs = [_Costs() for _ in stages]
        self._demand = math.inf
        self._machine: tuple[float, int] | None = None

    def delivered(self, samples: int, waited: float) -> None:
        seen = self._consumer
        self._consumer = seen._replace(items=seen.items + 1, samples=seen.samples + samples, waited=seen.waited + waited)

    def consumed(self, samples: int, seconds: float) -> None:
        """The consumer asks for more ``seconds`` after the last delivery: its model's latency."""
        seen = self._consumer
        self._consumer = seen._replace(busy=seen.busy + seconds, served=seen.served + samples)

    def begin_pass(self, running: Pass) -> None:
        now = time.perf_counter()
        with self._lock:
            self._earlier = self._totals(now)
            self._running = running
            self._window = self._window._replace(looks=Looks())
            if self._paused is not None:
                spent = time.process_time() - self._ended_at
                self._window = self._window._replace(at=self._window.at + now - self._paused, process=self._window.process + spent)
                self._paused = None
            self._look()

    def end_pass(self, ended: Pass) -> None:
        with self._lock:
            self.looked += ended.looks.cpu
            if self._running is ended and self._paused is None:
                self._paused, self._ended_at = time.perf_counter(), time.process_time()

    def begin_window(self) -> None:
        with self._lock:
            self._begin_window()

    def observe(self, sizes: Mapping[int, int], knobs: tuple[Knob, ...], values: Values) -> Observation:
        with self._lock:
            self._observed = True
            self._look()
            before, after = self._window, self._begin_window()
            window = max(after.at - before.at, 1e-9)
            spent = {index: totals - before.totals.get(index, Totals()) for index, totals in after.totals.items()}
            looks = after.looks.since(before.looks)
            stages = self._readings(sizes, spent, before.consumer, after.consumer, window, looks)
        delivered = after.consumer.samples - before.consumer.samples
        self._observe_demand(before.consumer, after.consumer)
        cpus, (used, total) = machine.cpus(), machine.memory()
        used_here = sum(totals.cpu for totals in spent.values()) / window
        training = max(0.0, after.process - before.process - sum(totals.cpu - totals.elsewhere for totals in spent.values())) / window
        taken = _taken(cpus, used_here + training, (after.idle - before.idle) / window)
        resized = self._machine is not None and self._machine != (cpus, total)
        self._machine = (cpus, total)
        return Observation(
            at=time.perf_counter() - self._made,
            window=window,
            stages=stages,
            knobs=knobs,
            values=values,
            batch_size=float(self._samples * _items(self._stages)),
            throughput=self._samples * delivered / window,
            demand=self._samples * self._demand,
            cpus=cpus,
            cpu_used=used_here,
            memory_used=used,
            memory_total=total,
            bandwidth=machine.bandwidth(),
            clock=machine.clock(),
            resized=resized,
            consumer_cpu=training,
            lock=looks.share(looks.held),
            crowded=max(looks.share(looks.crowded), taken),
        )

    def _look(self) -> None:
        """Watch the interpreter's lock from now on, if anything can be done about it."""
        running, kinds = self._running, self._kinds
        if not self._observed or running is None:
            return
        if any(kinds.movable(index) and not kinds.processes(index) and not kinds.along(index) for index in running.crews):
            running.look()

    def _begin_window(self) -> _Moment:
        now = time.perf_counter() if self._paused is None else self._paused
        process = time.process_time() if self._paused is None else self._ended_at
        looks = self._running.looks if self._running is not None else Looks()
        self._window = _Moment(now, self._totals(now), self._consumer, process, machine.idle(), looks)
        return self._window

    def _readings(
        self, sizes: Mapping[int, int], spent: Mapping[int, Totals], before: _Consumer, after: _Consumer, window: float, looks: Looks
    ) -> tuple[StageReading, ...]:
        readings: list[StageReading] = []
        for index, stage in enumerate(self._stages):
            if not isinstance(stage, Prefetch):
                readings.append(self._working(index, stage, sizes[index], spent.get(index, Totals()), looks.locked_share(index)))
                continue
            last = index == len(self._stages) - 1
            waited = (after.waited - before.waited) / window if last else 0.0
            readings.append(self._prefetch(index, readings[-1], after.items - before.items if last else readings[-1].items, waited))
        return tuple(readings)

    def _observe_demand(self, before: _Consumer, after: _Consumer) -> None:
        """Keep the last known demand if the window shows none."""
        served, busy = after.served - before.served, after.busy - before.busy
        if served:
            self._demand = served / busy if busy > 0 else math.inf

    def _totals(self, now: float) -> dict[int, Totals]:
        """The totals of each stage with workers, over all passes."""
        totals = dict(self._earlier)
        if self._running is not None:
            for index, crew in self._running.crews.items():
                totals[index] = totals.get(index, Totals()) + crew.totals(now)
        return totals

    def _working(self, index: int, stage: Stage, workers: int, spent: Totals, locked: float) -> StageReading:
        if spent.items:
            self._costs[index] = _Costs(spent.cpu / spent.items, spent.wait / spent.items, spent.bytes / spent.items)
        costs = self._costs[index]
        everything = spent.starved + spent.working + spent.blocked
        queue, held, limit = self._queue(index, costs.size)
        running, processes, along = self._running, self._kinds.processes(index), self._kinds.along(index)
        starting = running.crews[index].starting if processes and running is not None and not running.stopped else 0
        return StageReading(
            name=stage.name,
            workers=max(1, workers - starting),
            items=spent.items,
            per_batch=_items(self._stages) / _items(self._stages[: index + 1]),
            cpu=costs.cpu,
            wait=costs.wait,
            starved=spent.starved / everything if everything else 0.0,
            blocked=spent.blocked / everything if everything else 0.0,
            queue=queue,
            queue_bytes=held,
            item_bytes=costs.size,
            parallel=not isinstance(stage, Shuffle | Draw) and not (isinstance(stage, Source) and not stage.indexed),
            processes=processes or along,
            along=along,
            together=self._kinds.together(index),
            queue_limit=limit,
            starting=starting,
            lock=0.0 if processes or along or math.isnan(costs.wait) else locked * costs.wait,
            movable=self._kinds.movable(index),
            stays=self._kinds.stays(index),
        )

    def _queue(self, index: int, size: float) -> tuple[int, int, int]:
        """Items and bytes in a stage and the queue behind it, and the queue's limit in items; a Prefetch's queue is its own."""
        if self._running is None:
            return 0, 0, 0
        items, held = self._running.crews[index].kept()
        stage = self._stages[index]
        if isinstance(stage, Batch):
            items //= stage.size  # it has gathered so many of the items before it, and less than one of its own
        limit = stage.buffer if isinstance(stage, Shuffle) else 0
        if self._running.prefetched(index):
            return items, held, limit
        bound, (waiting, size_of_waiting) = self._running.bound(index), self._running.channels[index].held
        together = self._running.together(index)
        fits = bound.items * together
        if size > 0:
            fits = max(together, min(fits, int(bound.bytes / size)))
        return items + waiting * together, held + size_of_waiting, limit + fits

    def _prefetch(self, index: int, producer: StageReading, items: int, waited: float) -> StageReading:
        """It has no workers: starved is the share of the window in which the consumer waited for it, blocked that of its producers."""
        queue, held = (0, 0) if self._running is None else self._running.channels[index].held
        return StageReading(
            name=self._stages[index].name,
            workers=0,
            items=items,
            per_batch=producer.per_batch,
            cpu=0.0,
            wait=0.0,
            starved=min(1.0, waited),
            blocked=producer.blocked,
            queue=queue,
            queue_bytes=held,
            item_bytes=producer.item_bytes,
            parallel=False,
        )


def _items(stages: Sequence[Stage]) -> int:
    """Items of the source in one item behind these stages."""
    return math.prod(stage.size for stage in stages if isinstance(stage, Batch))


def _taken(cpus: float, ours: float, idle: float) -> float:
    """Share of the cores that we do not use which others keep busy. ``idle``: cores; nan: not known.

    The time until a woken thread has a core does not show it: the kernel lets it in before threads that compute all the time.
    """
    left = cpus - ours
    if left < _LEAVES * cpus or math.isnan(idle):
        return 0.0
    return min(1.0, max(0.0, 1.0 - idle / left))
