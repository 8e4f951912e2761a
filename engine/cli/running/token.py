"""Access tokens for TCP."""

from __future__ import annotations

import click

from ... import format as fmt
from ..command import App, Group, examples, pass_app
from ..output import Answer, Column, json_option, note, print_table, write

ROLES = ("read", "submit", "runner", "admin")

_COLUMNS = [
    Column("ID", "id", right=True),
    Column("NAME", "name", flexible=True),
    Column("ROLE", "role"),
    Column("CREATED", lambda row: fmt.clock(row.get("created_at")), rank=1),
    Column("REVOKED", "revoked"),
]


@click.group(cls=Group)
@examples("stoker token create --role submit laptop", "stoker token list")
def token() -> None:
    """Access tokens for TCP. The Unix socket needs none: its file's owner may do everything."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do; admin may do everything.")
@json_option
@pass_app
@examples("stoker token create --role submit laptop", "stoker token create --role runner gpu2 --json")
def create(app: App, name: str, role: str) -> Answer:
    """Create a token. It is shown once; the daemon keeps only its digest."""
    answer = app.client.post("/v1/tokens", {"name": name, "role": role})

    def show() -> None:
        note("keep it now, it is not shown again; use it as STOKER_TOKEN")
        write(answer["token"] + "\n")

    return Answer(answer, show)


@token.command("list")
@json_option
@pass_app
@examples("stoker token list")
def list_(app: App) -> Answer:
    """List the tokens, without their secrets."""
    rows = app.client.get("/v1/tokens")["tokens"]
    return Answer(rows, lambda: print_table(rows, _COLUMNS, "no tokens; make one with 'stoker token create'"))


@token.command()
@click.argument("id", type=int)
@json_option
@pass_app
@examples("stoker token revoke 3")
def revoke(app: App, id: int) -> Answer:
    """Revoke a token, from now on."""
    answer = app.client.post(f"/v1/tokens/{id}/revoke", {})
    return Answer(answer, lambda: write(f"token {id} is revoked\n"), done=f"token {id} is revoked")
