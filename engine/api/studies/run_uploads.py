"""Uploads of simulated runs, slice by slice: a run is written only once its last slice is here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from ...errors import Conflict, LimitExceeded
from ...studies.stored_simulations import Columns, NewRun
from .uploads import Waiting

MAX_UPLOADS = 16  #: at once
MAX_ROWS = 10_000_000  #: jobs of all uploads together, 80 bytes each


@dataclass
class RunUpload:
    """The upload of one run: its first message, and the slices of its jobs."""

    first: NewRun
    user: str
    slices: list[Columns] = field(default_factory=list)
    rows: int = 0
    seen: float = 0.0

    def take(self, jobs: Columns) -> None:
        self.slices.append(jobs)
        self.rows += rows_of(jobs)
        self.seen = time.monotonic()

    def whole(self) -> NewRun:
        jobs = {name: np.concatenate([part[name] for part in self.slices]) for name in self.first.jobs}
        return NewRun(self.first.row, jobs, self.first.usage, self.first.user)


class RunUploads(Waiting[RunUpload]):
    """Those of runs."""

    def begin(self, first: NewRun) -> str:
        """Keep a run until the rest of it comes; the token to send that with."""
        upload = RunUpload(first, first.user)
        upload.take(first.jobs)
        return self._keep(upload, MAX_UPLOADS, f"{MAX_UPLOADS} runs are being stored already: try again when one of them is done")

    def add(self, token: str, user: str, offset: int, jobs: Columns) -> None:
        """Append a slice that begins at row ``offset``."""
        with self._lock:
            upload = self._find(token, user)
            if offset != upload.rows:
                raise Conflict(f"offset: row {upload.rows} is next, not {offset}")
            if sum(one.rows for one in self._waiting.values()) + rows_of(jobs) > MAX_ROWS:
                del self._waiting[token]
                raise LimitExceeded(f"the runs that are being stored have more than {MAX_ROWS} jobs together")
            upload.take(jobs)

    def end(self, token: str, user: str) -> NewRun:
        """The whole run; its token is no longer valid."""
        with self._lock:
            upload = self._find(token, user)
            del self._waiting[token]
        return upload.whole()


def rows_of(columns: Columns) -> int:
    return max((len(column) for column in columns.values()), default=0)
