"""Pools: the backbones kept warm in them."""

from __future__ import annotations

from urllib.parse import quote

import click

from ... import format as fmt
from ...errors import NotFound, UsageError, nearest
from ..command import App, Group, examples, pass_app
from ..output import Answer, Column, json_option, print_table, state_style

_COLUMNS = [
    Column("BACKBONE", "backbone"),
    Column("RUNNER", lambda row: row["node"] or fmt.MISSING),
    Column("STATE", "state", style=state_style),
    Column("RECIPE", lambda row: row["recipe"] or "", rank=2),
    Column("MEMORY", lambda row: "" if row["memory"] is None else fmt.size(row["memory"]), right=True, rank=1),
    Column("NOTE", lambda row: row["note"] or "", flexible=True),
]


@click.group(cls=Group)
@examples("stoker pool warm default", "stoker pool warm default minilm")
def pool() -> None:
    """Pools: the GPUs that a policy gives out together."""


@pool.command()
@click.argument("pool_name", metavar="POOL")
@click.argument("backbones", metavar="BACKBONE", nargs=-1)
@click.option("--none", "nothing", is_flag=True, help="Keep none.")
@json_option
@pass_app
@examples(
    "stoker pool warm default smollm2-135m minilm",
    "stoker pool warm default                        # what is kept, and on which runner it is ready",
    "stoker pool warm default --none",
)
def warm(app: App, pool_name: str, backbones: tuple[str, ...], nothing: bool) -> Answer:
    """Keep backbones loaded on each runner of a pool, so that jobs that start from them start at once; in place of those kept before.

    They take main memory, at most a share of it (warm.memory in config.toml). Without BACKBONE: show the kept ones.
    """
    if nothing and backbones:
        raise UsageError("--none: was given beside backbones; a pool keeps these, or none")
    backbones = tuple(_known(name, here=not app.client.url) for name in backbones)
    path = f"/v1/pools/{quote(pool_name, safe='')}/warm"
    answer = app.client.post(path, {"backbones": list(backbones)}) if backbones or nothing else app.client.get(path)
    return Answer(answer, lambda: print_table(answer["warm"], _COLUMNS, f"nothing is kept warm in pool {pool_name}"))


def _known(name: str, *, here: bool) -> str:
    """The backbone by that name; a directory by its absolute path, which is that of the runners' hosts."""
    from ....runners import recipes

    name = recipes.directory(name) or name
    if recipes.starting_from(name) is None:
        known = sorted({each for recipe in recipes.RECIPES.values() for each in recipe.backbones})
        raise NotFound(
            f"no recipe starts from {name!r}{nearest(name, known)}; recipes start from {', '.join(known)}, or a model's directory"
        )
    if here and (wrong := recipes.unusable(name)):
        raise UsageError(wrong)
    return name
