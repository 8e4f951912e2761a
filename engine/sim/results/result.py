"""The result of a simulation: every job's fate and the cluster's use over time. `figures` computes figures from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....policies.contract import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Fates:
    """One row per job of the workload. Times are seconds from the workload's start; NaN: never."""

    started: Floats  #: first start
    ended: Floats
    run_time: Floats  #: seconds that it held GPUs
    gpu_time: Floats  #: GPU-seconds that it held
    lost: Floats  #: GPU-seconds of these without progress
    preemptions: Ints
    rejected: Bools  #: by the policy
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
    """The jobs' holds of GPUs over time, for the Gantt chart. One row for each run of neighbouring GPUs of a stay."""

    job: Ints
    begins: Floats
    ends: Floats
    gpu: Ints  #: the first of them
    gpus: Ints  #: how many

    def split(self, apart: Mapping[int, Sequence[int]]) -> Bars:
        """Splits rows whose GPUs are not all neighbours. ``apart``: their GPUs, ascending, by row."""
        if not apart:
            return self
        runs = [(row, first, count) for row, gpus in apart.items() for first, count in _runs(gpus)]
        whole = np.setdiff1d(np.arange(len(self.job)), list(apart))
        row, first, count = np.array(runs, dtype=np.int64).reshape(-1, 3).T
        rows = np.concatenate((whole, row))
        gpu, gpus = np.concatenate((self.gpu[whole], first)), np.concatenate((self.gpus[whole], count))
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        return Bars(self.job[rows], self.begins[rows], self.ends[rows], gpu[order], gpus[order])


def _runs(gpus: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the number of each run of neighbours."""
    for _, run in itertools.groupby(enumerate(gpus), lambda pair: pair[1] - pair[0]):
        members = [gpu for _, gpu in run]
        yield members[0], len(members)


def are_neighbours(gpus: Sequence[int]) -> bool:
    return max(gpus) - min(gpus) + 1 == len(gpus)


@dataclass(frozen=True, slots=True)
class Result:
    fates: Fates
    usage: Usage
    bars: Bars
    events: int
    decisions: int  #: times that the policy was asked
    plan_seconds: float  #: real seconds in plan()
    wall_seconds: float  #: real seconds of the whole run
    warm_idle: float = 0.0  #: GPU-seconds in a warm pool, or loading for it, without a job
