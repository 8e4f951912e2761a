"""Jobs that arrive in each hour: the period, the periodic part and the bursts (002 ch. 6.2.1, Figure 6.1c)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...policies.contract import Floats

HOUR = 3600.0
MOST_BUCKETS = 50_000
MOST_COMPONENTS = 8  #: components of the periodic part
FALSE_ALARM = 0.01  #: probability that a period is found in arrivals without one
LONGEST_PERIOD = 8 * 86_400.0  #: seconds: a slower change is the growth of a cluster, not a habit of people
_LEAST_BUCKETS = 12
_LEAST_CYCLES = 2  #: a period must occur at least twice
_PADDING = 8  #: spectrum points a bin


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Jobs submitted in buckets of ``bucket`` seconds, the first at second ``start``; ``periodic + bursty`` is ``counts``."""

    start: float
    bucket: float
    counts: Floats
    periodic: Floats
    bursty: Floats  #: the rest: above 0 there are more jobs than the periods explain, below 0 fewer
    period: float | None  #: the dominating period in seconds, None: none stands out of the noise
    share: float  #: share of the variance of the counts that the periodic part explains, 0 to 1
    components: tuple[float, ...]  #: periods of the periodic part in seconds, the strongest first


def arrivals(submitted: Floats) -> Arrivals:
    """The arrivals, from times of submission in seconds, in any order."""
    first, last = (float(submitted.min()), float(submitted.max())) if len(submitted) else (0.0, 0.0)
    bucket = HOUR * max(1, math.ceil((last - first) / HOUR / MOST_BUCKETS))
    start = first // bucket * bucket
    counts = np.bincount(((submitted - start) // bucket).astype(np.int64)).astype(np.float64)
    # The last bucket is rarely a full one, and would look like a fall.
    whole = counts[:-1] if len(counts) > _LEAST_BUCKETS else counts
    period = dominating_period(whole, LONGEST_PERIOD / bucket)
    periodic, components = periodic_part(counts, cycles(len(whole), period), LONGEST_PERIOD / bucket)
    bursty = counts - periodic
    share = max(0.0, 1 - float(np.var(bursty) / np.var(counts))) if components else 0.0
    return Arrivals(
        start=start,
        bucket=bucket,
        counts=counts,
        periodic=periodic,
        bursty=bursty,
        period=None if period is None else period * bucket,
        share=share,
        components=tuple(one * bucket for one in components),
    )


def cycles(n: int, period: float | None) -> int:
    """The most of ``n`` buckets that are whole cycles: so the period is one bin of the FFT and does not leak into others."""
    return n if period is None else round(n // period * period)


def noise_level(power: Floats) -> float:
    """Power above which a bin of a periodogram is not noise, with FALSE_ALARM over all bins together.

    The power of noise has an exponential distribution in every bin, so its median is ln 2 times its mean; unlike the mean of all bins, the
    median hardly changes with a few strong periods.
    """
    mean = float(np.median(power)) / math.log(2)
    return -math.log(1 - (1 - FALSE_ALARM) ** (1 / len(power))) * mean


def dominating_period(counts: Floats, longest: float = math.inf) -> float | None:
    """The period of the strongest component in buckets, at most ``longest``; None when none stands out of the noise.

    The trend is removed from the counts, a Hann window weights them, and the spectrum is read between the bins of a plain FFT, which are
    far apart: for a week they would be at 24 and 28 hours, with none between.
    """
    n = len(counts)
    if n < _LEAST_BUCKETS or not np.ptp(counts):
        return None
    steps = np.arange(n)
    level = counts - np.polyval(np.polyfit(steps, counts, 1), steps)
    power = np.abs(np.fft.rfft(level * np.hanning(n + 1)[:n], _PADDING * n)) ** 2
    first = math.ceil(_PADDING * max(_LEAST_CYCLES, n / longest))
    inner = power[1:-1]
    # A peak is higher than both its neighbours; the slope of a component slower than ``longest`` is none.
    peaks = 1 + np.flatnonzero((inner > power[:-2]) & (inner >= power[2:]))
    peaks = peaks[(peaks >= first) & (power[peaks] > noise_level(power[_PADDING * _LEAST_CYCLES :: _PADDING]))]
    if not len(peaks):
        return None
    peak = int(peaks[np.argmax(power[peaks])])
    return _PADDING * n / (peak + _offset(power, peak))


def _offset(power: Floats, peak: int) -> float:
    """The offset of a peak's top from its bin: the vertex of the parabola through the three logarithms."""
    if not power[peak - 1 : peak + 2].all():
        return 0.0
    left, top, right = np.log(power[peak - 1 : peak + 2])
    bend = left - 2 * top + right
    return float(np.clip((left - right) / (2 * bend), -0.5, 0.5)) if bend < 0 else 0.0


def periodic_part(counts: Floats, whole: int, longest: float = math.inf) -> tuple[Floats, list[float]]:
    """The mean and the strongest components of the FFT of the first ``whole`` counts, and the components' periods in buckets.

    A component belongs to the periodic part if its power stands out of the noise: a short burst spreads thinly over all bins and so stays
    out, while daily arrivals concentrate in a few. There are at most MOST_COMPONENTS, none longer than ``longest``, and each occurs twice
    or more. A sum below 0 is set to 0, as no negative number of jobs can arrive.
    """
    base = np.full(len(counts), counts.mean() if len(counts) else 0.0)
    if whole < _LEAST_BUCKETS or not np.ptp(counts):
        return base, []
    spectrum = np.fft.rfft(counts[:whole])
    power = np.abs(spectrum) ** 2
    level = noise_level(power[_LEAST_CYCLES:])
    power[: math.ceil(max(_LEAST_CYCLES, whole / longest))] = 0.0
    strongest = [int(row) for row in np.argsort(power)[::-1][:MOST_COMPONENTS] if power[row] > level]
    kept = np.zeros_like(spectrum)
    kept[[0, *strongest]] = spectrum[[0, *strongest]]
    series = np.fft.irfft(kept, whole)
    # Beyond the whole cycles the components are continued.
    return np.maximum(np.resize(series, len(counts)), 0.0), [whole / row for row in strongest]
