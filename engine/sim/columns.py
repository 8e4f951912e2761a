"""Which row of the table's matrices holds what. Plain numbers: an Enum's members cost too much to look up a million times a run."""

from __future__ import annotations


class I:  # noqa: E742 - the whole numbers
    """Rows of the matrix of integers: first those that change while a job is at hand."""

    PHASE = 0
    HELD = 1  #: GPUs that it holds
    PREEMPTIONS = 2
    PROFILE = 3
    PROFILE_GPUS = 4  #: of the profiling run that it needs, 0: it has been profiled
    CHANGING = 5
    JOB = 5
    GPUS_MIN = 6
    GPUS_MAX = 7
    PRIORITY = 8
    DEMAND = 9
    USER = 10
    MODEL = 11
    ROWS = 12


class F:
    """Rows of the matrix of floats, in the same order. Work is in seconds on ``gpus_min`` GPUs, placed as well as can be."""

    SINCE = 0  #: when it began, or is to begin, to train in its lease
    LEFT = 1  #: work left at SINCE
    SPEED = 2  #: work a second, 0: makes no progress
    GRANTED = 3
    ATTAINED = 4  #: GPU-seconds of earlier leases
    RAN = 5  #: seconds of earlier leases
    LEASE_END = 6
    BELIEF = 7  #: believed work over true work, NaN: nothing is believed
    WORK = 8  #: all of it
    CHANGING = 9
    SUBMITTED = 9
    DEADLINE = 10
    MEMORY = 11
    GAP = 12  #: work beyond its own end up to its maximum of iterations
    ROWS = 13
