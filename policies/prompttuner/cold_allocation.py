"""GPUs from the cold pool to the warm pools: 002 algorithm 2.

It differs from the print in these points. Line 12 is T_i(A_i) + T_cold > T_slo *and T_slo > T_cold* and A_i < the cold GPUs that are free;
as printed its loop ends at once or never. No more GPUs are added than are free. Lines 19 and 30 store moments, so that the present time is
added. Line 28 has k ≤ E_l.len. Line 31 sorts E_l, not E. E_l also counts GPUs that are loading; else each round would add others for the
same job.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import MutableMapping
from typing import NamedTuple

from .gpu_pools import GpuPools
from .job_times import JobTimes

Moments = MutableMapping[str, list[float]]  #: E: for each LLM's warm pool, when each GPU can next be given to a job, ascending


def delay_schedulable(job: int, moments: list[float], times: JobTimes) -> bool:
    """Whether the job still ends in time if it waits for GPUs of its warm pool; if so, they are booked (lines 23 to 35).

    False where the length of the job is not known.
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


class ColdOffer(NamedTuple):
    """GPUs that a waiting job could have when cold ones have loaded its LLM. As printed it could have cold ones only.

    ``own``: number of GPUs of its own pool that are idle and not booked. ``lent``: rows of such GPUs of other pools, the longest idle
    first.
    """

    own: int
    cold: int
    lent: list[int]

    @property
    def total(self) -> int:
        return self.own + self.cold + len(self.lent)


def offer(job: int, backbone: str, pools: GpuPools, moments: Moments, now: float) -> ColdOffer:
    """The GPUs that this job could have. Moments contain the bookings of the jobs that were served before."""
    left = {name: sum(at <= now for at in booked) for name, booked in moments.items()}
    lent = []
    for gpu in pools.idle_of_others(backbone, job):
        name = str(pools.of[gpu])
        left[name] = left.get(name, len(pools.of)) - 1  # a pool without moments has no job that waits
        if left[name] >= 0:
            lent.append(gpu)
    own = min(left.get(backbone, 0), int(pools.ready(backbone, job).sum()))
    return ColdOffer(own, int(pools.cold(job).sum()), lent)


def grow(job: int, backbone: str, pools: GpuPools, moments: Moments, times: JobTimes, now: float, loading: float) -> tuple[int, ...]:
    """The fewest cold GPUs on which the job ends in time after they have loaded; they join its pool. (): no number does (lines 10 to 20).

    Idle GPUs of its own pool count too, where they alone are too few. Where too few are cold, other pools lend theirs.
    """
    there = offer(job, backbone, pools, moments, now)
    gpus = times.fewest(job, float(times.deadline[job]) - now - loading, there.total)
    return add(job, backbone, gpus, there, pools, moments, times, now + loading) if gpus > there.own else ()


def add(
    job: int, backbone: str, gpus: int, there: ColdOffer, pools: GpuPools, moments: Moments, times: JobTimes, loaded: float
) -> tuple[int, ...]:
    """So many GPUs for this job: those of its pool first, then cold ones, then lent ones. Returns those that have joined its pool."""
    cold = pools.take(pools.cold(job), min(gpus - there.own, there.cold))
    lent = tuple(there.lent[: gpus - there.own - len(cold)])
    for gpu in lent:
        if pools.of[gpu] in moments:
            del moments[pools.of[gpu]][0]  # the moment of an idle GPU of that pool, this one's or another's: all of them are past
    pools.free[list(lent)] = False
    pools.join(backbone, [*cold, *lent])
    of_pool = moments.setdefault(backbone, [])
    of_pool[:0] = [loaded] * (gpus - there.own)
    book(of_pool, gpus, loaded + times.seconds(job, gpus))
    return (*cold, *lent)
