"""How many iterations a fine-tuning job needs, alone and with the help of another: the iteration estimator of 002 ch. 3.4.2.2."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from stoker.policies.arrays import Floats

CONVERGED_DECREASE = 1e-3  #: of the normalised loss in one step (Eqn 3.5)
MOST_STEPS_AHEAD = 10_000  #: steps that are looked ahead
_ROUNDS, _POINTS = 5, 41  #: of the search for the loss that is left at the end


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Eqn 3.6: 1 / (b3 k^2 + b2 k + b1) + b0, with coefficients that are not negative. A step k is an epoch, unless the fit had another."""

    b0: float
    b1: float
    b2: float
    b3: float

    def __call__(self, k: Floats | float) -> Floats:
        at = np.asarray(k, dtype=np.float64)
        return np.asarray(1.0 / (self.b3 * at**2 + self.b2 * at + self.b1) + self.b0, dtype=np.float64)

    def with_gain(self, gain: float) -> LossCurve:
        """L_{A,B} = L_B / (1 + G): the curve of a job that another helps, with transfer gain G (Eqn 3.1)."""
        if not gain > -1:
            raise ValueError(f"gain: {gain} is no transfer gain; it is more than -1, at which nothing is left of the metric")
        return LossCurve(self.b0 / (1 + gain), self.b1 * (1 + gain), self.b2 * (1 + gain), self.b3 * (1 + gain))


def fit_loss(steps: Sequence[float] | Floats, losses: Sequence[float] | Floats) -> LossCurve:
    """The curve nearest to normalised losses (of the largest, 002 ch. 3.3) in squares.

    For each b0 the rest is a linear problem with coefficients that are not negative, weighted as if losses were fitted and not their
    reciprocals; the best b0 below the least loss is searched for. Raises ValueError for fewer than three losses, or no losses.
    """
    k, loss = np.asarray(steps, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if len(k) != len(loss) or len(k) < 3:
        raise ValueError(f"loss curve: {len(k)} steps and {len(loss)} losses; at least three of each are needed, and as many")
    if not (np.isfinite(k).all() and np.isfinite(loss).all() and (loss > 0).all() and (k >= 0).all()):
        raise ValueError("loss curve: steps must be numbers from 0 on, and losses positive numbers; drop those that are not")
    low, high, best = 0.0, float(loss.min()), (np.inf, LossCurve(0.0, 1.0, 0.0, 0.0))
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, _POINTS, endpoint=False)
        found = [_fitted(k, loss, float(b0)) for b0 in grid]
        at = int(np.argmin([error for error, _ in found]))
        best = min(best, found[at], key=lambda one: one[0])
        low, high = float(grid[max(at - 1, 0)]), float(grid[at + 1]) if at + 1 < len(grid) else high
    return best[1]


def _fitted(k: Floats, loss: Floats, b0: float) -> tuple[float, LossCurve]:
    """The curve that ends at b0, and the sum of its squared errors."""
    rest = loss - b0
    weight = rest**2  # a small error of the reciprocal is so much smaller an error of the loss
    columns, target = np.stack((np.ones_like(k), k, k**2), axis=1) * weight[:, None], weight / rest
    best = (np.inf, LossCurve(b0, 1.0, 0.0, 0.0))
    for some in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        values = np.zeros(3)
        values[list(some)] = np.linalg.lstsq(columns[:, some], target, rcond=None)[0]
        if (values < 0).any() or not (values[0] + values[1] * k + values[2] * k**2 > 0).all():
            continue
        curve = LossCurve(b0, *map(float, values))
        best = min(best, (float(((curve(k) - loss) ** 2).sum()), curve), key=lambda one: one[0])
    return best


def iterations(curve: LossCurve, most: int = MOST_STEPS_AHEAD) -> int:
    """K of Eqn 3.5: the smallest k from 1 on with L(k) - L(k + 1) <= 0.001; ``most`` where there is none before."""
    with np.errstate(divide="ignore"):
        losses = curve(np.arange(1, most + 2, dtype=np.float64))
    slow = np.flatnonzero(losses[:-1] - losses[1:] <= CONVERGED_DECREASE)
    return int(slow[0]) + 1 if len(slow) else most


def temporal_iterations(second: LossCurve, gain: float, most: int = MOST_STEPS_AHEAD) -> int:
    """K of the second job of a temporal pair: Eqn 3.5 of L_{A,B}. (The text has L_B there, which would know nothing of the first.)"""
    return iterations(second.with_gain(gain), most)


@dataclass(frozen=True, slots=True)
class Task:
    """What Eqn 3.7 knows of a job."""

    iterations: float  #: K, of the curve with its gain
    batch: int  #: M, global
    samples: int  #: D, of its training set

    @property
    def epochs(self) -> float:
        return self.iterations * self.batch / self.samples


def spatial_iterations(a: Task, b: Task) -> float:
    """K of both jobs that train together, Eqn 3.7: as many epochs of all samples as the slower needs, in batches of both."""
    return max(a.epochs, b.epochs) * (a.samples + b.samples) / (a.batch + b.batch)
