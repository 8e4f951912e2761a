"""`stoker runner ray`: runners on the nodes of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...errors import Conflict, NotFound, UsageError
from ..command import App, Group, examples, pass_app
from ..numbers import FiniteRange
from ..output import Answer, Column, json_option, note, print_table, write

FOLDER = "ray"  #: below the home


@click.group(cls=Group)
@examples("stoker --url http://gpu1:7465 runner ray up --nodes 4 --gpus 8", "stoker runner ray list")
def ray() -> None:
    """Runners on the nodes of a Ray cluster: an actor on each starts the runner, and starts it again."""


ADDRESS = click.option("--ray-address", metavar="HOST:PORT", help="Head of the cluster (default: $RAY_ADDRESS, or that of this host).")
POOL = click.option("--pool", default="default", show_default=True, help="Pool that they serve.")

COLUMNS = [
    Column("RUNNER", "node"),
    Column("STATE", "state"),
    Column("POOL", "pool"),
    Column("STARTS", "starts", right=True),
    Column("PID", "pid", right=True, rank=2),
    Column("HOST", "host", rank=1),
    Column("ACTOR", "actor", rank=3),
    Column("SAYS", "said", flexible=True),
]


@ray.command()
@click.option("--nodes", "-N", type=click.IntRange(1, 10_000), required=True, help="Nodes of the cluster, each with one runner.")
@click.option("--gpus", type=click.IntRange(1, 1024), help="GPUs of each node, which Ray gives to nobody else then.")
@click.option("--slots", type=click.IntRange(min=1), help="CPU slots in place of GPUs (default without --gpus: a slot a core).")
@POOL
@ADDRESS
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="On each node: home, log, token (default: HOME/ray)."
)
@click.option("--token-file", metavar="FILE", help="File with a token of role runner (default: $STOKER_TOKEN).")
@click.option("--wait", type=FiniteRange(min=0), default=60.0, show_default=True, help="Seconds to wait until all serve.")
@json_option
@pass_app
@examples(
    "stoker --url http://gpu1:7465 runner ray up --nodes 4 --gpus 8",
    "stoker --url http://gpu1:7465 runner ray up --nodes 2 --slots 4 --pool cpu --ray-address 10.0.0.1:6379",
)
def up(
    app: App,
    nodes: int,
    gpus: int | None,
    slots: int | None,
    pool: str,
    ray_address: str | None,
    folder: Path | None,
    token_file: str | None,
    wait: float,
) -> Answer:
    """Start a runner on each of so many nodes, once there are that many; a repetition starts the missing ones."""
    from ...hosts import lent_nodes, ray_runners

    if gpus and slots:
        raise UsageError("--gpus, --slots: give one of them; a runner offers GPUs or CPU slots")
    lent_nodes.require_pool(pool)
    client = app.client
    where = str((folder or app.home.path / FOLDER).expanduser().absolute())
    url = lent_nodes.require_url(client.url)
    token = lent_nodes.token_for_runners(client, token_file)
    offer = ray_runners.Offer(url, where, pool, gpus, slots, lent_nodes.trusted_by(client))
    with ray_runners.connected(ray_address) as cluster:
        lent_nodes.keep_secret(Path(where) / "token", token)  # for nodes that join later and share this disk
        rows = _of(pool, ray_runners.up(cluster, offer, nodes, token, wait))
    if away := sum(row["state"] != "serves" for row in rows):
        note(f"{away} of {nodes} runners do not serve yet: Ray starts them when it has nodes for all; see 'stoker runner ray list'")
    return Answer(rows, lambda: print_table(rows, COLUMNS, ""), done=f"{len(rows) - away} runners serve")


def _of(pool: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "pool": pool} for row in rows]


@ray.command("list")
@ADDRESS
@json_option
@pass_app
@examples("stoker runner ray list", "stoker runner ray list --ray-address 10.0.0.1:6379 --json")
def list_(app: App, ray_address: str | None) -> Answer:
    """List the runners kept by actors of the cluster, as the actors tell."""
    from ...hosts import ray_runners

    with ray_runners.connected(ray_address) as cluster:
        rows = [row for pool in ray_runners.pools(cluster) for row in _of(pool, ray_runners.rows(cluster, pool))]
    return Answer(rows, lambda: print_table(rows, COLUMNS, "no runners; start some with 'stoker runner ray up'"))


@ray.command()
@POOL
@ADDRESS
@click.option("--timeout", type=FiniteRange(min=0), default=120.0, show_default=True, help="Seconds that jobs get to save and stop.")
@json_option
@pass_app
@examples("stoker runner ray down", "stoker runner ray down --pool cpu")
def down(app: App, pool: str, ray_address: str | None, timeout: float) -> Answer:
    """Give the nodes back: jobs save, each with its grace, and are queued again."""
    from ...hosts import lent_nodes, ray_runners

    lent_nodes.require_pool(pool)
    with ray_runners.connected(ray_address) as cluster:
        if pool not in ray_runners.pools(cluster):
            raise NotFound(f"pool {pool!r} has no runners on this cluster; 'stoker runner ray list' shows them")
        left, wrong = ray_runners.down(cluster, pool, timeout)
    said = f"{', '.join(left) or 'no runner'} {'have' if len(left) > 1 else 'has'} left; the nodes are given back"
    return Answer({"left": left}, lambda: write(f"{said}\n"), [Conflict(words) for words in wrong], done=said)
