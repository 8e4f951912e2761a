"""Scheduling policies of the pools."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import click

from .. import format as fmt
from ..errors import NotFound, UsageError, nearest
from .command import App, Group, examples, pass_app
from .jobref import Word, complete_names
from .numbers import FiniteRange
from .output import Answer, Column, Row, json_option, note, print_facts, print_table, section, write

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class PolicyName(Word):
    name = "policy"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in complete_names(ctx, "/v1/policy", {}, "policies", ("name",), incomplete)]


def _settings(row: Row) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in row["config"].items()) or "defaults"


def pool_columns(now: float) -> list[Column]:
    return [
        Column("POOL", "pool"),
        Column("POLICY", "policy"),
        Column("EVERY", lambda row: fmt.duration(row["interval"])),
        Column("CONFIG", _settings, flexible=True, rank=3),
        Column("SET BY", "set_by", rank=2),
        Column("SET", lambda row: fmt.relative(row["ts"], now), rank=1),
    ]


def range_of(row: Row) -> str:
    """What a key of a policy's configuration may be, in words."""
    if row.get("choices"):
        return ", ".join(map(str, row["choices"]))
    low, high = row.get("low"), row.get("high")
    return "" if low is None and high is None else f"{'…' if low is None else f'{low:g}'} to {'…' if high is None else f'{high:g}'}"


_TUNABLE = [
    Column("KEY", "name"),
    Column("TYPE", "type"),
    Column("DEFAULT", lambda row: json.dumps(row["default"])),
    Column("RANGE", range_of, rank=1),
    Column("MEANING", "doc", flexible=True),
]


@click.group(cls=Group)
@examples("stoker policy list", "stoker policy set srtf --pool default")
def policy() -> None:
    """Scheduling policies: what there is, what is in force, and how to change it."""


@policy.command("list")
@json_option
@pass_app
@examples("stoker policy list", "stoker policy list --json")
def list_(app: App) -> Answer:
    """List the policies, and which pool is under which."""
    answer = app.client.get("/v1/policy")

    def show() -> None:
        section("Policies")
        about = [Column("POLICY", "name"), Column("", lambda row: _first_line(row["doc"]), flexible=True)]
        print_table(answer["policies"], about, "none")
        section("In force")
        print_table(answer["pools"], pool_columns(time.time()), "no pools yet; they come with their runners")

    return Answer(answer, show)


def _first_line(doc: str) -> str:
    return doc.strip().split("\n")[0]


@policy.command("show")
@click.argument("name", type=PolicyName(), metavar="POLICY")
@json_option
@pass_app
@examples("stoker policy show srtf")
def show_(app: App, name: str) -> Answer:
    """Show a policy: its meaning, its configuration keys, and when it was in force."""
    answer = app.client.get("/v1/policy")
    known = {row["name"]: row for row in answer["policies"]}
    if name not in known:
        raise NotFound(f"no policy {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    found = known[name]
    history = [row for row in answer["history"] if row["policy"] == name]

    def show() -> None:
        write(found["doc"].strip() + "\n")
        section("Configuration")
        print_table(found["config"], _TUNABLE, "nothing to configure")
        section("History")
        print_table(history, pool_columns(time.time()), "it was never in force")

    return Answer({**found, "history": history}, show)


@policy.command("set")
@click.argument("name", type=PolicyName(), metavar="POLICY")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--pool", default="default", show_default=True, help="Pool to set it for.")
@click.option("--interval", type=FiniteRange(min=0.05), help="Seconds between ticks; events wake it too (default: as before).")
@json_option
@pass_app
@examples("stoker policy set fifo", "stoker policy set priority backfill=true --pool train --interval 0.5")
def set_(app: App, name: str, settings: tuple[str, ...], pool: str, interval: float | None) -> Answer:
    """Set the policy of a pool, in force at its next tick. Keys that are not given take their defaults."""
    config: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"{setting!r}: write settings as KEY=VALUE; 'stoker policy show {name}' lists the keys")
        config[key] = _value(value)
    body = {"pool": pool, "policy": name, "interval": interval, "config": config}
    answer = app.client.post("/v1/policy", body)
    for remark in answer["notes"]:
        note(remark)

    def show() -> None:
        every = fmt.duration(answer["interval"])
        print_facts([("pool", answer["pool"]), ("policy", answer["policy"]), ("every", every), ("config", _settings(answer))])

    return Answer(answer, show)


def _value(text: str) -> Any:
    """A number or truth value where it reads as one, else the text; the policy checks it against the key's type."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # NaN and infinity have no place in a request; as text they get the policy's own answer.
    return value if isinstance(value, int | float | bool) and math.isfinite(value) else text
