"""The serial part of a stage: one worker at a time takes the next items.

A feed keeps its gathered items between two calls, so that a worker that leaves halfway loses nothing.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .readings.sizes import QUEUED_ITEM_BYTES
from .workers.chains import Carried, Done, Group, Unread
from .workers.channel import SKIP, Channel, Item
from .workers.faults import Drained, Leave, Stopped

log = logging.getLogger("stoker.loaders")

Leaving = Callable[[], bool]


class Feed(Protocol):
    def take(self, leave: Leaving) -> Item:
        """The next item to work on. Drained: nothing is left. Leave: ``leave`` was true while it waited."""

    @property
    def kept(self) -> tuple[int, int]:
        """Items and bytes that it holds."""

    def let_go(self) -> None:
        """Drop its items: the pass has been stopped."""


class Positions:
    """Positions of the source from ``start``; each is to be read, unless an earlier run has delivered it.

    Args:
        delivered: whether a position below ``high`` was.
        show: positions that are not read still flow, as SKIP, since a shuffle's order depends on them.
    """

    def __init__(self, high: int, pending: frozenset[int], *, show: bool) -> None:
        self._high, self._pending, self._show = high, pending, show

    def skips(self, position: int) -> bool:
        return position < self._high and position not in self._pending

    def hidden(self, position: int) -> bool:
        """Whether it does not appear downstream at all."""
        return not self._show and self.skips(position)


class Indices:
    """Indices of a source that its workers read."""

    def __init__(self, indices: Iterator[Any], positions: Positions) -> None:
        self._indices: Iterator[tuple[int, Any]] = enumerate(indices)
        self._positions = positions

    def take(self, leave: Leaving) -> Item:
        for position, index in self._indices:
            if not self._positions.hidden(position):
                return Item((position,), SKIP if self._positions.skips(position) else index, QUEUED_ITEM_BYTES)
        raise Drained

    @property
    def kept(self) -> tuple[int, int]:
        return 0, 0

    def let_go(self) -> None:
        self._indices = iter(())


class Iteration:
    """A source that its only worker iterates: `read` is that worker's function, so that its time is measured."""

    def __init__(self, iterator: Iterator[Any], positions: Positions) -> None:
        self._iterator = iterator
        self._positions = positions
        self._position = 0

    def take(self, leave: Leaving) -> Item:
        while self._positions.hidden(self._position):
            self.read(None)
            self._position += 1
        position, self._position = self._position, self._position + 1
        if self._positions.skips(position):
            self.read(None)
            return Item((position,), SKIP, QUEUED_ITEM_BYTES)
        return Item((position,), None, QUEUED_ITEM_BYTES)

    def read(self, _: None) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            raise Drained from None

    @property
    def kept(self) -> tuple[int, int]:
        return 0, 0

    def let_go(self) -> None:
        self._iterator = iter(())  # closes a generator without other references


class Passing:
    """A channel's items one by one, also those that came together."""

    def __init__(self, source: Channel) -> None:
        self._source = source
        self._waiting: deque[Item] = deque()

    def take(self, leave: Leaving) -> Item:
        while not self._waiting:
            item = self._source.get(leave)
            if not isinstance(item.payload, Carried):
                return item
            self._waiting.extend(item.payload.items)
        return self._waiting.popleft()

    @property
    def kept(self) -> tuple[int, int]:
        return len(self._waiting), QUEUED_ITEM_BYTES * len(self._waiting)  # only indices go together

    def let_go(self) -> None:
        self._waiting.clear()


class Carrying:
    """A feed's items, unread, several together as wanted now, for processes to read.

    Args:
        together: how many; 0: one by one, to be read by the workers of the source.
        marked: the feed is the source's.
    """

    def __init__(self, feed: Feed, together: Callable[[], int], *, marked: bool) -> None:
        self._feed, self._together, self._marked = feed, together, marked
        self._items: list[Item] = []
        self._error: Exception | None = None  #: of the feed, raised once its earlier items have been taken

    def take(self, leave: Leaving) -> Item:
        together = self._together()
        if not together and not self._items and self._error is None:
            return self._feed.take(leave)
        if self._error is None:
            self._gather(together, leave)
        if not self._items:
            error, self._error = self._error, None
            raise error or Drained
        items, self._items = self._items, []
        return Item((), Carried(items), sum(item.size for item in items))

    def _gather(self, together: int, leave: Leaving) -> None:
        try:
            while len(self._items) < together:
                item = self._feed.take(leave)
                if self._marked and item.payload is not SKIP:
                    item = Item(item.positions, Unread(item.payload), item.size)
                self._items.append(item)
        except Drained:
            if not self._items:
                raise
        except (Leave, Stopped):
            raise
        except Exception as error:
            self._error = error

    @property
    def kept(self) -> tuple[int, int]:
        items, size = self._feed.kept
        return items + len(self._items), size + sum(item.size for item in self._items)

    def let_go(self) -> None:
        self._items = []
        self._feed.let_go()


class Shuffling:
    """A random item of a buffer that is kept full."""

    def __init__(self, source: Channel, buffer: int, seed: str) -> None:
        self._source = Passing(source)
        self._buffer = buffer
        self._random = random.Random(seed)
        self._items: list[Item] = []
        self._bytes = 0

    def take(self, leave: Leaving) -> Item:
        try:
            while len(self._items) < self._buffer:
                item = self._source.take(leave)
                self._items.append(item)
                self._bytes += item.size
        except Drained:
            if not self._items:
                raise
        place = self._random.randrange(len(self._items))
        self._items[place], self._items[-1] = self._items[-1], self._items[place]
        item = self._items.pop()
        self._bytes -= item.size
        return item

    @property
    def kept(self) -> tuple[int, int]:
        items, size = self._source.kept
        return items + len(self._items), size + self._bytes

    def let_go(self) -> None:
        self._source.let_go()
        self._items, self._bytes = [], 0


class Drawing:
    """The items that a function makes of as many as it takes, numbered anew."""

    def __init__(self, source: Channel, draw: Callable[[Callable[[], Any]], Any], held: Callable[[], int]) -> None:
        self._source, self._draw, self._held = source, draw, held
        self._number = 0

    def take(self, leave: Leaving) -> Item:
        try:
            drawn = self._draw(lambda: self._taken(leave))
        except StopIteration:
            raise Drained from None
        number, self._number = self._number, self._number + 1
        return Item((number,), drawn, QUEUED_ITEM_BYTES)

    def _taken(self, leave: Leaving) -> Any:
        try:
            return self._source.get(leave).payload
        except Drained:
            raise StopIteration from None

    @property
    def kept(self) -> tuple[int, int]:
        return 0, self._held()

    def let_go(self) -> None:
        """It holds no items of its own."""


class Dealing:
    """One item at a time, or a whole batch where one begins, so that batches have the same items whichever worker takes them.

    Args:
        size: of a batch.
        grouped: whether batches may be taken.
    """

    def __init__(self, feed: Feed, size: int, grouped: Callable[[], bool]) -> None:
        self._feed, self._size, self._grouped = feed, size, grouped
        self._waiting: deque[Item] = deque()
        self._dealt = 0  #: items dealt of an unfinished batch

    def take(self, leave: Leaving) -> Item:
        item = self._waiting.popleft() if self._waiting else self._feed.take(leave)
        self._dealt = (self._dealt + 1) % self._size
        return item

    def take_batch(self, leave: Leaving) -> Item:
        """A Group; or one item, if its batch has begun, was delivered, or is the last and incomplete."""
        if self._dealt or not self._grouped():
            return self.take(leave)
        try:
            while len(self._waiting) < self._size:
                self._waiting.append(self._feed.take(leave))
                if self._waiting[0].payload is SKIP:
                    return self.take(leave)
        except Drained:
            return self.take(leave)
        items, self._waiting = tuple(self._waiting), deque()
        return Group.item(items)

    @property
    def kept(self) -> tuple[int, int]:
        items, size = self._feed.kept
        return items + len(self._waiting), size + sum(item.size for item in self._waiting)

    def let_go(self) -> None:
        self._waiting.clear()
        self._feed.let_go()


class Grouping:
    """Lists of ``size`` items after another."""

    def __init__(self, source: Channel, size: int, *, drop_last: bool) -> None:
        self._source = source
        self._size, self._drop_last = size, drop_last
        self._items: list[Item] = []
        self._given = False

    def take(self, leave: Leaving) -> Item:
        try:
            while len(self._items) < self._size:
                item = self._source.get(leave)
                if isinstance(item.payload, Done):  # it is a batch already; with an order, no other has begun
                    self._given = True
                    return item
                self._items.append(item)
        except Drained:
            if not self._items or self._drop_last:
                if self._items and not self._given:
                    few, remedy = len(self._items), "write drop_last=False, or a smaller batch"
                    log.warning(
                        "a pass of the pipeline gave nothing: its %d items are fewer than a batch of %d; %s", few, self._size, remedy
                    )
                self._items = []
                raise
        self._given = True
        group, self._items = self._items, []
        positions = tuple(position for item in group for position in item.positions)
        payload = [item.payload for item in group]
        # A batch was delivered as a whole, so in the same order it is skipped as a whole.
        return Item(positions, SKIP if payload[0] is SKIP else payload, sum(item.size for item in group))

    @property
    def kept(self) -> tuple[int, int]:
        return len(self._items), sum(item.size for item in self._items)

    def let_go(self) -> None:
        self._items = []
