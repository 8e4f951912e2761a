"""Families of learning curves: how a validation metric moves with training (Domhan, Springenberg, Hutter, IJCAI 2015, table 1).

Metrics are turned so that they rise. Every family is separable: a curve is ``a - b g(u; p)`` with linear ``a`` and ``b >= 0``, and one
or two shape parameters ``p`` in ``g``, which falls in u. ``u`` is the iteration divided by the last one observed. So the linear part is
solved in closed form and only p is searched (variable projection, Golub and Pereyra 1973).

Some of the paper's eleven families are the same curve in other parameters. These stand for all of them: ``power`` for pow3 and
pow4; ``weibull`` for Weibull, Janoschek and exp4; ``mmf`` for MMF; ``hill`` for hill3 and log power (hill3 with a negative exponent);
``vapor`` for vapor pressure and ``log-log`` for log-log linear, both with a free offset and slope; ``inverse-log`` for ilog2. The last
three, and ``power`` with an exponent of 0 or less, approach no asymptote, or very slowly. Smooth curves cannot foresee a later fall of
the learning rate that lifts a plateau, so these do well on real curves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats

Basis = Callable[[Floats, Floats], Floats]

_TINY = 1e-6
_STEEPEST = 50.0  #: logarithm of the largest power; beyond, a curve has long reached its asymptote


@dataclass(frozen=True, slots=True)
class CurveFamily:
    """``basis(u, p)`` is g at (n,) places for (k, 2) shapes, as (k, n)."""

    name: str
    basis: Basis
    starts: Floats  #: (k, 2) grid of shapes, from which searches start
    low: Floats  #: (2,) bounds of the shapes
    high: Floats
    bounded: bool = True  #: g falls to 0, so ``a`` is the asymptote
    anchored: bool = False  #: the curve rises from a metric of 0, or falls to it: ``b`` alone is free


def _family(
    name: str,
    basis: Basis,
    first: Sequence[float] | Floats,
    second: Sequence[float] | Floats,
    *,
    bounded: bool = True,
    anchored: bool = False,
) -> CurveFamily:
    """All pairs of the shapes ``first`` and ``second``. Searches stay within them: beyond, curves fit noise and forecast worse."""
    starts = np.array([(x, y) for x in first for y in second], dtype=np.float64)
    return CurveFamily(name, basis, starts, starts.min(axis=0), starts.max(axis=0), bounded, anchored)


def _power(u: Floats, p: Floats) -> Floats:
    """((u + beta)^-alpha - 1) / alpha, from alpha and log beta: its limit at alpha 0 is -log(u + beta), and it still falls below 0."""
    alpha = np.where(np.abs(p[:, :1]) < _TINY, _TINY, p[:, :1])
    power: Floats = np.expm1(-alpha * np.log(u + np.exp(p[:, 1:]))) / alpha
    return power


def _rise(u: Floats, p: Floats) -> Floats:
    """(kappa u)^delta from log kappa and log delta."""
    power: Floats = np.exp(np.minimum(np.exp(p[:, 1:]) * (np.log(u) + p[:, :1]), _STEEPEST))
    return power


def _weibull(u: Floats, p: Floats) -> Floats:
    decay: Floats = np.exp(-_rise(u, p))
    return decay


def _mmf(u: Floats, p: Floats) -> Floats:
    decay: Floats = 1.0 / (1.0 + _rise(u, p))
    return decay


def _inverse_log(u: Floats, p: Floats) -> Floats:
    """1 / log(1 + kappa u) from log kappa."""
    decay: Floats = 1.0 / np.log1p(np.exp(p[:, :1]) * u)
    return decay


def _vapor(u: Floats, p: Floats) -> Floats:
    """-exp(-beta / u) u^gamma from log beta and log gamma."""
    rise: Floats = np.exp(np.exp(p[:, 1:]) * np.log(u) - np.exp(p[:, :1]) / u)
    return -rise


def _log_log(u: Floats, p: Floats) -> Floats:
    """-log(log(1 + kappa u)) from log kappa."""
    decay: Floats = -np.log(np.log1p(np.exp(p[:, :1]) * u))
    return decay


_KAPPA, _DELTA = np.linspace(np.log(0.03), np.log(60.0), 14), np.linspace(np.log(0.3), np.log(4.0), 8)
_ALPHA = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.5)

FAMILIES = (
    _family("power", _power, _ALPHA, np.log([1e-4, 0.03, 0.1, 0.3, 1.0]), bounded=False),
    _family("weibull", _weibull, _KAPPA, _DELTA),
    _family("mmf", _mmf, _KAPPA, _DELTA),
    _family("hill", _mmf, _KAPPA, _DELTA, anchored=True),
    _family("inverse-log", _inverse_log, np.linspace(np.log(0.3), np.log(1e6), 10), [0.0]),
    _family("vapor", _vapor, np.log([1e-3, 0.01, 0.03, 0.1, 0.3]), np.log([0.01, 0.03, 0.1, 0.2, 0.4, 0.7]), bounded=False),
    _family("log-log", _log_log, np.linspace(np.log(0.3), np.log(1e6), 10), [0.0], bounded=False),
)
