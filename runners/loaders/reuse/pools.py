"""The samples of a buffer, by how many uses they have left, and a batch while it is drawn from them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any


class Slot:
    __slots__ = ("identity", "last", "left", "position", "sample", "size")

    def __init__(self, position: int, sample: Any, left: int, last: int, size: int, identity: Hashable) -> None:
        self.position, self.sample, self.left, self.last, self.size, self.identity = position, sample, left, last, size, identity


class Pool:
    """The slots with the same number of uses left: those rested, in no order, and those at rest, by their last use.

    ``done`` notes each change of the current call, so that the pool's state before it can be restored.
    """

    __slots__ = ("done", "ready", "resting")

    def __init__(self) -> None:
        self.ready: list[Slot] = []
        self.resting: deque[Slot] = deque()
        self.done: Changes = []

    def __len__(self) -> int:
        return len(self.ready) + len(self.resting)

    def wake(self, before: int) -> None:
        """Those last used before batch ``before`` have rested."""
        while self.resting and self.resting[0].last < before:
            self.ready.append(self.resting.popleft())
            self.done.append(lambda pool: pool.resting.appendleft(pool.ready.pop()))

    def add(self, slot: Slot) -> None:
        self.ready.append(slot)
        self.done.append(lambda pool: pool.ready.pop())

    def lay(self, slot: Slot) -> None:
        """To rest, as the one used last."""
        self.resting.append(slot)
        self.done.append(lambda pool: pool.resting.pop())

    def rouse(self) -> Slot:
        """The one that has been at rest longest."""
        slot = self.resting.popleft()
        self.done.append(lambda pool: pool.resting.appendleft(slot))
        return slot

    def pop(self, index: int) -> Slot:
        ready = self.ready
        ready[index], ready[-1] = ready[-1], ready[index]
        slot = ready.pop()
        self.done.append(lambda pool: pool._put_back(index, slot))
        return slot

    def _put_back(self, index: int, slot: Slot) -> None:
        self.ready.append(slot)
        self.ready[index], self.ready[-1] = self.ready[-1], self.ready[index]

    def listed(self) -> Iterator[tuple[Slot, bool]]:
        """All, and whether they have rested."""
        yield from ((slot, True) for slot in self.ready)
        yield from ((slot, False) for slot in self.resting)

    def noted(self) -> Changes:
        """The list for the changes of the next call, from here on."""
        self.done = []
        return self.done

    def copy(self) -> Pool:
        pool = Pool()
        pool.ready, pool.resting = self.ready.copy(), self.resting.copy()
        return pool


Changes = list[Callable[[Pool], object]]  #: functions that take each of them back, in a copy


class OpenBatch:
    """A batch while it is drawn: up to ``size`` slots, taken out of their pools."""

    def __init__(self, generator: random.Random, size: int, *, by_identity: bool) -> None:
        self._random, self._size = generator, size
        self.batch: list[Slot] = []
        self.clashed: list[Slot] = []  #: taken out of their pools too: the batch has the same sample of another pass
        self._seen: set[Hashable] | None = set() if by_identity else None

    def at_random(self, pools: Sequence[Pool], count: int) -> None:
        """Up to ``count`` of the rested ones, each equally likely."""
        ready = sum(len(pool.ready) for pool in pools)
        while count and ready and len(self.batch) < self._size:
            index = self._random.randrange(ready)
            for pool in pools:
                if index < len(pool.ready):
                    break
                index -= len(pool.ready)
            count -= self._add(pool.pop(index))
            ready -= 1

    def longest_at_rest(self, pools: Sequence[Pool]) -> None:
        """Fill up with those whose rest is not over, the longest at rest first."""
        while len(self.batch) < self._size and (waiting := [pool for pool in pools if pool.resting]):
            self._add(min(waiting, key=lambda pool: pool.resting[0].last).rouse())

    def _add(self, slot: Slot) -> bool:
        if self._seen is not None:
            if slot.identity in self._seen:
                self.clashed.append(slot)
                return False
            self._seen.add(slot.identity)
        self.batch.append(slot)
        return True
