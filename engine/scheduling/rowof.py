"""Rows of jobs by their numbers."""

from __future__ import annotations

from ...policies.contract import Ints

_FEW = 8


class RowOf:
    """Finds rows of ``ids``. The first few are searched for; then a table is built. Most decisions touch few of thousands of jobs."""

    def __init__(self, ids: Ints) -> None:
        self._ids = ids
        self._found: dict[int, int | None] = {}  # results of searches
        self._table: dict[int, int] | None = None

    def get(self, job: int) -> int | None:
        if self._table is not None:
            return self._table.get(job)
        if job in self._found:
            return self._found[job]
        if len(self._found) < _FEW:
            found = (self._ids == job).nonzero()[0]
            row = self._found[job] = int(found[0]) if len(found) else None
            return row
        self._table = {number: row for row, number in enumerate(self._ids.tolist())}
        return self._table.get(job)

    def __contains__(self, job: int) -> bool:
        return self.get(job) is not None

    def __getitem__(self, job: int) -> int:
        row = self.get(job)
        if row is None:
            raise KeyError(job)
        return row
