"""The equations of Ymir's estimator, each by hand: gains, similarities, loss curves, iterations, step times, the measures of Table 3.2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from iterations_to_target import (
    LossCurve,
    Task,
    fit_loss,
    iterations,
    spatial_iterations,
    temporal_iterations,
)
from stoker.policies.ymir.step_times import StepTimes
from transfer_gain import (
    LearntRatio,
    asymmetric_distance,
    judge,
    spatial_similarity,
    symmetric_distance,
    temporal_similarity,
    transfer_gain,
)


def test_gain_is_a_share_of_the_metric_alone() -> None:
    assert transfer_gain(0.9, 0.75) == pytest.approx(0.2)
    assert transfer_gain(0.6, 0.75) == pytest.approx(-0.2)
    with pytest.raises(ValueError, match="alone is 0"):
        transfer_gain(0.5, 0.0)


def test_distances_of_embeddings() -> None:
    a, b = np.array([3.0, 1.0, 0.0]), np.array([1.0, 3.0, 0.0])
    # Shares (3/4, 1/4) and (1/4, 3/4): their product is 6/16, and each is sqrt(10/16) long.
    assert symmetric_distance(a, b) == pytest.approx(1 - 6 / 10)
    assert symmetric_distance(a, a) == pytest.approx(0.0)
    # Shares of two that are not alike at all are at right angles.
    assert symmetric_distance(np.array([1.0, 0.0]), np.array([0.0, 2.0])) == pytest.approx(1.0)
    assert asymmetric_distance(a, b, b) == pytest.approx(0.4)
    again = np.array([1.0, 1.0, 0.0])
    # Shares of b beside again: (1/2, 3/4) and (1/2, 1/4): 7/16 over sqrt(13/16 * 5/16).
    own = 1 - (7 / 16) / math.sqrt(13 * 5 / 256)
    assert asymmetric_distance(a, b, again) == pytest.approx(0.4 - own)
    assert temporal_similarity(a, b, again) == pytest.approx(own - 0.4)
    assert spatial_similarity(a, a, b, again) == pytest.approx((own - 0.4 - 0.4) / 2)
    with pytest.raises(ValueError, match="both embeddings are 0"):
        symmetric_distance(np.zeros(2), np.zeros(2))


def test_ratios_are_learnt_as_pairs_are_measured() -> None:
    learnt = LearntRatio(prior=0.0)
    for similarity in (-0.6, -0.4, -0.2):
        learnt.update(similarity, math.exp(-0.5 - 2 * similarity))
    assert learnt.predict(-0.3) == pytest.approx(math.exp(0.1))
    careful = LearntRatio()
    assert careful.predict(-0.3) == 1.0
    careful.update(0.0, 0.5)
    # One measurement beside two that nothing helps: a third of log 0.5.
    assert careful.predict(0.0) == pytest.approx(0.5 ** (1 / 3))
    with pytest.raises(ValueError, match="was not measured"):
        careful.update(0.1, 0.0)


def test_loss_curves_by_hand() -> None:
    curve = LossCurve(0.1, 1.0, 0.5, 0.25)
    assert curve(np.array([0.0, 2.0])).tolist() == [pytest.approx(1.1), pytest.approx(0.1 + 1 / 3)]
    assert curve.with_gain(1.0)(2.0) == pytest.approx((0.1 + 1 / 3) / 2)
    with pytest.raises(ValueError, match="no transfer gain"):
        curve.with_gain(-1.0)


@pytest.mark.parametrize(
    "curve",
    [LossCurve(0.2, 1.25, 0.5, 0.0), LossCurve(0.0, 1.0, 0.0, 0.05), LossCurve(0.35, 2.0, 0.7, 0.3)],
    ids=["hyperbola", "square alone", "all"],
)
def test_a_curve_is_found_again_from_its_losses(curve: LossCurve) -> None:
    k = np.arange(0.0, 30.0)
    found = fit_loss(k, curve(k))
    assert np.abs(found(np.arange(0.0, 60.0)) - curve(np.arange(0.0, 60.0))).max() < 2e-3
    noisy = fit_loss(k, curve(k) * (1 + 0.02 * np.random.default_rng(1).normal(size=len(k))))
    assert min(noisy.b0, noisy.b1, noisy.b2, noisy.b3) >= 0
    assert np.abs(noisy(k) - curve(k)).max() < 0.05


@pytest.mark.parametrize(
    ("steps", "losses", "words"),
    [([1, 2], [1.0, 0.5], "at least three"), ([1, 2, 3], [1, math.nan, 1], "positive numbers"), ([1, 2, 3], [1, 0, 1], "positive numbers")],
)
def test_losses_that_show_no_curve_are_refused(steps: list[float], losses: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_loss(steps, losses)


def test_losses_that_rise_or_stay_fit_a_flat_curve() -> None:
    for losses in ([1.0, 1.0, 1.0, 1.0], [0.5, 0.6, 0.8, 1.0]):
        flat = fit_loss([1, 2, 3, 4], losses)
        assert flat.b2 == flat.b3 == 0.0 or abs(float(flat(4.0)) - float(flat(1.0))) < 1e-6
        assert iterations(flat) == 1


def test_iterations_are_those_after_which_the_loss_falls_by_a_thousandth() -> None:
    # 1/k - 1/(k+1) = 1/(k(k+1)): 1/992 at 31, 1/1056 at 32. (b1 = 0, b2 = 1.)
    assert iterations(LossCurve(0.3, 0.0, 1.0, 0.0)) == 32
    # Half of it: 1/(2k(k+1)), 1/924 at 21 and 1/1012 at 22.
    assert temporal_iterations(LossCurve(0.3, 0.0, 1.0, 0.0), gain=1.0) == 22
    assert iterations(LossCurve(0.0, 0.0, 1e-4, 0.0), most=50) == 50


def test_iterations_together_by_hand() -> None:
    # 100 iterations of 16 in 400 samples are 4 epochs, 30 of 64 in 960 are 2: 4 epochs of 1360 samples in batches of 80.
    assert spatial_iterations(Task(100, 16, 400), Task(30, 64, 960)) == pytest.approx(4 * 1360 / 80)


def test_step_times_between_and_beyond_what_was_measured() -> None:
    table = StepTimes()
    for gpus, samples, step, sync in ((1, 8, 1.0, 0.0), (1, 16, 1.6, 0.0), (2, 8, 1.2, 0.2), (4, 8, 1.6, 0.6)):
        table.update(gpus, samples, step, sync)
    assert table.step(1, 12) == pytest.approx((1.3, 0.0))
    assert table.step(3, 8) == pytest.approx((1.4, 0.4))
    assert table.step(9, 99) == pytest.approx((1.6, 0.6))  # nothing is promised that was not measured
    # 32 samples on two GPUs are 16 each. On one they are two passes of 16.
    assert table.seconds(2, 32) == (pytest.approx(1.2), 32)
    assert table.seconds(1, 32) == (pytest.approx(3.2), 32)
    # 128 on four: 32 each, two passes, of which one exchanges gradients.
    assert table.seconds(4, 128) == (pytest.approx(1.6 + 1.0), 128)
    table.update(4, 8, 2.0, 0.8)
    assert table.step(4, 8) == pytest.approx((1.8, 0.7))  # the mean of what was measured
    assert table.most_gpus(20) == 2
    with pytest.raises(ValueError, match="is no step"):
        table.update(1, 8, 0.0)


def test_measures_of_table_3_2() -> None:
    found = judge([0.1, 0.3, -0.1], [0.2, 0.3, 0.1])
    assert (found.mean_error, found.largest_error) == (pytest.approx((50 + 0 + 200) / 3), pytest.approx(200))
    assert found.right_sign == pytest.approx(200 / 3)
    assert judge([1.2, 0.9], [1.1, 0.8], neutral=1.0).right_sign == 100
    assert judge([1, 1], [2, 4], by=[5, 6]).pearson == pytest.approx(1.0)
    assert math.isnan(judge([1, 1], [2, 4]).pearson)
    with pytest.raises(ValueError, match="a measured 0"):
        judge([1.0], [0.0])
