"""Which column of the table's records holds what. Plain numbers: an Enum's members cost too much to look up a million times a run."""

from __future__ import annotations


class Column:
    """What changes while a job is at hand: whole numbers, then others.

    Work is in seconds on ``gpus_min`` GPUs, placed as well as can be.
    """

    JOB = 0  #: row of the workload, which holds what does not change
    PHASE = 1
    HELD = 2  #: GPUs that it holds
    PREEMPTIONS = 3
    PROFILE = 4
    PROFILE_GPUS = 5  #: of the profiling run that it needs, 0: it has been profiled
    SINCE = 6  #: when it began, or is to begin, to train in its lease
    LEFT = 7  #: work left at SINCE
    SPEED = 8  #: work a second, 0: makes no progress
    GRANTED = 9
    ATTAINED = 10  #: GPU-seconds that it has had, but for RATE times the time since GRANTED
    RAN = 11  #: seconds of earlier leases
    LEASE_END = 12
    BELIEF = 13  #: believed work over true work, NaN: nothing is believed
    WORK = 14  #: all of it
    RATE = 15  #: GPU-seconds a second
    COUNT = 16


FORMAT = "6q10d"  #: the same as `struct` has them
