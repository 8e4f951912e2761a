"""The iteration at which a metric will reach its target: the training-iteration estimator (002 ch. 5.3.2.2).

An ensemble of learning curves (`curve_fit`) is continued to the user's maximum. A job ends at its first evaluation that meets the target,
so each curve gives a distribution of that evaluation: the probability that curve and noise together meet it there, and not before. Their
mixture is the estimate. Two more things are uncertain: a whole curve may be off by its family's forecast error on known values, and
an event may come that no curve foresees, such as a fall of the learning rate. The latter has a fixed share of the mixture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Floats
from .curve_fit import Ensemble, Observed, fit

_LEAST_VALUES = 3  #: values from which on curves are fitted
_FITTED = 100  #: more values are averaged to so many
_CELLS = 200  #: most future evaluations computed; of more only some, further apart
_UNFORESEEN = 0.3  #: probability of an event that no curve foresees: then the target is met anywhere up to the maximum
_OFFSETS = ((-math.sqrt(1.5), 0.3), (0.0, 0.4), (math.sqrt(1.5), 0.3))  #: of a curve as a whole, in its errors, with probabilities
_OUTLIER = 8.0  #: deviation from the neighbours, in robust standard deviations, from which on a value is an outlier
_LEAST_NOISE = 1e-5  #: of values that span 1
_HUGE = 1e150  #: largest value, so that squares stay finite


@dataclass(frozen=True, slots=True)
class IterationEstimate:
    """A job's total iterations. No figure is below those already run, nor above the maximum unless that has been passed."""

    iterations: float  #: median
    low: float  #: 10 %
    high: float  #: 90 %
    probability: float  #: that the target is met by the maximum; NaN: too few values to say
    log_std: float  #: standard deviation of the logarithm of the iterations


def estimate_iterations(
    steps: ArrayLike, values: ArrayLike, *, target: float, mode: Literal["max", "min"], maximum: int, done: int
) -> IterationEstimate:
    """Iterations until a metric first meets ``target``, or ``maximum`` if it does not.

    ``steps`` and ``values`` (n,) are the evaluations so far, in any order; values that are not finite and steps below 1 are left out.
    ``mode``: whether the metric is to rise or to fall to the target. ``done`` iterations have run. With fewer than three
    values the end is only known to be between ``done`` and ``maximum``. ValueError names the mistake.
    """
    u, y = _checked(steps, values, target, mode, maximum, done)
    sign = 1.0 if mode == "max" else -1.0
    done = int(max(done, u[-1])) if len(u) else done
    met = bool((sign * y >= sign * target).any())
    if met or done >= maximum:
        return IterationEstimate(done, done, done, float(met), 0.0)
    if len(y) < _LEAST_VALUES:
        at = np.linspace(done, maximum, _CELLS + 1)[1:]  # it may be anywhere
        return _summary(at, (maximum - at) / (maximum - done), math.nan)
    at, unmet = _first_passage(u, y, sign, target, done, maximum)
    unmet = (1 - _UNFORESEEN) * unmet + _UNFORESEEN * (maximum - at) / (maximum - done)
    return _summary(at, unmet, float(np.clip(1 - unmet[-1], 0.0, 1.0)))


def _checked(steps: ArrayLike, values: ArrayLike, target: float, mode: str, maximum: int, done: int) -> tuple[Floats, Floats]:
    """Usable steps, ascending, with their values; the last of several at one step."""
    u, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if u.ndim != 1 or u.shape != y.shape:
        raise ValueError(f"values: {y.shape} values for {u.shape} steps; give one value for each step")
    if mode not in {"max", "min"}:
        raise ValueError(f"mode: {mode!r} is neither 'max' nor 'min'; say whether the metric is to rise or to fall")
    if not math.isfinite(target):
        raise ValueError(f"target: {target!r} can never be met; give a number")
    if maximum < 1:
        raise ValueError(f"maximum: {maximum!r} iterations is not a training; give at least 1")
    if done < 0:
        raise ValueError(f"done: {done!r} iterations cannot have run; give at least 0")
    usable = np.isfinite(u) & np.isfinite(y) & (u >= 1)
    kept, last = np.unique(u[usable][::-1], return_index=True)
    return kept, np.clip(y[usable][::-1][last], -_HUGE, _HUGE)


def _summary(at: Floats, unmet: Floats, probability: float) -> IterationEstimate:
    """The estimate from the probabilities ``unmet`` that the target is not met by ``at``; the last of ``at`` is the maximum."""
    rows = np.minimum(np.searchsorted(1 - unmet, [0.1, 0.5, 0.9]), len(at) - 1)
    low, median, high = at[rows].tolist()
    mass = -np.diff(unmet, prepend=1.0)
    mass[-1] += unmet[-1]
    logs = np.log(np.maximum(at, 1.0))
    spread = math.sqrt(max(float(mass @ logs**2 - (mass @ logs) ** 2), 0.0))
    return IterationEstimate(median, low, high, probability, spread)


def _first_passage(steps: Floats, values: Floats, sign: float, target: float, done: int, maximum: int) -> tuple[Floats, Floats]:
    """Future evaluations up to the maximum, and the probability that none up to each meets the target, by the curves."""
    y = _without_outliers(sign * values)
    span = float(np.ptp(y)) or 1.0
    goal = (sign * target - y[-1]) / span
    last = steps[-1]
    u, scaled = steps / last, (y - y[-1]) / span
    ceiling = (_natural_ceiling(values, target, sign) - y[-1]) / span
    thin_u, thin_y = _averaged(u, scaled)
    ensemble = fit(Observed(thin_u, thin_y, zero=-y[-1] / span, ceiling=ceiling, rising=sign > 0))
    recent = min(max(6, len(u) // 4), 4 * _FITTED)
    noise = _noise(ensemble, u[-recent:], scaled[-recent:])
    at, evaluations = _evaluations(steps, done, maximum)
    curves = ensemble.at(at / last)
    off = np.sqrt(np.maximum(ensemble.error**2 - noise**2, 0.0))
    unmet = np.zeros(len(at))
    for offset, probability in _OFFSETS:
        meets = _normal_cdf((curves + (offset * off)[:, None] - goal) / noise)
        unmet += probability * (ensemble.weight @ np.exp(np.cumsum(evaluations * np.log1p(-meets), axis=1)))
    return at, unmet


def _natural_ceiling(values: Floats, target: float, sign: float) -> float:
    """The limit of an asymptote, turned to rise: 1 for a share, 100 for a percentage, 0 for a loss; inf for other metrics."""
    lowest, highest = min(values.min(), target), max(values.max(), target)
    if sign < 0:
        return 0.0 if lowest >= 0 else math.inf
    return next((limit for limit in (1.0, 100.0) if lowest >= 0 and highest <= limit), math.inf)


def _without_outliers(y: Floats) -> Floats:
    """Hampel's filter: values far from the median of five neighbours, as in a spike of a loss, become that median."""
    if len(y) < 7:
        return y
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, 5), axis=1)
    off = np.abs(y[2:-2] - middle)
    usual = 1.4826 * np.median(np.abs(np.diff(y) - np.median(np.diff(y)))) / math.sqrt(2)
    cleaned = y.copy()
    cleaned[2:-2] = np.where((off > _OUTLIER * usual) & (usual > 0), middle, y[2:-2])
    return cleaned


def _averaged(u: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Averages of neighbours if there are too many values to fit; the last stays at u = 1."""
    if len(u) <= _FITTED:
        return u, y
    first = np.linspace(0, len(u), _FITTED + 1).astype(np.int64)[:-1]
    counts = np.diff(first, append=len(u))
    return np.add.reduceat(u, first) / counts, np.add.reduceat(y, first) / counts


def _noise(ensemble: Ensemble, u: Floats, y: Floats) -> float:
    """Standard deviation from one evaluation to the next, as the error of a whole curve is not noise."""
    residual = ensemble.at(u)[0] - y
    return max(float(np.sqrt(np.mean(np.diff(residual) ** 2) / 2)), _LEAST_NOISE)


def _evaluations(steps: Floats, done: int, maximum: int) -> tuple[Floats, Floats]:
    """Future evaluations, at the recent interval, and the number that each stands for; geometrically spaced if there are many."""
    interval = float(np.median(np.diff(steps)[-max(5, len(steps) // 4) :]))
    passed = (done - steps[-1]) // interval
    count = max(math.ceil((maximum - steps[-1]) / interval - passed), 1)
    number = np.unique(np.round(np.geomspace(1, count, _CELLS))) if count > _CELLS else np.arange(1.0, count + 1)
    at = np.minimum(steps[-1] + interval * (passed + number), maximum)
    at[-1] = maximum
    return at, np.diff(number, prepend=0.0)


def _normal_cdf(z: Floats) -> Floats:
    """Standard normal, to 2e-4 (Page 1977), below 1 so that a logarithm of the rest exists."""
    bounded = np.clip(z, -8.0, 8.0)
    cdf: Floats = np.minimum(1.0 / (1.0 + np.exp(-bounded * (1.5976 + 0.07056 * bounded * bounded))), 1 - 1e-12)
    return cdf
