"""`stoker adapters`: what ended fine-tunings left for others to begin with."""

from __future__ import annotations

import time
from urllib.parse import urlencode

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import Answer, Column, Row, json_option, print_table


def _came_of_it(row: Row) -> str:
    """Jobs that began with it."""
    return fmt.MISSING if not row["helped"] + row["undone"] else f"{row['helped']} kept, {row['undone']} undone"


def _columns(now: float) -> list[Column]:
    return [
        Column("JOB", lambda row: str(row["job_id"]), right=True),
        Column("NAME", "job", rank=1),
        Column("USER", "owner", rank=2),
        Column("BACKBONE", "backbone"),
        Column("REVISION", "revision", rank=3),
        Column("TRAINS", "petl", rank=1),
        Column("DATA", "data"),
        Column("LABELS", "labels", flexible=True),
        Column("STEPS", lambda row: str(row["steps"]), right=True, rank=2),
        Column("SIZE", lambda row: fmt.size(row["bytes"]), right=True, rank=3),
        Column("ENDED", lambda row: fmt.moment(row["ended_at"], now), rank=2),
        Column("BEGUN WITH IT", _came_of_it),
        Column("GONE", lambda row: row["gone"] or "", flexible=True, rank=1),
    ]


@click.command(cls=Command)
@click.option("--user", metavar="USER", help="Of this user alone.")
@click.option("--all", "every", is_flag=True, help="Those too with which nobody can begin any more, and why.")
@json_option
@pass_app
@examples("stoker adapters", "stoker adapters --all --json", "stoker sql 'FROM transfers'")
def adapters(app: App, user: str | None, every: bool) -> Answer:
    """List the adapters of ended fine-tunings with which other jobs may begin (begin: in a job's file).

    A job begins with those of its own user, its backbone's revision and its form of training. The newest two of each data set are kept.
    """
    asked = {"all": "1"} if every else {}
    query = urlencode(asked | ({"user": user} if user else {}))
    answer = app.client.get(f"/v1/adapters?{query}" if query else "/v1/adapters")
    nothing = "no ended fine-tuning has left an adapter" + (f" of {user}" if user else "")
    return Answer(answer, lambda: print_table(answer["adapters"], _columns(time.time()), nothing))
