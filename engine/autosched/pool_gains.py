"""When a pool that tunes itself acts (002 ch. 6.5.2): the gains that are worth a change, and what a burst is."""

from __future__ import annotations

import math

from ...policies.autosched.arrivals_ahead import HOUR, counts_before
from .situation import History

LEAST_GAIN = 1.005  #: less is noise: tiny changes of a threshold move a figure by as much
BURST_GAIN = 1.1  #: from which on a search between two periods is applied (002 ch. 6.5.2)
BURST_SIGMAS = 3.0  #: arrivals of a check beyond the usual, in standard deviations of a Poisson count, that are a burst
BURST_LEAST = 5


def is_burst(history: History, now: float, check: float, since: float = -math.inf) -> bool:
    """Whether more jobs came within a check than chance brings: mean + 3 sqrt(mean) of those before. ``since``: the moment of the last
    search, which may have taken several checks; without one the last check counts."""
    counts = counts_before(history.submitted, now, check)
    if len(counts) < HOUR:
        return False
    recent = max(min(math.ceil((now - since) / check), HOUR - 1), 1) if math.isfinite(since) else 1
    usual = float(counts[:-recent].mean())
    return bool(counts[-recent:].max() >= max(usual + BURST_SIGMAS * math.sqrt(usual), BURST_LEAST))
