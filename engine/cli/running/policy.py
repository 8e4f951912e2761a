"""Scheduling policies of the pools."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ....policies.autosched.objectives import OBJECTIVES
from ... import format as fmt
from ...errors import NotFound, StokerError, Unauthorized, Unreachable, UsageError, nearest
from ..command import App, Group, examples, pass_app
from ..jobref import complete_names
from ..numbers import FiniteRange
from ..output import Answer, Column, Row, json_option, note, print_facts, print_table, section, write
from ..simulation.sim_options import DURATION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class PolicyName(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    name = "policy"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from ....policies.registry import POLICIES

        known = {*POLICIES, *complete_names(ctx, "/v1/policy", {}, "policies", ("name",), incomplete)}
        return [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)]


def _settings(row: Row) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in row["config"].items()) or "defaults"


def pool_columns(rows: Sequence[Row], now: float) -> list[Column]:
    code = [Column("CODE", lambda row: row["code"] or "", rank=2)] if any(row["code"] for row in rows) else []
    return [
        Column("POOL", "pool"),
        Column("POLICY", "policy"),
        *code,
        Column("EVERY", lambda row: fmt.duration(row["interval"])),
        Column("CONFIG", _settings, flexible=True, rank=3),
        Column("SET BY", "set_by", rank=2),
        Column("SET", lambda row: fmt.relative(row["ts"], now), rank=1),
        *([Column("TUNES ITSELF", _tunes_itself, rank=2)] if any(row.get("auto") for row in rows) else []),
        *([Column("FAILS", lambda row: row["error"] or "", flexible=True, style="red")] if any(row.get("error") for row in rows) else []),
    ]


def _tunes_itself(row: Row) -> str:
    auto = row.get("auto")
    return f"every {fmt.duration(auto['period'])}, {auto['objective']}" if auto else ""


def range_of(row: Row) -> str:
    """The range of a key of a policy's configuration, in words."""
    if row.get("choices"):
        return ", ".join(map(str, row["choices"]))
    low, high = row.get("low"), row.get("high")
    return "" if low is None and high is None else f"{'…' if low is None else f'{low:g}'} to {'…' if high is None else f'{high:g}'}"


def _in_force(key: str, default: Any, pools: Sequence[Row]) -> str:
    """The value of a key in the pools under a policy; of each, if they differ."""
    values = {row["pool"]: json.dumps(row["config"].get(key, default)) for row in pools}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{pool}: {value}" for pool, value in values.items())


def _key_columns(pools: Sequence[Row]) -> list[Column]:
    return [
        Column("KEY", "name"),
        Column("TYPE", "type"),
        Column("DEFAULT", lambda row: json.dumps(row["default"])),
        *([Column("IN FORCE", lambda row: _in_force(row["name"], row["default"], pools))] if pools else []),
        Column("RANGE", range_of, rank=1),
        Column("MEANING", "doc", flexible=True),
    ]


def _known(app: App, name: str | None = None) -> tuple[dict[str, Any], StokerError | None]:
    """The policies known to the daemon, or, without one, to this command; and the error of asking.

    ``name``: of one to look up. The daemon uses its own import path, which may differ from this command's.
    """
    from ....policies import registry

    try:
        return app.client.get("/v1/policy", name=None if name in registry.POLICIES else name), None
    except (Unreachable, NotFound, Unauthorized) as error:
        found = registry.describe()
        if name is not None and ":" in name:
            try:
                found.append(registry.describe_one(name))
            except ValueError as reason:
                raise (NotFound(str(reason)) if isinstance(error, Unreachable) else error) from None
        return {"policies": found, "pools": None, "history": None}, error


@click.group(cls=Group)
@examples("stoker policy list", "stoker policy set srtf --pool default")
def policy() -> None:
    """Scheduling policies: list, show and set them."""


@policy.command("list")
@json_option
@pass_app
@examples("stoker policy list", "stoker policy list --json")
def list_(app: App) -> Answer:
    """List the policies, and each pool's. Stoker's own are also listed without a daemon."""
    answer, missed = _known(app)
    if missed and not isinstance(missed, Unreachable):
        raise missed

    def show() -> None:
        section("Policies")
        about = [Column("POLICY", "name"), Column("", lambda row: row["doc"].strip().split("\n")[0], flexible=True)]
        print_table(answer["policies"], about, "none")
        section("In force")
        if missed:
            write(f"not known: {missed}\n")
        else:
            print_table(answer["pools"], pool_columns(answer["pools"], time.time()), "no pools yet; they come with their runners")

    return Answer(answer, show)


@policy.command("show")
@click.argument("name", type=PolicyName(), metavar="POLICY")
@json_option
@pass_app
@examples("stoker policy show srtf", "stoker policy show smallest:SmallestFirst")
def show_(app: App, name: str) -> Answer:
    """Show a policy: its meaning, its configuration keys, the values in force, and when it was in force.

    Your own is named MODULE:Class. The daemon looks for it on its import path; if it has none, this command looks on its own.
    """
    answer, missed = _known(app, name)
    known = {row["name"]: row for row in answer["policies"]}
    if name not in known:
        own = "; your own is MODULE:Class"
        raise NotFound(f"no policy {name!r}{nearest(name, known)}; there are: {', '.join(known)}{own}")
    found = known[name]
    pools, history = ([row for row in answer[part] if row["policy"] == name] if not missed else None for part in ("pools", "history"))

    def show() -> None:
        write((found["doc"].strip() or f"{name} does not say what it does") + "\n")
        if found["code"]:
            write(f"\ncode {_code(found)}\n")
        section("Configuration")
        print_table(found["config"], _key_columns(pools or ()), "nothing to configure")
        if pools:
            section("In force")
            print_table(pools, pool_columns(pools, time.time()), "")
        section("History")
        if history is None:
            write(f"not known: {missed}\n")
        else:
            print_table(history, pool_columns(history, time.time()), "it was never set")

    return Answer({**found, "pools": pools, "history": history}, show)


def _code(row: Row) -> str:
    return f"{row['code']} of {', '.join(row['modules'])}"


@policy.command("set")
@click.argument("name", type=PolicyName(), metavar="POLICY")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--pool", default="default", show_default=True, help="Pool to set it for.")
@click.option("--create", is_flag=True, help="Set it for a pool that no runner offers yet.")
@click.option("--force", is_flag=True, help="Set it though it fails on what the pool holds now.")
@click.option("--interval", type=FiniteRange(min=0.05), help="Seconds between ticks; events wake it too (default: as before).")
@click.option("--auto", is_flag=True, help="The pool tunes itself from there on; without it what is set stays.")
@click.option("--every", type=DURATION, default="1h", show_default=True, metavar="DURATION", help="With --auto: time between searches.")
@click.option("--objective", type=click.Choice(OBJECTIVES), default="jct", show_default=True, help="With --auto.")
@json_option
@pass_app
@examples(
    "stoker policy set fifo",
    "stoker policy set tiresias --auto --every 1h",
    "stoker policy set priority backfill=true --pool train --interval 0.5",
    "stoker policy set smallest:SmallestFirst largest=4",
)
def set_(app: App, name: str, settings: tuple[str, ...], pool: str, interval: float | None, **more: Any) -> Answer:
    """Set the policy of a pool, in force at its next tick. Keys that are not given take their defaults.

    The code of your own, MODULE:Class, is loaded anew: repeat the command after an edit. It is asked once for a plan of the pool's present
    state. One that does not load, or fails at that, is refused, and the old policy stays in force.
    """
    for option in ("every", "objective"):
        if not more["auto"] and click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{option}: is for a pool that tunes itself; add --auto")
    config: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"{setting!r}: write settings as KEY=VALUE; 'stoker policy show {name}' lists the keys")
        config[key] = _value(value)
    body = {"pool": pool, "policy": name, "interval": interval, "config": config, **more}
    answer = app.client.post("/v1/policy", body)
    for remark in answer["notes"]:
        note(remark)

    def show() -> None:
        every = fmt.duration(answer["interval"])
        facts = [("pool", answer["pool"]), ("policy", answer["policy"]), ("every", every), ("config", _settings(answer))]
        print_facts([*facts, ("code", f"{_code(answer)}{_compared(answer)}" if answer["code"] else "")])

    return Answer(answer, show, done=f"policy {answer['policy']} is set")


def _compared(answer: Row) -> str:
    before = answer["code_before"]
    return "" if not before else ", as before" if before == answer["code"] else f"; it was {before}"


def _value(text: str) -> Any:
    """A number or truth value if it reads as one, else the text; the policy checks it against the key's type."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # NaN and infinity have no place in a request; as text they get the policy's own answer.
    return value if isinstance(value, int | float | bool) and math.isfinite(value) else text
