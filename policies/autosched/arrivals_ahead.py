"""Arrivals of the next hour (002 ch. 6.4.2.1), copied from the past. Arrivals are counted per five minutes; the past hour whose periodic
part is most like that of the last hour is found, and the hour after it is copied.

The thesis copies "the identified trace". We copy the hour *after* the match, as the match itself resembles the hour that is over. Nothing
after ``now`` is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints

BIN_SECONDS = 300.0
HORIZON_BINS = 12  #: of the horizon: the hour that is copied, and the reference hour that it is found by
PERIODIC_FREQUENCIES = 24  #: the strongest frequencies, which make up the periodic part
MIN_HISTORY_BINS = 3 * HORIZON_BINS  #: a match, the hour after it, and the reference


@dataclass(frozen=True, slots=True)
class ArrivalsAhead:
    """Rows of the history that are expected to come again, and how many seconds later."""

    rows: Ints
    shift: float
    distance: float  #: Manhattan distance of the match to the last hour, arrivals


def counts_before(submitted: Floats, now: float, bin_seconds: float = BIN_SECONDS) -> Floats:
    """Arrivals in each bin of the history, the oldest first; the last bin ends at ``now``."""
    past = submitted[submitted <= now]
    if not len(past):
        return np.zeros(0)
    age = np.floor((now - past) / bin_seconds).astype(np.int64)
    return np.bincount(age, minlength=1)[::-1].astype(np.float64)


def periodic_part(counts: Floats, frequencies: int = PERIODIC_FREQUENCIES) -> Floats:
    """The sum of the strongest frequencies of the counts, and their mean."""
    spectrum = np.fft.rfft(counts)
    strength = np.abs(spectrum[1:])
    if len(strength) > frequencies:
        spectrum[1:][np.argsort(-strength, kind="stable")[frequencies:]] = 0.0
    part: Floats = np.fft.irfft(spectrum, n=len(counts))
    return part


def best_match(series: Floats, length: int = HORIZON_BINS) -> tuple[int, float]:
    """First bin of the past hour most like the last one by Manhattan distance, and that distance; the newest of equals.

    Of past hours only those count whose next hour has passed too.
    """
    reference = series[-length:]
    starts = len(series) - 2 * length + 1
    windows = np.lib.stride_tricks.sliding_window_view(series, length)[:starts]
    distance = np.abs(windows - reference).sum(axis=1)
    first = starts - 1 - int(np.argmin(np.round(distance[::-1], 9)))
    return first, float(distance[first])


def arrivals_ahead(submitted: Floats, now: float, bin_seconds: float = BIN_SECONDS) -> ArrivalsAhead:
    """Which of the jobs come again within the next hour (twelve bins). ``submitted``: seconds, any order.

    Raises ValueError, in one line, for a history too short to copy from.
    """
    counts = counts_before(submitted, now, bin_seconds)
    if len(counts) < MIN_HISTORY_BINS:
        hours, needed = len(counts) * bin_seconds / 3600, MIN_HISTORY_BINS * bin_seconds / 3600
        raise ValueError(f"the history is {hours:.2g} h long; {needed:g} h are needed")
    first, _ = best_match(periodic_part(counts))
    begin = now - (len(counts) - first - HORIZON_BINS) * bin_seconds  # where the match ends and the copied hour begins
    rows = np.flatnonzero((submitted > begin) & (submitted <= begin + HORIZON_BINS * bin_seconds))
    distance = float(np.abs(counts[first : first + HORIZON_BINS] - counts[-HORIZON_BINS:]).sum())
    return ArrivalsAhead(rows, now - begin, distance)
