"""A short way to what `plan_check.check` and `guards.reconcile` make of most plans: those that only start waiting jobs on free GPUs.

It answers only where it is sure; whatever is unusual or may be wrong goes the long way, which tells what is wrong. A test holds the two
ways against each other.
"""

from __future__ import annotations

from ...policies.cells import Free
from ...policies.contract import Allocation, Phase, Plan
from ..guards import Start
from .table import Table
from .workload import Workload

_MOMENT = (float, type(None))


def plain_starts(plan: Plan, table: Table, workload: Workload, free: Free) -> list[Start] | None:
    """The starts of a plan that does nothing else, on a cluster whose GPUs suit every job; None: it is no such plan."""
    if type(plan) is not Plan or type(plan.allocations) is not dict or plan.preempt is None or len(plan.preempt):
        return None
    if plan.groups or plan.warm or plan.rejected or plan.gap is not None:
        return None
    if type(plan.wake_at) not in _MOMENT or plan.wake_at != plan.wake_at:  # NaN
        return None
    starts: list[Start] = []
    gpus = len(free.grid.gpus)
    taken: set[int] = set()
    for job, allocation in plan.allocations.items():
        if not _is_plain(job, allocation, table, workload) or not taken.isdisjoint(allocation.gpus):
            return None
        if not all(type(gpu) is int and 0 <= gpu < gpus for gpu in allocation.gpus) or not free.has(allocation.gpus):
            return None
        taken.update(allocation.gpus)
        starts.append(Start(job, allocation.gpus, None))
    return starts


def _is_plain(job: int, allocation: Allocation, table: Table, workload: Workload) -> bool:
    """Whether this is a gang without an end for a job that waits."""
    if type(job) is not int or type(allocation) is not Allocation or type(allocation.gpus) is not tuple:
        return False
    if allocation.lease_end is not None or allocation.batch_size is not None or allocation.profile:
        return False
    at_hand, count = table.at_hand.get(job), len(allocation.gpus)
    if at_hand is None or at_hand.phase != Phase.PENDING or len(set(allocation.gpus)) != count:
        return False
    return bool(workload.gpus_min[job] <= count <= workload.gpus_max[job])
