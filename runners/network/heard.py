"""The time at which a runner last heard its daemon. A job's supervisor stops it once that is too long ago: it may then begin elsewhere.

`HOME/runners/NODE.heard` is overwritten in place, which needs no room on the disk: the time (boot clock), and its validity in seconds.
Standard library only: every supervisor imports this.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

from ...engine.identity import boot_clock

LOOK_SECONDS = 1.0  #: seconds between looks, as a host that has slept wakes with its jobs
_RENEWALS = 20  #: of the file within its validity


class Heard:
    """The agent's side: one thread polls, another one reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.after: float | None = None  #: seconds without the daemon after which jobs are stopped, None: never
        self._at, self._written = boot_clock(), -math.inf
        self._lock = threading.Lock()

    def begin(self, at: float, after: float | None) -> None:
        """The daemon has answered a message sent ``at`` (boot clock), and sets the validity from now on."""
        with self._lock:
            self._at, self.after = at, after
            if after is not None or self.path.exists():
                self._write()

    def renew(self, at: float) -> None:
        """It has answered a message sent ``at`` (boot clock)."""
        with self._lock:
            self._at = max(self._at, at)
            if self.after is not None and self._at - self._written > self.after / _RENEWALS:
                self._write()

    @property
    def overdue(self) -> bool:
        return self.after is not None and boot_clock() - self._at >= self.after

    def _write(self) -> None:
        text = f"{self._at:20.3f} {math.inf if self.after is None else self.after:20.3f}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, text.encode(), 0)
        finally:
            os.close(file)
        self._written = self._at


def overdue_in(path: str) -> float | None:
    """Seconds until jobs are to be stopped, negative if overdue; None: never."""
    try:
        at, after = map(float, Path(path).read_text().split())
    except (OSError, ValueError):  # no file, no rule
        return None
    return None if math.isinf(after) else at + after - boot_clock()
