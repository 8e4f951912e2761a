"""Puts one job behind another on a core, by means of the kernel. Standard library only.

If each session is an autogroup, as with sched_autogroup_enabled, nice values and scheduling classes have no effect between sessions, and
so between jobs: the nice value of the group counts.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Literal

Means = Literal["autogroup", "idle"]
LOWEST = 19  #: nice value

_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")


def means() -> Means | None:
    """The kernel's means to put one job behind another here; None: none that can be taken back."""
    with contextlib.suppress(OSError):
        if _ENABLED.read_text().strip() == "1" and _in_root_group():
            return "autogroup"
    # Leaving the idle class again needs that right.
    may_return = os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20
    return "idle" if may_return else None


def _in_root_group() -> bool:
    """Whether autogroups count for this process: it is in no CPU control group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or (controllers == "" and _controls_cpu()):
            return path == "/"
    return True


def _controls_cpu() -> bool:
    """Whether version 2 of control groups controls the CPU."""
    with contextlib.suppress(OSError):
        return "cpu" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    return False


def put(pid: int, means: Means | None, *, low: bool) -> None:
    """Put a process behind all others, or back among them; if that is impossible now, it stays as it is."""
    with contextlib.suppress(OSError):  # it has ended, or the kernel limits the rate of changes (EAGAIN)
        if means == "autogroup":
            group = Path(f"/proc/{pid}/autogroup")
            if not group.read_text().endswith(f"nice {LOWEST if low else 0}\n"):
                group.write_text(str(LOWEST if low else 0))
        elif means == "idle":
            wanted = os.SCHED_IDLE if low else os.SCHED_OTHER
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                if os.sched_getscheduler(int(thread.name)) != wanted:
                    os.sched_setscheduler(int(thread.name), wanted, os.sched_param(0))
