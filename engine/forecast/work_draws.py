"""The possible work left of jobs beyond the belief, as random draws.

All are log-normal: errors of estimates multiply, and durations of jobs spread over orders of magnitude. By the knowledge about a job:

- steps and their pace, or a policy's estimator: the believed work left, times a small error;
- a duration of the whole job, given by the submitter or measured on earlier jobs of the model: that duration, times the error of
  earlier such durations in this pool, given that it is longer than the job has run already;
- none: as for jobs of its model, or else of the pool, given its run time so far.

A job that serves a model has no end, unless it is being cancelled.

The median rest of a job that has outrun all of that is its run time so far, as for heavy-tailed durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ...policies.contract import Bools, Floats, Jobs

STEPS_SPREAD = 0.1  #: standard deviation of the logarithm of the work left if steps and their pace are known
SAID_SPREAD = 0.3  #: the same for a given whole duration, while too few jobs have ended to learn it
UNKNOWN_SPREAD = 1.0  #: the same if nothing is known
MEDIAN_IF_UNKNOWN = 3600.0  #: seconds, the median of an unknown job in a pool without ended jobs
ENDLESS = 1e9  #: seconds left of a job that has no end: 30 years
ENOUGH_ENDED_JOBS = 8  #: least number of ended jobs to learn from
_LEAST_SPREAD, _MOST_SPREAD = 0.02, 2.0
_OUTRUN = 0.99  #: share of the believed durations outrun by a job from which on the belief is dropped
_LEAST_OUTRUN = 10.0  #: seconds
_MAD = 1.4826  #: of a normal distribution: the standard deviation over the median absolute deviation
_GOLDEN = (5**0.5 - 1) / 2
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Finished:
    """Completed jobs of the pool, the newest first."""

    model: Sequence[str]
    seconds: Floats  #: that it ran
    estimate: Floats  #: by the submitter, NaN: none


@dataclass(frozen=True, slots=True)
class Known:
    """The origin of the beliefs about jobs, a row per job of the View."""

    model: Sequence[str]
    by_steps: Bools  #: the rest follows from its steps and their pace
    whole: Floats  #: given seconds of the whole job, NaN: none given
    said: Bools  #: given by its submitter
    ending: Bools  #: it is cancelled, and ends as soon as it has stopped


@dataclass(frozen=True, slots=True)
class _Law:
    """A log-normal distribution."""

    median: float
    spread: float  #: standard deviation of the logarithm

    @classmethod
    def of(cls, values: Floats) -> _Law:
        """A fit that is robust against a few outliers."""
        logs = np.log(values)
        middle = float(np.median(logs))
        spread = _MAD * float(np.median(np.abs(logs - middle)))
        return cls(float(np.exp(middle)), min(max(spread, _LEAST_SPREAD), _MOST_SPREAD))


class DurationDraws:
    """Draws of the seconds of work left of jobs on ``gpus_min`` GPUs. A draw depends on its number only."""

    def __init__(self, jobs: Jobs, known: Known, finished: Finished) -> None:
        ran, n = jobs.run_time, len(jobs)
        laws = _laws(known, finished)
        self._median = np.array([law.median for law in laws])
        self._spread = np.array([law.spread for law in laws])
        self._before = ran.copy()  #: the draws are of the whole job, and longer than this
        uncertain = np.full(n, np.nan) if jobs.uncertainty is None else jobs.uncertainty
        ahead = ~np.isnan(jobs.remaining) & (known.by_steps | ~np.isnan(uncertain))
        self._set(ahead, jobs.remaining, np.where(np.isnan(uncertain), STEPS_SPREAD, uncertain))
        self._least = self._share_outrun()
        self._set(self._least > _OUTRUN, np.maximum(ran, _LEAST_OUTRUN), np.full(n, UNKNOWN_SPREAD))
        self._set(endless(jobs), np.full(n, ENDLESS), np.zeros(n))
        self._set(known.ending, np.zeros(n), np.zeros(n))
        self._least = self._share_outrun()

    def _set(self, rows: Bools, left: Floats, spread: Floats) -> None:
        """Set rows whose work left is known, not only the whole."""
        self._median[rows], self._spread[rows], self._before[rows] = left[rows], spread[rows], 0.0

    def _share_outrun(self) -> Floats:
        """Share of the believed durations that each job has outrun."""
        outrun = np.zeros(len(self._median))
        for row in np.flatnonzero(self._before > 0.0).tolist():
            away = np.log(self._before[row] / max(float(self._median[row]), 1e-9)) / max(float(self._spread[row]), _LEAST_SPREAD)
            outrun[row] = _NORMAL.cdf(float(away))
        return outrun

    def middles(self) -> Floats:
        """The medians, a row per job."""
        return self._at(np.full(len(self._median), 0.5))

    def draw(self, number: int, evenly: int) -> Floats:
        """One draw, a row per job. The draws of the row ``evenly`` are spread evenly, so that few show the whole range."""
        share = np.random.default_rng([0, number]).uniform(size=len(self._median))
        share[evenly] = (0.5 + number * _GOLDEN) % 1.0  # the additive recurrence: even after any number of draws
        return self._at(share)

    def _at(self, share: Floats) -> Floats:
        """The quantiles of the rest, given each job's run time so far."""
        within = np.clip(self._least + (1.0 - self._least) * share, 1e-9, 1.0 - 1e-9)
        away = np.fromiter(map(_NORMAL.inv_cdf, within.tolist()), np.float64, len(within))
        left: Floats = np.maximum(self._median * np.exp(self._spread * away) - self._before, 0.0)
        return left


def endless(jobs: Jobs) -> Bools:
    """Jobs that serve a model: they live until they are cancelled."""
    serves: Bools = np.zeros(len(jobs), dtype=bool) if jobs.kind is None else jobs.kind == "infer"
    return serves


def _laws(known: Known, finished: Finished) -> list[_Law]:
    """The distribution of each whole job's duration."""
    said = finished.estimate > 0  # False for NaN
    error = _Law.of(finished.seconds[said] / finished.estimate[said]) if said.sum() >= ENOUGH_ENDED_JOBS else _Law(1.0, SAID_SPREAD)
    anybody = _Law.of(finished.seconds) if len(finished.seconds) >= ENOUGH_ENDED_JOBS else _Law(MEDIAN_IF_UNKNOWN, UNKNOWN_SPREAD)
    models = np.array(finished.model, dtype=object)
    of_model: dict[str, _Law] = {}
    laws = []
    for row, model in enumerate(known.model):
        if not np.isnan(known.whole[row]):
            laws.append(_Law(float(known.whole[row]) * (error.median if known.said[row] else 1.0), error.spread))
            continue
        if model not in of_model:
            same = models == model
            of_model[model] = _Law.of(finished.seconds[same]) if same.sum() >= ENOUGH_ENDED_JOBS else anybody
        laws.append(of_model[model])
    return laws
