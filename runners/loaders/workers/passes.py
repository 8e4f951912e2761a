"""One pass over the source: channels, crews, and the deliveries to the consumer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..feeds import Carrying, Dealing, Drawing, Feed, Grouping, Indices, Iteration, Passing, Positions, Shuffling
from ..kinds import Kinds
from ..readings.contention import Contention, Looks
from ..stages import MIB, Batch, Draw, Map, Prefetch, Shuffle, Source, Stage, Working
from .channel import SKIP, Bound, Channel, Item
from .faults import Drained, Stopped
from .leaving import at_exit
from .progress import Progress
from .threads import ChainHand, Crew, Hand, ThreadHand
from .worker_processes import ProcessHand

log = logging.getLogger("stoker.loaders")

_CLOSING = 1.0  #: seconds that close() waits for threads whose function is still at work
_LOOK = 0.25  #: seconds between looks at the limits of items


class Pass:
    """Threads and processes at work until `stop`.

    Args:
        kinds: the stages whose workers are processes, at the beginning and after each `resize`.
        sizes: workers of each stage that has them, by index; MiB of each Prefetch.
        progress: the place to begin; the consumer updates it at each delivery.
        source: the result of the Source's `begin`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        kinds: Kinds,
        sizes: Mapping[int, int],
        progress: Progress,
        source: Iterator[Any],
        *,
        ordered: bool,
        queue: Bound,
        name: str,
    ) -> None:
        self.progress = progress
        self.began = time.perf_counter()
        self._stages, self._kinds, self._sizes = stages, kinds, dict(sizes)
        self._ordered, self._queue, self._name = ordered, queue, name
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._completed = False
        self._lock = threading.Lock()
        self._contention: Contention | None = None
        self.crews: dict[int, Crew] = {}
        self.channels: dict[int, Channel] = {}  #: behind each stage
        self._build(source)
        self.output = self.channels[len(stages) - 1]
        self._limited = any(isinstance(stage, Working) and stage.limit is not None for stage in stages)

    def start(self) -> None:
        self._kinds.begin()
        at_exit(self.stop)
        try:
            for index, crew in self.crews.items():
                crew.move(self._sizes[index], processes=self._kinds.processes(index))  # one that cannot be sent is in threads now
        except BaseException:
            self.stop()
            raise

    def resize(self, sizes: Mapping[int, int]) -> None:
        """Resize the stages, and set the kinds of their workers."""
        for index, size in sizes.items():
            moved = index in self.crews and self.crews[index].processes != self._kinds.processes(index)
            if moved or self.sizes[index] != size or self._sizes[index] != size:
                self._sizes[index] = size
                if index in self.crews and not self._stopped.is_set():
                    self.crews[index].move(size, processes=self._kinds.processes(index))
                self.channels[index].rebound(self.bound(index))
        for index in range(self._kinds.reader):  # items may go together from now on, or no longer: the number held stays the same
            self.channels[index].rebound(self.bound(index))

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def sizes(self) -> Mapping[int, int]:
        """Workers, starting ones included, and MiB."""
        return {index: self.crews[index].wanted or size if index in self.crews else size for index, size in self._sizes.items()}

    def next(self) -> Item:
        """The next item for the consumer.

        Raises:
            Drained: the pass is over. Stopped: it was stopped from elsewhere. Others: the error of a stage.
        """
        while True:
            try:
                item = self.output.get(tick=self._check_limits if self._limited else None, every=_LOOK if self._limited else None)
            except Drained:
                self._completed = True
                raise
            except Stopped:
                if self._failure is not None:
                    raise self._failure from self._failure.__cause__
                raise
            if item.payload is not SKIP:
                return item

    def stop(self) -> None:
        """End all threads, and the processes too, unless the pass had its natural end."""
        with self._lock:
            self._stopped.set()
        if self._contention is not None:
            self._contention.end()
        for channel in self.channels.values():
            channel.stop()
        if not self._completed:
            self._kinds.end()
        until = time.monotonic() + _CLOSING
        late = [crew.name for crew in self.crews.values() if not crew.join(until) and crew.at_work]
        for crew in self.crews.values():
            crew.let_go()
        if late:
            log.warning("%s: ended while workers of %s are at an item; they end with it", self._name, ", ".join(late))

    def fail(self, error: BaseException) -> None:
        """The first fault stops everything; the consumer gets it."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._failure = error
            self._stopped.set()
        for channel in self.channels.values():
            channel.stop()
        self._kinds.end()

    def look(self) -> None:
        """Watch the interpreter's lock until the pass is stopped."""
        with self._lock:
            if self._contention is None and not self._stopped.is_set():
                self._contention = Contention(lambda: {index: crew.threads_at_work() for index, crew in self.crews.items()})
                self._contention.start()

    @property
    def looks(self) -> Looks:
        return Looks() if self._contention is None else self._contention.seen

    def bound(self, index: int) -> Bound:
        """Of the queue behind a stage: a Prefetch's if one follows, else wide enough that its workers need not wait for one another."""
        if isinstance(self._stages[index], Prefetch):
            index -= 1
        if self.prefetched(index):
            return Bound(1 << 40, self._sizes[index + 1] * MIB)
        return Bound(max(-(-self._queue.items // self.together(index)), 2 * self._sizes[index]), self._queue.bytes)

    def together(self, index: int) -> int:
        """Items of a stage in one item of the queue behind it."""
        return self._kinds.together(index) if self._kinds.processes(index) else max(1, self._kinds.carried(index))

    def prefetched(self, index: int) -> bool:
        """Whether the queue behind a stage is that of a Prefetch."""
        return index + 1 < len(self._stages) and isinstance(self._stages[index + 1], Prefetch)

    def _check_limits(self) -> None:
        now = time.perf_counter()
        for crew in self.crews.values():
            crew.check_limit(now)

    def _build(self, samples: Iterator[Any]) -> None:
        source: Channel | None = None
        for index, stage in enumerate(self._stages):
            if isinstance(stage, Prefetch):
                assert source is not None
                self.channels[index] = source  # it only bounds the queue behind the stage before it
                continue
            output = Channel(self.bound(index), ordered=self._ordered)
            feed, hire = self._plan(index, stage, source) if source is not None else self._reading(index, stage, samples)
            self.crews[index] = self._crew(index, stage, feed, source, output, hire)
            self.channels[index] = source = output

    def _crew(
        self, index: int, stage: Stage, feed: Feed, source: Channel | None, output: Channel, hire: Callable[[bool], Hand] | None
    ) -> Crew:
        if not isinstance(stage, Working) or isinstance(feed, Iteration):
            return Crew(stage.name, feed, source, output, hire, self.fail, limits=[stage.limit] if isinstance(stage, Working) else [None])
        here = self._kinds.chain_here(index)
        groups = Dealing(feed, here.size, lambda: self._kinds.pool(index).chain.batch is not None) if here.batch is not None else None
        along = (*self._stages[: here.own], *self._stages[index : index + here.span])
        return Crew(
            stage.name, groups or feed, source, output, hire, self.fail, groups=groups, here=here,
            limits=[stage.limit for stage in along if isinstance(stage, Working)],
            processes=self._kinds.processes(index),
            stays=partial(self._kinds.keep_in_threads, index) if self._kinds.movable(index) else None,
            read=self.crews[0].credit if here.reads else None,
        )  # fmt: skip

    def _plan(self, index: int, stage: Stage, source: Channel) -> tuple[Feed, Callable[[bool], Hand] | None]:
        """The feed of a stage's workers, and the maker of their hands."""
        if isinstance(stage, Map):
            return Passing(source), self._hire(index)
        if isinstance(stage, Batch):
            return Grouping(source, stage.size, drop_last=stage.drop_last), self._hire(index)
        if isinstance(stage, Draw):
            return Drawing(source, stage.draw, stage.held), None
        assert isinstance(stage, Shuffle)
        shuffling = Shuffling(source, stage.buffer, f"{stage.seed}/{self.progress.number}")
        if index > self._kinds.reader:
            return shuffling, None
        return Carrying(shuffling, partial(self._kinds.carried, index), marked=False), None

    def _reading(self, index: int, stage: Stage, samples: Iterator[Any]) -> tuple[Feed, Callable[[bool], Hand] | None]:
        assert isinstance(stage, Source)
        shuffled = any(isinstance(other, Shuffle) for other in self._stages)
        positions = Positions(self.progress.high, frozenset(self.progress.pending), show=self._ordered and shuffled)
        if stage.indexed:
            indices = Indices(samples, positions)
            if not self._kinds.reader:
                return indices, self._hire(index)
            return Carrying(indices, partial(self._kinds.carried, index), marked=True), self._hire(index)
        feed = Iteration(samples, positions)
        return feed, lambda _: ThreadHand(feed.read)

    def _hire(self, index: int) -> Callable[[bool], Hand]:
        kinds, function = self._kinds, self._kinds.function_here(self._stages[index])
        unread = kinds.chain_here(index).until(2) if 0 < index == kinds.reader else None  # the source and this stage

        def hire(processes: bool) -> Hand:
            if not processes:
                return ThreadHand(function, None if unread is None else ChainHand(unread))
            pool = kinds.pool(index)
            last = self._stages[index + pool.chain.span - 1]
            return ProcessHand(pool, apart=isinstance(last, Working) and last.apart)

        return hire
