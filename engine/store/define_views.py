"""Definition of the monitoring views, which takes most of the time of an opening, and is skipped when the database has them already.

The comment of the table of migrations has a digest of the files, of the views in the database, of the migrations and of DuckDB's
version. It is written in the transaction that defines the views, so that neither exists without the other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from .sqlfiles import sql, view_files

if TYPE_CHECKING:
    import duckdb

_NOTED = "SELECT comment FROM duckdb_tables() WHERE database_name = current_database() AND table_name = 'migrations'"


def define_views(con: duckdb.DuckDBPyConnection) -> None:
    """Define all views in one transaction, unless each is unchanged in the database since the last definition from the same files.

    A view that was changed, removed or added otherwise is noticed, and so is a migration, as the tables from which views select may have
    changed.
    """
    texts = [file.read_text() for file in view_files()]
    if con.execute(_NOTED).fetchall() == [(_note(con, texts),)]:
        return
    con.execute("BEGIN")
    for text in texts:
        con.execute(text)
    con.execute(f"COMMENT ON TABLE migrations IS '{_note(con, texts)}'")
    con.execute("COMMIT")


def _note(con: duckdb.DuckDBPyConnection, texts: list[str]) -> str:
    import duckdb

    migrations = con.execute("SELECT number, checksum FROM migrations ORDER BY number").fetchall()
    stored = con.execute(sql("store/views_as_stored")).fetchall()
    digest = hashlib.sha256(repr((duckdb.__version__, migrations, texts, stored)).encode())
    return f"Migrations that were applied; the views are those of digest {digest.hexdigest()}"
