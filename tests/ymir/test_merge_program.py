"""The merge program: its weights by hand, and its optimum beside that of trying everything."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import pytest
from stoker.policies.ymir import merge_program
from stoker.policies.ymir.merge_columns import (
    SPATIAL,
    TEMPORAL,
    JobKind,
    Merge,
    MergeColumn,
    ObjectiveWeights,
    allowed_gpus,
    at_most,
    columns_of,
    fair_share,
    spatial_weight,
    temporal_weight,
)
from stoker.policies.ymir.merge_program import solve

COSTS = ObjectiveWeights(switch=0.0)


def test_weights_by_hand() -> None:
    # Alone 100 s and 60 s, the shorter one first: 60 + 160 = 220. With the first's weights the second takes 20: 100 + 120 = 220.
    assert temporal_weight(100, 60, 20) == pytest.approx(1.0)
    assert temporal_weight(60, 100, 20) == pytest.approx(220 / 140)  # 60 + 80
    assert spatial_weight(100, 60, (50, 50)) == pytest.approx(2.2)  # Eqn 3.16 as printed: both end at 50
    assert spatial_weight(100, 60, (80, 30)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(1, 9, [1, 2, 3, 4, 8]), (4, 16, [4, 8, 12, 16]), (2, 3, [2, 3]), (6, 12, [6, 8, 12]), (1, 1, [1])],
    ids=["any", "pipeline", "few", "odd gang", "one"],
)
def test_numbers_of_gpus(least: int, most: int, sizes: list[int]) -> None:
    assert allowed_gpus(least, most) == sizes


def test_a_fair_share_is_rounded_up_and_an_unmeasured_number_of_gpus_counts_as_the_next_below() -> None:
    assert [fair_share(8, jobs) for jobs in (0, 3, 8, 20)] == [8, 3, 1, 1]
    assert [at_most({2: 9.0, 4: 5.0}, n) for n in (1, 2, 3, 7)] == [9.0, 9.0, 9.0, 5.0]


def test_costs_of_columns_by_hand() -> None:
    """A job of 100 s on one GPU and 60 on two, which holds one; a fair share is one GPU; a switch takes 10 s."""
    columns = columns_of([JobKind(0, 1, {1: 100.0, 2: 60.0, 3: 70.0}, held=1)], [], 8, 1, ObjectiveWeights(switch=10.0, waiting=50.0))
    # Nothing: twice 50, as it is the shortest. One: 100 / 100. Two: (60 + 10) / 100. Three are slower, and no column.
    assert [(column.gpus, column.cost) for column in columns] == [(0, 100.0), (1, 1.0), (2, pytest.approx(0.7))]


def test_a_merge_is_weighed_by_its_gain_and_left_out_where_that_is_small() -> None:
    kinds = [JobKind(0, 1, {1: 60.0}), JobKind(1, 1, {1: 100.0})]
    good, poor, same = (
        Merge(TEMPORAL, 0, 1, {1: (60.0, 80.0)}),
        Merge(TEMPORAL, 0, 1, {1: (60.0, 155.0)}),
        Merge(TEMPORAL, 0, 0, {1: (1, 2)}),
    )
    merged = [column for column in columns_of(kinds, [good, poor, same], 8, 1, COSTS) if column.mode]
    # 2 * 80 / 80, over a TranWt of 220 / 140. Two jobs of one task are never merged.
    assert [(column.kinds, column.cost) for column in merged] == [((0, 1), pytest.approx(2 * 140 / 220))]


def _instance(seed: int) -> tuple[list[JobKind], list[MergeColumn], int]:
    draw = random.Random(seed)
    gpus, jobs, kinds = draw.randint(1, 8), draw.randint(1, 6), list[JobKind]()
    while jobs:
        count = min(jobs, draw.choice([1, 1, 2, 3]))
        jobs -= count
        work, scaling = draw.uniform(50, 500), draw.uniform(0.3, 1.0)
        seconds = {n: work / n**scaling for n in allowed_gpus(1, draw.choice([1, 2, 4, 8]))}
        kinds.append(JobKind(draw.randint(0, 3), count, seconds, draw.choice([0, 0, 1, 2]), draw.choice([1, 1, 1, 2])))
    merges = []
    for first, second in itertools.permutations(range(len(kinds)), 2):
        one, two, gain = kinds[first].seconds, kinds[second].seconds, draw.uniform(0.1, 1.1)
        sizes = [n for n in one if n in two]
        if draw.random() < 0.6:
            merges.append(Merge(TEMPORAL, first, second, {n: (one[n], one[n] + gain * two[n]) for n in sizes}))
        elif first < second:
            merges.append(Merge(SPATIAL, first, second, {n: (gain * one[n], gain * (one[n] + two[n])) for n in sizes}))
    costs = ObjectiveWeights(switch=draw.choice([0.0, 30.0]), waiting=draw.choice([20.0, 1e4]), least_gain=draw.choice([1.0, 1.1]))
    return kinds, columns_of(kinds, merges, gpus, fair_share(gpus, sum(kind.count for kind in kinds)), costs), gpus


def _cheapest(left: tuple[int, ...], columns: Sequence[MergeColumn], gpus: int) -> float:
    """By trying, for the first kind of which some are left, each column that serves one of it."""
    first = next((kind for kind, count in enumerate(left) if count), None)
    if first is None:
        return 0.0
    best = float("inf")
    for column in columns:
        if first in column.kinds and column.gpus <= gpus:
            rest = list(left)
            for kind in column.kinds:
                rest[kind] -= 1
            if min(rest) >= 0:
                best = min(best, column.cost + _cheapest(tuple(rest), columns, gpus - column.gpus))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_that_of_trying_everything(seed: int) -> None:
    kinds, columns, gpus = _instance(seed)
    best = _cheapest(tuple(kind.count for kind in kinds), columns, gpus)
    found = solve(kinds, columns, gpus, gap=0.0)
    assert found is not None and found.cost == pytest.approx(best) and found.bound <= best + 1e-6
    for number, kind in enumerate(kinds):  # each job is in one column
        assert sum(n * column.kinds.count(number) for n, column in zip(found.times, columns, strict=True)) == kind.count
    assert sum(n * column.gpus for n, column in zip(found.times, columns, strict=True)) <= gpus


def test_many_columns_are_thinned_by_their_reduced_cost_with_a_bound_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_program, "MOST_COLUMNS", 12)
    gaps, thinned = [], 0
    for seed in range(40, 70):
        kinds, columns, gpus = _instance(seed)
        best = _cheapest(tuple(kind.count for kind in kinds), columns, gpus)
        found = solve(kinds, columns, gpus, gap=0.0)
        assert found is not None and found.bound - 1e-6 <= best <= found.cost + 1e-6
        assert (found.cost - best) / found.cost <= found.gap + 1e-6  # what is certified holds
        thinned += len(columns) > 12
        gaps.append((found.cost - best) / best)
    assert thinned >= 5 and sum(gaps) / len(gaps) < 0.02


def _large(kinds_of: int, jobs: int) -> tuple[list[JobKind], list[Merge]]:
    draw = random.Random(3)
    kinds = []
    for number in range(kinds_of):
        work, scaling = draw.lognormvariate(6, 1), draw.uniform(0.5, 0.9)
        kinds.append(JobKind(number, jobs // kinds_of, {n: work / n**scaling for n in allowed_gpus(1, 32)}))
    merges = [
        Merge(TEMPORAL, a, b, {n: (one.seconds[n], one.seconds[n] + gain * two.seconds[n]) for n in one.seconds})
        for a, one in enumerate(kinds)
        for b, two in enumerate(kinds)
        if a != b and (gain := draw.uniform(0.2, 1.5)) < 1
    ]
    return kinds, merges


def test_two_hundred_jobs_of_few_kinds_take_less_than_a_second() -> None:
    kinds, merges = _large(9, 198)
    solve(kinds[:1], columns_of(kinds[:1], [], 8, 1, COSTS), 8)  # the library is loaded
    before = time.process_time()
    found = solve(kinds, columns_of(kinds, merges, 240, fair_share(240, 198), ObjectiveWeights(switch=60.0)), 240)
    assert time.process_time() - before < 1.0
    assert found is not None and found.gap <= 2e-3


def test_nothing_to_decide_is_decided() -> None:
    found = solve([], [], 8)
    assert found is not None and (found.cost, found.gap, list(found.times)) == (0.0, 0.0, [])
