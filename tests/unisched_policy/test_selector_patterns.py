"""The policy generator: which buddy cells a gang may have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from stoker.policies.unisched.solver.patterns import ENUMERATED, Pattern, all_patterns, patterns
from stoker.policies.unisched.solver.problem import from_level

SIZES = [*range(1, ENUMERATED + 1)]


def gpus(cells: tuple[int, ...]) -> int:
    return sum(count << level for level, count in enumerate(cells))


@pytest.mark.parametrize("size", SIZES)
def test_all_sums_of_cells_are_there(size: int) -> None:
    """Against counting: every quadruple of so many GPUs without parts given back."""
    every = {cells for cells in itertools.product(*(range(size // (1 << level) + 1) for level in range(4))) if gpus(cells) == size}
    found = {pattern.cells for pattern in all_patterns(size)}
    assert every <= found
    assert all(gpus(cells) == size for cells in found)


def test_six_gpus_have_the_patterns_of_the_text() -> None:
    """(0, 1, 1, 0) and (6, 0, 0, 0); for (0, 0, 0, 1) the same cell with the two GPUs that are not needed given back."""
    found = {pattern.cells: pattern for pattern in all_patterns(6)}
    assert found[0, 1, 1, 0] == Pattern((0, 1, 1, 0), 2, False)
    assert found[6, 0, 0, 0] == Pattern((6, 0, 0, 0), 6, False)
    assert found[0, -1, 0, 1] == Pattern((0, -1, 0, 1), 1, True)


@pytest.mark.parametrize("size", SIZES)
def test_no_pattern_that_is_left_out_is_better_than_all_that_are_kept(size: int) -> None:
    kept = patterns(size)
    for pattern in all_patterns(size):
        takes = from_level(np.array(pattern.cells))
        assert any((one.compact or not pattern.compact) and (from_level(np.array(one.cells)) <= takes).all() for one in kept)


@pytest.mark.parametrize("size", SIZES)
def test_one_compact_pattern_and_one_of_any_gpus(size: int) -> None:
    first, *rest = patterns(size)
    assert first.compact
    assert first.nodes == -(-size // 8)
    assert [pattern.cells for pattern in rest] == ([] if size == 1 else [(size, 0, 0, 0)])


@pytest.mark.parametrize(
    ("size", "cells", "nodes"),
    [(17, (1, 0, 0, 2), 3), (20, (0, 0, 1, 2), 3), (22, (0, -1, 0, 3), 3), (24, (0, 0, 0, 3), 3), (64, (0, 0, 0, 8), 8)],
)
def test_large_gangs_have_whole_nodes(size: int, cells: tuple[int, ...], nodes: int) -> None:
    assert patterns(size) == (Pattern(cells, nodes, True),)


def test_nodes_of_other_sizes() -> None:
    assert [pattern.cells for pattern in patterns(6, levels=3)] == [(0, 1, 1), (6, 0, 0)]
    assert [pattern.cells for pattern in patterns(12, levels=5)] == [(0, 0, -1, 0, 1), (12, 0, 0, 0, 0)]
    assert patterns(3, levels=1) == (Pattern((3,), 3, True),)


def test_a_gang_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^gpus: "):
        patterns(0)
