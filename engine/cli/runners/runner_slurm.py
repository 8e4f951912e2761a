"""`stoker runner slurm`: runners as batch jobs of Slurm, one a node."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import Any

import click

from ... import format as fmt
from ...errors import Conflict, UsageError
from ...home import Home
from ...hosts import slurm_runners
from ..command import App, DefaultGroup, examples, pass_app, unless_ended
from ..numbers import FiniteRange
from ..output import Answer, Column, json_option, print_table, write, write_raw
from ..running.up import LEAST_STAY

FOLDER = "slurm"  #: below the home
QUESTION_INTERVAL = 0.5  #: seconds between two questions while pilots leave


@click.group(cls=DefaultGroup, default="up")
@examples("stoker --url http://login1:7465 runner slurm --partition gpu --nodes 4 --time 4h", "stoker runner slurm list")
def slurm() -> None:
    """Runners as batch jobs of Slurm, one per node; 'up' is the default command.

    Such a pilot submits its successor, and drains before its limit, when it is cancelled and when it is preempted: its jobs go on
    in the next one.
    """


@slurm.command()
@click.option("--partition", "-p", required=True, help="Partition of the cluster.")
@click.option("--nodes", "-N", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Nodes, each with a pilot of its own.")
@click.option("--time", "-t", "limit", required=True, metavar="DURATION", help="Limit of each pilot, such as 4h.")
@click.option("--pool", default="default", show_default=True, help="Pool that the GPUs join.")
@click.option("--slots", type=click.IntRange(min=1), help="CPU slots to offer, and no GPU (default: the GPUs; without any, a slot a core).")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="On a disk of all nodes: home, logs, token (default: HOME/slurm).",
)
@click.option("--token-file", metavar="FILE", help="File with a token of role runner (default: $STOKER_TOKEN).")
@click.option("--show", is_flag=True, help="Print the batch file, and do nothing.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH OPTIONS]")
@json_option
@pass_app
@examples(
    "stoker --url http://login1:7465 runner slurm up --partition gpu --nodes 4 --time 4h",
    "stoker --url http://login1:7465 runner slurm --partition gpu --time 1h --show",
    "stoker --url http://login1:7465 runner slurm --partition gpu --nodes 2 --time 12h -- --account=vision --gres=gpu:8",
)
def up(
    app: App,
    partition: str,
    nodes: int,
    limit: str,
    pool: str,
    slots: int | None,
    folder: Path | None,
    token_file: str | None,
    show: bool,
    options: tuple[str, ...],
) -> Answer:
    """Submit a pilot per node. The runner of each has the name of its node."""
    from ...hosts import lent_nodes

    lent_nodes.require_pool(pool)
    slurm_runners.check_options(partition, options)
    seconds = _limit(limit)
    client = app.client
    where = _folder(folder or app.home.path / FOLDER)
    url = lent_nodes.require_url(client.url)
    wanted = slurm_runners.WantedPilots(partition, seconds, where, url, pool, slots, options, lent_nodes.pinned())
    if show:
        text = wanted.batch_file()
        return Answer({"batch_file": text}, lambda: write_raw(text))
    slurm_runners.require()
    token = lent_nodes.token_for_runners(client, token_file)
    slurm_runners.try_out(wanted)
    lent_nodes.keep_secret(wanted.token, token)
    lent_nodes.trust(Home(where), lent_nodes.trusted_by(client))
    with unless_ended("pilots may have been handed in; see 'stoker runner slurm list'"):
        jobs = slurm_runners.hand_in(wanted, nodes)
    said = f"handed in: {len(jobs)} pilot{'s' * (len(jobs) > 1)}, jobs {', '.join(map(str, jobs))} of Slurm; logs in {where}"
    return Answer({"jobs": jobs, "dir": str(where)}, lambda: write(f"{said}\n"), done=said)


def _limit(given: str) -> float:
    from ...spec.reading.units import DURATION_FORMS, duration

    least = slurm_runners.WARNING_TIME + 60.0 + LEAST_STAY
    try:
        if given.strip().isdecimal():
            raise ValueError(f"{given!r} has no unit; give {DURATION_FORMS}")  # to sbatch it would be minutes
        seconds = duration(given)
    except ValueError as error:
        raise UsageError(f"--time: {error}".replace(" 30, ", " ")) from None
    if seconds < least:
        warned = slurm_runners.WARNING_TIME
        early = f"Slurm tells a pilot to leave {warned:.0f} to {warned + 60:.0f} s before its limit, so that its jobs can save"
        raise UsageError(f"--time: {given!r} is too short: {early}; give at least {fmt.duration(least)}")
    return seconds


def _folder(given: Path) -> Path:
    folder = given.expanduser().absolute()
    if "%" in str(folder) or not str(folder).isprintable():
        raise UsageError(f"--dir: {ascii(str(folder))[:200]} has a %, which stands for something else to Slurm, or is not printable")
    return folder


COLUMNS = [
    Column("PILOT", "job", right=True),
    Column("STATE", "state"),
    Column("NODE", "node"),
    Column("POOL", "pool"),
    Column("ENDS", lambda row: fmt.relative(row["ends_at"], time.time()) if row["ends_at"] else ""),
    Column("WAITS FOR", "reason", rank=1),
    Column("DAEMON", "daemon", rank=2, flexible=True),
]
_POOL = click.option("--pool", help="Only those of this pool.")


def _rows(pool: str | None, url: str | None) -> list[dict[str, Any]]:
    return [
        {
            "job": one.job,
            "state": one.state,
            "node": one.hosts,
            "pool": one.name.removeprefix(slurm_runners.PREFIX),
            "ends_at": one.ends_at,
            "reason": "" if one.hosts or one.reason == "None" else one.reason,
            "daemon": one.comment.removeprefix(slurm_runners.MARK),
        }
        for one in slurm_runners.pilots_of(getpass.getuser(), pool, url)
    ]


@slurm.command("list")
@_POOL
@json_option
@pass_app
@examples("stoker runner slurm list", "stoker runner slurm list --pool gpu --json")
def list_(app: App, pool: str | None) -> Answer:
    """List your pilots that run or wait, with --url those of that daemon only."""
    slurm_runners.require()
    rows = _rows(pool, app.url)
    return Answer(rows, lambda: print_table(rows, COLUMNS, "no pilots; hand some in with 'stoker runner slurm up'"))


@slurm.command()
@_POOL
@click.option("--timeout", type=FiniteRange(min=0), default=600.0, show_default=True, help="Seconds to wait until the last one has left.")
@json_option
@pass_app
@examples("stoker runner slurm down", "stoker --url http://login1:7465 runner slurm down --pool gpu")
def down(app: App, pool: str | None, timeout: float) -> Answer:
    """End your pilots and their successors: jobs save, each with its grace, and are queued again."""
    slurm_runners.require()
    told: set[int] = set()
    taken_back: set[int] = set()
    end = time.monotonic() + timeout
    while rows := _rows(pool, app.url):
        waiting = [row["job"] for row in rows if row["state"] == "pending"]
        running = [row["job"] for row in rows if row["state"] == "running" and row["job"] not in told]
        if waiting:
            slurm_runners.take_back(waiting)  # again each time: one that has just begun may have submitted another
        if running:
            slurm_runners.tell_to_leave(running)
        told |= set(running)
        taken_back |= set(waiting)
        if time.monotonic() > end:
            left = ", ".join(str(row["job"]) for row in rows)
            raise Conflict(
                f"pilots are still leaving after {timeout:.0f} s: jobs {left} of Slurm; wait with a larger --timeout, or scancel them"
            )
        time.sleep(QUESTION_INTERVAL)
    said = (
        f"{len(told)} pilots have left, {len(taken_back - told)} that waited are taken back"
        if told or taken_back
        else "there are no pilots"
    )
    return Answer({"left": sorted(told), "taken_back": sorted(taken_back - told)}, lambda: write(f"{said}\n"), done=said)
