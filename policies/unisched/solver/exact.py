"""A small problem lease by lease: the cumulative rows let gangs be divided in time, and few large gangs are not.

Beside the columns there is a variable for each lease that a job could have with a number of GPUs, and a row for each slot
beside the rows of work, which follow from them but say it sooner. Exact, so its bound is one of all schedules; too many
variables for more than a few dozen jobs. CP-SAT is far ahead of SCIP here, where it is all about packing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Floats, Ints
from .timetable import Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_WORTH = 10**7  #: of the largest value as an integer, which CP-SAT needs


@dataclass(frozen=True, slots=True)
class _Choices:
    """Every copy of a job by itself, with each of its columns, copy by copy: who runs when is not the same for all copies."""

    column: Ints
    copy: Ints
    start: Ints  #: (copies + 1,)


def choose_exactly(start: Schedule, most: int, gap: float, effort: float, seconds: float) -> tuple[Schedule, float] | None:
    """A schedule within the gap of the best, or the best found, and a bound; None if there would be more than ``most`` variables.

    ``start`` is the first guess. ``effort``: CP-SAT's deterministic time, which is about seconds but counts operations.
    """
    from ortools.sat.python import cp_model

    columns = start.columns
    if columns.copies.sum() > most:
        return None
    choices = _choices(start)
    spans = _spans(start, choices)
    if len(choices.column) + sum(spans.values()) > most:
        return None
    made = _Making(start, choices, spans)
    made.make()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.relative_gap_limit = gap
    solver.parameters.max_deterministic_time = effort
    if math.isfinite(seconds):
        solver.parameters.max_time_in_seconds = max(seconds, 1e-3)
    if solver.solve(made.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    schedule = start.empty()
    for place in [place for place, variable in enumerate(made.takes) if solver.boolean_value(variable)]:
        column, copy = int(choices.column[place]), int(choices.copy[place])
        gpus, later = int(columns.gpus[column]), int(columns.later[column])
        held = [number for number, variable in made.given.get((copy, gpus), {}).items() if solver.boolean_value(variable)]
        schedule.put_back(copy, column, np.array(held[:later], dtype=np.int64))
    return schedule, solver.best_objective_bound * made.unit


def _choices(start: Schedule) -> _Choices:
    columns, found, begins = start.columns, list[tuple[int, int]](), [0]
    for job, begin, end in zip(columns.jobs.tolist(), columns.start[:-1].tolist(), columns.start[1:].tolist(), strict=True):
        for copy in range(int(start.copy_start[job]), int(start.copy_start[job + 1])):
            found += [(column, copy) for column in range(begin, end)]
            begins.append(len(found))
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return _Choices(pairs[:, 0], pairs[:, 1], np.array(begins, dtype=np.int64))


class _Making:
    def __init__(self, start: Schedule, choices: _Choices, spans: dict[tuple[int, int], int]) -> None:
        from ortools.sat.python import cp_model

        self.start, self.choices, self.columns, self.problem = start, choices, start.columns, start.problem
        self.model = model = cp_model.CpModel()
        self.takes = [model.new_bool_var("") for _ in range(len(choices.column))]  #: by choice
        self.job = dict(zip(choices.copy.tolist(), self.columns.job[choices.column].tolist(), strict=True))  #: of each copy
        #: for each copy and number of GPUs, by number of the lease
        self.given = {
            (copy, gpus): {number: model.new_bool_var("") for number in range(1 if start.first[self.job[copy]] == 0 else 0, last)}
            for (copy, gpus), last in spans.items()
        }
        values = self.columns.value[choices.column]
        self.unit = float(values.max()) / _WORTH  #: reward for 1 of the model's objective
        model.maximize(sum(math.ceil(value / self.unit) * take for value, take in zip(values.tolist(), self.takes, strict=True)))

    def make(self) -> None:
        for begin, end in pairwise(self.choices.start.tolist()):
            self.model.add_at_most_one(self.takes[begin:end])
        self._work()
        self._slots()
        for copy, gpus in self.given:
            self._complete(copy, gpus)
        self._hint()

    def _work(self) -> None:
        """All rows of the columns: (5.14) for slot 0, and the work due by each end."""
        use: Floats = self.columns.use(self.choices.column)
        for row, room in zip(use.T.astype(int).tolist(), self.columns.room.astype(int).tolist(), strict=True):
            self.model.add(sum(amount * take for amount, take in zip(row, self.takes, strict=True) if amount) <= room)

    def _slots(self) -> None:
        """The GPUs of each slot but the first: those of leases that begin now and go on, and those of later leases."""
        columns, lease = self.columns, self.problem.lease
        held: defaultdict[int, list[cp_model.LinearExprT]] = defaultdict(list)
        for place in np.flatnonzero(columns.now[self.choices.column]).tolist():
            column = int(self.choices.column[place])
            for slot in range(1, int(lease[columns.job[column]])):
                held[slot].append(int(columns.gpus[column]) * self.takes[place])
        for (copy, gpus), mine in self.given.items():
            first, length = int(self.start.first[self.job[copy]]), int(lease[self.job[copy]])
            for number, variable in mine.items():
                for slot in range(first + number * length, first + (number + 1) * length):
                    held[slot].append(gpus * variable)
        free = self.start.empty().free
        for slot, terms in held.items():
            self.model.add(sum(terms) <= int(free[slot]))

    def _complete(self, copy: int, gpus: int) -> None:
        """As many leases before each deadline as the columns that aim at it, or at an earlier one, need."""
        columns, column, mine = self.columns, self.choices.column, self.given[copy, gpus]
        members = np.flatnonzero((self.choices.copy == copy) & (columns.gpus[column] == gpus) & (columns.later[column] > 0)).tolist()
        last_of = {place: int(self.problem.tier_leases[columns.tier[column[place]]]) for place in members}
        for last in sorted(set(last_of.values())):
            needed = [int(columns.later[column[place]]) * self.takes[place] for place in members if last_of[place] <= last]
            self.model.add(sum(variable for number, variable in mine.items() if number < last) >= sum(needed))

    def _hint(self) -> None:
        """The schedule that there is."""
        start = self.start
        for take, column, copy in zip(self.takes, self.choices.column.tolist(), self.choices.copy.tolist(), strict=True):
            self.model.add_hint(take, start.column.get(copy) == column)
        for (copy, gpus), mine in self.given.items():
            runs = copy in start.column and self.columns.gpus[start.column[copy]] == gpus
            held = set(start.leases[copy].tolist()) if runs else set()
            for number, variable in mine.items():
                self.model.add_hint(variable, number in held)


def _spans(start: Schedule, choices: _Choices) -> dict[tuple[int, int], int]:
    """For each copy and number of GPUs the last deadline, in leases, of columns that need leases after slot 0."""
    columns, spans = start.columns, defaultdict[tuple[int, int], int](int)
    for place in np.flatnonzero(columns.later[choices.column] > 0).tolist():
        column = int(choices.column[place])
        key = int(choices.copy[place]), int(columns.gpus[column])
        spans[key] = max(spans[key], int(start.problem.tier_leases[columns.tier[column]]))
    return dict(spans)
