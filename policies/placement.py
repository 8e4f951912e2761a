"""Where a gang goes: consolidated placement on buddy cells (002 ch. 5.3.3.3, after HiveD).

The GPUs of a node are the leaves of a binary tree; a cell of level ``l`` is an aligned run of ``2**l``
positions, so cells of level 0 to 3 hold 1, 2, 4 and 8 GPUs. Nodes with another number of GPUs (3, 6, …)
have cells that are not full. A job goes into the smallest cell that holds it, and of those into the one
whose surroundings are fullest, so that large cells stay whole for large jobs. A job larger than a node
gets as few nodes as an empty pool would need, whole ones first. A job is never spread over more nodes
than that unless the caller relaxes it.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        holders = np.repeat(np.arange(len(jobs)), np.diff(jobs.alloc_start))
        stopping = jobs.phase[holders] == Phase.STOPPING
        now = gpus.usable.copy()
        now[jobs.alloc_gpus] = False
        soon = gpus.usable.copy()
        soon[jobs.alloc_gpus[~stopping]] = False

        self.gpus = gpus
        self._now = _Cells(_Grid(gpus), now)
        # One set serves as both until they differ: most ticks have nothing that stops.
        self._soon = self._now if np.array_equal(now, soon) else _Cells(self._now.grid, soon)

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
    """The fixed part: GPUs laid out by node and position, each node padded to a power of two positions."""

    def __init__(self, gpus: Gpus) -> None:
        self.node = gpus.node
        self.nodes = int(gpus.node.max(initial=-1)) + 1
        self.levels = int(gpus.index.max(initial=0)).bit_length() + 1
        self.width = 1 << (self.levels - 1)
        self.slot = gpus.node * self.width + gpus.index
        self.row = np.full(self.nodes * self.width, -1, dtype=np.int64)
        self.row[self.slot] = np.arange(len(gpus))

    def nodes_needed(self, n: int, fitting: Bools | None) -> int:
        node = self.node if fitting is None else self.node[fitting]
        largest_first = -np.sort(-np.bincount(node, minlength=self.nodes))
        return int(np.searchsorted(np.cumsum(largest_first), n)) + 1

    def enough(self, n: int, per_node: Ints, fitting: Bools | None) -> bool:
        if n <= per_node.max(initial=0):
            return True
        if n > per_node.sum():
            return False
        needed = self.nodes_needed(n, fitting)
        return bool(np.sort(per_node)[-needed:].sum() >= n)


class _Cells:
    """Free GPUs counted in every buddy cell, with a score that orders cells of a level from best to worst fit.

    ``counts[l]`` and ``scores[l]`` have a row a node and a column a cell of level ``l``. A score packs the
    free counts of the cell and of all cells around it, innermost first, so the least score is the
    tightest fit: the cell itself first, then its parent, and so on up to the node.
    """

    def __init__(self, grid: _Grid, open_gpus: Bools) -> None:
        self.grid = grid
        self.counts = [np.zeros((grid.nodes, grid.width >> level), dtype=np.int64) for level in range(grid.levels)]
        self.scores = [np.zeros_like(counts) for counts in self.counts]
        self.counts[0].reshape(-1)[grid.slot] = open_gpus
        self._update(slice(None))

    def copy(self) -> _Cells:
        twin = object.__new__(_Cells)
        twin.grid = self.grid
        twin.counts = [counts.copy() for counts in self.counts]
        twin.scores = [scores.copy() for scores in self.scores]
        return twin

    def masked(self, fitting: Bools) -> _Cells:
        return _Cells(self.grid, fitting & (self.counts[0].reshape(-1)[self.grid.slot] > 0))

    def per_node(self) -> Ints:
        return self.counts[-1][:, 0]

    def total(self) -> int:
        return int(self.counts[-1].sum())

    def set(self, gpus: Ints, is_open: bool) -> None:
        self.counts[0].reshape(-1)[self.grid.slot[gpus]] = is_open
        nodes = set(self.grid.node[gpus].tolist())
        self._update(nodes.pop() if len(nodes) == 1 else sorted(nodes))

    def _update(self, nodes: int | list[int] | slice) -> None:
        """Count and score the cells of ``nodes`` again."""
        counts = self.counts[0][nodes]
        for level in range(1, self.grid.levels):
            counts = counts[..., 0::2] + counts[..., 1::2]
            self.counts[level][nodes] = counts
        score, bits = counts, self.grid.levels
        self.scores[-1][nodes] = score
        for level in range(self.grid.levels - 2, -1, -1):
            # A cell of level l counts at most 2**l, so l + 1 bits; nodes of up to 512 positions pack exactly.
            score = (self.counts[level][nodes] << bits) + score.repeat(2, axis=-1)
            self.scores[level][nodes] = score
            bits += level + 1

    def find(self, n: int, fitting: Bools | None, relaxed: bool) -> tuple[int, ...] | None:
        if n < 1:
            raise ValueError(f"a gang has at least 1 GPU, not {n}")
        if n > self.total():
            return None
        cells = self if fitting is None else self.masked(fitting)
        if n <= self.per_node().max(initial=0) and (slots := cells._in_one_node(n, ())) is not None:
            return cells._rows(slots)
        least = self.grid.nodes_needed(n, fitting)
        for nodes in range(max(2, least), (self.grid.nodes if relaxed else least) + 1):
            if (slots := cells._over_nodes(n, nodes)) is not None:
                return cells._rows(slots)
        return None

    def _in_one_node(self, n: int, but: Iterable[int]) -> list[int] | None:
        """Positions for ``n`` in the best cell of any node except ``but``."""
        for level in range((n - 1).bit_length(), self.grid.levels):
            fits = self.counts[level] >= n
            for node in but:
                fits[node] = False
            best = int(np.where(fits, self.scores[level], _NOWHERE).argmin())
            if fits.flat[best]:
                return self._within(level, best, n)
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
        return [slot for node in emptiest for slot in self._within(top, node, int(per_node[node]))] + last

    def _within(self, level: int, cell: int, n: int) -> list[int]:
        """``n`` free positions of a cell, leaving its halves as whole as they can be."""
        count = self.counts[level].reshape(-1)
        if n == count[cell]:
            first = cell << level
            return [first + int(i) for i in np.flatnonzero(self.counts[0].reshape(-1)[first : first + (1 << level)])]
        below = self.counts[level - 1].reshape(-1)
        fuller, emptier = sorted((2 * cell, 2 * cell + 1), key=lambda half: int(below[half]))
        if n <= below[fuller]:
            return self._within(level - 1, fuller, n)
        if n <= below[emptier]:
            return self._within(level - 1, emptier, n)
        whole = int(below[emptier])
        return self._within(level - 1, emptier, whole) + self._within(level - 1, fuller, n - whole)

    def _rows(self, slots: list[int]) -> tuple[int, ...]:
        return tuple(sorted(self.grid.row[slots].tolist()))
