"""The local predictor (002 ch. 6.4.2.2, 6.5.1): in which range a job's duration lies, and a duration drawn from the history of that range.

The features are those of table 6.2 (recent arrivals, recent completions, the job), its user, which the table omits and the text finds worth
4 to 7 %, and its virtual cluster (the pool that a trace names). The classifier gives way to a simple rule (the last job of the user, the
mean, the median) that was right more often on the newest jobs; the thesis compares them, but always uses its own. Gradient boosted trees of
scikit-learn take the place of XGBoost.

The thesis leaves two points open, which we decided:

- A range is predicted as of the submission, and then conditioned on the job's run time so far (Bayes): shorter ranges are left out, and the
  current one counts by the share of its jobs that ran for longer. Draws are longer than the run time so far.
- Jobs that still run are learnt from too, as if they ended like those that ran for longer (`as_they_may_end`). Of the jobs of the last
  hours only short ones have ended; by these alone, all new jobs would seem to be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Floats, Ints

RANGE_BOUNDS = (300.0, 1800.0, 3600.0, 7200.0, 14400.0)  #: seconds (002 ch. 6.5.1)
RECENT_JOBS = 5  #: k of table 6.2: arrivals and completions among the features
TRAINING_SHARE = 0.7  #: share of the jobs, the earliest, that a classifier is learnt from when accuracy is measured on the others
MIN_ENDED_JOBS = 100
DAY = 86400.0


class NoPredictor(Exception):
    """There is no predictor; one line says why."""


@dataclass(frozen=True, slots=True)
class PastJobs:
    """Jobs in the order of submission, a row each. Seconds; NaN: not ended."""

    submitted: Floats
    gpus: Ints
    duration: Floats
    ended: Floats
    user: Ints  #: a code
    ran: Floats  #: run time so far of those that have not ended
    vc: Ints | None = None  #: code of the virtual cluster; None: no job has one


def range_of(duration: Floats) -> Ints:
    """0 for [0, 5 min), …, 5 for 4 h and more."""
    return np.searchsorted(RANGE_BOUNDS, duration, side="right")


def features(jobs: PastJobs, row: int, now: float) -> Floats:
    """Table 6.2 for one job as of ``now``: the last arrivals and completions, the job, and the durations of its user's last jobs."""
    before = np.flatnonzero(jobs.submitted[:row] <= now)[-RECENT_JOBS:] if row else np.zeros(0, dtype=int)
    over = np.flatnonzero(jobs.ended <= now)
    over = over[over != row]
    last = over[np.argsort(jobs.ended[over], kind="stable")][-RECENT_JOBS:]
    running = np.minimum(
        np.where(jobs.ended[before] <= now, jobs.duration[before], now - jobs.submitted[before]), now - jobs.submitted[before]
    )
    moment = jobs.submitted[row]
    return np.concatenate((
        [moment % DAY, moment % (7 * DAY), jobs.gpus[row], jobs.user[row], *last_of(jobs, jobs.user, row, over)],
        [0.0, 0.0, 0.0] if jobs.vc is None else [jobs.vc[row], *last_of(jobs, jobs.vc, row, over)],
        _filled(now - jobs.submitted[before]), _filled(running), _filled(jobs.gpus[before]),
        _filled(now - jobs.submitted[last]), _filled(now - jobs.ended[last]), _filled(jobs.duration[last]), _filled(jobs.gpus[last]),
    ))  # fmt: skip


def _as_submitted(jobs: PastJobs, rows: Sequence[int]) -> Floats:
    return np.array([features(jobs, row, float(jobs.submitted[row])) for row in rows])


def last_of(jobs: PastJobs, codes: Ints, row: int, over: Ints) -> tuple[float, float]:
    """Logarithms of the last and of the median duration of the ended jobs of its user, or of its virtual cluster; NaN: there are none."""
    own = alike(codes, row, over)
    newest = newest_of(jobs, own)
    if newest is None:
        return np.nan, np.nan
    return float(np.log1p(jobs.duration[newest])), float(np.log1p(np.median(jobs.duration[own])))


def alike(codes: Ints, row: int, over: Ints) -> Ints:
    """Which of the ended jobs are of its user, or of its virtual cluster."""
    found: Ints = over[codes[over] == codes[row]]
    return found


def newest_of(jobs: PastJobs, ended: Ints) -> int | None:
    """Which of these ended last; None: there are none."""
    return int(ended[np.argmax(jobs.ended[ended])]) if len(ended) else None


def _filled(values: Floats | Ints) -> Floats:
    """The newest `RECENT_JOBS`, logarithms; NaN where there are fewer."""
    made = np.full(RECENT_JOBS, np.nan)
    if len(values):
        made[-len(values) :] = np.log1p(np.maximum(values, 0.0))
    return made


@dataclass
class DurationRanges:
    """A classifier, the durations of each range, and how often it was right on jobs that it had not seen, beside simple rules."""

    classifier: Any
    known: Floats  #: durations that it was learnt from, ascending
    accuracy: float
    beside: dict[str, float]

    @classmethod
    def learnt(cls, jobs: PastJobs, seed: int = 0) -> DurationRanges:
        """From jobs that have begun. Raises NoPredictor without the extra, or when too few of them have ended."""
        over = np.count_nonzero(~np.isnan(jobs.duration))
        if over < MIN_ENDED_JOBS:
            raise NoPredictor(f"{over} jobs have ended; {MIN_ENDED_JOBS} are needed")
        rng = np.random.default_rng([seed, 11])
        whole = as_they_may_end(jobs, rng)
        rows = np.flatnonzero(~np.isnan(whole))
        whole = whole[rows]
        half = rng.random(len(rows)) < 0.5  # these are judged at their submission, the others while they run
        elapsed = np.where(half, 0.0, rng.random(len(rows)) * whole)
        x = _as_submitted(jobs, rows.tolist())
        y, cut = range_of(whole), int(TRAINING_SHARE * len(rows))
        early = _classifier(x[:cut], y[:cut])
        shares = _shares(early, x[cut:])
        guessed = [
            likeliest(possible(one, early.classes_, whole[:cut], ran)) for one, ran in zip(shares, elapsed[cut:].tolist(), strict=True)
        ]
        right = float((np.array(guessed) == y[cut:]).mean())
        return cls(_classifier(x, y), np.sort(whole), right, simple_rules(jobs, rows, cut, whole))

    @property
    def rule(self) -> str:
        """The simple rule that was right more often than the classifier; empty: none was."""
        best = max(self.beside, key=self.beside.__getitem__, default="")
        return best if best and self.beside[best] > self.accuracy else ""

    def draw(self, jobs: PastJobs, rows: Sequence[int], now: float, elapsed: Floats, seed: int = 0) -> Floats:
        """Whole durations of jobs that have not ended, longer than they have run."""
        if not len(rows):
            return np.zeros(0)
        rng = np.random.default_rng([seed, 12])
        ranges = self._by_rule(jobs, rows, now, elapsed, rng) if self.rule else self._by_classifier(jobs, rows, elapsed, rng)
        return np.array([drawn(self.known, one, float(ran), rng) for one, ran in zip(ranges, elapsed, strict=True)])

    def _by_classifier(self, jobs: PastJobs, rows: Sequence[int], elapsed: Floats, rng: np.random.Generator) -> list[int]:
        shares, classes = _shares(self.classifier, _as_submitted(jobs, rows)), self.classifier.classes_
        return [drawn_range(possible(one, classes, self.known, float(ran)), rng) for one, ran in zip(shares, elapsed, strict=True)]

    def _by_rule(self, jobs: PastJobs, rows: Sequence[int], now: float, elapsed: Floats, rng: np.random.Generator) -> list[int]:
        """The rule is for jobs that have not run yet; the others go on like those that ran for longer."""
        usual = float(self.known.mean() if self.rule == "mean" else np.median(self.known))
        over, taken = np.flatnonzero(jobs.ended <= now), []
        for row, ran in zip(rows, elapsed.tolist(), strict=True):
            if ran > 0.0:
                longer = self.known[self.known > ran]
                taken.append(float(rng.choice(longer)) if len(longer) else ran)
            else:
                newest = newest_of(jobs, alike(jobs.user, row, over)) if self.rule == "last" else None
                taken.append(usual if newest is None else float(jobs.duration[newest]))
        ranges: list[int] = range_of(np.array(taken)).tolist()
        return ranges


def possible(shares: Floats, classes: Ints, known: Floats, elapsed: float) -> Floats:
    """Shares of all ranges for a job that has run for ``elapsed``; they add up to 1. ``known``: durations of the history, which say how
    many jobs of its current range run for longer."""
    least, all_of = int(range_of(np.array([elapsed]))[0]), np.zeros(len(RANGE_BOUNDS) + 1)
    within = known[range_of(known) == least]
    all_of[classes] = shares
    all_of[:least] = 0.0
    all_of[least] *= (np.count_nonzero(within > elapsed) + 0.5) / (len(within) + 0.5)
    whole = all_of.sum()
    if whole <= 0.0:
        all_of[least] = whole = 1.0
    found: Floats = all_of / whole
    return found


def drawn_range(shares: Floats, rng: np.random.Generator) -> int:
    """One of the ranges, each as likely as it is predicted.

    The thesis takes the likeliest for all. That leaves out the long jobs, which are few, and most of the work.
    """
    return int(rng.choice(len(shares), p=shares))


def likeliest(shares: Floats) -> int:
    return int(np.argmax(shares))


def drawn(known: Floats, of_range: int, elapsed: float, rng: np.random.Generator) -> float:
    """A duration of the history within the range and longer than ``elapsed``; twice that where there is none."""
    within = known[(range_of(known) == of_range) & (known > elapsed)]
    return float(rng.choice(within)) if len(within) else max(2.0 * elapsed, (0.0, *RANGE_BOUNDS)[of_range] + 1.0)


def as_they_may_end(jobs: PastJobs, rng: np.random.Generator) -> Floats:
    """Durations of all jobs that have begun, NaN for the others. A job that still runs gets the duration of one that ran for longer, of its
    user if possible; if none did, twice its run time so far. In the mean of many draws this is the Kaplan-Meier estimate (Efron 1967:
    censored durations are spread over all longer ones)."""
    over = ~np.isnan(jobs.duration)
    found = jobs.duration.copy()
    for row in np.flatnonzero(~over & (jobs.ran > 0.0)).tolist():
        longer = over & (jobs.duration > jobs.ran[row])
        own = longer & (jobs.user == jobs.user[row])
        known = jobs.duration[own if own.any() else longer]
        found[row] = rng.choice(known) if len(known) else 2.0 * jobs.ran[row]
    return found


def simple_rules(jobs: PastJobs, rows: Ints, cut: int, whole: Floats) -> dict[str, float]:
    """How often simple rules are right on the same jobs: the user's last job, the mean, the median. ``whole``: durations of ``rows``."""
    early, y = whole[:cut], range_of(whole)
    mean, median = (int(range_of(np.array([value]))[0]) for value in (early.mean(), np.median(early)))
    last: list[int] = []
    for row in rows[cut:].tolist():
        newest = newest_of(jobs, alike(jobs.user, row, np.flatnonzero(jobs.ended <= jobs.submitted[row])))
        last.append(median if newest is None else int(range_of(jobs.duration[newest][None])[0]))
    right = y[cut:]
    return {
        "last": float((np.array(last) == right).mean()),
        "mean": float((right == mean).mean()),
        "quantile": float((right == median).mean()),
    }


def _classifier(x: Floats, y: Ints) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise NoPredictor("the extra is not installed: pip install '.[autosched]' in Stoker's source tree") from None
    with _one_core():
        return HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, early_stopping=False, random_state=0).fit(x, y)


def _shares(classifier: Any, x: Floats) -> Floats:
    """A row a job, a column a range."""
    with _one_core():
        shares: Floats = classifier.predict_proba(x)
    return shares


def _one_core() -> AbstractContextManager[Any]:
    """A search may take one core. Beside other work, threads that wait for each other also take ten times as long for so few jobs."""
    from threadpoolctl import threadpool_limits  # scikit-learn needs it itself

    return threadpool_limits(1)  # type: ignore[no-any-return]
