"""The database file: backup and compaction."""

from __future__ import annotations

from pathlib import Path

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import Answer, json_option, write

TIMEOUT = 3600.0  #: seconds, enough for a large file


@click.command(cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@json_option
@pass_app
@examples("stoker backup", "stoker backup /mnt/backup/stoker.duckdb")
def backup(app: App, file: Path | None) -> Answer:
    """Write a verified copy of the database to FILE, by default into the backups of the home.

    Jobs go on meanwhile. The copy is a DuckDB file of its own: open it with any DuckDB, or put it in place of the
    database while the daemon is down.
    """
    answer = app.client.post("/v1/backup", {"path": str(file.absolute()) if file else None}, timeout=TIMEOUT)
    rows = sum(answer["tables"].values())
    said = f"{answer['path']}: {fmt.size(answer['bytes'])}, {rows} rows, in {fmt.duration(answer['seconds'])}"
    return Answer(answer, lambda: write(said + "\n"), done=f"the copy is written: {answer['path']}")


@click.command(cls=Command)
@json_option
@pass_app
@examples("stoker compact")
def compact(app: App) -> Answer:
    """Rewrite the database file without its gaps: a new file is written, verified and put in place."""
    answer = app.client.post("/v1/compact", {}, timeout=TIMEOUT)
    said = f"{fmt.size(answer['before'])} before, {fmt.size(answer['after'])} after"
    return Answer(answer, lambda: write(f"{said}\n"), done=f"the database is compacted: {said}")
