"""From prices to a schedule that exists: what is worth most at the prices first, then what still fits, then a full slot 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..arrays import Bools, Floats, Ints
from .columns import NONE, Columns
from .problem import Problem
from .schedule import Schedule

_ENOUGH = 4000  #: columns tried for jobs without one, best first


def within_rows(columns: Columns, chosen: Ints, worth: Floats) -> Ints:
    """Those of the chosen columns that fit in the rows together, by descending worth."""
    order = chosen[np.argsort(-worth[chosen], kind="stable")]
    left, use, kept = columns.room + 1e-9, columns.use(order), []
    for position in range(len(order)):
        rest = left - use[position]
        if rest.min() >= 0:
            left = rest
            kept.append(position)
    return order[kept]


def realise(
    problem: Problem, columns: Columns, chosen: Ints, reduced: Floats, enough: float, tries: int, over: Callable[[], bool]
) -> Schedule:
    """A schedule of as many of the chosen columns as fit, completed with others. ``chosen``: one a job, within the rows.

    Who has least time to spare is served first: its leases are where the others' could be anywhere. Gangs are not divisible,
    so some may find no room; these go first in the next of ``tries``, until the objective is ``enough``.
    """
    order, best = by_slack(problem, columns, chosen), None
    for _ in range(max(1, tries)):
        schedule = Schedule(problem, columns)
        lost = [column for column in order if not schedule.take(column)]
        insert(schedule, reduced, over)
        if lost:
            improve(schedule, over)
        if best is None or schedule.value > best.value:
            best = schedule
        if not lost or best.value >= enough or over():
            break
        first = set(lost)
        order = lost + [column for column in order if column not in first]
    assert best is not None
    return best


def by_slack(problem: Problem, columns: Columns, chosen: Ints) -> list[int]:
    """Least spare time first, then the largest gang; who runs in slot 0 alone comes last."""
    tier = columns.tier[chosen]
    last = np.where(tier == NONE, 0, problem.tier_leases[tier]) if len(problem.tier_leases) else np.zeros_like(tier)
    spare = (last - columns.later[chosen] - columns.now[chosen]) * problem.lease[columns.job[chosen]]
    return [int(column) for column in chosen[np.lexsort((chosen, -columns.gpus[chosen], spare, tier == NONE))]]


def insert(schedule: Schedule, worth: Floats, over: Callable[[], bool]) -> None:
    """Give columns to jobs that have none, those of most worth (c,) first."""
    columns = schedule.columns
    waiting = ~_in(schedule.column, len(schedule.problem))[columns.job]
    possible = np.flatnonzero(waiting & _may_fit(schedule))
    for column in possible[np.argsort(-worth[possible], kind="stable")][:_ENOUGH].tolist():
        if int(columns.job[column]) not in schedule.column:
            schedule.take(column)
            if over():
                return


def improve(schedule: Schedule, over: Callable[[], bool]) -> None:
    """Exchange columns of jobs for better ones of their own, where there is room."""
    columns = schedule.columns
    mine = np.full(len(schedule.problem), -np.inf)
    for job, column in schedule.column.items():
        mine[job] = columns.value[column]
    gain = columns.value - mine[columns.job]
    better = np.flatnonzero(np.isfinite(gain) & (gain > 1e-9))
    for column in better[np.argsort(-gain[better], kind="stable")][:_ENOUGH].tolist():
        if columns.value[column] > columns.value[schedule.column[int(columns.job[column])]] + 1e-9:
            schedule.replace(column)
            if over():
                return


def postpone(schedule: Schedule) -> None:
    """Free slot 0 of jobs that keep their deadline without it."""
    columns = schedule.columns
    for column in reversed(by_slack(schedule.problem, columns, _taken(schedule))):
        if columns.now[column] and columns.tier[column] != NONE and column > 0 and _same_but_now(columns, column - 1, column):
            schedule.replace(column - 1)


def bring_forward(schedule: Schedule) -> int:
    """Let jobs with a deadline run ahead in slot 0, least spare time first. Frees a later lease, harms nobody."""
    columns, count = schedule.columns, 0
    for column in by_slack(schedule.problem, columns, _taken(schedule)):
        if not columns.now[column] and column + 1 < len(columns) and _same_but_now(columns, column, column + 1):
            count += schedule.replace(column + 1)
    return count


def start_others(schedule: Schedule) -> int:
    """Fill slot 0 with jobs that have no column: best rewards first, fastest options first."""
    problem, count = schedule.problem, 0
    idle = np.flatnonzero(problem.may_start & ~_in(schedule.column, len(problem)) & ~_in(schedule.extra, len(problem)))
    for job in idle[np.argsort(-problem.now_reward[idle], kind="stable")].tolist():
        if schedule.cells[0] <= 0:
            break
        options = np.arange(problem.option_start[job], problem.option_start[job + 1])
        for option in options[np.lexsort((-problem.option_bonus[options], problem.option_leases[options]))].tolist():
            if schedule.start(job, option):
                count += 1
                break
    return count


def hasten(schedule: Schedule) -> None:
    """Let jobs have the option that needs fewest leases of those that are worth the same, where there is room."""
    columns, needed = schedule.columns, schedule.problem.option_leases
    mine = np.full(len(schedule.problem), NONE)
    for job, column in schedule.column.items():
        mine[job] = column
    now = mine[columns.job]
    better = (now != NONE) & (columns.tier == columns.tier[now]) & (columns.now == columns.now[now]) & (columns.gpus <= columns.gpus[now])
    better &= (columns.value >= columns.value[now]) & (needed[columns.option] < needed[columns.option[now]])
    found = np.flatnonzero(better)
    for column in found[np.argsort(needed[columns.option[found]], kind="stable")].tolist():
        if needed[columns.option[column]] < needed[columns.option[schedule.column[int(columns.job[column])]]]:
            schedule.replace(column)


def fill(schedule: Schedule, reduced: Floats, over: Callable[[], bool]) -> tuple[Schedule, int]:
    """The schedule with slot 0 as full as it gets, and how many were started beyond the plan.

    Rewards for running now are so small beside those of deadlines that the gap does not see them. So jobs that can wait
    are made to, who is paid for running now is chosen anew, most reward for a GPU first, and then all others run ahead as far
    as there is room.
    """
    other, columns = schedule.copy(), schedule.columns
    for job, column in schedule.column.items():
        if columns.tier[column] == NONE:
            other.drop(job)
    postpone(other)
    after_deadlines = float(reduced.min(initial=0.0)) - float(columns.value.max(initial=0.0))
    insert(other, np.where(columns.tier == NONE, columns.value / columns.gpus + after_deadlines, reduced), over)
    best = other if other.value > schedule.value + 1e-9 else schedule
    count = bring_forward(best) + start_others(best)
    hasten(best)
    return best, count


def _taken(schedule: Schedule) -> Ints:
    return np.fromiter(schedule.column.values(), np.int64, len(schedule.column))


def _same_but_now(columns: Columns, later: int, now: int) -> bool:
    same = columns.option[later] == columns.option[now] and columns.tier[later] == columns.tier[now]
    return bool(same and columns.now[now] and not columns.now[later])


def _in(jobs: Iterable[int], n: int) -> Bools:
    found = np.zeros(n, dtype=bool)
    found[list(jobs)] = True
    return found


def _may_fit(schedule: Schedule) -> Bools:
    """False for columns that certainly do not fit: not enough slots with room for the gang, or no cells."""
    problem, columns = schedule.problem, schedule.columns
    cells: Bools = np.all(schedule.demand <= schedule.cells, axis=1)
    good = ~columns.now | cells[columns.option]
    last = np.where(columns.tier == NONE, 0, problem.tier_leases[columns.tier]) if len(problem.tier_leases) else np.zeros(len(columns), int)
    end = np.where(columns.tier == NONE, 1, schedule.first[columns.job] + last * problem.lease[columns.job])
    work = columns.later * problem.lease[columns.job]
    for size in np.unique(columns.gpus[good]).tolist():
        mine = columns.gpus == size
        open_slots = np.cumsum(schedule.free >= size) - (schedule.free[0] >= size)
        good &= ~mine | (work <= open_slots[np.maximum(end - 1, 0)])
    return good
