"""GPUs from the cold pool to the warm pools: 002 algorithm 2.

Read so: line 12 is T_i(A_i) + T_cold > T_slo *and T_slo > T_cold* and A_i < the cold GPUs that are free, as printed it ends at once or
never; what is added is capped by these; lines 19 and 30 store moments, so now is added; line 28 has k ≤ E_l.len; line 31 sorts E_l, not
E. E_l counts GPUs that are loading, or each round adds others for the same job.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import MutableMapping
from typing import NamedTuple

from .gpu_pools import GpuPools
from .job_times import JobTimes

Moments = MutableMapping[str, list[float]]  #: E: when each GPU of each LLM's warm pool can next be given, ascending


def delay_schedulable(job: int, moments: list[float], times: JobTimes) -> bool:
    """Whether it still ends in time if it waits for GPUs that its warm pool has; it has them booked then (lines 23 to 35).

    Of a job of unknown length nobody can say so.
    """
    for gpus in times.sizes(job):
        if gpus > len(moments):
            return False
        end = moments[gpus - 1] + times.seconds(job, gpus)
        if end <= float(times.deadline[job]) + 1e-6:
            book(moments, gpus, end)
            return True
    return False


def book(moments: list[float], gpus: int, end: float) -> None:
    """The first ``gpus`` of a pool are taken until ``end``."""
    del moments[:gpus]
    for _ in range(gpus):
        insort(moments, math.inf if math.isnan(end) else end)


class Offer(NamedTuple):
    """GPUs that a job which waits could have when cold ones have loaded its LLM. As printed only cold ones are.

    ``own``: how many of its own pool are idle and not booked; ``lent``: rows of such GPUs of other pools, the longest idle first.
    """

    own: int
    cold: int
    lent: list[int]

    @property
    def total(self) -> int:
        return self.own + self.cold + len(self.lent)


def offer(job: int, backbone: str, pools: GpuPools, moments: Moments, now: float) -> Offer:
    """What there is for it. Moments have the bookings of the jobs that were served before."""
    left = {name: sum(at <= now for at in booked) for name, booked in moments.items()}
    lent = []
    for gpu in pools.idle_of_others(backbone, job):
        name = str(pools.of[gpu])
        left[name] = left.get(name, len(pools.of)) - 1  # a pool without moments has no job that waits
        if left[name] >= 0:
            lent.append(gpu)
    own = min(left.get(backbone, 0), int(pools.ready(backbone, job).sum()))
    return Offer(own, int(pools.cold(job).sum()), lent)


def grow(job: int, backbone: str, pools: GpuPools, moments: Moments, times: JobTimes, now: float, loading: float) -> tuple[int, ...]:
    """The fewest cold GPUs on which it ends in time when they have loaded, which join its pool; (): no number does (lines 10 to 20).

    Idle GPUs of its pool that are too few count too. Where too few are cold, other pools lend theirs.
    """
    there = offer(job, backbone, pools, moments, now)
    gpus = times.fewest(job, float(times.deadline[job]) - now - loading, there.total)
    return add(job, backbone, gpus, there, pools, moments, times, now + loading) if gpus > there.own else ()


def add(
    job: int, backbone: str, gpus: int, there: Offer, pools: GpuPools, moments: Moments, times: JobTimes, loaded: float
) -> tuple[int, ...]:
    """So many GPUs for this job in the first place: those of its pool, then cold ones, then lent ones; which have joined its pool."""
    cold = pools.take(pools.cold(job), min(gpus - there.own, there.cold))
    lent = tuple(there.lent[: gpus - there.own - len(cold)])
    for gpu in lent:
        if pools.of[gpu] in moments:
            del moments[pools.of[gpu]][0]  # its own, or that of another idle one: both are past
    pools.free[list(lent)] = False
    pools.join(backbone, [*cold, *lent])
    of_pool = moments.setdefault(backbone, [])
    of_pool[:0] = [loaded] * (gpus - there.own)
    book(of_pool, gpus, loaded + times.seconds(job, gpus))
    return (*cold, *lent)
