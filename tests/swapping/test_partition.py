"""The partition is as good as the best of all; its sums are those of the time line."""

from itertools import chain, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.errors import UsageError
from stoker.runners.swap.partition import (
    Crossing,
    MeasuredChain,
    Parts,
    Piece,
    Weight,
    allowed_cuts,
    best_cuts,
    choose_accumulate,
    cost_of,
    smallest_cap,
)
from stoker.runners.swap.swap_plan import plan_step, planned, schedule

SIZE = st.integers(0, 20)
COUNT = st.integers(1, 4)


@st.composite
def chains(draw):
    """Short chains with tied and frozen weights, skip connections and statistics; seconds are whole numbers, so sums are exact."""
    count = draw(st.integers(1, 6))
    trained = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    pieces = []
    for k in range(count):
        weights = (Weight(draw(st.integers(k, k + 1)), 7, trained[k]), Weight(100 + k, draw(SIZE), trained[k]))
        numbers = {
            name: draw(SIZE) for name in ("forward_work", "statistics", "again_work", "kept", "backward_work", "later_work")
        }  # fmt: skip
        seconds = {name: float(draw(SIZE)) for name in ("forward", "backward", "load", "out")}
        pieces.append(Piece(name=str(k), start=k, stop=k + 1, weights=weights, **numbers, **seconds))
    spans = st.tuples(st.integers(0, count - 1), st.integers(1, count), SIZE).filter(lambda s: s[0] < s[1] < count)
    crossings = st.lists(spans.map(lambda s: Crossing(*s)), max_size=6).map(tuple) if count > 1 else st.just(())
    return MeasuredChain(
        pieces=tuple(pieces), values=draw(crossings), gradients=draw(crossings), inputs=draw(SIZE),
        part_forward=float(draw(st.integers(0, 2))), part_backward=float(draw(st.integers(0, 2))),
    )  # fmt: skip


def every_partition(measured):
    """With each cut not at all, once, or twice, which is a pause."""
    each = [((), (cut,), (cut, cut)) for cut in range(1, len(measured.pieces))]
    return [list(chain(*taken)) for taken in product(*each)]


def whole_seconds(measured):
    """Loads of tied weights are a fraction: compare what need not be exact."""
    return pytest.approx(measured, abs=1e-9)


@given(chains(), COUNT, st.integers(0, 250))
@settings(max_examples=300, deadline=None)
def test_no_partition_is_better_than_the_one_found(measured, accumulate, cap):
    costs = {tuple(cuts): cost_of(measured, cuts, accumulate) for cuts in every_partition(measured)}
    fitting = [cost for cost in costs.values() if cost.peak <= cap]
    found = best_cuts(measured, cap, accumulate)
    assert (found is None) == (not fitting)
    if found is not None:
        best = min(cost.seconds for cost in fitting)
        assert costs[tuple(found)].seconds == whole_seconds(best)
        assert costs[tuple(found)].peak <= cap
        assert costs[tuple(found)].kept <= max(c.kept for c in fitting if c.seconds == whole_seconds(best))


@given(chains(), COUNT)
@settings(max_examples=200, deadline=None)
def test_the_smallest_cap_is_the_least_peak_of_all_partitions(measured, accumulate):
    least = min(cost_of(measured, cuts, accumulate).peak for cuts in every_partition(measured))
    assert smallest_cap(measured, accumulate) == least
    assert best_cuts(measured, least, accumulate) is not None
    assert best_cuts(measured, least - 1, accumulate) is None


@given(chains(), COUNT)
@settings(max_examples=200, deadline=None)
def test_the_time_line_ends_when_the_sums_say_and_each_stream_does_one_thing_at_a_time(measured, accumulate):
    for cuts in every_partition(measured):
        plan = planned(measured, 0, accumulate, cuts)
        assert plan.seconds == whole_seconds(cost_of(measured, cuts, accumulate).seconds)
        for stream in ("load", "compute", "out"):
            busy = sorted((b.begin, b.end) for b in plan.timeline if b.stream == stream)
            assert all(one[1] <= later[0] for one, later in pairwise(busy))


def even(count=4, **changes):
    """Equal pieces of 10 bytes that take 1 s forward, 3 s back and 2 s to load; 1 byte crosses each cut."""
    values = {
        "forward": 1.0,
        "backward": 3.0,
        "load": 2.0,
        "out": 2.0,
        "forward_work": 1,
        "again_work": 1,
        "kept": 2,
        "backward_work": 2,
        "later_work": 2,
    }
    pieces = tuple(
        Piece(name=f"p{k}", start=10 * k, stop=10 * (k + 1), weights=(Weight(k, 10, True),), **(values | changes)) for k in range(count)
    )
    passed = tuple(Crossing(k, k + 1, 1) for k in range(count - 1))
    return MeasuredChain(pieces=pieces, values=passed, gradients=passed, inputs=1)


def test_a_step_by_hand():
    """Two parts of two pieces: 4 s of loading; forward 2 s beside a load of 4; there and back 6 s; back 6 s beside gradients, 4 (C = 1).

    Of three parts the second is computed again and goes back halfway in 4 s; of a load of 4 s its other half, 2 s, hides so much.
    """
    parts = Parts(even())
    line = schedule([parts(0, 2), parts(2, 4)], 1)
    assert [(b.stream, b.part, b.begin, b.end) for b in line] == [
        ("load", 0, 0, 4), ("load", 1, 4, 8), ("compute", 0, 4, 6),
        ("load", 0, 8, 12), ("compute", 1, 8, 14), ("out", 1, 14, 18), ("compute", 0, 14, 20), ("out", 0, 20, 24),
    ]  # fmt: skip
    parts = Parts(even(6))
    line = schedule([parts(0, 2), parts(2, 4), parts(4, 6)], 1)
    assert [(b.stream, b.part, b.begin, b.end) for b in line[5:]] == [
        ("load", 1, 12, 16), ("compute", 2, 12, 18), ("out", 2, 18, 22),
        ("load", 0, 22, 26), ("compute", 1, 18, 24), ("out", 1, 24, 28), ("compute", 0, 26, 32), ("out", 0, 32, 36),
    ]  # fmt: skip


def test_gradients_leave_beside_the_first_half_of_a_step_and_loads_come_beside_the_second():
    """As above, C = 2. Of three parts with gradients of 9 s the second waits 3 s for those of the third, after 6 s of computing."""
    parts = Parts(even())
    line = schedule([parts(0, 2), parts(2, 4)], 2)
    assert [(b.stream, b.part, b.begin, b.end) for b in line] == [
        ("load", 0, 0, 4), ("load", 1, 4, 8), ("compute", 0, 4, 8),
        ("load", 0, 14, 18), ("compute", 1, 8, 20), ("out", 1, 20, 24), ("compute", 0, 20, 32), ("out", 0, 32, 36),
    ]  # fmt: skip
    parts = Parts(even(6, out=4.5))
    line = schedule([parts(0, 2), parts(2, 4), parts(4, 6)], 2)
    assert [(b.stream, b.part, b.begin, b.end) for b in line[5:]] == [
        ("load", 1, 18, 22), ("compute", 2, 12, 24), ("out", 2, 24, 33),
        ("compute", 1, 24, 30), ("load", 0, 33, 37), ("compute", 1, 33, 39), ("out", 1, 39, 48),
        ("compute", 0, 39, 45), ("compute", 0, 48, 54), ("out", 0, 54, 63),
    ]  # fmt: skip


def test_peak_by_hand():
    """Single pieces, C = 1: back through the third of four it needs w2 + w1 + g2 = 30, kept 1 + 1 + 1, and its own 2 + 2, 1 and 1."""
    parts = Parts(even())
    assert parts(2, 3).work(1) == 6
    assert cost_of(even(), [1, 2, 3], 1).peak == 30 + 3 + 6


def test_more_micro_batches_hide_the_loads_and_auto_takes_the_fewest_that_do():
    measured = even(8, load=4.0, out=0.0)
    ratios = [cost_of(measured, best_cuts(measured, 110, c), c).ratio for c in (1, 2, 4, 8)]
    assert ratios == sorted(ratios, reverse=True)
    chosen = choose_accumulate(measured, 110)
    assert chosen is not None and cost_of(measured, best_cuts(measured, 110, chosen), chosen).ratio <= 1.05
    assert cost_of(measured, best_cuts(measured, 110, chosen // 2), chosen // 2).ratio > 1.05


def test_two_parts_at_least():
    assert best_cuts(even(load=0.0, out=0.0), 1000, 1) == []
    assert best_cuts(even(load=0.0, out=0.0), 1000, 1, 2)
    assert best_cuts(even(1), 1000, 1, 2) is None


def test_where_nothing_fits_what_would_is_told():
    least = smallest_cap(even(), 4)
    with pytest.raises(UsageError, match=r"memory.cap: .*accumulate: 4; the smallest cap that would is 1KiB"):
        plan_step(even(), least - 1, 4)
    assert plan_step(even(), least, 4).peak == least
    with pytest.raises(UsageError, match=r"or write accumulate: \d+, with which it fits"):
        plan_step(even(), smallest_cap(even(), 2), 8)


def test_of_a_long_chain_the_cuts_of_small_neighbours_are_left_out():
    measured = even(300)
    kept = allowed_cuts(measured, 20)
    assert len(kept) == 20 and kept == sorted(set(kept)) and kept[0] > 0 and kept[-1] < 300
    gaps = [b - a for a, b in zip([0, *kept], [*kept, 300], strict=True)]
    assert max(gaps) <= 4 * min(gaps)
    cuts = best_cuts(measured, 400, 4)
    assert cuts is not None and cost_of(measured, cuts, 4).peak <= 400
