"""Proof that nothing would come of asking a policy again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import cached_property

import numpy as np

from .cells import Free
from .contract import Floats, Ints

_ROUNDING = 1e-6  #: what differs by no more than this share may come out either way when it is worked out at another moment


class Newcomer(Enum):
    """What becomes of a job that comes while others wait."""

    START = auto()  #: it starts on what is free, if it fits, and leaves everything else as it is
    WAIT = auto()  #: it waits with the others
    ASK = auto()  #: the policy is to be asked


class Standstill:
    """That nobody whom a plan leaves waiting can start, until some moment, for as long as nothing but ends of jobs makes GPUs free.

    ``free`` is what the plan leaves free, ``held`` are GPUs with the holds of the jobs on them, once it is carried out, where any claim
    exceeds some hold, and ``wanted`` gives the GPUs and the claims of those who wait, the strongest of each size at least. With time
    holds may only grow, and claims only shrink. The GPUs of a newcomer count as free, as if anybody might displace it, so it does not
    matter when it sinks below others: they do not fit with these GPUs either.
    """

    def __init__(
        self,
        free: Free,
        held: Sequence[tuple[Ints | tuple[int, ...], Floats | float]],
        wanted: Callable[[], Iterable[tuple[int, float]]],
        *,
        newcomers: Newcomer,
    ) -> None:
        self._free, self._held, self._wanted = free, held, wanted
        self.newcomers = newcomers
        self._until = math.inf

    def ends_before(self, moment: float) -> None:
        """Holds and claims of those who were there change at this moment."""
        self._until = moment

    @cached_property
    def _levels(self) -> Floats:
        levels = self._free.levels()
        by_slot = levels.reshape(-1)
        for gpus, hold in self._held:
            slots = self._free.grid.slot[np.asarray(gpus)]
            by_slot[slots] = np.minimum(by_slot[slots], hold)
        return levels

    @cached_property
    def _claims(self) -> dict[int, float]:
        """The strongest of each size, with what rounding may add."""
        claims: dict[int, float] = {}
        for n, claim in self._wanted():
            claims[n] = max(claims.get(n, -np.inf), claim + _ROUNDING * (1.0 + abs(claim)))
        return claims

    @cached_property
    def _shares(self) -> list[tuple[int, int, float]]:
        """GPUs of each size, what a node must give to it at least, as it may have only so many nodes, and its strongest claim."""
        grid = self._free.grid
        largest = grid.largest(None)
        return [(n, max(n - (grid.nodes_needed(n, None) - 1) * largest, 1), claim) for n, claim in self._claims.items()]

    def outlives(self, now: float, freed: Sequence[int]) -> bool:
        """Whether it still holds now that these GPUs have become free too. They count as free from now on."""
        if now >= self._until:
            return False
        if not freed:
            return True
        grid, levels = self._free.grid, self._levels
        nodes = set()
        for gpu in freed:
            node = int(grid.node[gpu])
            levels[node, grid.index[gpu]] = -np.inf
            nodes.add(node)
        for node in nodes:
            level = sorted(levels[node].tolist())
            for n, share, claim in self._shares:
                if level[share - 1] < claim and (share == n or self._fits(n, claim)):
                    return False
        return True

    def _fits(self, n: int, claim: float) -> bool:
        return self._free.grid.enough(n, np.count_nonzero(self._levels < claim, axis=1), None)
