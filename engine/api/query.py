"""Runs one ad-hoc statement: read only, watched, cut off at its limits, answered as JSON rows, CSV or Parquet.

A query must never reach the memory limit of the database: a commit of the writer that finds no memory there
cannot even be rolled back, which DuckDB answers by invalidating the whole database (measured, 2.0.0). So, in
this order: the guard refuses what makes much of little in one step; sorts and hash tables spill beyond a
share of it (`operator_memory_limit`); what does not spill, such as list() or median(), is
interrupted by a watcher when queries hold half of it, or when the process has grown too much, or after its time.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LimitExceeded, StokerError, StoreError, UsageError
from ..sqlfiles import sql as sql_file

if TYPE_CHECKING:
    import duckdb
    from starlette.responses import Response

    from ..store.store import Store
    from .sqlguard import Statement

FORMATS = ("json", "csv", "parquet")
MAX_ROWS = 1_000_000
MAX_SECONDS = 300.0
AT_ONCE = 2  #: ad-hoc statements that run at a time; more wait, within their own time limit
_slots = threading.BoundedSemaphore(AT_ONCE)

_SPILL_SHARE = 1 / 8  #: of the database's memory: beyond it, sorts and hash tables of one query spill
_SHARE = 1 / 2  #: of the database's memory: all that queries may hold together; the rest is the writer's
_FETCH = 1000
_TICK = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What one statement may use."""

    rows: int = 10_000
    seconds: float = 30.0
    memory: int = 1 << 30  #: bytes by which the process may grow while it runs
    answer: int = 64 << 20  #: bytes of the answer


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a statement, as Python values of DuckDB's types."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool
    seconds: float

    def json(self) -> dict[str, Any]:
        """The answer of ``POST /v1/sql``: times as ISO 8601, durations in seconds, decimals as numbers, blobs as hexadecimal."""
        rows = [[plain(value) for value in row] for row in self.rows]
        return {"columns": self.columns, "types": self.types, "rows": rows, "truncated": self.truncated, "seconds": self.seconds}

    def csv(self) -> bytes:
        """With a header line; NULL is empty, nested values are JSON."""
        import json

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            cells = [plain(value) for value in row]
            writer.writerow([json.dumps(cell) if isinstance(cell, dict | list) else cell for cell in cells])
        return text.getvalue().encode()


@dataclass(frozen=True, slots=True)
class ParquetFile:
    body: bytes
    truncated: bool  #: as many rows as the limit: there may be more
    seconds: float


def answer(store: Store, sql: str, format: str, limit: int | None, timeout: float | None) -> dict[str, Any] | Response:
    """The answer of ``POST /v1/sql``."""
    from starlette.responses import Response

    limits = _limits(limit, timeout)
    with store.read() as con:
        tables = readable(con)
        if format == "parquet":
            parquet = run_parquet(con.cursor, sql, limits, tables, scratch(store.path.parent))
            headers = {"X-Stoker-Truncated": str(parquet.truncated).lower()}
            return Response(parquet.body, media_type="application/vnd.apache.parquet", headers=headers)
        result = run_query(con.cursor, sql, limits, tables)
    if format == "csv":
        return Response(result.csv(), media_type="text/csv", headers={"X-Stoker-Truncated": str(result.truncated).lower()})
    return result.json()


def _limits(rows: int | None, seconds: float | None) -> Limits:
    default = Limits()
    rows = default.rows if rows is None else rows
    seconds = default.seconds if seconds is None else seconds
    if not 1 <= rows <= MAX_ROWS:
        raise UsageError(f"limit: {rows} is outside its range 1 to {MAX_ROWS}")
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"timeout: {seconds:g} s is outside its range 0 to {MAX_SECONDS:g}")
    return Limits(rows=rows, seconds=seconds)


def scratch(home: Path) -> Path:
    """Where Parquet answers are made; `lock_down` must allow it."""
    path = home / "scratch"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def readable(con: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Tables and views of ours in the open database."""
    return frozenset(row[0] for row in con.execute(sql_file("api/readable")).fetchall())


def run_query(cursor: Callable[[], duckdb.DuckDBPyConnection], sql: str, limits: Limits, tables: Collection[str]) -> Result:
    """Guard and run ``sql`` on a cursor of its own, which ends with it.

    ``tables`` are the names that may be read. Raises UsageError for what is not allowed or wrong, LimitExceeded when it was cut off.
    """
    with _session(cursor, sql, limits, tables) as (con, statement, watch):
        if statement.explain:
            con.execute(f"EXPLAIN {statement.text}")
            names, types = _described(con)
        elif statement.wrappable:
            names, types = _shape(con, statement)
            zoned = any("WITH TIME ZONE" in kind for kind in types)
            con.execute(_without_zones(statement.text, types) if zoned else statement.text)
            if not zoned:
                names, _ = _described(con)  # as written: a subquery numbers those that come twice
        else:
            con.execute(statement.text)
            names, types = _described(con)
        rows, truncated = _fetch(con, limits)
        return Result(names, types, rows, truncated, watch.elapsed)


def run_parquet(
    cursor: Callable[[], duckdb.DuckDBPyConnection], sql: str, limits: Limits, tables: Collection[str], scratch: Path
) -> ParquetFile:
    """The same with the answer as a Parquet file, made in ``scratch``, a directory that the locked database may write."""
    path = scratch / f"answer-{uuid.uuid4().hex}.parquet"
    target = str(path).replace("'", "''")
    try:
        with _session(cursor, sql, limits, tables) as (con, statement, watch):
            if statement.explain or not statement.wrappable:
                raise UsageError("format: parquet is for queries; ask for DESCRIBE, SHOW and EXPLAIN as json or csv")
            rows = f"SELECT * FROM (\n{statement.text}\n) LIMIT {limits.rows:d}"
            count = con.execute(f"COPY ({rows}) TO '{target}' (FORMAT parquet)").fetchall()[0][0]
            if path.stat().st_size > limits.answer:
                raise _too_large(limits)
            return ParquetFile(path.read_bytes(), count >= limits.rows, watch.elapsed)
    finally:
        path.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """A value of DuckDB's as JSON knows it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value.total_seconds()
        case bytes() | bytearray():
            return bytes(value).hex()
        case dict():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return str(value)


class _Watch:
    """Interrupts a connection when its time is over or queries take too much memory, and knows which it was."""

    def __init__(self, con: duckdb.DuckDBPyConnection, limits: Limits, started: float) -> None:
        import psutil

        self._con = con
        self._meter = con.cursor()
        self._limits = limits
        self._started = started
        available = _memory_limit(con)
        con.execute(f"SET operator_memory_limit = '{int(available * _SPILL_SHARE)} bytes'")
        self._share = int(available * _SHARE)
        self._process = psutil.Process()
        self._memory = self._process.memory_info().rss
        self._done = threading.Event()
        self.fired: LimitExceeded | None = None
        self._thread = threading.Thread(target=self._run, name="sql-watch", daemon=True)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._meter.close()

    def _run(self) -> None:
        while not self._done.wait(_TICK):
            self.fired = self.fired or self._exceeded()
            if self.fired:
                # Each tick anew: an interrupt between two statements is forgotten.
                self._con.interrupt()

    def _exceeded(self) -> LimitExceeded | None:
        if self.elapsed > self._limits.seconds:
            return LimitExceeded(f"query: stopped after its time limit of {self._limits.seconds:g} s; narrow it, or ask for more time")
        if self._process.memory_info().rss - self._memory > self._limits.memory:
            return LimitExceeded(f"query: stopped, it took more than {self._limits.memory >> 20} MiB of memory; {_LESS}")
        if _working_memory(self._meter) > self._share:
            return LimitExceeded(f"query: stopped, it took more than {self._share >> 20} MiB of the database's memory; {_LESS}")
        return None


def _memory_limit(con: duckdb.DuckDBPyConnection) -> int:
    return int(con.execute(sql_file("api/memory_limit")).fetchall()[0][0])


def _working_memory(con: duckdb.DuckDBPyConnection) -> int:
    """Bytes that queries hold, without what DuckDB merely caches of the file."""
    import duckdb

    try:
        return int(con.execute(sql_file("api/working_memory")).fetchall()[0][0])
    except duckdb.OutOfMemoryException:
        return 1 << 62


_LESS = "aggregate or filter earlier, or join on more columns"


@contextlib.contextmanager
def _session(
    cursor: Callable[[], duckdb.DuckDBPyConnection], sql: str, limits: Limits, tables: Collection[str]
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Statement, _Watch]]:
    """A guarded statement and a watched cursor in a read-only transaction; errors become people's errors."""
    from .sqlguard import check_parsed, guard

    started = time.monotonic()
    statement = guard(sql, tables)
    if not _slots.acquire(timeout=limits.seconds):
        raise LimitExceeded(f"query: {AT_ONCE} others are running and none ended within {limits.seconds:g} s; try again")
    try:
        con = cursor()
        watch = _Watch(con, limits, started)
        try:
            with watch:
                con.execute("BEGIN TRANSACTION READ ONLY")
                parsed = con.execute("SELECT json_serialize_sql($1)", [statement.text]).fetchall()[0][0]
                check_parsed(parsed, tables)
                yield con, statement, watch
        except Exception as error:
            raise watch.fired or _translated(error) from None
        finally:
            con.close()  # with its transaction and whatever it held
    finally:
        _slots.release()


def _translated(error: Exception) -> Exception:
    import duckdb

    text = " ".join(str(error).split())
    if isinstance(error, StokerError) or not isinstance(error, duckdb.Error | MemoryError):
        return error
    if isinstance(error, duckdb.FatalException | duckdb.InternalException):
        return StoreError(f"the database failed on this query: {text[:300]}")
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return LimitExceeded(f"query: it needs more memory than the daemon may use; {_LESS}")
    return UsageError(f"query: {text[:500]}")


def _shape(con: duckdb.DuckDBPyConnection, statement: Statement) -> tuple[list[str], list[str]]:
    columns = con.execute(f"DESCRIBE SELECT * FROM (\n{statement.text}\n)").fetchall()
    return [column[0] for column in columns], [column[1] for column in columns]


def _described(con: duckdb.DuckDBPyConnection) -> tuple[list[str], list[str]]:
    description = con.description or []
    return [column[0] for column in description], [str(column[1]) for column in description]


def _without_zones(text: str, types: list[str]) -> str:
    """The statement with times that carry a zone turned to UTC ones: Python can fetch the former only where pytz is installed."""
    names = [f"c{number}" for number in range(len(types))]
    parts = []
    for name, kind in zip(names, types, strict=True):
        if kind == "TIMESTAMP WITH TIME ZONE":
            parts.append(f"make_timestamp(epoch_us({name})) AS {name}")
        else:
            parts.append(f"{name}::VARCHAR AS {name}" if "WITH TIME ZONE" in kind else name)
    return f"SELECT {', '.join(parts)} FROM (\n{text}\n) AS answer({', '.join(names)})"


def _fetch(con: duckdb.DuckDBPyConnection, limits: Limits) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows up to the limits; few at first, then as many at a time as should fit: rows can be of any width."""
    rows: list[tuple[Any, ...]] = []
    size, count = 0, 8
    while chunk := con.fetchmany(min(count, limits.rows + 1 - len(rows))):
        size += sum(_size(value) for row in chunk for value in row)
        if size > limits.answer:
            raise _too_large(limits)
        rows += chunk
        if len(rows) > limits.rows:
            return rows[: limits.rows], True
        width = 1 + size // len(rows)
        count = max(1, min(_FETCH, (limits.answer - size) // width))
    return rows, False


def _size(value: Any) -> int:
    match value:
        case str() | bytes():
            return len(value)
        case dict():
            return sum(_size(item) for item in value.values()) + 8 * len(value)
        case list() | tuple():
            return sum(map(_size, value))
    return 8


def _too_large(limits: Limits) -> LimitExceeded:
    return LimitExceeded(f"query: the answer is larger than {limits.answer >> 20} MiB; select fewer columns or rows")
