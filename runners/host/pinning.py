"""CPU slots that several jobs share: each is pinned to the cores of its slots, so that it competes with those beside it and no others.

A job that has its slots alone is not pinned: it may use the cores that idle slots lend (`core_shares`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ...engine.protocol import Assignment
from . import processes
from .gpus import Devices
from .runs import Run

_PASSES = 4  #: looks at the tree of a job for threads that were made meanwhile


def own_cores() -> Sequence[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


class Pins:
    def __init__(self, devices: Devices, cores: Callable[[], Sequence[int]] = own_cores):
        self._devices, self._cores = devices, cores

    def of(self, assignment: Assignment) -> frozenset[int] | None:
        """Cores to which a job is to be pinned, None: it is not. A slot is the core at its place on the node."""
        gpus = [self._devices.gpus[gpu] for gpu in assignment.gpus if gpu in self._devices.gpus]
        if assignment.share == "exclusive" or not gpus or any(gpu.kind == "cuda" for gpu in gpus):
            return None
        cores = self._cores()
        return frozenset(cores[gpu.index % len(cores)] for gpu in gpus)

    def hold(self, run: Run) -> None:
        """Pin a job that runs as its share has it now, or let it go. Costs two calls of the system when it is so already."""
        if run.identity is None:
            return
        wanted = self.of(run.assignment) or frozenset(self._cores())
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getaffinity(run.identity.pid) != wanted:
                _pin(run.identity.pid, wanted)


def _pin(root: int, cores: Collection[int]) -> None:
    """All threads of the tree of ``root``, itself last: as long as it differs there is something left to do."""
    for _ in range(_PASSES):
        tree = [found.pid for found in processes.descendants(root, processes.table())]
        if not sum(_pin_threads(pid, cores) for pid in tree):
            break
    _pin_threads(root, cores)


def _pin_threads(pid: int, cores: Collection[int]) -> int:
    """How many threads of a process were elsewhere."""
    moved = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getaffinity(int(thread.name)) != cores:
                os.sched_setaffinity(int(thread.name), cores)
                moved += 1
    return moved
