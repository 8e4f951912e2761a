"""The thesis's own program (5.4) to (5.14), one variable per job and lease, with its products of binaries made linear.

The reference for tests and the baseline of benchmarks: exact where CP-SAT gets to the end, which takes a small problem.
``x[k, i]``: job i has lease k; ``s[f, i]``: it aims at deadline f; ``y[i, p]``: its allocation is p. (5.7), whose printed
``<=`` demands nothing of a job that aims at a deadline, is read as ``>=``, which is what (5.12) says.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.policies.arrays import Ints
from stoker.policies.unisched.solver.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_WORTH = 10**7  #: of the largest reward as an integer


@dataclass(frozen=True, slots=True)
class Answer:
    objective: float  #: 0 when nothing was found
    bound: float
    optimal: bool


@dataclass(frozen=True, slots=True)
class _Job:
    runs: list[cp_model.IntVar]  #: x, by number of the lease
    chosen: list[cp_model.IntVar]  #: y
    aims: list[cp_model.IntVar]  #: s
    uses: list[list[cp_model.IntVar]]  #: for each option and lease, at least x * y


def solve_plain(problem: Problem, seconds: float, workers: int = 1) -> Answer:
    """The optimum where it is proved in so many seconds, else the best found and a bound."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    jobs = [_add_job(model, problem, row) for row in range(len(problem))]
    _add_capacity(model, problem, jobs)
    unit = max(float(part.max(initial=0.0)) for part in (problem.tier_reward, problem.now_reward, problem.option_bonus)) / _WORTH
    if unit == 0:
        return Answer(0.0, 0.0, True)
    model.maximize(sum(round(reward / unit) * variable for reward, variable in _rewards(problem, jobs)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(solver.objective_value * unit if found else 0.0, solver.best_objective_bound * unit, status == cp_model.OPTIMAL)


def _span(starts: Ints, row: int) -> range:
    return range(int(starts[row]), int(starts[row + 1]))


def _add_job(model: cp_model.CpModel, problem: Problem, row: int) -> _Job:
    options, tiers = _span(problem.option_start, row), _span(problem.tier_start, row)
    last = max([int(problem.tier_leases[tier]) for tier in tiers] + [1 if problem.may_start[row] else 0])
    runs = [model.new_bool_var("") for _ in range(last)]
    chosen = [model.new_bool_var("") for _ in options]
    aims = [model.new_bool_var("") for _ in tiers]
    model.add_at_most_one(aims)  # (5.6)
    model.add_at_most_one(chosen)  # (5.13)
    for run in runs:
        model.add_at_least_one([*chosen, run.negated()])
    for option, choice in zip(options, chosen, strict=True):
        for tier, aim in zip(tiers, aims, strict=True):
            needed = int(problem.option_leases[option])
            model.add(sum(runs[: int(problem.tier_leases[tier])]) >= needed).only_enforce_if(choice, aim)  # (5.12)
    for aim in aims:
        model.add_at_least_one([*chosen, aim.negated()])
    uses = [[_product(model, run, choice) for run in runs] for choice in chosen]
    return _Job(runs, chosen, aims, uses)


def _product(model: cp_model.CpModel, first: cp_model.IntVar, second: cp_model.IntVar) -> cp_model.IntVar:
    both = model.new_bool_var("")
    model.add_bool_or(first.negated(), second.negated(), both)
    model.add_implication(both, first)
    model.add_implication(both, second)
    return both


def _add_capacity(model: cp_model.CpModel, problem: Problem, jobs: list[_Job]) -> None:
    """(5.14) in slot 0, the GPUs in all later ones."""
    demand, supply, first = problem.demand, problem.supply, problem.first_slot
    slots: defaultdict[int, list[cp_model.LinearExprT]] = defaultdict(list)
    cells: list[list[cp_model.LinearExprT]] = [[] for _ in supply]
    for row, job in enumerate(jobs):
        lease = int(problem.lease[row])
        for option, uses in zip(_span(problem.option_start, row), job.uses, strict=True):
            for number, use in enumerate(uses):
                begin = int(first[row]) + number * lease
                for slot in range(begin, begin + lease):
                    slots[slot].append(int(problem.option_gpus[option]) * use)
            if problem.may_start[row] and uses:
                for row_of_cells, amount in enumerate(demand[option].tolist()):
                    cells[row_of_cells].append(amount * uses[0])
    slots.pop(0, None)
    for slot, terms in slots.items():
        busy = int(problem.busy[slot]) if slot < len(problem.busy) else 0
        model.add(sum(terms) <= problem.capacity - busy)
    for limit, terms in zip(supply.tolist(), cells, strict=True):
        model.add(sum(terms) <= limit)


def _rewards(problem: Problem, jobs: list[_Job]) -> list[tuple[float, cp_model.IntVar]]:
    """(5.4), with what best-effort and profiler jobs are paid for running now."""
    found: list[tuple[float, cp_model.IntVar]] = []
    for row, job in enumerate(jobs):
        found += [(float(problem.tier_reward[tier]), aim) for tier, aim in zip(_span(problem.tier_start, row), job.aims, strict=True)]
        if problem.may_start[row] and job.runs:
            found.append((float(problem.now_reward[row]), job.runs[0]))
            for option, uses in zip(_span(problem.option_start, row), job.uses, strict=True):
                found.append((float(problem.option_bonus[option]), uses[0]))
    return [(reward, variable) for reward, variable in found if reward > 0]
