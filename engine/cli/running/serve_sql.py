"""`stoker serve-sql`: DuckDB's own remote protocol on a read-only copy, for DuckDB clients and BI tools."""

from __future__ import annotations

import secrets
import tempfile
import threading
from pathlib import Path

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import note, write
from .upkeep import TIMEOUT


@click.command(cls=Command)
@click.option("--uri", default="quack:localhost:9494", show_default=True, help="Where to serve.")
@click.option("--token", envvar="STOKER_SQL_TOKEN", help="Token that clients must give (default: a new one, printed).")
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), help="Serve this backup in place of a fresh copy; needs no daemon."
)
@pass_app
@examples("stoker serve-sql", "stoker serve-sql --file backups/stoker.duckdb --uri quack:localhost:9500")
def serve_sql(app: App, uri: str, token: str | None, file: Path | None) -> None:
    """Serve a read-only copy of the database to DuckDB clients, in the foreground; Ctrl-C ends it.

    The copy is made when this starts and does not follow the daemon: start it again for newer rows. It needs DuckDB's
    'quack' extension, which must be installed once from the network. 'stoker sql' needs neither.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-sql-") as folder:
        copy = file or Path(folder) / "copy.duckdb"
        if file is None:
            answer = app.client.post("/v1/sql/copy", {"path": str(copy)}, timeout=TIMEOUT)
            note(f"copied what may be read, {fmt.size(answer['bytes'])}")
        _serve(copy, uri, token or secrets.token_urlsafe(24))


def _serve(copy: Path, uri: str, token: str) -> None:
    from ...adhoc.quack import open_copy, serve

    con = open_copy(copy)
    try:
        write(f"serving; a DuckDB client joins with:\n{serve(con, uri, token)};\n")
        threading.Event().wait()
    finally:
        con.close()
