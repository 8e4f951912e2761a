"""How much one task helps another: the transferability estimator of 002 ch. 3.4.2.1, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from stoker.policies.arrays import Floats


def transfer_gain(together: float, alone: float) -> float:
    """G of Eqn 3.1: by how much a metric is better with the other task, as a share of it alone."""
    if alone == 0:
        raise ValueError("gain: the metric alone is 0, of which nothing is a share")
    return (together - alone) / alone


def symmetric_distance(a: Floats, b: Floats) -> float:
    """d_sym of Eqn 3.3: the cosine distance of two embeddings (diagonals of Fisher matrices), each as a share of their sum.

    Where both are 0 there is nothing to compare; such parameters are left out.
    """
    total = a + b
    some = total > 0
    if not some.any():
        raise ValueError("similarity: both embeddings are 0: no parameter has a gradient on either task")
    one, two = a[some] / total[some], b[some] / total[some]
    length = float(np.linalg.norm(one) * np.linalg.norm(two))
    return 1.0 if length == 0 else 1.0 - float(one @ two) / length


def asymmetric_distance(a: Floats, b: Floats, b_again: Floats) -> float:
    """d of Eqn 3.4, from task A to task B: less what two embeddings of B differ by themselves."""
    return symmetric_distance(a, b) - symmetric_distance(b, b_again)


def temporal_similarity(a: Floats, b: Floats, b_again: Floats) -> float:
    """S(A, B) for temporal transfer. The text calls 3.4 a score, but it is a distance: near is similar."""
    return -asymmetric_distance(a, b, b_again)


def spatial_similarity(a: Floats, a_again: Floats, b: Floats, b_again: Floats) -> float:
    """S(A, B) for spatial transfer: the mean of both directions."""
    return (temporal_similarity(a, b, b_again) + temporal_similarity(b, a, a_again)) / 2


@dataclass
class LearntRatio:
    """Ratios of iterations (with another over alone) by similarity: a linear regression of their logarithm, learnt as pairs are measured.

    The thesis regresses the gain of the metric (G), from which a curve gives iterations. That saves some per cent where the curves of
    its figure 3.5 save half and more, so iterations are learnt themselves. ``prior``: as many measurements the belief that nothing helps
    counts, so that one lucky pair decides nothing.
    """

    prior: float = 2.0
    _sums: Floats = field(default_factory=lambda: np.zeros((2, 2)))
    _target: Floats = field(default_factory=lambda: np.zeros(2))
    measured: int = 0

    def update(self, similarity: float, ratio: float) -> None:
        if not (np.isfinite(similarity) and np.isfinite(ratio) and ratio > 0):
            raise ValueError(f"ratio: {ratio} at similarity {similarity} was not measured; a ratio of iterations is a positive number")
        row = np.array([1.0, similarity])
        self._sums = self._sums + np.outer(row, row)
        self._target = self._target + row * np.log(ratio)
        self.measured += 1

    def predict(self, similarity: float) -> float:
        """The ratio to be expected; 1 as long as nothing was measured."""
        weights = np.linalg.solve(self._sums + self.prior * np.eye(2), self._target) if self.prior > 0 else self._plain()
        return float(np.exp(weights @ np.array([1.0, similarity])))

    def _plain(self) -> Floats:
        return np.asarray(np.linalg.lstsq(self._sums, self._target, rcond=None)[0], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The columns of 002 Table 3.2."""

    pearson: float  #: of what was predicted by and what was measured; NaN where either does not vary
    mean_error: float  #: MAPE, per cent
    largest_error: float  #: the largest absolute percentage error
    right_sign: float  #: ACC, per cent: gains told from losses


def judge(predicted: Sequence[float], measured: Sequence[float], *, neutral: float = 0.0, by: Sequence[float] | None = None) -> Judgement:
    """Predictions beside what was measured. ``neutral``: above it is a gain (0 of G, 1 of a speedup); ``by``: scores to correlate."""
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if len(p) != len(m) or not len(p):
        raise ValueError(f"judgement: {len(p)} predictions beside {len(m)} measurements; as many are needed, and one at least")
    if (m == 0).any():
        raise ValueError("judgement: a measured 0 has no percentage error; leave it out, or judge ratios")
    scores = p if by is None else np.asarray(by, dtype=np.float64)
    varies = len(p) > 1 and np.ptp(scores) > 0 and np.ptp(m) > 0
    errors = 100.0 * np.abs(p - m) / np.abs(m)
    right = 100.0 * np.mean((p >= neutral) == (m >= neutral))
    pearson = float(np.corrcoef(scores, m)[0, 1]) if varies else float("nan")
    return Judgement(pearson, float(errors.mean()), float(errors.max()), float(right))
