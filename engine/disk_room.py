"""Room on the disk of the home: that it runs low is told while it can still be stored, before commits are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import format as fmt

LOOKS = 10.0  #: seconds between looks
LEAST = 1 << 30  #: bytes free, below which it runs low; of a small disk a twentieth of all
SMALL = 20


class Room(NamedTuple):
    free: int  #: bytes, for this user
    total: int

    @property
    def low(self) -> bool:
        return self.free < min(LEAST, self.total // SMALL)


def room(home: Path) -> Room:
    """On the disk on which a home lies."""
    usage = shutil.disk_usage(home)
    return Room(usage.free, usage.total)


class DiskWatch:
    """Tells when it begins to run low, and when there is room again: once each."""

    def __init__(self, home: Path, tell: Callable[[str, str], None]) -> None:
        self._home, self._tell, self._low = home, tell, False

    def look(self) -> None:
        now = room(self._home)
        if now.low == self._low:
            return
        self._low = now.low
        left = f"{fmt.size(now.free)} of {fmt.size(now.total)} are free on the disk of {self._home}"
        if now.low:
            self._tell("disk.low", f"{left}; free some space before commits are refused: old checkpoints under jobs/, backups/, archive/")
        else:
            self._tell("disk.enough", f"there is room again: {left}")
