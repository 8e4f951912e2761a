"""A short way to what `plan_check.check` and `guards.reconcile` make of most plans: who waits starts, in the room of others if need be.

It answers only where it is sure; whatever is unusual or may be wrong goes the long way, which tells what is wrong. A test holds the two
ways against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...policies.cells import Free
from ...policies.contract import Allocation, Phase, Plan
from ..guards import Actions, Start, Stop
from .table import Table
from .workload import Workload

_MOMENT = (float, type(None))
_SEVERAL = (tuple, list, set, frozenset)


def plain_actions(
    plan: Plan, table: Table, workload: Workload, free: Free, on: Sequence[Sequence[int]], *, guarded: bool
) -> Actions | None:
    """What is done of a plan, on a cluster whose GPUs suit every job; None: it is no such plan.

    ``on``: jobs on each GPU. ``guarded``: guards may object to stops.
    """
    if type(plan) is not Plan or type(plan.allocations) is not dict:
        return None
    if plan.preempt is None or type(plan.preempt) not in _SEVERAL or (guarded and plan.preempt):
        return None
    if plan.groups or plan.warm or plan.rejected or plan.gap is not None:
        return None
    if type(plan.wake_at) not in _MOMENT or plan.wake_at != plan.wake_at:  # NaN
        return None
    if not all(_may_go(job, plan, table) for job in plan.preempt):
        return None
    going = set(plan.preempt)
    starts: list[Start] = []
    stops: dict[int, Stop] = {}
    gpus = len(free.grid.gpus)
    taken: set[int] = set()
    for job, allocation in plan.allocations.items():
        if not _is_plain(job, allocation, table, workload) or not taken.isdisjoint(allocation.gpus):
            return None
        if not all(type(gpu) is int and 0 <= gpu < gpus for gpu in allocation.gpus):
            return None
        taken.update(allocation.gpus)
        if free.has(allocation.gpus):
            starts.append(Start(job, allocation.gpus, None))
        elif (victims := _victims(allocation, going, table, free, on)) is None:
            return None
        else:
            for victim in victims:
                stops.setdefault(victim, Stop(victim, "preempted", job))
    return Actions(starts, list(stops.values()))


def _may_go(job: int, plan: Plan, table: Table) -> bool:
    """Whether this is a running job that the plan gives nothing else."""
    at_hand = table.at_hand.get(job) if type(job) is int else None
    return at_hand is not None and at_hand.phase == Phase.ACTIVE and job not in plan.allocations


def _victims(allocation: Allocation, going: set[int], table: Table, free: Free, on: Sequence[Sequence[int]]) -> list[int] | None:
    """Who is to be stopped for this; None: somebody is there who stays, or a GPU is not usable."""
    holders = {job for gpu in allocation.gpus for job in on[gpu]}
    victims = sorted(job for job in holders if table.at_hand[job].phase == Phase.ACTIVE)
    if not going.issuperset(victims) or not all(on[gpu] or free.has((gpu,)) for gpu in allocation.gpus):
        return None
    return victims


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
