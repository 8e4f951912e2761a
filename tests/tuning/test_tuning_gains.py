"""Whether a change has brought something: how often the test of some windows before and since is wrong, and how soon it is sure."""

from __future__ import annotations

import math
import random

import pytest
from stoker.runners.loaders.tuning.gains import gain

TRIALS = 400


def judged(true: float, scatter: float, least: float, windows: int, seed: int) -> tuple[bool | None, int]:
    """Whether at least ``least`` was found to be gained, None where that was never sure; and after how many windows."""
    draw = random.Random(seed)
    before = [draw.gauss(1.0, scatter) for _ in range(2)]
    since: list[float] = []
    for count in range(1, windows + 1):
        since.append(draw.gauss(1.0 + true, scatter))
        low, _, high = gain(before, since)
        if low >= least or high < least:
            return low >= least, count
    return None, windows


@pytest.mark.parametrize("scatter", [0.02, 0.1, 0.2])
def test_it_is_seldom_sure_of_what_is_wrong(scatter: float) -> None:
    for true, right in ((-0.1, False), (0.0, False), (0.2, True)):
        found = [judged(true, scatter, 0.05, 6, seed)[0] for seed in range(TRIALS)]
        assert sum(each is (not right) for each in found) / TRIALS <= 0.05, true


def test_twice_as_much_is_seen_in_a_few_windows() -> None:
    found = [judged(1.0, 0.08, 0.05, 6, seed) for seed in range(TRIALS)]
    assert sum(stays is True and count <= 3 for stays, count in found) / TRIALS >= 0.8


def test_one_window_each_is_no_proof() -> None:
    assert gain([100.0], [200.0]) == (-1.0, 1.0, math.inf)


def test_even_windows_are_not_taken_for_certainty() -> None:
    low, mean, high = gain([100.0] * 2, [110.0] * 3)
    assert mean == pytest.approx(0.1)
    assert low < 0.0
    assert high > 0.2


def test_it_narrows_with_more_windows() -> None:
    widths = [found.high - found.low for count in (2, 4, 8) for found in [gain([90.0, 110.0] * count, [140.0, 160.0] * count)]]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.4


@pytest.mark.parametrize(("before", "after"), [([0.0, 0.0], [1.0]), ([], [1.0, 2.0])])
def test_from_nothing_anything_is_a_gain(before: list[float], after: list[float]) -> None:
    assert gain(before, after).low == math.inf


def test_nothing_after_is_a_loss_that_is_not_sure() -> None:
    assert gain([1.0, 1.0], [0.0, 0.0]).mean == -1.0
