"""The columns of the table's records. They are plain numbers: an Enum's members cost too much at a million look-ups a run."""

from __future__ import annotations


class RecordColumn:
    """Changing values of a job at hand: whole numbers first, then others.

    Work is in seconds on ``gpus_min`` GPUs, placed as well as can be.
    """

    JOB = 0  #: row of the workload, which has the constant values
    PHASE = 1
    HELD = 2  #: GPUs that it holds
    PREEMPTIONS = 3
    PROFILE = 4
    PROFILE_GPUS = 5  #: of the profiling run that it needs; 0: it has been profiled
    SINCE = 6  #: past or future time at which training begins in its lease
    LEFT = 7  #: work left at SINCE
    SPEED = 8  #: work per second; 0: no progress
    GRANTED = 9
    ATTAINED = 10  #: GPU-seconds that it has had, without RATE times the time since GRANTED
    RAN = 11  #: seconds of earlier leases
    LEASE_END = 12
    BELIEF = 13  #: believed work over true work; NaN: no belief
    WORK = 14  #: all of it
    RATE = 15  #: GPU-seconds a second
    COUNT = 16


FORMAT = "6q10d"  #: the same in the notation of `struct`
