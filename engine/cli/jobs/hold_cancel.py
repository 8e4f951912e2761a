"""Commands that change jobs: cancel, hold, release, move, priority."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import click

from ...errors import NotFound, StokerError, UsageError
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path
from ..looking.listing import labels_option, states_option
from ..output import Answer, Column, json_option, print_table, state_style

_COLUMNS = [
    Column("ID", "id", right=True),
    Column("NAME", "name", flexible=True),
    Column("STATE", "state", style=state_style),
    Column("MESSAGE", "message", flexible=True),
]
_JOBS = click.argument("jobs", nargs=-1, required=True, type=JOB, metavar="JOB...")
_ARRAY = click.option("--array", is_flag=True, help="Take all tasks of the array that the job belongs to, as the name of the array does.")


def _each(app: App, refs: tuple[str, ...], action: str, body: dict[str, Any]) -> Answer:
    """Apply it to every named job, even if some cannot be found or changed."""
    changed: list[dict[str, Any]] = []
    errors: list[StokerError] = []
    for ref in refs:
        try:
            changed += app.client.post(job_path(ref, action), body)["jobs"]
        except StokerError as error:
            errors.append(error)
    return Answer(changed, lambda: print_table(changed, _COLUMNS, "no jobs"), errors, done=f"{action}: done")


@click.command(cls=Command)
@click.argument("jobs", nargs=-1, type=JOB, metavar="[JOB]...")
@_ARRAY
@click.option("--user", metavar="NAME", help="All jobs of this user that have not ended; with --state, --name and --label those alone.")
@click.option("--state", metavar="STATE[,STATE]", help="All jobs in these states; without --user your own.")
@click.option("--name", metavar="NAME", help="All jobs of this name; * and ? stand for any characters. Without --user your own.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="All jobs with this label. Without --user your own.")
@json_option
@pass_app
@examples("stoker cancel 17", "stoker cancel bert-lr 18 19", "stoker cancel 20 --array", "stoker cancel --user ann --state pending")
def cancel(
    app: App, jobs: tuple[str, ...], array: bool, user: str | None, state: str | None, name: str | None, labels: tuple[str, ...]
) -> Answer:
    """Cancel jobs: those named, or all that match the options.

    A running job is asked to stop, may write a checkpoint within its grace period, and is then ended.
    """
    for option, value in {"--user": user, "--state": state, "--name": name}.items():
        if value == "":  # from an unset variable: ignoring it would cancel more than was meant
            raise UsageError(f"{option}: is empty; say what it is, or leave it out")
    chosen = {"user": user, "states": (states_option(state) or "").split(",") if state else [], "name": name,
              "labels": dict(label.split("=", 1) for label in labels_option(labels))}  # fmt: skip
    if not any(chosen.values()):
        if not jobs:
            raise UsageError("name the jobs to cancel: JOB..., or --user, --state, --name or --label")
        return _each(app, jobs, "cancel", {"array": array})
    if jobs or array:
        raise UsageError("JOB: given beside --user, --state, --name or --label; name the jobs, or say what they are")
    changed = app.client.post("/v1/cancel", chosen)["jobs"]
    return Answer(changed, lambda: print_table(changed, _COLUMNS, "no such jobs"), done="cancel: done")


@click.command(cls=Command)
@_JOBS
@_ARRAY
@json_option
@pass_app
@examples("stoker hold 17", "stoker hold sweep")
def hold(app: App, jobs: tuple[str, ...], array: bool) -> Answer:
    """Keep jobs from being scheduled until they are released.

    A running job is suspended: it writes a checkpoint and gives its GPUs back.
    """
    return _each(app, jobs, "hold", {"array": array})


@click.command(cls=Command)
@_JOBS
@_ARRAY
@json_option
@pass_app
@examples("stoker release 17")
def release(app: App, jobs: tuple[str, ...], array: bool) -> Answer:
    """Let held jobs be scheduled again."""
    return _each(app, jobs, "release", {"array": array})


@click.command(cls=Command)
@_JOBS
@_ARRAY
@click.option("--restart", is_flag=True, help="Give up its checkpoint.")
@json_option
@pass_app
@examples("stoker move 17 --restart")
def move(app: App, jobs: tuple[str, ...], array: bool, restart: bool) -> Answer:
    """Let jobs that wait for the place of their checkpoint begin anew on any runner."""
    if not restart:
        raise UsageError("--restart: say that the checkpoint is given up; where it can be read a job goes on without this")
    return _each(app, jobs, "move", {"array": array, "restart": True})


class PriorityCommand(Command):
    """An error tells the order of arguments if the job comes first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for word in args if not word.startswith("--")]
        if len(words) > 1 and not _is_number(words[0]) and _is_number(words[-1]):
            ctx.fail(f"the priority comes first: stoker priority {words[-1]} {shlex.join(words[:-1])}")
        return super().parse_args(ctx, args)


def _is_number(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


@click.command(cls=PriorityCommand, context_settings={"ignore_unknown_options": True})
@click.argument("number", type=int)
@_JOBS
@_ARRAY
@json_option
@pass_app
@examples("stoker priority 10 17", "stoker priority -5 nightly sweep")
def priority(app: App, number: int, jobs: tuple[str, ...], array: bool) -> Answer:
    """Change the priority of jobs to NUMBER; larger is more urgent, 0 is the default."""
    answer = _each(app, jobs, "priority", {"priority": number, "array": array})
    if len(jobs) == 1 and jobs[0].isdecimal() and answer.errors and isinstance(answer.errors[0], NotFound):
        first = f"the priority comes first, so 'stoker priority {jobs[0]} {number}' is of job {number}"
        return replace(answer, errors=[NotFound(f"{answer.errors[0]}; {first}")])
    return answer
