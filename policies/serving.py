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
from .reasons import Why, explain_unserved, waiting
from .victims import displaceable, draining


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
        self.view, self.jobs, self.ranking = view, jobs, ranking
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
        self.victims = displaceable(view, ranking.hold)
        self.at_hand = jobs.phase == Phase.ACTIVE  # neither displaced nor kept for somebody yet

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
            self._keep(row, n, memory)
            return False
        self.placement.take(gpus)
        self.given[row] = gpus
        return True

    def _make_room(self, row: int, n: int, memory: float) -> bool:
        chosen = self.victims.choose(self.placement, n, memory, float(self.ranking.claim[row]))
        for victim in chosen:
            self.placement.release_soon(self.given.pop(victim))
            self.at_hand[victim] = False
            heapq.heappush(self.displaced, (int(self.rank[victim]), victim))
        return bool(chosen)

    def _keep(self, row: int, n: int, memory: float) -> None:
        """Keep for ``row`` what it is to start on once its holders may be stopped; whoever began there would be protected anew."""
        if self.jobs.protected is None or not self.jobs.protected.any():
            return
        weaker = self.at_hand & (self.ranking.hold < self.ranking.claim[row])
        target = draining(self.view, weaker).target(self.placement, n, memory)
        if target is not None:
            self.placement.take(target)
            self.victims.keep(target)
            self.at_hand[[held for held, gpus in self.given.items() if not set(target).isdisjoint(gpus)]] = False

    def _size(self, row: int) -> tuple[int, float]:
        return int(self.jobs.gpus_min[row]), float(self.jobs.gpu_memory[row])

    def plan(self) -> Plan:
        jobs, order = self.jobs, self.ranking.order
        placed = np.zeros(len(jobs), dtype=bool)
        placed[list(self.given)] = True
        queue = order[~placed[order] & (jobs.phase[order] != Phase.STOPPING)]
        explain_unserved(self.why, queue, self.ranking.claim, self.ranking.blocking)
        served = sorted(self.given, key=self.rank.__getitem__)
        return Plan(
            allocations={int(jobs.id[row]): Allocation(self.given[row]) for row in served},
            waiting=waiting(jobs, queue, self.why[queue], self.placement, self.ranking.displaceable),
            order=jobs.id[queue],
        )
