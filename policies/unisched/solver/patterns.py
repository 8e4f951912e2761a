"""The policy generator: on which buddy cells a gang may be placed (002 ch. 5.3.3.3).

A pattern counts cells by level, smallest first: (0, 1, 1, 0) is a cell of 2 and a cell of 4 GPUs. The text lets 6 GPUs have
a whole cell of 8, (0, 0, 0, 1), and so loses two GPUs. Here who gets such a cell gives back the aligned rest: (0, -1, 0, 1)
is a cell of 8 less one of 2. The rows of (5.14) stay exact with negative counts, since they hand out large cells first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from .problem import from_level

ENUMERATED = 16  #: GPUs of the largest gang for which all patterns are tried; larger ones get whole nodes and one cell for the rest


@dataclass(frozen=True, slots=True)
class Pattern:
    cells: tuple[int, ...]  #: cells by level, smallest first; negative: given back
    nodes: int  #: nodes at worst, every cell on a node of its own
    compact: bool  #: at worst on as few nodes as the gang can be: at full speed


def all_patterns(gpus: int, levels: int = 4) -> list[Pattern]:
    """Every way to give ``gpus`` GPUs: exact sums of cells, and those with one cell that is larger than what it is needed for.

    ``levels``: of the largest cell, a node of ``2**(levels - 1)`` GPUs.
    """
    nodes = {cells: sum(cells) for cells in _sums(gpus, levels)}
    for level in range(levels):
        for needed in range((1 << level) // 2 + 1, min(1 << level, gpus + 1)):
            part = _part(needed, level, levels)
            for rest in _sums(gpus - needed, levels):
                cells = tuple(a + b for a, b in zip(part, rest, strict=True))
                nodes[cells] = min(nodes.get(cells, gpus), 1 + sum(rest))
    found = [_pattern(cells, gpus, levels, count) for cells, count in nodes.items()]
    return sorted(found, key=lambda pattern: (pattern.nodes, pattern.cells))


@cache
def patterns(gpus: int, levels: int = 4) -> tuple[Pattern, ...]:
    """The patterns worth a choice, compact ones first: none takes as much as another of the same speed and more of some cells.

    Speed depends only on whether the gang is on one node (5.3.2.1), so there are one or two of them.
    """
    if gpus < 1:
        raise ValueError(f"gpus: a gang has at least 1 GPU, not {gpus}")
    if gpus > ENUMERATED:
        return (_whole_nodes(gpus, levels),)
    found = all_patterns(gpus, levels)
    takes = [from_level(np.array(pattern.cells)) for pattern in found]

    def dominated(index: int) -> bool:
        return any(
            (found[other].compact or not found[index].compact)
            and (takes[other] <= takes[index]).all()
            and ((takes[other] < takes[index]).any() or other < index)
            for other in range(len(found))
            if other != index
        )

    kept = [pattern for index, pattern in enumerate(found) if not dominated(index)]
    return tuple(sorted(kept, key=lambda pattern: (not pattern.compact, pattern.nodes, pattern.cells)))


def _whole_nodes(gpus: int, levels: int) -> Pattern:
    node = 1 << (levels - 1)
    nodes, rest = divmod(gpus, node)
    cells = _part(rest, (rest - 1).bit_length(), levels) if rest else (0,) * levels
    return _pattern((*cells[:-1], cells[-1] + nodes), gpus, levels, nodes + (rest > 0))


def _pattern(cells: tuple[int, ...], gpus: int, levels: int, nodes: int) -> Pattern:
    return Pattern(cells, nodes, nodes == -(-gpus // (1 << (levels - 1))))


def _sums(gpus: int, levels: int) -> list[tuple[int, ...]]:
    """All counts of cells that hold exactly so many GPUs."""
    if levels == 1:
        return [(gpus,)]
    most = gpus >> (levels - 1)
    return [(*rest, count) for count in range(most + 1) for rest in _sums(gpus - (count << (levels - 1)), levels - 1)]


def _part(needed: int, level: int, levels: int) -> tuple[int, ...]:
    """One cell of the level less the aligned cells that ``needed`` GPUs leave free in it."""
    spare = (1 << level) - needed
    return tuple((position == level) - (spare >> position & 1) for position in range(levels))
