"""A small problem lease by lease: the cumulative rows let gangs be divided in time, and few large gangs are not.

Beside the columns there is a variable for each lease that a job could have with a number of GPUs, and a row for each slot
beside the rows of work, which follow from them but say it sooner. Exact, so its bound is one of all schedules; too many
variables for more than a few dozen jobs. CP-SAT is far ahead of SCIP here, where it is all about packing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Floats
from .schedule import Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_WORTH = 10**7  #: of the largest value as an integer, which CP-SAT needs


@dataclass(frozen=True, slots=True)
class _Model:
    model: cp_model.CpModel
    takes: list[cp_model.IntVar]  #: one a column
    given: dict[tuple[int, int], dict[int, cp_model.IntVar]]  #: for each job and number of GPUs, by number of the lease
    unit: float  #: reward for 1 of the model's objective


def choose_exactly(start: Schedule, most: int, gap: float, effort: float, seconds: float) -> tuple[Schedule, float] | None:
    """A schedule within the gap of the best, or the best found, and a bound; None if there would be more than ``most`` variables.

    ``start`` is the first guess. ``effort``: CP-SAT's deterministic time, which is about seconds but counts operations.
    """
    from ortools.sat.python import cp_model

    columns, spans = start.columns, _spans(start)
    if len(columns) + sum(spans.values()) > most:
        return None
    made = _make(start, spans)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.relative_gap_limit = gap
    solver.parameters.max_deterministic_time = effort
    if math.isfinite(seconds):
        solver.parameters.max_time_in_seconds = max(seconds, 1e-3)
    if solver.solve(made.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    schedule = Schedule(start.problem, columns)
    for column in [column for column, variable in enumerate(made.takes) if solver.boolean_value(variable)]:
        job, gpus, later = int(columns.job[column]), int(columns.gpus[column]), int(columns.later[column])
        held = [number for number, variable in made.given.get((job, gpus), {}).items() if solver.boolean_value(variable)]
        schedule.put_back(job, column, np.array(held[:later], dtype=np.int64))
    return schedule, solver.best_objective_bound * made.unit


def _make(start: Schedule, spans: dict[tuple[int, int], int]) -> _Model:
    from ortools.sat.python import cp_model

    columns, model = start.columns, cp_model.CpModel()
    takes = [model.new_bool_var("") for _ in range(len(columns))]
    given = {
        (job, gpus): {number: model.new_bool_var("") for number in range(1 if start.first[job] == 0 else 0, last)}
        for (job, gpus), last in spans.items()
    }
    for begin, end in zip(columns.start[:-1].tolist(), columns.start[1:].tolist(), strict=True):
        model.add_at_most_one(takes[begin:end])
    _work(start, model, takes)
    _slots(start, model, takes, given)
    for (job, gpus), mine in given.items():
        _complete(start, model, job, gpus, takes, mine)
    unit = float(columns.value.max()) / _WORTH
    model.maximize(sum(math.ceil(value / unit) * take for value, take in zip(columns.value.tolist(), takes, strict=True)))
    guess = set(start.column.values())
    for column, take in enumerate(takes):
        model.add_hint(take, column in guess)
    for (job, gpus), mine in given.items():
        held = set(start.leases[job].tolist()) if job in start.column and columns.gpus[start.column[job]] == gpus else set()
        for number, variable in mine.items():
            model.add_hint(variable, number in held)
    return _Model(model, takes, given, unit)


def _work(start: Schedule, model: cp_model.CpModel, takes: list[cp_model.IntVar]) -> None:
    """All rows of the columns: (5.14) for slot 0, and the work due by each end."""
    columns = start.columns
    use: Floats = columns.use(np.arange(len(columns)))
    for row, room in zip(use.T.astype(int).tolist(), columns.room.astype(int).tolist(), strict=True):
        model.add(sum(amount * take for amount, take in zip(row, takes, strict=True) if amount) <= room)


def _slots(
    start: Schedule, model: cp_model.CpModel, takes: list[cp_model.IntVar], given: dict[tuple[int, int], dict[int, cp_model.IntVar]]
) -> None:
    """The GPUs of each slot but the first: those of leases that begin now and go on, and those of later leases."""
    columns, problem = start.columns, start.problem
    held: defaultdict[int, list[cp_model.LinearExprT]] = defaultdict(list)
    for column in np.flatnonzero(columns.now).tolist():
        for slot in range(1, int(problem.lease[columns.job[column]])):
            held[slot].append(int(columns.gpus[column]) * takes[column])
    for (job, gpus), mine in given.items():
        first, lease = int(start.first[job]), int(problem.lease[job])
        for number, variable in mine.items():
            for slot in range(first + number * lease, first + (number + 1) * lease):
                held[slot].append(gpus * variable)
    free = Schedule(problem, columns).free
    for slot, terms in held.items():
        model.add(sum(terms) <= int(free[slot]))


def _complete(
    start: Schedule, model: cp_model.CpModel, job: int, gpus: int, takes: list[cp_model.IntVar], mine: dict[int, cp_model.IntVar]
) -> None:
    """As many leases before each deadline as the columns that aim at it, or at an earlier one, need."""
    columns, deadlines = start.columns, start.problem.tier_leases
    members = np.flatnonzero((columns.job == job) & (columns.gpus == gpus) & (columns.later > 0)).tolist()
    for last in sorted({int(deadlines[columns.tier[column]]) for column in members}):
        needed = [int(columns.later[column]) * takes[column] for column in members if deadlines[columns.tier[column]] <= last]
        model.add(sum(variable for number, variable in mine.items() if number < last) >= sum(needed))


def _spans(start: Schedule) -> dict[tuple[int, int], int]:
    """For each job and number of GPUs the last deadline, in leases, of columns that need leases after slot 0."""
    columns, spans = start.columns, defaultdict[tuple[int, int], int](int)
    for column in np.flatnonzero(columns.later > 0).tolist():
        key = int(columns.job[column]), int(columns.gpus[column])
        spans[key] = max(spans[key], int(start.problem.tier_leases[columns.tier[column]]))
    return dict(spans)
