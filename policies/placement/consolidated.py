"""Consolidated placement of gangs on buddy cells (002 ch. 5.3.3.3, after HiveD).

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

from ..contract import Bools, Floats, Ints, Phase, View, asked
from .cells import Free, Grid, free_gpus
from .reach import Reach


def grid_of(view: View) -> Grid:
    """The grid of a view's GPUs; the engine's, if it keeps count."""
    return Grid(view.gpus.node, view.gpus.index) if view.free is None else view.free.grid


class Placement:
    """The free GPUs of a view, and the choice among them for a gang of ``n``.

    Two sets are kept: GPUs that are free *now*, and those that will be *soon*: these and the GPUs of
    jobs that are stopping or that the plan displaces. A GPU that is not usable is in neither.

    ``memory`` is a job's value of `Jobs.asks`: bytes, or a need that also names nodes.
    """

    def __init__(self, view: View) -> None:
        gpus, jobs = view.gpus, view.jobs
        self.gpus = gpus
        self._needs, self._names = view.needs, view.nodes.id
        self.version = 0  #: changes with the free GPUs
        self._all_usable = np.count_nonzero(gpus.usable) == len(gpus)
        if view.free is not None:
            self._now = view.free.copy()
        else:
            now = gpus.usable.copy()
            now[jobs.alloc_gpus] = False
            self._now = free_gpus(Grid(gpus.node, gpus.index), now)
        # One set serves as both until they differ: in most ticks no job stops.
        self._soon = self._now
        phase = jobs.phase
        if len(phase) and phase[phase.argmax()] == Phase.STOPPING:  # the greatest
            soon = gpus.usable.copy()
            soon[jobs.alloc_gpus[(phase != Phase.STOPPING)[jobs.holder]]] = False
            self._soon = free_gpus(self._now.grid, soon)

    def copy(self) -> Placement:
        """An independent copy, for what-if questions."""
        twin = object.__new__(Placement)
        twin.gpus, twin.version, twin._all_usable = self.gpus, self.version, self._all_usable
        twin._needs, twin._names = self._needs, self._names
        twin._now = self._now.copy()
        twin._soon = twin._now if self._soon is self._now else self._soon.copy()
        return twin

    def settled(self) -> bool:
        """Whether no more GPUs will be free soon than now."""
        return self._soon is self._now

    def soon(self) -> Free:
        """The GPUs that are free when all stopping jobs have stopped."""
        return self._soon

    def free(self) -> int:
        """GPUs that are free now."""
        return self._now.total()

    def free_soon(self) -> int:
        """GPUs that are free now, or will be when all stopping jobs have stopped."""
        return self._soon.total()

    def find(self, n: int, *, memory: float = 0.0, relaxed: bool = False) -> tuple[int, ...] | None:
        """Rows of ``n`` GPUs that are free now, each with at least ``memory`` bytes, or None."""
        return self._now.find(n, self._fitting(memory), relaxed)

    def find_soon(self, n: int, *, memory: float = 0.0, relaxed: bool = False) -> tuple[int, ...] | None:
        """The same among the GPUs that will be free soon."""
        return self._soon.find(n, self._fitting(memory), relaxed)

    def find_any(self, n: int, *, memory: float = 0.0, relaxed: bool = False) -> tuple[int, ...] | None:
        """The same among the GPUs that are free now or, if these do not suffice, among those that will be free soon."""
        found = self.find(n, memory=memory, relaxed=relaxed)
        return found if found is not None or self._soon is self._now else self.find_soon(n, memory=memory, relaxed=relaxed)

    def free_soon_by_node(self, *, memory: float = 0.0) -> Ints:
        """The same on each node, of GPUs with at least ``memory`` bytes."""
        fitting = self._fitting(memory)
        return self._soon.per_node() if fitting is None else self._soon.masked(fitting).per_node()

    def large_enough(self, memory: float) -> Bools:
        """Whether each GPU has at least ``memory`` bytes, as far as is known."""
        fitting = self._fitting(memory)
        return np.ones(len(self.gpus), dtype=bool) if fitting is None else fitting

    def has_soon(self, gpus: Iterable[int]) -> bool:
        """Whether all of these will be free soon."""
        return self._soon.has(gpus)

    def reach(self, level: Floats, *, memory: float = 0.0) -> Reach:
        """The room that could be free soon if GPUs were given up in the order of ``level``, one per GPU, the least first; inf: never."""
        if not self._all_usable:
            level = np.where(self.gpus.usable, level, np.inf)
        return Reach(self._soon, level, self._fitting(memory))

    def capacity(self, *, memory: float = 0.0) -> int:
        """GPUs of the pool with at least ``memory`` bytes, held or not, usable or not: the size of the largest possible gang."""
        fitting = self._fitting(memory)
        return len(self.gpus) if fitting is None else int(np.count_nonzero(fitting))

    def largest_node(self, *, memory: float = 0.0) -> int:
        """The same for the node that has the most: the size of the largest gang on one node."""
        return self._now.grid.largest(self._fitting(memory))

    def could_fit(self, n: int, *, memory: float = 0.0) -> bool:
        """Whether a gang of ``n`` would find GPUs if all that are usable now were free."""
        fitting = self._fitting(memory)
        possible = self.gpus.usable if fitting is None else self.gpus.usable & fitting
        grid = self._now.grid
        return grid.enough(n, np.bincount(self.gpus.node[possible], minlength=grid.nodes), fitting)

    def usable(self, *, memory: float = 0.0) -> int:
        """GPUs of the pool with at least ``memory`` bytes that may be given now, held or not."""
        return int(np.count_nonzero(self.gpus.usable & self.large_enough(memory)))

    def nodes_needed(self, n: int, *, memory: float = 0.0) -> int:
        """Nodes that a gang of ``n`` takes in an empty pool: the most over which it may be spread."""
        return self._now.grid.nodes_needed(n, self._fitting(memory))

    def take(self, gpus: Iterable[int]) -> None:
        rows = tuple(gpus)
        self.version += 1
        self._now.set(rows, False)
        if self._soon is not self._now:
            self._soon.set(rows, False)

    def release(self, gpus: Iterable[int]) -> None:
        """Free now; those that are not usable stay closed."""
        rows = self._usable(gpus)
        self.version += 1
        self._now.set(rows, True)
        if self._soon is not self._now:
            self._soon.set(rows, True)

    def release_soon(self, gpus: Iterable[int]) -> None:
        """Free once their present holder, which the plan displaces, has stopped."""
        self.version += 1
        if self._soon is self._now:
            self._soon = self._now.copy()
        self._soon.set(self._usable(gpus), True)

    def _usable(self, gpus: Iterable[int]) -> tuple[int, ...]:
        usable = self.gpus.usable
        return tuple(gpus) if self._all_usable else tuple(gpu for gpu in gpus if usable[gpu])

    def asked(self, memory: float) -> tuple[int, list[str] | None]:
        """The meaning of ``memory`` in plain values: bytes, and the names of the nodes, None: all."""
        least, nodes = asked(memory, self._needs)
        return int(least), None if nodes is None else self._names[nodes].tolist()

    def _fitting(self, memory: float) -> Bools | None:
        """Large enough GPUs on the right nodes; None: all. A GPU or a job of unknown memory fits."""
        if memory == 0:
            return None
        least, nodes = asked(memory, self._needs)
        fitting = (self.gpus.memory >= least) | (self.gpus.memory <= 0)
        if nodes is not None:
            fitting &= nodes[self.gpus.node]
        return None if fitting.all() else fitting
