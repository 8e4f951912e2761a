"""Divides the cores of a node over its running jobs: their data pipelines grow or shrink by it.

Each GPU (or slot) in use stands for an equal part of the cores. So the cores of idle GPUs are lent to running jobs,
and taken back as soon as another job starts: all cores are always given, and none twice. Jobs that share CPU slots are
pinned to the cores of these slots instead: each competes with the jobs beside it only.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ..lease import processes
from ..lease.rundir import CPUS
from ..worker.cores import usable
from .gpus import Devices
from .runs import Run

_PASSES = 4  #: passes over a job's tree, for threads created meanwhile


def divide(cores: float, held: Mapping[int, Collection[str]], pinned: Collection[int] = ()) -> dict[int, float]:
    """Cores of each lease, by the GPUs that it holds; leases on one GPU divide its part equally.

    ``pinned``: leases with a core for each of their slots, shared with the leases beside them; the others divide the remaining cores.
    """
    users = Counter(gpu for gpus in held.values() for gpu in set(gpus))
    parts = {lease: sum(1 / users[gpu] for gpu in set(gpus)) for lease, gpus in held.items() if gpus}
    bound = sum(parts[lease] for lease in pinned)
    a_gpu = cores / max(cores, len(users))  # less than 1 where there are more slots than cores
    rest = (cores - a_gpu * bound) / max(len(users) - bound, 1e-9)
    return {lease: round(part * (a_gpu if lease in pinned else rest), 3) for lease, part in parts.items()}


class DividedCores:
    """Writes each lease's part of the cores into its run directory, when it has changed."""

    def __init__(self, cores: Callable[[], float] = usable, pinned: Callable[[Sequence[Run]], Collection[int]] = lambda running: ()):
        """``pinned``: finds the pinned leases among running ones."""
        self._pinned, self._cores = pinned, cores
        self._told: dict[int, float] = {}

    def tell(self, runs: Iterable[Run]) -> dict[int, float]:
        """Divide the cores over these leases (all that run or are about to); returns each one's part."""
        running = list(runs)
        parts = divide(self._cores(), {run.lease: run.assignment.gpus for run in running}, self._pinned(running)) if running else {}
        for run in running:  # the spec's limit is an upper bound
            limit = (run.assignment.spec.get("host") or {}).get("cpus")
            parts[run.lease] = parts[run.lease] if limit is None else min(parts[run.lease], float(limit))
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
    """Pins jobs that share slots to the cores of these. A job that has its slots alone may use the cores of idle slots too."""

    def __init__(self, devices: Devices, cores: Callable[[], Sequence[int]] = own_cores):
        self._devices, self._cores = devices, cores
        self._held: dict[int, frozenset[int]] = {}  #: cores of leases that are pinned

    def of(self, running: Sequence[Run]) -> dict[int, frozenset[int]]:
        """Cores of leases that are to be pinned, as other leases are on their slots. A slot is the core at its position on the node."""
        cores, found = self._cores(), {}
        users = Counter(gpu for run in running for gpu in set(run.assignment.gpus))
        for run in running:
            gpus = [self._devices.gpus[gpu] for gpu in run.assignment.gpus if gpu in self._devices.gpus]
            beside = run.assignment.share != "exclusive" and any(users[gpu.id] > 1 for gpu in gpus)
            if beside and not any(gpu.kind == "cuda" for gpu in gpus):
                found[run.lease] = frozenset(cores[gpu.index % len(cores)] for gpu in gpus)
        return found

    def hold(self, running: Sequence[Run]) -> None:
        """Pin leases that share slots now, and unpin those that no longer do. One system call for each where nothing has changed."""
        wanted, everywhere = self.of(running), frozenset(self._cores())
        for run in running:
            with run.isolated(), contextlib.suppress(ProcessLookupError):  # tried again at the next look
                if run.identity is None:
                    continue
                cores, root = wanted.get(run.lease, everywhere), run.identity.pid
                # Another agent may have pinned a lease that this one has just taken over.
                if os.sched_getaffinity(root) != cores or (run.lease in wanted and self._held.get(run.lease) != cores):
                    _pin(root, cores)
                self._held[run.lease] = cores
        self._held = {lease: self._held[lease] for lease in wanted if lease in self._held}


def _pin(root: int, cores: Collection[int]) -> None:
    """Pin all threads of the tree of ``root``, itself first: its new threads inherit that; a later pass finds those of others."""
    _pin_threads(root, cores)
    for _ in range(_PASSES):
        tree = [found.pid for found in processes.descendants(root, processes.table())]
        if not sum(_pin_threads(pid, cores) for pid in tree):
            break


def _pin_threads(pid: int, cores: Collection[int]) -> int:
    """Pin a process's threads; returns how many were elsewhere."""
    moved = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getaffinity(int(thread.name)) != cores:
                os.sched_setaffinity(int(thread.name), cores)
                moved += 1
    return moved
