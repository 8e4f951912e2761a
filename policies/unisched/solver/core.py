"""The core: the few columns whose choice the prices leave open, chosen among exactly by branch and bound.

Most jobs have one column that is far better at the prices than all others, or none that is worth its price. They are
settled; the rest is a small integer program over what the settled ones leave of the rows: how many copies of a job take each column.
SCIP of OR-tools solves these in a tenth of the time of HiGHS, and CP-SAT is no match for either, as the program is nearly linear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import Bools, Floats, Ints
from .choices import Columns

_SLACK = 1e-9
#: The relaxation is nearly integral: presolving and many rounds of cuts cost three times what they save.
_SCIP = "limits/nodes = {nodes}\npresolving/maxrounds = 0\nseparating/maxroundsroot = 3\n"
_TIE = 1e-9  #: of the best column of all: what a loss must be above to be one


@dataclass(frozen=True, slots=True)
class Core:
    """``settled``: columns that all copies take for certain; ``open``: those to choose from, none or one a copy."""

    settled: Ints
    open: Ints


def make_core(columns: Columns, reduced: Floats, size: int) -> Core:
    """About ``size`` open columns, those that cost least against the best choice of their jobs."""
    counts = np.diff(columns.start)
    best = np.maximum(0.0, np.maximum.reduceat(reduced, columns.start[:-1])) if len(columns) else np.zeros(0)
    loss = np.repeat(best, counts) - reduced
    dearer = np.concatenate([loss, best])
    dearer = dearer[dearer > _TIE * best.max(initial=0.0)]
    reach = float(np.partition(dearer, size)[size]) if len(dearer) > size else np.inf
    near = loss <= reach
    choices = np.add.reduceat(near, columns.start[:-1]) + (best <= reach) if len(columns) else counts
    settled = (choices == 1) & (best > reach)
    settled &= _affordable(columns, np.repeat(settled, counts) & near, settled, best)
    of_settled = np.repeat(settled, counts)
    return Core(np.flatnonzero(near & of_settled), np.flatnonzero(near & ~of_settled))


def _affordable(columns: Columns, taken: Bools, settled: Bools, best: Floats) -> Bools:
    """Of the settled jobs those that fit in the rows together, the least worth left out."""
    chosen = np.flatnonzero(taken)
    owners = np.searchsorted(columns.jobs, columns.job[chosen])
    order = np.argsort(-best[owners], kind="stable")
    use = columns.use(chosen[order]) * columns.copies[chosen[order], None]
    fits = (np.cumsum(use, axis=0) <= columns.room + _SLACK).all(axis=1)
    good = settled.copy()
    good[owners[order][~fits]] = False
    return good


def choose(columns: Columns, core: Core, start: Ints, gap: float, nodes: int, seconds: float) -> tuple[Ints | None, float]:
    """The chosen columns with the settled ones, None when no choice was found in time, and a bound of the core's own optimum.

    ``start``: a choice, of which as much as is open here is the solver's first guess.
    """
    settled = np.repeat(core.settled, columns.copies[core.settled])
    settled_value = float(columns.value[settled].sum())
    if not len(core.open):
        return settled, settled_value
    solver, objective, least = new_solver()
    room = np.maximum(0.0, columns.room - columns.total(settled))
    rows = [solver.Constraint(least, limit) for limit in room.tolist()]
    use, copies = columns.use(core.open), columns.copies[core.open].tolist()
    of_job = {job: solver.Constraint(least, float(most)) for job, most in zip(columns.job[core.open].tolist(), copies, strict=True)}
    variables = []
    for position, (job, value) in enumerate(zip(columns.job[core.open].tolist(), columns.value[core.open].tolist(), strict=True)):
        variable = solver.IntVar(0.0, float(copies[position]), "")
        variables.append(variable)
        objective.SetCoefficient(variable, value)
        of_job[job].SetCoefficient(variable, 1.0)
        for row in np.flatnonzero(use[position]).tolist():
            rows[row].SetCoefficient(variable, float(use[position, row]))
    if len(start):
        solver.SetHint(variables, np.bincount(start, minlength=len(columns))[core.open].astype(float).tolist())
    bound = bounded(solver, gap, nodes, seconds)
    if bound is None:
        return None, math.inf
    taken = np.array([round(variable.solution_value()) for variable in variables])
    return np.sort(np.concatenate([settled, np.repeat(core.open, taken)])), settled_value + bound


def new_solver() -> tuple[Any, Any, float]:
    """An empty SCIP model, its objective that is to be made large, and minus infinity."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("SCIP")
    objective = solver.Objective()
    objective.SetMaximization()
    return solver, objective, -solver.infinity()


def bounded(solver: Any, gap: float, nodes: int, seconds: float) -> float | None:
    """Solve, on one thread. The bound of the optimum, None when no solution was found. ``seconds`` may be infinite."""
    from ortools.linear_solver import pywraplp

    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, gap)
    solver.SetSolverSpecificParametersAsString(_SCIP.format(nodes=nodes))
    if math.isfinite(seconds):
        solver.SetTimeLimit(max(1, int(1000 * seconds)))
    if solver.Solve(parameters) not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    return float(solver.Objective().BestBound())
