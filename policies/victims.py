"""Who must go so that a gang can start: the fewest, weakest first."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from .contract import Bools, Floats, Ints, Phase, View
from .placement import Placement
from .reach import Reach


def occupants(view: View) -> Bools:
    """Running jobs, one row a job, that hold their GPUs alone: who shares a GPU frees nothing by leaving it."""
    jobs = view.jobs
    alone: Bools = (jobs.phase == Phase.ACTIVE) & (jobs.held > 0)
    holders = np.bincount(jobs.alloc_gpus, minlength=1)
    if holders[holders.argmax()] > 1:  # `max` costs several times as much
        alone[jobs.holder[holders[jobs.alloc_gpus] > 1]] = False
    return alone


def movable(view: View) -> Bools:
    """Of these, one row a job, those that may be stopped now."""
    jobs = view.jobs
    return occupants(view) if jobs.protected is None else occupants(view) & ~jobs.protected


def displaceable(view: View, movable: Bools, hold: Floats) -> Victims:
    """Those ``movable``, weakest hold first, most recently started first among equals."""
    jobs = view.jobs
    rows = movable.nonzero()[0]
    return Victims(view, rows[np.lexsort((-jobs.id[rows], jobs.lease_time[rows], hold[rows]))], hold)


def draining(view: View, weaker: Bools) -> Victims:
    """Those of ``weaker`` jobs that may be stopped now or later, the soonest first.

    In this order what a gang waits for can only come sooner from tick to tick, however many jobs start elsewhere.
    """
    jobs = view.jobs
    rows = (occupants(view) & weaker).nonzero()[0]
    until = np.full(len(jobs), np.inf) if jobs.protected_until is None else jobs.protected_until
    soonest = np.lexsort((jobs.id[rows], -jobs.lease_time[rows], np.maximum(until[rows], view.now)))
    return Victims(view, rows[soonest])


class Victims:
    """Running jobs in the order in which they are to go."""

    def __init__(self, view: View, rows: Ints, hold: Floats | None = None) -> None:
        self.rows = rows
        self.hold = np.full(len(rows), -np.inf) if hold is None else hold[rows]  # ascending
        self.left = np.ones(len(rows), dtype=bool)  # neither displaced nor kept for somebody yet
        self.jobs = view.jobs
        starts = view.jobs.alloc_start
        counts = view.jobs.held[rows]
        self.owner = np.arange(len(rows)).repeat(counts)  # position in rows, ascending
        before = counts.cumsum() - counts
        self.gpus = view.jobs.alloc_gpus[(starts[rows] - before).repeat(counts) + np.arange(len(self.owner))]
        self.owner_of = np.full(len(view.gpus), -1, dtype=np.int64)
        self.owner_of[self.gpus] = self.owner
        self._reaches: dict[float, tuple[int, Reach]] = {}  #: by memory, with the placement's version

    def choose(self, placement: Placement, n: int, memory: float, claim: float) -> list[int]:
        """Rows of the victims that let a gang of ``n`` start, none of whom could be spared; [] when nothing helps."""
        target = self.target(placement, n, memory, claim)
        if target is None:
            return []
        doomed = self._spare(placement, n, memory, self._owners(target))
        self._goes(doomed)
        return [int(self.rows[position]) for position in doomed]

    def target(self, placement: Placement, n: int, memory: float, claim: float = math.inf) -> tuple[int, ...] | None:
        """The GPUs that a gang of ``n`` would get if the first that suffice went, or None when all do not."""
        enough = self._shortest_prefix(placement, n, memory, int(self.hold.searchsorted(claim)))
        if enough is None:
            return None
        trial = placement.copy()
        trial.release_soon(self._gpus_of_first(enough))
        target = trial.find_soon(n, memory=memory)
        assert target is not None, "Reach promised room that find_soon does not see"
        return target

    def keep(self, target: tuple[int, ...]) -> list[int]:
        """Leave the holders of ``target`` to the job that waits for it; their rows."""
        kept = self._owners(target)
        self._goes(kept)
        return [int(self.rows[position]) for position in kept]

    def _goes(self, positions: list[int]) -> None:
        self.left[positions] = False
        self._reaches.clear()

    def _owners(self, target: tuple[int, ...]) -> list[int]:
        return sorted({owner for owner in self.owner_of[list(target)].tolist() if owner >= 0 and self.left[owner]})

    def _shortest_prefix(self, placement: Placement, n: int, memory: float, limit: int) -> int | None:
        """How many of the weakest must go, when they go in that order."""
        reach = self._reach(placement, memory)
        if not limit or not reach.fits(n, limit):
            return None
        return bisect_left(range(limit), True, key=lambda last: reach.fits(n, last + 1)) + 1

    def _reach(self, placement: Placement, memory: float) -> Reach:
        """By positions of who is left; the same until somebody goes or GPUs are given."""
        version, reach = self._reaches.get(memory, (None, None))
        if reach is None or version != placement.version:
            left = self.left[self.owner]
            reach = placement.reach(self.gpus[left], self.owner[left].astype(np.float64), memory=memory)
            self._reaches[memory] = placement.version, reach
        return reach

    def _gpus_of_first(self, count: int) -> Ints:
        upto = int(self.owner.searchsorted(count))
        gpus: Ints = self.gpus[:upto][self.left[self.owner[:upto]]]
        return gpus

    def _spare(self, placement: Placement, n: int, memory: float, doomed: list[int]) -> list[int]:
        """Drop victims that are not needed, strongest first; what remains is minimal."""
        for position in reversed(doomed):
            fewer = [other for other in doomed if other != position]
            if fewer and self._suffice(fewer, placement, n, memory):
                doomed = fewer
        return doomed

    def _suffice(self, positions: list[int], placement: Placement, n: int, memory: float) -> bool:
        gpus = np.concatenate([self.jobs.allocation(int(self.rows[position])) for position in positions])
        return placement.would_fit(n, gpus, memory=memory)
