"""Improves a division of GPUs by moving some from one job to another, while that helps."""

from __future__ import annotations

import numpy as np

from ..contract import Floats, Ints

_LEAST_IMPROVEMENT = 1e-9  #: least improvement

Step = list[tuple[int, int]]  #: jobs with their new numbers of GPUs


def exchange(worth: Floats, begin: Ints, budget: int) -> Ints:
    """A division from which no change of one job, or of two together, raises the sum of ``worth``.

    ``worth[i, n]`` is the worth of ``n`` GPUs to job ``i``, -inf if it cannot run on them; ``begin`` are the GPUs at the start of
    the search. The best step goes first: a job takes free GPUs, gives some back, or takes some of which one other job gives the
    missing ones. The sum rises with every step, so the search ends.
    """
    search = _Search(worth, begin, budget)
    while step := search.best_step():
        search.take(step)
    return search.division


class _Search:
    def __init__(self, worth: Floats, begin: Ints, budget: int) -> None:
        self.worth, self.division, self.left = worth, begin.copy(), budget - int(begin.sum())
        jobs, columns = worth.shape
        #: each job's (row's) gain by 1, 2, … GPUs more, and by so many fewer
        self.taking, self.giving = np.full((jobs, columns), -np.inf), np.full((jobs, columns), -np.inf)
        for job in range(jobs):
            self._look(job)

    def _look(self, job: int) -> None:
        row, here = self.worth[job], int(self.division[job])
        self.taking[job, : len(row) - here - 1] = row[here + 1 :] - row[here]
        self.taking[job, len(row) - here - 1 :] = -np.inf
        self.giving[job, :here] = row[:here][::-1] - row[here]
        self.giving[job, here:] = -np.inf

    def take(self, step: Step) -> None:
        for job, gpus in step:
            self.left -= gpus - int(self.division[job])
            self.division[job] = gpus
            self._look(job)

    def best_step(self) -> Step:
        """The step with the largest gain; [] if none gains."""
        jobs, columns = self.worth.shape
        if not jobs:
            return []
        best, step = _LEAST_IMPROVEMENT, Step()
        for change, sign, most in ((self.taking, 1, min(self.left, columns)), (self.giving, -1, columns)):
            if most > 0:
                job, size = divmod(int(change[:, :most].argmax()), most)
                if change[job, size] > best:
                    best, step = float(change[job, size]), [(job, int(self.division[job]) + sign * (size + 1))]
        takers, givers = _two_best(self.taking), _two_best(self.giving)
        for lacking in range(1, columns - self.left):
            for taker, gain in takers[lacking + self.left - 1]:
                for giver, loss in givers[lacking - 1]:
                    if taker != giver and gain + loss > best:
                        best = gain + loss
                        taken, given = int(self.division[taker]) + lacking + self.left, int(self.division[giver]) - lacking
                        step = [(taker, taken), (giver, given)]
        return step


def _two_best(change: Floats) -> list[list[tuple[int, float]]]:
    """For each column the two rows with the largest entries: one of them is always another job than the partner."""
    columns = np.arange(change.shape[1])
    first = change.argmax(axis=0)
    most = change[first, columns]
    change[first, columns] = -np.inf
    second = change.argmax(axis=0)
    rest = change[second, columns]
    change[first, columns] = most
    return [[(a, gain), (b, less)] for a, gain, b, less in zip(first.tolist(), most.tolist(), second.tolist(), rest.tolist(), strict=True)]
