"""Measured speeds as policies see them: the rows of `speeds` as Profiles, and which of them is whose."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..policies.contract import Ints
from ..policies.profiles import Profile, Throughput
from .sqlfiles import sql

if TYPE_CHECKING:
    import duckdb

_MOST = 64  #: GPUs up to which a speed is predicted, unless the gang is larger


def profiles_of(con: duckdb.DuckDBPyConnection, pool: str, signatures: Ints) -> tuple[tuple[Profile, ...], Ints]:
    """What was measured on the GPUs of a pool: profiles by ascending signature, and those signatures."""
    rows = con.execute(sql("policy/profiles"), [np.unique(signatures).tolist(), pool]).fetchall()
    return tuple(_profile(*row[1:]) for row in rows), np.array([row[0] for row in rows], dtype=np.int64)


def rows_of(signatures: Ints, known: Ints) -> Ints:
    """The position in ``known`` (ascending) of each signature, -1 where it is not there."""
    if not len(known):
        return np.full(len(signatures), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(known, signatures), len(known) - 1)
    rows: Ints = np.where(known[place] == signatures, place, -1)
    return rows


@lru_cache(maxsize=4096)
def _profile(model: str, gang: int, compute: float, within: float | None, across: float | None) -> Profile:
    return Profile(f"{model} on {gang}", throughput(gang, compute, within, across))


def throughput(gang: int, compute: float, within: float | None, across: float | None) -> Throughput:
    """002 Eqn 5.2 for a job whose batch is divided over its GPUs, in iterations on one part of ``gang``.

    ``compute``: seconds that a ``gang``-th part of the batch takes on a GPU; ``within`` and ``across``: seconds that each GPU after the
    first adds on one node and over several. On ``gang`` GPUs an iteration takes compute + (gang - 1) * within, which is the equation;
    on n GPUs each computes gang / n as much. Where only one of the two was measured it stands for both: of more nodes that
    promises what a node can do until it is measured, and never is a spread gang taken to be faster than one on a node.
    """
    within = within if within is not None else across or 0.0
    across = max(within, across if across is not None else within)
    gpus = range(1, max(_MOST, gang) + 1)
    rates, spread = (
        [gang / (compute * gang / n + (n - 1) * communication) for n in gpus]
        for communication in (within, across)
    )  # fmt: skip
    return Throughput(list(gpus), rates, spread)
