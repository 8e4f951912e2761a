"""Finish-time fairness (Themis: Mahajan et al., NSDI 2020, sec. 3; 002 ch. 6.6.4)."""

from __future__ import annotations

import numpy as np

from ..contract import Floats, Jobs


def finish_time_fairness(jobs: Jobs, now: float, gpus: int, remaining: Floats) -> Floats:
    """rho = T_sh / T_id of each job; above 1 it is worse than a fair share.

    T_sh is the time from submission to the end if the job had its gang from now on, so it grows while the job waits. (Strictly it is
    infinite for jobs without GPUs, which would not distinguish waiting jobs.) T_id is the time alone on 1/N of the ``gpus`` of the
    pool, with N jobs in the view now: on fewer GPUs than its gang a job has the gang's GPUs a part of the time. The paper averages
    N over the job's life, which the view does not have.
    """
    shared = np.maximum(now - jobs.submitted_at, 0.0) + remaining
    share = gpus / max(len(jobs), 1)
    alone = (jobs.run_time + remaining) * np.maximum(jobs.gpus_min / max(share, 1e-9), 1.0)
    rho: Floats = np.divide(shared, alone, out=np.full(len(jobs), np.inf), where=alone > 0)
    return rho
