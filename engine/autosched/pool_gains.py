"""When a pool that tunes itself acts (002 ch. 6.5.2): the gains that are worth a change, and what a burst is."""

from __future__ import annotations

import math

from ...policies.autosched.arrivals_ahead import HOUR, counts_before
from .situation import History

LEAST_GAIN = 1.005  #: less is noise: tiny changes of a threshold move a figure by as much
BURST_GAIN = 1.1  #: from which on a search between two periods is applied (002 ch. 6.5.2)
BURST_SIGMAS = 3.0  #: arrivals of a check beyond the usual, in standard deviations of a Poisson count, that are a burst
BURST_LEAST = 5


def is_burst(history: History, now: float, check: float) -> bool:
    """Whether so many jobs came since the last check as chance rarely brings: mean + 3 sqrt(mean) of the checks before."""
    counts = counts_before(history.submitted, now, check)
    if len(counts) < HOUR:
        return False
    usual = float(counts[:-1].mean())
    return bool(counts[-1] >= max(usual + BURST_SIGMAS * math.sqrt(usual), BURST_LEAST))
