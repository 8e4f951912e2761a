"""Access to the queries: every query longer than a line is below sql/.

A short query is in the file of its room, ``sql/ROOM.sql``, under a line ``-- name: QUERY``; a longer one in ``sql/ROOM/QUERY.sql``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = ROOT / "migrations"
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_statements: dict[str, duckdb.Statement] = {}


@functools.cache
def sql(name: str) -> str:
    """Text of the query ``ROOM/QUERY``."""
    room, _, query = name.partition("/")
    short = _short(room).get(query)
    return short if short is not None else (ROOT / "sql" / f"{name}.sql").read_text()


def parsed(con: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    """One statement, parsed once: that is a third of the cost of a query of few rows. Any connection can execute it."""
    statement = _statements.get(text)
    if statement is None:
        (statement,) = con.extract_statements(text)
        _statements[text] = statement
    return statement


def run(con: duckdb.DuckDBPyConnection, name: str, *parameters: Any) -> duckdb.DuckDBPyConnection:
    """Execute the query ``ROOM/QUERY``."""
    return con.execute(parsed(con, sql(name)), list(parameters))


@functools.cache
def names(room: str) -> tuple[str, ...]:
    """Queries of a room."""
    return tuple(sorted([*_short(room), *(path.stem for path in (ROOT / "sql" / room).glob("*.sql"))]))


@functools.cache
def _short(room: str) -> Mapping[str, str]:
    """Short queries of a room, by name."""
    path = ROOT / "sql" / f"{room}.sql"
    if not path.exists():
        return {}
    _, *parts = _NAME.split(path.read_text())
    return {name: f"{text.rstrip()}\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


def view_files() -> list[Path]:
    """Definitions of the monitoring views, each after those that it uses."""
    return sorted((ROOT / "sql" / "views").glob("*.sql"))
