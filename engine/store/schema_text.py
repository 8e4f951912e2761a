"""The tables and views of the open database with their comments, as `GET /v1/schema` and `stoker schema` show them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from .sqlfiles import sql

if TYPE_CHECKING:
    import duckdb


def schema(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Views first, each relation as ``{name, kind, comment, columns: [{name, type, comment}]}``."""
    rows = con.execute(sql("api/schema")).fetchall()
    return [
        {
            "name": name,
            "kind": kind,
            "comment": comment,
            "columns": [{"name": column, "type": type_, "comment": meaning} for *_, column, type_, meaning in columns],
        }
        for (kind, name, comment), columns in groupby(rows, key=lambda row: row[:3])
    ]
