"""Measured speeds as policies see them: the rows of `speeds` as Profiles, and the profile of each job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...policies.contract import Floats, Ints
from ...policies.estimate.throughput import Profile, Throughput
from ...policies.estimate.transfers import Transfers
from ..adapters.adapter_choice import LEAST_GAIN
from .query_columns import Array, Columns, GroupedRows, floats, ints

_MOST_PREDICTED_GPUS = 64  #: GPUs up to which a speed is predicted, unless the gang is larger


def profiles_of(speeds: Columns, products: Array, memory: Floats) -> tuple[tuple[Profile, ...], Ints]:
    """Profiles measured on GPUs of these products, by ascending signature, and those signatures.

    ``speeds`` as sql/policy/speeds has them, {}: none. Where there are several products, the slowest speed counts,
    and the highest utilisation. ``memory``: bytes of each GPU, 0 of a slot without its own: all jobs fit there.
    """
    if not speeds:
        return (), np.zeros(0, dtype=np.int64)
    here = np.isin(speeds["product"], products)
    bytes_of: dict[int, float] = {}
    for product, size in zip(products.tolist(), memory.tolist(), strict=True):
        bytes_of[product] = min(size, bytes_of.get(product, size))
    total = np.array([bytes_of[product] for product in speeds["product"][here].tolist()], dtype=np.float64)
    filled = np.where(total > 0, floats(speeds["peak_memory"][here]) / np.maximum(total, 1.0), 0.0)
    groups = GroupedRows(speeds["signature"][here])
    gangs, *terms = (
        groups.most(column).tolist()
        for column in (*(floats(speeds[name][here]) for name in ("gang", "compute", "within_node", "across_nodes", "utilisation")), filled)
    )
    models = speeds["model"][here][groups.first].tolist()
    rows = zip(models, gangs, *terms, strict=True)
    return tuple(_profile(model, int(gang), *map(_known, measured)) for model, gang, *measured in rows), groups.keys


def slowdowns_of(measured: Columns, profiles: Sequence[Profile], products: Array) -> Floats | None:
    """How many times longer a model takes beside another: rows and columns as ``profiles``, see `View.slowdowns`; None: no pair is known.

    ``measured`` as sql/policy/slowdowns has it, {}: none. Where there are several products, the slowest counts.
    """
    here = np.isin(measured["product"], products) if measured else np.zeros(0, dtype=bool)
    if not here.any():
        return None
    rows: dict[str, list[int]] = {}
    for row, profile in enumerate(profiles):
        rows.setdefault(profile.name.rpartition(" on ")[0], []).append(row)
    table = np.full((len(profiles), len(profiles)), np.nan)
    for model, beside, slowdown in zip(*(measured[name][here].tolist() for name in ("model", "beside", "slowdown")), strict=True):
        pairs = np.ix_(rows.get(model, []), rows.get(beside, []))
        table[pairs] = np.fmax(table[pairs], slowdown)
    return table


def transfers_of(bank: Columns, gains: Columns, known: Ints) -> tuple[Transfers | None, dict[int, int]]:
    """`View.transfers` and `View.left`, of the signatures of the profiles; None: no job may begin with an adapter.

    ``bank``, ``gains``: as sql/policy/bank_of_signatures and gains_of_signatures have them.
    """
    if not bank:
        return None, {}
    row_of = {signature: row for row, signature in enumerate(known.tolist())}
    left = {
        job: row_of[signature]
        for signature, job in zip(ints(bank["signature"]).tolist(), ints(bank["job"]).tolist(), strict=True)
        if signature in row_of
    }
    begin = np.full((len(known), len(known)), np.nan)
    for source, job, gain in zip(*(gains[name].tolist() for name in ("source", "job", "gain")), strict=True):
        if source in row_of and job in row_of and gain >= LEAST_GAIN:
            begin[row_of[source], row_of[job]] = 1 / gain
    return Transfers(begin), left


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


@lru_cache(maxsize=4096)
def _profile(
    model: str, gang: int, compute: float, within: float | None, across: float | None, utilisation: float | None, memory: float | None
) -> Profile:
    used = [math.nan if share is None else share for share in (utilisation, memory)]
    return Profile(f"{model} on {gang}", throughput(gang, compute, within, across), utilisation=used[0], memory=used[1])


def throughput(gang: int, compute: float, within: float | None, across: float | None) -> Throughput:
    """002 Eqn 5.2 for a job whose batch is divided over its GPUs, in iterations on one part of ``gang``.

    ``compute``: seconds that a ``gang``-th part of the batch takes on a GPU; ``within`` and ``across``: seconds that each GPU after the
    first adds on one node and over several. On ``gang`` GPUs an iteration takes compute + (gang - 1) * within, which is the equation;
    on n GPUs each computes gang / n as much. Where only one of the two was measured it stands for both: of more nodes that
    promises what a node can do until it is measured, and never is a spread gang taken to be faster than one on a node.
    """
    within = within if within is not None else across or 0.0
    across = max(within, across if across is not None else within)
    gpus = range(1, max(_MOST_PREDICTED_GPUS, gang) + 1)
    rates, spread = (
        [gang / (compute * gang / n + (n - 1) * communication) for n in gpus]
        for communication in (within, across)
    )  # fmt: skip
    return Throughput(list(gpus), rates, spread)
