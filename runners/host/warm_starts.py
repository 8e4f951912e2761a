"""Fork servers of an agent: jobs of recipes and entrypoints start in milliseconds once a server has loaded what they import.

A server is loaded when the first job that it fits has ended; it leaves with the agent. Nothing here ever blocks the agent: a request is
put into a socket as a whole or given up, and a start that is not taken up in time becomes a cold one. So does every start for which
there is no ready server; `why_cold` says why.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ...engine.protocol import Assignment
from ..recipes import RECIPES
from ..worker.fork_server import LENGTH, TAG_PLACE
from .rundir import ENV_TAG, RunDir
from .supervisor import Launch

log = logging.getLogger("stoker.runner")

KEPT = 2  #: servers
IDLE = 600.0  #: seconds without a start after which a server ends
LATE = 2.0  #: seconds after which a request that nobody has taken up is given up
_REQUEST = 1 << 20  #: bytes of the buffer that takes a request
#: variables that are read when Python, torch and their libraries are loaded
_AT_IMPORT = ("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "NUMEXPR_", "PYTHON", "LD_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "MALLOC_",
              "GLIBC_", "LC_", "LANG", "HOME", "VIRTUAL_ENV")  # fmt: skip
_SET_PER_JOB = ("CUDA_VISIBLE_DEVICES", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")  #: read later than that
_PACKAGE = Path(__file__).parents[1]


class Forked:
    """A start that a fork server was asked for: of `subprocess.Popen` what `runs` uses."""

    def __init__(self, channel: socket.socket):
        self._channel: socket.socket | None = channel
        self.late_at = time.monotonic() + LATE

    def poll(self) -> int | None:
        """None while its supervisor lives or may still come; else that it has gone. It shows nothing else: who asks looks for exit.json."""
        if self._channel is None:
            return 1
        if select.select([self._channel], [], [], 0)[0]:  # nothing is ever said there but its end
            self.wait()
            return 1
        return None

    def late(self) -> bool:
        return time.monotonic() > self.late_at

    def wait(self) -> int:
        """Let go of it: it is no child of ours."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        return 1


class Server:
    """One fork server, started by this agent."""

    def __init__(self, recipe: str | None, env: Mapping[str, str]):
        self.recipe, self.used_at = recipe, time.monotonic()
        self.code = code_stamp()
        self.why = "its server is loading"  #: not ready because
        self._said = b""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._control = ours
        with theirs:
            argv = [sys.executable, "-P", "-m", "stoker.runners.worker.fork_server", *([recipe] if recipe else [])]
            self.process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(env), start_new_session=True
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def ready(self) -> bool:
        if self.process.poll() is not None and self._said == b"ready\n":
            self.why = "its server was killed"
            return False
        if self.why and self.process.stdout is not None:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self.process.stdout.fileno(), 4096)
            if self._said == b"ready\n":
                self.why = ""
            elif self.process.poll() is not None:
                self.why = self._said.decode(errors="replace").strip() or "its server ended while it loaded"
        return not self.why

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None

    def ask(self, run: RunDir, launch: Launch) -> Forked | None:
        """Ask for a supervisor; None when that would have to be waited for."""
        content = json.dumps([str(run.path), launch]).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
                message = LENGTH.pack(len(content)) + content
                if ours.send(message) < len(message):
                    raise BlockingIOError
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        self.used_at = time.monotonic()
        return Forked(ours)

    def end(self) -> None:
        """Kill it: what it has forked goes on."""
        self._control.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class WarmStarts:
    """The fork servers of an agent, by recipe (None: for entrypoints)."""

    def __init__(self, enabled: bool, environment: Mapping[str, str] | None = None):
        self.enabled = enabled
        self._environment = dict(os.environ if environment is None else environment)
        self._servers: dict[str | None, Server] = {}
        self._broken: dict[str | None, str] = {}  #: why there is no server for them any more

    def start(self, run: RunDir, assignment: Assignment, launch: Launch) -> Forked | None:
        """Start a job by a fork, or None: start it cold."""
        why = self.why_cold(assignment, launch)
        asked = None if why else self._servers[_recipe(assignment)].ask(run, launch)
        if self.enabled:
            words = "warm" if asked else f"cold: {why or 'its server does not take requests'}"
            log.info("lease %d of job %d starts %s", run.lease, run.job, words, extra={"action": "start"})
        return asked

    def why_cold(self, assignment: Assignment, launch: Launch) -> str | None:
        """Why a job does not start by a fork now; None: it does."""
        if (why := self._unsuited(assignment, launch)) is not None:
            return why
        recipe = _recipe(assignment)
        if recipe in self._broken:
            return self._broken[recipe]
        server = self._servers.get(recipe)
        if server is None:
            return "it is the first; a server is loaded when it has ended"
        if server.code != code_stamp():
            server.end()
            del self._servers[recipe]
            return "the code has changed since its server was loaded"
        return None if server.ready else server.why

    def _unsuited(self, assignment: Assignment, launch: Launch) -> str | None:
        if not self.enabled:
            return "warm starts are off on this runner"
        if assignment.spec.get("command"):
            return "a command is a program of its own"
        if assignment.world_size > 1:
            return "a gang is started by torch's launcher"
        if len(launch["env"][ENV_TAG].encode()) > TAG_PLACE:
            return "the path of its home is too long"
        ours = _read_at_import({**self._environment, **_THREADS, "PYTHONUNBUFFERED": self._environment.get("PYTHONUNBUFFERED", "1")})
        theirs = _read_at_import(launch["env"])
        differ = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        return f"its environment differs in {', '.join(differ)}, which is read at import" if differ else None

    def ended(self, assignment: Assignment) -> None:
        """A job has ended: load a server for the next of its kind, in the place of the one that was used least recently."""
        recipe = _recipe(assignment)
        if not self.enabled or assignment.spec.get("command") or assignment.world_size > 1 or recipe in self._broken:
            return
        server = self._servers.get(recipe)
        if server is not None and not server.gone:
            server.used_at = time.monotonic()
            return
        if server is not None:
            self._drop(recipe)
            if recipe in self._broken:
                return
        env = {name: value for name, value in self._environment.items() if not name.startswith("STOKER_")}
        env |= _THREADS | {"PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"), "TOKENIZERS_PARALLELISM": "false"}
        env[ENV_TAG] = "-" * TAG_PLACE
        try:
            self._servers[recipe] = Server(recipe, env)
        except OSError as error:
            self._broken[recipe] = f"no server can be started: {error}"
        for oldest in sorted(self._servers, key=lambda name: self._servers[name].used_at)[:-KEPT]:
            self._drop(oldest)

    def tend(self) -> None:
        """End servers that have not been used for long, and note which cannot load."""
        for recipe, server in list(self._servers.items()):
            if server.gone or time.monotonic() - server.used_at > IDLE:
                self._drop(recipe)

    def _drop(self, recipe: str | None) -> None:
        server = self._servers.pop(recipe)
        if server.gone and not server.ready and server.why != "its server was killed":
            self._broken[recipe] = server.why
            log.warning("no warm starts of %s: %s", recipe or "entrypoints", server.why, extra={"action": "warm"})
        server.end()

    def failed(self, assignment: Assignment) -> None:
        """A request was not taken up: its server hangs, so it is ended; the next job's end loads another."""
        if (server := self._servers.pop(_recipe(assignment), None)) is not None:
            server.end()

    def close(self) -> None:
        for server in self._servers.values():
            server.end()
        self._servers.clear()


#: With more, a process that has loaded weights has threads.
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _recipe(assignment: Assignment) -> str | None:
    recipe = assignment.spec.get("recipe")
    return str(recipe) if recipe in RECIPES else None  # an internal one imports nothing of its own


def _read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_AT_IMPORT) and name not in _SET_PER_JOB}


def code_stamp() -> int:
    """Changes when a file of the runners does, as at an upgrade."""
    stamps = []
    for path in _PACKAGE.rglob("*.py"):
        with contextlib.suppress(FileNotFoundError):  # an editor's, for a moment
            stamps.append((str(path), path.stat().st_mtime_ns))
    return hash(tuple(sorted(stamps)))
