"""Jobs on the command line: by number, name, or an unambiguous beginning of either; the daemon resolves them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from .command import App
from .output import note

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..client import Client

COMPLETION_TIMEOUT = 0.3  #: seconds: a key press must not hang on a busy daemon


def complete_names(context: click.Context, path: str, query: dict[str, Any], listing: str, keys: tuple[str, ...], start: str) -> list[str]:
    """Names in a listing of the daemon; none if it is down, as a completion must stay silent."""
    app = context.find_object(App) or App()
    try:
        with closing(app.client_within(COMPLETION_TIMEOUT)) as client:
            rows = client.get(path, **query)[listing]
        found = (str(row[key]) for row in rows for key in keys)
        return sorted({name for name in found if name.startswith(start)})
    except Exception:
        return []


class JobRef(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        keys = ("id",) if incomplete.isdigit() else ("name",)
        return [CompletionItem(name) for name in complete_names(ctx, "/v1/jobs", {"limit": 500}, "jobs", keys, incomplete)]


class NodeRef(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    name = "runner"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in complete_names(ctx, "/v1/runners", {}, "runners", ("id",), incomplete)]


JOB, NODE = JobRef(), NodeRef()


def one_job(client: Client, ref: str) -> str:
    """The job that is shown where only one can be: of an array its first task, which is said."""
    if ref.isdigit() or "[" in ref:  # a number or a task
        return ref
    answer = client.get(job_path(ref))
    note_task(ref, answer)
    return str(answer["job"]["id"])


def note_task(ref: str, answer: dict[str, Any]) -> None:
    """Say that of an array's tasks only the first is shown, of an answer about a job."""
    if tasks := answer.get("tasks"):
        job = answer["job"]
        note(f"{ref!r} is an array of {len(tasks)} task{'s' * (len(tasks) > 1)}: this is {job['name']}, job {job['id']}")


def job_path(ref: str, *rest: str) -> str:
    from ...client.following import job_path as path

    return path(ref, *rest)
