"""Which GPUs of the node something may start on, and what of that the daemon has to be told."""

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
        self.noted = dict(devices.gpus)  #: as the daemon knows them, or is about to

    def quarantine(self, gpus: Iterable[str], survivors: Sequence[Process]) -> None:
        """Nothing may start on these GPUs while one of these processes lives, or one of others that were on them."""
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
        """Look, and answer with what has changed since the daemon was told, None when nothing has."""
        now, before = self.look(gpu), self.noted[gpu]
        self.noted[gpu] = now
        # Who holds how much of a dirty GPU moves all the time: only a change of health is news.
        return now if now.health != before.health else None
