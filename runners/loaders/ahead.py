"""Reading that is left to whoever works on what is read: the processes of a Map take indices, and read them themselves.

What is read in this process costs a thread's way through two queues for each sample, its bytes a way to another process, and all of it
the interpreter's lock, which the training needs. A process that reads what it works on costs nothing of that, but waits while it reads. So
that is done as long as this waiting is little beside the computing of the same process; else threads read, of which there may be many.
How long threads wait shows it only roughly, as they wait for the interpreter's lock too; where it is long, it is not even tried.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import ipc
from .chains import Step
from .stages import MIB, Map, Shuffle, Source, Stage

log = logging.getLogger("stoker.loaders")

LITTLE = 0.25  #: waiting of reading, as a share of all CPU time of a call, up to which processes read
CALLS, READS = 3, 16  #: that are looked at at least
LONG = 0.005  #: seconds that half of the reads wait in threads, from which on it is not for the interpreter's lock
WEIGHT = 0.1  #: of a new call in the means
PAUSE = 4096  #: reads by threads after which it is tried again; twice as many each time
SMALL = 64 * MIB  #: bytes of what the source's function refers to, up to which each process is given it
CARRIED = (8, 64)  #: indices that go together at least and at most: as many as a batch has


class Ahead:
    """Of one pipeline. Told by the workers of the Map, asked by that of the source."""

    def __init__(self, reader: int, name: str) -> None:
        self.reader, self.name = reader, name  #: place and name of the Map whose processes read
        self.changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._cpu = self._wait = 0.0  #: means of a call
        self._calls = self._reads = 0
        self._rest, self._pause = READS, PAUSE
        self._waits: deque[float] = deque(maxlen=READS)  #: of reads in threads

    @property
    def pays(self) -> bool:
        return self._rest == 0

    def took(self, wait: float) -> None:
        """A thread has read one, and waited so long."""
        with self._lock:
            self._waits.append(wait)
            if self._rest > 1:
                self._rest -= 1
            elif self._rest and statistics.median(self._waits) > LONG:
                self._threads_read()
            elif self._rest:
                self._rest = self._calls = self._reads = 0
                self.changed()

    def _threads_read(self) -> None:
        self._rest, self._pause = self._pause, 2 * self._pause

    def see(self, read: Step, cpu: float) -> None:
        """What reading took of a call of a process, and the CPU time of all of it."""
        with self._lock:
            self._learn(read, cpu)

    def _learn(self, read: Step, cpu: float) -> None:
        self._calls, self._reads = self._calls + 1, self._reads + read.items
        gain = max(WEIGHT, 1.0 / self._calls)
        self._cpu += gain * (cpu - self._cpu)
        self._wait += gain * (read.spent.wait - self._wait)
        if self._calls >= CALLS and self._reads >= READS and self._wait > LITTLE * self._cpu and not self._rest:
            self._threads_read()
            log.debug("reading waits %.0f%% of what %r computes: threads read", 100 * self._wait / max(self._cpu, 1e-9), self.name)
            self.changed()


def planned(stages: Sequence[Stage]) -> Ahead | None:
    """The Map that may read what it works on: right behind the source, but for shuffles, which do not look into what they shuffle."""
    source = stages[0]
    if not isinstance(source, Source) or not source.indexed or source.processes is not None or source.along is False:
        return None
    reader = next((place for place, stage in enumerate(stages) if place and not isinstance(stage, Shuffle)), 0)
    stage = stages[reader]
    return Ahead(reader, stage.name) if reader and isinstance(stage, Map) and stage.processes is not False else None


def small(function: Callable[[Any], Any]) -> bool:
    """Whether each process may be given the function of a source: data in memory stay where they are."""
    try:
        data, views = ipc.dumps(function, limit=SMALL, on_host=True)
    except Exception:  # what pickling calls may raise anything
        return False
    return len(data) + sum(view.nbytes for view in views) <= SMALL
