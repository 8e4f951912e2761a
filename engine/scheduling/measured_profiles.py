"""Measured speeds as policies see them: the rows of `speeds` as Profiles, and which of them is whose."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ...policies.contract import Ints
from ...policies.estimate.throughput import Profile, Throughput
from .query_columns import Array, Columns, Groups, floats

_MOST = 64  #: GPUs up to which a speed is predicted, unless the gang is larger


def profiles_of(speeds: Columns, products: Array) -> tuple[tuple[Profile, ...], Ints]:
    """What was measured on GPUs of these products: profiles by ascending signature, and those signatures.

    ``speeds`` as sql/policy/speeds has them, {}: none. Of several products the slowest counts.
    """
    if not speeds:
        return (), np.zeros(0, dtype=np.int64)
    here = np.isin(speeds["product"], products)
    groups = Groups(speeds["signature"][here])
    gangs, *terms = (
        groups.most(floats(speeds[name][here])).tolist() for name in ("gang", "compute", "within_node", "across_nodes")
    )  # fmt: skip
    models = speeds["model"][here][groups.first].tolist()
    rows = zip(models, gangs, *terms, strict=True)
    return tuple(_profile(model, int(gang), *map(_known, measured)) for model, gang, *measured in rows), groups.keys


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


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
