"""A pipeline of stages that work beside the training, sized while it runs (003 ch. 4).

    pipeline = Pipeline([Source(dataset), Shuffle(10_000), Map(decode, workers=4), Batch(256), Prefetch(mib=128)])
    for batch in pipeline: ...

The order of the paper is read, shuffle, UDF, batch, prefetch; any order that begins with a Source will do.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ...engine.errors import UsageError
from .drawn_order import DrawnOrder, begun_with_first
from .kinds import Kinds
from .readings.meters import BusyClock
from .readings.window import Readings
from .stages import MIB, MOST_WORKERS, Batch, Draw, Map, Prefetch, Shuffle, Source, Stage
from .tuning.controller import Knob, Observation, Unit, Values
from .workers.channel import Bound
from .workers.faults import Drained, Ended, Stopped
from .workers.passes import Pass
from .workers.progress import Progress


class Tunable(NamedTuple):
    """A stage of a pipeline, as a tuner sees it."""

    knob: Knob


class Pipeline:
    """Stages that run beside the consumer, each with its own workers.

    Args:
        stages: the first is a Source, and no other is.
        ordered: items come out in the order of the source, as if one worker did everything; False: as they finish.
        queue_items: most items between two stages; more if a stage has more workers than half of it.
        queue_mib: most MiB between two stages. A larger item passes alone.
        samples_per_item: of the source, if its items are lists of samples or whole batches: `observe` counts samples.
        at_close: called by `close`, to free things that the source keeps from pass to pass.

    One pass over the source for each ``iter()``; a second one ends the first. Breaking out of the loop, a fault and close() end all
    threads and processes. A natural end keeps the processes for the next pass.

    Threads do not survive a fork: a pipeline is to be used in the process that made it.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        ordered: bool = True,
        name: str = "pipeline",
        queue_items: int = 32,
        queue_mib: int = 64,
        samples_per_item: int = 1,
        at_close: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.ordered = name, ordered
        self.stages = _checked(name, stages)
        self._queue = Bound(_positive(name, "queue_items", queue_items), _positive(name, "queue_mib", queue_mib) * MIB)
        self._kinds = Kinds(self.stages)
        self._sizes = {
            index: self._bounded(index, stage.mib if isinstance(stage, Prefetch) else stage.workers_to_begin_with)
            for index, stage in enumerate(self.stages)
        }
        self._tunable = [index for index, stage in enumerate(self.stages) if _is_tunable(stage)]
        self._sizing = threading.Lock()  #: a tuner sets while the consumer begins a pass
        self._pass: Pass | None = None
        self._progress, self._begun = Progress(), False  #: of the current or next pass, and whether it has begun
        self._order = _order_of(self.stages[0])
        self._iterations = 0
        self._readings = Readings(self.stages, self._kinds, _positive(name, "samples_per_item", samples_per_item))
        self._process = os.getpid()
        self._at_close = at_close
        weakref.finalize(self, self._kinds.close)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The settable sizes. A stage for a single thread takes no more workers; this is known from its first items on."""
        return tuple(_knob(self.stages[index], self._kinds.most(index)) for index in self._tunable)

    @property
    def values(self) -> Values:
        """Of the knobs, in their order."""
        sizes = self._given()
        return tuple(sizes[index] for index in self._tunable)

    @property
    def processes(self) -> dict[str, bool]:
        """Of each stage that may be moved, whether its workers are processes."""
        return {stage.name: self._kinds.processes(index) for index, stage in enumerate(self.stages) if self._kinds.movable(index)}

    def prepare(self, stage: str, limit: float = math.inf) -> tuple[int, int]:
        """Prepare to move a stage to processes. Returns bytes of its function's data that all would share, and that each would copy.

        Raises UsageError, with the reason, if its function cannot be sent, its `processes` is not None, or each would copy more than
        ``limit`` bytes.
        """
        return self._kinds.prepare(self._index(stage), limit)

    def forget(self, stage: str) -> None:
        """It will not be moved now: drop the results of `prepare`."""
        self._kinds.forget(self._index(stage))

    def make_ready(self, stage: str) -> None:
        """It may be moved to processes soon: begin the slow part of that in the background."""
        self._kinds.make_ready(self._index(stage))

    def set(self, values: Values, processes: Mapping[str, bool] | None = None) -> None:
        """Give each knob its value, while items flow: none is lost or doubled, and if ordered, none leaves its place.

        ``processes``: stages whose workers become processes (True) or threads (False). Raises UsageError if they cannot.
        """
        if len(values) != len(self.knobs):
            raise UsageError(
                f"{self.name}: {len(values)} values for {len(self.knobs)} knobs ({', '.join(knob.stage for knob in self.knobs)})"
            )
        for knob, value in zip((_knob(self.stages[index]) for index in self._tunable), values, strict=True):
            if not knob.low <= value <= knob.high:
                raise UsageError(f"{self.name}: {value} {knob.unit} for stage {knob.stage!r}: give {knob.low} to {knob.high}")
        moves = {self._index(stage): wanted for stage, wanted in (processes or {}).items()}
        for index, wanted in moves.items():
            if wanted != self._kinds.processes(index):
                self._kinds.prepare(index)
        with self._sizing:
            for index, wanted in moves.items():
                self._kinds.move(index, processes=wanted)
            self._sizes.update((index, self._bounded(index, value)) for index, value in zip(self._tunable, values, strict=True))
            if self._pass is not None:
                self._pass.resize(self._sizes)

    def _bounded(self, index: int, size: int) -> int:
        return size if isinstance(self.stages[index], Prefetch) else min(size, self._kinds.most(index))

    def _index(self, name: str) -> int:
        for index, stage in enumerate(self.stages):
            if stage.name == name:
                return index
        raise UsageError(f"{self.name}: no stage is called {name!r}; there are {', '.join(stage.name for stage in self.stages)}")

    def __getitem__(self, name: str) -> Tunable:
        """A stage by its name, for its knob: ``pipeline["udf"].knob`` (003 listing 1)."""
        for knob in self.knobs:
            if knob.stage == name:
                return Tunable(knob)
        raise KeyError(f"{self.name}: no stage {name!r} with a knob; there are {', '.join(knob.stage for knob in self.knobs)}")

    def __iter__(self) -> Iterator[Any]:
        if os.getpid() != self._process:
            raise UsageError(
                f"{self.name}: made in process {self._process}, used in {os.getpid()}: threads do not survive a fork; make it here"
            )
        self._end_pass()
        source = self.stages[0]
        assert isinstance(source, Source)
        if self._begun:
            self._progress, self._begun = Progress(self._progress.number + 1), False
        elif self._order is not None and self._progress.delivered:
            self._order.redraw()
        try:
            if self._order is None or self._order is getattr(source.sampler, "order", None):  # a loader draws its order itself
                begun = source.begin()
            else:
                begun = self._order.draw(lambda: begun_with_first(source.begin()))
        except Exception as error:
            error.add_note(f"in stage {source.name!r} of the pipeline, before its first item")
            raise
        return self._run(begun, self._iterations)

    def __len__(self) -> int:
        """Items of a pass; TypeError if the source does not know."""
        source = self.stages[0]
        assert isinstance(source, Source)
        length = source.length()
        if length is None:
            raise TypeError(f"{self.name}: its source has no length")
        for stage in self.stages:
            if isinstance(stage, Batch):
                length = length // stage.size if stage.drop_last else math.ceil(length / stage.size)
        return length

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """End the pass, all threads and all processes; a consumer that waits for an item gets Ended. It may be iterated again."""
        self._end_pass()
        self._kinds.close()
        if self._at_close is not None:
            self._at_close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(self) -> Observation:
        """The window since the last call, or since `discard_window`."""
        return self._readings.observe(self._given(), self.knobs, self.values)

    @property
    def watching(self) -> float:
        """Seconds of CPU time, in ended passes, for watching the interpreter's lock."""
        return self._readings.looked

    def discard_window(self) -> None:
        """Measure from now on: the moments after a change do not show its effect."""
        self._readings.begin_window()

    def state_dict(self) -> dict[str, Any]:
        """The consumer's place, in plain values. Items that were prefetched and not delivered are produced again."""
        order = {"order": self._order.state()} if self._order is not None else {}
        return {**self._progress.state(), "stages": _signature(self.stages), "ordered": self.ordered, **order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass continues at the state's place, over the same source.

        Ordered, it continues exactly. Unordered, each sample that was not delivered comes once.
        """
        made_by = (state["stages"], state["ordered"])
        if made_by != (_signature(self.stages), self.ordered):
            raise UsageError(f"{self.name}: the state is of other stages ({made_by[0]}) than this pipeline's ({_signature(self.stages)})")
        self._end_pass()
        self._progress, self._begun = Progress.of(state), False
        if self._order is not None and "order" in state:  # older states have none
            self._order.load(state["order"])

    def _given(self) -> Mapping[int, int]:
        """Sizes of the running pass; fewer workers than were set if no more could be started."""
        running = self._pass
        sizes = self._sizes if running is None or running.stopped else running.sizes
        return {index: self._bounded(index, size) for index, size in sizes.items()}

    def _end_pass(self) -> None:
        """The present iterator gives nothing more."""
        self._iterations += 1
        if self._pass is not None:
            self._pass.stop()

    def _run(self, source: Iterator[Any], iteration: int) -> Iterator[Any]:
        running = self._begin(source, iteration)
        del source  # the pass's alone, which drops it at its end
        clock = BusyClock()
        try:
            while True:
                asked = time.perf_counter()
                try:
                    item = running.next()
                except Drained:
                    self._progress, self._begun = Progress(running.progress.number + 1), False
                    if self._order is not None:
                        self._order.end()
                    return
                except Stopped:
                    raise self._ended() from None
                running.progress.deliver(item.positions)
                samples, box = len(item.positions), [item.payload]
                self._readings.delivered(samples, time.perf_counter() - asked)
                del item
                clock.start()
                yield box.pop()  # the consumer's alone, so that it is freed when the consumer drops it
                self._readings.consumed(samples, clock.stop())
        finally:
            clock.close()
            running.stop()
            self._readings.end_pass(running)

    def _begin(self, source: Iterator[Any], iteration: int) -> Pass:
        if iteration != self._iterations:
            raise self._ended()
        self._begun = True
        with self._sizing:
            running = self._pass = Pass(
                self.stages, self._kinds, self._given(), self._progress, source, ordered=self.ordered, queue=self._queue, name=self.name
            )
            self._readings.begin_pass(running)
            running.start()
        return running

    def _ended(self) -> Ended:
        return Ended(f"{self.name}: this pass was ended by close(), or by another iteration")


def _checked(name: str, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    if not stages or not isinstance(stages[0], Source):
        raise UsageError(f"{name}: the first stage must be a Source")
    if any(isinstance(stage, Source) for stage in stages[1:]):
        raise UsageError(f"{name}: only the first stage may be a Source")
    for stage in stages:
        if not isinstance(stage, Source | Map | Shuffle | Draw | Batch | Prefetch):
            raise UsageError(f"{name}: {stage!r} is not a stage; stages are Source, Map, Shuffle, Batch and Prefetch")
    if isinstance(stages[0].data, Pipeline):
        raise UsageError(f"{name}: its source is a Pipeline; make one of the stages of both, or iterate it: Source(lambda: iter(pipeline))")
    names = Counter(stage.name for stage in stages)
    if twice := [stage_name for stage_name, count in names.items() if count > 1]:
        raise UsageError(f"{name}: two stages are called {twice[0]!r}; give one a name of its own")
    for first, second in pairwise(stages):
        if isinstance(first, Prefetch) and isinstance(second, Prefetch):
            raise UsageError(f"{name}: {first.name!r} and {second.name!r} follow one another; one Prefetch is enough")
    return tuple(stages)


def _positive(name: str, option: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{name}: {option}={value}: give 1 or more")
    return value


def _is_tunable(stage: Stage) -> bool:
    return isinstance(stage, Prefetch | Map | Batch) or (isinstance(stage, Source) and stage.indexed)


def _knob(stage: Stage, most: int = MOST_WORKERS) -> Knob:
    if isinstance(stage, Prefetch):
        return Knob(stage.name, Unit.MIB, 1, stage.most)
    return Knob(stage.name, Unit.WORKERS, 1, most)


def _order_of(source: Stage) -> DrawnOrder | None:
    """The order of its sampler; None: it has no sampler."""
    sampler = source.sampler if isinstance(source, Source) else None
    own = getattr(sampler, "order", None)
    return own if isinstance(own, DrawnOrder) or sampler is None else DrawnOrder(sampler)


def _signature(stages: Sequence[Stage]) -> list[str]:
    """The properties that determine the order of the output."""
    words = {Shuffle: "{0.name} {0.buffer} seed {0.seed}", Batch: "{0.name} {0.size} drop_last {0.drop_last}"}
    return [words.get(type(stage), "{0.name}").format(stage) for stage in stages if not isinstance(stage, Prefetch)]
