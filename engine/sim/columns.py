"""Which row of the table's matrices holds what. Plain numbers: an Enum's members cost too much to look up a million times a run."""

from __future__ import annotations


class I:  # noqa: E742 - the whole numbers
    """Rows of the matrix of integers."""

    JOB = 0
    PHASE = 1
    GPUS_MIN = 2
    GPUS_MAX = 3
    PRIORITY = 4
    DEMAND = 5
    PREEMPTIONS = 6
    USER = 7
    MODEL = 8
    PROFILE = 9
    HELD = 10  #: GPUs that it holds
    PROFILE_GPUS = 11  #: of the profiling run that it needs, 0: it has been profiled
    ROWS = 12


class F:
    """Rows of the matrix of floats. Work is in seconds on ``gpus_min`` GPUs, placed as well as can be."""

    SUBMITTED = 0
    DEADLINE = 1
    MEMORY = 2
    ATTAINED = 3  #: GPU-seconds of earlier leases
    RAN = 4  #: seconds of earlier leases
    SINCE = 5  #: when it began, or is to begin, to train in its lease
    GRANTED = 6
    LEFT = 7  #: work left at SINCE
    SPEED = 8  #: work a second, 0: makes no progress
    BELIEF = 9  #: believed work over true work, NaN: nothing is believed
    WORK = 10  #: all of it
    LEASE_END = 11
    GAP = 12  #: work beyond its own end up to its maximum of iterations
    ROWS = 13
