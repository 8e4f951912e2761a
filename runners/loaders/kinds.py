"""Whose workers are threads and whose are processes: what the stages say, and what was changed since, with the reasons."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...engine.errors import UsageError
from . import ipc
from .processes import ProcessPool
from .stages import MIB, Batch, Source, Stage, Working


class Kinds:
    """Of the stages of one pipeline, by their index. Told by a tuner's thread and by workers that cannot be had, asked by all."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._lock = threading.Lock()
        self._in_processes = {index for index, stage in enumerate(stages) if isinstance(stage, Working) and stage.processes}
        self._pools = {index: ProcessPool(stages[index].name, remote_function(stages[index])) for index in self._in_processes}
        self._used = set(self._in_processes)  #: that have been in processes
        self._stays: dict[int, str] = {}

    def processes(self, index: int) -> bool:
        """Whether its workers are to be processes."""
        return index in self._in_processes

    def movable(self, index: int) -> bool:
        return _undecided(self._stages[index]) and index not in self._stays

    def stays(self, index: int) -> str:
        """Why it is in threads for good, in words; "" where that is not so, or was asked for."""
        return self._stays.get(index, "")

    def pool(self, index: int) -> ProcessPool:
        return self._pools[index]

    def prepare(self, index: int, limit: float = math.inf) -> tuple[int, int]:
        """Bytes that all processes of a stage would share, and bytes that each would be sent.

        Raises UsageError when it cannot be moved; it is then kept in threads for this reason, unless that is that more than ``limit``
        bytes would be sent: nothing is then kept of them.
        """
        stage = self._stages[index]
        if not self.movable(index):
            raise UsageError(self.stays(index) or f"stage {stage.name!r}: it says itself what its workers are")
        if index not in self._pools:
            try:
                pool = ProcessPool(stage.name, remote_function(stage), limit=limit, on_host=True)
            except ipc.TooLarge as error:
                raise UsageError(
                    f"stage {stage.name!r}: a copy of its function's data takes more than the {limit / MIB:,.0f} MiB of memory that are"
                    " left for it; use arrays or tensors, which processes share"
                ) from error
            except UsageError as error:
                self.keep_in_threads(index, str(error))
                raise
            with self._lock:
                self._pools[index] = pool
        return self._pools[index].shared_bytes, self._pools[index].sent_bytes

    def move(self, index: int, *, processes: bool) -> None:
        """UsageError when it cannot be."""
        if processes == self.processes(index):
            return
        self.prepare(index)
        with self._lock:
            self._used.add(index)
            (self._in_processes.add if processes else self._in_processes.discard)(index)
        self._pools[index].keep_spare(processes)

    def forget(self, index: int) -> None:
        """It will not be moved now: let go of what `prepare` made."""
        with self._lock:
            if index not in self._used:  # else a worker may still be about to take its process
                self._pools.pop(index, None)

    def keep_in_threads(self, index: int, why: str) -> None:
        """Its processes cannot be had."""
        with self._lock:
            self._in_processes.discard(index)
            self._stays[index] = why
        if index in self._pools:
            self._pools[index].end()

    def begin(self) -> None:
        for pool in self._all():
            pool.begin()

    def end(self) -> None:
        for pool in self._all():
            pool.end()

    def _all(self) -> list[ProcessPool]:
        with self._lock:
            return list(self._pools.values())


def thread_function(stage: Stage) -> Callable[[Any], Any]:
    """What a worker thread calls with an item."""
    if isinstance(stage, Source):
        function: Callable[[Any], Any] = stage.data.__getitem__
        return function
    return stage.collate if isinstance(stage, Batch) else stage.function  # type: ignore[attr-defined]


def remote_function(stage: Stage) -> Callable[[Any], Any]:
    """What a worker process calls with it."""
    if isinstance(stage, Source) and stage.in_processes is not None:
        function: Callable[[Any], Any] = stage.in_processes.__getitem__
        return function
    return thread_function(stage)


def _undecided(stage: Stage) -> bool:
    return isinstance(stage, Working) and stage.processes is None and (not isinstance(stage, Source) or stage.indexed)
