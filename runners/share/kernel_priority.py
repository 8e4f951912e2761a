"""How the kernel puts one job behind another on a core. Standard library only.

Where each session is an autogroup of its own, as with sched_autogroup_enabled, nice values and scheduling classes are void between
sessions, and so between jobs: the nice value of the group counts.
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
    """How the kernel puts one job behind another here, None: in no way that can be taken back."""
    with contextlib.suppress(OSError):
        if _ENABLED.read_text().strip() == "1" and _in_root_group():
            return "autogroup"
    # Back from the idle class one comes only with that right.
    may_return = os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20
    return "idle" if may_return else None


def _in_root_group() -> bool:
    """Autogroups count for processes that are in no CPU control group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or (controllers == "" and _controls_cpu()):
            return path == "/"
    return True


def _controls_cpu() -> bool:
    """Whether version 2 of control groups has the CPU."""
    with contextlib.suppress(OSError):
        return "cpu" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    return False


def put(pid: int, means: Means | None, *, low: bool) -> None:
    """A process behind all others, or back among them; where that is not possible now it stays as it is."""
    with contextlib.suppress(OSError):  # it has ended, or the kernel takes one change a moment (EAGAIN)
        if means == "autogroup":
            group = Path(f"/proc/{pid}/autogroup")
            if not group.read_text().endswith(f"nice {LOWEST if low else 0}\n"):
                group.write_text(str(LOWEST if low else 0))
        elif means == "idle":
            wanted = os.SCHED_IDLE if low else os.SCHED_OTHER
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                if os.sched_getscheduler(int(thread.name)) != wanted:
                    os.sched_setscheduler(int(thread.name), wanted, os.sched_param(0))
