"""Writes down what happens in a simulation."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from ...policies.contract import Bools, Floats, Ints
from .result import Bars, Fates, Result, Usage
from .workload import Workload

_REMEMBERED = 2000  #: finished jobs whose service a policy may see, so that a decision costs the same after a year


class Recorder:
    def __init__(self, workload: Workload, dropped: Bools) -> None:
        n = len(workload)
        self.dropped = dropped
        self.ended, self.rejected = np.full(n, np.nan), np.zeros(n, dtype=bool)
        # What is read as well as written one by one is faster in lists.
        self.started, self.run_time, self.gpu_time, self.lost = [math.nan] * n, [0.0] * n, [0.0] * n, [0.0] * n
        self.preemptions, self.attempts, self.profile_runs = [0] * n, [0] * n, [0] * n
        self.ended_count = 0
        self._usage, self._stays = array("d"), array("d")  #: rows of `Usage` and of `Bars`, one after the other
        self._moment = math.nan
        self._state_now: tuple[int, int, int] | None = None
        self._written: tuple[int, int, int] | None = None  #: the state that was written down last
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)  # service of jobs in the order of their ends
        self._service: Floats | None = None

    def start(self, job: int, now: float, *, profile: bool = False) -> int:
        """How many times it had started before; profiling runs are counted apart, as nothing goes on from them."""
        counts = self.profile_runs if profile else self.attempts
        attempt = counts[job]
        counts[job] = attempt + 1
        if math.isnan(self.started[job]):
            self.started[job] = now
        return attempt

    def preempt(self, job: int) -> None:
        self.preemptions[job] += 1

    def lose(self, job: int, gpu_seconds: float) -> None:
        self.lost[job] += gpu_seconds

    def leave(self, job: int, granted: float, now: float, gpus: Sequence[int]) -> None:
        """A stay on GPUs ends."""
        self.run_time[job] += now - granted
        self.gpu_time[job] += (now - granted) * len(gpus)
        self._stays.extend((job, granted, now, min(gpus), len(gpus)))

    def end(self, job: int, now: float) -> None:
        self.ended[job] = now
        self.ended_count += 1
        self._recent.append(self.gpu_time[job])
        self._service = None

    def reject(self, job: int) -> None:
        self.rejected[job] = True
        self.ended_count += 1

    def finished_service(self) -> Floats:
        """GPU-seconds of recently finished jobs, ascending."""
        if self._service is None:
            self._service = np.sort(np.array(self._recent, dtype=np.float64))
        return self._service

    def usage(self, now: float, busy: int, at_hand: int, waiting: int) -> None:
        """The state at this moment, as far as it has been processed."""
        if now != self._moment:
            self._write_usage()
            self._moment = now
        self._state_now = (busy, at_hand - waiting, waiting)

    def _write_usage(self) -> None:
        """The last moment is over; its state counts if it is another than before."""
        if self._state_now is None or self._state_now == self._written:
            return
        self._written = self._state_now
        self._usage.extend((self._moment, *self._written))

    def result(self, events: int, decisions: int, plan_seconds: float, wall_seconds: float) -> Result:
        self._write_usage()
        started, run_time, gpu_time, lost = map(np.array, (self.started, self.run_time, self.gpu_time, self.lost))
        preemptions = np.array(self.preemptions, dtype=np.int64)
        moment, busy, running, waiting = _columns(self._usage, 4)
        job, begin, end, gpu, gpus = _columns(self._stays, 5)
        return Result(
            fates=Fates(started, self.ended, run_time, gpu_time, lost, preemptions, self.rejected, self.dropped),
            usage=Usage(moment, _ints(busy), _ints(running), _ints(waiting)),
            bars=Bars(_ints(job), begin, end, _ints(gpu), _ints(gpus)),
            events=events,
            decisions=decisions,
            plan_seconds=plan_seconds,
            wall_seconds=wall_seconds,
        )


def _columns(rows: array[float], count: int) -> Floats:
    """A row a column, from rows of ``count`` numbers."""
    return np.ascontiguousarray(np.array(rows).reshape(-1, count).T)


def _ints(values: Floats) -> Ints:
    """Numbers of jobs and GPUs, which floats hold exactly."""
    return values.astype(np.int64)
