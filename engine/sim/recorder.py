"""Writes down what happens in a simulation."""

from __future__ import annotations

from array import array
from collections import deque

import numpy as np

from ...policies.contract import Bools, Floats, Ints
from .result import Bars, Fates, Result, Usage
from .workload import Workload

_REMEMBERED = 2000  #: finished jobs whose service a policy may see, so that a decision costs the same after a year


class Recorder:
    def __init__(self, workload: Workload, dropped: Bools) -> None:
        n = len(workload)
        self.dropped = dropped
        self.started, self.ended = np.full(n, np.nan), np.full(n, np.nan)
        self.run_time, self.gpu_time, self.lost = np.zeros(n), np.zeros(n), np.zeros(n)
        self.preemptions, self.attempts = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.rejected = np.zeros(n, dtype=bool)
        self.ended_count = 0
        self._ts, self._state = array("d"), (array("q"), array("q"), array("q"))  # moments; busy, running, waiting
        self._stays, self._held = (array("d"), array("d")), (array("q"), array("q"), array("q"))  # begins, ends; job, gpu, gpus
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)  # service of jobs in the order of their ends
        self._service: Floats | None = None

    def start(self, job: int, now: float) -> int:
        """How many times it had started before."""
        attempt = int(self.attempts[job])
        self.attempts[job] += 1
        if attempt == 0:
            self.started[job] = now
        return attempt

    def preempt(self, job: int) -> None:
        self.preemptions[job] += 1

    def lose(self, job: int, gpu_seconds: float) -> None:
        self.lost[job] += gpu_seconds

    def leave(self, job: int, granted: float, now: float, gpus: Ints) -> None:
        """A stay on GPUs ends."""
        self.run_time[job] += now - granted
        self.gpu_time[job] += (now - granted) * len(gpus)
        for moments, moment in zip(self._stays, (granted, now), strict=True):
            moments.append(moment)
        for column, value in zip(self._held, (job, int(gpus.min()), len(gpus)), strict=True):
            column.append(value)

    def end(self, job: int, now: float) -> None:
        self.ended[job] = now
        self.ended_count += 1
        self._recent.append(float(self.gpu_time[job]))
        self._service = None

    def reject(self, job: int) -> None:
        self.rejected[job] = True
        self.ended_count += 1

    def finished_service(self) -> Floats:
        """GPU-seconds of recently finished jobs, ascending."""
        if self._service is None:
            self._service = np.sort(np.array(self._recent, dtype=np.float64))
        return self._service

    def usage(self, now: float, busy: int, running: int, at_hand: int) -> None:
        state = (busy, running, at_hand - running)
        if self._ts and self._ts[-1] == now:
            self._ts.pop()
            for column in self._state:
                column.pop()
        if self._ts and state == tuple(column[-1] for column in self._state):
            return
        self._ts.append(now)
        for column, value in zip(self._state, state, strict=True):
            column.append(value)

    def result(self, events: int, decisions: int, plan_seconds: float, wall_seconds: float) -> Result:
        busy, running, waiting = map(_ints, self._state)
        job, gpu, gpus = map(_ints, self._held)
        return Result(
            fates=Fates(self.started, self.ended, self.run_time, self.gpu_time, self.lost, self.preemptions, self.rejected, self.dropped),
            usage=Usage(_floats(self._ts), busy, running, waiting),
            bars=Bars(job, _floats(self._stays[0]), _floats(self._stays[1]), gpu, gpus),
            events=events,
            decisions=decisions,
            plan_seconds=plan_seconds,
            wall_seconds=wall_seconds,
        )


def _floats(values: array[float]) -> Floats:
    return np.frombuffer(values, dtype=np.float64) if len(values) else np.zeros(0)


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)
