"""From a View to the optimisation of a cycle: which jobs, which cells, how many leases, until when (002 ch. 5.3.3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..contract import Phase, View
from ..estimate.resumption import execution_time
from ..placement.consolidated import grid_of
from ..queues.laxity import next_deadline
from .roles import AT_ONCE, Role, Roles, best_effort_reward, profiling_reward
from .settings import JOINT, SRTF, STATIC, UniSchedConfig
from .solver.patterns import patterns
from .solver.problem import Problem, from_level

#: How many times longer a job takes on more nodes than it needs where that makes no difference: a hair, so that fewer are preferred.
EQUAL_FACTOR = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Standing:
    """Which jobs keep GPUs beyond now. One row a job of the view."""

    bound: Bools  #: holds GPUs under a lease that goes on, or that a guard protects: it keeps them
    expired: Bools  #: holds GPUs under an expired or open-ended lease: it is renewed, or gives way
    leaving: Bools  #: its lease has expired on GPUs that are set aside or are not its gang (a profiling run): it is not renewed
    until: Floats  #: when a bound job's lease ends, ``now`` for all others


def standing_of(view: View, aside: Bools, interrupted: Bools | None = None, ends: Floats | None = None) -> Standing:
    """``aside``: GPUs of a static profiler, one a GPU of the view; no job stays on them. ``interrupted``: jobs whose leases may end now.

    ``ends``: when the leases of the jobs end; None: as the view says.
    """
    jobs = view.jobs
    active = jobs.phase == Phase.ACTIVE
    end = lease_ends(view) if ends is None else ends
    endless = np.isinf(end)  # of another policy, on other GPUs than its gang's
    until = np.where(endless if interrupted is None else endless | interrupted, view.now, end)
    if jobs.protected_until is not None:
        until = np.maximum(until, jobs.protected_until)
    bound = active & (until > view.now + AT_ONCE)
    expired = active & ~bound
    leaving = misplaced(view, aside)
    return Standing(bound, expired & ~leaving, expired & leaving, np.where(bound, until, view.now))


def lease_ends(view: View) -> Floats:
    """When the lease of each job ends, inf: it has no end, or there is none."""
    return np.full(len(view.jobs), np.inf) if view.jobs.lease_end is None else view.jobs.lease_end


def misplaced(view: View, aside: Bools) -> Bools:
    """Jobs that may not keep their GPUs after their leases: the GPUs are set ``aside``, or are not their gang."""
    jobs = view.jobs
    wrong: Bools = jobs.held != jobs.gpus_min
    wrong[jobs.holder[aside[jobs.alloc_gpus]]] = True
    return wrong


@dataclass(frozen=True, slots=True)
class WorkModel:
    """The optimisation, and what is needed to read its answer. ``rows`` are rows of the view, one a job of the problem."""

    problem: Problem
    rows: Ints
    scattered: Bools  #: (options,) spread over more nodes than the gang needs


def model(view: View, roles: Roles, standing: Standing, config: UniSchedConfig, open_gpus: Bools) -> WorkModel:
    """``open_gpus``: usable GPUs that are not set aside, one a GPU of the view."""
    return _Modelling(view, roles, standing, config, open_gpus).model()


class _Modelling:
    def __init__(self, view: View, roles: Roles, standing: Standing, config: UniSchedConfig, open_gpus: Bools) -> None:
        self.view, self.jobs, self.roles, self.standing, self.config = view, view.jobs, roles, standing, config
        self.open, self.grid = open_gpus, grid_of(view)
        self.capacity = int(np.count_nonzero(open_gpus))
        memory, self.large_enough = _memory_classes(view, open_gpus)
        self.rows = self._rows(np.array([np.count_nonzero(gpus) for gpus in self.large_enough])[memory])
        self.memory = memory[self.rows]
        self.role = roles.role[self.rows]
        self.lease = np.where(self.role == Role.SLO, config.slo_leases, 1)
        bound = standing.bound[self.rows]
        held_for = np.where(bound, standing.until[self.rows] - view.now, 0.0)
        self.first = np.ceil(held_for / config.be_lease - AT_ONCE).astype(np.int64)
        self.left = np.maximum(roles.left[self.rows] - held_for, 0.0)
        self.begin = view.now + self.first * config.be_lease

    def _rows(self, capacity: Ints) -> Ints:
        """Jobs that take part: those that may get GPUs now, and jobs with deadlines that hold some but will need more.

        ``capacity``: GPUs that each job could have if all were free.
        """
        roles, standing, jobs = self.roles, self.standing, self.jobs
        takes_part = (jobs.phase == Phase.PENDING) | standing.expired
        if self.config.best_effort == SRTF:
            takes_part &= roles.role != Role.BEST_EFFORT
        if self.config.profiler == STATIC:
            takes_part &= roles.role != Role.PROFILER
        needs_more = roles.left > standing.until - self.view.now
        takes_part |= standing.bound & (roles.role == Role.SLO) & needs_more
        takes_part &= roles.wants <= capacity
        return np.flatnonzero(takes_part)

    def model(self) -> WorkModel:
        start, gpus, cells, slowdown, bonus = self._options()
        owner = np.repeat(np.arange(len(self.rows)), np.diff(start))
        tier_start, tier_leases, tier_room, tier_reward = self._tiers()
        leases = self._leases(owner, slowdown, tier_start, tier_leases, tier_room)
        tier_leases = np.minimum(tier_leases, self._horizon(start, gpus, leases, tier_start))
        problem = Problem(
            capacity=self.capacity,
            busy=self._busy,
            cells=self._cells(self._available()),
            lease=self.lease,
            may_start=self.first == 0,
            option_start=start,
            option_gpus=gpus,
            option_cells=cells,
            option_leases=leases,
            option_bonus=bonus,
            tier_start=tier_start,
            tier_leases=tier_leases,
            tier_reward=tier_reward,
            now_reward=self._now_reward(),
            first=self.first,
            memory=self.memory,
        )
        return WorkModel(problem, self.rows, slowdown > 1.0)

    # What is there

    def _available(self) -> Bools:
        """GPUs that no job holds beyond now."""
        held = np.zeros(len(self.view.gpus), dtype=bool)
        held[self.jobs.alloc_gpus[self.standing.bound[self.jobs.holder]]] = True
        return ~held

    def _cells(self, available: Bools) -> Ints:
        """(classes, levels) numbers of cells, each as large as possible."""
        return np.array([self._cells_of(available & gpus) for gpus in self.large_enough])

    def _cells_of(self, gpus: Bools) -> Ints:
        grid = self.grid
        whole = np.zeros(grid.nodes * grid.width, dtype=bool)
        whole[grid.node * grid.width + grid.index] = gpus
        counts = []
        for _ in range(grid.levels):
            pairs = whole[: len(whole) if len(whole) > grid.nodes else 0]  # a whole node has no buddy
            above = pairs[0::2] & pairs[1::2]
            counts.append(int(whole.sum()) - 2 * int(above.sum()))
            whole = above
        return np.array(counts, dtype=np.int64)

    @cached_property
    def _busy(self) -> Ints:
        """GPUs that bound jobs hold in each slot."""
        jobs, standing = self.jobs, self.standing
        rows = np.flatnonzero(standing.bound)
        ends = np.minimum(standing.until[rows], self.view.now + np.maximum(self.roles.left[rows], self.config.be_lease))
        slots = np.ceil((ends - self.view.now) / self.config.be_lease - AT_ONCE).astype(np.int64)
        inside = np.bincount(jobs.holder[self.open[jobs.alloc_gpus]], minlength=len(jobs))[rows]
        ending = np.bincount(slots, weights=inside, minlength=1).astype(np.int64)
        return np.cumsum(ending[::-1])[::-1][1:]

    # What may be chosen

    def _options(self) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """CSR starts, and for each option its GPUs, cells, how many times longer it takes, and its bonus."""
        levels, wants = self.grid.levels, self.roles.wants[self.rows]
        slower = self._slowdown(wants)
        apart = self._held_apart()
        expired = self.standing.expired[self.rows]
        compact = ~(expired & apart)  # a renewed job keeps its GPUs, whatever its speed there
        slower = np.where(expired & apart & np.isinf(slower), EQUAL_FACTOR, slower)
        scattered = np.isfinite(slower) & ~(expired & ~apart)
        start = np.concatenate([[0], np.cumsum(compact.astype(np.int64) + scattered)])
        cells = np.zeros((start[-1], levels), dtype=np.int64)
        slowdown, bonus = np.ones(start[-1]), np.zeros(start[-1])
        supply = from_level(self._cells(self.open))
        shape = cache(lambda n, memory: _compact(n, levels, supply[memory]))
        at = start[:-1]
        for option, n, memory in zip(at[compact].tolist(), wants[compact].tolist(), self.memory[compact].tolist(), strict=True):
            cells[option] = shape(n, memory)
        second = (at + compact)[scattered]
        cells[second, 0] = wants[scattered]
        slowdown[second] = slower[scattered]
        bonus[at[expired]] = self._worth_of_staying()[expired]
        return start, np.repeat(wants, np.diff(start)), cells, slowdown, bonus

    def _held_apart(self) -> Bools:
        """Jobs that hold GPUs on more nodes than they need."""
        apart = np.zeros(len(self.rows), dtype=bool)
        for place in np.flatnonzero(self.standing.expired[self.rows]).tolist():
            gpus = self.jobs.allocation(int(self.rows[place]))
            nodes = len(set(self.view.gpus.node[gpus].tolist()))
            apart[place] = nodes > self.grid.nodes_needed(max(len(gpus), 1), None)
        return apart

    def _slowdown(self, wants: Ints) -> Floats:
        """How many times longer each job takes on more nodes than it needs (Eqn 5.8), inf: not known, or not to be done."""
        slower = np.full(len(self.rows), np.inf)
        profile = self.jobs.profile
        if profile is None or self.config.placement != JOINT:
            return slower
        wide = (wants > 1) & (self.role != Role.PROFILER) & (profile[self.rows] >= 0)
        slower_of = cache(self._slower)
        for place in np.flatnonzero(wide).tolist():
            slower[place] = slower_of(int(profile[self.rows[place]]), int(wants[place]))
        return slower

    def _slower(self, profile: int, n: int) -> float:
        throughput = self.view.profiles[profile].throughput
        if throughput is None:
            return np.inf
        return max(throughput.consolidated(n, self.grid.largest(None)) / throughput.rate(n, spread=True), EQUAL_FACTOR)

    def _worth_of_staying(self) -> Floats:
        """The reward for a renewal: a suspension would waste its overhead, here as a share of a best-effort lease's reward."""
        share = np.minimum(self.roles.overhead[self.rows] / self.config.be_lease, 1.0)
        return share * self._best_effort

    # Until when

    def _tiers(self) -> tuple[Ints, Ints, Floats, Floats]:
        """CSR of deadlines: whole leases and seconds from the first lease that can be given, and rewards."""
        jobs, rows = self.jobs, self.rows
        counts = np.where(self.role == Role.SLO, np.diff(jobs.tier_start)[rows], 0)
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        owner = np.repeat(np.arange(len(rows)), counts)
        tier = np.repeat(jobs.tier_start[rows] - start[:-1], counts) + np.arange(start[-1])
        room = jobs.tier_deadline[tier] - self.begin[owner]
        whole = np.floor(room / self._length[owner] + AT_ONCE)
        # One lease is there as long as the job can end in it.
        leases = np.where(self._work[owner] <= room + AT_ONCE, np.maximum(whole, 1.0), np.maximum(whole, 0.0))
        # A deadline is aimed at only for more than best-effort jobs lose by it.
        net = np.maximum(jobs.tier_reward[tier] * self.roles.chance[rows][owner] - self.roles.toll[rows][owner], 0.0)
        return start, leases.astype(np.int64), room, net

    @cached_property
    def _length(self) -> Floats:
        """Seconds of a lease of each job."""
        return self.lease * self.config.be_lease

    @cached_property
    def _work(self) -> Floats:
        """Seconds of work, with a margin that makes no job miss its deadline."""
        room = next_deadline(self.jobs, self.view.now + self.roles.left)[self.rows] - self.begin
        doubt = 0.0 if self.jobs.uncertainty is None else np.nan_to_num(self.jobs.uncertainty[self.rows], posinf=1.0 / AT_ONCE)
        longer = self.left * (1.0 + self.config.margin + self.config.caution * doubt)
        return np.maximum(self.left, np.minimum(longer, room))

    def _leases(self, owner: Ints, slowdown: Floats, tier_start: Ints, tier_leases: Ints, tier_room: Floats) -> Ints:
        """Eqn 5.1 in leases, for each option; suspensions are those expected until the first deadline that the work alone can meet.

        Leases that are counted up and deadlines that are counted down would lose a job whose work just fits. Where it would end in
        time if it ran without a pause, the leases until the deadline therefore do; then it has no pause to spend.
        """
        length, work = self._length[owner], self._work[owner] * slowdown
        available, room = _first_met(work, owner, tier_start, tier_leases, tier_room)
        seconds = work
        if self.config.resumption_aware:
            overhead = np.minimum(self.roles.overhead[self.rows], self.config.be_lease)[owner]
            slo = self.role[owner] == Role.SLO
            seconds = np.where(slo, execution_time(work, length, np.maximum(available, np.ceil(work / length)), overhead), work)
        leases = np.ceil(seconds / length - AT_ONCE)
        just_fits = (work <= room + AT_ONCE) & (leases > available)
        return np.maximum(np.where(just_fits, available, leases), 1.0).astype(np.int64)

    def _horizon(self, option_start: Ints, gpus: Ints, leases: Ints, tier_start: Ints) -> Ints:
        """For each deadline the leases beyond which it does not matter how far it is: twice what all the work together takes."""
        first = option_start[:-1]  # the fastest option of each job
        slots = leases[first] * self.lease
        work = int((slots * gpus[first]).sum()) // max(self.capacity, 1)
        horizon = len(self._busy) + int(self.first.max(initial=0)) + 2 * work + int(slots.max(initial=1)) + 1
        longest: Ints = -(-horizon // np.repeat(self.lease, np.diff(tier_start)))
        return longest

    def _now_reward(self) -> Floats:
        profiling = profiling_reward(self.view, self.config)[self.rows]
        return np.select([self.role == Role.PROFILER, self.role == Role.BEST_EFFORT], [profiling, self._best_effort], self._urgency())

    @cached_property
    def _best_effort(self) -> Floats:
        return best_effort_reward(self.roles, self.config)[self.rows]

    def _urgency(self) -> Floats:
        """A reward that the text does not have, for jobs with deadlines that run before they must.

        The program sees no job that is still to come, so it puts off all deadlines that can be put off, in favour of any best-effort
        job; then new deadlines take the GPUs that those counted on. The power leaves jobs with much slack where they were: half of it
        is 0.06.
        """
        time = next_deadline(self.jobs, self.view.now + self.roles.left)[self.rows] - self.view.now
        tight = np.clip(self.roles.left[self.rows] / np.maximum(time, 1.0), 0.0, 1.0)
        return self.config.urgency * tight**4 * self.roles.wants[self.rows]


def _memory_classes(view: View, open_gpus: Bools) -> tuple[Ints, list[Bools]]:
    """The class of each job of the view, and the open GPUs that each class may have: class 0 all, every further one fewer.

    A GPU or a job of unknown memory fits all.
    """
    known, asked = view.gpus.memory, view.jobs.gpu_memory
    steps = np.unique(known[open_gpus & (known > 0)])
    # A job that asks for no more than the smallest GPU may have any. Beyond the largest only GPUs of unknown memory are left.
    memory: Ints = np.searchsorted(steps, asked, side="left")
    of_class, memory = np.unique(np.append(memory, 0), return_inverse=True)
    bounds = [asked_for if asked_for < len(steps) else None for asked_for in of_class.tolist()]
    large_enough = [open_gpus & ((known <= 0) | (known >= (np.inf if step is None else steps[step]))) for step in bounds]
    large_enough[0] = open_gpus
    return memory[:-1], large_enough


def _compact(n: int, levels: int, supply: Ints) -> Ints:
    """Cells of a gang on as few nodes as it can be. In a pool whose nodes have no such cell they are counted one by one."""
    cells = np.array(patterns(n, levels)[0].cells, dtype=np.int64)
    if (from_level(cells) <= supply).all():
        return cells
    loose = np.zeros(levels, dtype=np.int64)
    loose[0] = n
    return loose


def _first_met(work: Floats, owner: Ints, tier_start: Ints, tier_leases: Ints, tier_room: Floats) -> tuple[Floats, Floats]:
    """For each option the leases and seconds until the first deadline by which so much work fits, else until the last; 0 without any."""
    counts = np.diff(tier_start)[owner]
    available, room = np.zeros(len(owner)), np.zeros(len(owner))
    for step in range(int(counts.max(initial=0))):
        later = (counts > step) & (room < work - AT_ONCE)
        tier = tier_start[owner[later]] + step
        available[later], room[later] = tier_leases[tier], tier_room[tier]
    return available, room
