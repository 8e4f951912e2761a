"""Jobs that are alike to the optimisation, as the tasks of an array are: one row with a number of copies instead of a row each.

Alike are jobs whose options, deadlines, leases and memory are equal and whose rewards differ by a tolerance at most. Of copies it
only matters how many take which column; who they are is told at the end, always in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...arrays import Floats, Ints
from .problem import Problem

_STEP_OF_NO_REWARD = np.iinfo(np.int64).min  #: the step of a reward of 0


@dataclass(frozen=True, slots=True)
class Twins:
    """A problem with one row a kind of jobs. Copies are numbered row by row, ``copy_start[row]`` the first of each."""

    problem: Problem  #: rewards are the largest of the kind, so its optimum is at least that of the jobs
    copy_start: Ints  #: (rows + 1,)
    members: Ints  #: (n,) the jobs of each kind in their order, kind by kind
    option_shift: Ints  #: (n,) what turns an option of the problem into that of the job
    tier_shift: Ints  #: (n,) the same of deadlines
    excess: float  #: how far at most, relatively, a reward of the problem is above that of a job


def find_twins(problem: Problem, tolerance: float | None) -> Twins:
    """``tolerance``: relative difference of rewards up to which jobs are alike, 0: none; None: no job is like another."""
    every, none = np.arange(len(problem) + 1), np.zeros(len(problem), dtype=np.int64)
    alone = Twins(problem, every, every[:-1], none, none, 0.0)
    if tolerance is None:
        return alone
    kind = _kinds(problem, tolerance)
    copies = np.bincount(kind)
    if len(copies) == len(problem):
        return alone
    members = np.argsort(kind, kind="stable")
    copy_start = np.concatenate([[0], np.cumsum(copies)])
    reduced, excess = _reduced(problem, members[copy_start[:-1]], kind)
    option_shift = problem.option_start[:-1] - reduced.option_start[kind]
    return Twins(reduced, copy_start, members, option_shift, problem.tier_start[:-1] - reduced.tier_start[kind], excess)


def _kinds(problem: Problem, tolerance: float) -> Ints:
    """(n,) number of each job's kind, ascending by first appearance. Jobs with the same bytes are alike: exact, and hashed once."""
    memory = np.zeros(len(problem), dtype=np.int64) if problem.memory is None else problem.memory
    jobs = [problem.lease, problem.first_slot, memory, np.diff(problem.option_start), _steps(problem.now_reward, tolerance)]
    options = [problem.option_gpus, problem.option_leases, _steps(problem.option_bonus, tolerance), *problem.option_cells.T]
    tiers = [problem.tier_leases, _steps(problem.tier_reward, tolerance)]
    of_job, of_options, of_tiers = (np.column_stack(table).astype(np.int64).tobytes() for table in (jobs, options, tiers))
    widths = 8 * len(jobs), 8 * len(options), 8 * len(tiers)
    found: dict[bytes, int] = {}
    option, tier = (problem.option_start * widths[1]).tolist(), (problem.tier_start * widths[2]).tolist()
    kinds = [
        found.setdefault(
            of_job[row * widths[0] : (row + 1) * widths[0]]
            + of_options[option[row] : option[row + 1]]
            + of_tiers[tier[row] : tier[row + 1]],
            len(found),
        )
        for row in range(len(problem))
    ]
    return np.array(kinds, dtype=np.int64)


def _steps(rewards: Floats, tolerance: float) -> Ints:
    """Whole numbers that are equal only for rewards that differ by the tolerance at most."""
    if tolerance == 0.0:
        return (rewards + 0.0).view(np.int64)  # the bits; + 0.0 turns -0.0 into 0.0
    steps = np.full(len(rewards), _STEP_OF_NO_REWARD)
    some = rewards > 0
    steps[some] = np.floor(np.log(rewards[some]) / np.log1p(tolerance)).astype(np.int64)
    return steps


def _reduced(problem: Problem, first: Ints, kind: Ints) -> tuple[Problem, float]:
    """The problem of the ``first`` of each kind with the largest rewards of the kind, and how far these are above any of its jobs'."""
    option_start, options = _rows(problem.option_start, first)
    tier_start, tiers = _rows(problem.tier_start, first)
    bonus, bonus_excess = _largest(problem.option_bonus, options, _place(problem.option_start, option_start, kind))
    reward, reward_excess = _largest(problem.tier_reward, tiers, _place(problem.tier_start, tier_start, kind))
    now_reward, now_excess = _largest(problem.now_reward, first, kind)
    reduced = replace(
        problem,
        lease=problem.lease[first],
        may_start=problem.may_start[first],
        option_start=option_start,
        option_gpus=problem.option_gpus[options],
        option_cells=problem.option_cells[options],
        option_leases=problem.option_leases[options],
        option_bonus=bonus,
        tier_start=tier_start,
        tier_leases=problem.tier_leases[tiers],
        tier_reward=reward,
        now_reward=now_reward,
        first=None if problem.first is None else problem.first[first],
        memory=None if problem.memory is None else problem.memory[first],
    )
    return reduced, max(bonus_excess, reward_excess, now_excess)


def _rows(start: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """CSR starts of the chosen rows alone, and their entries."""
    counts = np.diff(start)[rows]
    begins = np.concatenate([[0], np.cumsum(counts)])
    return begins, np.arange(begins[-1]) + np.repeat(start[rows] - begins[:-1], counts)


def _place(start: Ints, reduced_start: Ints, kind: Ints) -> Ints:
    """For each entry of the jobs the entry of their kind."""
    counts = np.diff(start)
    return np.arange(start[-1]) + np.repeat(reduced_start[kind] - start[:-1], counts)


def _largest(rewards: Floats, first: Ints, place: Ints) -> tuple[Floats, float]:
    largest = rewards[first]
    np.maximum.at(largest, place, rewards)
    some = rewards > 0
    return largest, float((largest[place[some]] / rewards[some]).max(initial=1.0)) - 1.0
