"""Columns of query results as plain arrays, joined and grouped in NumPy: DuckDB takes longer to plan a join than NumPy to compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...policies.contract import Bools, Floats, Ints, Strings
from ..store.sqlfiles import run

if TYPE_CHECKING:
    import duckdb

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]


_MISSING = {"f": np.nan, "M": np.datetime64("NaT"), "O": None}  #: by kind of array; 0 for all others


def fetch(con: duckdb.DuckDBPyConnection, name: str, *parameters: Any) -> Columns:
    """Columns of ``sql/NAME.sql``. NULL becomes NaN, NaT or None, or 0 for integers and booleans: cast to DOUBLE to tell them apart."""
    columns = run(con, name, *parameters).fetchnumpy()
    return {name: _plain(column) for name, column in columns.items()}


def fetch_of(con: duckdb.DuckDBPyConnection, name: str, keys: Array) -> Columns:
    """Columns of ``sql/NAME.sql`` for these keys; without keys no query runs. Without rows there are no columns."""
    columns = fetch(con, name, keys.tolist()) if len(keys) else {}
    return columns if any(map(len, columns.values())) else {}


def _plain(column: Array) -> Array:
    if not isinstance(column, np.ma.MaskedArray):
        return column
    values: Array = column.data  # `filled` would copy
    values[np.ma.getmaskarray(column)] = _MISSING.get(values.dtype.kind, 0)
    return values


def ints(column: Array) -> Ints:
    return column.astype(np.int64, copy=False)


def words(column: Array) -> Strings | None:
    """Texts, with '' for NULL; None: all are NULL."""
    if all(value is None for value in column):
        return None
    return np.array([value or "" for value in column], dtype=object)


def floats(column: Array, missing: float = np.nan) -> Floats:
    values: Floats = column.astype(np.float64, copy=False)
    return values if np.isnan(missing) else np.where(np.isnan(values), missing, values)


def seconds(column: Array, missing: float = np.nan) -> Floats:
    """Timestamps as seconds since the epoch."""
    return np.where(np.isnat(column), missing, column.astype("datetime64[us]", copy=False).astype(np.int64) / 1e6)


def first_known(*columns: Floats) -> Floats:
    """The first value of each row that is not NaN."""
    known = columns[-1]
    for column in columns[-2::-1]:
        known = np.where(np.isnan(column), known, column)
    return known


def rows_of(keys: Array, known: Array) -> Ints:
    """The position of each key in ``known``, which has no duplicates; -1: it is not there."""
    if not len(known):
        return np.full(len(keys), -1, dtype=np.int64)
    order = np.argsort(known)
    place = order[np.minimum(np.searchsorted(known, keys, sorter=order), len(known) - 1)]
    rows: Ints = np.where(known[place] == keys, place, -1)
    return rows


class Beside:
    """The columns of one table beside the rows of another: a left join. ``columns`` may be {}: no row has a partner."""

    def __init__(self, keys: Array, columns: Columns, key: str) -> None:
        self._columns = columns
        self._rows = rows_of(keys, columns[key] if columns else keys[:0])

    @property
    def there(self) -> Bools:
        """Whether the table has a partner for each row."""
        found: Bools = self._rows >= 0
        return found

    def floats(self, name: str, missing: float = np.nan) -> Floats:
        return self._aligned(floats(self._columns[name], missing), missing) if self._columns else self._nothing(missing)

    def seconds(self, name: str, missing: float = np.nan) -> Floats:
        return self._aligned(seconds(self._columns[name], missing), missing) if self._columns else self._nothing(missing)

    def _aligned(self, values: Floats, missing: float) -> Floats:
        aligned: Floats = np.append(values, missing)[self._rows]  # row -1 is the one appended
        return aligned

    def _nothing(self, missing: float) -> Floats:
        return np.full(len(self._rows), missing)


class GroupedRows:
    """Rows with equal keys; aggregates have a row a group, by ascending key, and skip NaN as SQL's skip NULL."""

    def __init__(self, keys: Array) -> None:
        self._order = np.argsort(keys, kind="stable")
        self.keys, self._starts = np.unique(keys[self._order], return_index=True)

    @property
    def first(self) -> Ints:
        """The first row of each group."""
        rows: Ints = self._order[self._starts]
        return rows

    def least(self, values: Floats) -> Floats:
        found: Floats = np.fmin.reduceat(values[self._order], self._starts)
        return found

    def most(self, values: Floats) -> Floats:
        found: Floats = np.fmax.reduceat(values[self._order], self._starts)
        return found

    def mean(self, values: Floats) -> Floats:
        known = ~np.isnan(values)
        count, total = (np.add.reduceat(v[self._order], self._starts) for v in (known.astype(np.float64), np.where(known, values, 0.0)))
        means: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return means


def csr(ids: Ints, owner: Ints, values: Array) -> tuple[Ints, Array]:
    """Group ``values`` by their owner in the order of ``ids``; values of owners that are not there are left out."""
    rows = rows_of(owner, ids)
    inside = rows >= 0
    rows, values = rows[inside], values[inside]
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(ids)), out=starts[1:])
    return starts, values[np.argsort(rows, kind="stable")]


def codes(values: Array) -> Ints:
    """Small codes in order of value: 0, 1, 2, …"""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
