"""The choice of merges and of each job's GPUs: 002 Eqns 3.10 to 3.14 as set partitioning over kinds of jobs.

The constraints as printed count a merge twice and lack sums, so here each job of a kind is in exactly one column, alone or merged, and all
columns together have no more GPUs than the pool. As jobs of a kind are equal, a column has a count; a pool of hundreds of jobs has some
dozen kinds, and its program is solved in milliseconds. If there are many kinds, the linear relaxation of all columns is solved first, and
the program has the columns with the least reduced cost; its bound is then that of the relaxation of all columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .merge_columns import JobKind, MergeColumn

MOST_COLUMNS = 3000  #: columns; if there are more, those with the least reduced cost


@dataclass(frozen=True, slots=True)
class MergeSolution:
    """The count of each column, and the possible distance from the optimum."""

    times: Sequence[int]  #: one per column
    cost: float
    bound: float  #: of the optimum over all columns

    @property
    def gap(self) -> float:
        """Relative; certified."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


def solve(
    kinds: Sequence[JobKind], columns: Sequence[MergeColumn], gpus: int, *, gap: float = 1e-3, seconds: float = 5.0
) -> MergeSolution | None:
    """The cheapest choice; None: none was found in time. ``gpus``: R."""
    if not kinds:
        return MergeSolution([0] * len(columns), 0.0, 0.0)
    kept, bound = list(range(len(columns))), -math.inf
    if len(columns) > MOST_COLUMNS:
        relaxed = _reduced_costs(kinds, columns, gpus)
        if relaxed is None:
            return None
        reduced, bound = relaxed
        always = [number for number in kept if len(columns[number].kinds) == 1]
        kept = sorted({*always, *sorted(kept, key=lambda number: reduced[number])[:MOST_COLUMNS]})
    solver, variables = _model("SCIP", kinds, [columns[number] for number in kept], gpus, whole=True)
    found = _solved(solver, gap, seconds)
    if not found:
        return None
    times = [0] * len(columns)
    for number, variable in zip(kept, variables, strict=True):
        times[number] = round(variable.solution_value())
    cost = sum(columns[number].cost * times[number] for number in kept)
    if len(kept) == len(columns):
        bound = float(solver.Objective().BestBound())
    return MergeSolution(times, cost, min(cost, bound))


def _reduced_costs(kinds: Sequence[JobKind], columns: Sequence[MergeColumn], gpus: int) -> tuple[list[float], float] | None:
    """The reduced cost of each column in the linear relaxation, and the relaxation's cost."""
    solver, variables = _model("CLP", kinds, columns, gpus, whole=False)
    if solver.Solve() != solver.OPTIMAL:
        return None
    return [variable.reduced_cost() for variable in variables], float(solver.Objective().Value())


def _model(name: str, kinds: Sequence[JobKind], columns: Sequence[MergeColumn], gpus: int, *, whole: bool) -> tuple[Any, list[Any]]:
    from ortools.linear_solver import pywraplp  # slow to import

    solver = pywraplp.Solver.CreateSolver(name)
    solver.SuppressOutput()
    rows = [solver.Constraint(float(kind.count), float(kind.count)) for kind in kinds]  # 3.12, 3.13
    capacity = solver.Constraint(0.0, float(gpus))  # 3.14
    objective = solver.Objective()  # 3.10
    objective.SetMinimization()
    variables = []
    for column in columns:
        most = min(kinds[kind].count for kind in column.kinds)
        variable = solver.Var(0.0, float(most), whole, "")  # 3.11
        for kind in set(column.kinds):
            rows[kind].SetCoefficient(variable, float(column.kinds.count(kind)))
        if column.gpus:
            capacity.SetCoefficient(variable, float(column.gpus))
        objective.SetCoefficient(variable, column.cost)
        variables.append(variable)
    return solver, variables


def _solved(solver: Any, gap: float, seconds: float) -> bool:
    from ortools.linear_solver import pywraplp

    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, gap)
    solver.SetTimeLimit(max(1, int(1000 * seconds)))
    return solver.Solve(parameters) in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
