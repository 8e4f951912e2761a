"""Records the events of a simulation."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....policies.contract import Bools, Floats, Ints
from ..workload import Workload
from .result import Bars, Fates, Result, Usage, are_neighbours

_MAX_FINISHED_SHOWN = 2000  #: finished jobs whose service a policy may see, so that the cost of a decision stays the same
_COLUMNS = 5
_STAY = struct.Struct(f"{_COLUMNS}d")  #: a row of `Bars`; an array takes it at once, and plain numbers one by one
_Change = tuple[Any, Any, Any, Any]  #: moments, and what changes at each of them: GPUs held, jobs that hold some, jobs at hand


class Recorder:
    def __init__(self, workload: Workload, dropped: Bools) -> None:
        n = len(workload)
        self.dropped = dropped
        self.ended, self.rejected = np.full(n, np.nan), np.zeros(n, dtype=bool)
        # Lists are faster for values that are read and written one by one.
        self.gpu_time, self.lost = [0.0] * n, [0.0] * n
        self.preemptions, self.attempts, self.profile_runs = [0] * n, [0] * n, [0] * n
        self._begins = float(workload.submitted[~dropped].min(initial=math.inf))
        self._came, self._given_up = array("d"), array("d")  #: moments
        self._finished: list[int] = []  #: jobs in the order of their ends
        self._stays = array("d")  #: rows of `Bars`, one after the other, with the first and the number of all GPUs of a stay
        self._apart: dict[int, list[int]] = {}  #: by such a row, the GPUs of a stay that are not all neighbours
        self._cut_short = 0  #: number of the last stays, which the end of the simulation cut
        self._sharing = array("d")  #: moments, each with the change in the number of shared holds
        self.finished_before: Floats | None = None  #: GPU-seconds of jobs that had finished when the simulation began
        self._service: Floats | None = None
        self.warm_idle = 0.0  #: see `Result`

    @property
    def over(self) -> int:
        """Jobs that have ended or were given up."""
        return len(self._finished) + len(self._given_up)

    def come(self, now: float) -> None:
        self._came.append(now)

    def start(self, job: int, *, profile: bool = False) -> int:
        """The number of earlier starts; profiling runs are counted apart, as no later run continues them."""
        counts = self.profile_runs if profile else self.attempts
        attempt = counts[job]
        counts[job] = attempt + 1
        return attempt

    def preempt(self, job: int) -> None:
        self.preemptions[job] += 1

    def lose(self, job: int, gpu_seconds: float) -> None:
        self.lost[job] += gpu_seconds

    def leave(self, job: int, granted: float, now: float, gpus: Sequence[int], gpu_time: float) -> None:
        """A stay on GPUs ends; ``gpu_time``: GPU-seconds of all its stays, with a share of shared GPUs."""
        if not are_neighbours(gpus):
            self._apart[len(self._stays) // _COLUMNS] = sorted(gpus)
        self.gpu_time[job] = gpu_time
        self._stays.frombytes(_STAY.pack(job, granted, now, min(gpus), len(gpus)))

    def cut_short(self, job: int, granted: float, now: float, gpus: Sequence[int], gpu_time: float) -> None:
        """The same for a job that the simulation's end cuts off: after that no stay ends."""
        self.leave(job, granted, now, gpus, gpu_time)
        self._cut_short += 1

    def share(self, now: float, gpus: int) -> None:
        """So many more GPUs (negative: fewer) have a further holder."""
        self._sharing.extend((now, gpus))

    def end(self, job: int, now: float) -> None:
        self.ended[job] = now
        self._finished.append(job)
        self._service = None

    def reject(self, job: int, now: float) -> None:
        self.rejected[job] = True
        self._given_up.append(now)

    def finished_service(self) -> Floats:
        """GPU-seconds of recently finished jobs, ascending."""
        if self._service is None:
            own = np.array([self.gpu_time[job] for job in self._finished[-_MAX_FINISHED_SHOWN:]], dtype=np.float64)
            self._service = np.sort(own if self.finished_before is None else np.concatenate((self.finished_before, own)))
        return self._service

    def result(self, events: int, decisions: int, plan_seconds: float, wall_seconds: float) -> Result:
        job, begins, ends, gpu, gpus = np.array(self._stays).reshape(-1, _COLUMNS).T.copy()
        stays = Bars(_ints(job), begins, ends, _ints(gpu), _ints(gpus))
        started = np.full(len(self.ended), np.nan)
        started[stays.job[::-1]] = begins[::-1]  # the first of several
        run_time: Floats = np.bincount(stays.job, ends - begins, len(self.ended)).astype(np.float64)
        gpu_time, lost = np.array(self.gpu_time), np.array(self.lost)
        preemptions = np.array(self.preemptions, dtype=np.int64)
        return Result(
            fates=Fates(started, self.ended, run_time, gpu_time, lost, preemptions, self.rejected, self.dropped),
            usage=self._usage(stays, begun=events > 0),
            bars=stays.split(self._apart),
            events=events,
            decisions=decisions,
            plan_seconds=plan_seconds,
            wall_seconds=wall_seconds,
            warm_idle=self.warm_idle,
        )

    def _usage(self, stays: Bars, *, begun: bool) -> Usage:
        left = slice(len(stays.job) - self._cut_short)
        shared, gpus = np.array(self._sharing).reshape(-1, 2).T
        return usage(
            [
                ([self._begins] * begun, 0, 0, 0),
                (np.array(self._came), 0, 0, 1),
                (stays.begins, stays.gpus, 1, 0),
                (shared, -gpus, 0, 0),
                (stays.ends[left], -stays.gpus[left], -1, 0),
                (self.ended[self._finished], 0, 0, -1),
                (np.array(self._given_up), 0, 0, -1),
            ]
        )


def usage(changes: Sequence[_Change]) -> Usage:
    """The state after each moment that changed it, and after the first moment."""
    moment, *deltas = (np.concatenate(column) for column in zip(*(np.broadcast_arrays(*change) for change in changes), strict=True))
    ts, place = np.unique(moment, return_inverse=True)
    busy, running, at_hand = (_ints(np.bincount(place, delta, len(ts)).cumsum()) for delta in deltas)
    states = np.stack((busy, running, at_hand - running))
    others = np.ones(len(ts), dtype=bool)
    others[1:] = (states[:, 1:] != states[:, :-1]).any(axis=0)
    return Usage(ts[others], *states[:, others])


def _ints(values: Floats) -> Ints:
    """Whole numbers, which floats represent exactly."""
    return values.astype(np.int64)
