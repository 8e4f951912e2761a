"""Finds the jobs that must move so that a gang finds its nodes: those with the fewest GPUs.

Cells are counted for the whole pool (5.14), as if all jobs could be packed anew. But jobs that renew their leases keep their GPUs,
so there may be enough cells and no whole node. Then some of them must move, which costs each a suspension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..arrays import Ints


def shares(n: int, sizes: Ints) -> list[int]:
    """GPUs of a gang of ``n`` on each of its nodes, as few as it can be on: whole ones, the largest, and a part of one more."""
    parts = []
    for size in sorted(sizes.tolist(), reverse=True):
        if n > 0:
            parts.append(min(n, size))
            n -= size
    return parts


def movers(parts: Sequence[int], free: Ints, movable: Mapping[int, Sequence[tuple[int, int]]]) -> list[int] | None:
    """Jobs (rows) that give up nodes for a gang, [] when there is room as it is, None when there is no way.

    ``parts``: GPUs that it takes of one node each (`shares`); ``free``: GPUs of each node that nobody has; ``movable``: for each node the
    (row, GPUs there) of jobs that may move.
    """
    open_gpus = free.tolist()
    closed: set[int] = set()
    chosen: set[int] = set()
    for need in parts:
        best: tuple[int, int, list[int]] | None = None  #: GPUs moved, node, jobs
        for node, available in enumerate(open_gpus):
            if node in closed:  # a part of the gang is there
                continue
            here = [(row, gpus) for row, gpus in movable.get(node, ()) if row not in chosen]
            if available + sum(gpus for _, gpus in here) < need:
                continue
            going = _fewest(here, need - available)
            cost = sum(gpus for row, gpus in here if row in going)
            if best is None or cost < best[0]:
                best = cost, node, going
        if best is None:
            return None
        _, node, going = best
        chosen.update(going)
        closed.add(node)
    return sorted(chosen)


def _fewest(here: Sequence[tuple[int, int]], need: int) -> list[int]:
    """Rows that free ``need`` GPUs together, none of whom could be spared; the largest are spared first."""
    surplus = sum(gpus for _, gpus in here) - need
    going = []
    for row, gpus in sorted(here, key=lambda job: (-job[1], job[0])):
        if gpus <= surplus:
            surplus -= gpus
        else:
            going.append(row)
    return going
