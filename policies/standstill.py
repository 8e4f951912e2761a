"""Proof that nothing would come of asking a policy again, or what would."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .cells import Free
from .contract import Floats, Ints

_ROUNDING = 1e-6  #: what differs by no more than this share may come out either way when it is worked out at another moment


class Waiter(NamedTuple):
    """A job that waits for ``gpus``. Waiters compare in the order of service."""

    key: float
    job: int
    gpus: int
    claim: float
    hold: float  #: once it runs

    @property
    def most(self) -> float:
        """Its claim, with what rounding may add."""
        return self.claim + _ROUNDING * (1.0 + abs(self.claim))


class Standstill:
    """That nobody whom a plan leaves waiting can start, until some moment, for as long as nothing but ends of jobs makes GPUs free.

    ``free`` is what the plan leaves free, ``held`` are GPUs with the holds of the jobs on them, once it is carried out, where any claim
    exceeds some hold, and ``line`` gives those who wait, in the order of service. With time holds may only grow, and claims only shrink.
    The GPUs of a job of which no more is known count as free, as if anybody might displace it, so it does not matter when it sinks below
    others: they do not fit with these GPUs either.

    ``ordered``: those who wait stay in this order, so it is known too who gets what ends of jobs make free, unless somebody could displace
    others. ``blocking``: who cannot start holds back all behind it.
    """

    def __init__(
        self,
        free: Free,
        held: Sequence[tuple[Ints | tuple[int, ...], Floats | float]],
        line: Callable[[], list[Waiter]],
        *,
        ordered: bool,
        blocking: bool,
    ) -> None:
        self._free, self._held, self._make_line = free, held, line
        self.ordered, self.blocking = ordered, blocking
        self._until = math.inf
        self._lasting = True  #: what is known of a job that starts or waits later is true for good
        self._strongest: dict[int, tuple[int, float]] | None = None

    def ends_before(self, moment: float) -> None:
        """Holds and claims of those who were there change at this moment, those of who comes or starts later may at any."""
        self._until, self._lasting = moment, False

    def lasts(self, now: float) -> bool:
        return now < self._until

    @cached_property
    def _line(self) -> list[Waiter]:
        return self._make_line()

    @cached_property
    def _levels(self) -> Floats:
        levels = self._free.levels()
        by_slot = levels.reshape(-1)
        for gpus, hold in self._held:
            slots = self._free.grid.slot[np.asarray(gpus)]
            by_slot[slots] = np.minimum(by_slot[slots], hold)
        return levels

    def frees(self, gpus: Iterable[int]) -> set[int]:
        """These GPUs are free too, from now on; the sizes of which somebody in line may be able to start."""
        grid, levels = self._free.grid, self._levels
        nodes = set()
        for gpu in gpus:
            node = int(grid.node[gpu])
            levels[node, grid.index[gpu]] = -math.inf
            nodes.add(node)
        sizes: set[int] = set()
        for node in nodes:
            level = sorted(levels[node].tolist())
            for n, (share, claim) in self._claims().items():
                if n not in sizes and level[share - 1] < claim and (share == n or self._fits(n, claim)):
                    sizes.add(n)
        return sizes

    def _fits(self, n: int, claim: float) -> bool:
        return self._free.grid.enough(n, np.count_nonzero(self._levels < claim, axis=1), None)

    def _claims(self) -> dict[int, tuple[int, float]]:
        """Of the sizes in line: what a node must give to it at least, as it may have only so many nodes, and the strongest claim."""
        if self._strongest is None:
            self._strongest = {}
            for waiter in self._line[:1] if self.blocking else self._line:
                self._count(waiter, self._strongest)
        return self._strongest

    def _count(self, waiter: Waiter, claims: dict[int, tuple[int, float]]) -> None:
        n, grid = waiter.gpus, self._free.grid
        if n not in claims:
            claims[n] = max(n - (grid.nodes_needed(n, None) - 1) * grid.largest(None), 1), waiter.most
        elif waiter.most > claims[n][1]:
            claims[n] = claims[n][0], waiter.most

    def starts(self, free: Free, sizes: Collection[int], came: Collection[Waiter]) -> dict[int, tuple[int, ...]] | None:
        """GPUs of the jobs that start, in the order of service; None: the policy has to say it, and nothing is known any more.

        ``free``: what is free now. ``sizes``: of which somebody in line may be able to start. ``came``: those who are in line from now on.
        """
        given: dict[int, tuple[int, ...]] = {}
        failed: set[int] = set()
        free = free.copy()
        for waiter in self._hopeful(sizes, came):
            n = waiter.gpus
            if n in failed:  # a claim as strong at most: whoever is behind has to wait, too
                continue
            gpus = free.find(n, None, False)
            if gpus is not None:
                given[waiter.job] = gpus
                free.set(gpus, False)
                self._takes(waiter, gpus)
            elif self._fits(n, waiter.most):
                return None
            elif self.blocking:
                break
            else:
                failed.add(n)
        if not self._lasting and any(waiter.job not in given for waiter in came):
            return None
        self._leave(given, came)
        return given

    def _hopeful(self, sizes: Collection[int], came: Collection[Waiter]) -> Sequence[Waiter]:
        """Those in line, now with ``came``, of whom it is not known that they have to wait."""
        line = self._line
        head = line[0] if line else None
        for waiter in came:
            insort(line, waiter)
        if self.blocking:
            return line if sizes or head is None else line[: bisect_left(line, head)]
        if not sizes:
            return sorted(came)
        newcomers = {waiter.job for waiter in came}
        return [waiter for waiter in line if waiter.gpus in sizes or waiter.job in newcomers]

    def _takes(self, waiter: Waiter, gpus: tuple[int, ...]) -> None:
        if self._lasting:
            self._levels.reshape(-1)[self._free.grid.slot[list(gpus)]] = waiter.hold

    def _leave(self, given: Collection[int], came: Iterable[Waiter]) -> None:
        """Who starts is in line no more."""
        if given:
            self._line = [waiter for waiter in self._line if waiter.job not in given]
        if given or self.blocking:
            self._strongest = None
        elif self._strongest is not None:
            for waiter in came:
                self._count(waiter, self._strongest)
