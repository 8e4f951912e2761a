"""One call of a worker process: its stage's function, and those of the next stages that join it.

A message between two processes costs as much as decoding a small image. So if a Batch follows a stage in processes, a process takes all
items of a batch at once, collates its results, and sends only the batch. And if the source asks for it, the process also reads the items,
so that only indices are sent to it. The time of each stage of the chain is reported apart.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import reduction
from typing import Any, NamedTuple

from ..readings.meters import Spent, Stopwatch
from .channel import Item

_At = Callable[[int, int], None]  #: called with the place in the chain, and the item of the call, before each call of a function


class Step(NamedTuple):
    """A stage's part of a call."""

    items: int
    spent: Spent


class Done(NamedTuple):
    """Payload of an item after several stages' work, with the measured step of each."""

    payload: Any
    steps: tuple[Step, ...]


class Unread(NamedTuple):
    """Payload of an item that the source has not read: its worker reads it first."""

    index: Any


class Carried(NamedTuple):
    """Payload of an item that stands for several: they pass queues and workers before the reader at once."""

    items: Sequence[Item]


class Group(NamedTuple):
    """Payload of an item that is a batch still to be made of these."""

    items: tuple[Item, ...]

    @classmethod
    def item(cls, items: tuple[Item, ...]) -> Item:
        positions = tuple(position for item in items for position in item.positions)
        return Item(positions, cls(items), sum(item.size for item in items))


class ChainCall(NamedTuple):
    """The argument of `Chain.run`.

    Attributes:
        whole: all of a batch; else one item, processed up to the batch.
        unread: places of those payloads that are indices, to be read first.
    """

    payloads: list[Any]
    whole: bool = False
    unread: Sequence[int] = ()

    @classmethod
    def of(cls, item: Item) -> ChainCall:
        whole = isinstance(item.payload, Group)
        found = [each.payload for each in item.payload.items] if whole else [item.payload]
        unread = [place for place, payload in enumerate(found) if isinstance(payload, Unread)]
        for place in unread:
            found[place] = found[place].index
        return cls(found, whole, unread)


@dataclass(frozen=True, slots=True)
class Chain:
    """Functions of consecutive stages: the source's, if it may join, that of the stage whose workers these are, and those behind it.

    Attributes:
        names: of the stages.
        batch: place of the function that gets the list of a whole call's results; None: each call has one item.
        size: of that list.
        reads: the first is the source's, for unread items.
    """

    functions: tuple[Callable[[Any], Any], ...]
    names: tuple[str, ...]
    batch: int | None = None
    size: int = 1
    reads: bool = False

    @property
    def own(self) -> int:
        """Place of the stage whose workers these are."""
        return int(self.reads)

    @property
    def span(self) -> int:
        """Stages from that one on."""
        return len(self.names) - self.own

    def begins(self, call: ChainCall) -> int:
        """Place of the stage that is first to work on it."""
        return 0 if call.unread else self.own

    def until(self, place: int) -> Chain:
        """The stages before it."""
        keeps = self.batch is not None and place > self.batch
        shorter = replace(self, functions=self.functions[:place], names=self.names[:place])
        return shorter if keeps else replace(shorter, batch=None, size=1)

    def run(self, call: ChainCall, *, watch: Stopwatch, at: _At = lambda _, __: None) -> tuple[Any, tuple[Step, ...]]:
        """Result of the last stage, and the measured step of each."""
        values, steps = call.payloads, []
        for place, function in enumerate(self.functions):
            if place < self.own:
                values, spent = watch.call(partial(_read, function, partial(at, place), call.unread), values)
                steps.append(Step(len(call.unread), spent))
                continue
            if place == self.batch:
                if not call.whole:
                    break
                values = [values]
            values, spent = watch.call(partial(_each, function, partial(at, place)), values)
            steps.append(Step(len(values), spent))
        (result,) = values
        return result, tuple(steps)

    def positions(self, item: Item, place: int, index: int) -> tuple[int, ...]:
        """Positions of the samples that a function got."""
        if not isinstance(item.payload, Group) or index < 0 or (self.batch is not None and place >= self.batch):
            return item.positions
        return item.payload.items[index].positions


def _read(function: Callable[[Any], Any], at: Callable[[int], None], unread: Sequence[int], values: list[Any]) -> list[Any]:
    read = list(values)
    for index in unread:
        at(index)
        read[index] = function(read[index])
    return read


def _each(function: Callable[[Any], Any], at: Callable[[int], None], values: list[Any]) -> list[Any]:
    results = []
    for index, value in enumerate(values):
        at(index)
        results.append(function(value))
    return results


class Where(NamedTuple):
    """The place of a worker in the chain."""

    call: int  #: number of the call, from 1
    place: int
    item: int  #: of those of a call; below 0: it has not begun
    since: float  #: time.perf_counter, which is the same in all processes


class Whereabouts:
    """A worker process's place in a call, in memory shared with its parent, which can read it after its death, too."""

    _WORDS = struct.Struct("=qqqd")

    def __init__(self, file: int = -1) -> None:
        self._call = 0
        self._file = os.memfd_create("stoker-worker", os.MFD_CLOEXEC) if file < 0 else file
        try:
            if file < 0:
                os.ftruncate(self._file, mmap.PAGESIZE)
            self._memory: mmap.mmap | bytearray = mmap.mmap(self._file, mmap.PAGESIZE)
        except BaseException:
            self.close_file()
            raise

    def __reduce__(self) -> Any:
        return _opened, (reduction.DupFd(self._file),)  # of a process that is being started

    def close_file(self) -> None:
        """The other process has it, or never will."""
        with suppress(OSError):
            os.close(self._file)

    def let_go(self) -> None:
        """Free the memory and its descriptor; its last content can still be read."""
        self._memory = bytearray(self._memory[: self._WORDS.size])

    def begin(self, place: int) -> None:
        """The next call, at this place of the chain."""
        self._call += 1
        self.note(place, -1)

    def note(self, place: int, index: int) -> None:
        self._WORDS.pack_into(self._memory, 0, self._call, place, index, time.perf_counter())

    def read(self) -> Where:
        memory = self._memory
        now = self._WORDS.unpack_from(memory)
        while (again := self._WORDS.unpack_from(memory)) != now:  # it was being written
            now = again
        return Where(*now)


def _opened(file: Any) -> Whereabouts:
    opened = Whereabouts(file.detach())
    opened.close_file()
    return opened
