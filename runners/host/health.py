"""Health of the node's GPUs: on which a job may start, and which changes the daemon must be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...engine import identity
from ...engine.identity import Process
from ...engine.protocol import GpuInfo
from ..lease import processes
from .gpus import Devices


class Health:
    """Looks at devices, and remembers the GPUs whose worker could not be killed."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._survivors: dict[str, Sequence[Process]] = {}
        self.noted = dict(devices.gpus)  #: as the daemon knows them, or will by the next report

    def quarantine(self, gpus: Iterable[str], survivors: Sequence[Process]) -> None:
        """Let no job start on these GPUs while one of these processes, or an earlier survivor on them, lives."""
        for gpu in gpus:
            if gpu in self._devices.gpus:
                self._survivors[gpu] = list(dict.fromkeys((*self._survivors.get(gpu, ()), *survivors)))

    def look(self, gpu: str) -> GpuInfo:
        info = self._devices.check(gpu)
        holders = [process for process in self._survivors.get(gpu, ()) if identity.alive(process)]
        if not holders:
            self._survivors.pop(gpu, None)
            return info
        return msgspec.structs.replace(info, health="quarantined", note=f"could not be killed: {processes.words(holders)}")

    def note(self, gpu: str) -> GpuInfo | None:
        """Check a GPU; returns its new state if that differs from the one told to the daemon, else None."""
        now, before = self.look(gpu), self.noted[gpu]
        self.noted[gpu] = now
        # The holders of a dirty GPU, and their memory, change all the time: only a change of health is reported.
        return now if now.health != before.health else None
