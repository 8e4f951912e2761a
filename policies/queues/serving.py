"""Serves gangs in an order, with or without preemption: the common part of all policies of rigid jobs.

Running jobs stay in place. Waiting jobs are tried in order of service; one that fits on GPUs that are free, or
will be when stopping jobs have stopped, gets them. Otherwise it may displace running jobs with a weaker claim:
the weakest that suffice and no more, and only if that lets it start. A displaced job takes its place in the
order and may continue elsewhere. Every gang gets ``gpus_min`` GPUs; growing towards ``gpus_max`` is left to the
elastic policies.

The cost of a decision is that of its changes: jobs of one size wait in one line, and a line whose head cannot start is left at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..contract import Allocation, Bools, Floats, Ints, Jobs, Phase, Plan, View, asked
from ..placement.consolidated import Placement
from ..placement.victims import Victims, displaceable, draining
from .later import Later
from .reasons import Why, waiting, why_unserved


@dataclass(frozen=True, slots=True)
class Ranking:
    """A policy's ranking of the jobs of a view, one row per job.

    A waiting job ``i`` may displace a running job ``j`` if and only if ``claim[i] > hold[j]``, and ``key``
    must place a job before every job that it may displace. So a displaced job comes after its displacer,
    and no plan goes round in circles.
    """

    key: Floats | None = None  #: least first, equals in the order of their submission; None: all are equal
    claim: Floats | None = None  #: None: no job displaces another
    hold: Floats | None = None  #: never less than the claim of the same job; None: the same as ``claim``
    blocking: bool = False  #: a job that does not fit holds back the jobs behind it with the same claim
    displaceable: str = ""  #: the jobs that a waiting job may displace, in words
    relaxed: Bools | None = None  #: jobs that may be spread over more nodes than they need; None: none
    weakest: bool = False  #: the weakest jobs of a node give way, wherever their GPUs are; else those on the GPUs that suit best

    def columns(self, jobs: int) -> tuple[Floats, Floats, Floats]:
        """Key, claim and hold of so many jobs, one each, with values in place of None; without claims no job gives way."""
        key = np.zeros(jobs) if self.key is None else self.key
        if self.claim is None:
            return key, np.zeros(jobs), np.full(jobs, np.inf)
        return key, self.claim, self.claim if self.hold is None else self.hold


def serve(view: View, ranking: Ranking | Callable[[Jobs], Ranking]) -> Plan:
    """The plan of a ranking, which names only changes. A function is called for the ranking only if that matters."""
    pending = (view.jobs.phase == Phase.PENDING).nonzero()[0]
    if not len(pending):
        return Plan({})
    placement = Placement(view)
    if len(pending) == 1 and (start := _alone(view.jobs, int(pending[0]), placement)) is not None:
        return start
    tick = _Tick(view, ranking(view.jobs) if callable(ranking) else ranking, pending, placement)
    tick.run()
    return tick.plan()


def _alone(jobs: Jobs, row: int, placement: Placement) -> Plan | None:
    """The start of the only waiting job, if it fits now: then the ranking does not matter."""
    gpus = placement.find(int(jobs.gpus_min[row]), memory=float(jobs.asks[row]))
    return None if gpus is None else Plan({int(jobs.id[row]): Allocation(gpus)})


class _Queue:
    """Jobs that may still start, in order of service."""

    def __init__(self, rows: Ints, gpus: Ints, memory: Floats, relaxed: Bools | None) -> None:
        self.rows, self.gpus, self.memory, self.relaxed = rows, gpus, memory, relaxed
        self.uniform = len(rows) == 0 or np.count_nonzero(memory == memory[0]) == len(rows)
        self.alive = np.ones(len(rows), dtype=bool)
        self.position = 0

    def head(self) -> int | None:
        """Row of the first."""
        if self.position < len(self.rows):
            self.position += int(self.alive[self.position :].argmax())
            if self.alive[self.position]:
                return int(self.rows[self.position])
        return None

    def advance(self) -> None:
        """The first has been served or is passed over."""
        self.position += 1

    def leave(self) -> None:
        """Drop all jobs of the first one's size, except those that may be spread, if the first may not."""
        other = self.gpus != self.gpus[self.position]
        if not self.uniform:
            other |= self.memory != self.memory[self.position]
        if self.relaxed is not None and not self.relaxed[self.position]:
            other |= self.relaxed
        self.alive &= other

    def leave_larger(self, gpus: int) -> None:
        self.alive &= self.gpus <= gpus


class _Tick:
    """One plan in the making."""

    def __init__(self, view: View, ranking: Ranking, pending: Ints, placement: Placement) -> None:
        jobs = view.jobs
        self.view, self.jobs, self.ranking, self.placement = view, jobs, ranking, placement
        self.key, self.claim, self.hold = ranking.columns(len(jobs))
        rows = pending[self._possible(pending)]
        if ranking.key is not None:
            rows = rows[self.key[rows].argsort(kind="stable")]
        relaxed = None if ranking.relaxed is None else ranking.relaxed[rows]
        self.queue = _Queue(rows, jobs.gpus_min[rows], jobs.asks[rows], relaxed)
        self.given: dict[int, tuple[int, ...]] = {}  #: GPUs of jobs that start or move, by row
        self.displaced: list[tuple[float, int]] = []  #: heap of (key, row)
        self.preempted: set[int] = set()  #: rows that lose their GPUs, whether or not they get others
        self.failed: set[tuple[int, float]] = set()  #: sizes (GPUs, memory) that find no room on as few nodes as they need

    def _possible(self, rows: Ints) -> Bools:
        """Those of these jobs that the pool could ever hold."""
        n, memory = self.jobs.gpus_min[rows], self.jobs.asks[rows]
        possible: Bools = n <= self.placement.capacity()
        for least in np.unique(memory[memory != 0]).tolist() if np.count_nonzero(memory) else ():
            possible &= (memory != least) | (n <= self.placement.capacity(memory=least))
        return possible

    @cached_property
    def victims(self) -> Victims:
        return displaceable(self.view, self.hold)

    @cached_property
    def at_hand(self) -> Bools:
        """Running jobs that are not displaced, and whose GPUs are not kept for a job."""
        active: Bools = self.jobs.phase == Phase.ACTIVE
        return active

    @cached_property
    def weakest(self) -> float:
        """The least hold of the jobs that ran at the beginning."""
        hold = self.victims.level if self.jobs.protected is None else self.hold[self.jobs.phase == Phase.ACTIVE]
        return float(hold[hold.argmin()]) if len(hold) else np.inf

    def _has_weaker(self, row: int) -> bool:
        """Whether the claim of ``row`` exceeds the hold of any of them."""
        return self.ranking.claim is not None and self.weakest < self.claim[row]

    def run(self) -> None:
        while True:
            row = self.queue.head()
            if self.displaced and (row is None or self.displaced[0] < (float(self.key[row]), row)):
                self._place(heapq.heappop(self.displaced)[1])
            elif row is None:
                return
            elif self._place(row):
                self.queue.advance()
            else:
                self._leave(row)

    def _leave(self, row: int) -> None:
        """Free and displaceable GPUs only shrink along the order, so a size that failed once fails for good."""
        if self.ranking.blocking and (nodes := asked(float(self.jobs.asks[row]), self.view.needs)[1]) is not None:
            # It may start only on some nodes: free GPUs there are kept for it, and jobs for the other nodes are not behind it.
            there = np.flatnonzero(nodes[self.view.gpus.node]).tolist()
            self.placement.take([gpu for gpu in there if self.placement.has_soon([gpu])])
            self.queue.advance()
            return
        if self.ranking.blocking:
            self.queue.alive &= self.claim[self.queue.rows] != self.claim[row]
            return
        self.queue.leave()
        if not self.displaced and not self._has_weaker(row):
            self.queue.leave_larger(self.placement.free_soon())

    def _place(self, row: int) -> bool:
        n, memory = int(self.jobs.gpus_min[row]), float(self.jobs.asks[row])
        relaxed = self.ranking.relaxed is not None and bool(self.ranking.relaxed[row])
        if not relaxed and (n, memory) in self.failed:
            return False
        gpus = self.placement.find(n, memory=memory, relaxed=relaxed) or self._find_later(row, n, memory, relaxed)
        if gpus is None:
            if not relaxed:
                self.failed.add((n, memory))
            self._keep(row, n, memory)
            return False
        self.placement.take(gpus)
        self.given[row] = gpus
        return True

    def _find_later(self, row: int, n: int, memory: float, relaxed: bool) -> tuple[int, ...] | None:
        """GPUs of jobs that are stopping, or have to."""
        weaker = self._has_weaker(row)
        within_reach = weaker and self.victims.least(self.placement, n, memory) < self.claim[row]
        gpus = None
        if not self.placement.settled() and (within_reach or relaxed or not weaker):
            gpus = self.placement.find_soon(n, memory=memory, relaxed=relaxed)
        if gpus is None and within_reach and self._make_room(row, n, memory):
            gpus = self.placement.find_soon(n, memory=memory)
        return gpus

    def _make_room(self, row: int, n: int, memory: float) -> bool:
        chosen = self.victims.choose(self.placement, n, memory, float(self.claim[row]), weakest=self.ranking.weakest)
        for victim in chosen:
            self.placement.release_soon(self.jobs.allocation(victim).tolist())
            self.preempted.add(victim)
            self.at_hand[victim] = False
            heapq.heappush(self.displaced, (float(self.key[victim]), victim))
        return bool(chosen)

    def _keep(self, row: int, n: int, memory: float) -> None:
        """Keep for ``row`` the GPUs on which it is to start once their holders may be stopped; a new job there would be protected anew."""
        if self.ranking.claim is None or self.jobs.protected is None or not np.count_nonzero(self.jobs.protected):
            return
        weaker = self.at_hand & (self.hold < self.claim[row])
        target = draining(self.view, weaker).target(self.placement, n, memory)
        if target is not None:
            self.placement.take(target)
            self.victims.keep(target)
            kept = np.zeros(len(self.view.gpus), dtype=bool)
            kept[list(target)] = True
            self.at_hand[self.jobs.holder[kept[self.jobs.alloc_gpus]]] = False

    def plan(self) -> Plan:
        jobs, key = self.jobs, self.key
        served = sorted(self.given, key=lambda row: (key[row], row))
        return Plan(
            allocations={int(jobs.id[row]): Allocation(self.given[row]) for row in served},
            preempt=[int(jobs.id[row]) for row in sorted(self.preempted - self.given.keys())],
            waiting=Later(lambda: waiting(jobs, self.unserved, self._why(), self.placement, self.ranking.displaceable)),
            order=Later(self._order),
        )

    def _order(self) -> list[int]:
        return [int(job) for job in self.jobs.id[self.unserved]]

    @cached_property
    def unserved(self) -> Ints:
        """All waiting jobs, and displaced ones without new GPUs, in order of service."""
        waits = self.jobs.phase == Phase.PENDING
        waits[list(self.preempted)] = True
        waits[list(self.given)] = False
        rows: Ints = waits.nonzero()[0]
        order: Ints = rows[self.key[rows].argsort(kind="stable")]
        return order

    def _why(self) -> Ints:
        never = Why.IMPOSSIBLE if len(self.view.gpus) else Why.NO_GPUS
        # A displaced job may need more memory than its first GPUs have.
        impossible = self.unserved[~self._possible(self.unserved)]
        return why_unserved(self.unserved, impossible, never, self.claim, self.ranking.blocking)
