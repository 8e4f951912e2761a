"""The clock of a simulation, and its future events."""

from __future__ import annotations

import heapq
import math

_MOST_VOID = 1000  #: events up to which void ones are not removed, as they cost nothing
NOBODY = -1  #: the job of events that belong to none


class EventKind:
    """Kinds of events, in their order within one moment."""

    END = 0
    STOPPED = 1
    FAILURE = 2
    PROFILED = 3
    MEASURED = 4
    LEASE_END = 5
    WAKE = 6
    IN_FORCE = 7
    TRAINS = 8


class Agenda:
    """Events on a heap keyed (time, kind, sequence), of ``jobs`` jobs or of `NOBODY`. Times are seconds."""

    def __init__(self, jobs: int) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, int, int]] = []  #: (time, kind, sequence, job, version)
        self._sequence = 0
        self._version = [0] * (jobs + 1)  #: by job, the last for `NOBODY`; events of an older version are void
        self._most = _MOST_VOID  #: events, void ones included, beyond which void ones are removed

    def put(self, moment: float, kind: int, job: int) -> None:
        """It will happen, unless it is void by then; never, if ``moment`` is infinite."""
        if moment < math.inf:
            self._sequence += 1
            heapq.heappush(self._heap, (moment, kind, self._sequence, job, self._version[job]))
            if len(self._heap) > self._most:
                self._clear()

    def _clear(self) -> None:
        """Remove void events: a job whose pace changes at every round leaves one at each."""
        self._heap = [event for event in self._heap if self._version[event[3]] == event[4]]
        heapq.heapify(self._heap)
        self._most = 2 * len(self._heap) + _MOST_VOID

    def void(self, job: int) -> None:
        """Cancel all events of the job."""
        self._version[job] += 1

    def next(self) -> float:
        """The moment of the next event; inf: there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> tuple[int, int] | None:
        """(kind, job) of the next event that is due by now; None: there is none."""
        heap = self._heap
        while heap and heap[0][0] <= self.now:
            _, kind, _, job, version = heapq.heappop(heap)
            if self._version[job] == version:
                return kind, job
        return None
