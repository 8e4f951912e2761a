"""Worker processes of a stage: started ahead, replaced when they are killed, ended for certain.

Each is driven by a worker thread of the stage, so that growing, shrinking, order and back-pressure are those of threads; a thread
starts its process before it takes an item, so a start never stops the flow.

They are started by `forkserver`, not `fork`: a fork of a process that has threads (this pipeline is made of them, and torch's OpenMP
pool, which hangs in the child at its first parallel operation) copies locks that nobody will release. And not `spawn`, which imports
everything anew for each process, seconds with torch; the server imports once, has no threads, and forks in milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from ...engine.errors import StokerError, UsageError
from . import ipc, process_main
from .chains import Call, Chain, Step, Whereabouts
from .channel import Item
from .faults import At, Misplaced, StageError, Stopped, Unreplaced
from .threads import Outcome

log = logging.getLogger("stoker.loaders")

_STARTING = threading.Lock()  #: multiprocessing starts one at a time
_GUARDED = "is what the script does guarded by `if __name__ == '__main__':`?"
_PATIENCE = 1.0  #: seconds that an idle process has to leave by itself


class Died(Exception):
    """A worker process has ended in the middle of an item."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


def start_server() -> None:
    """What worker processes are forked from, which imports for a second or two; this returns at once. It stays until this process ends."""
    _server()
    with _STARTING, contextlib.suppress(OSError, RuntimeError):
        forkserver.ensure_running()


def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    heavy = [name for name in ("numpy", "torch") if name in sys.modules]
    context.set_forkserver_preload(["__main__", *heavy, process_main.__name__])
    return context


class WorkerProcess:
    """One process and the socket to it. Used by one thread at a time; `kill` may come from any."""

    def __init__(self, stage: str) -> None:
        context = _server()
        self.whereabouts = Whereabouts()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        given = (theirs, self.whereabouts)
        self._process: ForkServerProcess = context.Process(target=process_main.main, args=given, name=f"stoker-{stage}", daemon=True)
        try:
            self._process.start()
        except (AssertionError, EOFError, OSError, RuntimeError) as error:
            self._socket.close()
            self.whereabouts.let_go()
            raise StokerError(f"stage {stage!r}: cannot start a worker process ({error or type(error).__name__}); {_GUARDED}") from error
        finally:
            theirs.close()
            self.whereabouts.close_file()
        self._stage = stage

    def call(self, call: Call, begins: int, *, apart: bool = False) -> tuple[Any, tuple[Step, ...]]:
        """As `Chain.run` in that process. Its exception is raised, from Failed, which says where. Died: the process has.

        ``begins``: place of the chain where it does. ``apart``: see `ipc.receive`.
        """
        self.whereabouts.note(begins, -1)
        try:
            data, views = ipc.dumps(call)
        except Exception as error:
            raise TypeError(f"an item cannot be sent to a worker process: {error}") from error
        return self._ask(lambda to: ipc.send(to, data, views), apart=apart)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def end(self, *, at_once: bool = False) -> None:
        """Let it leave, kill it if it does not, and reap it."""
        if at_once:
            self._process.kill()
        self._socket.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_PATIENCE)
        self.whereabouts.let_go()
        # Not closed: multiprocessing may be joining it at the interpreter's exit. Its descriptors go with the object.

    def greet(self, chain: ipc.Shared) -> None:
        """Give it the functions, and wait until it has them. StokerError: it cannot be had."""
        try:
            self._ask(chain.send)
        except BaseException as error:
            self.end(at_once=True)
            if isinstance(error, Died):
                raise StokerError(f"stage {self._stage!r}: a worker process ended as it started: {error.how}; {_GUARDED}") from error
            raise StokerError(f"stage {self._stage!r}: its function cannot be loaded in a worker process: {error}") from error

    def _ask(self, send: Callable[[socket.socket], None], *, apart: bool = False) -> tuple[Any, tuple[Step, ...]]:
        try:
            send(self._socket)
            # A process that the function itself forked may hold the socket open after its parent was killed.
            if not ipc.wait_for(self._socket, self._process.sentinel):
                raise ipc.Closed
            answer = ipc.receive(self._socket, apart=apart)
        except ipc.Closed:
            raise Died(self._how()) from None
        if isinstance(answer, process_main.Raised):
            raise answer.error
        return answer.result, answer.steps

    def _how(self) -> str:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        if code is None:
            return "it closed its socket"
        if code == -signal.SIGKILL:
            return "killed by signal 9, by hand or because memory ran out"
        return f"killed by signal {-code}" if code < 0 else f"it exited with code {code}"


class ProcessPool:
    """The processes of one stage, kept from pass to pass. What their function holds in arrays and tensors is in memory once for all.

    Args:
        chain: what a process does in one call.
        attempts: how often an item is given to a new process when the one that worked on it was killed.
        limit: bytes of the function's data that are sent to each process, and copied here for that; more are ipc.TooLarge.
        on_host: tensors of a device cannot be sent.
    """

    def __init__(self, chain: Chain, *, attempts: int = 3, limit: float = math.inf, on_host: bool = False) -> None:
        stage = self.stage = chain.names[chain.own]
        self.attempts = attempts
        self.chain, self._limit, self._on_host = chain, limit, on_host
        try:
            self._function = self._sendable()
        except ipc.TooLarge:
            raise
        except ipc.OnDevice as error:
            raise UsageError(f"stage {stage!r}: its function cannot be sent to worker processes: {error}") from error
        except Exception as error:
            raise UsageError(
                f"stage {stage!r}: its function cannot be sent to worker processes ({error});"
                " define it at the top level of a module, not as a lambda or inside a function, or use processes=False"
            ) from error
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._ending = False
        self._spares = True
        self._owner = os.getpid()

    def _sent(self) -> ipc.Shared:
        """The functions as they are now."""
        return ipc.Shared(*ipc.dumps(self.chain, limit=self._limit, on_host=self._on_host))

    def _sendable(self) -> ipc.Shared:
        """The functions, but for those that go along and cannot be sent: these are called here."""
        try:
            return self._sent()
        except Exception:
            self.chain = _sendable(self.chain, self._limit, on_host=self._on_host)
            return self._sent()

    @property
    def shared_bytes(self) -> int:
        """That all processes hold together, of what the function refers to."""
        return self._function.shared_bytes

    @property
    def sent_bytes(self) -> int:
        """That each has a copy of."""
        return self._function.sent_bytes

    def acquire(self) -> WorkerProcess:
        """An idle process, else a new one. Stopped: the pool is being ended."""
        with self._lock:
            if self._ending:
                raise Stopped
            while self._idle:
                process = self._idle.pop()
                if process.alive():
                    self._busy.add(process)
                    return process
                process.end(at_once=True)
        with _STARTING:
            if self.ending:
                raise Stopped
            process = WorkerProcess(self.stage)
        if not self._admitted(process):
            process.end(at_once=True)
            raise Stopped
        try:
            process.greet(self._function)
        except StokerError:
            with self._lock:
                self._busy.discard(process)
                if self._ending:
                    raise Stopped from None
            raise
        return process

    def _admitted(self, process: WorkerProcess) -> bool:
        with self._lock:
            if not self._ending:
                self._busy.add(process)
            return not self._ending

    def release(self, process: WorkerProcess, *, keep: bool) -> None:
        """The caller needs it no more. ``keep``: as a spare, for the next growth or pass; else one spare at most is kept."""
        with self._lock:
            self._busy.discard(process)
            if self._spares and not self._ending and process.alive() and (keep or not self._idle):
                self._idle.append(process)
                return
            over = not self._spares and not self._busy
        process.end()
        if over:
            self._function.let_go()  # it may have started, and so been sent the function, after `keep_spare` let go of that

    def keep_spare(self, spares: bool) -> None:
        """Whether processes that are not needed wait for the next growth or pass; those that wait are ended where they are not to."""
        with self._lock:
            self._spares = spares
            idle, self._idle = ([], self._idle) if spares else (self._idle, [])
        for process in idle:
            process.end()
        if not spares:
            self._function.let_go()

    def discard(self, process: WorkerProcess) -> None:
        """It has died."""
        with self._lock:
            self._busy.discard(process)
        process.end(at_once=True)

    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in (*self._idle, *self._busy) if process.pid is not None]

    @property
    def ending(self) -> bool:
        with self._lock:
            return self._ending

    def begin(self) -> None:
        """A new pass may use it, after `end`. Processes of an earlier one end if the function, or data that it holds, has changed since.

        ipc.TooLarge: these data have grown above the limit.
        """
        changed, idle = self._changed(), list[WorkerProcess]()
        with self._lock:
            self._ending = False
            if changed is not None:
                idle, self._idle, self._function = self._idle, [], changed
        for process in idle:
            process.end()

    def _changed(self) -> ipc.Shared | None:
        """What is to be sent now, where it is another than before."""
        try:
            now = self._sent()
        except ipc.TooLarge:
            raise
        except Exception:  # a file that it has opened meanwhile, say: what was sent is what there is
            return None
        return None if now.same(self._function) else now

    def end(self) -> None:
        """Kill those that start or are at work, whose threads then reap them, and end the idle.

        In a fork of this process: they are not its own.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._ending = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.end()
        self._function.let_go()


def _sendable(chain: Chain, limit: float, *, on_host: bool) -> Chain:
    """As far as what goes along can be sent: the rest is done here."""
    for place, name in list(enumerate(chain.names))[chain.own + 1 :]:
        try:
            ipc.dumps(chain.functions[place], limit=limit, on_host=on_host)
        except Exception as error:
            why = "too much memory" if isinstance(error, ipc.TooLarge) else error
            log.warning("stage %r: its function cannot be sent to processes, with what is done before it (%s); it is done here", name, why)
            return chain.until(place)
    return chain


class ProcessHand:
    """Has the work of one worker thread done by a process."""

    def __init__(self, pool: ProcessPool, *, apart: bool = False) -> None:
        self._pool, self._apart = pool, apart
        self._process: WorkerProcess | None = pool.acquire()

    def call(self, item: Item) -> Outcome:
        """Again by another process when one is killed, at most ``attempts`` times. Unreplaced: no other can be had."""
        call, chain = Call.of(item), self._pool.chain
        begins = 0 if call.unread else chain.own
        how, at = "", At(self._pool.stage, item.positions)
        for _ in range(self._pool.attempts):
            process = self._process = self._process or self._replacement()
            try:
                result, steps = process.call(call, begins, apart=self._apart)
            except Died as death:
                how, at = death.how, self.at(item)
                self._pool.discard(process)
                self._process = None
                if self._pool.ending:
                    raise Stopped from None
            except Exception as error:
                raise Misplaced(error, self.at(item)) from None
            else:
                return Outcome.of(result, steps, reads=chain.reads, elsewhere=True)
        times = (
            f"{self._pool.attempts} worker processes that worked on it have died"
            if self._pool.attempts > 1
            else "its worker process has died"
        )
        raise StageError(at.stage, at.positions, f"{times}, the last: {how}")

    def at(self, item: Item) -> At:
        """What its process is at, or was when it ended."""
        process, chain = self._process, self._pool.chain
        if process is None:
            return At(self._pool.stage, item.positions, chain.own)
        place, index, since = process.whereabouts.read()
        return At(chain.names[place], chain.positions(item, place, index), place, since)

    def _replacement(self) -> WorkerProcess:
        try:
            return self._pool.acquire()
        except StokerError as error:
            raise Unreplaced(str(error)) from error

    def let_go(self, *, drained: bool) -> None:
        if self._process is not None:
            self._pool.release(self._process, keep=drained)
