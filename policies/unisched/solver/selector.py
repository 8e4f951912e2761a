"""The Selector's optimisation: prices, a schedule at these prices, a core chosen exactly, and a certified gap (002 ch. 5.3.3.4).

See docs/unisched.md for the formulation. A limit in seconds only ends what is iterated; without one the answer depends on
the problem alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ...arrays import Bools, Floats, Ints
from .choices import NONE, Columns, make_columns
from .core import choose, make_core
from .dual import descend, evaluate
from .exact import choose_exactly
from .greedy import fill, realise, within_rows
from .problem import FEASIBLE, OPTIMAL, TIMEOUT, Problem, Solution, SolverLimits
from .timetable import Schedule
from .twins import Twins, find_twins

_TIES = 1e-7  #: of the largest value: prices so low that they only make equal choices take what uses least
_FIRST_AIM = 0.1  #: how far below the bound the dual first aims


@dataclass
class _Search:
    """The best schedule and the least bound so far."""

    columns: Columns
    limits: SolverLimits
    began: float
    bound: float
    best: Schedule
    counts: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    marked: float = 0.0

    def mark(self, phase: str) -> None:
        """The time since the last mark went into this phase."""
        now = self.limits.clock()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self.marked
        self.marked = now

    def over(self) -> bool:
        return self.limits.clock() - self.began >= self.limits.seconds

    @property
    def left(self) -> float:
        return self.limits.seconds - (self.limits.clock() - self.began)

    @property
    def enough(self) -> float:
        return self.bound * (1 - self.limits.gap)

    @property
    def done(self) -> bool:
        return self.best.value >= self.enough

    def offer(self, chosen: Ints, reduced: Floats, tries: int = 1) -> None:
        schedule = realise(self.best.empty(), chosen, reduced, self.enough, tries, self.over)
        if schedule.value > self.best.value:
            self.best = schedule


def solve(problem: Problem, limits: SolverLimits = SolverLimits()) -> Solution:  # noqa: B008 - frozen
    """The best schedule found within the limits, with a bound of all schedules. Never fails: giving nothing is a schedule too."""
    began = limits.clock()
    twins = find_twins(problem, None if limits.alike is None else limits.alike * limits.gap)
    columns = make_columns(twins.problem, limits.rows, np.diff(twins.copy_start))
    multipliers = _ties(columns)
    bound, reduced, chosen = evaluate(columns, multipliers)
    closer = replace(limits, gap=max(0.0, limits.gap - twins.excess))  # the rewards of copies are a little above their own
    search = _Search(columns, closer, began, bound, Schedule(twins.problem, columns, twins.copy_start), marked=began)
    search.mark("columns")
    if (columns.total(chosen, columns.copies[chosen]) <= columns.room).all():
        search.offer(np.repeat(chosen, columns.copies[chosen]), reduced)
        search.mark("greedy")
    if not search.done:
        reduced = _search(search, multipliers)
    over = search.over()
    schedule, search.counts["filled"] = fill(search.best, reduced, search.over)
    search.mark("fill")
    return _answer(problem, twins, search, schedule, limits, TIMEOUT if over else FEASIBLE)


def _search(search: _Search, multipliers: Floats) -> Floats:
    """Prices, a schedule at these, and growing cores, until the gap is small enough; what columns are worth at these prices."""
    columns, limits = search.columns, search.limits
    dual = descend(columns, multipliers, _FIRST_AIM, limits.iterations, search.best.value / (1 - limits.gap), search.over)
    search.counts["iterations"] = dual.iterations
    search.bound = min(search.bound, dual.bound)
    _, reduced, chosen = evaluate(columns, dual.multipliers)
    search.mark("dual")
    if not search.done:
        search.offer(within_rows(columns, np.repeat(chosen, columns.copies[chosen]), reduced), reduced)
        search.mark("greedy")
    for size, share in limits.cores:
        if search.done or search.over():
            return reduced
        _choose_core(search, reduced, size, share, limits.tries)
    if not search.done and not search.over():
        _exactly(search)
        search.mark("exact")
    return reduced


def _choose_core(search: _Search, reduced: Floats, size: int, share: float, tries: int) -> None:
    columns, limits = search.columns, search.limits
    room = columns.room.copy()
    room[columns.cells :] *= share
    planned = replace(columns, room=room)
    core = make_core(planned, reduced, size)
    start = np.fromiter(search.best.column.values(), np.int64, len(search.best.column))
    found, bound = choose(planned, core, start, limits.gap / 2, limits.nodes, search.left)
    search.counts["core"] = len(core.open)
    if share >= 1.0 and len(core.open) == len(columns):
        search.bound = min(search.bound, bound)
    if found is not None:
        search.offer(found, reduced, tries)
    search.mark("core")


def _exactly(search: _Search) -> None:
    """Small problems, of which a single gang is more than the gap, lease by lease."""
    found = choose_exactly(search.best, search.limits.exact, search.limits.gap / 2, search.limits.exact_effort, search.left)
    if found is not None:
        schedule, bound = found
        search.bound = max(min(search.bound, bound), schedule.value, search.best.value)
        if schedule.value > search.best.value:
            search.best = schedule
        search.counts["exact"] = 1


def _ties(columns: Columns) -> Floats:
    return _TIES * float(columns.value.max(initial=0.0)) / np.maximum(columns.room, 1.0)


def _answer(problem: Problem, twins: Twins, search: _Search, schedule: Schedule, limits: SolverLimits, otherwise: str) -> Solution:
    """``otherwise``: the status where the gap is too wide."""
    columns = search.columns
    n = len(problem)
    option, tier, now = np.full(n, NONE), np.full(n, NONE), np.zeros(n, dtype=bool)
    leases: list[Ints] = [np.zeros(0, dtype=np.int64)] * n
    job_of = _job_of_copies(twins, schedule).tolist()
    for copy, column in schedule.column.items():
        job = job_of[copy]
        option[job], tier[job], now[job] = columns.option[column], columns.tier[column], columns.now[column]
        leases[job] = np.concatenate([[0], schedule.leases[copy]]) if now[job] else schedule.leases[copy]
    for copy, chosen in schedule.extra.items():
        job = job_of[copy]
        option[job], now[job], leases[job] = chosen, True, np.zeros(1, dtype=np.int64)
    option[option != NONE] += twins.option_shift[option != NONE]
    tier[tier != NONE] += twins.tier_shift[tier != NONE]
    objective = schedule.value if twins.excess == 0.0 else _worth(problem, option, tier, now)
    bound = max(search.bound, objective)  # the same sum in another order may differ in the last digit
    counts = {
        "columns": len(columns), "rows": len(columns.room), "iterations": 0, "core": 0, "exact": 0, "alike": n - len(twins.problem),
        **search.counts,
    }  # fmt: skip
    return Solution(
        option, now, tier, tuple(leases), objective, bound, 1 - objective / bound if bound > 0 else 0.0,
        OPTIMAL if objective >= bound * (1 - limits.gap) else otherwise, limits.clock() - search.began, counts, search.phases,
    )  # fmt: skip


def _job_of_copies(twins: Twins, schedule: Schedule) -> Ints:
    """(n,) Of alike jobs the first ones are those that run now, then those that aim at the earliest deadlines."""
    columns, job_of = schedule.columns, twins.members.copy()

    def rank(copy: int) -> tuple[bool, bool, int]:
        column = schedule.column.get(copy)
        if column is None:
            return copy not in schedule.extra, True, 0
        tier = int(columns.tier[column])
        return not columns.now[column], tier == NONE, tier

    for row in np.flatnonzero(np.diff(twins.copy_start) > 1).tolist():
        begin, end = int(twins.copy_start[row]), int(twins.copy_start[row + 1])
        job_of[sorted(range(begin, end), key=rank)] = twins.members[begin:end]
    return job_of


def _worth(problem: Problem, option: Ints, tier: Ints, now: Bools) -> float:
    running = problem.now_reward[now].sum() + problem.option_bonus[option[now]].sum()
    return float(problem.tier_reward[tier[tier != NONE]].sum() + running)
