"""Daemons, agents and commands forked from a process that has imported what they import, which saves most of their start: 0.4 s of a core.

That process is started with the first of them, one in a process of pytest; it has no thread, no connection and no home. What is forked is a
process as any other, in a session of its own: only its command line, as the kernel tells it, is that of the process it was forked from.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: modules with a ``main``, as `python -m` runs them
MODULES = ("stoker.engine.daemon", "stoker.runners.host.agent", "stoker.engine.cli.main")
#: what nearly each of them imports once it runs
LATER = (
    "apscheduler.schedulers.background", "apscheduler.triggers.cron", "duckdb", "numpy.ma", "stoker.engine.adhoc.server",
    "stoker.policies.priority", "uvicorn.lifespan.off", "uvicorn.protocols.http.auto",
)  # fmt: skip
LARGEST = 1 << 16  #: bytes of a request
#: in what a daemon's program is changed to: its SQL process is a fresh one, as where no test runs
FRESH_SQL = "# its SQL process is a fresh one\n"


class Forked:
    """What tests use of subprocess.Popen."""

    def __init__(self, nursery: _Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._ended)


def start(command: Sequence[str], log: Path, env: Mapping[str, str], errors: Path | None = None, cwd: Path | None = None) -> Forked:
    """`python -m MODULE ARGUMENTS`, one of `MODULES`, or `python -c CODE ARGUMENTS`, with its output appended to ``log``."""
    nursery = _nursery()
    logs = [str(log), str(errors or log)]
    return Forked(nursery, nursery.ask(start=list(command[1:]), logs=logs, env=dict(env), cwd=str(cwd or Path.cwd())))


@functools.cache
def _nursery() -> _Nursery:
    return _Nursery()


class _Nursery:
    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        self._turn = threading.Lock()
        command = [sys.executable, __file__, str(theirs.fileno())]
        with theirs:  # stdout and stderr are given to each child anew
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()

    def ask(self, **request: Any) -> Any:
        with self._turn:
            self._channel.send(json.dumps(request).encode())
            said = self._channel.recv(LARGEST)
        assert said, f"what daemons are forked from has ended with {self._process.wait()}"
        return json.loads(said)


# The process that they are forked from


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answers requests until pytest ends; in a child, with the request that it is of."""
    while said := channel.recv(LARGEST):
        request = json.loads(said)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            ready, begun = os.pipe()
            if not (answer := os.fork()):
                channel.close()
                os.close(ready)
                os.setsid()
                os.close(begun)
                return request
            os.close(begun)
            os.read(ready, 1)  # until it leads its session, which tests kill
            os.close(ready)
        channel.send(json.dumps(answer).encode())
    return None


class _Sql:
    """The first SQL process of a daemon: forked before the daemon has threads, it waits for the sockets of its command line."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.returncode: int | None = None
        self.pid = os.fork()
        theirs.close() if self.pid else self._serve(theirs)

    def _serve(self, channel: socket.socket) -> NoReturn:
        from stoker.engine.adhoc import server

        self._channel.close()
        _, numbers, _, _ = socket.recv_fds(channel, 1, 2)
        channel.close()
        sys.argv[1:] = map(str, numbers)
        _leave(server.main if numbers else lambda: 0)  # none: the daemon has ended, and nobody had asked

    def begin(self, numbers: Sequence[int]) -> _Sql:
        with self._channel:
            socket.send_fds(self._channel, [b"\0"], numbers)
        return self

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _prepare_sql() -> None:
    """Of the daemon that this process becomes. What takes the place of its first SQL process is a fresh one."""
    from stoker.engine.adhoc import desk

    prepared = [_Sql()]

    class Processes:
        DEVNULL = subprocess.DEVNULL

        @staticmethod
        def Popen(command: list[str], **options: Any) -> Any:
            return prepared.pop().begin(options["pass_fds"]) if prepared else subprocess.Popen(command, **options)

    desk.subprocess = Processes  # type: ignore[assignment]


def _become(request: dict[str, Any]) -> object:
    for stream, path in enumerate(request["logs"], 1):
        log = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, stream)
        os.close(log)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    option, what, *arguments = request["start"]
    by_day = os.environ.get("HYPOTHESIS_PROFILE") != "nightly"
    if by_day and ("stoker.engine.daemon" in what or "engine import daemon" in what) and FRESH_SQL not in what:
        _prepare_sql()
    sys.argv[:] = [what, *arguments]
    sys.path[:1] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if option == "-m":
        return importlib.import_module(what).main()
    exec(what, {"__name__": "__main__"})
    return 0


def _leave(work: Callable[[], object]) -> NoReturn:
    """Python would free all that was imported, which takes longer than to end a daemon. It waits for threads all the same."""
    try:
        code = work()
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
        code = 1
    assert code is None or isinstance(code, int), code
    threading._shutdown()  # type: ignore[attr-defined]
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    for name in (*MODULES, *LATER):
        importlib.import_module(name)
    importlib.import_module("stoker.engine.adhoc.allowed").guard("SELECT 1", ())  # its one-time work takes 0.13 s of each SQL process
    gc.freeze()  # no child looks for garbage in what stays, and copies its pages for that
    mine = _serve(socket.socket(fileno=int(sys.argv[1])))
    _leave(lambda: 0 if mine is None else _become(mine))
