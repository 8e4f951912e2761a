"""Samples of GPUs and CPU slots, and signs that a worker hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ...engine.identity import Stat
from ...engine.protocol import Sample
from ..lease import processes
from .gpus import Devices, GpuReading

_QUIET_GPU = 0.05  #: utilisation below which a GPU idles
_QUIET_CORES = 0.05  #: cores below which a process tree idles: heartbeat threads run even in a hung one
_QUIET_POWER = 0.2  #: share of the power limit below which a "busy" GPU only spins


class WatchedLease(NamedTuple):
    """A live lease, as telemetry sees it."""

    lease: int
    gpus: tuple[str, ...]
    supervisor: int  #: pid, root of its process tree


class Telemetry:
    """Takes samples; between two of them it remembers the CPU time of each worker's process tree."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._cpu: dict[int, tuple[float, float]] = {}  #: lease -> (monotonic time, CPU seconds of its tree)

    def sample(self, workers: Iterable[WatchedLease], ts: float, clock: float) -> tuple[list[Sample], set[int]]:
        """One sample a GPU (only used ones of CPU slots), and the quiet leases, whose GPUs and CPU are idle."""
        samples, quiet = [], set()
        workers = list(workers)
        table = processes.table() if workers else {}
        unused, users = set(self._devices.gpus), Counter(gpu for worker in workers for gpu in worker.gpus)
        for worker in workers:
            unused -= set(worker.gpus)
            used, memory = self._tree(worker, table, clock)
            readings = {gpu: self._devices.read(gpu) for gpu in worker.gpus if gpu in self._devices.gpus}
            for gpu, reading in readings.items():
                shown = reading or _of_slot(used, memory, len(worker.gpus))
                samples.append(_sample(ts, gpu, worker.lease, shown))
            # A shared GPU's utilisation tells nothing about one worker.
            if used is not None and is_quiet([reading for gpu, reading in readings.items() if reading and users[gpu] == 1], used):
                quiet.add(worker.lease)
        for gpu in sorted(unused):
            if reading := self._devices.read(gpu):
                samples.append(_sample(ts, gpu, None, reading))
        self._cpu = {w.lease: self._cpu[w.lease] for w in workers if w.lease in self._cpu}
        return samples, quiet

    def _tree(self, worker: WatchedLease, table: dict[int, Stat], clock: float) -> tuple[float | None, int]:
        """Cores that the worker's tree has used since the last sample, None at the first, and its memory."""
        tree = processes.descendants(worker.supervisor, table)
        # The supervisor's own CPU time counts too: it includes that of reaped children.
        root = table.get(worker.supervisor)
        cpu = sum(found.cpu for found in tree) + (root.cpu if root else 0.0)
        before = self._cpu.get(worker.lease)
        self._cpu[worker.lease] = (clock, cpu)
        used = max(0.0, cpu - before[1]) / (clock - before[0]) if before and clock > before[0] else None
        return used, sum(processes.memory(found) for found in tree)


def is_quiet(gpus: list[GpuReading], cores: float) -> bool:
    """Whether a worker without progress looks hung, by utilisation and power.

    All its GPUs and its CPU idle (a worker that prepares data is not idle). Or its GPUs claim to be busy at a power at which
    they cannot be: a collective that waits for a dead peer spins at 100 % (github.com/nebius/soperator/issues/796).
    """
    if not gpus or all((gpu.utilisation or 0.0) < _QUIET_GPU for gpu in gpus):
        return cores < _QUIET_CORES
    return all(gpu.power is not None and bool(gpu.power_limit) and gpu.power < _QUIET_POWER * (gpu.power_limit or 0.0) for gpu in gpus)


def _of_slot(cores: float | None, memory: int, slots: int) -> GpuReading:
    """A slot is one core: its utilisation is its part of what the tree uses."""
    return GpuReading(utilisation=None if cores is None else min(1.0, cores / slots), memory_used=memory // slots)


def _sample(ts: float, gpu: str, lease: int | None, reading: GpuReading) -> Sample:
    return Sample(
        ts=ts,
        gpu=gpu,
        lease=lease,
        utilisation=reading.utilisation,
        memory_used=reading.memory_used,
        power=reading.power,
        temperature=reading.temperature,
    )
