"""How the cores of a node are divided over the jobs that run on it: the signal to their data pipelines to grow or to shrink.

Each GPU (or slot) in use stands for an equal part of the cores, whoever holds it. So the cores of idle GPUs are lent to
those who run, and are taken back as soon as another job starts: all cores are always given, and none twice. But jobs that share
CPU slots are pinned to the cores of these: each competes with those beside it and with no others.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ...engine.protocol import Assignment
from ..worker.cores import usable
from . import processes
from .gpus import Devices
from .rundir import CPUS
from .runs import Run

_PASSES = 4  #: looks at the tree of a job for threads that were made meanwhile


def divide(cores: float, held: Mapping[int, Collection[str]], pinned: Collection[int] = ()) -> dict[int, float]:
    """Cores of each lease, by the GPUs that each holds; leases on one GPU divide its part equally.

    ``pinned``: leases that have a core for each of their GPUs, to divide with those beside them; the others have what is left.
    """
    users = Counter(gpu for gpus in held.values() for gpu in set(gpus))
    parts = {lease: sum(1 / users[gpu] for gpu in set(gpus)) for lease, gpus in held.items() if gpus}
    bound = sum(parts[lease] for lease in pinned)
    a_gpu = cores / max(cores, len(users))  # more slots than cores: each is a part of one
    rest = (cores - a_gpu * bound) / max(len(users) - bound, 1e-9)
    return {lease: round(part * (a_gpu if lease in pinned else rest), 3) for lease, part in parts.items()}


class DividedCores:
    """Writes each lease's part of the cores into its run directory, when it has changed."""

    def __init__(self, cores: Callable[[], float] = usable, is_pinned: Callable[[Assignment], bool] = lambda assignment: False):
        self._is_pinned, self._cores = is_pinned, cores
        self._told: dict[int, float] = {}

    def tell(self, runs: Iterable[Run]) -> dict[int, float]:
        """Divide the cores over these leases, all that run or are about to; answers with those of each."""
        running = list(runs)
        pinned = [run.lease for run in running if self._is_pinned(run.assignment)]
        parts = divide(self._cores(), {run.lease: run.assignment.gpus for run in running}, pinned) if running else {}
        told: dict[int, float] = {}
        for run in running:
            part = parts[run.lease]
            with run.isolated():  # tried again at the next look
                if self._told.get(run.lease) != part:
                    run.dir.replace(CPUS, {"cpus": part})
                told[run.lease] = part
        self._told = told
        return parts


def own_cores() -> Sequence[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


class Pins:
    """Which jobs are pinned to which cores. One that has its slots alone is not: it may use the cores that idle slots lend."""

    def __init__(self, devices: Devices, cores: Callable[[], Sequence[int]] = own_cores):
        self._devices, self._cores = devices, cores
        self._held: dict[int, frozenset[int]] = {}  #: cores of leases that are pinned

    def of(self, assignment: Assignment) -> frozenset[int] | None:
        """Cores to which a job is to be pinned, None: it is not. A slot is the core at its place on the node."""
        gpus = [self._devices.gpus[gpu] for gpu in assignment.gpus if gpu in self._devices.gpus]
        if assignment.share == "exclusive" or not gpus or any(gpu.kind == "cuda" for gpu in gpus):
            return None
        cores = self._cores()
        return frozenset(cores[gpu.index % len(cores)] for gpu in gpus)

    def hold(self, runs: Iterable[Run]) -> None:
        """Pin the jobs that run as their shares have it now, and let go those that were. Costs a call of the system when it is so."""
        held: dict[int, frozenset[int]] = {}
        for run in runs:
            with run.isolated():  # tried again at the next look
                if run.identity is not None and (cores := self._held_by(run.lease, run.assignment, run.identity.pid)) is not None:
                    held[run.lease] = cores
        self._held = held

    def _held_by(self, lease: int, assignment: Assignment, root: int) -> frozenset[int] | None:
        """Cores that the tree of ``root`` is held to from now on, None: it was never pinned, or is gone."""
        pinned = self.of(assignment)
        wanted = pinned or frozenset(self._cores())
        with contextlib.suppress(ProcessLookupError):
            there = os.sched_getaffinity(root)
            # Of whom this agent knows nothing yet, another one may have begun to pin.
            if there != wanted or (pinned is not None and self._held.get(lease) != wanted):
                _pin(root, wanted)
            return wanted if pinned is not None else None
        return None


def _pin(root: int, cores: Collection[int]) -> None:
    """All threads of the tree of ``root``, itself first: what it starts meanwhile is where it is, and what others do, in a later pass."""
    _pin_threads(root, cores)
    for _ in range(_PASSES):
        tree = [found.pid for found in processes.descendants(root, processes.table())]
        if not sum(_pin_threads(pid, cores) for pid in tree):
            break


def _pin_threads(pid: int, cores: Collection[int]) -> int:
    """How many threads of a process were elsewhere."""
    moved = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getaffinity(int(thread.name)) != cores:
                os.sched_setaffinity(int(thread.name), cores)
                moved += 1
    return moved
