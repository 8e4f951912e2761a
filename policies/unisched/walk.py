"""Choosing in a given order as far as the GPUs go: where no optimum is asked for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..arrays import Bools, Ints
from ..contract import View
from ..placement import Placement
from .modelling import Standing
from .roles import Roles


def walk(view: View, roles: Roles, standing: Standing, order: Ints, before: Collection[int], aside: Bools) -> list[int]:
    """Jobs (ids) of ``order`` (rows) that are to run, when the jobs ``before`` are served first. A renewed job stays where it is."""
    jobs = view.jobs
    placement = Placement(view)
    placement.take(np.flatnonzero(aside))
    for row in np.flatnonzero(standing.expired).tolist():
        placement.release_soon(jobs.allocation(row).tolist())
    first = np.flatnonzero(np.isin(jobs.id, list(before)))
    first = first[np.lexsort((-roles.wants[first], ~standing.expired[first]))]  # those that stay, then the largest
    holds = standing.expired
    failed: set[tuple[int, float]] = set()
    chosen: list[int] = []
    for row in [*first.tolist(), *order.tolist()]:
        if holds[row]:
            gpus: tuple[int, ...] | None = tuple(jobs.allocation(row).tolist())
            if not placement.has_soon(gpus or ()):
                continue
        else:
            size = int(roles.wants[row]), float(jobs.gpu_memory[row])
            gpus = None if size in failed else placement.find_any(size[0], memory=size[1])
            if gpus is None:
                failed.add(size)
                continue
        placement.take(gpus or ())
        chosen.append(int(jobs.id[row]))
    return [job for job in chosen if job not in before]
