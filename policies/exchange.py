"""Improving a division of GPUs by handing some from one job to another, while that helps."""

from __future__ import annotations

import numpy as np

from .contract import Floats, Ints

_ENOUGH = 1e-9  #: a smaller improvement is none

Step = list[tuple[int, int]]  #: jobs with their new numbers of GPUs


def exchange(worth: Floats, begin: Ints, budget: int) -> Ints:
    """A division that no job can leave, alone or together with one other, so that the sum of ``worth`` rises.

    ``worth[i, n]`` is what ``n`` GPUs are worth to job ``i``, -inf where it cannot run on them; ``begin`` are the GPUs that the
    search starts from. The best step goes first: a job that takes free GPUs, that gives some back, or that takes some of
    which one other gives what is lacking. The sum rises with every step, so the search ends.
    """
    division, left = begin.copy(), budget - int(begin.sum())
    while step := _best_step(worth, division, left):
        for job, gpus in step:
            left -= gpus - int(division[job])
            division[job] = gpus
    return division


def _best_step(worth: Floats, division: Ints, left: int) -> Step:
    """The step that gains most, [] when none gains anything."""
    jobs, columns = worth.shape
    if not jobs:
        return []
    # What each job gains by 1, 2, … GPUs more, and loses by as many fewer, one row a job.
    here = worth[np.arange(jobs), division][:, None]
    beyond = np.full((jobs, columns), -np.inf)
    shifted = np.take_along_axis(np.hstack([beyond, worth, beyond]), columns + division[:, None] + np.arange(1 - columns, columns), axis=1)
    taking, giving = shifted[:, columns:] - here, shifted[:, columns - 2 :: -1] - here
    best, step = _ENOUGH, Step()
    for change, sign, most in ((taking, 1, min(left, columns - 1)), (giving, -1, columns - 1)):
        if most > 0:
            job, size = divmod(int(change[:, :most].argmax()), most)
            if change[job, size] > best:
                best, step = float(change[job, size]), [(job, int(division[job]) + sign * (size + 1))]
    takers, givers = _two_best(taking), _two_best(giving)
    for lacking in range(1, columns - left):
        for taker, gain in takers[lacking + left - 1]:
            for giver, loss in givers[lacking - 1]:
                if taker != giver and gain + loss > best:
                    best = gain + loss
                    step = [(taker, int(division[taker]) + lacking + left), (giver, int(division[giver]) - lacking)]
    return step


def _two_best(change: Floats) -> list[list[tuple[int, float]]]:
    """For each column the two rows with the largest entries: whoever the partner is, one of them is another job."""
    columns = np.arange(change.shape[1])
    first = change.argmax(axis=0)
    rest = change.copy()
    rest[first, columns] = -np.inf
    second = rest.argmax(axis=0)
    best = zip(first.tolist(), change[first, columns].tolist(), second.tolist(), rest[second, columns].tolist(), strict=True)
    return [[(a, gain), (b, less)] for a, gain, b, less in best]
