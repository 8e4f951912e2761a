"""CPU cores that this process may use: its affinity, and the CPU quota of its cgroup (v1 or v2). Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from . import cgroups


def usable(mount: Path = cgroups.MOUNT, own: Path = cgroups.OWN) -> float:
    """Cores (each hyperthread counts) that the process may keep busy, at least 0.01; a quota may be a fraction."""
    return max(0.01, min(float(len(os.sched_getaffinity(0))), quota(mount, own)))


def quota(mount: Path = cgroups.MOUNT, own: Path = cgroups.OWN) -> float:
    """Cores that the cgroups of this process allow it; infinite without a limit."""
    return min(map(_limit, cgroups.folders("cpu", mount, own)), default=float("inf"))


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
