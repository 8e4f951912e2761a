"""Suspension and resumption: the closed form beside the printed sum, and the execution time that follows from it."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil, comb, inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.policies.estimate.resumption import best_effort_suspensions, execution_time, suspensions


def printed_sum(n: int, m: int) -> Fraction:
    """Eqn 5.3 without the overhead, in exact arithmetic."""
    return sum((Fraction(k * comb(n - 1, k) * comb(m - n + 1, k + 1), comb(m, n)) for k in range(min(n - 1, m - n) + 1)), Fraction(0))


@pytest.mark.parametrize("m", [*range(1, 31), 100, 333, 700])
def test_closed_form_is_the_printed_sum(m: int) -> None:
    needed = range(1, m + 1) if m <= 30 else range(1, m + 1, m // 9)
    for n in needed:
        exact = printed_sum(n, m)
        assert exact == Fraction((n - 1) * (m - n), m)
        assert float(suspensions(n, m)) == pytest.approx(float(exact), rel=1e-14)


def test_gaps_of_all_placements() -> None:
    """The probabilities of Eqn 5.3 are those of the gaps in n of m terms, all sets being equally likely."""
    for m in range(1, 9):
        for n in range(1, m + 1):
            gaps = [sum(b - a > 1 for a, b in pairwise(terms)) for terms in combinations(range(m), n)]
            assert Fraction(sum(gaps), len(gaps)) == printed_sum(n, m)


def test_edges_of_suspensions() -> None:
    assert suspensions([0, 1, 5, 5, 7, 3], [4, 9, 5, 4, inf, 0]).tolist() == [0, 0, 0, 0, 6, 0]
    assert suspensions(10**6, 2 * 10**6) == pytest.approx(499999.5)
    assert best_effort_suspensions([0, 1, 8]).tolist() == [0, 0.5, 4]


def slowly(work: float, lease: float, m: int, cost: float) -> float:
    """The definition, by counting up."""
    n = alone = ceil(work / lease)
    if alone > m:
        return work
    while n * lease < work + cost * float(suspensions(n, m)):
        n += 1
    return max(work + cost * float(suspensions(n, m)), (n - 1) * lease if n > alone else work)


SECONDS = st.integers(0, 20000).map(float)
LENGTHS = st.integers(1, 900).map(float)
TERMS = st.integers(0, 400)


@given(st.lists(st.tuples(SECONDS, LENGTHS, TERMS, st.integers(0, 2000).map(float)), min_size=1, max_size=20))
def test_execution_time_is_the_least_fixed_point(jobs: list[tuple[float, float, int, float]]) -> None:
    got = execution_time(*map(np.array, zip(*jobs, strict=True)))
    assert got.tolist() == pytest.approx([slowly(*job) for job in jobs], rel=1e-12)


@given(SECONDS, LENGTHS, st.one_of(st.floats(0, 400), st.just(inf), st.just(nan)), st.lists(st.floats(0, 3000), min_size=2, max_size=30))
def test_execution_time_rises_with_the_overhead(work: float, lease: float, available: float, costs: list[float]) -> None:
    got = execution_time(work, lease, available, np.sort(costs))
    assert (got >= work).all()
    with np.errstate(invalid="ignore"):
        steps = np.diff(got)
    assert (steps[np.isfinite(steps)] >= -1e-9 * (1 + work)).all()
    assert (np.diff(np.isinf(got).astype(int)) >= 0).all()


@given(SECONDS, LENGTHS, TERMS, st.floats(0, 3000))
def test_a_deadline_that_the_work_meets_is_met(work: float, lease: float, m: int, cost: float) -> None:
    if work <= m * lease:
        assert execution_time(work, lease, m, cost) <= m * lease * (1 + 1e-12)
    else:
        assert execution_time(work, lease, m, cost) == work


def test_examples() -> None:
    # 4 terms' work of 600 s in 8 terms: 3 * 4/8 suspensions of 30 s do not fit 4 terms, 4 * 3/8 * 30 s fit a fifth.
    assert execution_time(2400, 600, 8, 30) == 2445
    assert execution_time([2400, 0, 2400, nan], 600, 8, 0)[:3].tolist() == [2400, 0, 2400]
    assert np.isnan(execution_time(nan, 600, [8, nan], 30)).all()
    # Best effort: 2350 s + n/2 * 30 s take 5 terms.
    assert execution_time(2350, 600, [nan, inf], 30).tolist() == [2425, 2425]
    assert execution_time(10, 5, nan, 10) == inf
    assert execution_time(0, 5, nan, 10) == 0
    assert execution_time(np.empty(0), 5, np.empty(0), 10).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, 600, 8, 30), "work: -1 s is negative"),
        ((1, 0, 8, 30), "lease: 0 s is not a length"),
        ((1, nan, 8, 30), "lease: nan s is not a length"),
        ((1, 600, -8, 30), "available: -8 lease terms"),
        ((1, 600, 8, -30), "overhead: -30 s is not a duration"),
        ((1, 600, 8, nan), "overhead: nan s is not a duration"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        execution_time(*arguments)
