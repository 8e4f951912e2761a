"""The room for a gang if the holders of GPUs left in the order of a level, the least first."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from ..contract import Bools, Floats
from .cells import Free


class Reach:
    """The levels of all GPUs, sorted node by node, so that each further question is a quick look-up.

    ``level`` is one per GPU, inf: out of reach; ``free`` GPUs have level -inf, and GPUs that are not ``fitting`` (one per GPU; None: all
    fit) are out of reach, too.
    """

    def __init__(self, free: Free, level: Floats, fitting: Bools | None) -> None:
        grid, levels = free.grid, free.levels(level)
        if fitting is not None:
            levels.reshape(-1)[grid.slot[~fitting]] = np.inf
        levels.sort(axis=1)
        self._grid, self._fitting, self._levels = grid, fitting, levels
        self._one_node = grid.largest(fitting)
        self._least: dict[int, float] = {}

    def least(self, n: int) -> float:
        """The least level such that `Placement.find_soon` would find ``n`` GPUs if all up to it left; inf: there is none."""
        if n not in self._least:
            self._least[n] = self._in_one_node(n) if n <= self._one_node else self._over_nodes(n)
        return self._least[n]

    def _in_one_node(self, n: int) -> float:
        column = self._levels[:, n - 1]
        return float(column[column.argmin()])

    def _over_nodes(self, n: int) -> float:
        levels = [*np.sort(self._levels[self._levels < np.inf]).tolist(), np.inf]
        return float(levels[bisect_left(levels[:-1], True, key=lambda level: self._enough(n, level))])

    def _enough(self, n: int, level: float) -> bool:
        return self._grid.enough(n, (self._levels <= level).sum(axis=1), self._fitting)
