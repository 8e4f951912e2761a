"""What a run of the tests leaves behind: nothing. However it ends, its processes end with it, and its files lie in build/tmp."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MARK = "TESTS_OF"  #: in the environment of every process of a run: the process of the run
LONGEST = 40  #: characters of a folder whose Unix sockets have paths that are short enough

ENDING = """
import os, signal, sys, time
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
"""


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
    ending = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    ending.returncode = 0  # nobody waits for it
    os.environ[MARK] = str(os.getpid())
