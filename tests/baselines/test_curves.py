"""The training-iteration estimator: known curves, real curves, and everything that a metric can do."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iterations import SHARES, Answer, Curve, ask, pollux
from stoker.policies.arrays import Floats, Ints
from stoker.policies.estimate import curve_fit
from stoker.policies.estimate.curve_families import FAMILIES, CurveFamily
from stoker.policies.estimate.curve_fit import Observed, fit
from stoker.policies.estimate.learning_curves import IterationEstimate, estimate_iterations

INTERVAL = 50
LENGTH = 6000  #: iterations
STEPS = np.arange(INTERVAL, LENGTH + 1, INTERVAL, dtype=float)

#: As printed in table 1 of Domhan et al., x in units of 50 iterations. Metrics between 0 and 1.
PRINTED: dict[str, Callable[[Floats], Floats]] = {
    "vapor pressure": lambda x: np.exp(-0.5 - 2.0 / x + 0.06 * np.log(x)),
    "pow3": lambda x: 0.9 - 0.6 * x**-0.5,
    "log log linear": lambda x: np.log(0.2 * np.log(x) + 1.2),
    "hill3": lambda x: 0.9 * x**1.2 / (15.0**1.2 + x**1.2),
    "log power": lambda x: 0.9 / (1 + (x / np.exp(2.5)) ** -1.1),
    "pow4": lambda x: 0.92 - (0.3 * x + 1.5) ** -0.8,
    "MMF": lambda x: 0.9 - (0.9 - 0.1) / (1 + (0.08 * x) ** 1.3),
    "exp4": lambda x: 0.9 - np.exp(-0.1 * x**0.8 - 0.3),
    "Janoschek": lambda x: 0.9 - (0.9 - 0.2) * np.exp(-0.05 * x**0.9),
    "Weibull": lambda x: 0.9 - (0.9 - 0.1) * np.exp(-((0.04 * x) ** 0.9)),
    "ilog2": lambda x: 1.0 - 0.6 / np.log(x + 1),
}


def curve(name: str, noise: float = 0.0, seed: int = 0) -> Floats:
    return PRINTED[name](STEPS / INTERVAL) + np.random.default_rng(seed).normal(0, noise, len(STEPS)) * (noise > 0)


def estimate(values: Floats, target: float, seen: int, **changes: Any) -> IterationEstimate:
    given: dict[str, Any] = {"target": target, "mode": "max", "maximum": LENGTH, "done": int(STEPS[seen - 1])}
    return estimate_iterations(STEPS[:seen], values[:seen], **(given | changes))


# Known curves


@pytest.mark.parametrize("name", PRINTED)
def test_a_smooth_curve_is_continued_to_its_target(name: str) -> None:
    values = curve(name)
    errors = []
    for row in (60, 80, 100):
        found = estimate(values, float(values[row]), row // 2)
        errors.append(abs(found.iterations / STEPS[row] - 1))
        assert found.low <= STEPS[row] <= found.high
        assert found.probability > 0.4
    assert np.mean(errors) < (0.25 if name == "vapor pressure" else 0.12), errors  # that one has all but come to rest


@pytest.mark.parametrize("name", PRINTED)
def test_a_noisy_curve_is_continued_to_its_target(name: str) -> None:
    errors, inside = [], []
    for seed in range(8):
        values = curve(name, 0.01, seed)
        target = float(PRINTED[name](np.array([70.0]))[0])
        reached = STEPS[np.argmax(values >= target)]
        found = estimate(values, target, int(0.6 * reached / INTERVAL))
        errors.append(abs(found.iterations / reached - 1))
        inside.append(found.low <= reached <= found.high)
    assert np.mean(errors) < 0.35
    assert sum(inside) >= 5


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_falls_and_its_bounds_hold_its_grid(family: CurveFamily) -> None:
    u = np.linspace(0.01, 30.0, 400)
    basis = family.basis(u, family.starts)
    assert basis.shape == (len(family.starts), 400)
    assert np.isfinite(basis).all()
    assert (np.diff(basis) <= 1e-12).all()
    assert (family.low <= family.starts).all() and (family.starts <= family.high).all()
    if family.bounded:
        assert (family.basis(np.array([1e80]), family.starts) < 0.01).all()


def test_searches_end_at_the_least_squares() -> None:
    """The true shape is between those of the grid."""
    u = np.arange(1.0, 61.0) / 60
    y = -0.8 / (1 + (7.3 * u) ** 1.37)
    ensemble = fit(Observed(u, y, zero=5.0, ceiling=math.inf, rising=True))
    assert ensemble.weight.sum() == pytest.approx(1)
    assert (np.diff(ensemble.weight) <= 0).all()
    mmf = [family.name for family in ensemble.families].index("mmf")
    best = np.flatnonzero(ensemble.family == mmf)[0]
    assert np.exp(ensemble.shape[best]) == pytest.approx([7.3, 1.37], rel=1e-2)
    assert np.abs(ensemble.at(u)[best] - y).max() < 1e-4


def test_families_that_foretell_badly_weigh_less() -> None:
    u = np.arange(1.0, 61.0) / 60
    ensemble = fit(Observed(u, -np.exp(-((5 * u) ** 3)), zero=-5.0, ceiling=math.inf, rising=True))
    weight = {family.name: ensemble.weight[ensemble.family == row].sum() for row, family in enumerate(ensemble.families)}
    assert weight["weibull"] > 4 * weight["power"]
    assert weight["weibull"] > 4 * weight["inverse-log"]


def test_no_asymptote_is_above_the_ceiling() -> None:
    u = np.arange(1.0, 31.0) / 30
    y = np.log(u)
    ensemble = fit(Observed(u, y, zero=-8.0, ceiling=0.2, rising=True))
    bounded = np.array([family.bounded for family in ensemble.families])[ensemble.family]
    assert bounded.any()
    assert (ensemble.a[bounded] <= 0.2 + 1e-12).all()
    assert (ensemble.b >= 0).all()


# What must not change an estimate


def test_a_falling_metric_is_a_rising_one_turned() -> None:
    values = curve("pow4", 0.01)
    rising = estimate(values, 0.8, 40)
    falling = estimate(5 - values, 5 - 0.8, 40, mode="min")
    assert falling.iterations == pytest.approx(rising.iterations, rel=0.25)  # no hill starts from the same 0
    shifted = estimate(values - 7, 0.8 - 7, 40)
    assert estimate(-(values - 7) + 1e3, 1e3 - (0.8 - 7), 40, mode="min").iterations == pytest.approx(shifted.iterations, rel=0.25)


def test_units_do_not_matter() -> None:
    values = curve("MMF", 0.01)
    plain = estimate(values, 0.75, 30)
    percent = estimate(100 * values, 75.0, 30)
    assert percent.iterations == plain.iterations
    slower = estimate_iterations(1000 * STEPS[:30], values[:30], target=0.75, mode="max", maximum=1000 * LENGTH, done=int(1000 * STEPS[29]))
    assert slower.iterations == pytest.approx(1000 * plain.iterations)
    assert slower.log_std == pytest.approx(plain.log_std)


def test_what_is_no_number_is_left_out_and_order_does_not_matter() -> None:
    values = curve("pow3", 0.01)[:40]
    plain = estimate(values, 0.8, 40)
    steps = np.concatenate((STEPS[:40], [410, 820, 1230, 0, -5, math.nan]))
    more = np.concatenate((values, [math.nan, math.inf, -math.inf, 0.1, 0.1, 0.1]))
    shuffled = np.random.default_rng(1).permutation(len(steps))
    assert estimate_iterations(steps[shuffled], more[shuffled], target=0.8, mode="max", maximum=LENGTH, done=2000) == plain
    again = estimate_iterations([*STEPS[:40], *STEPS[:40]], [*values - 0.5, *values], target=0.8, mode="max", maximum=LENGTH, done=2000)
    assert again == plain


def test_a_spike_changes_little() -> None:
    loss = 0.2 + 2.0 * (STEPS / INTERVAL) ** -0.7 + np.random.default_rng(3).normal(0, 0.005, len(STEPS))
    spiked = loss.copy()
    spiked[[12, 25]] = [1e6, 40.0]
    plain, found = (estimate(values, 0.29, 40, mode="min") for values in (loss, spiked))
    assert found.iterations == pytest.approx(plain.iterations, rel=0.2)


def test_many_values_are_as_good_as_few() -> None:
    steps = np.arange(1.0, 5001.0)
    values = 0.9 - 0.7 * (1 + steps / 100) ** -0.6 + np.random.default_rng(0).normal(0, 0.002, 5000)
    target = 0.9 - 0.7 * (1 + 80) ** -0.6
    found = estimate_iterations(steps, values, target=target, mode="max", maximum=50_000, done=5000)
    assert found.iterations == pytest.approx(8000, rel=0.2)


# What metrics do


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_too_few_values_say_nothing(seen: int) -> None:
    found = estimate_iterations(STEPS[:seen], curve("pow3")[:seen], target=0.99, mode="max", maximum=1000, done=200)
    assert (found.low, found.iterations, found.high) == pytest.approx((280, 600, 920), abs=4)
    assert math.isnan(found.probability)


def test_a_target_that_is_met_is_met() -> None:
    values = curve("pow3")
    assert estimate(values, float(values[20]), 40) == IterationEstimate(2000, 2000, 2000, 1.0, 0.0)
    assert estimate_iterations([50], [0.1], target=0.1, mode="min", maximum=100, done=0) == IterationEstimate(50, 50, 50, 1.0, 0.0)


def test_a_plateau_below_the_target_runs_to_the_maximum() -> None:
    values = 0.7 - 0.5 * np.exp(-STEPS / 300) + np.random.default_rng(0).normal(0, 0.003, len(STEPS))
    found = estimate(values, 0.85, 60)
    assert found.iterations == found.high == LENGTH
    assert found.probability < 0.45
    constant = estimate(np.full(len(STEPS), 0.1), 0.85, 60)
    assert constant.iterations == LENGTH
    assert constant.probability == pytest.approx(0.3, abs=0.01)
    assert estimate(np.linspace(0.5, 0.1, len(STEPS)), 0.85, 60).iterations == LENGTH


def test_noise_alone_meets_a_target_that_it_often_comes_near() -> None:
    """A metric at 0.7 with a deviation of 0.02 is above 0.75 once in 160 evaluations: half of the time within 111."""
    noise = np.random.default_rng(5).normal(0, 0.02, len(STEPS))
    found = estimate(0.7 + np.minimum(noise, 0.045), 0.75, 60, maximum=10**6)
    assert 3000 + 40 * INTERVAL < found.iterations < 3000 + 400 * INTERVAL


def test_what_has_run_and_what_may_run_bound_it() -> None:
    values = curve("pow3")
    assert estimate(values, 0.899, 40, maximum=2000) == IterationEstimate(2000, 2000, 2000, 0.0, 0.0)
    assert estimate(values, 0.899, 40, maximum=1500, done=2000).iterations == 2000
    late = estimate(values, 0.82, 40, done=3010)
    assert late.low > 3010
    assert estimate(values, 0.82, 40, maximum=2049).iterations <= 2049


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.one_of(st.floats(0, 1e6), NUMBERS), st.one_of(st.floats(-1, 1), NUMBERS)), max_size=40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["max", "min"]),
    st.integers(1, 10**9),
    st.integers(0, 10**7),
)
def test_anything_gets_an_estimate_in_bounds(points: list[tuple[float, float]], target: float, mode: Any, maximum: int, done: int) -> None:
    steps, values = zip(*points, strict=True) if points else ((), ())
    found = estimate_iterations(steps, values, target=target, mode=mode, maximum=maximum, done=done)
    assert done <= found.low <= found.iterations <= found.high
    assert found.high <= max([maximum, done, *(step for step in steps if math.isfinite(step))])
    assert math.isnan(found.probability) or 0 <= found.probability <= 1
    assert 0 <= found.log_std < math.inf


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "up"}, "mode: 'up' is neither"),
        ({"target": math.nan}, "target: nan can never"),
        ({"maximum": 0}, "maximum: 0 iterations"),
        ({"done": -1}, "done: -1 iterations"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimate_iterations([1], [1], **({"target": 2.0, "mode": "max", "maximum": 10, "done": 1} | changes))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="one value for each step"):
        estimate_iterations([1, 2], [1], target=1, mode="max", maximum=10, done=0)


# How good, how fast


def mean_error(answers: list[Answer], method: str, share: float) -> float:
    return float(np.mean([answer.error for answer in answers if answer.method == method and answer.case.share == share]))


def test_errors_fall_with_progress_and_are_below_the_baselines() -> None:
    curves = [Curve(name, STEPS, curve(name, 0.006, seed), "max") for name in PRINTED for seed in (1, 2)]
    answers = ask(curves, 2.0)
    errors = {method: [mean_error(answers, method, share) for share in SHARES] for method in ("ensemble", "power law", "maximum")}
    assert errors["ensemble"][3] < errors["ensemble"][0]
    for row in (1, 2, 3):
        assert errors["ensemble"][row] < min(errors["power law"][row], errors["maximum"][row]), errors


@pytest.mark.skipif(not os.environ.get("STOKER_TRACES"), reason="STOKER_TRACES does not name a directory with Pollux's validation curves")
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_real_curves(factor: float) -> None:
    curves = list(pollux(Path(os.environ["STOKER_TRACES"])))
    assert len(curves) == 34
    answers = ask(curves, factor)
    errors = {method: [mean_error(answers, method, share) for share in SHARES] for method in ("ensemble", "power law", "maximum")}
    assert errors["ensemble"] == sorted(errors["ensemble"], reverse=True)
    for row in (1, 2, 3):
        assert errors["ensemble"][row] < 0.8 * min(errors["power law"][row], errors["maximum"][row]), errors
    inside = [answer.estimate.low <= answer.case.needed <= answer.estimate.high for answer in answers if answer.method == "ensemble"]
    assert np.mean(inside) > 0.8


def test_what_a_fit_computes_is_bounded_however_long_the_curve_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes follows from that; benchmarks/iterations.py measures it."""
    bases, computed = curve_fit._bases, list[int]()

    def counts(families: Sequence[CurveFamily], family: Ints, shape: Floats, u: Floats) -> Floats:
        computed[-1] += len(family) * len(u)
        return bases(families, family, shape, u)

    monkeypatch.setattr(curve_fit, "_bases", counts)
    for length in (100, 10_000):
        steps = np.arange(1.0, length + 1)
        values = 0.9 - 0.7 * (1 + 20 * steps / length) ** -0.6 + np.random.default_rng(0).normal(0, 0.005, length)
        computed.append(0)
        estimate_iterations(steps, values, target=0.95, mode="max", maximum=10 * length, done=length)
    assert min(computed) > 50_000 and max(computed) < 150_000, "values of curves"
