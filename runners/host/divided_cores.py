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

from ..lease import processes
from ..lease.rundir import CPUS
from ..worker.cores import usable
from .gpus import Devices
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

    def __init__(self, cores: Callable[[], float] = usable, pinned: Callable[[Sequence[Run]], Collection[int]] = lambda running: ()):
        """``pinned``: which of the leases that run are."""
        self._pinned, self._cores = pinned, cores
        self._told: dict[int, float] = {}

    def tell(self, runs: Iterable[Run]) -> dict[int, float]:
        """Divide the cores over these leases, all that run or are about to; answers with those of each."""
        running = list(runs)
        parts = divide(self._cores(), {run.lease: run.assignment.gpus for run in running}, self._pinned(running)) if running else {}
        for run in running:  # what its spec says is the most
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
    """Which jobs are pinned to which cores. One that has its slots alone is not: it may use the cores that idle slots lend."""

    def __init__(self, devices: Devices, cores: Callable[[], Sequence[int]] = own_cores):
        self._devices, self._cores = devices, cores
        self._held: dict[int, frozenset[int]] = {}  #: cores of leases that are pinned

    def of(self, running: Sequence[Run]) -> dict[int, frozenset[int]]:
        """Cores of the leases that are to be pinned: while others are on their slots. A slot is the core at its place on the node."""
        cores, found = self._cores(), {}
        users = Counter(gpu for run in running for gpu in set(run.assignment.gpus))
        for run in running:
            gpus = [self._devices.gpus[gpu] for gpu in run.assignment.gpus if gpu in self._devices.gpus]
            beside = run.assignment.share != "exclusive" and any(users[gpu.id] > 1 for gpu in gpus)
            if beside and not any(gpu.kind == "cuda" for gpu in gpus):
                found[run.lease] = frozenset(cores[gpu.index % len(cores)] for gpu in gpus)
        return found

    def hold(self, running: Sequence[Run]) -> None:
        """Pin those who share slots now, and let go those who did. Costs a call of the system each when it is so."""
        wanted, everywhere = self.of(running), frozenset(self._cores())
        for run in running:
            with run.isolated(), contextlib.suppress(ProcessLookupError):  # tried again at the next look
                if run.identity is None:
                    continue
                cores, root = wanted.get(run.lease, everywhere), run.identity.pid
                # Of whom this agent knows nothing yet, another one may have begun to pin.
                if os.sched_getaffinity(root) != cores or (run.lease in wanted and self._held.get(run.lease) != cores):
                    _pin(root, cores)
                self._held[run.lease] = cores
        self._held = {lease: self._held[lease] for lease in wanted if lease in self._held}


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
