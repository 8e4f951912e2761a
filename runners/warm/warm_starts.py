"""Fork servers of an agent: jobs of recipes and entrypoints start in milliseconds once a server has loaded their imports.

A server is loaded once the first job that it fits has trained a step, or has ended; it leaves with the agent. Nothing here
ever blocks the agent: a request is put into a socket as a whole or given up, and a start that is not taken up in time becomes a cold one.
So does every start for which there is no ready server; `why_cold` says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...engine import identity
from ...engine.identity import steady_time
from ...engine.protocol import Assignment, ForkServer
from .. import recipes
from ..lease import processes
from ..lease.rundir import ENV_TAG, RunDir
from ..lease.supervisor import Launch
from . import loaded_state
from .fork_server import LENGTH_PREFIX, TAG_PLACE

log = logging.getLogger("stoker.runner")

SERVERS_KEPT = 2  #: besides those of a pool's backbones
IDLE_SECONDS = 600.0  #: seconds without a start after which a server ends
REQUEST_PATIENCE = 2.0  #: seconds after which a request that was not taken up is given up
SERVER_LOADING = "its server is loading"
_KILLED = "its server was killed"
_REQUEST = 1 << 20  #: bytes of a socket's buffer, which a request must fit into
#: variables that C libraries of Python, NumPy and torch read when they are loaded; a server itself tells those that Python code reads
_AT_IMPORT = (
    "ACC_", "ATEN_", "CUDA_", "CUDNN_", "DNNL_", "GFORTRAN_", "GLIBC_", "GOMP_", "GOTO_", "HOME", "INTEL_", "I_MPI_", "KINETO_", "KMP_",
    "LANG", "LC_", "LD_", "MALLOC_", "MKL", "NPY_", "NUMEXPR_", "NUMPY_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON",
    "PYTORCH_", "SQLITE_", "THP_", "TORCH", "VIRTUAL_ENV",
)  # fmt: skip
_SET_PER_JOB = ("CUDA_VISIBLE_DEVICES", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")  #: read later, in the job
_OURS = ("STOKER_CACHE",)  #: our own variables that do not belong to a lease
_FRESH = 0.1  #: seconds for which a comparison of a server's state with the present one holds
_PACKAGE = Path(__file__).parents[1]


class Forked:
    """A start that a fork server was asked for, with the methods of `subprocess.Popen` that `runs` uses."""

    def __init__(self, channel: socket.socket):
        self._channel: socket.socket | None = channel
        self.late_at = time.monotonic() + REQUEST_PATIENCE

    def send(self, run: RunDir, launch: Launch) -> bool:
        """Tell the fork what to supervise; False: that does not fit into the socket."""
        assert self._channel is not None
        content = json.dumps([str(run.path), launch]).encode()
        message = LENGTH_PREFIX.pack(len(content)) + content
        try:
            return self._channel.send(message) == len(message)
        except OSError:
            return False

    def poll(self) -> int | None:
        """None while its supervisor lives or may still start, else 1: it is gone. The outcome is in exit.json."""
        if self._channel is None:
            return 1
        if select.select([self._channel], [], [], 0)[0]:  # the socket only ever shows its end
            self.wait()
            return 1
        return None

    def late(self) -> bool:
        return time.monotonic() > self.late_at

    def wait(self) -> int:
        """Release it: it is not our child."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        return 1


class ServerKind(NamedTuple):
    """The imports of a fork server besides torch, which decide the jobs that it fits."""

    recipe: str | None  #: None: it is for entrypoints
    backbone: str | None = None  #: a pre-trained model, for jobs of any recipe

    @property
    def words(self) -> str:
        return self.backbone or (f"recipe {self.recipe}" if self.recipe else "what entrypoints need")


class WarmServer:
    """One fork server. ``code``: the state of the runners' files that it has loaded."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, code: str):
        self.process, self._control, self.code = process, control, code
        control.setblocking(False)
        self.since = steady_time()
        self.use()
        self.memory: int | None = None  #: bytes, once it was ready
        self.why = SERVER_LOADING  #: why it is not ready; empty: it is
        self._said = b""
        self._told: dict[str, Any] = {}  #: the state that it was loaded from
        self._looked = (-math.inf, "")  #: time and result of the last comparison with the present state
        self.admitted = False  #: the limit of memory was checked for it

    @classmethod
    def start(cls, kind: ServerKind, env: Mapping[str, str], code: str) -> WarmServer:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-P", "-m", "stoker.runners.warm.fork_server", *filter(None, kind)]
        try:
            with theirs:
                process = subprocess.Popen(
                    argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(env), start_new_session=True
                )
        except OSError:
            ours.close()
            raise
        return cls(process, ours, code)

    def use(self) -> None:
        """It is used now: its time without use begins anew."""
        self.used_at, self.until = time.monotonic(), steady_time() + IDLE_SECONDS

    @property
    def ready(self) -> bool:
        if not self.why and self.process.poll() is not None:
            self.why = _KILLED
        if self.why == SERVER_LOADING:
            self._hear()
        return not self.why

    def _hear(self) -> None:
        """Read the one line of a loading server: that it is ready, or why it cannot serve."""
        heard = b" "
        while heard and not self._said.endswith(b"\n"):
            try:
                heard = self._control.recv(_REQUEST)
            except BlockingIOError:
                return
            except OSError:
                heard = b""
            self._said += heard
        words, _, told = self._said.decode(errors="replace").partition(" ")
        if heard and words == "ready":
            self.why, self.since, self._told, self._said = "", steady_time(), json.loads(told), b""
            found = identity.stat(self.process.pid)
            self.memory = processes.memory(found) if found else None
            return
        silent = "its server ended while it loaded, as where memory runs out"
        self.why = " ".join(self._said.decode(errors="replace").split()) if heard else silent

    def outdated(self) -> str:
        """Why it differs from a fresh process for any job; empty: it does not. Takes 7 ms."""
        if (now := time.monotonic()) - self._looked[0] > _FRESH:
            self._looked = (now, self._compared())
        return self._looked[1]

    def _compared(self) -> str:
        if self.code != code_stamp():
            return "the code has changed since its server was loaded"
        if path := loaded_state.changed(self._told["stamps"]):
            return f"{path} has changed since its server was loaded"
        try:
            its, ours = loaded_state.inherited(self.process.pid), loaded_state.inherited(os.getpid())
        except OSError:
            return _KILLED
        differ = sorted(name for name in its.keys() | ours.keys() if its.get(name) != ours.get(name))
        return f"the runner has another {differ[0]} than its server" if differ else ""

    def unlike(self, env: Mapping[str, str]) -> str | None:
        """Why it differs from a fresh process with this environment; None: it does not."""
        read, packages = frozenset(self._told["read"]), frozenset(self._told["packages"])
        return _differs(self._told["environment"], env, lambda name: name in read or name.partition("_")[0].lower() in packages)

    @property
    def modules(self) -> Sequence[str]:
        """Names of its loaded modules."""
        found: Sequence[str] = self._told["modules"]
        return found

    @property
    def heard(self) -> bool:
        """Whether it has answered that it can serve or cannot, or is gone."""
        return self.why != SERVER_LOADING

    def fileno(self) -> int:
        """A descriptor that is readable when it answers."""
        return self._control.fileno()

    @property
    def gone(self) -> bool:
        """Whether it has ended or is about to."""
        return self.why not in ("", SERVER_LOADING) or self.process.poll() is not None

    def ask(self) -> Forked | None:
        """Ask for a fork, which waits to be told what to supervise, and ends if it is released instead; None: no request fits now."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        self.use()
        return Forked(ours)

    def end(self) -> None:
        """Kill it; its forks go on."""
        self._control.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class WarmStarts:
    """The fork servers of an agent, by kind. ``environment``: the part of the agent's that jobs get."""

    def __init__(self, enabled: bool, environment: Mapping[str, str] | None = None):
        self.enabled = enabled
        self.limit: float = math.inf  #: bytes that all servers together may take
        self._draining = False
        self._kept: set[ServerKind] = set()  #: kinds whose servers stay even without use
        self._fits: dict[int, ServerKind] = {}  #: kind of the server that fits each lease
        self._environment = dict(os.environ if environment is None else environment)
        self._servers: dict[ServerKind, WarmServer] = {}
        self._broken: dict[ServerKind, tuple[float, str]] = {}  #: kinds that cannot be loaded: since when, and why
        self._stamp = (-math.inf, "")  #: time and result of the last `code_stamp`

    def start(self, run: RunDir, assignment: Assignment, launch: Launch) -> tuple[Forked, None] | tuple[None, str]:
        """Start a job by a fork, or return why it must start cold."""
        server = None if self._unsuited(assignment, launch) else self._servers.get(_kind(assignment))
        forked = server.ask() if server is not None and server.ready else None  # it is forked while we look whether it may be used
        why = self.why_cold(assignment, launch)
        if forked is not None and why is None and forked.send(run, launch):
            log.info("lease %d of job %d starts warm", run.lease, run.job, extra={"action": "start"})
            return forked, None
        if forked is not None:
            forked.wait()
        why = why or "its server does not take requests"
        if self.enabled:
            log.info("lease %d of job %d starts cold: %s", run.lease, run.job, why, extra={"action": "start"})
        return None, why

    def why_cold(self, assignment: Assignment, launch: Launch) -> str | None:
        """Why a job cannot start by a fork now; None: it can."""
        if (why := self._unsuited(assignment, launch)) is not None:
            return why
        kind = self._fits[assignment.lease] = _kind(assignment)
        if kind in self._broken:
            return self._broken[kind][1]
        server = self._servers.get(kind)
        if server is None:
            return f"no process had loaded {kind.words} yet"
        if not server.ready:
            return server.why
        if why := server.outdated() or server.unlike(self._servers_environment()):
            server.end()
            del self._servers[kind]
            return why
        hidden = _hidden(Path(launch["cwd"]), server.modules) if assignment.spec.get("entrypoint") else None
        return hidden or server.unlike(launch["env"])

    def _code(self) -> str:
        """`code_stamp`, at most a second old, as it reads the times of all files."""
        if (now := time.monotonic()) - self._stamp[0] > 1.0:
            self._stamp = (now, code_stamp())
        return self._stamp[1]

    def _unsuited(self, assignment: Assignment, launch: Launch) -> str | None:
        if not self.enabled:
            return "warm starts are off on this runner"
        if assignment.spec.get("warm") == "off":
            return "the job says warm: off"
        if assignment.spec.get("command"):
            return "a command is a program of its own"
        if assignment.world_size > 1:
            return "a gang is started by torch's launcher"
        if len(launch["env"][ENV_TAG].encode()) > TAG_PLACE:
            return "the path of its home is too long"
        if why := _differs(self._servers_environment(), launch["env"]):
            return why
        if (path := launch["env"].get("PYTHONPATH")) and not all(part.startswith("/") for part in path.split(":")):
            return "PYTHONPATH has a part that is no whole path: it means another directory in each job"
        return None

    def expect(self, assignment: Assignment, *, ended: bool = False) -> None:
        """A job has trained a step, or ended: have a server for the next of its kind; the least recently used one makes room."""
        kind = self._fits.get(assignment.lease)
        if ended:
            self._fits.pop(assignment.lease, None)
        if kind is None or self._draining:
            return
        server = self._servers.get(kind)
        if server is None or server.gone:
            self._load(kind)
        elif ended and server.heard:  # a server that hangs while loading is not kept alive by cold starts
            server.use()

    def keep(self, backbones: Iterable[str]) -> None:
        """Keep a server of each of these backbones; servers of backbones that are no longer listed end."""
        wanted = set()
        for name in backbones if self.enabled else ():
            recipe = recipes.starting_from(name)
            kind = ServerKind(recipe, name)
            if recipe is None and kind not in self._broken:
                self._give_up(kind, f"no recipe starts from {name}")
            wanted.add(kind)
        for kind in self._kept - wanted:
            if kind in self._servers:
                self._drop(kind)
            elif kind.recipe is None:
                self._broken.pop(kind, None)
        self._kept = wanted
        self.tend()

    def _load(self, kind: ServerKind) -> None:
        if kind in self._servers:
            self._drop(kind)
        if kind in self._broken:
            return
        env = self._servers_environment() | {ENV_TAG: "-" * TAG_PLACE}
        try:
            self._servers[kind] = WarmServer.start(kind, env, self._code())
        except OSError as error:
            self._give_up(kind, f"no server can be started: {error}")
        for oldest in self._spare()[:-SERVERS_KEPT]:
            self._drop(oldest)

    def _servers_environment(self) -> dict[str, str]:
        env = {name: value for name, value in self._environment.items() if not name.startswith("STOKER_") or name in _OURS}
        return env | _THREADS | {"PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1")}

    def _spare(self) -> list[ServerKind]:
        """Kinds of servers that are not kept, the least recently used one first."""
        return sorted(self._servers.keys() - self._kept, key=lambda kind: self._servers[kind].used_at)

    def drain(self, now: bool) -> None:
        """Whether no new jobs come: then servers are useless and end."""
        self._draining = now
        if now:
            self.close()

    def tend(self) -> None:
        """End servers without use, note those that cannot load, and load those that are to be kept."""
        for kind, server in list(self._servers.items()):
            if server.gone or (kind not in self._kept and time.monotonic() - server.used_at > IDLE_SECONDS):
                self._drop(kind)
        for kind in sorted(self._kept - self._servers.keys() - self._broken.keys()) if not self._draining else ():
            self._load(kind)

    def told(self) -> list[ForkServer]:
        """The state of all servers; a server that has just become ready must fit into the memory."""
        for kind, server in list(self._servers.items()):
            if server.ready and not server.admitted:
                server.admitted = True
                self._make_room(kind)
        found = [ForkServer(recipe=kind.recipe or "", backbone=kind.backbone or "", state="failed", since=since, note=why)
                 for kind, (since, why) in self._broken.items()]  # fmt: skip
        for kind, server in self._servers.items():
            if server.gone:
                continue  # `tend` looks after it
            found.append(
                ForkServer(
                    recipe=kind.recipe or "",
                    backbone=kind.backbone or "",
                    state="ready" if server.ready else "loading",
                    since=server.since,
                    pid=server.process.pid,
                    until=None if kind in self._kept else server.until,
                    memory=server.memory,
                )
            )
        return sorted(found, key=lambda one: (one.recipe, one.backbone))

    def loading(self) -> list[int]:
        """Descriptors that become readable when a loading server answers."""
        return [server.fileno() for server in self._servers.values() if not server.heard]

    def _make_room(self, newest: ServerKind) -> None:
        """End older servers until all fit into the memory, and finally the newest itself."""
        older = [kind for kind in self._spare() if kind != newest and self._servers[kind].admitted]
        for kind in [*older, newest]:
            taken = sum(server.memory or 0 for server in self._servers.values() if server.admitted)
            if taken <= self.limit:
                return
            if kind == newest:
                need, limit = self._servers[kind].memory or 0, self.limit
                self._give_up(kind, f"its server takes {need >> 20} MiB, and all may take {int(limit) >> 20} (warm.memory in config.toml)")
            self._drop(kind)

    def _give_up(self, kind: ServerKind, why: str) -> None:
        self._broken[kind] = (steady_time(), why)
        log.warning("no warm starts of %s: %s", kind.words, why, extra={"action": "warm"})

    def _drop(self, kind: ServerKind) -> None:
        server = self._servers.pop(kind)
        if server.gone and not server.ready and server.why != _KILLED:
            self._give_up(kind, server.why)
        server.end()

    def failed(self, assignment: Assignment) -> None:
        """End a server that did not take up a request: it hangs. The next end of a job loads another."""
        if (server := self._servers.pop(_kind(assignment), None)) is not None:
            server.end()

    def close(self) -> None:
        for server in self._servers.values():
            server.end()
        self._servers.clear()


#: With more, a process that has loaded weights has threads.
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _kind(assignment: Assignment) -> ServerKind:
    """An internal recipe imports nothing of its own."""
    name = str(assignment.spec.get("recipe"))
    recipe = recipes.RECIPES.get(name)
    if recipe is None:
        return ServerKind(None, None)
    backbone = recipe.backbone(assignment.spec)
    return ServerKind(name if backbone is None else recipes.ANY, backbone)


def _hidden(directory: Path, modules: Iterable[str]) -> str | None:
    """Why a job of this directory starts cold: a fresh process may find a module there where a forked one has another of that name."""
    try:
        files = set(os.listdir(directory))  # noqa: PTH208 - a Path for each name is slow
    except OSError:
        return None
    for name in sorted(modules):
        if f"{name}.py" in files or (name in files and (directory / name / "__init__.py").exists()):
            return f"its directory has a module {name!r}, and a forked process has another one of that name"
    return None


def _differs(its: Mapping[str, str], env: Mapping[str, str], read: Callable[[str], bool] = lambda name: False) -> str | None:
    """Why a job of this environment starts cold: a fork has what its server has read in another one."""
    names = sorted(
        name for name in its.keys() | env.keys() if its.get(name) != env.get(name) and (name.startswith(_AT_IMPORT) or read(name))
    )
    names = [name for name in names if name not in _SET_PER_JOB and (not name.startswith("STOKER_") or name in _OURS)]
    return f"its environment differs in {', '.join(names)}, which is read at import" if names else None


def code_stamp() -> str:
    """Changes when a file of the runners does, as at an upgrade."""
    stamps = []
    for path in _PACKAGE.rglob("*.py"):
        with contextlib.suppress(FileNotFoundError):  # an editor's, for a moment
            stamps.append((str(path), path.stat().st_mtime_ns))
    return hashlib.sha256(repr(sorted(stamps)).encode()).hexdigest()
