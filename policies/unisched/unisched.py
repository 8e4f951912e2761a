"""UniSched: strict, soft, best-effort and profiling jobs in one optimisation over leases (002 ch. 5)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..arrays import Bools, Ints
from ..contract import Phase, Plan, View
from ..placement.consolidated import Placement
from ..placement.feasible import holdable_in
from ..queues.laxity import has_deadline, next_deadline
from .cycle import Cycle, kept, last_cycle
from .modelling import Standing, WorkModel, model, standing_of
from .placing import place
from .quiet import counted_ends, given_ends, is_quiet, passed_over, without_end
from .roles import AT_ONCE, Role, Roles, best_effort_reward, loses_its_slack, roles_of
from .settings import QUICK, SRTF, STATIC, THOROUGH, UniSchedConfig
from .solver.problem import TIMEOUT, Solution, SolverLimits
from .solver.selector import solve
from .walk import walk

#: Small crowded pools have gaps that only much search could close; the next cycle decides anew anyway.
EFFORTS = {QUICK: SolverLimits(cores=((200, 1.0), (200, 0.98)), nodes=20, exact=300, exact_effort=0.2), THOROUGH: SolverLimits()}
#: Probability of a deadline's loss from which on its profiling run does not wait for the next cycle. Anything from 0.05 to 0.2 does.
TOO_LIKELY = 0.1
LARGEST_PROFILER = 4  #: a static profiler takes a quarter of the pool at most


class UniSched:
    """Each cycle chooses which jobs run, on which buddy cells, and which deadline each aims at, for the largest total reward.

    002 ch. 5. A job is first profiled for one lease on at most two GPUs, whatever it demands. Then a deadline that is met earns its
    reward (100 for a strict one), a lease of a profiling run 1, and one of a best-effort job the reciprocal of its remaining
    time, so that what is left over by deadlines goes to the shortest. Leases run out at the end of a cycle and are renewed, or
    their jobs are suspended; what jobs are expected to lose by that counts as work (Eqn 5.3). A gang may be spread over more nodes
    than it needs where its speed there is known and the optimum is larger for it. Between cycles GPUs that become free are filled
    at once by jobs that wait. A job that can no longer meet a deadline comes after best-effort jobs, unless they are far longer.
    """

    Config: ClassVar[type] = UniSchedConfig
    name: ClassVar[str] = "unisched"
    profiles: ClassVar[bool] = True
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: UniSchedConfig) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        before = last_cycle(view.memory)
        cycle = self._going_on(view, before)
        if not len(view.jobs):
            return Plan({}, memory=None if cycle is None else kept(replace(cycle, quiet=False)))
        aside, roles, endless = self._set_aside(view), roles_of(view, self.config), without_end(view)
        ends = counted_ends(view, roles, self.config, endless)
        standing = standing_of(view, aside, ends=ends)
        if cycle is None:
            decided, cycle = True, self._begin(view, roles, standing, aside, before)
        elif decided := bool(hurried := self._hurried(view, roles, cycle)):
            standing = standing_of(view, aside, roles.role != Role.PROFILER, ends)
            cycle = replace(self._begin(view, roles, standing, aside, before), hurried=cycle.hurried | hurried)
        cycle = replace(cycle, quiet=is_quiet(view, aside))
        plan = self._answer(view, roles, standing, aside, cycle, decided=decided)
        if not cycle.quiet and endless.any():
            plan = replace(plan, allocations={**plan.allocations, **given_ends(view, standing, ends, endless)})
        memory = kept(cycle)
        return replace(plan, memory=view.memory if memory == view.memory else memory)

    def _answer(self, view: View, roles: Roles, standing: Standing, aside: Bools, cycle: Cycle, *, decided: bool) -> Plan:
        waits = bool((view.jobs.phase == Phase.PENDING).any())
        if not (waits or standing.expired.any() or standing.leaving.any()):
            return Plan({}, wake_at=None if cycle.quiet else cycle.ends)
        plan = place(view, roles, standing, cycle, self.config, aside, endless=cycle.quiet)
        return replace(plan, status=cycle.status, gap=cycle.gap) if decided else plan

    def _going_on(self, view: View, cycle: Cycle | None) -> Cycle | None:
        """The cycle that the view is in, if it is the last one, or goes on as that did; None: a new one begins."""
        length = self.config.be_lease
        if cycle is not None and cycle.quiet and view.now >= cycle.ends - AT_ONCE and (later := passed_over(cycle, view, length)):
            cycle = later
        if cycle is None or not cycle.ends - length - AT_ONCE <= view.now < cycle.ends - AT_ONCE:
            return None
        return cycle

    def _hurried(self, view: View, roles: Roles, cycle: Cycle) -> frozenset[int]:
        """Waiting jobs that lose their deadline, or are likely to, if nothing is decided before the next cycle.

        How long a job needs that is yet to be profiled is not known: if it is short, the minutes until the next cycle are its whole slack.
        Each is tried once a cycle: if it cannot run although leases may end early, it will not do so a moment later.
        """
        if not self.config.interrupt:
            return frozenset()
        jobs = view.jobs
        waits = has_deadline(jobs) & (jobs.phase == Phase.PENDING)
        latest = next_deadline(jobs, view.now + roles.left) - roles.left
        hurry = (roles.role != Role.BEST_EFFORT) & (latest < cycle.ends)
        if self.config.urgent_profiling and self.config.profiler != STATIC:
            hurry |= (roles.role == Role.PROFILER) & (loses_its_slack(view, cycle.ends - view.now) > TOO_LIKELY)
        ids = jobs.id[np.flatnonzero(waits & hurry)].tolist()
        return frozenset(job for job in ids if job not in cycle.hurried and job not in cycle.chosen and job not in cycle.refused)

    def _set_aside(self, view: View) -> Bools:
        """GPUs of a static profiler: the last ones of the pool, none while a gang is here that only all of the pool can hold."""
        n = len(view.gpus)
        aside = np.zeros(n, dtype=bool)
        if self.config.profiler != STATIC:
            return aside
        aside[n - min(self.config.profiler_gpus, n // LARGEST_PROFILER) :] = True
        rest = Placement(view)
        rest.take(np.flatnonzero(aside))
        in_rest, in_all = holdable_in(rest, ~aside), holdable_in(Placement(view), np.ones(n, dtype=bool))
        gangs = set(zip(view.jobs.gpus_min.tolist(), view.jobs.gpu_memory.tolist(), strict=True))
        if any(in_all(*gang) and not in_rest(*gang) for gang in gangs):
            aside[:] = False
        return aside

    def _begin(self, view: View, roles: Roles, standing: Standing, aside: Bools, before: Cycle | None) -> Cycle:
        """Decide a cycle. Cycles begin at multiples of their length, so that leases of all jobs run out together."""
        length = self.config.be_lease
        ends = (math.floor(view.now / length + AT_ONCE) + 1) * length
        if not self.config.objective:
            return Cycle(ends, dict.fromkeys(walk(view, roles, standing, self._may_run(view, standing), (), aside), False))
        asked = model(view, roles, standing, self.config, view.gpus.usable & ~aside)
        limits = replace(EFFORTS[self.config.effort], gap=self.config.gap, seconds=self.config.time_limit, clock=time.perf_counter)
        solution = solve(asked.problem, limits)
        chosen, planned, refused = self._read(view, asked, solution)
        if self.config.best_effort == SRTF:
            rest = self._may_run(view, standing)
            rest = rest[roles.role[rest] == Role.BEST_EFFORT]
            shortest_first = rest[np.argsort(-best_effort_reward(roles, self.config)[rest], kind="stable")]
            chosen |= dict.fromkeys(walk(view, roles, standing, shortest_first, chosen, aside), False)
        if solution.status == TIMEOUT and before is not None:
            chosen = _beside(before.chosen, chosen, view, roles)
            return Cycle(ends, chosen, planned, refused, status="fallback", gap=solution.gap)
        return Cycle(ends, chosen, planned, refused, status=solution.status, gap=solution.gap)

    @staticmethod
    def _may_run(view: View, standing: Standing) -> Ints:
        """Jobs that wait or whose lease has run out, in the order of their submission."""
        return np.flatnonzero((view.jobs.phase == Phase.PENDING) | standing.expired)

    def _read(self, view: View, asked: WorkModel, solution: Solution) -> tuple[dict[int, bool], frozenset[int], frozenset[int]]:
        """Jobs that are to run now, and whether they may be scattered; those that are to run later; those whose deadlines are not met."""
        ids = view.jobs.id[asked.rows]
        apart = asked.scattered[solution.option]
        chosen = {job: bool(wide) for job, wide in zip(ids[solution.now].tolist(), apart[solution.now].tolist(), strict=True)}
        aims = solution.tier >= 0
        return chosen, frozenset(ids[aims & ~solution.now].tolist()), frozenset(ids[~aims & ~solution.now].tolist())


def _beside(before: Mapping[int, bool], chosen: Mapping[int, bool], view: View, roles: Roles) -> dict[int, bool]:
    """What the cycle before has chosen, as this one could not be finished (end of 5.3.3.4), and what of this one has room beside it."""
    wants = dict(zip(view.jobs.id.tolist(), roles.wants.tolist(), strict=True))
    both = {job: apart for job, apart in before.items() if job in wants}
    room = int(np.count_nonzero(view.gpus.usable)) - sum(wants[job] for job in both)
    for job, apart in chosen.items():
        if job not in both and wants[job] <= room:
            both[job] = apart
            room -= wants[job]
    return both
