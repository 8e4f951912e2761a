"""The time of workers: on CPU, waiting inside their function, waiting for input, waiting for room."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from ..workers.faults import At


class WorkPhase(IntEnum):
    STARVED = 0  #: has no input
    WORKING = 1
    BLOCKED = 2  #: its output is full


class Totals(NamedTuple):
    """Since a worker began, or summed over workers. Times in seconds."""

    items: int = 0
    cpu: float = 0.0  #: of all its work, the queues included
    wait: float = 0.0  #: inside the function, neither CPU time nor waiting for a core
    bytes: int = 0
    starved: float = 0.0
    working: float = 0.0
    blocked: float = 0.0
    elsewhere: float = 0.0  #: the part of `cpu` that other processes spent

    def __add__(self, other: tuple[Any, ...]) -> Totals:
        return Totals._make(mine + yours for mine, yours in zip(self, other, strict=True))

    def __sub__(self, other: Totals) -> Totals:
        return Totals._make(mine - yours for mine, yours in zip(self, other, strict=True))


class Spent(NamedTuple):
    """One call of a function."""

    cpu: float
    wait: float


class RunDelay:
    """Seconds for which the calling thread was ready to run and had no core, from Linux's schedstat; always 0 without that.

    It tells a function that waits for a disk from one that waits for its turn on a full machine.
    Waiting for Python's interpreter lock looks like any other wait: the kernel cannot tell it from a sleep.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def read(self) -> float:
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Stopwatch:
    """Times calls in the thread that made it. ``cpu_clock``: thread_time, or process_time if a process is one worker."""

    _NOTICEABLE = 20e-6  #: seconds; a wait below this is not worth reading the run delay again

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._cpu_clock = cpu_clock
        self._delay = RunDelay()

    def call(self, function: Callable[[Any], Any], argument: Any) -> tuple[Any, Spent]:
        delay, cpu, wall = self._delay.read(), self._cpu_clock(), time.perf_counter()
        result = function(argument)
        wall, cpu = time.perf_counter() - wall, self._cpu_clock() - cpu
        wait = wall - cpu
        if wait > self._NOTICEABLE:
            wait -= self._delay.read() - delay
        return result, Spent(cpu, max(0.0, wait))

    def close(self) -> None:
        self._delay.close()


class BusyClock:
    """The consumer's time for each delivery, less the time for which it was ready and had no core.

    That is its time if the pipeline's own workers, for example as they start, did not take its core.
    """

    def __init__(self) -> None:
        self._delay: RunDelay | None = None
        self._thread = -1  #: whose run delay it is
        self._began = self._delayed = 0.0

    def start(self) -> None:
        if (thread := threading.get_ident()) != self._thread:
            self.close()
            self._delay, self._thread = RunDelay(), thread
        assert self._delay is not None
        self._began, self._delayed = time.perf_counter(), self._delay.read()

    def stop(self) -> float:
        """Seconds since `start`."""
        busy = time.perf_counter() - self._began
        if self._delay is not None and threading.get_ident() == self._thread:
            busy -= self._delay.read() - self._delayed
        return max(0.0, busy)

    def close(self) -> None:
        if self._delay is not None:
            self._delay.close()


class Meter:
    """The meter of one worker. It alone writes; any thread reads. Each write replaces a whole tuple, so a reader sees one moment."""

    __slots__ = ("_born", "_done", "_phases", "at", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self._born = time.thread_time()
        self._done: tuple[int, float, float, int, float] = (0, 0.0, 0.0, 0, 0.0)
        self._phases: tuple[float, float, float, WorkPhase, float] = (0.0, 0.0, 0.0, WorkPhase.STARVED, time.perf_counter())
        self.at: Callable[[], At] | None = None  #: the item at work

    def enter(self, phase: WorkPhase) -> None:
        now = time.perf_counter()
        starved, working, blocked, was, since = self._phases
        if was is WorkPhase.STARVED:
            starved += now - since
        elif was is WorkPhase.WORKING:
            working += now - since
        else:
            blocked += now - since
        self._phases = (starved, working, blocked, phase, now)

    def finished(self, size: int, wait: float, cpu_elsewhere: float, items: int = 1) -> None:
        """Items are done, of this size together. ``cpu_elsewhere``: CPU time that another process spent on them."""
        before, _, waited, passed, elsewhere = self._done
        elsewhere += cpu_elsewhere
        self._done = (before + items, time.thread_time() - self._born + elsewhere, waited + wait, passed + size, elsewhere)

    def read(self, now: float) -> Totals:
        """The totals up to ``now``, the part of the current phase included."""
        starved, working, blocked, phase, since = self._phases
        phases = [starved, working, blocked]
        phases[phase] += max(0.0, now - since)
        items, cpu, wait, size, elsewhere = self._done
        return Totals(items, cpu, wait, size, phases[0], phases[1], phases[2], elsewhere)

    @property
    def phase(self) -> WorkPhase:
        return self._phases[3]

    def working_on(self) -> At | None:
        """None: nothing."""
        phase, since = self._phases[3:]
        if phase is not WorkPhase.WORKING or self.at is None:
            return None
        at = self.at()
        return at._replace(since=max(since, at.since))
