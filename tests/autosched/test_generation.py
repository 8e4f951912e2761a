"""Arrivals ahead and the trace aggregator (002 ch. 6.4.2.1, 6.4.3.2), worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.policies.autosched.arrivals_ahead import arrivals_ahead, best_match, counts_before, periodic_part
from stoker.policies.autosched.job_aggregation import aggregate, service_preserving

JOB = st.tuples(st.floats(0, 5000), st.floats(1, 1e5), st.integers(1, 16), st.booleans())


def test_bins_are_counted_back_from_now() -> None:
    assert counts_before(np.array([0.0, 250.0, 900.0, 1000.0, 2000.0]), 1000.0).tolist() == [1.0, 1.0, 0.0, 2.0]


def test_the_periodic_part_of_a_wave_is_the_wave() -> None:
    """Two frequencies and noise at a third: the two strongest are kept."""
    t = np.arange(288)
    wave = 5 + 3 * np.cos(2 * np.pi * t / 144) + 2 * np.sin(2 * np.pi * t / 36)
    noisy = wave + 0.1 * np.cos(2 * np.pi * t / 4)
    assert periodic_part(noisy, 2) == pytest.approx(wave)


def test_the_best_match_is_the_newest_nearest_hour() -> None:
    """Windows of 2 before the reference (4, 1): (4, 2) at 1 differs by 1, (4, 2) at 4 too, and it is newer."""
    assert best_match(np.array([0.0, 4, 2, 9, 4, 2, 7, 4, 1]), 2) == (4, 1.0)


def test_the_hour_that_follows_the_match_is_copied() -> None:
    """Two days: in each the hour from 10 to 11 has a job every 100 s and the hour after it one of 4 s each. Now is 11:00 on day two."""
    day, hour = 86400.0, 3600.0
    before = [d * day + 10 * hour + 100 * k + 50 for d in (0, 1) for k in range(36)]
    after = [11 * hour + 900 * k + 450 for k in range(4)]
    submitted = np.array(sorted([0.0, *before, *after]))
    copied = arrivals_ahead(submitted, day + 11 * hour)
    assert (submitted[copied.rows] + copied.shift).tolist() == [day + t for t in after]


def test_nothing_after_now_changes_what_is_copied() -> None:
    rng = np.random.default_rng(0)
    submitted = np.sort(rng.uniform(0, 3 * 86400, 900))
    now = 2 * 86400.0
    altered = np.concatenate((submitted[submitted <= now], rng.uniform(now + 1, 3 * 86400, 500)))
    first, second = arrivals_ahead(submitted, now), arrivals_ahead(altered, now)
    assert submitted[first.rows].tolist() == altered[second.rows].tolist() and first.shift == second.shift


def test_a_short_history_says_what_is_needed() -> None:
    with pytest.raises(ValueError, match=r"the history is 0\.17 h long; 3 h are needed"):
        arrivals_ahead(np.arange(10) * 60.0, 600.0 - 1)


def test_the_service_of_a_group_is_that_of_its_jobs() -> None:
    """2 GPUs for 100 s and 1 for 400 s: 600 GPU-seconds over 3 GPUs are 200 s."""
    assert service_preserving(np.array([2, 1]), np.array([100.0, 400.0])) == 200.0


def test_a_burst_becomes_one_job() -> None:
    groups = aggregate(
        np.array([0.0, 10, 20, 1000]), np.array([100.0, 110, 120, 100]), np.array([1, 1, 1, 1]), 8, np.zeros(4, bool), np.zeros(4, int)
    )
    assert groups.member.tolist() == [0, 0, 0, 1]
    assert (groups.submitted.tolist(), groups.gpus.tolist(), groups.duration.tolist()) == ([10.0, 1000.0], [3, 1], [110.0, 100.0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5000), st.floats(1, 1e5), st.integers(1, 16), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 16),
)
def test_groups_keep_the_service_and_fit_a_node(jobs: list[tuple[float, float, int, bool]], largest: int) -> None:
    submitted, duration, gpus, apart = (np.array(column) for column in zip(*jobs, strict=True))
    groups = aggregate(submitted, duration, gpus, largest, apart, np.zeros(len(jobs), int))
    assert (groups.gpus * groups.duration).sum() == pytest.approx((gpus * duration).sum())
    assert groups.weight.sum() == len(jobs) and (groups.member >= 0).all()
    assert (groups.gpus[groups.weight > 1] <= largest).all()
    assert (groups.weight[groups.member[apart]] == 1).all()
