"""Where a gang goes: consolidated placement on buddy cells (002 ch. 5.3.3.3, after HiveD).

The GPUs of a node are the leaves of a binary tree; a cell of level ``l`` is an aligned run of ``2**l``
positions, so cells of level 0 to 3 hold 1, 2, 4 and 8 GPUs. Nodes with another number of GPUs (3, 6, …)
have cells that are not full. A job goes into the smallest cell that holds it, and of those into the one
whose surroundings are fullest, so that large cells stay whole for large jobs. A job larger than a node
gets as few nodes as an empty pool would need, whole ones first. A job is never spread over more nodes
than that unless the caller relaxes it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from functools import cache

import numpy as np

from .contract import Bools, Gpus, Ints, Phase, View

_NOWHERE = np.iinfo(np.int64).max


class Placement:
    """Which GPUs of a view are free, and which of them a gang of ``n`` should take.

    Two sets are kept: GPUs that are free *now*, and those that will be *soon*, which adds the GPUs of
    jobs that are stopping or that the plan displaces. A GPU that is not usable is in neither.
    """

    def __init__(self, view: View) -> None:
        gpus, jobs = view.gpus, view.jobs
        now = gpus.usable.copy()
        now[jobs.alloc_gpus] = False

        self.gpus = gpus
        self._now = _cells(gpus, now)
        # One set serves as both until they differ: most ticks have nothing that stops.
        self._soon = self._now
        stopping = jobs.phase == Phase.STOPPING
        if stopping.any():
            soon = gpus.usable.copy()
            soon[jobs.alloc_gpus[~np.repeat(stopping, np.diff(jobs.alloc_start))]] = False
            self._soon = _Cells(self._now.grid, soon)

    def copy(self) -> Placement:
        """An independent copy, for what-if questions."""
        twin = object.__new__(Placement)
        twin.gpus = self.gpus
        twin._now = self._now.copy()
        twin._soon = twin._now if self._soon is self._now else self._soon.copy()
        return twin

    def free(self) -> int:
        """GPUs that are free now."""
        return self._now.total()

    def free_soon(self) -> int:
        """GPUs that are free now or will be when all that is stopping has stopped."""
        return self._soon.total()

    def largest_free(self) -> int:
        """The largest gang that fits one node now."""
        return int(self._now.per_node().max(initial=0))

    def find(self, n: int, *, memory: float = 0.0, relaxed: bool = False) -> tuple[int, ...] | None:
        """Rows of ``n`` GPUs that are free now, each with at least ``memory`` bytes, or None."""
        return self._now.find(n, self._fitting(memory), relaxed)

    def find_soon(self, n: int, *, memory: float = 0.0, relaxed: bool = False) -> tuple[int, ...] | None:
        """The same among the GPUs that will be free soon."""
        return self._soon.find(n, self._fitting(memory), relaxed)

    def would_fit(self, n: int, freed: Ints, *, memory: float = 0.0) -> bool:
        """Whether ``find_soon(n)`` would succeed if the GPUs ``freed`` (now held by running jobs) were given up."""
        fitting = self._fitting(memory)
        freed = freed[self.gpus.usable[freed]]
        per_node = self._soon.per_node() if fitting is None else self._soon.masked(fitting).per_node()
        if fitting is not None:
            freed = freed[fitting[freed]]
        per_node = per_node + np.bincount(self.gpus.node[freed], minlength=len(per_node))
        return self._soon.grid.enough(n, per_node, fitting)

    def capacity(self, *, memory: float = 0.0) -> int:
        """GPUs of the pool with at least ``memory`` bytes, held or not, usable or not: no gang can be larger."""
        fitting = self._fitting(memory)
        return len(self.gpus) if fitting is None else int(np.count_nonzero(fitting))

    def nodes_needed(self, n: int, *, memory: float = 0.0) -> int:
        """Nodes that a gang of ``n`` takes in an empty pool: the most it may be spread over."""
        return self._now.grid.nodes_needed(n, self._fitting(memory))

    def take(self, gpus: Iterable[int]) -> None:
        rows = np.fromiter(gpus, np.int64)
        self._now.set(rows, False)
        if self._soon is not self._now:
            self._soon.set(rows, False)

    def release(self, gpus: Iterable[int]) -> None:
        """Free now; those that are not usable stay closed."""
        rows = np.fromiter(gpus, np.int64)
        rows = rows[self.gpus.usable[rows]]
        self._now.set(rows, True)
        if self._soon is not self._now:
            self._soon.set(rows, True)

    def release_soon(self, gpus: Iterable[int]) -> None:
        """Free once their present holder, which the plan displaces, has stopped."""
        rows = np.fromiter(gpus, np.int64)
        if self._soon is self._now:
            self._soon = self._now.copy()
        self._soon.set(rows[self.gpus.usable[rows]], True)

    def _fitting(self, memory: float) -> Bools | None:
        """GPUs large enough, None when all are. A GPU or a job of unknown memory fits."""
        if memory <= 0:
            return None
        fitting = (self.gpus.memory >= memory) | (self.gpus.memory <= 0)
        return None if fitting.all() else fitting


class _Grid:
    """The fixed part: GPUs laid out by node and position, each node padded to a power of two positions.

    A node's cells stand in one row: those of level 0 first, then those of level 1, and so on up to the node itself.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.node = gpus.node
        self.index = gpus.index
        self.nodes = int(gpus.node.max(initial=-1)) + 1
        self.levels = int(gpus.index.max(initial=0)).bit_length() + 1
        self.width = 1 << (self.levels - 1)
        self.row = np.full(self.nodes * self.width, -1, dtype=np.int64)
        self.row[gpus.node * self.width + gpus.index] = np.arange(len(gpus))
        starts = np.concatenate([[0], np.cumsum([self.width >> level for level in range(self.levels)])]).tolist()
        self.cells = [slice(first, last) for first, last in itertools.pairwise(starts)]  #: columns of each level
        self.largest_first = np.cumsum(-np.sort(-np.bincount(gpus.node, minlength=self.nodes)))

    def nodes_needed(self, n: int, fitting: Bools | None) -> int:
        if fitting is None:
            return int(self.largest_first.searchsorted(n)) + 1
        largest_first = -np.sort(-np.bincount(self.node[fitting], minlength=self.nodes))
        return int(np.searchsorted(np.cumsum(largest_first), n)) + 1

    def enough(self, n: int, per_node: Ints, fitting: Bools | None) -> bool:
        if n <= per_node.max(initial=0):
            return True
        if n > per_node.sum():
            return False
        needed = self.nodes_needed(n, fitting)
        return bool(np.sort(per_node)[-needed:].sum() >= n)


_BITS = 1 << np.arange(8)
_TABLE_LEVELS = 4  #: nodes of up to 8 positions have a row of counts and scores for each of their 256 states


@cache
def _table(levels: int) -> tuple[Ints, Ints]:
    """Counts and scores of all cells of a node, a row a state: bit ``i`` of its number is whether position ``i`` is free."""
    states = np.arange(1 << (1 << (levels - 1)))
    leaves = (states[:, None] >> np.arange(1 << (levels - 1))) & 1
    return _count(leaves, levels)


def _count(leaves: Ints, levels: int) -> tuple[Ints, Ints]:
    """Counts and scores of all cells, a row a node, from the free positions.

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


class _Cells:
    """Free GPUs counted in every buddy cell, with a score that orders cells of a level from best to worst fit.

    ``counts`` and ``scores`` have a row a node and a column a cell, as `_Grid` lays them out.
    """

    def __init__(self, grid: _Grid, open_gpus: Bools) -> None:
        self.grid = grid
        leaves = np.zeros((grid.nodes, grid.width), dtype=np.int64)
        leaves[grid.node, grid.index] = open_gpus
        self.counts, self.scores = self._counted(leaves)

    def copy(self) -> _Cells:
        twin = object.__new__(_Cells)
        twin.grid, twin.counts, twin.scores = self.grid, self.counts.copy(), self.scores.copy()
        return twin

    def masked(self, fitting: Bools) -> _Cells:
        return _Cells(self.grid, fitting & (self.counts[self.grid.node, self.grid.index] > 0))

    def per_node(self) -> Ints:
        return self.counts[:, -1]

    def total(self) -> int:
        return int(self.counts[:, -1].sum())

    def set(self, gpus: Ints, is_open: bool | Bools) -> None:
        if not len(gpus):
            return
        nodes = self.grid.node[gpus]
        self.counts[nodes, self.grid.index[gpus]] = is_open
        for node in set(nodes.tolist()) if len(nodes) > 1 else (int(nodes[0]),):
            row = self.counts[node]
            counts, scores = self._counted(row[None, : self.grid.width])
            row[:], self.scores[node] = counts[0], scores[0]

    def _counted(self, leaves: Ints) -> tuple[Ints, Ints]:
        levels = self.grid.levels
        if levels > _TABLE_LEVELS:
            return _count(leaves, levels)
        counts, scores = _table(levels)
        state = leaves @ _BITS[: self.grid.width]
        return counts[state], scores[state]

    def find(self, n: int, fitting: Bools | None, relaxed: bool) -> tuple[int, ...] | None:
        if n < 1:
            raise ValueError(f"a gang has at least 1 GPU, not {n}")
        if n > self.total():
            return None
        cells = self if fitting is None else self.masked(fitting)
        if n <= cells.per_node().max(initial=0) and (slots := cells._in_one_node(n, ())) is not None:
            return cells._rows(slots)
        least = self.grid.nodes_needed(n, fitting)
        for nodes in range(max(2, least), (self.grid.nodes if relaxed else least) + 1):
            if (slots := cells._over_nodes(n, nodes)) is not None:
                return cells._rows(slots)
        return None

    def _in_one_node(self, n: int, but: Iterable[int]) -> list[int] | None:
        """Positions for ``n`` in the best cell of any node except ``but``."""
        grid = self.grid
        for level in range((n - 1).bit_length(), grid.levels):
            columns = grid.cells[level]
            fits = self.counts[:, columns] >= n
            for node in but:
                fits[node] = False
            best = int(np.where(fits, self.scores[:, columns], _NOWHERE).argmin())
            if fits.flat[best]:
                node, cell = divmod(best, grid.width >> level)
                return self._within(node, level, cell, n)
        return None

    def _over_nodes(self, n: int, nodes: int) -> list[int] | None:
        """Positions on exactly ``nodes`` nodes: the emptiest ones whole, the rest of the gang where it fits best."""
        per_node = self.per_node()
        emptiest = np.argsort(-per_node, kind="stable")[: nodes - 1].tolist()
        rest = n - int(per_node[emptiest].sum())
        last = self._in_one_node(rest, emptiest) if rest > 0 else None
        if last is None:
            return None
        top = self.grid.levels - 1
        return [slot for node in emptiest for slot in self._within(node, top, 0, int(per_node[node]))] + last

    def _within(self, node: int, level: int, cell: int, n: int) -> list[int]:
        """``n`` free positions of a cell, leaving its halves as whole as they can be."""
        return self._split(self.counts[node].tolist(), node * self.grid.width, level, cell, n)

    def _split(self, counts: list[int], start: int, level: int, cell: int, n: int) -> list[int]:
        first = self.grid.cells[level].start
        if n == counts[first + cell]:
            return [start + i for i in range(cell << level, (cell + 1) << level) if counts[i]]
        below = self.grid.cells[level - 1].start
        fuller, emptier = sorted((2 * cell, 2 * cell + 1), key=lambda half: counts[below + half])
        if n <= counts[below + fuller]:
            return self._split(counts, start, level - 1, fuller, n)
        if n <= counts[below + emptier]:
            return self._split(counts, start, level - 1, emptier, n)
        whole = counts[below + emptier]
        return self._split(counts, start, level - 1, emptier, whole) + self._split(counts, start, level - 1, fuller, n - whole)

    def _rows(self, slots: list[int]) -> tuple[int, ...]:
        return tuple(sorted(self.grid.row[slots].tolist()))


class _Kept:
    """The cells of the last view: the next one of the same GPUs differs from it by what has started and ended since."""

    def __init__(self) -> None:
        self._open: Bools | None = None
        self._cells: _Cells | None = None

    def cells(self, gpus: Gpus, open_gpus: Bools) -> _Cells:
        """The caller's own copy."""
        if self._cells is None or self._open is None or self._cells.grid.gpus is not gpus:
            self._cells = _Cells(_Grid(gpus), open_gpus)
        elif len(changed := (open_gpus != self._open).nonzero()[0]):
            self._cells.set(changed, open_gpus[changed])
        self._open = open_gpus.copy()
        return self._cells.copy()


_kept = threading.local()  # pools tick on threads of their own


def _cells(gpus: Gpus, open_gpus: Bools) -> _Cells:
    if not hasattr(_kept, "last"):
        _kept.last = _Kept()
    cells: _Cells = _kept.last.cells(gpus, open_gpus)
    return cells
