"""A process that has imported torch and a recipe, and forks the supervisors of jobs.

    python -P -m stoker.runners.warm.fork_server [RECIPE [BACKBONE]]

Its standard input is a socket to the agent. Each message there carries the socket of one request, which the child reads: so the
server holds no secrets, and no slow client blocks it. The server leaves when its agent is gone; its forks go on.

It has computed nothing, has not touched CUDA, and has one thread, or it leaves before it serves: a fork does not copy other threads, and
their locks would stay taken in the child for ever. It tells its agent one line: "ready" and the state that it has loaded
(loaded_state.py), or why it cannot serve.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import multiprocessing
import os
import platform
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import packages
from ..lease import supervisor
from ..lease.rundir import ENV_LEASE, ENV_NAME, ENV_TAG
from ..lease.supervisor import Launch, Supervisor, default_signals
from . import held, loaded_state

LENGTH_PREFIX = struct.Struct("!I")  #: length of the request that follows
TAG_PLACE = 600  #: bytes of environment reserved for a child's tag
READY_NAME = "stoker-warm"  #: name of a ready server, as `ps` and `top` show it
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NICE = 10
_REQUEST_TIMEOUT = 5.0  #: seconds for a request to arrive
_reading = loaded_state.Reading()


def main() -> int:
    control = socket.socket(fileno=0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not read its socket while it loads, which may hang
    try:
        directories = loaded_state.directories()
        with _reading:
            niced(load, sys.argv[1:])
        read = loaded_state.files(loaded_state.began(), packages.given_out)
        told = json.dumps({
            "modules": sorted(loaded()), "packages": loaded_state.packages(), "environment": _reading.before, "read": _reading.read,
            "stamps": read | directories,
        })  # fmt: skip
        if trouble := unfit():
            raise RuntimeError(trouble)
    except Exception as error:
        _say(control, f"{type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every object, and so copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    _say(control, f"ready {told}")
    show_name(READY_NAME)  # not before: that line is longer than a socket's buffer, so the agent has read nearly all of it by now
    serve(control)
    return 0


def loaded() -> set[str]:
    """Names of modules that are loaded here, and so hide modules of the same name in a job's directory."""
    return {name.partition(".")[0] for name in sys.modules if not name.startswith("_")}


def _say(control: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the agent has gone
        control.sendall(line.encode() + b"\n")


def niced(function: Callable[[Sequence[str]], None], argument: Sequence[str]) -> None:
    """Call it in a niced thread, which ends with it, so that later forks have the normal priority.

    A process would need rights to raise its own priority again.
    """
    failure: list[BaseException] = []

    def call() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            function(argument)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():  # for the kernel it ends a moment later than for Python
        time.sleep(0.001)
    if failure:
        raise failure[0]


def load(what: Sequence[str]) -> None:
    """Import all modules that a worker imports until its first step. ``what``: a recipe or none, and its backbone or none."""
    gc.disable()
    import numpy.random  # noqa: F401 - else its first use, the seeding, loads it: 20 ms in each job
    import torch
    import torch.utils.data

    from ..worker import late_dynamo, ranks, worker  # noqa: F401

    if what:
        late_dynamo.put_off()
    else:
        import torch._dynamo
    from ..train import profiling_run, rng, trainer  # noqa: F401

    with torch.autograd.profiler.record_function(""):
        pass  # its first use, in the first step of an optimizer, imports more

    for name in what[:1]:
        from ..recipes import ANY, RECIPES, find

        if name == ANY:
            from ..backbones import hub_model

            for each in RECIPES.values():
                if each.takes_directories:
                    each.load()
            held.hold(what[1], hub_model.hold_for_forks)
            return
        recipe = find(name)
        for module in recipe.needs:
            importlib.import_module(module)
        recipe.load()


def unfit() -> str | None:
    """Why this process must not fork workers; None: it may."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA was initialised at import, which no fork survives"
    if _in_a_fork(torch.cuda._is_in_bad_fork):
        return "GPUs were asked for at import (as torch.cuda.is_available() does), so that none can be used after a fork"
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        return f"{threads - 1} threads were started at import, which a fork would lose"
    return None


def _in_a_fork(question: Callable[[], bool]) -> bool:
    """The answer of a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(question())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def serve(control: socket.socket) -> None:
    """Fork a supervisor for each request, until the agent's end is closed."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            return
        if not data:
            return
        for descriptor in descriptors:
            try:
                child = os.fork()
            except OSError:  # no memory, or too many processes: the agent sees its socket closed and starts the job cold
                child = -1
            if child == 0:
                _begin(control, descriptor)
            os.close(descriptor)


def _begin(control: socket.socket, descriptor: int) -> NoReturn:
    """In the child: become the supervisor of a lease. Never returns."""
    code = 1
    try:
        control.detach()
        code = _supervise(socket.socket(fileno=descriptor))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _supervise(request: socket.socket) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    request.settimeout(_REQUEST_TIMEOUT)
    run, launch = _read(request)
    os.chdir(run)
    write_tag(launch["env"][ENV_TAG])
    show_name("stoker-lease", f"stoker: supervisor of lease {launch['env'][ENV_LEASE]}, job {launch['env'][ENV_NAME]}")
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(run / "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    code = supervisor.supervise(ForkingSupervisor(run, launch))
    request.close()  # not before: by its end the agent sees that the supervisor is gone
    return code


def _read(request: socket.socket) -> tuple[Path, Launch]:
    """Run directory and launch, as `warm.warm_starts` sends them. EOFError: the agent died while it sent."""
    (length,) = LENGTH_PREFIX.unpack(_exactly(request, LENGTH_PREFIX.size))
    run, launch = json.loads(_exactly(request, length))
    return Path(run), launch


def _exactly(request: socket.socket, length: int) -> bytes:
    parts = bytearray()
    end = time.monotonic() + _REQUEST_TIMEOUT
    while len(parts) < length:
        part = request.recv(length - len(parts))
        if not part or time.monotonic() > end:
            raise EOFError("a request was cut short")
        parts += part
    return bytes(parts)


def write_tag(tag: str) -> None:
    """Show ``tag`` in /proc/PID/environ of this process and its children, which shows the memory that an exec has filled.

    The agent has reserved a place there. ValueError: there is none, or the tag is too long.
    """
    start, environment = _shown(50, 51)
    name = f"{ENV_TAG}=".encode()
    entry = next((part for part in environment.split(b"\0") if part.startswith(name)), b"")
    written = name + tag.encode()
    if not entry or len(written) > len(entry):
        raise ValueError(f"no place for a tag of {len(written)} bytes in the environment of the fork server")
    at = 0 if environment.startswith(entry) else environment.index(b"\0" + entry) + 1
    ctypes.memmove(start + at, written.ljust(len(entry), b"\0"), len(entry))


def _shown(first: int, last: int) -> tuple[int, bytes]:
    """Address and contents of a memory range that the kernel shows of this process, by two fields of proc_pid_stat(5)."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    start, end = int(fields[first - 3]), int(fields[last - 3])
    return start, ctypes.string_at(start, end - start)


def show_name(name: str, command: str = "") -> None:
    """Set the process's name (its first 15 bytes), and its command line as far as there is room."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    if command:
        start, shown = _shown(48, 49)  # arg_start and arg_end; the last byte stays 0, else the kernel shows the environment too
        ctypes.memmove(start, command.encode()[: len(shown) - 1].ljust(len(shown), b"\0"), len(shown))


class Worker:
    """A forked worker, as the supervisor's main process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Any = None


class ForkingSupervisor(Supervisor):
    """A supervisor whose worker is a fork of it."""

    warm = True

    def _spawn(self, output: int) -> Worker:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the child has set its own handlers
        try:
            pid = os.fork()
            if pid == 0:
                self._work(output)
            return Worker(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _work(self, output: int) -> NoReturn:
        """In the child: become `python -m stoker.runners.worker.worker` with this environment. Never returns."""
        try:
            self._be_worker(output)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _be_worker(self, output: int) -> NoReturn:
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, max(4096, os.sysconf("SC_OPEN_MAX")))
        os.environ.clear()
        os.environ.update(self.launch["env"])
        _reading.repeat()
        time.tzset()
        os.chdir(self.launch["cwd"])
        name = self.launch["env"][ENV_NAME]
        show_name(f"job:{name}", f"stoker: job {name}")  # never the name of a shell, whose children a stop would signal too
        default_signals()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # all three as at the start of Python
        from ..worker import script, worker

        sys.argv[:], sys.orig_argv[:] = [worker.__file__], self.launch["argv"]
        _forget()
        script.begin()
        gc.enable()
        try:
            code = worker.main()
        except SystemExit as error:  # raised by the user's code
            if not (error.code is None or isinstance(error.code, int)):
                sys.stderr.write(f"{error.code}\n")
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        worker.leave(code)


def _forget() -> None:
    """Forget values that Python's own modules cache and a fresh process would look up again."""
    tempfile.tempdir = None
    importlib.invalidate_caches()
    platform._uname_cache = None  # type: ignore[attr-defined]  # the host's name
    logging._startTime = time.time()  # type: ignore[attr-defined]
    multiprocessing.current_process().authkey = os.urandom(32)


if __name__ == "__main__":
    sys.exit(main())
