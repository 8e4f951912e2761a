"""Who must move so that a gang finds its nodes: the fewest GPUs.

Cells are counted for the whole pool (5.14), as if everybody could be packed anew. Those that renew their leases stay where they are,
so it happens that there are cells enough and none is whole. Then some of them have to move, which costs each a suspension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..arrays import Ints


def movers(n: int, width: int, free: Ints, movable: Mapping[int, Sequence[tuple[int, int]]]) -> list[int] | None:
    """Jobs (rows) that give up nodes for a gang of ``n``, [] when there is room as it is, None when there is no way.

    ``width``: GPUs of a node; ``free``: GPUs of each node that nobody has; ``movable``: for each node the (row, GPUs there) of jobs that
    may move. A gang takes whole nodes, and one part of a node for the rest.
    """
    whole, rest = divmod(n, width)
    open_gpus = free.tolist()
    chosen: set[int] = set()
    for need in [width] * whole + [rest] * (rest > 0):
        best: tuple[int, int, list[int]] | None = None  #: GPUs moved, node, who
        for node, available in enumerate(open_gpus):
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
        open_gpus[node] = -width  # taken: the rest of the gang needs another
    return sorted(chosen)


def _fewest(here: Sequence[tuple[int, int]], need: int) -> list[int]:
    """Rows that free ``need`` GPUs together, none of whom could be spared; the largest are spared first."""
    if need <= 0:
        return []
    surplus = sum(gpus for _, gpus in here) - need
    going = []
    for row, gpus in sorted(here, key=lambda job: (-job[1], job[0])):
        if gpus <= surplus:
            surplus -= gpus
        else:
            going.append(row)
    return going
