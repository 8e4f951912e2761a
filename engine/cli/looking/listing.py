"""Lists: `stoker ps` and `stoker status`."""

from __future__ import annotations

import time
from typing import Any

import click

from ... import format as fmt
from ...disk_room import Room, told
from ...errors import UsageError, nearest
from ...jobs.states import State
from .. import job_columns
from ..command import App, Command, examples, pass_app
from ..output import Answer, Column, json_option, note, print_facts, print_table, section, write
from ..runners import runner
from .report import since_option


def states_option(text: str | None) -> str | None:
    known = [str(state) for state in State]
    for word in (text or "").split(",") if text else []:
        if word not in known:
            raise UsageError(f"--state: no state {word!r}{nearest(word, known)}; states: {', '.join(known)}")
    return text


def labels_option(labels: tuple[str, ...]) -> tuple[str, ...]:
    for label in labels:
        if not label.partition("=")[0] or "=" not in label:
            raise UsageError(f"--label: must be KEY=VALUE, such as team=nlp, not {label!r}")
    return labels


@click.command(cls=Command)
@click.option("--all", "-a", "everything", is_flag=True, help="Also jobs that ended more than an hour ago.")
@click.option("--arrays", is_flag=True, help="A row for every task of an array, in place of one for the array.")
@click.option("--state", metavar="STATE[,STATE]", help="Only jobs in these states.")
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--name", metavar="NAME", help="Only jobs, and arrays, of this name; * and ? stand for any characters.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only jobs with this label; may be repeated.")
@click.option("--since", metavar="WHEN", help="Also jobs that ended since then: a duration (2d: two days ago) or a time.")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows at most, the newest.")
@json_option
@pass_app
@examples(
    "stoker ps",
    "stoker ps --all --user ann",
    "stoker ps --state running,pending",
    "stoker ps --name 'bert-*' --label team=nlp --since 2d",
    "stoker ps --json | jq '.[].name'",
)
def ps(
    app: App, everything: bool, arrays: bool, state: str | None, user: str | None, name: str | None, labels: tuple[str, ...],
    since: str | None, limit: int,
) -> Answer:  # fmt: skip
    """List jobs: those that have not ended, and those that ended within the last hour. An array is one row."""
    query: dict[str, Any] = {
        "state": states_option(state), "user": user, "all": int(everything), "arrays": int(arrays), "limit": limit, "name": name,
        "label": list(labels_option(labels)) or None, "since": since_option(since, time.time()),
    }  # fmt: skip
    rows = app.client.get("/v1/jobs", **query)["jobs"]
    shown = [{**row, "collapsed": not arrays} for row in reversed(rows)]

    def show() -> None:
        empty = "no such jobs" if state or user or name or labels or since else "no jobs; submit one with 'stoker submit -- COMMAND'"
        print_table(shown, job_columns.listed(time.time()), empty)
        if len(rows) == limit:
            note(f"only the newest {limit}; --limit shows more")

    return Answer(rows, show)


def _pool_columns(pools: list[dict[str, Any]], now: float) -> list[Column]:
    return [
        Column("POOL", "pool"),
        Column("POLICY", "policy"),
        Column("EVERY", lambda row: fmt.duration(row["interval"]), right=True),
        Column("GPUS", "gpus", right=True),
        Column("BUSY", "busy", right=True),
        *([Column("TUNES ITSELF", lambda row: _tunes_itself(row.get("auto"), now), flexible=True)] if any(map(_auto, pools)) else []),
    ]


def _auto(pool: dict[str, Any]) -> bool:
    return bool(pool.get("auto"))  # an older daemon does not tell


def _tunes_itself(auto: dict[str, Any] | None, now: float) -> str:
    """Its objective and period, and the time of the next search."""
    if not auto:
        return ""
    coming = auto["why"] if auto["next"] is None else f"next search {fmt.expected(auto['next'], now)}"
    return f"every {fmt.duration(auto['period'])} for {auto['objective']}; {coming}"


def _policy_columns(now: float) -> list[Column]:
    return [
        Column("POOL", "pool"),
        Column("POLICY", "policy"),
        Column("STATE", lambda row: f"fails for {fmt.duration(now - row['failing_since'])}", style="red"),
        Column("ERROR", "error", flexible=True),
    ]


def _task_columns(now: float) -> list[Column]:
    return [
        Column("TASK", "name"),
        Column("STATE", lambda row: "hangs" if row["stuck"] else f"{row['errors']} errors", style="red"),
        Column("LAST RUN", lambda row: fmt.relative(row["last_run"], now), rank=1),
        Column("LAST ERROR", lambda row: row["last_error"] or "", flexible=True),
    ]


def _notice_columns(now: float) -> list[Column]:
    return [Column("WHEN", lambda row: fmt.relative(row["ts"], now)), Column("WHAT", "reason", flexible=True)]


def _disk(room: dict[str, Any] | None) -> str:
    if room is None:  # of an older daemon
        return "not known"
    left = Room(room["free"], room["total"]).words
    if not room["low"]:
        return left
    refused = f"commits are refused: {room['refused']}" if room.get("refused") else "free some space before commits are refused"
    return "; ".join(filter(None, (f"{left}: {refused}", told(room.get("largest", [])))))


@click.command(cls=Command)
@json_option
@pass_app
@examples("stoker status", "stoker status --json")
def status(app: App) -> Answer:
    """Show the daemon, its runners and pools, and problems of policies and periodic tasks."""
    answer = app.client.get("/v1/status")

    def show() -> None:
        now = time.time()
        jobs = ", ".join(f"{count} {state}" for state, count in answer["jobs"].items() if count) or "none"
        database = answer["database"]
        print_facts(
            [
                ("daemon", f"version {answer['version']}, pid {answer['pid']}, up for {fmt.duration(now - answer['started_at'])}"),
                ("home", answer["home"]),
                ("database", f"{fmt.size(database['bytes'])}, schema {database['schema']}"),
                ("disk", _disk(answer.get("disk"))),
                ("jobs", jobs),
            ]
        )
        section("Runners")
        print_table(answer["runners"], runner.columns(now), "none yet; start one with 'stoker runner start'")
        section("Pools")
        print_table(answer["pools"], _pool_columns(answer["pools"], now), "none yet; they come with their runners")
        if failing := [row for row in answer["pools"] if row["error"]]:
            section("Policies that fail: nothing starts in their pools")
            print_table(failing, _policy_columns(now), "")
            write("".join(f"{row['pool']}: {row['remedy']}\n" for row in failing))
        if wrong := [task for task in answer["tasks"] if task["stuck"] or task["errors"]]:
            section("Trouble")
            print_table(wrong, _task_columns(now), "")
        if notices := answer.get("notices"):
            section("In the last day")
            print_table(notices, _notice_columns(now), "")

    return Answer(answer, show)
