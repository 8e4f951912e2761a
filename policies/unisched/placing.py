"""From a cycle's choice to a Plan: which jobs stay, give way, or start where, and why the others wait."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from ..arrays import Bools, Floats, Ints, among
from ..contract import Allocation, Phase, Plan, Reason, View, Waiting
from ..placement.consolidated import Placement
from ..queues.later import Later
from ..queues.laxity import next_deadline, ranks
from ..queues.reasons import lacking
from .cycle import Cycle
from .modelling import Standing
from .roles import AT_ONCE, Role, Roles, best_effort_reward, profiling_reward
from .room import movers, shares
from .settings import STATIC, UniSchedConfig

STARTING_REASON = Reason("starting", "is chosen to run; starts when enough GPUs are free together")
PLANNED = Reason("planned", "is planned for a later lease: its deadline can still be met, and until then others gain more by the GPUs")
NEXT_CYCLE = Reason("next-cycle", "waits for the next cycle, in which leases are given anew; until then no GPUs are left over")
CROWDED = Reason("crowded", "its deadline cannot be met beside those that earn more; runs as soon as GPUs are left over")
LATE_REASON = Reason("late", "can no longer end by its deadline; it counts for no more than a best-effort job")
OUTWEIGHED = Reason("outweighed", "could meet its deadline, but for that others would wait longer than it is worth; runs after them")
PROFILER = Reason("profiling", "waits to be profiled; all GPUs for that are taken")


def place(
    view: View, roles: Roles, standing: Standing, cycle: Cycle, config: UniSchedConfig, aside: Bools, *, endless: bool = False
) -> Plan:
    """``aside``: GPUs that are set aside for profiling runs, one a GPU of the view. ``endless``: leases are renewed without an end."""
    placing = _Placing(view, roles, standing, cycle, config, aside, endless)
    placing.run()
    return placing.plan()


MAIN, TOGETHER, APART = "main", "together", "apart"  #: where: the pool, the profiler's GPUs, those on different nodes


class _Kind(NamedTuple):
    """What a job asks of a placement; where one job failed, all of its kind would."""

    gpus: int
    memory: float
    place: str
    relaxed: bool


class _Placing:
    def __init__(
        self, view: View, roles: Roles, standing: Standing, cycle: Cycle, config: UniSchedConfig, aside: Bools, endless: bool
    ) -> None:
        self.view, self.jobs, self.roles, self.standing = view, view.jobs, roles, standing
        self.cycle, self.config, self.endless = cycle, config, endless
        self.main = self.profiler = Placement(view)
        if config.profiler == STATIC:
            self.profiler = self.main.copy()
            self.main.take(np.flatnonzero(aside))
            self.profiler.take(np.flatnonzero(~aside))
        self.given: dict[int, tuple[int, ...]] = {}  #: by row, GPUs of jobs that start or are renewed
        self.preempted: list[int] = np.flatnonzero(standing.leaving).tolist()
        self.moving: set[int] = set()  #: renewed, but on other GPUs
        self.unplaceable: set[_Kind] = set()
        reserved = view.gpus.node[aside if config.profiler == STATIC else view.gpus.usable]
        self.profiler_gpus, self.profiler_nodes = len(reserved), len(np.unique(reserved))
        self.pending = np.flatnonzero(self.jobs.phase == Phase.PENDING)
        self.chosen = among(self.jobs.id[self.pending], cycle.chosen)

    def run(self) -> None:
        giving_way = self._renew()
        self._start_chosen()
        self._stay_or_go(giving_way)
        for row in self.fill[~among(self.fill, self.given)].tolist():
            self._start(row, relaxed=False)

    def _start_chosen(self) -> None:
        """The largest first, as in the proof of Remark 5.1: large cells are handed out before they are split.

        Jobs that may start on some nodes only come first, then jobs that need GPUs with much memory: the others can do without these.
        """
        heap = [self._precedence(row) for row in self.pending[self.chosen].tolist()]
        heapq.heapify(heap)
        while heap:
            *_, row = heapq.heappop(heap)
            relaxed = self.cycle.chosen[int(self.jobs.id[row])]
            if not self._start(row, relaxed=False):
                for other in self._make_room(row):
                    heapq.heappush(heap, self._precedence(other))
                self._start(row, relaxed=relaxed)
        self.preempted += [row for row in self.moving if row not in self.given]

    def _precedence(self, row: int) -> tuple[bool, float, int, int]:
        scarce = self._picky and float(self.jobs.gpu_memory[row])
        return bool(self.jobs.asks[row] >= 0), -scarce, -int(self.roles.wants[row]), row

    @cached_property
    def _picky(self) -> bool:
        """Whether there are GPUs that are too small for some job."""
        memory = self.view.gpus.memory
        return bool((memory[memory > 0] < self.jobs.gpu_memory.max(initial=0.0)).any())

    def _make_room(self, row: int) -> list[int]:
        """Take GPUs from renewed jobs that come later, so that this one finds its nodes; returns these jobs."""
        n, memory = int(self.roles.wants[row]), float(self.jobs.asks[row])
        node, movable = self.view.gpus.node, dict[int, list[tuple[int, int]]]()
        fits = self.view.gpus.usable & self.main.large_enough(memory)
        for other, gpus in self.given.items():
            if self.standing.expired[other] and self._precedence(other)[:3] > self._precedence(row)[:3]:
                for where, count in Counter(node[[gpu for gpu in gpus if fits[gpu]]].tolist()).items():
                    movable.setdefault(where, []).append((other, count))
        sizes = np.bincount(node[fits])
        going = movers(shares(n, sizes), self.main.free_soon_by_node(memory=memory), movable) or []
        for other in going:
            self.main.release_soon(self.given[other])
        if not going or self.main.find_soon(n, memory=memory) is None:
            for other in going:  # in nodes of several sizes there is less room than was counted
                self.main.take(self.given[other])
            return []
        for other in going:
            del self.given[other]
        self.moving.update(going)
        self.unplaceable.clear()
        return going

    # Jobs that hold GPUs

    def _renew(self) -> list[int]:
        """Chosen jobs keep their GPUs. Returns the others, whose GPUs are for jobs that start."""
        giving_way = []
        for row in self.preempted:
            self.main.release_soon(self.jobs.allocation(row).tolist())
        for row in np.flatnonzero(self.standing.expired).tolist():
            gpus = self.jobs.allocation(row).tolist()
            if int(self.jobs.id[row]) in self.cycle.chosen:
                self.given[row] = tuple(gpus)
            else:
                giving_way.append(row)
                self.main.release_soon(gpus)
        return giving_way

    def _stay_or_go(self, giving_way: list[int]) -> None:
        """A job that was not chosen goes on where no other job gets its GPUs: stopping it would gain nothing."""
        taken = np.zeros(len(self.view.gpus), dtype=bool)
        for gpus in self.given.values():
            taken[list(gpus)] = True
        for row in giving_way:
            gpus = self.jobs.allocation(row).tolist()
            if taken[gpus].any():
                self.preempted.append(row)
            else:
                self.main.take(gpus)
                self.given[row] = tuple(gpus)

    # Jobs that wait

    @cached_property
    def fill(self) -> Ints:
        """Waiting jobs in the order in which they fill free GPUs: deadlines that can be met first, then the most reward a GPU.

        Without an objective (5.6.2) any feasible choice is as good as any other: the first come are taken.
        """
        if not self.config.objective:
            return self.pending
        slo = self.roles.role == Role.SLO
        deadline = np.where(slo, next_deadline(self.jobs, self.view.now + self.roles.left), np.inf)
        return self.pending[np.argsort(ranks(deadline, -self._density())[self.pending], kind="stable")]

    def _density(self) -> Floats:
        profiling = profiling_reward(self.view, self.config)
        reward = np.where(self.roles.role == Role.PROFILER, profiling, best_effort_reward(self.roles, self.config))
        return reward / self.roles.wants

    def _start(self, row: int, *, relaxed: bool) -> bool:
        kind = _Kind(int(self.roles.wants[row]), float(self.jobs.asks[row]), self._place(row), relaxed)
        gpus = None if kind in self.unplaceable else self._find(kind)
        if gpus is None:
            self.unplaceable.add(kind)
            return False
        (self.main if kind.place == MAIN else self.profiler).take(gpus)
        self.given[row] = gpus
        return True

    def _place(self, row: int) -> str:
        gang, wants = int(self.jobs.gpus_min[row]), int(self.roles.wants[row])
        if self.roles.role[row] != Role.PROFILER or wants > self.profiler_gpus:  # a small profiler cannot hold every run
            return MAIN
        # A gang that will be spread over nodes: its communication between nodes is to be measured.
        return APART if wants < gang and self.main.nodes_needed(gang) > 1 and self.profiler_nodes >= wants else TOGETHER

    def _find(self, kind: _Kind) -> tuple[int, ...] | None:
        if kind.place == APART:
            apart = _apart(self.profiler, kind.gpus, kind.memory, self.view)
            if apart is not None:
                return apart  # else one term of Eqn 5.2 is measured, which is better than none
        place = self.main if kind.place == MAIN else self.profiler
        return place.find_any(kind.gpus, memory=kind.memory, relaxed=kind.relaxed)

    # The plan

    def plan(self) -> Plan:
        jobs = self.jobs
        return Plan(
            allocations={int(jobs.id[row]): self._allocation(row, gpus) for row, gpus in self.given.items()},
            preempt=[int(jobs.id[row]) for row in self.preempted],
            waiting=Later(self._waiting),
            order=Later(lambda: [int(job) for job in jobs.id[self._unserved()]]),
            wake_at=None if self.endless else self.cycle.ends,
        )

    def _allocation(self, row: int, gpus: tuple[int, ...]) -> Allocation:
        config, role = self.config, self.roles.role[row]
        if role == Role.PROFILER:
            # All of a lease, whenever in the cycle it begins: a run that is cut short measures less.
            end = self.view.now + config.be_lease + float(self.roles.overhead[row])
            return Allocation(gpus, end, profile=len(gpus) < int(self.jobs.gpus_min[row]))
        if role != Role.SLO:
            # A lease hardly longer than a start is useless: it then lasts through the next cycle.
            short = self.cycle.ends - self.view.now < min(float(self.roles.overhead[row]), config.be_lease / 2)
            return Allocation(gpus, None if self.endless and not short else self.cycle.ends + short * config.be_lease)
        # All leases of one kind end together (5.3.3.1): what one of them frees can be a whole node.
        length = config.slo_leases * config.be_lease
        return Allocation(gpus, None if self.endless else math.ceil(self.cycle.ends / length - AT_ONCE) * length)

    def _unserved(self) -> Ints:
        """All that are to wait, in the order in which they would be served."""
        chosen = self.pending[self.chosen]
        chosen = chosen[np.argsort(-self.roles.wants[chosen], kind="stable")]
        rows = np.concatenate([chosen, self.fill, np.array(self.preempted, dtype=np.int64)])
        _, first = np.unique(rows, return_index=True)
        rows = rows[np.sort(first)]
        return rows[~np.isin(rows, [row for row in self.given if row not in self.preempted])]

    def _waiting(self) -> list[Waiting]:
        jobs, rows = self.jobs, self._unserved()
        chosen, planned, refused = (among(jobs.id[rows], some) for some in (self.cycle.chosen, self.cycle.planned, self.cycle.refused))
        role = self.roles.role[rows]
        sizes = zip(self.roles.wants[rows].tolist(), jobs.asks[rows].tolist(), strict=True)
        could_fit = cache(lambda n, memory: self.main.could_fit(n, memory=memory))
        fits = np.fromiter((could_fit(*size) for size in sizes), bool, len(rows))
        slo = role == Role.SLO
        why = np.select(
            [~fits, chosen, planned & slo, role == Role.PROFILER, slo & refused, slo, self.roles.lost[rows], self.roles.outweighed[rows]],
            range(8),
        )
        of_code = (STARTING_REASON, PLANNED, PROFILER, CROWDED, NEXT_CYCLE, LATE_REASON, OUTWEIGHED)
        told = [(reason, rows[why == code]) for code, reason in enumerate(of_code, 1)]
        plain = lacking(self.view, rows[why == 0], self.main)
        return [*(Waiting(reason, jobs.id[members]) for reason, members in told if len(members)), *plain]


def _apart(place: Placement, n: int, memory: float, view: View) -> tuple[int, ...] | None:
    """``n`` GPUs on as many nodes: for a gang that will be spread over nodes, its communication between nodes is to be measured."""
    trial = place.copy()
    found: list[int] = []
    for _ in range(n):
        one = trial.find_any(1, memory=memory)
        if one is None:
            return None
        found += one
        trial.take(np.flatnonzero(view.gpus.node == view.gpus.node[one[0]]))
    return tuple(sorted(found))
