"""Arrivals of the next hour (002 ch. 6.4.2.1): counts per five minutes, their periodic part, the past hour most like the last one, and a
copy of the hour that followed it.

As read (the thesis copies "the identified trace"): the hour that *follows* the match is copied, as the match resembles what has passed.
Nothing after ``now`` is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints

BIN = 300.0  #: seconds
HOUR = 12  #: bins of the reference, and of what is copied
FREQUENCIES = 24  #: the strongest, which make up the periodic part
LEAST = 3 * HOUR  #: bins of history without which nothing is generated: a match, what follows it, and the reference


@dataclass(frozen=True, slots=True)
class Copied:
    """Rows of the history that come again, and by how many seconds later."""

    rows: Ints
    shift: float
    distance: float  #: Manhattan distance of the match to the last hour, arrivals


def counts_before(submitted: Floats, now: float, bin_seconds: float = BIN) -> Floats:
    """Arrivals in each bin of the history, the oldest first; the last bin ends at ``now``."""
    past = submitted[submitted <= now]
    if not len(past):
        return np.zeros(0)
    age = np.floor((now - past) / bin_seconds).astype(np.int64)
    return np.bincount(age, minlength=1)[::-1].astype(np.float64)


def periodic_part(counts: Floats, frequencies: int = FREQUENCIES) -> Floats:
    """What the strongest frequencies of the counts add up to, and their mean."""
    spectrum = np.fft.rfft(counts)
    strength = np.abs(spectrum[1:])
    if len(strength) > frequencies:
        spectrum[1:][np.argsort(-strength, kind="stable")[frequencies:]] = 0.0
    part: Floats = np.fft.irfft(spectrum, n=len(counts))
    return part


def best_match(series: Floats, length: int = HOUR) -> tuple[int, float]:
    """First bin of the past hour most like the last one by Manhattan distance, and that distance; the newest of equals.

    Of past hours only those count whose next hour has passed too.
    """
    reference = series[-length:]
    starts = len(series) - 2 * length + 1
    windows = np.lib.stride_tricks.sliding_window_view(series, length)[:starts]
    distance = np.abs(windows - reference).sum(axis=1)
    first = starts - 1 - int(np.argmin(np.round(distance[::-1], 9)))
    return first, float(distance[first])


def arrivals_ahead(submitted: Floats, now: float, bin_seconds: float = BIN) -> Copied:
    """Which of the jobs come again within the next hour (twelve bins). ``submitted``: seconds, any order.

    Raises ValueError, in one line, for a history too short to copy from.
    """
    counts = counts_before(submitted, now, bin_seconds)
    if len(counts) < LEAST:
        raise ValueError(f"the history is {len(counts) * bin_seconds / 3600:.2g} h long; {LEAST * bin_seconds / 3600:g} h are needed")
    first, _ = best_match(periodic_part(counts))
    begin = now - (len(counts) - first - HOUR) * bin_seconds  # where the match ends, and what is copied begins
    rows = np.flatnonzero((submitted > begin) & (submitted <= begin + HOUR * bin_seconds))
    distance = float(np.abs(counts[first : first + HOUR] - counts[-HOUR:]).sum())
    return Copied(rows, now - begin, distance)
