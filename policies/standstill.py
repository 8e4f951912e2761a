"""Proof that nothing would come of asking a policy again, or what would."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import cast

from .cells import Free
from .contract import Floats
from .line import Line, Waiter

_ROUNDING = 1e-6  #: what differs by no more than this share may come out either way when it is worked out at another moment


class Standstill:
    """That nobody whom a plan leaves waiting can start, until some moment, for as long as nothing but ends of jobs makes GPUs free.

    ``free`` is what the plan leaves free, ``held`` the hold of the job on each GPU, once it is carried out (inf: nobody may have it; None:
    of all), and ``line`` gives those who wait, in the order of service. With time holds may only grow, and claims only shrink.
    The GPUs of a job of which no more is known count as free, as if anybody might displace it, so it does not matter when it sinks below
    others: they do not fit with these GPUs either.

    ``ordered``: those who wait stay in this order, so it is known too who gets what ends of jobs make free, unless somebody could displace
    others. ``blocking``: who cannot start holds back all behind it, and nobody displaces anybody.
    """

    def __init__(
        self,
        free: Free,
        held: Floats | None,
        line: Callable[[], Line],
        *,
        ordered: bool,
        blocking: bool,
    ) -> None:
        self._free, self._held, self._make_line = free, held, line
        self.ordered, self.blocking = ordered, blocking
        self._until = math.inf
        self._lasting = True  #: no moment at which claims and holds change, which would be another once somebody joins or leaves the line
        self._strongest: dict[int, tuple[int, float]] | None = None

    def ends_before(self, moment: float) -> None:
        """Holds and claims of those who were there change at this moment, those of who comes or starts later may at any."""
        self._until, self._lasting = moment, False

    def lasts(self, now: float) -> bool:
        return now < self._until

    @cached_property
    def _line(self) -> Line:
        return self._make_line()

    @cached_property
    def _levels(self) -> Floats:
        """What a claim has to exceed, a row a node and a column a slot."""
        return self._free.levels(self._held)

    @cached_property
    def _level(self) -> memoryview[float]:
        """The same by slot, for the few of a gang."""
        return cast("memoryview[float]", self._levels.reshape(-1).data)

    def frees(self, gpus: Iterable[int]) -> set[int]:
        """These GPUs are free too, from now on; the sizes of which somebody in line may be able to start."""
        slots, width, level = self._free.grid.slots, self._free.grid.width, self._level
        nodes = set()
        for gpu in gpus:
            slot = slots[gpu]
            level[slot] = -math.inf
            nodes.add(slot // width)
        sizes: set[int] = set()
        for node in nodes:
            ascending = sorted(level[node * width : (node + 1) * width])
            for n, (share, claim) in self._claims().items():
                if n not in sizes and ascending[share - 1] < claim and (share == n or self._fits(n, claim)):
                    sizes.add(n)
        return sizes

    def _fits(self, n: int, claim: float) -> bool:
        return self._free.grid.enough(n, (self._levels < claim).sum(axis=1), None)

    def _claims(self) -> dict[int, tuple[int, float]]:
        """Of the sizes in line: what a node must give to it at least, as it may have only so many nodes, and the strongest claim."""
        if self._strongest is None:
            grid = self._free.grid
            largest = grid.largest(None)
            self._strongest = {
                first.gpus: (max(first.gpus - (grid.nodes_needed(first.gpus, None) - 1) * largest, 1), _at_most(first.claim))
                for first in self._first()
            }
        return self._strongest

    def _first(self) -> list[Waiter]:
        """Who is the first to get what suits them: of each size one, where nobody is held back."""
        firsts = self._line.firsts()
        return [min(firsts)] if firsts and self.blocking else firsts

    def starts(self, free: Free, sizes: Collection[int], came: Collection[Waiter]) -> dict[int, tuple[int, ...]] | None:
        """GPUs of the jobs that start, in the order of service; None: the policy has to say it, and nothing is known any more.

        ``free``: what is free now. ``sizes``: of which somebody in line may be able to start. ``came``: those who are in line from now on.
        """
        given: dict[int, tuple[int, ...]] = {}
        started: list[Waiter] = []
        failed: set[int] = set()
        several = bool(sizes) or len(came) > 1
        if several:
            free = free.copy()
        for waiter in self._turns(sizes, came, failed):
            n = waiter.gpus
            if n in failed:  # a claim as strong at most: whoever is behind has to wait, too
                continue
            gpus = free.find(n, None, False)
            if gpus is not None:
                given[waiter.job] = gpus
                started.append(waiter)
                if several:
                    free.set(gpus, False)
                self._take(gpus, waiter.hold)
            elif self._fits(n, _at_most(waiter.claim)):
                return None
            elif self.blocking:
                break
            else:
                failed.add(n)
        return given if self._moves_up(started, came) else None

    def _turns(self, sizes: Collection[int], came: Collection[Waiter], failed: Collection[int]) -> Iterable[Waiter]:
        """Of those in line and those who came, in their order, all of whom it is not known that they have to wait."""
        if not self.blocking:
            return self._line.turns(sizes, came, failed) if sizes else sorted(came)
        head = self._first()
        if sizes or not head:
            return self._line.turns(self._line.sizes(), came, failed)
        return sorted(waiter for waiter in came if waiter < head[0])

    def _moves_up(self, started: Collection[Waiter], came: Collection[Waiter]) -> bool:
        """Who starts leaves the line, who came and does not joins it; False: that changes more than is known."""
        leave = [waiter for waiter in started if waiter not in came]
        stay = [waiter for waiter in came if waiter not in started]
        if not (leave or stay):
            return True
        if not self._lasting:
            return False
        for waiter in leave:
            self._line.leave(waiter)
        for waiter in stay:
            self._line.join(waiter)
        self._strongest = None
        return True

    def _take(self, gpus: Iterable[int], hold: float) -> None:
        if self._lasting:
            slots, level = self._free.grid.slots, self._level
            for gpu in gpus:
                level[slots[gpu]] = hold


def _at_most(claim: float) -> float:
    """A claim with what rounding may add; above that of free GPUs, which are anybody's."""
    return claim + _ROUNDING * (1.0 + abs(claim)) if math.isfinite(claim) else max(claim, -sys.float_info.max)
