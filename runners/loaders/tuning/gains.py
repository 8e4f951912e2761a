"""The gain of a change, with its confidence: throughput of the windows after it over that of the windows before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

LEAST_SCATTER = 0.05  #: least standard deviation of a window's throughput, as a share of it, even if the few seen were more even
#: 99 % quantile of Student's t, from one degree of freedom on: a test repeated window after window must be surer than 95 %
_QUANTILES = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76, 2.72, 2.68, 2.65, 2.62, 2.60)


class Gain(NamedTuple):
    """Shares of the throughput before: 0.1 is 10 % more. ``low`` and ``high``: bounds of the gain, each at 99 %."""

    low: float
    mean: float
    high: float


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """By Welch's test of the two means, with one relative scatter for both, as short windows scatter much and are few."""
    was, now = (fmean(values) if values else 0.0 for values in (before, after))
    if not was > 0:
        return Gain(math.inf, math.inf, math.inf)
    free = len(before) + len(after) - 2
    if free < 1 or not now > 0:
        return Gain(-1.0, now / was - 1.0, math.inf)
    squares = sum((value / was - 1.0) ** 2 for value in before) + sum((value / now - 1.0) ** 2 for value in after)
    scatter = max(LEAST_SCATTER, math.sqrt(squares / free))
    doubt = _QUANTILES[min(free, len(_QUANTILES)) - 1] * scatter * math.sqrt(1 / len(before) + 1 / len(after))
    ratio = now / was
    return Gain(ratio * (1.0 - doubt) - 1.0, ratio - 1.0, ratio * (1.0 + doubt) - 1.0)
