"""BlueFin for mixed keys: gradient steps from the rewards of two opposite points for numbers, exponential weights for categories.

Karthikeyan et al., SelfTune (NSDI 2023): the gradient of the expected reward around a centre is estimated from the rewards at
w + delta u and w - delta u, u uniform on the unit sphere, and the centre moves by eta along it. As in their published program, the
difference of the two rewards is taken relative to the larger, so the step does not depend on the reward's unit, and the centre keeps
delta from the edges. Categories are drawn by exponential weights (Exp3), which its successor OPPerTune (NSDI 2024) adds.

A point that is not measured gives no reward: its pair is given up, and the centre stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Floats
from .search_space import Configuration, Space

DELTA = 0.15  #: radius of exploration, in units
ETA = 0.04  #: step; the centre moves by eta / delta x the relative difference / 2 x dimensions
MIXING = 0.2  #: share of the draws of a category that is uniform
WEIGHT_RATE = 2.0  #: of the exponent, for rewards around 1


def two_point_gradient(direction: Floats, plus: float, minus: float, delta: float) -> Floats:
    """d / (2 delta) x (r+ - r-) / max(|r+|, |r-|) x u: the estimated gradient of the reward at the centre."""
    largest = max(abs(plus), abs(minus))
    relative = (plus - minus) / largest if largest > 0 else 0.0
    gradient: Floats = len(direction) / (2.0 * delta) * relative * direction
    return gradient


def moved(centre: Floats, gradient: Floats, eta: float, delta: float) -> Floats:
    """The centre after a step of eta, delta away from the edges of the unit cube, no further than delta at once."""
    step = eta * gradient
    length = float(np.linalg.norm(step))
    if length > delta:
        step = step * (delta / length)
    kept: Floats = np.clip(centre + step, delta, 1.0 - delta)
    return kept


def chances(weights: Floats, mixing: float = MIXING) -> Floats:
    """Exp3: (1 - g) w / sum w + g / K."""
    shares: Floats = (1.0 - mixing) * weights / weights.sum() + mixing / len(weights)
    return shares


def reweighted(weights: Floats, drawn: int, gain: float, chance: float, rate: float = WEIGHT_RATE) -> Floats:
    """Exp3: the weight of the drawn choice grows by exp(rate x gain / (K x its chance)); scaled so that the largest is 1."""
    weights = weights.copy()
    weights[drawn] *= np.exp(np.clip(rate * gain / (len(weights) * chance), -5.0, 5.0))
    scaled: Floats = np.maximum(weights / weights.max(), 1e-6)
    return scaled


class BlueFin:
    """Ask with `sample`, answer with `reward`, or with nothing where the sample was not measured."""

    def __init__(self, space: Space, start: Configuration, rng: np.random.Generator, delta: float = DELTA, eta: float = ETA) -> None:
        self._space, self._rng, self._delta, self._eta = space, rng, delta, eta
        self.centre: Floats = space.units(start)
        self.weights: dict[str, Floats] = {one.name: np.ones(len(one.choices)) for one in space.categories}
        for one in space.categories:  # the value in force is as likely as all others together
            self.weights[one.name][one.choices.index(start[one.name])] = max(len(one.choices) - 1.0, 1.0)
        self._direction: Floats | None = None
        self._plus: float | None = None  #: reward of the first point of the pair
        self._chosen: dict[str, Any] = {}
        self._chance: dict[str, float] = {}

    def sample(self) -> Configuration:
        """Line 5 of algorithm 3: the next point to try, on one side of the centre and then on the other."""
        if self._direction is None:
            self._direction = self._unit_direction()
            self._plus = None
            self._draw()
        side = 1.0 if self._plus is None else -1.0
        units = np.clip(self.centre + side * self._delta * self._direction, 0.0, 1.0)
        return self._space.configuration(units, self._chosen)

    def reward(self, reward: float | None) -> None:
        """Line 11: the reward of the sample; None: it was not measured."""
        assert self._direction is not None, "a sample comes before its reward"
        if reward is None:
            self._direction = None
            return
        self._weigh(reward)
        if self._plus is None and len(self.centre):
            self._plus = reward
            return
        if self._plus is not None:
            gradient = two_point_gradient(self._direction, self._plus, reward, self._delta)
            self.centre = moved(self.centre, gradient, self._eta, self._delta)
        self._direction = None

    def start_from(self, config: Configuration) -> None:
        """Move the centre there: a better point than all before was found. A pair around the old centre is given up."""
        self.centre = self._space.units(config)
        self._direction = None

    def _unit_direction(self) -> Floats:
        direction = self._rng.normal(size=len(self.centre))
        return direction / max(float(np.linalg.norm(direction)), 1e-12)

    def _draw(self) -> None:
        for one in self._space.categories:
            chance = chances(self.weights[one.name])
            drawn = int(self._rng.choice(len(one.choices), p=chance))
            self._chosen[one.name], self._chance[one.name] = one.choices[drawn], float(chance[drawn])

    def _weigh(self, reward: float) -> None:
        for one in self._space.categories:
            drawn = one.choices.index(self._chosen[one.name])
            self.weights[one.name] = reweighted(self.weights[one.name], drawn, reward - 1.0, self._chance[one.name])
