"""Rows of jobs by their numbers."""

from __future__ import annotations

from ..policies.contract import Ints

_FEW = 8


class RowOf:
    """Finds rows of ``ids``. A few are searched for; for more a table is made: most decisions touch few of thousands of jobs."""

    def __init__(self, ids: Ints) -> None:
        self._ids = ids
        self._searched = 0
        self._table: dict[int, int] | None = None

    def get(self, job: int) -> int | None:
        if self._table is None:
            if self._searched < _FEW:
                self._searched += 1
                found = (self._ids == job).nonzero()[0]
                return int(found[0]) if len(found) else None
            self._table = {number: row for row, number in enumerate(self._ids.tolist())}
        return self._table.get(job)

    def __contains__(self, job: int) -> bool:
        return self.get(job) is not None

    def __getitem__(self, job: int) -> int:
        row = self.get(job)
        if row is None:
            raise KeyError(job)
        return row
