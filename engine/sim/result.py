"""What a simulation gives: every job's fate and the cluster's use over time. Figures are made of it in `figures`."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.contract import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Fates:
    """One row a job of the workload. Times are seconds from the workload's start, NaN where it never came to it."""

    started: Floats  #: first start
    ended: Floats
    run_time: Floats  #: seconds that it held GPUs
    gpu_time: Floats  #: GPU-seconds that it held
    lost: Floats  #: GPU-seconds of these that brought no progress
    preemptions: Ints
    rejected: Bools  #: the policy gave it up
    dropped: Bools  #: larger than the cluster: not simulated


@dataclass(frozen=True, slots=True)
class Usage:
    """State of the cluster after every event that changed it."""

    ts: Floats
    busy: Ints  #: GPUs held
    running: Ints  #: jobs that hold GPUs
    waiting: Ints  #: jobs that wait


@dataclass(frozen=True, slots=True)
class Bars:
    """Which job held how many GPUs when; for the Gantt chart. One row a stay."""

    job: Ints
    begins: Floats
    ends: Floats
    gpu: Ints  #: lowest of the GPUs that it held
    gpus: Ints  #: how many


@dataclass(frozen=True, slots=True)
class Result:
    fates: Fates
    usage: Usage
    bars: Bars
    events: int
    decisions: int  #: times that the policy was asked
    plan_seconds: float  #: real seconds in plan()
    wall_seconds: float  #: real seconds of the whole run
