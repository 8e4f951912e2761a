"""What a cycle has chosen, by job, as the start of the next one (end of 5.3.3.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Ints
from .columns import NONE
from .problem import Guess, Problem, Solution, Warm


@dataclass(frozen=True, slots=True)
class Last:
    """The choice of a cycle for the jobs that it gave something, which the next one numbers otherwise."""

    prices: Warm
    jobs: Ints  #: (c,) ids, ascending
    cells: Ints  #: (c, levels) of the option; it tells the options of a job apart
    tier: Ints  #: (c,) which of the job's deadlines it aims at, NONE: none

    def warm(self, ids: Ints, problem: Problem) -> Warm:
        """A start for the problem whose jobs have these ids. Options and deadlines that jobs no longer have are left out."""
        n = len(problem)
        option, tier = np.full(n, NONE), np.full(n, NONE)
        if len(self.jobs) and self.cells.shape[1] == problem.option_cells.shape[1]:
            row = np.minimum(np.searchsorted(self.jobs, ids), len(self.jobs) - 1)
            known = self.jobs[row] == ids
            owner = np.repeat(np.arange(n), np.diff(problem.option_start))
            same = np.flatnonzero(known[owner] & (problem.option_cells == self.cells[row[owner]]).all(axis=1))
            option[owner[same]] = same
            aims = known & (self.tier[row] != NONE) & (self.tier[row] < np.diff(problem.tier_start))
            tier[aims] = problem.tier_start[:-1][aims] + self.tier[row[aims]]
        return replace(self.prices, guess=Guess(option, tier))


def last_of(ids: Ints, problem: Problem, solution: Solution) -> Last:
    """``ids``: (n,) of the problem's jobs, in any order."""
    given = np.flatnonzero(solution.option != NONE)
    given = given[np.argsort(ids[given])]
    tier = solution.tier[given]
    rank = np.where(tier == NONE, NONE, tier - problem.tier_start[given])
    return Last(solution.warm, ids[given], problem.option_cells[solution.option[given]], rank)
