"""Victims for the start of a gang: the fewest, weakest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..contract import Bools, Floats, Ints, Phase, View
from .consolidated import Placement
from .reach import Reach


def occupants(view: View) -> Bools:
    """Whether each job runs and holds its GPUs alone: one that shares a GPU frees none by leaving."""
    jobs = view.jobs
    alone: Bools = (jobs.phase == Phase.ACTIVE) & (jobs.held > 0)
    holders = np.bincount(jobs.alloc_gpus, minlength=1)
    if holders[holders.argmax()] > 1:  # `max` costs several times as much
        alone[jobs.holder[holders[jobs.alloc_gpus] > 1]] = False
    return alone


def movable(view: View) -> Bools:
    """Whether each job is one of these and may be stopped now."""
    jobs = view.jobs
    return occupants(view) if jobs.protected is None else occupants(view) & ~jobs.protected


def displaceable(view: View, hold: Floats) -> Victims:
    """The jobs that may be stopped now, weakest hold first."""
    return Victims(view, np.where(movable(view), hold, np.inf))


def draining(view: View, weaker: Bools) -> Victims:
    """The ``weaker`` jobs that may be stopped now or later, the soonest first.

    In this order the time for which a gang waits can only shrink from tick to tick, however many jobs start elsewhere.
    """
    jobs = view.jobs
    rows = (occupants(view) & weaker).nonzero()[0]
    until = np.full(len(jobs), np.inf) if jobs.protected_until is None else jobs.protected_until
    soonest = np.lexsort((jobs.id[rows], -jobs.lease_time[rows], np.maximum(until[rows], view.now)))
    return Victims.in_turn(view, rows[soonest])


class Victims:
    """Running jobs to be stopped in the order of their ``level``, one per job, the most recently started first among equals.

    inf: it stays, or has been displaced, or its GPUs are kept for a job. None of the others shares a GPU.
    """

    def __init__(self, view: View, level: Floats) -> None:
        self.jobs, self._pool, self._node = view.jobs, len(view.gpus), view.gpus.node
        self.level = level
        self.level_of_gpus = self._by_gpu(level)
        self._reaches: dict[float, tuple[int, Reach]] = {}  #: by memory, with the placement's version

    @classmethod
    def in_turn(cls, view: View, rows: Sequence[int] | Ints) -> Victims:
        """These rows, one after the other."""
        level = np.full(len(view.jobs), np.inf)
        level[rows] = np.arange(len(rows))
        return cls(view, level)

    def _by_gpu(self, level: Floats) -> Floats:
        """Levels of jobs for their GPUs; inf for all other GPUs."""
        levels = np.full(self._pool, np.inf)
        levels[self.jobs.alloc_gpus] = level.repeat(self.jobs.held)
        return levels

    @cached_property
    def _owner_of(self) -> Ints:
        """Row of the job on each GPU; -1: there is none."""
        owner = np.full(self._pool, -1, dtype=np.int64)
        owner[self.jobs.alloc_gpus] = self.jobs.holder
        return owner

    def choose(self, placement: Placement, n: int, memory: float, claim: float, *, weakest: bool = False) -> list[int]:
        """Rows of a minimal set of victims that let a gang of ``n`` start; [] if none does.

        ``claim``: only lower levels are victims. ``weakest``: the weakest jobs of a node, wherever their GPUs are; else those on the
        GPUs that suit the gang best.
        """
        last = self.least(placement, n, memory)
        if not last < claim:
            return []
        doomed = (self.level <= last).nonzero()[0].tolist()
        if len(doomed) > 1:
            target = self._target(placement, n, memory, last)
            if weakest:
                target = tuple(np.isin(self._node, self._node[list(target)]).nonzero()[0].tolist())
            doomed = self._spare(placement, n, memory, self._in_order([row for row in self._owners(target) if self.level[row] <= last]))
        self._goes(doomed)
        return doomed

    def least(self, placement: Placement, n: int, memory: float) -> float:
        """The level up to which all have to leave for a start of a gang of ``n``; -inf: none has to, inf: not even all suffice."""
        version, reach = self._reaches.get(memory, (None, None))
        if reach is None or version != placement.version:
            reach = placement.reach(self.level_of_gpus, memory=memory)
            self._reaches[memory] = placement.version, reach
        return reach.least(n)

    def target(self, placement: Placement, n: int, memory: float) -> tuple[int, ...] | None:
        """The GPUs that a gang of ``n`` would get if the first sufficient victims left; None: not even all suffice."""
        last = self.least(placement, n, memory)
        return None if last == math.inf else self._target(placement, n, memory, last)

    def _target(self, placement: Placement, n: int, memory: float, last: float) -> tuple[int, ...]:
        """The same if all below level ``last`` have to leave, and some of the equals at that level."""
        goes = self.level < last
        equals = self._in_order((self.level == last).nonzero()[0].tolist())
        if len(equals) > 1:
            equals = equals[: self._fewest(placement, n, memory, goes, equals)]
        goes[equals] = True
        trial = placement.copy()
        trial.release_soon(self.jobs.alloc_gpus[goes.repeat(self.jobs.held)].tolist())
        target = trial.find_soon(n, memory=memory)
        assert target is not None, "Reach promised room that find_soon does not see"
        return target

    def keep(self, target: tuple[int, ...]) -> None:
        """Leave the holders of ``target`` to the job that waits for it."""
        self._goes(self._owners(target))

    def _fewest(self, placement: Placement, n: int, memory: float, goes: Bools, equals: list[int]) -> int:
        """The number of ``equals``, in this order, that have to leave in addition to all before them."""
        level = np.where(goes, -np.inf, np.inf)
        level[equals] = np.arange(len(equals))
        return int(placement.reach(self._by_gpu(level), memory=memory).least(n)) + 1

    def _owners(self, target: tuple[int, ...]) -> list[int]:
        return list({owner for owner in self._owner_of[list(target)].tolist() if owner >= 0 and self.level[owner] < np.inf})

    def _in_order(self, rows: list[int]) -> list[int]:
        if len(rows) < 2:
            return rows
        jobs = self.jobs
        return sorted(rows, key=lambda row: (self.level[row], jobs.lease_time[row], -jobs.id[row]))

    def _goes(self, rows: list[int]) -> None:
        self.level[rows] = np.inf
        for row in rows:
            self.level_of_gpus[self.jobs.allocation(row)] = np.inf
        self._reaches.clear()

    def _spare(self, placement: Placement, n: int, memory: float, doomed: list[int]) -> list[int]:
        """Drop victims that are not needed, strongest first; the remaining set is minimal."""
        held = self.jobs.held
        more = placement.free_soon() + int(held[doomed].sum()) - n  # GPUs at most that are not needed
        for row in reversed(doomed):
            fewer = [other for other in doomed if other != row]
            if fewer and held[row] <= more and self._suffice(fewer, placement, n, memory):
                doomed = fewer
                more -= int(held[row])
        return doomed

    def _suffice(self, rows: list[int], placement: Placement, n: int, memory: float) -> bool:
        level = np.full(len(self.jobs), np.inf)
        level[rows] = 0.0
        return placement.reach(self._by_gpu(level), memory=memory).least(n) < math.inf
