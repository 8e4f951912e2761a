"""How long jobs will run: what the view says, and what to take where it says nothing."""

from __future__ import annotations

import numpy as np

from ..contract import Floats, Jobs

TIME, SERVICE = "time", "service"  #: what a length is measured in: seconds, or GPU-seconds on ``gpus_min`` GPUs
MEASURES = (TIME, SERVICE)


def remaining_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of work left on ``gpus_min`` GPUs.

    A job of which nothing is known is taken to need ``unknown`` seconds, or as long again as it has run when that is more:
    lengths of training jobs are heavy-tailed, so one that has run long is likely to run long still.
    """
    left = jobs.remaining
    if not all_known(jobs):
        left = np.where(np.isnan(left), np.maximum(unknown, jobs.run_time), left)
    return np.maximum(left, 0.0)


def all_known(jobs: Jobs) -> bool:
    """Whether something is known of every job: then what is left only shrinks, and only of those that run."""
    left = jobs.remaining
    return not len(left) or not np.isnan(left[left.argmax()])  # the first NaN, if there is one


def total_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of a job from its first start to its end, without what it waits."""
    return jobs.run_time + remaining_time(jobs, unknown)


def measured(time: Floats, jobs: Jobs, measure: str) -> Floats:
    """``time`` in ``measure``."""
    return time * jobs.gpus_min if measure == SERVICE else time
