"""Run times of jobs: the view's estimates, and assumptions where it has none."""

from __future__ import annotations

import numpy as np

from ..contract import Floats, Jobs

TIME, SERVICE = "time", "service"  #: units of a length: seconds, or GPU-seconds on ``gpus_min`` GPUs
MEASURES = (TIME, SERVICE)


def remaining_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of work left on ``gpus_min`` GPUs.

    An unknown job is assumed to need ``unknown`` seconds, or as long again as it has run if that is more: lengths of training
    jobs are heavy-tailed, so one that has run long is likely to run long still.
    """
    left = jobs.remaining
    if not all_known(jobs):
        left = np.where(np.isnan(left), np.maximum(unknown, jobs.run_time), left)
    return np.maximum(left, 0.0)


def all_known(jobs: Jobs) -> bool:
    """Whether every job has an estimate: then remaining times only shrink, and only those of running jobs."""
    left = jobs.remaining
    return not len(left) or not np.isnan(left[left.argmax()])  # the first NaN, if there is one


def total_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of a job from its first start to its end, without waits."""
    return jobs.run_time + remaining_time(jobs, unknown)


def measured(time: Floats, jobs: Jobs, measure: str) -> Floats:
    """``time`` in ``measure``."""
    return time * jobs.gpus_min if measure == SERVICE else time
