"""Buddy cells of the nodes, with their free GPUs (002 ch. 5.3.3.3).

A node of up to 8 GPUs, as nearly all are, is one number: a bit per GPU. The best cell is computed once for each of the 256
states, so a look at a hundred nodes costs two array operations. Larger nodes are counted cell by cell; the same code makes the
tables of the small ones.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from functools import cache, cached_property

import numpy as np

from ..arrays import Bools, Floats, Ints

_NOWHERE = np.iinfo(np.int64).max
_SMALL = 8  #: GPUs of the largest node that is one number


class Grid:
    """The fixed part: GPUs laid out by node and position, each node padded to a power of two positions.

    A node's cells stand in one row: those of level 0 first, then those of level 1, and so on up to the node itself.
    """

    def __init__(self, node: Ints, index: Ints) -> None:
        """``node`` and ``index``: one per GPU, as in `Gpus`."""
        self.node = node
        self.index = index
        self.nodes = int(node.max(initial=-1)) + 1
        self.levels = int(index.max(initial=0)).bit_length() + 1
        self.width = 1 << (self.levels - 1) if self.nodes else 0
        self.row = np.full(self.nodes * self.width, -1, dtype=np.int64)
        self.row[node * self.width + index] = np.arange(len(node))
        self.cells = _columns(self.levels)
        self.slot = node * self.width + index
        self.full = bool((self.slot == np.arange(len(node))).all())  #: a GPU's slot is its row
        self.largest_first = np.cumsum(-np.sort(-np.bincount(node, minlength=self.nodes)))
        self._needed: dict[int, int] = {}  #: nodes for each size of gang

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Node and bit of each GPU."""
        return list(zip(self.node.tolist(), (1 << self.index).tolist(), strict=True))

    def largest(self, fitting: Bools | None) -> int:
        """``fitting`` GPUs of the node that has most of them."""
        return self._largest if fitting is None else int(np.bincount(self.node[fitting], minlength=1).max())

    @cached_property
    def _largest(self) -> int:
        return int(self.largest_first[0]) if self.nodes else 0

    @cached_property
    def slots(self) -> list[int]:
        """``slot`` as plain numbers."""
        slots: list[int] = self.slot.tolist()
        return slots

    @cached_property
    def row_of_slot(self) -> list[int]:
        """``row`` as plain numbers, for the few slots of a gang."""
        return self.row.tolist()

    def nodes_needed(self, n: int, fitting: Bools | None) -> int:
        if fitting is None:
            if n not in self._needed:
                self._needed[n] = int(self.largest_first.searchsorted(n)) + 1
            return self._needed[n]
        largest_first = -np.sort(-np.bincount(self.node[fitting], minlength=self.nodes))
        return int(np.cumsum(largest_first).searchsorted(n)) + 1

    def enough(self, n: int, per_node: Ints, fitting: Bools | None) -> bool:
        if len(per_node) and n <= per_node[per_node.argmax()]:  # `max` costs several times as much
            return True
        needed = self.nodes_needed(n, fitting)
        return needed > 1 and bool(np.sort(per_node)[-needed:].sum() >= n)


def free_gpus(grid: Grid, open_gpus: Bools) -> Free:
    """``open_gpus``: one per GPU of the grid."""
    return States.of(grid, open_gpus) if grid.width <= _SMALL else Cells.of(grid, open_gpus)


class Free(ABC):
    """Which GPUs are free."""

    grid: Grid

    @abstractmethod
    def copy(self) -> Free: ...

    @abstractmethod
    def masked(self, fitting: Bools) -> Free:
        """Those of them that are ``fitting`` (one per GPU)."""

    @abstractmethod
    def per_node(self) -> Ints: ...

    @abstractmethod
    def _levels(self) -> Floats:
        """`levels` where all others have inf."""

    def levels(self, others: Floats | None) -> Floats:
        """A row per node and a column per slot: -inf if free, else the value of ``others`` (one per GPU); a fresh array."""
        levels = self._levels()
        if others is None:
            return levels
        by_slot, slot = levels.reshape(-1), self.grid.slot
        if self.grid.full:
            by_slot = by_slot[: len(slot)]
            np.minimum(by_slot, others, out=by_slot)
        else:
            by_slot[slot] = np.minimum(by_slot[slot], others)
        return levels

    @abstractmethod
    def has(self, gpus: Iterable[int]) -> bool:
        """Whether all of them are free."""

    @abstractmethod
    def set(self, gpus: Iterable[int], is_open: bool) -> None: ...

    @abstractmethod
    def in_one_node(self, n: int, but: Collection[int] = ()) -> list[int] | None:
        """Slots for ``n`` in the best cell of any node except ``but``, ascending, that leave its halves as whole as possible.

        The best cell is the tightest one of the lowest level that has any: with the fewest free GPUs in the cell itself, then in
        its parent, and so on up to the node. A slot is a node times the width, plus a position.
        """

    def total(self) -> int:
        return int(self.per_node().sum())

    def find(self, n: int, fitting: Bools | None, relaxed: bool) -> tuple[int, ...] | None:
        """Rows of ``n`` GPUs on as few nodes as an empty pool would need, or on more when ``relaxed``."""
        if n < 1:
            raise ValueError(f"a gang has at least 1 GPU, not {n}")
        free = self if fitting is None else self.masked(fitting)
        row_of = self.grid.row_of_slot
        if (slots := free.in_one_node(n)) is not None:
            return tuple([row_of[slot] for slot in slots])
        least = self.grid.nodes_needed(n, fitting)
        most = self.grid.nodes if relaxed else least
        if most == 1 or n > free.total():
            return None
        for nodes in range(max(2, least), most + 1):
            if (slots := free.over_nodes(n, nodes)) is not None:
                return tuple(sorted([row_of[slot] for slot in slots]))
        return None

    def over_nodes(self, n: int, nodes: int) -> list[int] | None:
        """Slots on exactly ``nodes`` nodes: the emptiest ones whole, the rest of the gang in its best cell."""
        per_node = self.per_node()
        emptiest = np.argsort(-per_node, kind="stable")[: nodes - 1].tolist()
        rest = n - int(per_node[emptiest].sum())
        last = self.in_one_node(rest, emptiest) if rest > 0 else None
        if last is None:
            return None
        return [slot for node in emptiest for slot in self.whole(node)] + last

    @abstractmethod
    def whole(self, node: int) -> list[int]:
        """All free slots of a node."""


class States(Free):
    """Nodes of few GPUs: ``state`` has a number per node; its bit ``i`` tells whether position ``i`` is free."""

    def __init__(self, grid: Grid, state: Ints) -> None:
        self.grid, self.state = grid, state
        self._bits: memoryview[int] = state.data  # reads one number in half the time
        self.table = _table(grid.levels)
        self._per_node: Ints | None = None  # these three until something changes
        self._total = -1

    @classmethod
    def of(cls, grid: Grid, open_gpus: Bools) -> States:
        leaves = np.zeros((grid.nodes, grid.width), dtype=np.int64)
        leaves[grid.node, grid.index] = open_gpus
        return cls(grid, leaves @ _BITS[: grid.width])

    def copy(self) -> States:
        twin = object.__new__(States)
        twin.grid, twin.state, twin.table = self.grid, self.state.copy(), self.table
        twin._bits = twin.state.data
        twin._per_node, twin._total = self._per_node, self._total
        return twin

    def masked(self, fitting: Bools) -> States:
        return States(self.grid, self.state & States.of(self.grid, fitting).state)

    def per_node(self) -> Ints:
        if self._per_node is None:
            self._per_node = self.table.free[self.state]
            self._per_node.flags.writeable = False  # others are given it
            self._total = -1
        return self._per_node

    def total(self) -> int:
        per_node = self.per_node()
        if self._total < 0:
            self._total = int(per_node.sum())
        return self._total

    def _levels(self) -> Floats:
        return self.table.levels[self.state]

    def has(self, gpus: Iterable[int]) -> bool:
        places, bits = self.grid.places, self._bits
        for gpu in gpus:
            node, bit = places[gpu]
            if not bits[node] & bit:
                return False
        return True

    def set(self, gpus: Iterable[int], is_open: bool) -> None:
        bits, places = self._bits, self.grid.places
        self._per_node = None
        for gpu in gpus:
            node, bit = places[gpu]
            if is_open:
                bits[node] |= bit
            else:
                bits[node] &= ~bit

    def in_one_node(self, n: int, but: Collection[int] = ()) -> list[int] | None:
        if n > self.grid.width:
            return None
        cost = self.table.cost(n)[self.state]
        if but:
            cost[list(but)] = _NOWHERE
        node = int(cost.argmin())
        if cost[node] == _NOWHERE:
            return None
        start = node * self.grid.width
        return [start + position for position in self.table.positions(self._bits[node], n)]

    def whole(self, node: int) -> list[int]:
        state = self._bits[node]
        return [node * self.grid.width + position for position in range(self.grid.width) if state >> position & 1]


_BITS = 1 << np.arange(_SMALL)


@cache
def _table(levels: int) -> CellTable:
    return CellTable(levels)


class CellTable:
    """The best cells of a small node, for each of its states."""

    def __init__(self, levels: int) -> None:
        width = 1 << (levels - 1)
        leaves = (np.arange(1 << width)[:, None] >> np.arange(width)) & 1
        self.counts, self._scores = _count(leaves, levels)
        self.free = self.counts[:, -1].copy()
        self.levels = np.where(leaves == 1, -np.inf, np.inf)
        self._levels, self._columns = levels, _columns(levels)
        self._best: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._positions: dict[tuple[int, int], tuple[int, ...]] = {}

    def cost(self, n: int) -> Ints:
        """Rank of the best cell for ``n`` in each state, less is better: its level first, then its score."""
        return self._best_of(n)[0]

    def positions(self, state: int, n: int) -> tuple[int, ...]:
        found = self._positions.get((state, n))
        if found is None:
            _, level, cell = self._best_of(n)
            counts = self.counts[state].tolist()
            found = self._positions[state, n] = tuple(sorted(_split(counts, self._columns, int(level[state]), int(cell[state]), n)))
        return found

    def _best_of(self, n: int) -> tuple[Ints, Ints, Ints]:
        if n not in self._best:
            cost = np.full(len(self.free), _NOWHERE)
            level, cell = np.zeros_like(cost), np.zeros_like(cost)
            for one in reversed(range((n - 1).bit_length(), self._levels)):
                columns = self._columns[one]
                scores = np.where(self.counts[:, columns] >= n, self._scores[:, columns], _NOWHERE)
                fits = scores.min(axis=1) < _NOWHERE
                cost[fits] = (one << 32) + scores.min(axis=1)[fits]
                level[fits], cell[fits] = one, scores.argmin(axis=1)[fits]
            self._best[n] = cost, level, cell
        return self._best[n]


class Cells(Free):
    """Nodes of many GPUs: free GPUs counted in every cell, with a score that orders cells of a level from best to worst fit.

    ``counts`` and ``scores`` have a row per node and a column per cell, in the layout of `Grid`.
    """

    def __init__(self, grid: Grid, counts: Ints, scores: Ints) -> None:
        self.grid, self.counts, self.scores = grid, counts, scores

    @classmethod
    def of(cls, grid: Grid, open_gpus: Bools) -> Cells:
        leaves = np.zeros((grid.nodes, grid.width), dtype=np.int64)
        leaves[grid.node, grid.index] = open_gpus
        return cls(grid, *_count(leaves, grid.levels))

    def copy(self) -> Cells:
        return Cells(self.grid, self.counts.copy(), self.scores.copy())

    def masked(self, fitting: Bools) -> Cells:
        return Cells.of(self.grid, fitting & (self.counts[self.grid.node, self.grid.index] > 0))

    def per_node(self) -> Ints:
        return self.counts[:, -1]

    def _levels(self) -> Floats:
        return np.where(self.counts[:, : self.grid.width] > 0, -np.inf, np.inf)

    def has(self, gpus: Iterable[int]) -> bool:
        rows = list(gpus)
        return bool(self.counts[self.grid.node[rows], self.grid.index[rows]].all())

    def set(self, gpus: Iterable[int], is_open: bool) -> None:
        rows = np.fromiter(gpus, np.int64)
        nodes = self.grid.node[rows]
        self.counts[nodes, self.grid.index[rows]] = is_open
        changed = sorted(set(nodes.tolist()))
        self.counts[changed], self.scores[changed] = _count(self.counts[changed, : self.grid.width], self.grid.levels)

    def in_one_node(self, n: int, but: Collection[int] = ()) -> list[int] | None:
        grid = self.grid
        for level in range((n - 1).bit_length(), grid.levels):
            columns = grid.cells[level]
            fits = self.counts[:, columns] >= n
            for node in but:
                fits[node] = False
            best = int(np.where(fits, self.scores[:, columns], _NOWHERE).argmin())
            if fits.flat[best]:
                node, cell = divmod(best, grid.width >> level)
                positions = sorted(_split(self.counts[node].tolist(), grid.cells, level, cell, n))
                return [node * grid.width + position for position in positions]
        return None

    def whole(self, node: int) -> list[int]:
        return [node * self.grid.width + int(position) for position in self.counts[node, : self.grid.width].nonzero()[0]]


def _columns(levels: int) -> list[slice]:
    """Columns of the cells of each level."""
    width = 1 << (levels - 1)
    starts = np.concatenate([[0], np.cumsum([width >> level for level in range(levels)])]).tolist()
    return [slice(first, last) for first, last in itertools.pairwise(starts)]


def _count(leaves: Ints, levels: int) -> tuple[Ints, Ints]:
    """Counts and scores of all cells, a row per node, from the free positions.

    A score packs the free counts of the cell and of all cells around it, innermost first, so the least score is the
    tightest fit: the cell itself first, then its parent, and so on up to the node.
    """
    counts = [leaves]
    for _ in range(1, levels):
        counts.append(counts[-1][:, 0::2] + counts[-1][:, 1::2])
    scores, bits = [counts[-1]], levels
    for level in range(levels - 2, -1, -1):
        # A cell of level l counts at most 2**l, so l + 1 bits; nodes of up to 512 positions pack exactly.
        scores.append((counts[level] << bits) + scores[-1].repeat(2, axis=1))
        bits += level + 1
    return np.hstack(counts), np.hstack(scores[::-1])


def _split(counts: list[int], columns: list[slice], level: int, cell: int, n: int) -> list[int]:
    """``n`` free positions of a cell that leave its halves as whole as possible; ``counts`` are those of the node's cells."""
    if n == counts[columns[level].start + cell]:
        return [i for i in range(cell << level, (cell + 1) << level) if counts[i]]
    below = columns[level - 1].start
    fuller, emptier = sorted((2 * cell, 2 * cell + 1), key=lambda half: counts[below + half])
    for half in (fuller, emptier):
        if n <= counts[below + half]:
            return _split(counts, columns, level - 1, half, n)
    whole = counts[below + emptier]
    return _split(counts, columns, level - 1, emptier, whole) + _split(counts, columns, level - 1, fuller, n - whole)
