"""An ensemble of learning curves fitted to a job's reported metric: weighted non-linear least squares, by variable projection.

Every node of a family's grid of shapes is a start, with its linear part solved in closed form, all at once. The best few of each family
are improved by Levenberg-Marquardt, in one batch. Nodes and ends of searches are the members of the ensemble: within a family they
are weighted by their likelihood, and families by their forecasts of the most recent values, held out one part after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from .curve_families import FAMILIES, CurveFamily

_RECENCY = 1.5  #: least squares weigh points by u to this power: the future follows from the late part
_FOLDS = (0.5, 0.7, 0.85)  #: shares of the values from which the others are forecast
_SHARPNESS = 0.5  #: a family's weight is its forecast error to minus this power; a larger power was worse on real curves
_EVIDENCE = 30  #: most values that count as independent
_SEARCHES = 2  #: of each family
_ITERATIONS = 6
_STEP = 1e-5  #: of the finite differences by shape
_EXACT_FIT_VARIANCE = 1e-10  #: residual variance below which a fit counts as exact, of values that span 1
_MOST_MEMBERS = 100  #: members kept


@dataclass(frozen=True, slots=True)
class Observed:
    """Values of a metric, turned to rise and scaled to span 1. ``u`` (n,) ascends to 1."""

    u: Floats
    y: Floats
    zero: float  #: scaled value of a metric of 0
    ceiling: float  #: no asymptote is above it
    rising: bool  #: before it was turned

    def __len__(self) -> int:
        return len(self.u)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Curves ``a - b g(u; p)`` of ``families[family]``, all arrays with a row per member; weights add up to 1, the largest first."""

    families: Sequence[CurveFamily]
    family: Ints
    shape: Floats  #: (k, 2)
    a: Floats
    b: Floats
    weight: Floats
    error: Floats  #: root mean squared forecast error of the member's family

    def at(self, u: Floats) -> Floats:
        """(k, n) values of the curves."""
        curves: Floats = self.a[:, None] - self.b[:, None] * _bases(self.families, self.family, self.shape, u)
        return curves


def fit(observed: Observed) -> Ensemble:
    """The ensemble for at least 3 values."""
    families = [family for family in FAMILIES if not family.anchored or observed.zero <= observed.y.min()]
    problem = _Problem(observed, families)
    family = np.repeat(np.arange(len(families)), [len(member.starts) for member in families])
    shape = np.concatenate([member.starts for member in families])
    basis = _bases(families, family, shape, observed.u)
    rss = problem.solve(family, basis, problem.weights(len(observed)))[2]
    error = problem.foretelling_errors(family, basis)
    best = np.concatenate([_smallest(rss, family == number, _SEARCHES) for number in range(len(families))])
    found = problem.search(family[best], shape[best])
    family, shape = np.concatenate((family, family[best])), np.concatenate((shape, found))
    a, b, rss = problem.solve(
        family, np.concatenate((basis, _bases(families, family[-len(best) :], found, observed.u))), problem.weights(len(observed))
    )
    weight = _weigh(family, rss, error, len(observed))
    top = np.argsort(-weight, kind="stable")[:_MOST_MEMBERS]
    return Ensemble(families, family[top], shape[top], a[top], b[top], weight[top] / weight[top].sum(), error[family[top]])


def _weigh(family: Ints, rss: Floats, error: Floats, n: int) -> Floats:
    evidence = min(n, _EVIDENCE) / 2
    weight = np.zeros(len(family))
    for number in range(len(error)):
        rows = family == number
        likelihood = ((rss[rows].min() + _EXACT_FIT_VARIANCE) / (rss[rows] + _EXACT_FIT_VARIANCE)) ** evidence
        weight[rows] = error[number] ** -_SHARPNESS * likelihood / likelihood.sum()
    return weight


def _smallest(values: Floats, among: Bools, count: int) -> Ints:
    rows = np.flatnonzero(among)
    return rows[np.argsort(values[rows], kind="stable")[:count]]


def _bases(families: Sequence[CurveFamily], family: Ints, shape: Floats, u: Floats) -> Floats:
    """g of each row's family and shape at ``u``."""
    basis = np.empty((len(family), len(u)))
    for number, member in enumerate(families):
        rows = family == number
        if rows.any():
            basis[rows] = member.basis(u, shape[rows])
    return basis


class _Problem:
    """Least squares of one series of values. Rows: candidates (family and shape), columns: values."""

    def __init__(self, observed: Observed, families: Sequence[CurveFamily]) -> None:
        self.observed, self.families = observed, families
        self.bounded = np.array([family.bounded for family in families])
        self.anchored = np.array([family.anchored for family in families])
        self.low, self.high = np.array([family.low for family in families]), np.array([family.high for family in families])

    def weights(self, known: int) -> Floats:
        """(n,) of the first ``known`` values, adding up to 1; 0 for the others."""
        u = self.observed.u
        weight = np.where(np.arange(len(u)) < known, (0.1 + u / u[known - 1]) ** _RECENCY, 0.0)
        normed: Floats = weight / weight.sum()
        return normed

    def solve(self, family: Ints, basis: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
        """Best a and b >= 0 of each row with their weighted mean of squared residuals."""
        y = self.observed.y
        middle = float(weight @ y)
        mean = basis @ weight
        centred = basis - mean[:, None]
        variance = (centred * centred) @ weight
        b = np.maximum(-(centred @ (weight * (y - middle))) / np.maximum(variance, 1e-300), 0.0)
        b[variance <= 1e-14 * mean**2] = 0.0  # flat everywhere: the least squares would be noise
        a = middle + b * mean
        self._bound(family, basis, weight, a, b)
        residual = a[:, None] - b[:, None] * basis - y
        return a, b, (residual * residual) @ weight

    def _bound(self, family: Ints, basis: Floats, weight: Floats, a: Floats, b: Floats) -> None:
        """Solve again rows that are anchored, or whose asymptote is above the ceiling: one parameter remains, with its own bound."""
        observed = self.observed
        high = (a > observed.ceiling) & self.bounded[family]
        if high.any():  # so the ceiling is finite
            a[high], b[high] = observed.ceiling, _slope(-basis[high], observed.y - observed.ceiling, weight)
        held = self.anchored[family]
        if observed.rising:
            slope = _slope(1.0 - basis[held], observed.y - observed.zero, weight)
            b[held] = np.minimum(slope, observed.ceiling - observed.zero)
            a[held] = observed.zero + b[held]
        else:
            a[held], b[held] = observed.zero, _slope(-basis[held], observed.y - observed.zero, weight)

    def foretelling_errors(self, family: Ints, basis: Floats) -> Floats:
        """Forecast error of each family's best curve through the first values, as a geometric mean over the folds."""
        n, y = len(self.observed), self.observed.y
        known = sorted({round(share * n) for share in _FOLDS} & set(range(3, n)))
        logs = np.zeros(len(self.families))
        for count in known:
            a, b, rss = self.solve(family, basis, self.weights(count))
            best = np.array([_smallest(rss, family == number, 1)[0] for number in range(len(self.families))])
            off = a[best, None] - b[best, None] * basis[best, count:] - y[count:]
            logs += np.log((off * off).mean(axis=1) + _EXACT_FIT_VARIANCE) / 2
        errors: Floats = np.exp(logs / len(known)) if known else np.full(len(self.families), 1.0 / n)
        return errors

    def search(self, family: Ints, shape: Floats) -> Floats:
        """Shapes improved by Levenberg-Marquardt from ``shape``, with the variable projection's Jacobian of Kaufman (1975)."""
        weight = self.weights(len(self.observed))
        low, high = self.low[family], self.high[family]
        damping = np.full(len(family), 1e-2)
        basis = _bases(self.families, family, shape, self.observed.u)
        a, b, rss = self.solve(family, basis, weight)
        for _ in range(_ITERATIONS):
            step = self._step(family, shape, basis, a, b, damping, weight)
            tried = np.clip(shape + step, low, high)
            new = _bases(self.families, family, tried, self.observed.u)
            new_a, new_b, new_rss = self.solve(family, new, weight)
            better = new_rss < rss
            shape, basis = np.where(better[:, None], tried, shape), np.where(better[:, None], new, basis)
            a, b, rss = np.where(better, new_a, a), np.where(better, new_b, b), np.where(better, new_rss, rss)
            damping *= np.where(better, 0.2, 5.0)
        return shape

    def _step(self, family: Ints, shape: Floats, basis: Floats, a: Floats, b: Floats, damping: Floats, weight: Floats) -> Floats:
        u, root = self.observed.u, np.sqrt(weight)
        residual = (a[:, None] - b[:, None] * basis - self.observed.y) * root
        moved = (_bases(self.families, family, shape + shift, u) for shift in _STEP * np.eye(2))
        columns = [-b[:, None] * (other - basis) / _STEP * root for other in moved]
        jacobian = np.stack([_project(column, basis, root) for column in columns], axis=1)
        normal = jacobian @ jacobian.transpose(0, 2, 1)
        scale = np.maximum(np.diagonal(normal, axis1=1, axis2=2), 1e-12)
        normal += np.eye(2) * (damping[:, None] * scale)[:, None, :] + 1e-14 * np.eye(2)
        gradient = jacobian @ residual[:, :, None]
        step: Floats = np.clip(-np.linalg.solve(normal, gradient)[:, :, 0], -1.0, 1.0)
        return step


def _slope(rise: Floats, height: Floats, weight: Floats) -> Floats:
    """Least-squares b >= 0 of height = b rise, row by row."""
    slope: Floats = np.maximum((rise @ (weight * height)) / np.maximum((rise * rise) @ weight, 1e-300), 0.0)
    return slope


def _project(column: Floats, basis: Floats, root: Floats) -> Floats:
    """The part of ``column`` orthogonal to the linear part, the span of 1 and g."""
    flat = column - (column @ root)[:, None] * root
    slope = (basis - (basis @ (root * root))[:, None]) * root
    share = (flat * slope).sum(axis=1) / np.maximum((slope * slope).sum(axis=1), 1e-300)
    left: Floats = flat - share[:, None] * slope
    return left
