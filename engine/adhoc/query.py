"""Runs one ad-hoc statement on a connection: read only, checked by the guard, answered as JSON rows, CSV or Parquet.

It is called in a process for this one statement (`server.py`), so time and memory are not watched here: a statement
that takes too much is killed.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import math
import re
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LimitExceeded, StokerError, UsageError
from ..store.sqlfiles import sql as sql_file

if TYPE_CHECKING:
    import duckdb

    from .allowed import Statement

_FETCH = 1000  #: rows at a time
_REMEDY = "aggregate or filter earlier, or join on more columns"


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """How large an answer may be."""

    rows: int = 10_000
    answer: int = 64 << 20  #: bytes


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


def readable(con: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Tables and views of ours in the open database."""
    return frozenset(row[0] for row in con.execute(sql_file("api/readable")).fetchall())


def run_query(con: duckdb.DuckDBPyConnection, sql: str, limits: AnswerLimits, tables: Collection[str]) -> Result:
    """Guard and run ``sql``. ``tables`` are the names that may be read.

    Raises UsageError for a refused or wrong statement, LimitExceeded if it needs too much.
    """
    started = time.monotonic()
    with _session(con, sql, tables) as statement:
        if statement.explain:
            _within(con, "EXPLAIN", statement.text)
            names, types = _described(con)
        elif statement.wrappable:
            names, types = _shape(con, statement)
            zoned = any("WITH TIME ZONE" in kind for kind in types)
            if zoned:
                _without_zones(con, statement.text, types)
            else:
                con.execute(statement.text)
                names, _ = _described(con)  # as written: a subquery numbers those that come twice
        else:
            con.execute(statement.text)
            names, types = _described(con)
        rows, truncated = _fetch(con, limits)
        return Result(names, types, rows, truncated, time.monotonic() - started)


def run_parquet(con: duckdb.DuckDBPyConnection, sql: str, limits: AnswerLimits, tables: Collection[str], scratch: Path) -> ParquetFile:
    """The same with the answer as a Parquet file, made in ``scratch``, a directory that the locked database may write."""
    path = scratch / f"answer-{uuid.uuid4().hex}.parquet"
    target = str(path).replace("'", "''")
    try:
        with _session(con, sql, tables) as statement:
            if statement.explain or not statement.wrappable:
                raise UsageError("format: parquet is for queries; ask for DESCRIBE, SHOW and EXPLAIN as json or csv")
            after = f") LIMIT {limits.rows:d}) TO '{target}' (FORMAT parquet)"
            with _bounded(con, path, limits):
                count = _within(con, "COPY (SELECT * FROM (", statement.text, after).fetchall()[0][0]
            return ParquetFile(path.read_bytes(), count >= limits.rows)
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _bounded(con: duckdb.DuckDBPyConnection, path: Path, limits: AnswerLimits) -> Iterator[None]:
    """Interrupt the writing of the file when it grows too large: a disk holds more than an answer may."""
    done, exceeded = threading.Event(), threading.Event()

    def grown() -> bool:
        return exceeded.is_set() or (path.exists() and path.stat().st_size > limits.answer)

    def watch() -> None:
        while not done.wait(0.02):
            if grown():
                exceeded.set()  # an interrupted query removes its file
                con.interrupt()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except Exception:
        if grown():
            raise too_large(limits) from None
        raise
    finally:
        done.set()
        watching.join()
    if grown():
        raise too_large(limits)


@contextlib.contextmanager
def _session(con: duckdb.DuckDBPyConnection, sql: str, tables: Collection[str]) -> Iterator[Statement]:
    """A guarded statement and a read-only transaction around it; errors become people's errors."""
    from .allowed import Unserialised, check_parsed, guard

    statement = guard(sql, tables)
    try:
        con.execute("BEGIN TRANSACTION READ ONLY")
        try:
            parsed = con.execute("SELECT json_serialize_sql($1)", [statement.text]).fetchall()[0][0]
            try:
                check_parsed(parsed, tables)
            except Unserialised:
                if not statement.pivot:
                    raise
                # Its columns are values of rows, which DuckDB reads first. The answer is kept, to be queried like others.
                _within(con, "CREATE TEMP TABLE pivoted AS (", statement.text, ")")
                statement = replace(statement, text="FROM pivoted")
            yield statement
        finally:
            with contextlib.suppress(Exception):  # a database that has failed cannot even roll back
                con.execute("ROLLBACK")
    except Exception as error:
        raise _translated(error, statement.above) from None


def _within(con: duckdb.DuckDBPyConnection, before: str, text: str, after: str = "") -> duckdb.DuckDBPyConnection:
    """Run a statement inside another, on lines of its own; errors name its lines by their own numbers."""
    import duckdb

    try:
        return con.execute(f"{before}\n{text}\n{after}")
    except duckdb.Error as error:
        raise type(error)(_moved(str(error), -1)) from None


def _moved(said: str, by: int) -> str:
    return re.sub(r"^LINE (\d+):", lambda line: f"LINE {int(line[1]) + by}:", said, flags=re.MULTILINE)


def _translated(error: Exception, above: int) -> Exception:
    """``above``: lines that were given before the statement."""
    import duckdb

    text = " ".join(_moved(str(error), above).split())
    if isinstance(error, OverflowError | ValueError):  # such as an interval of a million years
        return UsageError(f"query: a value cannot be answered: {text[:200]}; cast it to VARCHAR")
    if isinstance(error, StokerError) or not isinstance(error, duckdb.Error | MemoryError):
        return error
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return LimitExceeded(f"query: it needs more memory than it may use; {_REMEDY}")
    return UsageError(f"query: {text[:500]}")


def plain(value: Any) -> Any:
    """A value of DuckDB's in JSON's types."""
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


def _shape(con: duckdb.DuckDBPyConnection, statement: Statement) -> tuple[list[str], list[str]]:
    columns = _within(con, "DESCRIBE SELECT * FROM (", statement.text, ")").fetchall()
    return [column[0] for column in columns], [column[1] for column in columns]


def _described(con: duckdb.DuckDBPyConnection) -> tuple[list[str], list[str]]:
    description = con.description or []
    return [column[0] for column in description], [str(column[1]) for column in description]


def _without_zones(con: duckdb.DuckDBPyConnection, text: str, types: list[str]) -> None:
    """Run the statement with times with a zone turned to UTC ones: Python can fetch the former only if pytz is installed."""
    names = [f"c{number}" for number in range(len(types))]
    parts = []
    for name, kind in zip(names, types, strict=True):
        if kind == "TIMESTAMP WITH TIME ZONE":
            parts.append(f"make_timestamp(epoch_us({name})) AS {name}")
        else:
            parts.append(f"{name}::VARCHAR AS {name}" if "WITH TIME ZONE" in kind else name)
    _within(con, f"SELECT {', '.join(parts)} FROM (", text, f") AS answer({', '.join(names)})")


def _fetch(con: duckdb.DuckDBPyConnection, limits: AnswerLimits) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows up to the limits; few at first, then as many at a time as should fit, as rows may be of any width."""
    rows: list[tuple[Any, ...]] = []
    size, count = 0, 8
    while chunk := con.fetchmany(min(count, limits.rows + 1 - len(rows))):
        size += sum(_size(value) for row in chunk for value in row)
        if size > limits.answer:
            raise too_large(limits)
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


def too_large(limits: AnswerLimits) -> LimitExceeded:
    return LimitExceeded(f"query: the answer is larger than {limits.answer >> 20} MiB; select fewer columns or rows")
