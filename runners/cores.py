"""CPU cores that this process may use: its affinity, and the CPU quota of its cgroup (v1 or v2). Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable(cgroups: Path = _CGROUPS, own: Path = _OWN) -> float:
    """Cores (hyperthreads count each) that the process may keep busy, a fraction where a quota is one; at least 0.01."""
    return max(0.01, min(float(len(os.sched_getaffinity(0))), quota(cgroups, own)))


def quota(cgroups: Path = _CGROUPS, own: Path = _OWN) -> float:
    """Cores that the cgroups of this process allow it; infinite without a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return float("inf")
    return min((_limit(folder) for line in lines for folder in _folders(cgroups, line)), default=float("inf"))


def _folders(cgroups: Path, line: str) -> Iterator[Path]:
    """The group named in a line of /proc/self/cgroup and those above it: each of them may have a limit.

    Inside a container the name may be the host's, of which nothing is mounted: then the mount itself is the group.
    """
    _, controllers, name = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / "cpu"
    group = PurePosixPath(name.lstrip("/"))
    if ".." in group.parts:
        group = PurePosixPath()
    for part in (group, *group.parents):
        yield (root if controllers else cgroups) / part


def _limit(folder: Path) -> float:
    try:  # v2: "<quota> <period>", or "max <period>"
        allowed, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return float("inf")
    if not allowed.isdecimal() or int(allowed) == 0:  # "max", and -1 of v1
        return float("inf")
    return int(allowed) / int(period)
