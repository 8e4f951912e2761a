"""Limits of the host's main memory and cores for a job, over the whole tree of its processes on this node.

A cgroup (v2) enforces them where one may be made. Elsewhere the memory of its processes is added up twice a second, a limit of each
process's data (RLIMIT_DATA) stops a process that grows faster than that, and affinity limits cores. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

MOUNTS, OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")
LOOK_SECONDS = 0.5  #: seconds between looks at the memory
TOLD_AT = 0.8  #: share of the limit at which the log warns
DATA_BEYOND_MEMORY = 1 << 30  #: bytes that a process's data limit lies above the job's: reserved code and stacks are not used
QUOTA_PERIOD = 100_000  #: µs, the period of a quota of cores


class NotHere(Exception):
    """No cgroup can be made; says why."""


def sizes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.0f} MiB"


class HostLimits:
    """The limits of one lease on this host."""

    def __init__(
        self,
        name: str,
        memory: int | None,
        cpus: int | None,
        *,
        measure: Callable[[], int],
        say: Callable[[str], None],
        data: bool = True,
        mounts: Path = MOUNTS,
        own: Path = OWN,
    ) -> None:
        """``measure``: main memory that its processes take now; ``data``: whether a limit of a process's data may be set."""
        self.memory, self.cpus = memory, cpus
        self._measure, self._say, self._data = measure, say, data
        self._told = False
        self._looked = float("-inf")
        self.over: str | None = None  #: how it was ended for exceeding its memory, in words
        self.group: Path | None = None
        try:
            self.group = _group(name, memory, cpus, mounts, own)
            how = "by a cgroup"
        except NotHere as why:
            how = f"by {' and '.join(self._means())} ({why})"
        kinds = ([f"memory {sizes(memory)}"] if memory is not None else []) + ([f"cpus {cpus}"] if cpus is not None else [])
        say(f"host: {', '.join(kinds)}, kept {how}")

    @property
    def words(self) -> str | None:
        """The limit of main memory."""
        return None if self.memory is None else sizes(self.memory)

    def _means(self) -> list[str]:
        """The means by which the limits are kept without a cgroup."""
        watching = ["watching", *(["a limit of each process's data"] if self._data else [])] if self.memory is not None else []
        return watching + (["the affinity of its cores"] if self.cpus is not None else [])

    def enter(self, pid: int, lease: int) -> None:
        """Apply the limits to a process and to all that it will start."""
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(pid))
            return
        if self.memory is not None and self._data:
            most = self.memory + DATA_BEYOND_MEMORY
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
        if self.cpus is not None:
            cores = sorted(os.sched_getaffinity(0))
            first = lease * self.cpus % len(cores)  # so that jobs are spread over the cores
            os.sched_setaffinity(pid, {cores[(first + place) % len(cores)] for place in range(min(self.cpus, len(cores)))})

    def exceeded(self) -> bool:
        """Whether the job has exceeded its memory. It is measured twice a second at most; a job near its limit is warned once."""
        now = time.monotonic()
        if self.memory is None or self.over is not None or now - self._looked < LOOK_SECONDS:
            return self.over is not None
        self._looked = now
        taken = self._measure() if self.group is None else _number(self.group / "memory.current") - _counted(self.group, "inactive_file")
        # In a group the kernel decides: the page cache counts there until room is needed.
        if taken > self.memory if self.group is None else _oom_kills(self.group) > 0:
            self.over = f"it took {sizes(max(taken, self.memory))} of main memory, and host.memory is {sizes(self.memory)}"
            self._say(f"host.memory: {self.over}: it is ended")
        elif taken > TOLD_AT * self.memory and not self._told:
            self._told = True
            self._say(f"host.memory: it takes {sizes(taken)} of {sizes(self.memory)} now; beyond that it is ended")
        return self.over is not None

    def close(self) -> None:
        """Clean up: no process of the job runs any more."""
        if self.group is not None:
            if self.memory is not None and self.over is None and _oom_kills(self.group) > 0:
                self.over = f"it took more of main memory than host.memory, {sizes(self.memory)}"
            with contextlib.suppress(OSError):
                self.group.rmdir()


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def _oom_kills(group: Path) -> int:
    return _counted(group, "oom_kill", "memory.events")


def _counted(group: Path, name: str, file: str = "memory.stat") -> int:
    try:
        return int(dict(line.split() for line in (group / file).read_text().splitlines()).get(name, 0))
    except (OSError, ValueError):
        return 0


def _group(name: str, memory: int | None, cpus: int | None, mounts: Path, own: Path) -> Path:
    """A new cgroup with these limits, below ours or beside it; NotHere says why there is none."""
    wanted = (["memory"] if memory is not None else []) + (["cpu"] if cpus is not None else [])
    root = next((Path(line.split()[1]) for line in _lines(mounts) if line.split()[2] == "cgroup2"), None)
    line = next((line for line in _lines(own) if line.startswith("0::")), None)
    if root is None or line is None:
        raise NotHere("this host has no cgroup v2")
    mine = root / line[3:].lstrip("/")
    why = f"no cgroup v2 hands on {' and '.join(wanted)} here"
    for base in dict.fromkeys((mine, mine.parent if mine != root else mine)):
        known = set((_lines(base / "cgroup.subtree_control") or [""])[0].split())
        if not known.issuperset(wanted):
            try:  # the kernel refuses that for a group with processes of its own
                (base / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in wanted))
            except OSError:
                continue
        group = base / name
        _sweep(base)
        try:
            group.mkdir()
            _limit(group, memory, cpus)
            # Moving a process needs the right to write to the common parent of both groups: try it with a process that is not the job's.
            probe = ["sh", "-c", 'echo $$ > "$0"', str(group / "cgroup.procs")]
            if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return group
            why = f"no process may be moved to a cgroup below {base}"
        except OSError as error:
            why = f"a cgroup below {base} cannot be made: {error.strerror}"
        with contextlib.suppress(OSError):
            group.rmdir()
    raise NotHere(why)


def _sweep(base: Path) -> None:
    """Remove groups of killed supervisors, whose pid ends the name. The kernel keeps groups in which processes still run."""
    for left in base.glob("stoker-*-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                left.rmdir()


def _limit(group: Path, memory: int | None, cpus: int | None) -> None:
    if memory is not None:
        (group / "memory.max").write_text(str(memory))
        (group / "memory.oom.group").write_text("1")
        with contextlib.suppress(OSError):  # the kernel has no swap
            (group / "memory.swap.max").write_text("0")
    if cpus is not None:
        (group / "cpu.max").write_text(f"{cpus * QUOTA_PERIOD} {QUOTA_PERIOD}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
