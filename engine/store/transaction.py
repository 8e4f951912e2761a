"""One transaction of the writer: vectorised inserts and updates, numbers, events, and the topics that it touches."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .acknowledged import CommitMark, count, counted
from .changes import Change, Op, apply
from .sqlfiles import run, sql

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

Row = Mapping[str, Any]


class Catalog:
    """Column types of every table and the next free number of every numbered one; lives as long as the store."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self.types: dict[str, dict[str, str]] = defaultdict(dict)
        for table, column, kind in con.execute(sql("store/columns")).fetchall():
            self.types[table][column] = kind
        keys = {
            table: next((name for name in ("id", "seq") if columns.get(name) == "BIGINT"), None)
            for table, columns in self.types.items()
            if table not in ("metrics", "pipelines", "report_marks")
        }
        largest = [f'SELECT \'{table}\', 1 + coalesce(max("{key}"), 0) FROM "{table}"' for table, key in keys.items() if key]
        self._next: dict[str, int] = dict(con.execute(" UNION ALL ".join(largest)).fetchall())
        self._counted = counted(con)

    def skip(self, table: str, used: int) -> None:
        """Do not give out numbers up to ``used``."""
        self._next[table] = max(self._next.get(table, 0), used + 1)

    @property
    def next_commit(self) -> int:
        return self._counted.number + 1

    def committed(self, number: int, at: float) -> None:
        self._counted = CommitMark(self._counted.database, number, at)

    def mark(self) -> CommitMark:
        """The last commit of the database."""
        return msgspec.structs.replace(self._counted, used={table: number - 1 for table, number in self._next.items()})

    def number(self, table: str) -> int:
        """The next number of a table. One thread writes, so a counter in memory is enough; a rollback leaves a gap."""
        number = self._next[table]
        self._next[table] = number + 1
        return number


class Transaction:
    """The tools of a write command. ``now`` (s since the epoch) stays the same during a transaction, unless the clock is set (`clock`)."""

    def __init__(self, con: duckdb.DuckDBPyConnection, catalog: Catalog, now: float) -> None:
        self._con = con
        self._catalog = catalog
        self._events: list[dict[str, Any]] = []
        self.now = now
        self.topics: set[str] = set()
        self.changes: list[Change] = []  #: its changes, in order

    def touch(self, *topics: str) -> None:
        """Name the topics that this transaction changes, for listeners: ``queue``, ``leases``, ``policy``, ``nodes``, ``watched``
        (metrics that jobs stop at)."""
        self.topics.update(topics)

    def number(self, table: str) -> int:
        return self._catalog.number(table)

    def execute(self, name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the SELECT of ``sql/store/NAME.sql``."""
        return run(self._con, f"store/{name}", *parameters).fetchall()

    def objects(self, name: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows as dictionaries, column to value."""
        rows = run(self._con, f"store/{name}", *parameters)
        columns = [column[0] for column in rows.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows (all with the same columns) by one statement."""
        if rows:
            self._change("insert", table, tuple(rows[0]), rows)

    def insert_columns(self, table: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Insert rows given as NumPy columns: for thousands of rows at a twentieth of the cost of `insert`. NaN becomes NULL."""
        self._apply(Change("columns", table, tuple(columns), list(columns.values())))

    def upsert(self, table: str, keys: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows, or update those whose keys exist already; keys must differ within ``rows``."""
        if rows:
            self._change("upsert", table, tuple(rows[0]), rows, tuple(keys))

    def put(self, table: str, keys: Sequence[str], rows: Sequence[Row], known: Collection[tuple[Any, ...]]) -> None:
        """Update the rows whose keys are ``known`` to exist, insert the others: half the cost of `upsert`, which DuckDB runs as a merge."""
        old: list[Row] = []
        new: list[Row] = []
        for row in rows:
            (old if tuple(row[key] for key in keys) in known else new).append(row)
        self.update(table, keys, old)
        self.insert(table, new)

    def update(self, table: str, keys: Sequence[str], rows: Sequence[Row]) -> None:
        """Set the other columns of the rows with these keys, one statement for each set of columns."""
        by_columns: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in rows:
            by_columns[tuple(row)].append(row)
        for columns, group in by_columns.items():
            self._change("update", table, columns, group, tuple(keys))

    def delete(self, table: str, key: str, values: Iterable[Any]) -> None:
        """Delete the rows whose ``key`` is among ``values``."""
        if wanted := list(values):
            self._apply(Change("delete", table, (key,), [wanted]))

    def purge(self, name: str, *parameters: Any) -> int:
        """Run the DELETE or UPDATE of ``sql/store/NAME.sql``; returns the number of changed rows."""
        return int(self._apply(Change("purge", name, (), list(parameters)))[0][0])

    def _change(self, op: Op, table: str, columns: tuple[str, ...], rows: Sequence[Row], keys: tuple[str, ...] = ()) -> None:
        self._apply(Change(op, table, columns, [[row[column] for row in rows] for column in columns], keys))

    def _apply(self, change: Change) -> list[tuple[Any, ...]]:
        answer = apply(self._con, self._catalog.types, change)
        self.changes.append(change)
        return answer

    def event(
        self,
        kind: str,
        actor: str,
        *,
        job: int | None = None,
        lease: int | None = None,
        node: str | None = None,
        before: str | None = None,
        after: str | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Append to the history, in this transaction."""
        self._events.append(
            {
                "seq": self.number("events"),
                "ts": self.now,
                "kind": kind,
                "job_id": job,
                "lease_id": lease,
                "node_id": node,
                "before": before,
                "after": after,
                "actor": actor,
                "reason": reason,
                "detail": None if detail is None else json.dumps(detail),
            }
        )

    def count(self) -> int:
        """Write the number of this transaction and return it; a rollback takes it back."""
        number = self._catalog.next_commit
        self._apply(count(number, self.now))
        return number

    def flush(self) -> list[dict[str, Any]]:
        """Write the collected events; listeners also get them after the commit."""
        events, self._events = self._events, []
        self.insert("events", events)
        return events
