"""From prices to a schedule that exists: what is worth most at the prices first, then what still fits, then a full slot 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from ...arrays import Bools, Floats, Ints
from .choices import NONE, Columns
from .problem import Problem
from .timetable import Schedule

_MOST_COLUMNS_TRIED = 4000  #: columns tried for jobs without one, best first


def within_rows(columns: Columns, chosen: Ints, worth: Floats) -> Ints:
    """Those of the chosen columns that fit in the rows together, by descending worth."""
    distinct, counts = np.unique(chosen, return_counts=True)
    order = np.argsort(-worth[distinct], kind="stable")
    order, wanted = distinct[order], counts[order].tolist()
    left, use, kept = columns.room + 1e-9, columns.use(order), []
    for position, count in enumerate(wanted):
        rest = left - count * use[position]
        fitting = count
        if rest.min() < 0:
            used = use[position] > 0
            fitting = int((left[used] // use[position, used]).min()) if count > 1 else 0
            rest = left - fitting * use[position]
        left = rest
        kept.append(fitting)
    return np.repeat(order, kept)


def realise(empty: Schedule, chosen: Ints, reduced: Floats, enough: float, tries: int, over: Callable[[], bool]) -> Schedule:
    """A schedule of as many of the chosen columns as fit, completed with others. ``chosen`` are within the rows.

    Who has least time to spare is served first: its leases are where the others' could be anywhere. Gangs are not divisible,
    so some may find no room; these go first in the next of ``tries``, until the objective is ``enough``.
    """
    order, best = chosen[by_slack(empty.problem, empty.columns, chosen)].tolist(), empty
    for attempt in range(max(1, tries)):
        schedule = empty.empty()
        taken, lost = _take_all(schedule, order)
        insert(schedule, reduced, over)
        if lost:
            improve(schedule, over)
        if attempt == 0 or schedule.value > best.value:
            best = schedule
        if not lost or best.value >= enough or over():
            break
        order = lost + taken
    return best


def _take_all(schedule: Schedule, order: list[int]) -> tuple[list[int], list[int]]:
    """Those of ``order`` that found room, and those that did not. Room only gets less: where one copy found none no other will."""
    taken: list[int] = []
    lost: list[int] = []
    full: set[int] = set()
    for column in order:
        if column not in full and schedule.take(column):
            taken.append(column)
        else:
            full.add(column)
            lost.append(column)
    return taken, lost


def by_slack(problem: Problem, columns: Columns, chosen: Ints) -> Ints:
    """Order of the chosen columns: least spare time first, then the largest gang; who runs in slot 0 alone comes last."""
    tier = columns.tier[chosen]
    last = np.where(tier == NONE, 0, problem.tier_leases[tier]) if len(problem.tier_leases) else np.zeros_like(tier)
    spare = (last - columns.later[chosen] - columns.now[chosen]) * problem.lease[columns.job[chosen]]
    return np.lexsort((chosen, -columns.gpus[chosen], spare, tier == NONE))


def insert(schedule: Schedule, worth: Floats, over: Callable[[], bool]) -> None:
    """Give columns to copies that have none, those of most worth (c,) first."""
    columns = schedule.columns
    possible = np.flatnonzero(_idle(schedule)[columns.job] & _may_fit(schedule))
    for column in possible[np.argsort(-worth[possible], kind="stable")][:_MOST_COLUMNS_TRIED].tolist():
        while schedule.take(column):
            if over():
                return


def improve(schedule: Schedule, over: Callable[[], bool]) -> None:
    """Exchange columns of copies for better ones of their own, where there is room."""
    value = schedule.columns.value
    exchanges = _Exchanges(schedule)
    gain = value[exchanges.other] - value[exchanges.held]
    better = np.flatnonzero(gain > 1e-9)
    for place in better[np.argsort(-gain[better], kind="stable")][:_MOST_COLUMNS_TRIED].tolist():
        exchanges.make(place)
        if over():
            return


def postpone(schedule: Schedule) -> None:
    """Free slot 0 of jobs that keep their deadline without it."""
    columns = schedule.columns
    for copy, column in reversed(_taken_by_slack(schedule)):
        if columns.now[column] and columns.tier[column] != NONE and column > 0 and _same_but_now(columns, column - 1, column):
            schedule.replace(copy, column - 1)


def bring_forward(schedule: Schedule) -> int:
    """Let jobs with a deadline run ahead in slot 0, least spare time first. Frees a later lease, harms nobody."""
    columns, count = schedule.columns, 0
    for copy, column in _taken_by_slack(schedule):
        if not columns.now[column] and column + 1 < len(columns) and _same_but_now(columns, column, column + 1):
            count += schedule.replace(copy, column + 1)
    return count


def start_others(schedule: Schedule) -> int:
    """Fill slot 0 with jobs that have no column: best rewards first, fastest options first."""
    problem, count = schedule.problem, 0
    idle = np.flatnonzero(problem.may_start & _idle(schedule))
    for job in idle[np.argsort(-problem.now_reward[idle], kind="stable")].tolist():
        if schedule.cells[0] <= 0:
            break
        options = np.arange(problem.option_start[job], problem.option_start[job + 1])
        for option in options[np.lexsort((-problem.option_bonus[options], problem.option_leases[options]))].tolist():
            while schedule.start(job, option):
                count += 1
    return count


def hasten(schedule: Schedule) -> None:
    """Let jobs have the option that needs fewest leases of those that are worth the same, where there is room."""
    columns = schedule.columns
    exchanges = _Exchanges(schedule)
    held, other = exchanges.held, exchanges.other
    needed = schedule.problem.option_leases[columns.option]
    better = (columns.tier[other] == columns.tier[held]) & (columns.now[other] == columns.now[held])
    better &= (columns.gpus[other] <= columns.gpus[held]) & (columns.value[other] >= columns.value[held]) & (needed[other] < needed[held])
    found = np.flatnonzero(better)
    for place in found[np.argsort(needed[other[found]], kind="stable")].tolist():
        exchanges.make(place)


class _Exchanges:
    """Every column that is held beside every other one of the same job."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, columns = schedule, schedule.columns
        self._holders = defaultdict[int, list[int]](list)
        for copy, column in schedule.column.items():
            self._holders[column].append(copy)
        distinct = np.array(sorted(self._holders), dtype=np.int64)
        of_job = np.searchsorted(columns.jobs, columns.job[distinct])
        begins, counts = columns.start[of_job], columns.start[of_job + 1] - columns.start[of_job]
        self.held: Ints = np.repeat(distinct, counts)  #: by pair
        self.other: Ints = np.arange(len(self.held)) + np.repeat(begins - np.cumsum(counts) + counts, counts)  #: by pair

    def make(self, place: int) -> None:
        """Give the other column of the pair to those that still hold the first one, as many as there is room for."""
        holders, other = self._holders[int(self.held[place])], int(self.other[place])
        while holders and self._schedule.replace(holders[-1], other):
            holders.pop()


def fill(schedule: Schedule, reduced: Floats, over: Callable[[], bool]) -> tuple[Schedule, int]:
    """The schedule with slot 0 as full as it gets, and how many were started beyond the plan.

    Rewards for running now are so small beside those of deadlines that the gap does not see them. So jobs that can wait
    are made to, who is paid for running now is chosen anew, most reward for a GPU first, and then all others run ahead as far
    as there is room.
    """
    other, columns = schedule.copy(), schedule.columns
    for copy, column in schedule.column.items():
        if columns.tier[column] == NONE:
            other.drop(copy)
    postpone(other)
    after_deadlines = float(reduced.min(initial=0.0)) - float(columns.value.max(initial=0.0))
    insert(other, np.where(columns.tier == NONE, columns.value / columns.gpus + after_deadlines, reduced), over)
    best = other if other.value > schedule.value + 1e-9 else schedule
    count = bring_forward(best) + start_others(best)
    hasten(best)
    return best, count


def _taken_by_slack(schedule: Schedule) -> list[tuple[int, int]]:
    """Copies with what they have."""
    taken = list(schedule.column.items())
    chosen = np.fromiter(schedule.column.values(), np.int64, len(taken))
    return [taken[place] for place in by_slack(schedule.problem, schedule.columns, chosen).tolist()]


def _same_but_now(columns: Columns, later: int, now: int) -> bool:
    same = columns.option[later] == columns.option[now] and columns.tier[later] == columns.tier[now]
    return bool(same and columns.now[now] and not columns.now[later])


def _idle(schedule: Schedule) -> Bools:
    """(n,) jobs with a copy that has nothing."""
    return np.array([bool(copies) for copies in schedule.idle], dtype=bool)


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
