"""The global batch is constant: each of its samples counts once a step, whoever comes, goes or dies on the way."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from stoker.runners.replicas.sample_ledger import Ranges, batches, checksum, joined, overlap, rest, shares, size


def positions(ranges: Ranges) -> list[int]:
    return [place for begin, end in ranges for place in range(begin, end)]


@st.composite
def some_ranges(draw: st.DrawFn, batch: int) -> Ranges:
    return joined([(place, place + 1) for place in draw(st.sets(st.integers(0, batch - 1)))])


@given(st.data())
def test_shares_are_every_position_once(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 40))
    done = data.draw(st.lists(some_ranges(batch), min_size=1, max_size=6))
    found = shares(batch, done)
    assert sorted(place for share in found for place in positions(share.all)) == list(range(batch))
    assert all(share.kept in ((), own) for share, own in zip(found, done, strict=True))  # a sum cannot be taken apart
    assert max(size(share.todo) for share in found) - min(size(share.todo) for share in found) <= 1


@given(st.data())
def test_a_step_is_the_same_samples_whoever_dies_in_it(data: st.DataObject) -> None:
    """A step of which each attempt may lose members and gain others, until one is whole."""
    batch = data.draw(st.integers(1, 40))
    sums: dict[int, Ranges] = dict.fromkeys(range(data.draw(st.integers(1, 5))), ())
    newcomer = 100
    for _ in range(data.draw(st.integers(0, 6))):
        found = dict(zip(sums, shares(batch, list(sums.values())), strict=True))
        computed = data.draw(st.sets(st.sampled_from(sorted(sums))))  # the others are lost before they have done their share
        sums = {member: found[member].all for member in sorted(sums) if member in computed}
        for _ in range(data.draw(st.integers(0 if sums else 1, 2))):
            newcomer += 1
            sums[newcomer] = ()
    last = shares(batch, list(sums.values()))
    everything = [place for share in last for place in positions(share.all)]
    assert sorted(everything) == list(range(batch))
    assert sum(size(share.all) for share in last) == batch
    assert sum(checksum(share.all) for share in last) == checksum(((0, batch),))


def test_what_is_done_stays_and_what_was_lost_is_divided() -> None:
    first, second = shares(12, [((0, 4),), ((4, 8),)])  # of three that each did a third, the last has died
    assert (first.kept, first.todo) == (((0, 4),), ((8, 10),))
    assert (second.kept, second.todo) == (((4, 8),), ((10, 12),))
    one, other = shares(8, [((0, 8),), ((4, 8),)])  # the first went on alone, and the other comes back
    assert (one.todo, other.kept, other.todo) == ((), (), ())


@pytest.mark.parametrize(("done", "left"), [((), ((0, 10),)), (((0, 10),), ()), (((2, 4), (6, 9)), ((0, 2), (4, 6), (9, 10)))])
def test_what_is_left_of_a_batch(done: Ranges, left: Ranges) -> None:
    assert rest(10, done) == left
    assert not overlap(done, left)


def test_shares_are_computed_in_batches_of_so_many_at_most() -> None:
    assert batches(((3, 13),), 4) == [range(3, 6), range(6, 9), range(9, 13)]
    assert batches(((0, 5), (8, 9)), 2) == [range(1), range(1, 3), range(3, 5), range(8, 9)]
