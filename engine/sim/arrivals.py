"""Where jobs will stand in line when they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from ...policies.contract import Floats, Ints, Jobs
from ...policies.line import Waiter
from ...policies.serving import Ranking
from .live import LiveJobs
from .table import Table

_PART = 4096  #: jobs whose places are worked out together: enough to make each cheap, few enough to take little memory


class Arrivals:
    """The jobs of a table's workload as waiters, by what ``ranking`` (`Policy.ranking`) says of them."""

    def __init__(self, table: Table, ranking: Callable[[Jobs], Ranking]) -> None:
        self._table, self._ranking = table, ranking
        self._some = lru_cache(maxsize=2)(self._work_out)  # jobs that come late may be of the ones before

    def of(self, jobs: Iterable[int]) -> list[Waiter] | None:
        """None: what somebody claims and holds changes without anything happening."""
        waiters = []
        for job in jobs:
            some = self._some(job // _PART)
            if some is None:
                return None
            waiters.append(Waiter._make(some[job % _PART]))
        return waiters

    def _work_out(self, part: int) -> list[tuple[float | int, ...]] | None:
        """Columns of waiters, a row each; most jobs come and start without anybody making a `Waiter` of them."""
        first = part * _PART
        jobs = LiveJobs(_Newcomers(self._table, first, first + _PART), 0.0)
        ranking = self._ranking(jobs)
        if ranking.claim is not None and not ranking.steady:
            return None
        key, claim, hold = ranking.columns(len(jobs))
        columns = (column.tolist() for column in (key, jobs.id, jobs.gpus_min, claim, hold))
        return list(zip(*columns, strict=True))


def checked(ranking: object, jobs: int) -> Ranking:
    """What a policy gave for so many jobs; ValueError where that cannot be."""
    if not isinstance(ranking, Ranking):
        raise ValueError(f"gave {type(ranking).__name__}, not a Ranking")
    for name in ("key", "claim", "hold"):
        column = getattr(ranking, name)
        if column is None:
            continue
        if not (isinstance(column, np.ndarray) and column.shape == (jobs,) and column.dtype.kind in "fiu") or np.isnan(column).any():
            raise ValueError(f"{name}: is not an array of one number a job")
    return ranking


class _Newcomers:
    """Rows of a range of jobs at the moment when they come, each for itself."""

    def __init__(self, table: Table, first: int, last: int) -> None:
        self._table, self._range = table, slice(first, last)
        self.workload, self.options = table.workload, table.options
        self.deadline, self.gap, self.has_gaps = table.deadline, table.gap, table.has_gaps
        self.alloc_gpus: Ints = np.zeros(0, dtype=np.int64)
        self._columns = table.as_they_come(self._range)

    def columns(self) -> tuple[Ints, Floats]:
        return self._columns

    @property
    def alloc_start(self) -> Ints:
        return np.zeros(self._columns[0].shape[1] + 1, dtype=np.int64)

    def tiers(self) -> tuple[Ints, Floats, Floats]:
        return self._table.tiers_of(self._columns[0][0])
