"""Child processes that are kept running: started, watched, restarted with back-off, ended in order."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....runners.lease import processes
from ...home import ENV_KEPT
from ...identity import Process, alive, stat

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  #: seconds before a restart; doubles with each failure in a row
STEADY_SECONDS = 60.0  #: after so long a life a child restarts with the first pause again


@dataclass
class Child:
    """One command that should be running."""

    name: str
    argv: Sequence[str]
    lock: Path | None = None  #: that it holds, with its pid; by it the next `up` knows it
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = FIRST_PAUSE
    restart_at: float | None = None

    def start(self) -> None:
        # A group of its own: a Ctrl-C of the terminal reaches us alone, and we end the children in order.
        # Both must use this home's socket, whatever daemon the user's own commands go to.
        environment = {name: value for name, value in os.environ.items() if name != "STOKER_URL"}
        if self.lock is not None:
            environment[ENV_KEPT] = str(self.lock.resolve())
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, process_group=0, env=environment)
        self.restart_at = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ended(self) -> int | None:
        """Exit code of a child that has just ended; None while it runs or waits for its restart."""
        if self.process is None or self.restart_at is not None:
            return None
        return self.process.poll()

    def plan_restart(self) -> float:
        """Set the time of the next start; returns the pause until then."""
        if time.monotonic() - self.started > STEADY_SECONDS:
            self.pause = FIRST_PAUSE
        pause, self.pause = self.pause, min(self.pause * 2, LONGEST_PAUSE)
        self.restart_at = time.monotonic() + pause
        return pause

    def restart_if_due(self) -> bool:
        if self.restart_at is None or time.monotonic() < self.restart_at:
            return False
        try:
            self.start()
        except OSError:  # no memory or no process left: try again later
            self.plan_restart()
            return False
        return True

    def stop(self, grace: float) -> int | None:
        """Ask it to leave, wait, then kill it; its exit code."""
        self.restart_at = None
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def left(lock: Path) -> Process | None:
    """The process that holds this lock if an `up`, perhaps killed since, has started it; None for one that a person has started."""
    try:
        found = stat(int(lock.read_text().split()[0]))
        kept = found and os.fsencode(f"{ENV_KEPT}={lock.resolve()}") in Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):  # another user's is not ours
        return None
    return found.process if found and kept and not found.dead else None


def end(process: Process, grace: float) -> bool:
    """The same as `Child.stop`, for a process that is not our child; whether it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        processes.send(process, number)
        until = time.monotonic() + grace
        while alive(process) and time.monotonic() < until:
            time.sleep(0.05)
    return not alive(process)


def describe_exit(code: int) -> str:
    """The end of a process in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
