"""The cores and memory that this process and its workers may use, and their use (003 Table 2)."""

from __future__ import annotations

import math
import os
import threading
import time
from functools import cache
from pathlib import Path

from ...lease import processes
from ...worker import cgroups, cores, script

_CGROUPS = cgroups.MOUNT
_PROC = Path("/proc")
_UNLIMITED = 1 << 60  #: cgroup v1 says "no limit" with a number near 2^63
_STEPS = 16  #: memory of other processes counts in sixteenths of the host's, so that small changes do not resize our machine
_COPY = 32 << 20  #: bytes copied to measure the bandwidth: more than most caches hold


def cpus() -> float:
    """Cores that may be kept busy: the least of affinity, the cgroup's quota, and the runner's part for this job.

    Outside a job the ranks on the node (LOCAL_WORLD_SIZE) have equal parts of their launcher's cores; a rank pinned to fewer cores
    has those.
    """
    given = script.given_cores()
    allowed = cores.usable()
    if given is None and (ranks := _ranks()) > 1:
        given = max(0.01, min(_launchers_cores(), cores.quota()) / ranks)
    return allowed if given is None else min(allowed, given)


def idle() -> float:
    """Idle seconds of the cores of our affinity, summed since the machine started; nan: cannot be seen."""
    try:
        rows = [line.split() for line in (_PROC / "stat").read_text().splitlines() if line.startswith("cpu")]
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in ours) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return math.nan


def part() -> float:
    """Share of the memory that counts as this process's own: its part among the job's ranks on the node, and among the node's jobs.

    A job's part is its part of the node's cores, if the runner gives one. So no two ranks, and no two jobs, count the same free
    memory as their own.
    """
    given = script.given_cores()  # of this rank already
    return min(1.0 / _ranks(), math.inf if given is None else given / cores.usable())


def memory() -> tuple[int, int]:
    """Bytes in use, and bytes that may be used.

    Under a memory limit both are the cgroup's, without file cache that the kernel can reclaim. Without one, use is that of this
    process and its descendants (proportional set size: shared pages count once), and what may be used is the host's memory less what
    others hold.

    If the memory is shared (`part`), use is that of this process and its descendants in both cases. Then the bytes that may be used
    are the part of the whole, or those in use and the part of the free ones, whichever is less.
    """
    limit, group = _limit(_CGROUPS, _PROC / "self" / "cgroup")
    whole, free = _host(_PROC / "meminfo")
    own = part()
    if group is not None and limit < whole:
        in_group = _used(group)
        if own == 1.0:
            return in_group, limit
        whole, free = limit, max(0, limit - in_group)
    used = _tree.read()
    return used, _others.left(whole, free, used, own)


def memory_total() -> int:
    """The second of `memory`, without the walk over page tables that the first costs."""
    limit, group = _limit(_CGROUPS, _PROC / "self" / "cgroup")
    host, _ = _host(_PROC / "meminfo")
    own, limited = part(), group is not None and limit < host
    return limit if limited and own == 1.0 else _others.known(limit if limited else host, own)


def tree_bytes() -> int:
    """Proportional set size of this process and its descendants."""
    family = [os.getpid(), *(found.process.pid for found in processes.descendants(os.getpid(), processes.table()))]
    return sum(_pss(_PROC / str(pid)) for pid in family)


@cache
def clock() -> float:
    """GHz of a core at its fastest, from the kernel; 0: not known."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) / 1e6
    except (OSError, ValueError):
        pass
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return 0.0
    return max((float(line.split(":")[1]) / 1e3 for line in lines if line.startswith("cpu MHz")), default=0.0)


@cache
def bandwidth() -> float:
    """MB/s read and written by one core in a large copy, the best of three; measured at the first call, in some 50 ms."""
    source, target = memoryview(bytearray(_COPY)), memoryview(bytearray(_COPY))
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - began)
    return 2 * _COPY / best / 1e6


class _Tree:
    """Memory of the process tree, read again when the last reading is old enough to cost less than a hundredth of a core."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes, self._until = 0, -math.inf

    def read(self) -> int:
        with self._lock:
            if (began := time.monotonic()) >= self._until:
                cpu = time.thread_time()
                self._bytes = tree_bytes()
                self._until = began + 100 * (time.thread_time() - cpu)
            return self._bytes


class _Others:
    """Memory of other processes, in steps: it changes once it is a whole step off. ``part`` of the free memory is ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0

    def left(self, host: int, available: int, used: int, part: float = 1.0) -> int:
        held, step = max(0, host - int(part * available) - used), self._step(host, part)
        with self._lock:
            if not self._held - 2 * step <= held <= self._held:
                self._held = -(-held // step) * step
        return self.known(host, part)

    def known(self, host: int, part: float = 1.0) -> int:
        return max(self._step(host, part), min(int(part * host), host - self._held))

    def _step(self, host: int, part: float) -> int:
        return max(1, int(part * host) // _STEPS)


def _ranks() -> int:
    """Ranks of this training on the node."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(given)) if given.isdecimal() else 1


def _launchers_cores() -> int:
    """Cores in the affinity of the parent process, if that is wider: a rank alone may have been pinned."""
    own = len(os.sched_getaffinity(0))
    try:
        return max(own, len(os.sched_getaffinity(os.getppid())))
    except OSError:  # it is gone
        return own


_tree = _Tree()
_others = _Others()


def _limit(mount: Path, own: Path) -> tuple[int, Path | None]:
    """The lowest memory limit of this process's groups and those above them, and the group that has it."""
    limits = [(limit, folder) for folder in cgroups.folders("memory", mount, own) if (limit := _read_limit(folder)) is not None]
    return min(limits, key=lambda found: found[0], default=(_UNLIMITED, None))


def _read_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
    return None


def _used(group: Path) -> int:
    for usage, cache_field in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
        try:
            used = int((group / usage).read_text())
        except OSError:
            continue
        return max(0, used - _field(group / "memory.stat", cache_field))
    return tree_bytes()


def _field(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


def _host(meminfo: Path) -> tuple[int, int]:
    """Bytes of the host, and those available without swapping."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) << 10
    return total, int(lines.get("MemAvailable", lines["MemFree"]).split()[0]) << 10


def _pss(process: Path) -> int:
    """Of one process; its resident set if more is not readable; 0 if it is gone."""
    try:
        return next(int(line.split()[1]) << 10 for line in (process / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    try:
        return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
