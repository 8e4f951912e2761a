"""Those who wait, in the order of service."""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .contract import Floats, Ints


class Waiter(NamedTuple):
    """A job that waits for ``gpus``. Waiters compare in the order of service."""

    key: float
    job: int
    gpus: int
    claim: float
    hold: float  #: once it runs


class Line:
    """Waiters by their sizes. Only the first of a size may leave it, so its claim is the strongest of the size.

    The columns have a row for each who waits at first, in the order of service. A `Waiter` is made of one when its turn may have come:
    thousands may wait.
    """

    def __init__(self, key: Floats, job: Ints, gpus: Ints, claim: Floats, hold: Floats) -> None:
        self._columns = key, job, claim, hold
        self._sizes: dict[int, _Size] = {}
        if len(gpus):
            by_size = gpus.argsort(kind="stable")
            ordered = gpus[by_size]
            bounds = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist(), len(ordered)]
            self._sizes = {int(ordered[first]): _Size(by_size[first:end]) for first, end in itertools.pairwise(bounds)}

    def sizes(self) -> list[int]:
        """Of which somebody waits."""
        return list(self._sizes)

    def firsts(self) -> list[Waiter]:
        """Of each size one."""
        return [self._first(n, size) for n, size in self._sizes.items()]

    def turns(self, sizes: Iterable[int], came: Iterable[Waiter], failed: Collection[int]) -> Iterator[Waiter]:
        """Those of these sizes, and of those who ``came`` and are not in line yet, until their size is in ``failed``."""
        return heapq.merge(*(self._of(n, failed) for n in sizes), sorted(came))

    def join(self, waiter: Waiter) -> None:
        insort(self._sizes.setdefault(waiter.gpus, _Size(_NOBODY)).joined, waiter)

    def leave(self, waiter: Waiter) -> None:
        """The first of its size."""
        size = self._sizes[waiter.gpus]
        if size.joined and size.joined[0] == waiter:
            del size.joined[0]
        else:
            size.rows = size.rows[1:]
        if not (size.joined or len(size.rows)):
            del self._sizes[waiter.gpus]

    def _first(self, n: int, size: _Size) -> Waiter:
        if not len(size.rows):
            return size.joined[0]
        waiter = self._made(n, size.rows[0])
        return min(waiter, size.joined[0]) if size.joined else waiter

    def _of(self, n: int, failed: Collection[int]) -> Iterator[Waiter]:
        size = self._sizes[n]
        at_first = (self._made(n, row) for row in itertools.takewhile(lambda _: n not in failed, size.rows))
        return heapq.merge(at_first, size.joined) if size.joined else at_first

    def _made(self, n: int, row: int) -> Waiter:
        key, job, claim, hold = self._columns
        return Waiter(float(key[row]), int(job[row]), n, float(claim[row]), float(hold[row]))


_NOBODY = np.zeros(0, dtype=np.int64)


class _Size:
    __slots__ = ("joined", "rows")

    def __init__(self, rows: Ints) -> None:
        self.rows = rows  #: of the columns
        self.joined: list[Waiter] = []  #: who came since, in order
