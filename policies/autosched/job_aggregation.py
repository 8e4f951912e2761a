"""The trace aggregator (002 ch. 6.4.3.2): similar jobs of a burst are simulated as one, so that a trial takes less time.

As read: an aggregated job asks for the sum of the GPUs. So no group is larger than a node, as no cluster could place it otherwise. Jobs
that hold GPUs stay as they are. In means over jobs, a group counts as often as it has members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints

MAX_GROUP_SPAN = 300.0  #: seconds between the first and the last arrival of a group at most
MAX_DURATION_RATIO = 1.5  #: between two durations of a group


@dataclass(frozen=True, slots=True)
class JobGroups:
    """``member[i]`` is the group of job ``i``; the columns have one row a group."""

    member: Ints
    first: Ints  #: one job of the group, for all that its members have in common
    submitted: Floats  #: mean
    gpus: Ints  #: sum
    duration: Floats  #: seconds, such that the service is the sum
    weight: Ints  #: members


def service_preserving(gpus: Ints, duration: Floats) -> float:
    """Duration of the aggregate: sum(g_i d_i) / sum(g_i)."""
    return float((gpus * duration).sum() / gpus.sum())


def aggregate(submitted: Floats, duration: Floats, gpus: Ints, largest: int, apart: Bools, kind: Ints) -> JobGroups:
    """Group jobs that are alike by arrival, duration and GPUs.

    ``largest``: GPUs of a group at most; ``apart``: jobs that stay alone; ``kind``: only jobs of one kind, such as a model, are grouped.
    """
    member = np.full(len(submitted), -1, dtype=np.int64)
    groups: list[list[int]] = []
    for rows in _alike(submitted, duration, gpus, largest, apart, kind):
        member[rows] = len(groups)
        groups.append(rows)
    order = sorted(range(len(groups)), key=lambda group: (float(submitted[groups[group]].mean()), groups[group][0]))
    groups = [groups[group] for group in order]
    for number, rows in enumerate(groups):
        member[rows] = number
    return JobGroups(
        member=member,
        first=np.array([rows[0] for rows in groups], dtype=np.int64),
        submitted=np.array([submitted[rows].mean() for rows in groups]),
        gpus=np.array([gpus[rows].sum() for rows in groups], dtype=np.int64),
        duration=np.array([service_preserving(gpus[rows], duration[rows]) for rows in groups]),
        weight=np.array([len(rows) for rows in groups], dtype=np.int64),
    )


def _alike(submitted: Floats, duration: Floats, gpus: Ints, largest: int, apart: Bools, kind: Ints) -> Iterator[list[int]]:
    open_groups: dict[tuple[int, int, int], tuple[list[int], float]] = {}
    for row in np.argsort(submitted, kind="stable").tolist():
        if apart[row] or gpus[row] * 2 > largest:
            yield [row]
            continue
        range_of = int(np.floor(np.log(max(float(duration[row]), 1.0)) / np.log(MAX_DURATION_RATIO)))
        key = (int(kind[row]), int(gpus[row]), range_of)
        rows, begun = open_groups.get(key, ([], 0.0))
        if rows and (submitted[row] - begun > MAX_GROUP_SPAN or (len(rows) + 1) * gpus[row] > largest):
            yield rows
            rows = []
        if not rows:
            begun = float(submitted[row])
        open_groups[key] = ([*rows, row], begun)
    for rows, _ in open_groups.values():
        yield rows
