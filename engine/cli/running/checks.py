"""The checks of `stoker doctor`. Each returns findings: a fact, and the remedy if it is wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .... import __version__
from ... import format as fmt
from ...disk_room import largest, room, told
from ...errors import StokerError, Unreachable
from ..command import App

Status = Literal["ok", "warn", "fail"]

OLDEST_PYTHON = (3, 11)
GIB = 1024**3
LONGEST_SOCKET = 100  #: bytes that the daemon accepts; the system accepts 107
FEW_FILES = 1024
SMALL_SHM = 1 * GIB
#: For a fresh process, as importing a broken torch or driver may crash it.
_TORCH = """
import gc, json, os
gc.disable()
import torch
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({"version": torch.__version__, "built": torch.version.cuda, "devices": names}), flush=True)
os._exit(0)  # Python would take half a second to free torch's modules
"""


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    found: str
    remedy: str = ""


def python() -> Iterator[Finding]:
    have = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("python", "fail", have, "Stoker needs Python 3.11 or newer: make a new environment with one")
    else:
        yield Finding("python", "ok", f"{have} at {sys.executable}")


def packages() -> Iterator[Finding]:
    """Each required distribution with its lower and upper bound."""
    wrong: list[Finding] = []
    requirements = [Requirement.parse(text) for text in importlib.metadata.requires("stoker") or []]
    needed = [requirement for requirement in requirements if requirement.extra is None]
    for requirement in needed:
        if problem := requirement.problem():
            wrong.append(Finding(requirement.name, "fail", problem, f"{sys.executable} -m pip install '{requirement.text}'"))
    yield from wrong or [Finding("packages", "ok", f"stoker {__version__}, its {len(needed)} packages are installed")]
    missing = [requirement for requirement in requirements if requirement.extra == "recipes" and requirement.problem()]
    if missing:
        found = "; ".join(f"{requirement.name}: {requirement.problem()}" for requirement in missing)
        wanted = " ".join(f"'{requirement.text}'" for requirement in missing)
        yield Finding("recipes", "warn", found, f"for the text recipes: {sys.executable} -m pip install {wanted}")
    else:
        yield Finding("recipes", "ok", "the packages of the recipes are installed")


@dataclass(frozen=True)
class Requirement:
    """A line such as ``apscheduler<4,>=3.11; extra == "dev"``, in the forms of our own metadata."""

    text: str
    name: str
    bounds: tuple[tuple[str, tuple[int, ...]], ...]
    extra: str | None

    @classmethod
    def parse(cls, line: str) -> Requirement:
        text, _, marker = (part.strip() for part in line.partition(";"))
        name = re.match(r"[\w.-]+", text)
        extra = re.search(r"extra == [\"']([\w-]+)", marker)
        bounds = tuple((operator, _numbers(version)) for operator, version in re.findall(r"(>=|<)\s*([\d.]+)", text))
        return cls(text, name[0] if name else text, bounds, extra[1] if extra else None)

    def problem(self) -> str | None:
        """The problem with the installed version; None: none."""
        try:
            have = importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return "is not installed"
        fits = (_numbers(have) >= bound if operator == ">=" else _numbers(have) < bound for operator, bound in self.bounds)
        return None if all(fits) else f"{have} is installed, {self.text} is needed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def torch() -> Iterator[Finding]:
    remedy = "install a build for this machine, see pytorch.org/get-started"
    try:
        answer = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("torch", "fail", "importing it takes longer than 120 s", "the driver may hang: see what 'nvidia-smi' says")
        return
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        yield Finding("torch", "fail", f"cannot be imported: {last}", remedy)
        return
    said = json.loads(answer.stdout.splitlines()[-1])
    yield Finding("torch", "ok", said["version"])
    gpus = nvml_gpus()
    if said["devices"]:
        yield Finding("cuda", "ok", f"CUDA {said['built']}: " + ", ".join(said["devices"]))
    elif isinstance(gpus, list) and gpus:
        found = f"the driver knows {len(gpus)} GPUs, torch (CUDA {said['built'] or 'not built in'}) sees none"
        yield Finding("cuda", "fail", found, f"{remedy}; CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} may hide them")
    else:
        yield Finding("cuda", "ok", "no GPU: runners offer CPU slots")
    if isinstance(gpus, str):
        yield Finding("nvml", "warn" if said["devices"] else "ok", gpus, "reinstall the NVIDIA driver" if said["devices"] else "")
    else:
        yield Finding("nvml", "ok", ", ".join(gpus) or "the driver is there, no GPU is")


def nvml_gpus() -> list[str] | str:
    """Names of the GPUs, or why NVML does not give them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
        pynvml.nvmlShutdown()
        return names
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver answers ({error})"


def home(app: App) -> Iterator[Finding]:
    path = app.home.path
    if not path.exists():
        parent = next(folder for folder in path.parents if folder.exists())
        writable = os.access(parent, os.W_OK)
        remedy = "" if writable else f"choose another with --home or STOKER_HOME, or let yourself write to {parent}"
        yield Finding("home", "ok" if writable else "fail", f"{path} does not exist yet", remedy)
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Finding("home", "fail", f"{path} cannot be written", f"chown or chmod it, its owner is {path.owner()}")
    elif (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        yield Finding("home", "warn", f"{path} is open to others (mode {mode:04o})", f"chmod 700 {path}")
    else:
        yield Finding("home", "ok", str(path))
    yield from disk(path)


def disk(path: Path) -> Iterator[Finding]:
    existing = path if path.exists() else next(folder for folder in path.parents if folder.exists())
    now = room(existing)
    takers = [{**taker._asdict(), "job": taker.job, "name": None} for taker in largest(path)]
    found = "; ".join(filter(None, (f"{now.words} at {existing}", told(takers))))
    remedy = "make room, or move the home: checkpoints and logs are written there; 'stoker cancel' stops a job that fills it"
    if now.state == "full":
        yield Finding("disk", "fail", f"{found}; commits are refused", remedy)
    elif now.state == "low":
        yield Finding("disk", "warn", found, remedy)
    else:
        yield Finding("disk", "ok", found)


def limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        yield Finding("open files", "warn", f"at most {soft}", "raise it: ulimit -n 65536, or LimitNOFILE= in the unit")
    else:
        yield Finding("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}")
    shm = Path("/dev/shm")
    if shm.exists() and (size := shutil.disk_usage(shm).total) < SMALL_SHM:
        remedy = "loaders with worker processes need it: in a container, --shm-size 8g or --ipc host"
        yield Finding("shared memory", "warn", f"/dev/shm has {fmt.size(size)}", remedy)


def sharing() -> Iterator[Finding]:
    """The kernel's means to put a lower priority behind on a switched CPU slot."""
    from ....runners.share.kernel_priority import means

    words = {
        "autogroup": "by autogroup: each job is a scheduling group, whose nice value counts",
        "idle": "by the scheduling class SCHED_IDLE",
    }
    if (found := means()) is not None:
        yield Finding("sharing", "ok", f"on a switched CPU slot a lower priority goes behind {words[found]}")
    else:
        what = "the kernel has no autogroups here, and this user may not leave SCHED_IDLE again"
        yield Finding("sharing", "warn", what, 'for switched jobs on CPU slots: [share] turn = "cooperative" in config.toml')


def cache() -> Iterator[Finding]:
    given, base = os.environ.get("STOKER_CACHE"), os.environ.get("XDG_CACHE_HOME")
    path = Path(given) if given else Path(base or Path.home() / ".cache") / "stoker"
    existing = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    if os.access(existing, os.W_OK):
        yield Finding("cache", "ok", f"{path}{'' if path.exists() else ' (empty yet)'}")
    else:
        yield Finding("cache", "warn", f"{path} cannot be written", "set STOKER_CACHE to a directory that can: recipes keep models there")


def daemon(app: App) -> Iterator[Finding]:
    where = app.url or os.environ.get("STOKER_URL")
    socket = app.home.socket
    if where is None:
        if (length := len(os.fsencode(socket))) > LONGEST_SOCKET:
            remedy = f"choose a home of at most {LONGEST_SOCKET - length + len(os.fsencode(app.home.path))} bytes"
            yield Finding("socket", "fail", f"its path has {length} bytes, at most {LONGEST_SOCKET} are taken", remedy)
            return
        if socket.exists():
            mode = stat.S_IMODE(socket.stat().st_mode)
            open_to_all = Finding("socket", "fail", f"{socket} is open to others (mode {mode:04o})", f"chmod 600 {socket}")
            yield open_to_all if mode & 0o077 else Finding("socket", "ok", f"{socket}, mode {mode:04o}")
    try:
        status = app.client_within(10.0).get("/v1/status")
    except Unreachable as error:
        stale = where is None and socket.exists()
        found = f"the socket is there, nobody answers: {error}" if stale else str(error)
        yield Finding("daemon", "warn", found, f"stoker --home {app.home.path} up --detach" if where is None else "start it there")
        return
    except StokerError as error:
        yield Finding("daemon", "fail", str(error), "see its log")
        return
    if status["version"] != __version__:
        found = f"it runs {status['version']}, this is {__version__}"
        yield Finding("daemon", "warn", found, "restart it: stoker down; stoker up --detach")
    else:
        yield Finding("daemon", "ok", f"version {status['version']}, pid {status['pid']}, database {fmt.size(status['database']['bytes'])}")
    yield from trouble(status)


def trouble(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Problems of the daemon's disk, tasks, policies and runners, from its status."""
    disk = status.get("disk") or {}  # absent from an older daemon
    if disk.get("refused"):
        yield Finding("commits", "fail", f"they are refused: {disk['refused']}", "make room; 'stoker status' names what takes the most")
    for task in status["tasks"]:
        if task["stuck"]:
            yield Finding("task", "fail", f"{task['name']} hangs", "report it with the daemon's log; a restart loses no job")
        elif task["errors"]:
            said = task.get("last_error") or "see the daemon's log"
            yield Finding("task", "warn", f"{task['name']} has failed {task['errors']} times, last: {said}", "see the daemon's log")
    for pool in status["pools"]:
        if pool.get("error"):  # absent from an older daemon
            found = f"{pool['policy']} of pool {pool['pool']} fails, so nothing starts there: {pool['error']}"
            yield Finding("policy", "fail", found, pool["remedy"])
    for runner in status["runners"]:
        if runner["state"] == "suspect":  # of one that is gone a person has said so, and its jobs are elsewhere
            remedy = f"look at it, or give its jobs to others: stoker runner forget {runner['id']}"
            yield Finding("runner", "warn", f"{runner['id']} is {runner['state']}", remedy)


def everything(app: App) -> Iterator[Finding]:
    yield from python()
    yield from packages()
    yield from torch()
    yield from home(app)
    yield from limits()
    yield from sharing()
    yield from cache()
    yield from daemon(app)
