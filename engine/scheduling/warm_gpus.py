"""Which GPUs are warm for a backbone: those in its pool by the policy whose runner has a fork server of it (docs/warm.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...policies.contract import Floats, Gpus, Strings
from .query_columns import Array

Servers = Sequence[tuple[str, str, str, float]]  #: fork servers: runner, backbone, state, and since when

EXPECTED_LOAD_SECONDS = 10.0  #: seconds in which a server is expected to load a backbone
LOAD_PATIENCE_SECONDS = 120.0  #: seconds after which jobs no longer wait for a server: they start cold, and the reason is told
OVERDUE_LOAD_STEP_SECONDS = 1.0  #: seconds by which an overdue load is expected later, again and again


def warm_columns(backbones: Array, since: Floats, nodes: Array, servers: Servers, now: float) -> tuple[Strings, Floats] | tuple[None, None]:
    """``warm`` and ``warm_at`` of `Gpus`; rows are GPUs.

    ``backbones``: None: the GPU is in no pool; ``since``: when that was decided. A failed server is not waited for.
    """
    names = np.array([name or "" for name in backbones], dtype=object)
    if not (names != "").any():
        return None, None
    state_of = {(node, backbone): (state, at) for node, backbone, state, at in servers}
    at = np.full(len(names), -np.inf)
    for gpu in np.flatnonzero(names != "").tolist():
        state, begun = state_of.get((nodes[gpu], names[gpu]), ("loading", float(since[gpu])))
        if state == "loading" and now < begun + LOAD_PATIENCE_SECONDS:
            at[gpu] = max(begun + EXPECTED_LOAD_SECONDS, now + OVERDUE_LOAD_STEP_SECONDS)
    return names, at


def changed_pools(warm: Mapping[str, Collection[int]] | None, gpus: Gpus) -> dict[str, str | None]:
    """GPUs (ids) that change to another backbone's pool; None: to none. ``warm``: `Plan.warm`."""
    if warm is None:
        return {}
    pool_of: dict[int, str | None] = {gpu: name for name, rows in warm.items() for gpu in rows}
    before: list[str] = [""] * len(gpus) if gpus.warm is None else gpus.warm.tolist()
    return {str(gpus.id[gpu]): pool_of.get(gpu) for gpu in range(len(gpus)) if (pool_of.get(gpu) or "") != before[gpu]}
