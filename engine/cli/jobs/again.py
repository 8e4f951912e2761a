"""Commands for submitted jobs: `stoker retry` and `stoker wait`."""

from __future__ import annotations

import uuid
from typing import Any

import click

from ...errors import StokerError, UsageError
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path
from ..output import Answer, Column, json_option, note, print_table
from .submit import ENDED, ids_in_words

_JOBS = click.argument("jobs", nargs=-1, required=True, type=JOB, metavar="JOB...")
_RETRIED = [
    Column("ID", "id", right=True),
    Column("NAME", "name", flexible=True),
    Column("RETRIES", lambda row: f"job {row['of']}"),
    Column("STATE", lambda row: row["state"] or "was submitted before"),
]


@click.command(cls=Command)
@_JOBS
@click.option("--array", is_flag=True, help="All tasks of the array that failed or were cancelled, as the name of the array does.")
@json_option
@pass_app
@examples("stoker retry 17", "stoker retry sweep", "stoker retry 17 18 --json")
def retry(app: App, jobs: tuple[str, ...], array: bool) -> Answer:
    """Submit failed or cancelled jobs once more, as new jobs with the same specs.

    They begin anew, and their deadlines count from now on. For an array, its failed or cancelled tasks are submitted.
    """
    from ....client.following import post_once

    made: list[dict[str, Any]] = []
    errors: list[StokerError] = []
    key = uuid.uuid4().hex  # one for all, so a job named twice is submitted once
    for ref in jobs:
        try:
            made += post_once(app.client, job_path(ref, "retry"), {"array": array, "key": key})["jobs"]
        except StokerError as error:
            errors.append(error)
    return Answer(made, lambda: print_table(made, _RETRIED, "no jobs"), errors, done="retry: done")


def _seconds(text: str | None) -> float | None:
    from ...spec.reading import units

    if text is None:
        return None
    try:
        return units.duration(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None


@click.command(cls=Command)
@_JOBS
@click.option("--timeout", metavar="DURATION", help="Give up after so long, with exit code 7; the jobs go on.")
@json_option
@pass_app
@examples("stoker wait 17", "stoker wait sweep bert-lr --timeout 2h", "stoker wait 17 --json")
def wait(app: App, jobs: tuple[str, ...], timeout: str | None) -> Answer:
    """Return when jobs have ended; the exit code is that of 'submit --wait'. An array ends with its last task."""
    from ....client.following import failure, until_ended

    seconds = _seconds(timeout)
    ids: list[int] = []
    for ref in jobs:
        answer = app.client.get(job_path(ref))
        if answer["job"]["kind"] == "infer" and answer["job"]["finished_at"] is None:
            raise UsageError(f"job {answer['job']['id']} {answer['job']['name']} serves until it is cancelled: it is not waited for")
        ids += answer["tasks"] or [answer["job"]["id"]]
    ids = list(dict.fromkeys(ids))
    try:
        ended = list(until_ended(app.client, ids, seconds))
    except KeyboardInterrupt:
        note(f"{ids_in_words(ids)} will go on")
        raise
    failed = failure(ended)
    return Answer(ended, lambda: print_table(ended, ENDED, "no jobs"), [failed] if failed else [])
