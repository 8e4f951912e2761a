"""A queue between two stages, bounded by items and by bytes; in ordered mode it gives the items out by their numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from .faults import Drained, Leave, Stopped


class _Skip:
    def __repr__(self) -> str:
        return "SKIP"


SKIP: Any = _Skip()  #: payload of an item that an earlier run delivered: it keeps its place in the order, and is not worked on


class Item(NamedTuple):
    """An item that flows through a pipeline."""

    positions: tuple[int, ...]  #: of its samples in the source
    payload: Any
    size: int  #: bytes, with the item's own, so that a queue of empty ones is bounded too


class Bound(NamedTuple):
    items: int
    bytes: int


def _never() -> bool:
    return False


class Channel:
    """Many producers, one consumer at a time.

    Ordered: an item may come in if it is less than ``bound.items`` numbers ahead of the next to go out, so that no
    producer runs far ahead of a slow item; that next item itself always may, or full bytes would lock it out for ever.
    Unordered: first come, first out. An item larger than the bound passes alone.
    """

    def __init__(self, bound: Bound, *, ordered: bool) -> None:
        self._bound = bound
        self._ordered = ordered
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._held: dict[int, Item] = {}
        self._next = 0  #: number to go out
        self._arrived = 0  #: unordered: numbers in order of arrival
        self._waiting: list[tuple[int, threading.Lock, Item]] = []  #: to come in, the lowest number first
        self._bytes = 0
        self._closed = self.stopped = False

    def put(self, number: int, item: Item) -> None:
        """Wait for room, then hand the item over. Stopped: the pass is over.

        Args:
            number: place of the item in the order, from 0 without gaps; without meaning when unordered.
        """
        with self._lock:
            if self.stopped:
                raise Stopped
            if not self._ordered:
                number, self._arrived = self._arrived, self._arrived + 1
            if not self._waiting and self._admits(number, item.size):
                self._take_in(number, item)
                return
            gate = threading.Lock()
            gate.acquire()
            heappush(self._waiting, (number, gate, item))
            self._let_in()
        gate.acquire()  # a lock a producer, so that each is woken when its item is in, and no other
        if self.stopped:
            raise Stopped

    def get(self, leave: Callable[[], bool] = _never, tick: Callable[[], None] | None = None, every: float | None = None) -> Item:
        """The next item. One consumer at a time.

        Args:
            leave: whether the caller is to give up waiting; called after each `wake`.
            tick: called each ``every`` seconds of waiting, without the lock.

        Raises:
            Drained: everything has gone out. Leave: ``leave`` was true. Stopped: the pass is over.
        """
        with self._lock:
            while self._next not in self._held:
                if self.stopped:
                    raise Stopped
                if self._closed and not self._held:
                    raise Drained
                if leave():
                    raise Leave
                if not self._filled.wait(every) and tick is not None:
                    self._unlocked(tick)
            if self.stopped:
                raise Stopped
            item = self._held.pop(self._next)
            self._next += 1
            self._bytes -= item.size
            self._let_in()
            return item

    def wake(self) -> None:
        """Make a waiting consumer call ``leave`` again."""
        with self._lock:
            self._filled.notify_all()

    def rebound(self, bound: Bound) -> None:
        """A lower bound drops nothing: producers wait until the content is below it."""
        with self._lock:
            self._bound = bound
            self._let_in()

    def close(self) -> None:
        """Nothing more will be put."""
        with self._lock:
            self._closed = True
            self._filled.notify_all()

    def stop(self) -> None:
        """All waiting and later callers get Stopped; the content is dropped."""
        with self._lock:
            self.stopped = True
            self._held.clear()
            self._bytes = 0
            self._filled.notify_all()
            while self._waiting:
                heappop(self._waiting)[1].release()

    @property
    def full(self) -> bool:
        """Whether a producer may have to wait now."""
        return bool(self._waiting) or len(self._held) >= self._bound.items or self._bytes >= self._bound.bytes

    @property
    def held(self) -> tuple[int, int]:
        """Items and bytes that wait."""
        return len(self._held), self._bytes

    def _let_in(self) -> None:
        """Let waiting producers in, the lowest number first, as long as there is room: none overtakes a lower one."""
        while self._waiting:
            number, gate, item = self._waiting[0]
            if not self._admits(number, item.size):
                return
            heappop(self._waiting)
            self._take_in(number, item)
            gate.release()

    def _take_in(self, number: int, item: Item) -> None:
        self._held[number] = item
        self._bytes += item.size
        if number == self._next:
            self._filled.notify()

    def _admits(self, number: int, size: int) -> bool:
        if number == self._next:
            return True
        if self._next not in self._held:
            size *= 2  # room is left for the one that must come in first, taken to be as large
        return number < self._next + self._bound.items and self._bytes + size <= self._bound.bytes

    def _unlocked(self, call: Callable[[], None]) -> None:
        self._lock.release()
        try:
            call()
        finally:
            self._lock.acquire()
