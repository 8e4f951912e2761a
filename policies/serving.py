"""Serve gangs in an order, with or without preemption: what FIFO, SRTF and priority have in common.

Running jobs stay where they are. Waiting jobs are looked at in order of service; one that fits on GPUs that
are free, or will be when what is stopping has stopped, gets them. One that does not may displace running jobs
whose claim is weaker: the weakest that suffice and no more, and only when that lets it start. A displaced
job takes its place in the order and may go on elsewhere. Every gang gets ``gpus_min`` GPUs; growing towards
``gpus_max`` is left to the elastic policies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .contract import Allocation, Floats, Ints, Phase, Plan, View
from .placement import Placement
from .reasons import Why, waiting


@dataclass(frozen=True, slots=True)
class Ranking:
    """How a policy ranks the jobs of a view, one row a job.

    A waiting job ``i`` may displace a running job ``j`` exactly when ``claim[i] > hold[j]``, and ``order``
    must place a job before every job that it may displace; so a job that was displaced comes after its
    displacer, and no plan goes round in circles.
    """

    order: Ints  #: all rows, first served first
    claim: Floats
    hold: Floats  #: never less than the claim of the same job
    blocking: bool = False  #: a job that does not fit holds back the jobs behind it with the same claim
    displaceable: str = ""  #: whom a waiting job may displace, in words


def serve(view: View, ranking: Ranking) -> Plan:
    tick = _Tick(view, ranking)
    blocked = math.nan  # the claim whose head waits; NaN equals no claim
    for row in tick.queue():
        claim = float(ranking.claim[row])
        if claim == blocked:
            tick.why[row] = Why.BEHIND
            continue
        known = tick.hopeless(row)
        if not known and tick.place(row):
            continue
        tick.why[row] = Why.RESOURCES
        if ranking.blocking:
            blocked = claim
        if not known and tick.exhausted(claim):
            break  # nobody from here on can be given anything: 10 000 waiting jobs need no look at each
    return tick.plan()


class _Tick:
    """One plan in the making."""

    def __init__(self, view: View, ranking: Ranking) -> None:
        jobs = view.jobs
        self.jobs, self.ranking = jobs, ranking
        self.placement = Placement(view)
        self.rank = np.empty(len(jobs), dtype=np.int64)
        self.rank[ranking.order] = np.arange(len(jobs))
        self.given: dict[int, tuple[int, ...]] = {
            row: tuple(jobs.allocation(row).tolist()) for row in np.flatnonzero(jobs.phase == Phase.ACTIVE).tolist()
        }
        self.why = np.full(len(jobs), -1, dtype=np.int64)
        self._refuse_impossible(view)
        self.pending = ranking.order[(jobs.phase[ranking.order] == Phase.PENDING) & (self.why[ranking.order] < 0)]
        self.displaced: list[tuple[int, int]] = []  # heap of (rank, row)
        self.failed: set[tuple[int, float]] = set()
        self.victims = _Victims(view, ranking)

    def _refuse_impossible(self, view: View) -> None:
        pending = np.flatnonzero(self.jobs.phase == Phase.PENDING)
        memories, memory = np.unique(self.jobs.gpu_memory[pending], return_inverse=True)
        capacity = np.array([self.placement.capacity(memory=float(least)) for least in memories], dtype=np.int64)
        impossible = self.jobs.gpus_min[pending] > capacity[memory]
        self.why[pending[impossible]] = Why.IMPOSSIBLE if len(view.gpus) else Why.NO_GPUS

    def queue(self) -> Iterator[int]:
        """Rows to serve: those that waited, and those displaced meanwhile, in order of service."""
        for row in self.pending.tolist():
            while self.displaced and self.displaced[0][0] < self.rank[row]:
                yield heapq.heappop(self.displaced)[1]
            yield row
        while self.displaced:
            yield heapq.heappop(self.displaced)[1]

    def exhausted(self, claim: float) -> bool:
        return not self.displaced and self.placement.free_soon() == 0 and not self.victims.weaker_than(claim)

    def hopeless(self, row: int) -> bool:
        """What is free or can be displaced only shrinks along the order, so a size that failed once fails for good."""
        return bool(self.failed) and self._size(row) in self.failed

    def place(self, row: int) -> bool:
        n, memory = self._size(row)
        gpus = self.placement.find(n, memory=memory) or self.placement.find_soon(n, memory=memory)
        if gpus is None and self._make_room(row, n, memory):
            gpus = self.placement.find_soon(n, memory=memory)
        if gpus is None:
            self.failed.add((n, memory))
            return False
        self.placement.take(gpus)
        self.given[row] = gpus
        return True

    def _make_room(self, row: int, n: int, memory: float) -> bool:
        chosen = self.victims.choose(self.placement, n, memory, float(self.ranking.claim[row]))
        for victim in chosen:
            self.placement.release_soon(self.given.pop(victim))
            heapq.heappush(self.displaced, (int(self.rank[victim]), victim))
        return bool(chosen)

    def _size(self, row: int) -> tuple[int, float]:
        return int(self.jobs.gpus_min[row]), float(self.jobs.gpu_memory[row])

    def plan(self) -> Plan:
        jobs, order = self.jobs, self.ranking.order
        placed = np.zeros(len(jobs), dtype=bool)
        placed[list(self.given)] = True
        queue = order[~placed[order] & (jobs.phase[order] != Phase.STOPPING)]
        self._explain_unserved(queue)
        served = sorted(self.given, key=self.rank.__getitem__)
        return Plan(
            allocations={int(jobs.id[row]): Allocation(self.given[row]) for row in served},
            waiting=waiting(jobs, queue, self.why[queue], self.placement, self.ranking.displaceable),
            order=jobs.id[queue],
        )

    def _explain_unserved(self, queue: Ints) -> None:
        """Give those that were not looked at the reason that a look would have found, so that reasons do not flap."""
        possible = queue[(self.why[queue] != Why.IMPOSSIBLE) & (self.why[queue] != Why.NO_GPUS)]
        claim = self.ranking.claim[possible]
        behind = np.zeros(len(possible), dtype=bool)
        if self.ranking.blocking:
            behind[1:] = claim[1:] == claim[:-1]
        unserved = self.why[possible] < 0
        self.why[possible[unserved]] = np.where(behind[unserved], Why.BEHIND, Why.RESOURCES)


class _Victims:
    """The running jobs that may be displaced, weakest hold first, most recently started first among equals."""

    def __init__(self, view: View, ranking: Ranking) -> None:
        jobs = view.jobs
        size = np.diff(jobs.alloc_start)
        holders = np.bincount(jobs.alloc_gpus, minlength=len(view.gpus))
        shares = np.zeros(len(jobs), dtype=bool)
        shares[np.repeat(np.arange(len(jobs)), size)[holders[jobs.alloc_gpus] > 1]] = True
        # Who shares a GPU frees nothing by leaving it.
        eligible = (jobs.phase == Phase.ACTIVE) & (size > 0) & ~shares
        if jobs.protected is not None:
            eligible &= ~jobs.protected
        rows = np.flatnonzero(eligible)
        self.rows = rows[np.lexsort((-jobs.id[rows], jobs.lease_time[rows], ranking.hold[rows]))]
        self.hold = ranking.hold[self.rows]
        self.left = np.ones(len(self.rows), dtype=bool)  # not displaced yet
        self.held = [jobs.allocation(row) for row in self.rows.tolist()]
        self.gpus = np.concatenate([np.zeros(0, dtype=np.int64), *self.held])
        self.owner = np.repeat(np.arange(len(self.rows)), size[self.rows])  # position in rows, ascending
        self.owner_of = np.full(len(view.gpus), -1, dtype=np.int64)
        self.owner_of[self.gpus] = self.owner

    def weaker_than(self, claim: float) -> bool:
        return bool(self.left[: np.searchsorted(self.hold, claim)].any())

    def choose(self, placement: Placement, n: int, memory: float, claim: float) -> list[int]:
        """Rows of the victims that let a gang of ``n`` start, none of whom could be spared; [] when nothing helps."""
        enough = self._shortest_prefix(placement, n, memory, int(np.searchsorted(self.hold, claim)))
        if enough is None:
            return []
        trial = placement.copy()
        trial.release_soon(self._gpus_of_first(enough))
        target = trial.find_soon(n, memory=memory)
        assert target is not None, "would_fit promised room that find_soon does not see"
        nearby = {owner for owner in self.owner_of[list(target)].tolist() if owner >= 0 and self.left[owner]}
        doomed = self._spare(placement, n, memory, sorted(nearby))
        self.left[doomed] = False
        return [int(self.rows[position]) for position in doomed]

    def _shortest_prefix(self, placement: Placement, n: int, memory: float, limit: int) -> int | None:
        """How many of the weakest must go, when they go in that order: by galloping, as one by one is slow (KAI-Scheduler #1410)."""

        def fits(count: int) -> bool:
            return placement.would_fit(n, self._gpus_of_first(count), memory=memory)

        weaker = np.flatnonzero(self.left[:limit])
        if not len(weaker):
            return None
        low = int(weaker[0])  # those before have gone already
        high = low + 1
        while not fits(min(high, limit)):
            if high >= limit:
                return None
            low, high = high, 2 * high
        high = min(high, limit)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def _gpus_of_first(self, count: int) -> Ints:
        upto = int(np.searchsorted(self.owner, count))
        return self.gpus[:upto][self.left[self.owner[:upto]]]

    def _spare(self, placement: Placement, n: int, memory: float, doomed: list[int]) -> list[int]:
        """Drop victims that are not needed, strongest first; what remains is minimal."""
        for position in reversed(doomed):
            fewer = [other for other in doomed if other != position]
            if fewer and placement.would_fit(n, np.concatenate([self.held[other] for other in fewer]), memory=memory):
                doomed = fewer
        return doomed
