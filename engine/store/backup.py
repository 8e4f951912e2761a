"""Copies of the database: write a new file, verify it, rename it. So no half-written file ever has the final name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError, UsageError

if TYPE_CHECKING:
    import duckdb

_COUNT = "SELECT table_name FROM duckdb_tables() WHERE database_name = $1 AND NOT internal AND NOT temporary ORDER BY 1"


def copy_database(con: duckdb.DuckDBPyConnection, target: Path) -> dict[str, int]:
    """Copy all commits to ``target``, which must not exist; returns the rows of each table, equal in both."""
    if target.exists():
        raise UsageError(f"{target} exists: name another file, or move it away")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a directory: make it first")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    quoted = str(temporary).replace("'", "''")
    source = con.execute("SELECT current_database()").fetchall()[0][0]
    try:
        con.execute(f"ATTACH '{quoted}' AS backup_copy")
        try:
            con.execute(f'COPY FROM DATABASE "{source}" TO backup_copy')
            counts = _counts(con, source)
            if counts != (copied := _counts(con, "backup_copy")):
                raise StoreError(f"the copy differs from the database ({copied} instead of {counts}); it was removed")
        finally:
            con.execute("DETACH backup_copy")
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o600)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        temporary.with_name(temporary.name + ".wal").unlink(missing_ok=True)
    return counts


def _counts(con: duckdb.DuckDBPyConnection, database: str) -> dict[str, int]:
    tables = [row[0] for row in con.execute(_COUNT, [database]).fetchall()]
    return {table: con.execute(f'SELECT count(*) FROM "{database}"."{table}"').fetchall()[0][0] for table in tables}
