"""Distributions of jobs' remaining times, from histories of run times (3Sigma, EuroSys 2018, sections 3 and 4).

A history is a sorted sample: of ratios of true to estimated run times if a job has an estimate, otherwise of the service of finished
jobs. A running job is longer than the part of the history that it has outlived (Eqn 3); one that has outlived all of it is assumed
to end after 1, 2, 4, … further scheduling cycles (section 4.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from ..contract import Bools, Floats, Ints, View

SAMPLES = 20  #: of each distribution; equally likely
_RATIOS = 400


@cache
def ratios(spread: float) -> Floats:
    """Sorted ratios of true to estimated run times, log-normal about 1 with ``spread`` as the deviation of the logarithm."""
    middles = (np.arange(_RATIOS) + 0.5) / _RATIOS
    return np.exp(spread * np.array([NormalDist().inv_cdf(middle) for middle in middles]))


@dataclass(frozen=True, slots=True)
class Durations:
    """Whole run times of some jobs: each has ``scale`` times a draw from ``history``."""

    scale: Floats
    history: Floats  #: ascending
    run_time: Floats

    def left(self, cycle: float) -> Floats:
        """Equally likely remaining seconds, a row per job and ``SAMPLES`` columns, given its run time so far."""
        outlived = np.searchsorted(self.history, self.run_time / self.scale, side="right")
        longer = len(self.history) - outlived
        columns = (np.arange(SAMPLES) + 0.5) / SAMPLES
        drawn = np.minimum(outlived[:, None] + (longer[:, None] * columns).astype(np.int64), len(self.history) - 1)
        left = self.scale[:, None] * self.history[drawn] - self.run_time[:, None]
        left[longer == 0] = self._grace(longer == 0, cycle)[:, None]
        return np.maximum(left, 0.0)

    def exceed(self, span: Floats) -> Floats:
        """Probability that a job takes longer than ``span`` from its start to its end."""
        return 1.0 - np.searchsorted(self.history, span / self.scale, side="right") / len(self.history)

    def _grace(self, rows: Bools, cycle: float) -> Floats:
        """Remaining seconds of the present term: the job was assumed to end 1 cycle after the longest known one, then 2 later, then 4."""
        over = self.run_time[rows] - self.scale[rows] * self.history[-1]
        term = np.floor(np.log2(np.maximum(over, 0.0) / cycle + 1.0)) + 1.0
        grace: Floats = cycle * (2.0**term - 1.0) - over
        return grace


def remaining_samples(view: View, rows: Ints, spread: float, unknown: float, cycle: float) -> tuple[Floats, Floats]:
    """Remaining seconds of ``rows`` (``SAMPLES`` columns), and the probability of each to take longer than its submitter allowed."""
    jobs = view.jobs
    known = ~np.isnan(jobs.remaining[rows])
    left, hopeless = np.empty((len(rows), SAMPLES)), np.zeros(len(rows))
    span = jobs.deadline[rows] - jobs.submitted_at[rows]
    for among, scale, history in (
        (known, jobs.run_time[rows] + np.maximum(jobs.remaining[rows], 0.0), ratios(spread)),
        (~known, *_of_the_unknown(view, rows, spread, unknown)),
    ):
        durations = Durations(np.maximum(scale[among], 1e-9), history, jobs.run_time[rows][among])
        left[among], hopeless[among] = durations.left(cycle), durations.exceed(span[among])
    return left, hopeless


def _of_the_unknown(view: View, rows: Ints, spread: float, unknown: float) -> tuple[Floats, Floats]:
    finished = view.finished_service
    if finished is None or not len(finished) or finished[-1] <= 0:
        return np.full(len(rows), unknown), ratios(spread)
    return 1.0 / view.jobs.gpus_min[rows], finished
