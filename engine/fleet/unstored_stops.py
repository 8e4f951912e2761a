"""Stops without room on the disk: the runners get them at once, and they are stored as soon as there is room."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import NoRoom, StokerError
from ..store.store import Command, Store
from .board import Board

Write = tuple[Command[Any, Any], Any]  #: a command and its argument


class UnstoredStops:
    """In memory only, as the requester is told. Any thread."""

    def __init__(self, store: Store, board: Board) -> None:
        self._store, self._board = store, board
        self._lock = threading.Lock()
        self._kept: list[Write] = []

    def __bool__(self) -> bool:
        return bool(self._kept)

    def take(self, writes: Sequence[Write], leases: Mapping[int, str], refused: NoRoom) -> NoRoom:
        """Keep the refused writes, and make the runners stop the ``leases``, each for its reason; returns the answer for the requester."""
        with self._lock:
            self._kept += writes
        self._board.order(leases)
        told = ("nothing of it runs", "its runner is told to stop it", "their runners are told to stop them")[min(len(leases), 2)]
        later = "it is stored when there is room; if the daemon is restarted before that, say it again"
        return NoRoom(f"not stored yet, but {told}: {refused}; {later}")

    def look(self) -> None:
        """Store the kept writes, in order. NoRoom: there is none yet. Called before reports of ends, and before a stop is taken back."""
        while self._kept:
            with self._lock:
                if not self._kept:
                    return
                write = self._kept[0]
                try:
                    self._store.write(*write, urgent=True)
                except NoRoom:
                    raise
                except StokerError:  # no longer possible, and no longer needed
                    pass
                self._kept.pop(0)
