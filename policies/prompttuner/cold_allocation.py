"""GPUs from the cold pool to the warm pools: 002 algorithm 2.

Read so: line 12 is T_i(A_i) + T_cold > T_slo *and T_slo > T_cold* and A_i < the cold GPUs that are free, as printed it ends at once or
never; what is added is capped by these; lines 19 and 30 store moments, so now is added; line 28 has k ≤ E_l.len; line 31 sorts E_l, not
E. E_l counts GPUs that are loading, or each round adds others for the same job.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import MutableMapping

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


def grow(job: int, backbone: str, pools: GpuPools, moments: Moments, times: JobTimes, now: float, loading: float) -> tuple[int, ...]:
    """The fewest cold GPUs on which it ends in time when they have loaded, which join its pool; (): no number does (lines 10 to 20)."""
    cold = pools.cold(job)
    gpus = times.fewest(job, float(times.deadline[job]) - now - loading, int(cold.sum()))
    return add(job, backbone, gpus, pools, moments, times, now + loading) if gpus else ()


def add(job: int, backbone: str, gpus: int, pools: GpuPools, moments: Moments, times: JobTimes, loaded: float) -> tuple[int, ...]:
    """So many cold GPUs join a pool, for this job in the first place."""
    added = pools.take(pools.cold(job), gpus)
    pools.join(backbone, added)
    of_pool = moments.setdefault(backbone, [])
    end = loaded + times.seconds(job, gpus)
    for _ in added:
        insort(of_pool, math.inf if math.isnan(end) else end)
    return added
