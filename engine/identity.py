"""Processes by identity. A pid alone is reused: a process is its pid AND start time, on one boot of one machine.

Start times are seconds since boot: unlike seconds since the epoch they do not move when the clock is set.
Standard library only: every supervisor imports this too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PF_KTHREAD = 0x00200000  #: of linux/sched.h


class Process(NamedTuple):
    """The identity of a process, unique for ever."""

    pid: int
    started: float  #: seconds since boot


class Stat(NamedTuple):
    """One reading of /proc/PID/stat."""

    pid: int
    started: float
    parent: int
    state: str
    threads: int
    cpu: float  #: seconds of CPU, its own and its reaped children's
    memory: int  #: resident bytes
    kernel: bool  #: a kernel thread

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started)

    @property
    def dead(self) -> bool:
        """Whether no thread of the process runs any more.

        A zombie that still has threads is not dead: its main thread has ended while another is stuck, typically in
        the GPU driver, and keeps its memory and GPUs.
        """
        return self.state in "ZX" and self.threads <= 1


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boot_clock() -> float:
    """Seconds since boot, as in `Process.started`: this clock cannot be set, and it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ahead_of_boot() -> float:
    """The time of day (s since the epoch) minus `boot_clock`: it changes only when the time of day is set.

    Both are read at one moment, even if this process is stopped between the two readings.
    """
    while True:
        before, now, after = boot_clock(), time.time(), boot_clock()
        if after - before < 0.05:
            return now - before


_AHEAD = ahead_of_boot()


def steady_time(at: float | None = None) -> float:
    """The time of day when this process first read it, advanced by the boot clock to now or to ``at``, a reading of that clock."""
    return _AHEAD + (boot_clock() if at is None else at)


def stat(pid: int) -> Stat | None:
    """The state of a process, None when there is none with this pid."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, parentheses too; see proc_pid_stat(5).
    field = content[content.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        started=int(field[19]) / _TICK,
        parent=int(field[1]),
        state=field[0].decode(),
        threads=int(field[17]),
        cpu=sum(map(int, field[11:15])) / _TICK,
        memory=int(field[21]) * _PAGE,
        kernel=bool(int(field[6]) & _PF_KTHREAD),
    )


def alive(process: Process) -> bool:
    now = stat(process.pid)
    return now is not None and now.started == process.started and not now.dead
