"""Expected starts of waiting jobs. For people only, not for decisions.

List scheduling: jobs are taken in the policy's order of service, each starts when enough GPUs have become
free, and holds them for its remaining time. GPUs become free when their job ends, or when its lease does, as the
policy may give them away then. Renewals, placement and later arrivals are left out, so the answer is an
estimate, early for gangs in a fragmented pool. It is NaN if it depends on a job of unknown length, and for jobs
behind one that waits for quarantined or drained GPUs: only the policy knows whether they may pass it.
A job whose checkpoint only some nodes can read waits for GPUs of those; a node has none from the time of its return on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from ...policies.contract import Bools, Floats, Ints, Phase, View, asked

HORIZON = 30 * 86_400.0  #: seconds, beyond which there is no figure


def estimate_starts(view: View, order: Sequence[int] | Ints, *, horizon: float = HORIZON) -> Floats:
    """Expected start of each job (id) of ``order``, seconds since the epoch; NaN when unknown or beyond ``horizon``."""
    jobs = view.jobs
    row_of = {job: row for row, job in enumerate(jobs.id.tolist())}
    rows = [row_of.get(job) for job in np.asarray(order, dtype=np.int64).tolist()]
    starts = np.full(len(rows), np.nan)
    coming = _Coming(view)
    wanted, remaining = jobs.gpus_min.tolist(), jobs.remaining.tolist()
    sizes = np.sort(np.where(view.gpus.memory > 0, view.gpus.memory, np.inf))
    large_enough = (len(sizes) - np.searchsorted(sizes, jobs.gpu_memory)).tolist()  #: GPUs with the memory that a job needs
    asks = jobs.asks.tolist()
    for position, row in enumerate(rows):
        if row is None or wanted[row] > (large_enough[row] if asks[row] >= 0 else int(view.suits(row).sum())):
            continue  # has left the view, or wants more than the pool has: it delays no other
        start, taken = coming.take(wanted[row], asked(asks[row], view.needs)[1])
        if not start <= view.now + horizon:
            # It waits for GPUs that are out of use, so the delay of those behind it is unknown; or for very long: the earliest GPUs
            # are taken in order, so no job behind it with as many starts within the horizon.
            break
        starts[position] = start
        end = start + max(remaining[row], 0.0) if not math.isnan(remaining[row]) else math.inf
        for node, count in taken.items():
            coming.add(end, node, count)
    return starts


class _Coming:
    """GPUs by the time at which they become free; those of a running job of unknown length never do, unless its lease ends.

    Nodes are distinguished if they differ.
    """

    def __init__(self, view: View) -> None:
        jobs, usable, nodes = view.jobs, view.gpus.usable, view.nodes
        apart = jobs.need is not None or nodes.leaves is not None
        node_of = view.gpus.node if apart else np.zeros(len(view.gpus), dtype=np.int64)
        self._leaves = [math.inf] * max(len(nodes), 1) if nodes.leaves is None else nodes.leaves.tolist()
        self._heap: list[tuple[float, int, int]] = []  #: time, node, GPUs
        free = usable.copy()
        for row in np.flatnonzero(jobs.held).tolist():
            gpus = jobs.allocation(row)
            free[gpus] = False
            left = 0.0 if jobs.phase[row] == Phase.STOPPING else float(jobs.remaining[row])
            lease_end = math.inf if jobs.lease_end is None else float(jobs.lease_end[row])
            end = min(math.inf if math.isnan(left) else view.now + max(left, 0.0), max(lease_end, view.now))
            for node, count in enumerate(np.bincount(node_of[gpus[usable[gpus]]]).tolist()):
                self.add(end, node, count)
        for node, count in enumerate(np.bincount(node_of[free]).tolist()):
            self.add(view.now, node, count)

    def add(self, time: float, node: int, count: int) -> None:
        if count and time < self._leaves[node]:
            heapq.heappush(self._heap, (time, node, count))

    def take(self, n: int, allowed: Bools | None) -> tuple[float, dict[int, int]]:
        """Take the ``n`` GPUs that are free first; returns the time of the last, and the number of each node; (inf, {}): too few come.

        ``allowed``: one per node, None: all.
        """
        beside: list[tuple[float, int, int]] = []
        used: list[tuple[float, int, int]] = []
        while self._heap and (lacking := n - sum(count for *_, count in used)):
            time, node, count = heapq.heappop(self._heap)
            if allowed is not None and not allowed[node]:
                beside.append((time, node, count))
                continue
            if time >= min((self._leaves[other] for _, other, _ in used), default=math.inf):
                beside += [one for one in used if self._leaves[one[1]] <= time]  # these nodes have left by then: others may be earlier
                used = [one for one in used if self._leaves[one[1]] > time]
                lacking = n - sum(count for *_, count in used)
            used.append((time, node, min(count, lacking)))
            if count > lacking:
                beside.append((time, node, count - lacking))
        for entry in beside:
            heapq.heappush(self._heap, entry)
        if sum(count for *_, count in used) < n:
            for entry in used:
                heapq.heappush(self._heap, entry)
            return math.inf, {}
        taken: dict[int, int] = {}
        for _, node, count in used:
            taken[node] = taken.get(node, 0) + count
        return used[-1][0] if used else math.inf, taken
