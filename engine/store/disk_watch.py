"""Events when the home's disk runs low, or when commits are refused: recorded while that is possible, so that hooks run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..disk_room import State, Taker, largest, room, told
from ..errors import StokerError
from .reserve import Reserve
from .store import Store
from .transaction import Transaction

LOOK_INTERVAL = 10.0  #: seconds between looks at the disk
ROOM_FOR_CHECKPOINTS = 4  #: checkpoints are made only with this many times the reserve free: the log is then at most half the reserve


def named(store: Store, takers: Sequence[Taker]) -> list[dict[str, Any]]:
    """The largest directories with the names of jobs, as in the API."""
    rows = []
    for taker in takers:
        found = [] if taker.job is None else store.rows("api/job_name", taker.job)
        rows.append({"path": taker.path, "bytes": taker.bytes, "job": taker.job, "name": found[0][0] if found else None})
    return rows


class DiskWatch:
    """Records when room runs low, when commits are refused, and when there is room again: once each. Refills the reserve."""

    def __init__(self, home: Path, store: Store, reserve: Reserve, tell: Callable[[str, str], None]) -> None:
        self._home, self._store, self._reserve, self._tell = home, store, reserve, tell
        self._state: State = "enough"

    def look(self) -> None:
        self._reserve.make()
        if self._store.refused:
            with contextlib.suppress(StokerError):
                self._store.write(_nothing, None)  # a trial: it may be long until another write shows that there is room again
        now = room(self._home)
        self._store.spare_checkpoints(now.free < ROOM_FOR_CHECKPOINTS * self._reserve.wanted)
        still = self._state == "full" and now.state != "enough" and not self._reserve.whole
        state: State = "full" if self._store.refused or still else now.state
        if state == self._state:
            return
        self._state = state
        left = f"{now.words} on the disk of {self._home}"
        if state == "enough":
            self._tell("disk.enough", f"there is room again: {left}")
            return
        refused = self._store.refused or "the disk is full"
        begin = f"commits are refused: {refused}; {left}" if state == "full" else f"{left}; free some space before commits are refused"
        takes = told(named(self._store, largest(self._home)))
        advice = "cancel the job that fills it, which a full disk does not hinder; old checkpoints under jobs/, backups/, archive/ can go"
        self._tell(f"disk.{state}", "; ".join(filter(None, (begin, takes, advice))))


def _nothing(tx: Transaction, batch: Sequence[None]) -> Sequence[None]:
    """A commit without changes."""
    return batch
