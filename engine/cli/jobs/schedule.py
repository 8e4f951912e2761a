"""Recurring jobs."""

from __future__ import annotations

import time

import click

from ... import format as fmt
from ..command import App, Group, examples, pass_app
from ..output import Answer, Column, json_option, print_table, write


@click.group(cls=Group)
@examples("stoker schedule list", "stoker schedule remove 2")
def schedule() -> None:
    """Recurring jobs. A job spec with 'cron:' that is submitted becomes one."""


@schedule.command("list")
@json_option
@pass_app
@examples("stoker schedule list")
def list_(app: App) -> Answer:
    """List the recurring jobs."""
    rows = app.client.get("/v1/schedules")["schedules"]
    now = time.time()
    columns = [
        Column("ID", "id", right=True),
        Column("NAME", "name", flexible=True),
        Column("CRON (UTC)", "cron"),
        Column("NEXT", lambda row: fmt.moment(row["next_at"], now)),
        Column("LAST", lambda row: fmt.relative(row["last_at"], now), rank=1),
        Column("ENABLED", "enabled", rank=2),
    ]
    return Answer(rows, lambda: print_table(rows, columns, "no recurring jobs; submit one with 'cron:' in its spec"))


@schedule.command()
@click.argument("id", type=int)
@json_option
@pass_app
@examples("stoker schedule remove 2")
def remove(app: App, id: int) -> Answer:
    """Submit a recurring job no more; jobs that it has submitted stay."""
    answer = app.client.post(f"/v1/schedules/{id}/remove", {})
    return Answer(answer, lambda: write(f"schedule {id} is removed\n"), done=f"schedule {id} is removed")
