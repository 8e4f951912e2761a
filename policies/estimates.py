"""How long jobs will run: what the view says, and what to take where it says nothing."""

from __future__ import annotations

import numpy as np

from .contract import Floats, Jobs

TIME, SERVICE = "time", "service"  #: what a length is measured in: seconds, or GPU-seconds on ``gpus_min`` GPUs
MEASURES = (TIME, SERVICE)


def remaining_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of work left on ``gpus_min`` GPUs.

    A job of which nothing is known is taken to need ``unknown`` seconds, or as long again as it has run when that is more:
    lengths of training jobs are heavy-tailed, so one that has run long is likely to run long still.
    """
    left = jobs.remaining
    nothing_known = np.isnan(left)
    if np.count_nonzero(nothing_known):
        left = np.where(nothing_known, np.maximum(unknown, jobs.run_time), left)
    return np.maximum(left, 0.0)


def total_time(jobs: Jobs, unknown: float) -> Floats:
    """Seconds of a job from its first start to its end, without what it waits."""
    return jobs.run_time + remaining_time(jobs, unknown)


def measured(time: Floats, jobs: Jobs, measure: str) -> Floats:
    """``time`` in ``measure``."""
    return time * jobs.gpus_min if measure == SERVICE else time
