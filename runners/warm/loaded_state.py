"""The environment and files that a fork server was loaded from, and whether they have changed since (docs/warm.md).

Values that code reads once and keeps cannot be listed. So a server tells the variables that Python code read while it loaded, and the files
that it consists of. Inherited properties are compared with the agent's, as a fresh process would have those.
"""

from __future__ import annotations

import contextlib
import os
import site
import stat
import sys
import time
from collections.abc import ItemsView, Iterable, Iterator
from pathlib import Path
from typing import Any

from ...engine import identity

Stamp = list[int] | list[str] | str | None

_CHANGED = "while it was read"  #: the stamp of a file that changed while it was read: it never matches
#: lines of /proc/PID/status that a child inherits
_STATUS = ("Umask", "Uid", "Gid", "Groups", "Cpus_allowed_list", "Mems_allowed_list", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


# ---- environment ----


class _Watched(os._Environ[Any]):
    """os.environ while a server loads."""

    read: set[str] = set()  #: names read anywhere in this process

    def __getitem__(self, key: Any) -> Any:
        self.read.add(os.fsdecode(key))
        return super().__getitem__(key)

    def items(self) -> ItemsView[Any, Any]:
        """Not counted as reading: code that iterates looks for names with its own prefix (as tqdm does), see `packages`."""
        return {key: super(_Watched, self).__getitem__(key) for key in self}.items()


class Reading:
    """Records the variables that a ``with`` block reads, and its changes to them."""

    def __enter__(self) -> Reading:
        self.before = dict(os.environ)
        for environment in (os.environ, os.environb):
            environment.__class__ = _Watched
        return self

    def __exit__(self, *_: object) -> None:
        for environment in (os.environ, os.environb):
            environment.__class__ = os._Environ
        self.read = sorted(_Watched.read)
        names = os.environ.keys() | self.before.keys()
        self.changes = {name: value for name in names if (value := os.environ.get(name)) != self.before.get(name)}

    def repeat(self) -> None:
        """Repeat in a job's environment the changes that libraries made in the server's."""
        for name, value in self.changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def packages() -> list[str]:
    """Loaded packages that are not Python's own. A variable whose name begins with one counts as read by it, also in C."""
    return sorted({name.lower() for name in {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names})


# ---- files ----


def stamp(path: str) -> Stamp:
    """A value that changes with the file; for a directory, with its modules, its packages and their versions."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of thousands; a Path for each is slow
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                return sorted(_imported(entries))
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _imported(entries: Iterable[os.DirEntry[str]]) -> Iterator[str]:
    for entry in entries:
        name = entry.name
        if name.endswith(".pth"):
            yield f"{name} {entry.stat().st_mtime_ns} {entry.stat().st_size}"
        elif name.endswith((".py", ".so", "-info")) or (name.isidentifier() and os.path.exists(f"{entry.path}/__init__.py")):  # noqa: PTH110
            yield name


def directories() -> dict[str, Stamp]:
    """Stamps of the directories of modules. To be taken before any import, as imports that find nothing are cached too."""
    found = dict.fromkeys((*sys.path, *site.getsitepackages(), site.getusersitepackages()))
    return {path: stamp(path) for path in found if path.startswith("/")}


def files(since: float, data: Iterable[Path]) -> dict[str, Stamp]:
    """Stamps of all files that this process consists of. ``since``: seconds since the epoch at which it began to read them.

    ``data``: directories of models, which are created as a whole.
    """
    names = {os.path.abspath(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}  # noqa: PTH100
    mapped = (line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if " /" in line)
    names |= {name.removesuffix(" (deleted)") for name in mapped} | {sys.executable, f"{sys.prefix}/pyvenv.cfg"}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(OSError):
            found[name] = _CHANGED if os.stat(name).st_ctime > since else stamp(name)  # noqa: PTH116
    return found | {str(file): stamp(str(file)) for folder in data for file in folder.rglob("*") if file.is_file()}


def changed(stamps: dict[str, Stamp]) -> str | None:
    """A file whose stamp has changed; None: there is none. It takes 4 ms for 2 000 files."""
    return next((path for path, before in stamps.items() if stamp(path) != before), None)


def began() -> float:
    """When this process was started, in seconds since the epoch, rounded up by a clock tick: it reads no module within its first one."""
    own = identity.stat(os.getpid())
    assert own is not None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + own.started + 1 / os.sysconf("SC_CLK_TCK")


# ---- what is inherited ----


def inherited(pid: int) -> dict[str, str]:
    """Properties of a process that its children inherit, by their usual names. OSError: it is gone."""
    proc = Path(f"/proc/{pid}")
    fields = (line.partition(":") for line in (proc / "status").read_text().splitlines())
    found = {name: value.strip() for name, _, value in fields if name in _STATUS}
    found |= {line[:26].strip(): line[26:].strip() for line in (proc / "limits").read_text().splitlines()[1:]}
    found["cgroup"] = (proc / "cgroup").read_text()
    found["oom_score_adj"] = (proc / "oom_score_adj").read_text()
    found["niceness"] = f"{os.getpriority(os.PRIO_PROCESS, pid)} {os.sched_getscheduler(pid)}"
    return found | {f"namespace {name}": str((proc / "ns" / name).readlink()) for name in _NAMESPACES}
