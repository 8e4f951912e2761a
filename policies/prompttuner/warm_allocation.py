"""GPUs of a warm pool to the jobs that wait for its LLM: 002 algorithm 1.

Read so: line 7 has A_i < R_l, for as printed R_l + 1 GPUs are given; line 9 has ``≤``; and where R_l is 0 nothing starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from .gpu_pools import GpuPools
from .job_times import JobTimes


def start_warm(backbone: str, waiting: Sequence[int], pools: GpuPools, times: JobTimes, now: float) -> dict[int, tuple[int, ...]]:
    """The fewest warm GPUs on which each job ends by its deadline; who does not on those that are left gets none.

    ``waiting``: rows of jobs with deadlines, the most urgent first.
    """
    started = {}
    for job in waiting:
        ready = pools.ready(backbone, job)
        if gpus := times.fewest(job, float(times.deadline[job]) - now, int(ready.sum())):
            started[job] = pools.take(ready, gpus)
    return started
