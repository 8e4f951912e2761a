"""When waiting jobs are expected to start: what is told to people, never what is decided.

List scheduling: jobs are taken in the policy's order of service, each starts when enough GPUs have become
free, and holds them for its remaining time. GPUs become free when their job ends, or when its lease does, as the
policy may give them away then. Renewals, placement and later arrivals are left out, so the answer is an
estimate, early for gangs in a fragmented pool. Where it rests on a job of unknown length it is NaN, and so it is for
jobs behind one that waits for quarantined or drained GPUs to come back: whether they may pass it is the policy's affair.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from ...policies.contract import Floats, Ints, Phase, View

HORIZON = 30 * 86_400.0  #: seconds: what lies further ahead is not worth a figure


def estimate_starts(view: View, order: Sequence[int] | Ints, *, horizon: float = HORIZON) -> Floats:
    """Expected start of each job (id) of ``order``, seconds since the epoch; NaN when unknown or beyond ``horizon``."""
    jobs = view.jobs
    row_of = {job: row for row, job in enumerate(jobs.id.tolist())}
    rows = [row_of.get(job) for job in np.asarray(order, dtype=np.int64).tolist()]
    starts = np.full(len(rows), np.nan)
    coming = _coming_free(view)
    supply = sum(count for _, count in coming)
    wanted, remaining = jobs.gpus_min.tolist(), jobs.remaining.tolist()
    sizes = np.sort(np.where(view.gpus.memory > 0, view.gpus.memory, np.inf))
    large_enough = (len(sizes) - np.searchsorted(sizes, jobs.gpu_memory)).tolist()  #: GPUs with the memory that a job needs
    for position, row in enumerate(rows):
        if row is None or wanted[row] > large_enough[row]:
            continue  # has left the view, or wants more than the pool has: holds up nobody
        if wanted[row] > supply:
            break  # waits for GPUs that are out of use, and nobody can tell until when it holds up those behind it
        start = _take(coming, wanted[row])
        if start > view.now + horizon:
            break  # the earliest GPUs are taken in order, so nobody behind it starts within the horizon with as many
        starts[position] = start
        end = start + max(remaining[row], 0.0) if not math.isnan(remaining[row]) else math.inf
        heapq.heappush(coming, (end, wanted[row]))
    return starts


def _coming_free(view: View) -> list[tuple[float, int]]:
    """Heap of (time, GPUs that become free then); GPUs of a running job of unknown length never do, unless its lease ends."""
    jobs, usable = view.jobs, view.gpus.usable
    free = usable.copy()
    coming: list[tuple[float, int]] = []
    for row in np.flatnonzero(jobs.held).tolist():
        gpus = jobs.allocation(row)
        free[gpus] = False
        left = 0.0 if jobs.phase[row] == Phase.STOPPING else float(jobs.remaining[row])
        lease_end = math.inf if jobs.lease_end is None else float(jobs.lease_end[row])
        end = min(math.inf if math.isnan(left) else view.now + max(left, 0.0), max(lease_end, view.now))
        if count := int(usable[gpus].sum()):
            coming.append((end, count))
    coming.append((view.now, int(free.sum())))
    heapq.heapify(coming)
    return coming


def _take(coming: list[tuple[float, int]], n: int) -> float:
    """Take the ``n`` GPUs that are free first; the time at which the last of them is."""
    while True:
        time, count = heapq.heappop(coming)
        if count >= n:
            if count > n:
                heapq.heappush(coming, (time, count - n))
            return time
        n -= count
