"""The Selector's optimisation: prices, a schedule at these prices, a core chosen exactly, and a certified gap (002 ch. 5.3.3.4).

See docs/unisched.md for the formulation. A limit in seconds only ends what is iterated; without one the answer depends on
the problem alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..arrays import Floats, Ints
from .columns import NONE, Columns, from_warm, make_columns
from .core import choose, make_core
from .dual import descend, evaluate
from .exact import choose_exactly
from .greedy import fill, realise, within_rows
from .problem import FEASIBLE, OPTIMAL, TIMEOUT, Limits, Problem, Solution, Warm
from .schedule import Schedule

_TIES = 1e-7  #: of the largest value: prices so low that they only make equal choices take what uses least
_NEAR, _FAR = 0.02, 0.1  #: how far below the bound the dual first aims, from prices of the last cycle and from none


@dataclass
class _Search:
    """The best schedule and the least bound so far."""

    problem: Problem
    columns: Columns
    limits: Limits
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
        schedule = realise(self.problem, self.columns, chosen, reduced, self.enough, tries, self.over)
        if schedule.value > self.best.value:
            self.best = schedule


def solve(problem: Problem, limits: Limits = Limits(), warm: Warm | None = None) -> Solution:  # noqa: B008 - frozen
    """The best schedule found within the limits, with a bound of all schedules. Never fails: giving nothing is a schedule too."""
    began = limits.clock()
    columns = make_columns(problem, limits.rows)
    multipliers = _ties(columns)
    bound, reduced, chosen = evaluate(columns, multipliers)
    search = _Search(problem, columns, limits, began, bound, Schedule(problem, columns), marked=began)
    search.mark("columns")
    if (columns.total(chosen) <= columns.room).all():
        search.offer(chosen, reduced)
        search.mark("greedy")
    if not search.done:
        multipliers, reduced = _search(search, multipliers, warm)
    status = OPTIMAL if search.done else TIMEOUT if search.over() else FEASIBLE
    schedule, search.counts["filled"] = fill(search.best, reduced, search.over)
    search.mark("fill")
    cells = columns.cells
    prices = Warm(multipliers[:cells], columns.ends, multipliers[cells:])
    return _answer(search, schedule, OPTIMAL if schedule.value >= search.enough else status, prices)


def _search(search: _Search, multipliers: Floats, warm: Warm | None) -> tuple[Floats, Floats]:
    """Prices, a schedule at these, and then cores of growing size, until the gap is small enough."""
    columns, limits = search.columns, search.limits
    start = multipliers if warm is None else np.maximum(multipliers, from_warm(columns, warm))
    dual = descend(columns, start, _FAR if warm is None else _NEAR, limits.iterations, search.over)
    search.counts["iterations"] = dual.iterations
    if dual.bound < search.bound:
        search.bound, multipliers = dual.bound, dual.multipliers
    _, reduced, chosen = evaluate(columns, multipliers)
    search.mark("dual")
    search.offer(within_rows(columns, chosen, reduced), reduced)
    search.mark("greedy")
    for size, share in limits.cores:
        if search.done or search.over():
            return multipliers, reduced
        _choose_core(search, reduced, size, share)
    if not search.done and not search.over():
        _exactly(search)
        search.mark("exact")
    return multipliers, reduced


def _choose_core(search: _Search, reduced: Floats, size: int, share: float) -> None:
    columns, limits = search.columns, search.limits
    room = columns.room.copy()
    room[columns.cells :] *= share
    planned = replace(columns, room=room)
    core = make_core(planned, reduced, size)
    found, bound = choose(planned, core, limits.gap / 2, limits.nodes, search.left)
    search.counts["core"] = len(core.open)
    if share >= 1.0 and len(core.open) == len(columns):
        search.bound = min(search.bound, bound)
    if found is not None:
        search.offer(found, reduced, limits.tries)
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


def _answer(search: _Search, schedule: Schedule, status: str, warm: Warm) -> Solution:
    problem, columns = search.problem, search.columns
    n = len(problem)
    option, tier, now = np.full(n, NONE), np.full(n, NONE), np.zeros(n, dtype=bool)
    leases: list[Ints] = [np.zeros(0, dtype=np.int64)] * n
    for job, column in schedule.column.items():
        option[job], tier[job], now[job] = columns.option[column], columns.tier[column], columns.now[column]
        leases[job] = np.concatenate([[0], schedule.leases[job]]) if now[job] else schedule.leases[job]
    for job, chosen in schedule.extra.items():
        option[job], now[job], leases[job] = chosen, True, np.zeros(1, dtype=np.int64)
    bound = max(search.bound, schedule.value)  # the same sum in another order may differ in the last digit
    counts = {"columns": len(columns), "rows": len(columns.room), "iterations": 0, "core": 0, "exact": 0, **search.counts}
    return Solution(
        option, now, tier, tuple(leases), schedule.value, bound, 1 - schedule.value / bound if bound > 0 else 0.0,
        status, warm, search.limits.clock() - search.began, counts, search.phases,
    )  # fmt: skip
