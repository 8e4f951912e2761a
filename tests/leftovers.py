"""What a run of the tests leaves behind: nothing. However it ends, its processes end with it, and the next run removes its files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stoker.runners.worker import cgroups

MEMORY = Path("/dev/shm")  #: a file system of memory, where there is one
LEAST = 6 << 30  #: bytes of it that must be free: a whole run takes half of one GiB
MARK = "TESTS_OF"  #: in the environment of every process of a run: the process of the run
LONGEST = 40  #: characters of a folder whose Unix sockets have paths that are short enough

ENDING = """
import os, shutil, signal, sys, time
mark, parent = sys.argv[1].encode(), int(sys.argv[2])
while os.getppid() == parent:  # until pytest has ended, by whatever
    time.sleep(0.2)
for _ in range(5):  # what forks meanwhile is seen in the next round
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\\0"):
                    os.kill(int(pid), signal.SIGKILL)
                    left.append(pid)
        except OSError:
            pass
    if not left:
        break
    time.sleep(0.2)
for folder in sys.argv[3:]:
    shutil.rmtree(folder, ignore_errors=True)
"""


def place(disk: Path) -> Path:
    """A folder for the files of runs: in memory where there is plenty, as each commit waits for a disk; else ``disk``.

    Some tests run programs of their own from there, which containers forbid in memory (noexec). All users of the host may write there.
    """
    try:
        found = os.statvfs(MEMORY)
        available = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) << 10
        limits = [int(word) for group in cgroups.folders("memory") for word in _limits(group) if word.isdecimal()]
        enough = min(found.f_bavail * found.f_frsize, available, *limits) >= LEAST
        if enough and not found.f_flag & os.ST_NOEXEC:
            folder = MEMORY / f"stoker-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.lstat().st_uid == os.getuid():
                return folder
    except (OSError, IndexError, ValueError):
        pass
    return disk


def _limits(group: Path) -> Iterator[str]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError):
            yield (group / name).read_text().strip()


def begin(folder: Path) -> None:
    """Once in a run, before it makes a file or a process: those of xdist's workers are of the same run."""
    if MARK in os.environ:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for former in folder.iterdir():
        if not Path("/proc", former.name).exists():
            shutil.rmtree(former, ignore_errors=True)
    own = folder / str(os.getpid())
    if len(str(own)) <= LONGEST:
        own.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = str(own)
        tempfile.tempdir = None
    # In a session of its own, and without the mark: it outlives a run that is killed with its group.
    command = [sys.executable, "-I", "-S", "-c", ENDING, f"{MARK}={os.getpid()}", str(os.getpid())]
    if folder.is_relative_to(MEMORY):
        command.append(str(own))
    ending = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    ending.returncode = 0  # nobody waits for it
    os.environ[MARK] = str(os.getpid())
