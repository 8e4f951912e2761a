"""The controller of AutoSched (002 ch. 6.5.2, 6.5.3): when a search is due, whether its best is applied, and when a change is rolled back.

It is pure: moments, arrivals and measurements are handed in. `PoolTuning` drives it in a daemon, `SimulatedTuning` in a simulation.

A change is measured by the jobs that were at hand when it was applied. Each takes part of the period that follows: until it ends, or all of
it. The trial of the old configuration said how much that would have been without the change. Later arrivals play no part, as those that
were expected need not have come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.autosched.arrivals_ahead import HOUR, counts_before
from ...policies.autosched.search_space import Configuration
from ...policies.contract import Floats

MIN_GAIN_PERIODIC = 1.005  #: smaller gains are noise: a tiny change of a threshold moves a figure by as much
MIN_GAIN_BURST = 1.1  #: of a search between two periods (002 ch. 6.5.2)
MIN_MEASURED_GAIN = 0.9  #: below it a change is rolled back; smaller losses are within the error of predicted durations
ROLLED_BACK_PERIODS = 24  #: for so long a configuration that was rolled back is not applied again
BURST_SIGMAS = 3.0  #: standard deviations (Poisson) by which the arrivals of a check exceed the baseline in a burst
MIN_BURST_ARRIVALS = 5
BASELINE_CHECKS = 2 * HOUR  #: two hours only: against the mean of whole days, each morning would be a burst
MAX_EARLIER = 5  #: configurations of before that the next search tries first
ROUNDING = 1e-6  #: seconds by which a check may come before the end of a period


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a search begins, and the gain that its best needs in order to be applied."""

    why: str
    min_gain: float


@dataclass
class Controller:
    """When one pool is searched for, and what becomes of the results. Moments are seconds of any one clock."""

    period: float
    searched_at: float = -math.inf
    periodic_at: float | None = None  #: the last periodic search; a burst does not put off the next one

    @property
    def check_interval(self) -> float:
        """Seconds between two looks for bursts."""
        return self.period / HOUR

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds, and the moments move with it."""
        self.searched_at += by
        self.periodic_at = None if self.periodic_at is None else self.periodic_at + by

    def period_ends(self, now: float, stored: float | None = None) -> float:
        """When the next periodic search is due. ``stored``: the last search before a restart."""
        return newest(now, stored if self.periodic_at is None else self.periodic_at) + self.period

    def due(self, now: float, submitted: Callable[[], Floats], stored: float | None = None) -> Trigger | None:
        """The search that is due now, which counts as made from here on. ``submitted``: the arrivals of the history, asked for only if
        no period is over."""
        if now >= self.period_ends(now, stored) - ROUNDING:
            self.searched_at = self.periodic_at = now
            return Trigger("hourly" if self.period == 3600.0 else "a period is over", MIN_GAIN_PERIODIC)
        if is_burst(submitted(), now, self.check_interval, newest(now, self.searched_at)):
            self.searched_at = now
            return Trigger("a burst of arrivals", MIN_GAIN_BURST)
        return None

    def rolled_back_since(self, now: float) -> float:
        """Changes that were rolled back from then on are not applied again."""
        return now - ROLLED_BACK_PERIODS * self.period


def refusal(before: Configuration, after: Configuration, gain: float, min_gain: float, rolled_back: Collection[Any] = ()) -> str:
    """Why the best of a search is not applied; empty: it is. A prediction that was wrong once is as wrong in the next hour."""
    if gain < min_gain or after == before:
        return f"it gains {gain:.3f} ×, less than {min_gain:g}"
    if after in rolled_back:
        return f"what gains {gain:.3f} × was taken back in the last {ROLLED_BACK_PERIODS} periods"
    return ""


def measured_gain(expected: float, taken: float | None) -> float | None:
    """Mean seconds of the period that the jobs were to take without the change, over those that they took; None: no job was at hand."""
    return expected / taken if taken and expected > 0 else None


def has_harmed(gain: float) -> bool:
    return gain < MIN_MEASURED_GAIN


def tried_before(in_force: Configuration, before: Sequence[Configuration]) -> list[Configuration]:
    """The configurations that the next search tries first: the one in force before all searches, and the newest of those since.

    A load comes back, and a look at its old best costs one trial.
    """
    first = before[0] if before else in_force
    since = [one for one in before[1:] if one != in_force][-(MAX_EARLIER - 2) :]
    return [first, *since, *([in_force] if in_force != first else [])]


def newest(now: float, *moments: float | None) -> float:
    """The last of the moments that are not ahead, -inf: none. Moments ahead come from a clock that was set back since."""
    return max((moment for moment in moments if moment is not None and moment <= now), default=-math.inf)


def is_burst(submitted: Floats, now: float, check: float, since: float = -math.inf) -> bool:
    """Whether more jobs came within a check than chance brings: more than mean + 3 sqrt(mean) of the two hours before.

    ``since``: the last search. Each check since then is looked at, as a search may take several; without one, the last check alone.
    """
    counts = counts_before(submitted, now, check)
    if len(counts) < HOUR:
        return False
    recent = max(min(math.ceil((now - since) / check), HOUR - 1), 1) if math.isfinite(since) else 1
    baseline = float(counts[:-recent][-BASELINE_CHECKS:].mean())
    return bool(counts[-recent:].max() >= max(baseline + BURST_SIGMAS * math.sqrt(baseline), MIN_BURST_ARRIVALS))
