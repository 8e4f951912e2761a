"""GPUs of a warm pool to the jobs that wait for its LLM: 002 algorithm 1.

It differs from the print in three points. Line 7 has A_i < R_l, as the print would give R_l + 1 GPUs. Line 9 has ``≤``. Where R_l is 0,
nothing starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from .gpu_pools import GpuPools
from .job_times import JobTimes


def start_warm(backbone: str, waiting: Sequence[int], pools: GpuPools, times: JobTimes, now: float) -> dict[int, tuple[int, ...]]:
    """The fewest warm GPUs on which each job ends by its deadline. A job gets none if it would end too late on all that are left.

    ``waiting``: rows of jobs with deadlines, the most urgent first.
    """
    started = {}
    for job in waiting:
        ready = pools.ready(backbone, job)
        if gpus := times.fewest(job, float(times.deadline[job]) - now, int(ready.sum())):
            started[job] = pools.take(ready, gpus)
    return started
