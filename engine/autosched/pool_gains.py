"""When a pool that tunes itself acts (002 ch. 6.5.2): the gains that are worth a change, and what a burst is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...policies.autosched.arrivals_ahead import HOUR, counts_before
from ...policies.autosched.search_space import Configuration
from .situation import History

LEAST_GAIN = 1.005  #: less is noise: tiny changes of a threshold move a figure by as much
BURST_GAIN = 1.1  #: from which on a search between two periods is applied (002 ch. 6.5.2)
TRIED_AGAIN = 24  #: periods after which what was taken back may be put in force again
BURST_SIGMAS = 3.0  #: arrivals of a check beyond the usual, in standard deviations of a Poisson count, that are a burst
BURST_LEAST = 5
USUAL = 2 * HOUR  #: checks whose arrivals are usual: a daily wave is no burst, and the mean of days would call each morning one
AGAIN = 5  #: configurations of before that a search tries first


def tried_before(in_force: Configuration, before: Sequence[Configuration]) -> list[Configuration]:
    """What the next search tries first: what was in force before all searches, and the newest of what was in force since.

    A load comes back, and what was best before costs a trial to look at.
    """
    first = before[0] if before else in_force
    since = [one for one in before[1:] if one != in_force][-(AGAIN - 2) :]
    return [first, *since, *([in_force] if in_force != first else [])]


def newest(now: float, *moments: float | None) -> float:
    """The last search of a pool, -inf: none. What lies ahead was decided before the clock was set back, and would hold up the next."""
    return max((moment for moment in moments if moment is not None and moment <= now), default=-math.inf)


def is_burst(history: History, now: float, check: float, since: float = -math.inf) -> bool:
    """Whether more jobs came within a check than chance brings: mean + 3 sqrt(mean) of the two hours before. ``since``: the moment of the
    last search, which may have taken several checks; without one the last check counts."""
    counts = counts_before(history.submitted, now, check)
    if len(counts) < HOUR:
        return False
    recent = max(min(math.ceil((now - since) / check), HOUR - 1), 1) if math.isfinite(since) else 1
    usual = float(counts[:-recent][-USUAL:].mean())
    return bool(counts[-recent:].max() >= max(usual + BURST_SIGMAS * math.sqrt(usual), BURST_LEAST))
