"""Choosing in a given order as far as the GPUs go: where no optimum is asked for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..arrays import Bools, Ints, among
from ..contract import View
from ..placement.consolidated import Placement
from .modelling import Standing
from .roles import Roles


def walk(view: View, roles: Roles, standing: Standing, order: Ints, before: Collection[int], aside: Bools) -> list[int]:
    """Jobs (ids) of ``order`` (rows) that are to run, when the jobs ``before`` are served first. A renewed job stays where it is."""
    jobs = view.jobs
    placement = Placement(view)
    placement.take(np.flatnonzero(aside))
    for row in np.flatnonzero(standing.expired).tolist():
        placement.release_soon(jobs.allocation(row).tolist())
    first = np.flatnonzero(among(jobs.id, before))
    first = first[np.lexsort((-roles.wants[first], ~standing.expired[first]))]  # those that stay, then the largest
    failed: set[tuple[int, float]] = set()
    chosen: list[int] = []
    for row in [*first.tolist(), *order.tolist()]:
        size = int(roles.wants[row]), float(jobs.asks[row])
        gpus: tuple[int, ...] | None = None
        if standing.expired[row]:
            own = tuple(jobs.allocation(row).tolist())
            gpus = own if placement.has_soon(own) else None
        elif size not in failed and (gpus := placement.find_any(size[0], memory=size[1])) is None:
            failed.add(size)
        if gpus is not None:
            placement.take(gpus)
            chosen.append(int(jobs.id[row]))
    return [job for job in chosen if job not in before]
