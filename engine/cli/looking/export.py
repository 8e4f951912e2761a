"""`stoker export`: the reports of jobs, for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import format as fmt
from ...errors import UsageError
from ..command import App, Command, Group, examples, pass_app
from ..jobref import JOB
from ..output import note, write

if TYPE_CHECKING:
    from ....client.connection import Connection

_JOBS = click.argument("jobs", nargs=-1, required=True, type=JOB, metavar="JOB...")
_FOLLOW = click.option("--follow", "-f", is_flag=True, help="Go on until the jobs have ended.")
Export = Callable[["Connection", dict[str, Any]], Iterator[int]]


@click.group(cls=Group)
@examples("stoker export tensorboard 17", "stoker export mlflow sweep --follow")
def export() -> None:
    """Export the reports of jobs, for other tools."""


def _each(app: App, jobs: tuple[str, ...], one: Export, follow: bool) -> None:
    """Export one job after the other; with ``follow`` all at the same time."""
    from threading import Thread

    from ....client.connection import Connection
    from ....client.reported import facts

    failed: list[Exception] = []

    def run(client: Connection, row: dict[str, Any]) -> None:
        count = 0
        try:
            for count in one(client, row):  # noqa: B007
                pass
            write(f"job {row['id']} {fmt.clean(row['name'])}: {fmt.counted(count, 'value')}\n")
        except Exception as error:
            failed.append(error)

    with Connection(app.client.url or None, home=app.home.path) as client:
        rows = {row["id"]: row for ref in jobs for row in facts(client, ref)}
        threads = [Thread(target=run, args=(client, row), daemon=True) for row in rows.values()]
        for thread in threads:
            thread.start()
            if not follow:
                thread.join()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


@export.command(cls=Command)
@_JOBS
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("tensorboard"), show_default=True, help="Directory.")
@_FOLLOW
@pass_app
@examples("stoker export tensorboard 17", "stoker export tensorboard sweep --out runs --follow")
def tensorboard(app: App, jobs: tuple[str, ...], out: Path, follow: bool) -> None:
    """Write event files, a directory per job, for 'tensorboard --logdir DIRECTORY'. They replace those of an earlier export."""
    from ....client import export_tensorboard

    try:
        _each(app, jobs, lambda client, row: export_tensorboard.export(client, row, out, follow=follow), follow)
    except OSError as error:
        raise UsageError(f"--out: cannot write {out}: {error.strerror}") from None
    note(f"tensorboard --logdir {out}")


@export.command(cls=Command)
@_JOBS
@click.option("--uri", metavar="URI", help="Tracking server or store (default: MLflow's own, such as MLFLOW_TRACKING_URI).")
@click.option("--experiment", default="stoker", show_default=True, help="Name of the experiment.")
@_FOLLOW
@pass_app
@examples("stoker export mlflow 17", "stoker export mlflow sweep --uri http://mlflow:5000 --experiment bert --follow")
def mlflow(app: App, jobs: tuple[str, ...], uri: str | None, experiment: str, follow: bool) -> None:
    """Log metrics and params to MLflow, a run per job. A further export of a job adds new ones. Needs the extra 'mlflow'."""
    from ....client import export_mlflow

    _each(app, jobs, lambda client, row: export_mlflow.export(client, row, uri, experiment, follow=follow), follow)
