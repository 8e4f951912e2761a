"""The turns of this process, by the agent's file in its run directory. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ..lease.rundir import TURN
from .turn import Turn


class ToldTurns:
    """``turn``: that of the GPU; None: it takes no turns. ``leaving``: whether the job is asked to end."""

    def __init__(self, run_dir: Path, lease: int, leaving: Callable[[], bool]) -> None:
        self._said, self._lease, self._leaving = run_dir / TURN, lease, leaving
        self._seen: tuple[int, int] | None = None  #: inode and time of the file that was read
        self.turn: Turn | None = None

    def follow(self) -> None:
        """Follow the agent's file. A check costs one system call."""
        try:
            seen = self._there()
            if seen == self._seen:
                return
            said = json.loads(self._said.read_bytes())
            path, priority = said["path"] and Path(said["path"]), int(said["priority"])
        except (OSError, ValueError, KeyError, TypeError):  # not there, or cut short by a full disk: the old content stays
            return
        self._seen = seen
        if self.turn is not None and self.turn.path != path:
            self.close()
        if path and self.turn is None:
            self.turn = Turn(path, self._lease, leaving=self._leaving)
        if self.turn is not None:
            self.turn.priority = priority

    def has_news(self) -> bool:
        """Whether the file has changed since."""
        try:
            return self._there() != self._seen
        except OSError:
            return False

    def _there(self) -> tuple[int, int]:
        found = os.stat(self._said)  # noqa: PTH116 - asked before each step; a Path takes three times as long
        return found.st_ino, found.st_mtime_ns

    def close(self) -> None:
        if self.turn is not None:
            self.turn.close()
            self.turn = None
