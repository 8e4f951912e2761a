"""`stoker clean`: the kept data."""

from __future__ import annotations

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import Answer, Column, Row, json_option, print_table

TIMEOUT = 120.0  #: seconds: directories are measured


def _until(row: Row) -> str:
    return "" if row["seconds"] is None else fmt.duration(row["seconds"])


_COLUMNS = [
    Column("WHAT", "what"),
    Column("SIZE", lambda row: "" if row["bytes"] is None else fmt.size(row["bytes"]), right=True),
    Column("ROWS", lambda row: "" if row["rows"] is None else f"{row['rows']:,}", right=True, rank=2),
    Column("SINCE", lambda row: "" if row["oldest"] is None else fmt.clock(row["oldest"])[:10], rank=3),
    Column("KEPT FOR", _until, right=True),
    Column("THEN", "how", flexible=True, least=30),
    Column("WHERE", "where", flexible=True, rank=1),
]


@click.command(cls=Command)
@json_option
@pass_app
@examples("stoker clean", "stoker clean --json")
def clean(app: App) -> Answer:
    """Show the kept data, their sizes, and the time until which they are kept.

    Stoker removes data past its time by itself, once an hour; days are set under [retention] in config.toml. Results are not
    removed: checkpoints stay until you remove them, below 'jobs' of the home.
    """
    rows = app.client.get("/v1/kept", timeout=TIMEOUT)["kept"]
    return Answer(rows, lambda: print_table(rows, _COLUMNS, "nothing"))
