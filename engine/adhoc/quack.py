"""`stoker serve-sql`: a read-only copy of the database over DuckDB's remote protocol, for DuckDB clients and BI tools.

It serves a copy, not the live file: the protocol's server runs any SQL of its clients, so it must not sit in the
daemon's process, and DuckDB lets no second process open the daemon's file, not even to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFound, StoreError, UsageError
from ..store.lockdown import lock_down

if TYPE_CHECKING:
    import duckdb

_MISSING = (
    "DuckDB's 'quack' extension is not installed, and it is not part of the duckdb package: install it once, where there is a network, "
    "with: python -c \"import duckdb; duckdb.execute('INSTALL quack')\"; without it, 'stoker backup FILE' makes a copy that any DuckDB "
    "client opens, and 'stoker sql -o parquet' a file that every tool reads"
)


def open_copy(copy: Path) -> duckdb.DuckDBPyConnection:
    """Open a backup for strangers: read only, no files, no settings; UsageError if the extension is not available."""
    import duckdb

    if not copy.is_file():
        raise NotFound(f"{copy}: no such file; make a copy with 'stoker backup'")
    con = duckdb.connect(str(copy), read_only=True)
    try:
        con.execute("LOAD quack")  # before the lock: it is a file, too
    except duckdb.Error:
        con.close()
        raise UsageError(_MISSING) from None
    lock_down(con, ())
    return con


def serve(con: duckdb.DuckDBPyConnection, uri: str, token: str) -> str:
    """Start the server in the background of ``con``; returns the SQL with which a client attaches. It ends when ``con`` is closed."""
    import duckdb

    if not token:
        raise UsageError("token: the server needs one, or everybody who reaches it reads everything")
    try:
        con.execute("CALL quack_serve($1, token => $2)", [uri, token])
    except duckdb.Error as error:
        raise StoreError(f"{uri}: the server did not start: {' '.join(str(error).split())[:300]}") from None
    return f"ATTACH '{uri}' AS stoker (TOKEN '{token}')"
