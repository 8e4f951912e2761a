"""Worker processes of a stage: started ahead, replaced if they are killed, always ended.

Each is driven by a worker thread of the stage, so that growing, shrinking, order and back-pressure are those of threads; a thread
starts its process before it takes an item, so a start never stops the flow.

After an answer a process would be idle until this process, whose threads share one interpreter lock with the training, has taken it,
passed it on, and sent the next item. So the next item is sent ahead, while the process is at the one before; the crew decides when.

They are started by `forkserver`, not `fork`: a fork of a process that has threads (this pipeline is made of them, and torch's OpenMP
pool, which hangs in the child at its first parallel operation) copies locks that are never released. And not `spawn`, which imports
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
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from ....engine.errors import StokerError, UsageError
from ..handles import handle
from . import ipc, process_main
from .chains import Chain, ChainCall, Step, Where, Whereabouts
from .channel import Item
from .faults import At, Misplaced, StageError, Stopped, Unreplaced
from .threads import Outcome

log = logging.getLogger("stoker.loaders")

_STARTING = threading.Lock()  #: multiprocessing starts one at a time
_GUARDED = "is the script's work guarded by `if __name__ == '__main__':`?"
_AT_THE_TOP = "define it at the top level of a module, not as a lambda or inside a function"
_OF_A_DAEMON = "this is such a process, as a DataLoader's worker is: use processes=False here, or start it with daemon=False"
_PATIENCE = 1.0  #: seconds for an idle process to leave by itself
_SHORT = 0.1  #: seconds of work on an item up to which the next is sent ahead; behind a longer one it might keep another worker idle
_LIGHT = 64 << 10  #: bytes that a socket takes without a reader


class Died(Exception):
    """A worker process has ended during an item."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Failed(Exception):
    """The function has raised in a worker process."""

    def __init__(self, error: BaseException, where: Where, *, unsent: bool) -> None:
        super().__init__(str(error))
        self.error, self.where, self.unsent = error, where, unsent


def start_server() -> None:
    """Start the fork server, which imports for a second or two; this returns at once. It stays until this process ends."""
    _server()
    with _STARTING, contextlib.suppress(OSError, RuntimeError):
        forkserver.ensure_running()


def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    heavy = [name for name in ("numpy", "torch") if name in sys.modules]
    context.set_forkserver_preload(["__main__", *heavy, process_main.__name__])
    return context


def _own_server() -> None:
    """In a fork: the parent's server is not its child, and a lock may be held by a thread that does not exist here."""
    global _STARTING
    _STARTING = threading.Lock()
    server = forkserver._forkserver
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:  # that server is to end with its own parent
        with contextlib.suppress(OSError):
            os.close(alive)
    server.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_own_server)


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
            why = f"{error or type(error).__name__}"
            remedy = _OF_A_DAEMON if multiprocessing.current_process().daemon else _GUARDED
            raise StokerError(f"stage {stage!r}: cannot start a worker process ({why}); {remedy}") from error
        finally:
            theirs.close()
            self.whereabouts.close_file()
        self._stage = stage
        self._sent = self._answered = 0  #: calls
        self.since = -math.inf  #: time.perf_counter at the turn of the next call to be answered

    @property
    def pending(self) -> int:
        """Calls that were sent and not answered."""
        return self._sent - self._answered

    @property
    def begun(self) -> bool:
        """Whether it has begun the next call to be answered."""
        return self.at(self.whereabouts.read())

    def at(self, where: Where) -> bool:
        """Whether that place is in the next call to be answered."""
        return where.call == self._answered + 1

    def send(self, call: ChainCall) -> bool:
        """Have it make a call of `Chain.run`, after its earlier ones. Died: the process has. TypeError: the call cannot be sent.

        False: it was not sent, as it is too large to be sent ahead: if the process is about to send a large answer, each side would wait
        until the other receives.
        """
        try:
            data, views = ipc.dumps(call)
        except Exception as error:
            raise TypeError(f"an item cannot be sent to a worker process: {error}") from error
        if not self.pending:
            self.since = time.perf_counter()
        elif len(data) + sum(view.nbytes for view in views) > _LIGHT:
            return False
        try:
            ipc.send(self._socket, data, views)
        except ipc.Closed:
            raise Died(self._how()) from None
        self._sent += 1
        return True

    def call(self, call: ChainCall, meanwhile: Callable[[], None], *, apart: bool = False) -> tuple[Any, tuple[Step, ...]]:
        """`Chain.run` in that process. Failed: it raised. Died: the process has. TypeError: it cannot be sent.

        Args:
            call: the oldest pending one, else one to be sent.
            meanwhile: called when the process has it.
            apart: see `ipc.receive`.
        """
        if not self.pending:
            self.send(call)
        meanwhile()
        answer = self._answer(apart=apart)
        self._answered += 1
        self.since = time.perf_counter()
        return answer.result, answer.steps

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
        """Give it the functions, and wait until it has them. StokerError: it does not start."""
        try:
            chain.send(self._socket)
            self._answer()
        except BaseException as error:
            how = self._how() if isinstance(error, ipc.Closed) else error.how if isinstance(error, Died) else ""
            self.end(at_once=True)
            if how:
                raise StokerError(f"stage {self._stage!r}: a worker process ended as it started: {how}; {_GUARDED}") from error
            raise StokerError(f"stage {self._stage!r}: its function cannot be loaded in a worker process: {error}") from error

    def _answer(self, *, apart: bool = False) -> process_main.WorkerAnswer:
        try:
            # A process that the function itself forked may hold the socket open after its parent was killed.
            if not ipc.wait_for(self._socket, self._process.sentinel):
                raise ipc.Closed
            answer: process_main.WorkerAnswer | process_main.Raised = ipc.receive(self._socket, apart=apart)
        except ipc.Closed:
            raise Died(self._how()) from None
        if isinstance(answer, process_main.Raised):
            raise Failed(answer.error, answer.where, unsent=answer.unsent)
        return answer

    def _how(self) -> str:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        if code is None:
            return "it closed its socket"
        if code == -signal.SIGKILL:
            return "killed by signal 9, by hand or because memory ran out"
        return f"killed by signal {-code}" if code < 0 else f"it exited with code {code}"


class ProcessPool:
    """The processes of one stage, kept from pass to pass. Arrays and tensors of their function are in memory once for all.

    Args:
        chain: the work of a process in one call.
        attempts: processes that may die at an item before it fails; until then it is given to a new one.
        limit: bytes of the function's data that are sent to each process, and copied here for that; more are ipc.TooLarge.
        on_host: tensors of a device cannot be sent.
    """

    def __init__(self, chain: Chain, *, attempts: int = 3, limit: float = math.inf, on_host: bool = False) -> None:
        stage = self.stage = chain.names[chain.own]
        what = "its function, or the data that it reads," if chain.reads else "its function"
        self.attempts = attempts
        self.chain, self._limit, self._on_host = chain, limit, on_host
        try:
            self._function = self._sendable()
        except ipc.TooLarge:
            raise
        except ipc.OnDevice as error:
            raise UsageError(f"stage {stage!r}: {what} cannot be sent to worker processes: {error}") from error
        except Exception as error:
            found = handle(chain.functions[0 if chain.reads else chain.own], "data")
            raise UsageError(
                f"stage {stage!r}: {what} cannot be sent to worker processes ({error}); "
                + (f"{found.path} is {found.what}: open it at the first sample in each process" if found else _AT_THE_TOP)
                + ", or use processes=False"
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
        """The functions, without joined ones that cannot be sent: those are called here."""
        try:
            return self._sent()
        except Exception:
            self.chain = _sendable(self.chain, self._limit, on_host=self._on_host)
            return self._sent()

    @property
    def shared_bytes(self) -> int:
        """Bytes of the function's data that all processes share."""
        return self._function.shared_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes of which each has a copy."""
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
        """The caller no longer needs it. ``keep``: as a spare, for the next growth or pass; else one spare at most is kept."""
        with self._lock:
            self._busy.discard(process)
            if self._spares and not self._ending and process.alive() and (keep or not self._idle):
                self._idle.append(process)
                return
            over = not self._spares and not self._busy
        process.end()
        if over:
            self._function.let_go()  # it may have started, and got the function, after `keep_spare` released that

    def keep_spare(self, spares: bool) -> None:
        """Whether surplus processes wait for the next growth or pass; if not, waiting ones are ended."""
        with self._lock:
            self._spares = spares
            idle, self._idle = ([], self._idle) if spares else (self._idle, [])
        for process in idle:
            process.end()
        if not spares:
            self._function.let_go()

    def discard(self, process: WorkerProcess) -> None:
        """Remove a process that has died or is to be killed."""
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
        """A new pass may use it, after `end`. Processes of an earlier one end if the function, or its data, has changed since.

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
        """The functions to send now, if they have changed; else None."""
        try:
            now = self._sent()
        except ipc.TooLarge:
            raise
        except Exception:  # for example a file opened meanwhile: the sent functions remain
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
    """The chain up to the first joined stage that cannot be sent; the rest is done here."""
    for place, name in list(enumerate(chain.names))[chain.own + 1 :]:
        try:
            ipc.dumps(chain.functions[place], limit=limit, on_host=on_host)
        except Exception as error:
            why = "too much memory" if isinstance(error, ipc.TooLarge) else error
            log.warning("stage %r: its function cannot be sent to the processes of the stage before (%s); it is called here", name, why)
            return chain.until(place)
    return chain


class ProcessHand:
    """Lets a process do the work of one worker thread."""

    def __init__(self, pool: ProcessPool, *, apart: bool = False) -> None:
        self._pool, self._apart = pool, apart
        self._process: WorkerProcess | None = pool.acquire()
        self._short, self._light = False, True  #: the last item was short; all items to be sent ahead were light

    def call(self, item: Item, following: Callable[[], Item | None]) -> Outcome:
        """The call is made again by another process if one is killed, at most ``attempts`` times. Unreplaced: no other can be started."""
        chain, deaths, spared = self._pool.chain, 0, False
        how, at = "", At(self._pool.stage, item.positions)
        while deaths < self._pool.attempts:
            process = self._process = self._process or self._replacement()
            try:
                result, steps = self._ask(process, item, following)
            except Died as death:
                how, at = death.how, self.at(item)
                # An item that waited for its turn did not kill it. But a second death before it begins may have come from receiving it.
                deaths += process.begun or spared
                spared = True
                self._pool.discard(process)
                self._process = None
                if self._pool.ending:
                    raise Stopped from None
            else:
                self._short = sum(step.spent.cpu + step.spent.wait for step in steps) < _SHORT
                return Outcome.of(result, steps, reads=chain.reads, elsewhere=True)
        times = (
            f"{self._pool.attempts} worker processes that worked on it have died"
            if self._pool.attempts > 1
            else "its worker process has died"
        )
        raise StageError(at.stage, at.positions, f"{times}, the last: {how}")

    def _ask(self, process: WorkerProcess, item: Item, following: Callable[[], Item | None]) -> tuple[Any, tuple[Step, ...]]:
        """Misplaced: the item cannot be sent, its function raised, or its result cannot be received."""
        try:
            return process.call(ChainCall.of(item), partial(self._send_ahead, process, following), apart=self._apart)
        except (Died, Stopped):
            raise
        except Failed as failed:
            if not isinstance(failed.error, Exception):
                raise failed.error from None
            raise Misplaced(failed.error, self._told(process, item, failed.where), unsent=failed.unsent) from None
        except StokerError as error:
            raise Misplaced(error, self.at(item)) from None
        except Exception as error:
            raise Misplaced(error, self.at(item), unsent=True) from None

    def _send_ahead(self, process: WorkerProcess, following: Callable[[], Item | None]) -> None:
        if self._short and self._light and (item := following()) is not None:
            with contextlib.suppress(TypeError):  # it is raised when it is this item's turn
                self._light = process.send(ChainCall.of(item))

    def at(self, item: Item) -> At:
        """The place of its process, or its last place before it ended."""
        if (process := self._process) is None:
            return At(self._pool.stage, item.positions, self._pool.chain.own)
        return self._told(process, item, process.whereabouts.read())

    def _told(self, process: WorkerProcess, item: Item, where: Where) -> At:
        chain = self._pool.chain
        if process.at(where):
            return At(chain.names[where.place], chain.positions(item, where.place, where.item), where.place, where.since)
        begins = chain.begins(ChainCall.of(item))  # it is not at this one yet, or no longer
        return At(chain.names[begins], item.positions, begins, process.since)

    def _replacement(self) -> WorkerProcess:
        try:
            return self._pool.acquire()
        except StokerError as error:
            raise Unreplaced(str(error)) from error

    def let_go(self, *, drained: bool) -> None:
        if self._process is None:
            return
        if self._process.pending:  # the pass was stopped, so its answer is not awaited
            self._pool.discard(self._process)
        else:
            self._pool.release(self._process, keep=drained)
