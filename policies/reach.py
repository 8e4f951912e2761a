"""What a gang could have if the holders of GPUs went in the order of some level, the least first."""

from __future__ import annotations

import numpy as np

from .cells import Free
from .contract import Bools, Floats, Ints


class Reach:
    """The levels of all GPUs, sorted node by node, so that each further question is a look or two.

    ``gpus`` have the levels ``level``, those that are ``free`` have none to overcome, all others are out of reach, as are those that are
    not ``fitting`` (one a GPU; None: all are).
    """

    def __init__(self, free: Free, gpus: Ints, level: Floats, fitting: Bools | None) -> None:
        grid, levels = free.grid, free.levels()
        slots = gpus if grid.full else grid.slot[gpus]
        by_slot = levels.reshape(-1)
        by_slot[slots] = np.minimum(by_slot[slots], level)
        if fitting is not None:
            by_slot[grid.slot[~fitting]] = np.inf
        levels.sort(axis=1)
        self._grid, self._fitting, self._levels = grid, fitting, levels
        self._one_node = grid.largest(fitting)
        self._least: dict[int, float] = {}

    def fits(self, n: int, below: float) -> bool:
        """Whether `Placement.find_soon` would find ``n`` GPUs if all whose level is less than ``below`` were given up."""
        if n <= self._one_node:
            return self._in_one_node(n) < below
        return self._grid.enough(n, np.count_nonzero(self._levels < below, axis=1), self._fitting)

    def _in_one_node(self, n: int) -> float:
        """The least level that is to go for ``n`` GPUs of one node."""
        if n not in self._least:
            column = self._levels[:, n - 1]
            self._least[n] = float(column[column.argmin()])
        return self._least[n]
