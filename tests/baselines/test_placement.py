"""Buddy cells: worked examples and properties of consolidated placement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.policies.placement.cells import Cells, Grid, States
from stoker.policies.placement.consolidated import Placement
from views import GIB, Job, make_view


def placement(nodes, *, held=(), unusable=()):
    jobs = [Job(1, gpus=len(held), held=tuple(held))] if held else []
    return Placement(make_view(nodes, jobs, unusable=unusable))


def test_smallest_cell_first():
    # GPU 0 is held: 1 is its free buddy, 2-3 a free cell of level 1, 4-7 one of level 2.
    p = placement([8], held=[0])
    assert p.find(1) == (1,)
    assert p.find(2) == (2, 3)
    assert p.find(3) == (1, 2, 3)  # the cell of level 2 in which just three are left
    assert p.find(4) == (4, 5, 6, 7)
    assert p.find(5) == (1, 4, 5, 6, 7)
    assert p.find(7) == (1, 2, 3, 4, 5, 6, 7)
    assert p.find(8) is None


def test_the_fuller_node_is_filled_first():
    p = placement([4, 4, 4], held=[4, 5])
    assert p.find(2) == (6, 7)
    assert p.find(4) == (0, 1, 2, 3)


@pytest.mark.parametrize(("size", "expected"), [(1, (2,)), (2, (0, 1)), (3, (0, 1, 2))])
def test_a_node_of_three(size, expected):
    assert placement([3]).find(size) == expected


def test_a_node_of_six():
    p = placement([6])
    assert p.find(2) == (4, 5)  # the lone cell of level 1, so 0-3 stays whole
    p.take((4, 5))
    assert p.find(4) == (0, 1, 2, 3)
    assert placement([6]).find(6) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("n", [1, 2])
def test_a_pool_without_gpus_has_room_for_nobody(n):
    p = placement([])
    assert p.find(n) is p.find(n, relaxed=True) is None
    assert p.reach(np.zeros(0)).least(n) == math.inf


def test_a_job_that_fits_a_node_is_never_split_unless_relaxed():
    p = placement([2, 2], held=[0, 2])
    assert p.free() == 2
    assert p.find(2) is None
    assert p.find(2, relaxed=True) == (1, 3)


def test_a_large_job_takes_whole_nodes_and_the_best_cell_for_the_rest():
    # 12 GPUs on nodes of 8: the empty node whole, and 4 where 4 are left.
    p = placement([8, 8, 8], held=[0, 1, 2, 3, 16])
    assert p.find(12) == (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    assert p.find(16) is None, "three nodes would do, but two suffice in an empty pool"
    assert len(p.find(16, relaxed=True)) == 16
    assert placement([8, 8]).find(17) is None


def test_what_if_copies_are_independent():
    p = placement([4])
    trial = p.copy()
    trial.take((0, 1, 2))
    assert (trial.free(), p.free()) == (1, 4)
    trial.release((0, 1, 2))
    assert trial.find(4) == p.find(4) == (0, 1, 2, 3)


def test_unusable_gpus_are_never_given_and_never_freed():
    p = placement([4], unusable=[0])
    assert p.find(4) is None
    p.release((0,))
    assert p.free() == 3


def test_gpus_of_stopping_jobs_are_free_soon():
    p = Placement(make_view([2], [Job(1, held=(0,), stopping=True), Job(2, held=(1,))]))
    assert (p.free(), p.free_soon()) == (0, 1)
    assert p.find(1) is None
    assert p.find_soon(1) == (0,)
    p.release_soon((1,))
    assert p.find_soon(2) == (0, 1)
    assert p.free() == 0


def test_memory_rules_gpus_out_and_unknown_memory_does_not():
    p = Placement(make_view([4], memory=[24 * GIB, 80 * GIB, 80 * GIB, 0.0]))
    assert p.find(2, memory=48 * GIB) in {(1, 2), (2, 3)}
    assert p.find(4, memory=48 * GIB) is None
    assert p.capacity(memory=48 * GIB) == 3
    assert p.find(4) == (0, 1, 2, 3)


def test_an_empty_pool_and_a_gang_of_none():
    p = placement([])
    assert p.find(1) is None
    with pytest.raises(ValueError, match="at least 1"):
        placement([1]).find(0)


pools = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12]), min_size=1, max_size=5)


@given(pools, st.data())
def test_find_is_right_about_every_state(nodes, data):
    """Against the definition: found exactly when the fewest nodes that could hold it have room, and on that many."""
    count = sum(nodes)
    held = data.draw(st.sets(st.integers(0, count - 1)))
    n = data.draw(st.integers(1, count + 1))
    p = placement(nodes, held=sorted(held))
    node = np.repeat(np.arange(len(nodes)), nodes)
    room = sorted((sum(1 for g in range(count) if node[g] == k and g not in held) for k in range(len(nodes))), reverse=True)
    needed = next((k for k in range(1, len(nodes) + 1) if sum(sorted(nodes, reverse=True)[:k]) >= n), math.inf)

    found = p.find(n)
    fits = needed is not math.inf and sum(room[:needed]) >= n
    assert (found is not None) == fits
    assert (p.reach(np.full(count, math.inf)).least(n) < 0.0) == fits
    if found is not None:
        assert len(set(found)) == n
        assert held.isdisjoint(found)
        assert len({node[g] for g in found}) <= needed
    relaxed = p.find(n, relaxed=True)
    assert (relaxed is not None) == (n <= count - len(held))


@given(pools, st.data())
@settings(max_examples=50)
def test_take_and_release_come_back_to_the_same_answers(nodes, data):
    p = placement(nodes)
    before = [p.find(n) for n in range(1, sum(nodes) + 1)]
    taken = []
    for n in data.draw(st.lists(st.integers(1, 5), max_size=6)):
        if (gpus := p.find(n)) is not None:
            p.take(gpus)
            taken.append(gpus)
    assert len({g for gpus in taken for g in gpus}) == sum(map(len, taken)) == sum(nodes) - p.free()
    for gpus in data.draw(st.permutations(taken)):
        p.release(gpus)
    assert [p.find(n) for n in range(1, sum(nodes) + 1)] == before


@given(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=12))
def test_consolidation_friendly_jobs_fill_a_pool_without_a_gap(sizes):
    """Remark 5.1 of 002: with the large ones first, whatever fits by count fits on buddy cells."""
    p = placement([8, 8, 8])
    for n in sorted(sizes, reverse=True):
        room = p.free() >= n
        gpus = p.find(n)
        assert (gpus is not None) == room
        if gpus is not None:
            assert gpus[0] % n == 0
            assert gpus == tuple(range(gpus[0], gpus[0] + n)), "an aligned cell of its own level"
            p.take(gpus)


@given(data=st.data())
def test_small_nodes_are_placed_as_large_ones(data):
    """Both ways of keeping what is free choose the same GPUs, whatever has been taken and given back."""
    nodes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    gpus = make_view(nodes).gpus
    grid = Grid(gpus.node, gpus.index)
    is_open = np.array(data.draw(st.lists(st.booleans(), min_size=sum(nodes), max_size=sum(nodes))))
    states, cells = States.of(grid, is_open), Cells.of(grid, is_open)
    for _ in range(3):
        n, relaxed = data.draw(st.integers(1, 12)), data.draw(st.booleans())
        fitting = (
            np.array(data.draw(st.lists(st.booleans(), min_size=sum(nodes), max_size=sum(nodes)))) if data.draw(st.booleans()) else None
        )
        found = states.find(n, fitting, relaxed)
        assert found == cells.find(n, fitting, relaxed)
        assert states.per_node().tolist() == cells.per_node().tolist()
        changed = np.array(found if found is not None else [0])
        for free in (states, cells):
            free.set(changed, found is None)
