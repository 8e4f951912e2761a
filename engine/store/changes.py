"""Changes of a transaction to the tables, as data: the writer applies them, and so does, in the same order, each holder of a copy.

A change carries its values and reads only its own table. So changes of different tables may be applied in any order,
and the changes of many commits to one table can be merged into one (`merged`). A `purge` is the exception.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .sqlfiles import parsed, run

if TYPE_CHECKING:
    import duckdb

Types = Mapping[str, Mapping[str, str]]  #: types of the columns of each table
Op = Literal["insert", "columns", "upsert", "update", "delete", "purge"]

_ARRAY = 1  #: msgpack's number for a NumPy column


@dataclass(frozen=True, slots=True)
class Change:
    """One statement. An update without keys changes all rows.

    ``values`` are lists (``columns``: NumPy arrays), one a column; those of a `purge` are its parameters.

    ``table`` of a `purge` is the file below sql/store/ whose statement removes or changes rows and may read any table. Timestamps are
    seconds since the epoch.
    """

    op: Op
    table: str
    columns: tuple[str, ...]
    values: list[Any]
    keys: tuple[str, ...] = ()


def apply(con: duckdb.DuckDBPyConnection, types: Types, change: Change) -> list[tuple[Any, ...]]:
    """Run the statement; returns its rows (for a `purge`: the number of changed rows)."""
    if change.op == "columns":
        return _insert_columns(con, change)
    if change.op == "purge":
        return run(con, f"store/{change.table}", *change.values).fetchall()
    if change.op == "delete":
        (key,) = change.columns
        text = f'DELETE FROM "{change.table}" WHERE "{key}" IN (SELECT unnest($1::{types[change.table][key]}[]))'
        con.execute(parsed(con, text), change.values)
        return []
    source, values = _source(types[change.table], change)
    con.execute(parsed(con, _statement(change, source)), values)
    return []


def _statement(change: Change, source: str) -> str:
    table, keys = change.table, change.keys
    others = [column for column in change.columns if column not in keys]
    if change.op == "update":
        changes = ", ".join(f'"{column}" = b."{column}"' for column in others)
        match = " AND ".join(f'"{table}"."{key}" = b."{key}"' for key in keys)
        return f'UPDATE "{table}" SET {changes} FROM ({source}) b WHERE {match or "true"}'
    insert = f'INSERT INTO "{table}" ({_names(change.columns)}) {source}'
    if change.op == "insert":
        return insert
    changes = ", ".join(f'"{column}" = excluded."{column}"' for column in others)
    return f"{insert} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"


def _source(types: Mapping[str, str], change: Change) -> tuple[str, list[Any]]:
    """A SELECT of the rows, and its parameters: one list for each column.

    A single row is passed as plain values: for it DuckDB takes longer to plan the unnesting than for all the rest.
    """
    single = len(change.values[0]) == 1
    parts = []
    for number, column in enumerate(change.columns, 1):
        stamp = types[column] == "TIMESTAMP"
        kind = "DOUBLE" if stamp else types[column]
        value = f"${number}::{kind}" if single else f"unnest(${number}::{kind}[])"
        parts.append(f'make_timestamp(CAST({value} * 1000000 AS BIGINT)) AS "{column}"' if stamp else f'{value} AS "{column}"')
    values = [column[0] for column in change.values] if single else change.values
    return "SELECT " + ", ".join(parts), values


def _insert_columns(con: duckdb.DuckDBPyConnection, change: Change) -> list[tuple[Any, ...]]:
    """Insert NumPy columns; NaN becomes NULL."""
    given = dict(zip(change.columns, change.values, strict=True))
    values = ", ".join(f"nullif(\"{c}\", 'nan'::DOUBLE)" if of.dtype.kind == "f" else f'"{c}"' for c, of in given.items())
    con.register("given_columns", given)  # a temporary view: a rollback removes it too
    con.execute(f'INSERT INTO "{change.table}" ({_names(change.columns)}) SELECT {values} FROM given_columns')
    con.unregister("given_columns")
    return []


def _names(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def merged(changes: Iterable[Change]) -> list[Change]:
    """The same changes in fewer statements: inserts into a table become one, and of updates of a row only the last counts."""
    done: list[Change] = []
    by_table: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if change.op == "purge":  # it reads other tables, so all earlier changes must come first
            done += [one for table in by_table.values() for one in table]
            by_table.clear()
            done.append(change)
            continue
        of_table = by_table[change.table]
        if of_table and _mergeable(of_table[-1], change):
            of_table[-1] = _joined(of_table[-1], change)
        else:
            of_table.append(change)
    return [_last_of_each(one) for one in (*done, *(one for table in by_table.values() for one in table))]


def _mergeable(first: Change, second: Change) -> bool:
    same = (first.op, first.columns, first.keys) == (second.op, second.columns, second.keys)
    return same and first.op in ("insert", "update", "upsert", "delete")


def _joined(first: Change, second: Change) -> Change:
    values = [a + b for a, b in zip(first.values, second.values, strict=True)]
    return Change(first.op, first.table, first.columns, values, first.keys)


def _last_of_each(change: Change) -> Change:
    """Keep only the last values for each row, as an update or upsert may name a row once."""
    if change.op not in ("update", "upsert"):
        return change
    named = [change.values[change.columns.index(key)] for key in change.keys]
    last = sorted({tuple(values[row] for values in named): row for row in range(len(change.values[0]))}.values())
    if len(last) == len(change.values[0]):
        return change
    return Change(change.op, change.table, change.columns, [[column[row] for row in last] for column in change.values], change.keys)


def encode(changes: Sequence[Change]) -> bytes:
    """Changes as bytes, for another process."""
    return msgspec.msgpack.encode(changes, enc_hook=_packed)


def decode(body: bytes) -> list[Change]:
    return msgspec.msgpack.decode(body, type=list[Change], ext_hook=_unpacked)


def _packed(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        plain = value.dtype.kind in "biufMmSU"
        body = (value.dtype.str, np.ascontiguousarray(value).tobytes()) if plain else ("O", value.tolist())
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(body, enc_hook=_packed))
    raise TypeError(f"{type(value).__name__} is no value of a column")


def _unpacked(code: int, body: memoryview) -> Any:
    import numpy as np

    kind, content = msgspec.msgpack.decode(body)
    return np.array(content, dtype=object) if kind == "O" else np.frombuffer(content, dtype=kind)
