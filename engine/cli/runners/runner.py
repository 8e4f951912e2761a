"""Runners: the agents that run jobs, one a host."""

from __future__ import annotations

import os
import sys
import time
from typing import Any
from urllib.parse import quote

import click

from ... import format as fmt
from ...errors import Conflict, NotFound, UsageError
from ..command import App, Command, Group, examples, pass_app
from ..jobref import NODE
from ..numbers import FiniteRange
from ..output import Answer, Column, json_option, print_table, state_style, write
from ..running.up import ADDRESS, LEAST_STAY, SLOT_MEMORY, runner_argv
from .runner_ray import ray
from .runner_slurm import slurm


def columns(now: float) -> list[Column]:
    return [
        Column("RUNNER", "id"),
        Column("STATE", "state", style=state_style),
        Column("GPUS", "gpus", right=True),
        Column("BUSY", "busy", right=True),
        Column("LAST SEEN", lambda row: fmt.relative(row["last_seen"], now), rank=1),
        Column("LEAVES", lambda row: fmt.relative(row["leaves_at"], now) if row.get("leaves_at") else "", rank=2),
        Column("HOST", "host", rank=3, flexible=True),
        Column("PID", "pid", right=True, rank=4),
        Column("VERSION", "version", rank=2),
    ]


@click.group(cls=Group)
@examples("stoker runner list", "stoker runner start --slots 2")
def runner() -> None:
    """Runners: the agents that run jobs, one a host."""


@runner.command("list")
@json_option
@pass_app
@examples("stoker runner list", "stoker runner list --json")
def list_(app: App) -> Answer:
    """List the runners."""
    rows = app.client.get("/v1/runners")["runners"]
    return Answer(rows, lambda: print_table(rows, columns(time.time()), "no runners yet; start one with 'stoker runner start'"))


@runner.command()
@click.option("--node", metavar="NAME", help="Name of the runner (default: the host's).")
@click.option("--slots", type=click.IntRange(min=1), help="CPU slots to offer, and no GPU (default: the GPUs; without any, a slot a core).")
@SLOT_MEMORY
@click.option("--pool", default="default", show_default=True, help="Pool that its GPUs join.")
@click.option("--gpus", metavar="LIST", help="Indexes or UUIDs of the GPUs to offer (default: $CUDA_VISIBLE_DEVICES, or all).")
@ADDRESS
@click.option("--hand-back", is_flag=True, help="SIGTERM or Ctrl-C stops its jobs, each with its grace, before it leaves.")
@click.option("--until", metavar="TIME", help="Hand the node back by then without being told: 4h, 18:30 or 2030-01-31T18:00.")
@click.option(
    "--warm",
    type=click.Choice(["auto", "off"]),
    help="off: each job in a fresh process (docs/warm.md; default: as the daemon's config.toml says, auto unless changed).",
)
@pass_app
@examples(
    "stoker runner start --slots 4 --pool cpu",
    "stoker runner start --warm off",
    "stoker runner start --hand-back --until 4h",
    "stoker --url http://gpu1:7465 runner start --address 10.0.0.2",
)
def start(
    app: App,
    node: str | None,
    slots: int | None,
    slot_memory: int | None,
    pool: str,
    gpus: str | None,
    address: str | None,
    hand_back: bool,
    until: str | None,
    warm: str | None,
) -> None:
    """Run an agent in the foreground; Ctrl-C ends it, its jobs go on.

    With --hand-back they stop: if Slurm, Kubernetes or a spot market takes the host away, they are saved, and queued again elsewhere.
    """
    home = app.home.create()
    if app.url:
        os.environ["STOKER_URL"] = app.url
    offers = {"--slots": slots, "--slot-memory": slot_memory, "--gpus": gpus, "--address": address, "--warm": warm}
    argv = runner_argv(home, node, pool, offers | {"--until": None if until is None else f"{_leaving_at(until):.3f}"})
    argv += ["--hand-back"] if hand_back else []
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _leaving_at(given: str) -> float:
    from ...spec.reading.units import moment

    now = time.time()
    try:
        at = moment(given, now)
    except ValueError as error:
        raise UsageError(f"--until: {error}") from None
    if at <= now + LEAST_STAY:
        raise UsageError(f"--until: {given!r} is less than {LEAST_STAY:.0f} s away: no job could start and be stopped again by then")
    return at


runner.add_command(slurm)
runner.add_command(ray)

_NOW = click.option("--now", is_flag=True, help="Also stop its running jobs, each with its grace period; they are queued again.")


def _act(app: App, node: str, action: str, said: str, **body: Any) -> Answer:
    app.client.post(f"/v1/runners/{quote(node, safe='')}/{action}", body)
    return Answer({"runner": node, "action": action, **body}, lambda: write(f"{node} {said}\n"), done=f"{node} {said}")


@runner.command()
@click.argument("node", type=NODE)
@_NOW
@json_option
@pass_app
@examples("stoker runner stop gpu1", "stoker runner stop gpu1 --now")
def stop(app: App, node: str, now: bool) -> Answer:
    """Drain a runner, then let its agent leave."""
    return _act(app, node, "stop", "starts nothing more, and leaves when its jobs have ended", now=now)


@runner.command()
@click.argument("node", type=NODE)
@json_option
@pass_app
@examples("stoker runner resume gpu1")
def resume(app: App, node: str) -> Answer:
    """Let a drained runner start jobs again."""
    return _act(app, node, "resume", "may start jobs again")


@runner.command()
@click.argument("node", type=NODE)
@json_option
@pass_app
@examples("stoker runner forget gpu1")
def forget(app: App, node: str) -> Answer:
    """Declare a runner dead: its jobs go on elsewhere from their last checkpoint.

    Refused while its process is known to live, as its jobs would run twice.
    """
    return _act(app, node, "forget", "is forgotten; its jobs were queued again")


@click.command(cls=Command)
@click.argument("node", type=NODE)
@_NOW
@click.option("--wait", is_flag=True, help="Return when its last job has ended.")
@click.option("--timeout", type=FiniteRange(min=0), default=86_400.0, help="Seconds to wait at most.")
@json_option
@pass_app
@examples("stoker drain gpu1", "stoker drain gpu1 --wait --timeout 3600", "stoker drain gpu1 --now")
def drain(app: App, node: str, now: bool, wait: bool, timeout: float) -> Answer:
    """Let a runner finish its jobs and start no more; 'stoker runner resume' takes it back."""
    jobs = (
        "are asked to save and stop, and are queued again" if now else "go on to their end; servers go to hosts that can read their weights"
    )
    answer = _act(app, node, "drain", "is drained" if wait else f"starts nothing more; its jobs {jobs}", now=now)
    end = time.monotonic() + timeout
    while wait and _busy(app, node):
        if time.monotonic() > end:
            raise Conflict(f"{node} is still busy after {fmt.duration(timeout)}; it goes on draining")
        time.sleep(0.5)
    return answer


def _busy(app: App, node: str) -> int:
    for row in app.client.get("/v1/runners")["runners"]:
        if row["id"] == node:
            return int(row["busy"])
    raise NotFound(f"runner {node!r} has gone")
