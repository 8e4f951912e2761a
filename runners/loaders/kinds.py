"""The kind of each stage's workers, threads or processes: as the stages were given, and later changes with their reasons."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...engine.errors import UsageError
from .stages import MIB, MOST_WORKERS, Batch, Map, Shuffle, Source, Stage, Working
from .workers import ipc
from .workers.alone import Guarded
from .workers.chains import Chain
from .workers.worker_processes import ProcessPool, start_server

log = logging.getLogger("stoker.loaders")

INDICES_SENT = (8, 64)  #: least and most indices sent together to a reader; between these, as many as a batch has


class Kinds:
    """The kinds for one pipeline's stages, by index. Set by a tuner's thread and by failures to start workers, read by all."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._lock = threading.Lock()
        self._in_processes = {index for index, stage in enumerate(stages) if isinstance(stage, Working) and stage.processes}
        self.reader = _reader(stages)  #: the Map whose processes read their own samples; 0: none
        self._pools = {index: ProcessPool(self._chain(index, remote_function)) for index in self._in_processes}
        self._guards = {id(stage): guard for stage in stages if (guard := _guarded(stage)) is not None}
        self._used = set(self._in_processes)  #: that have been in processes
        self._stays: dict[int, str] = {}

    def processes(self, index: int) -> bool:
        """Whether its workers are to be processes."""
        return index in self._in_processes

    @property
    def reads_ahead(self) -> bool:
        """Whether samples are left unread for the processes that work on them."""
        return self.reader > 0 and self.reader in self._in_processes

    def carried(self, index: int) -> int:
        """Items of a stage that go together to the processes that read them; 0: they go one by one, and are read here."""
        if index >= self.reader or not self.reads_ahead:
            return 0
        few, many = INDICES_SENT
        return min(max(few, self._pools[self.reader].chain.size), many)

    def movable(self, index: int) -> bool:
        return _undecided(self._stages[index]) and index not in self._stays

    def stays(self, index: int) -> str:
        """Why it stays in threads for good, in words; "" if it does not, or was asked to."""
        return self._stays.get(index, "")

    def pool(self, index: int) -> ProcessPool:
        return self._pools[index]

    def together(self, index: int) -> int:
        """Items that a process of the stage takes at once, or would."""
        pool = self._pools.get(index)
        if pool is not None:
            return pool.chain.size
        return self.chain_here(index).size if self.movable(index) else 1

    def chain_here(self, index: int) -> Chain:
        """The work of one call of the stage's processes, for a thread."""
        return self._chain(index, self.function_here, along=self.function_here)

    def function_here(self, stage: Stage) -> Callable[[Any], Any]:
        """The function that a worker thread calls with an item."""
        return self._guards.get(id(stage)) or thread_function(stage)

    def most(self, index: int) -> int:
        """Most workers of use: one if the stage is in threads and only one thread may call its function."""
        guard = self._guards.get(id(self._stages[index]))
        return 1 if guard is not None and guard.alone and not self.processes(index) else MOST_WORKERS

    def along(self, index: int) -> bool:
        """Whether the processes of an earlier stage do this stage's work; for the source, those of a later stage."""
        if index == 0:
            return self.reads_ahead
        chains = ((before, self._pools[before].chain) for before in tuple(self._in_processes))
        return any(before < index < before + chain.span for before, chain in chains)

    def _chain(
        self,
        index: int,
        function: Callable[[Stage], Callable[[Any], Any]],
        along: Callable[[Stage], Callable[[Any], Any]] | None = None,
    ) -> Chain:
        chained, batch = [self._stages[index]], None
        for stage in self._stages[index + 1 :]:
            if not (_goes_along(stage) and (batch is None or isinstance(stage, Map))):
                break
            if isinstance(stage, Batch):
                batch = stage
            chained.append(stage)
        first = [self._stages[0]] if 0 < index == self.reader else []
        return Chain(
            (*(function(stage) for stage in (*first, chained[0])), *((along or thread_function)(stage) for stage in chained[1:])),
            tuple(stage.name for stage in (*first, *chained)),
            None if batch is None else len(first) + chained.index(batch),
            1 if batch is None else batch.size,
            bool(first),
        )

    def prepare(self, index: int, limit: float = math.inf) -> tuple[int, int]:
        """Bytes that all processes of a stage would share, and bytes that each would be sent.

        Raises UsageError if it cannot be moved; it then stays in threads for this reason. If only more than ``limit`` bytes would be
        sent, it may be moved later, and the bytes are dropped.
        """
        stage = self._stages[index]
        if not self.movable(index):
            raise UsageError(self.stays(index) or f"stage {stage.name!r}: its 'processes' option fixes the kind of its workers")
        if index not in self._pools:
            try:
                pool = ProcessPool(self._chain(index, remote_function), limit=limit, on_host=True)
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

    def make_ready(self, index: int) -> None:
        if self.movable(index) and not self._in_processes:
            start_server()

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
        """It will not be moved now: drop the results of `prepare`."""
        with self._lock:
            if index not in self._used:  # else a worker may still be about to take its process
                self._pools.pop(index, None)

    def keep_in_threads(self, index: int, why: str, *, at_once: bool = True) -> None:
        """Its processes cannot be started or used; ``at_once``: none is at work, so starting ones are killed."""
        with self._lock:
            self._in_processes.discard(index)
            self._stays[index] = why
        if index in self._pools:
            if at_once:
                self._pools[index].end()
            else:
                self._pools[index].keep_spare(False)

    def begin(self) -> None:
        with self._lock:
            pools = list(self._pools.items())
        for index, pool in pools:
            try:
                pool.begin()
            except ipc.TooLarge:
                why = f"stage {pool.stage!r}: a copy of its function's data has grown beyond the memory that was left for it"
                self.keep_in_threads(index, why)
                log.warning("%s; it goes on in threads", why)

    def end(self) -> None:
        for pool in self._all():
            pool.end()

    def close(self) -> None:
        """The same, and no thread waits for the next pass."""
        self.end()
        for guard in self._guards.values():
            guard.close()

    def _all(self) -> list[ProcessPool]:
        with self._lock:
            return list(self._pools.values())


def _guarded(stage: Stage) -> Guarded | None:
    """The function of a stage, fit to be called by several threads at once."""
    if not isinstance(stage, Working) or stage.processes or (isinstance(stage, Source) and not stage.indexed):
        return None
    function = thread_function(stage)
    if isinstance(stage, Source):
        return Guarded(stage.name, function, stage.data, "data", reads=True)
    return Guarded(stage.name, function, function, "function", reads=False)


def thread_function(stage: Stage) -> Callable[[Any], Any]:
    """The function that a thread calls with an item."""
    if isinstance(stage, Source):
        function: Callable[[Any], Any] = stage.data.__getitem__
        return function
    return stage.collate if isinstance(stage, Batch) else stage.function  # type: ignore[attr-defined]


def remote_function(stage: Stage) -> Callable[[Any], Any]:
    """The function that a worker process calls with it."""
    if isinstance(stage, Source) and stage.in_processes is not None:
        function: Callable[[Any], Any] = stage.in_processes.__getitem__
        return function
    return thread_function(stage)


def _goes_along(stage: Stage) -> bool:
    """Whether it joins the stage before it in that stage's processes."""
    if not isinstance(stage, Map | Batch):
        return False
    return isinstance(stage, Batch) and stage.processes is None if stage.along is None else stage.along


def _reader(stages: Sequence[Stage]) -> int:
    """The Map that is to read its own samples; 0: none. Shuffles may stand before it, as they do not look into items."""
    source = stages[0]
    if not isinstance(source, Source) or not source.along:
        return 0
    place = next((place for place, stage in enumerate(stages) if place and not isinstance(stage, Shuffle)), 0)
    stage = stages[place]
    if not isinstance(stage, Map) or stage.processes is False or source.processes:
        raise UsageError(
            f"stage {source.name!r}: along=True leaves reading to the processes of the next Map (shuffles may stand between);"
            " here there is no such Map, or the stage has processes of its own"
        )
    return place


def _undecided(stage: Stage) -> bool:
    return isinstance(stage, Working) and stage.processes is None and (not isinstance(stage, Source) or stage.indexed)
