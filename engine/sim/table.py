"""The jobs that have been submitted and have not ended, as columns from which Views are cut without copying.

Rows stand in the order of submission, close together: a job that ends is taken out and those behind it move up. So a View
costs a few slices, and what has ended costs nothing. Arrays of a View are windows on this table: read-only, and good until
the next event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from ...policies.contract import Floats, Ints, Phase
from .columns import F, I
from .options import Options
from .workload import Workload


class Table:
    """Columns of the jobs at hand."""

    ints: Ints
    floats: Floats

    def __init__(self, workload: Workload, belief: Floats, options: Options) -> None:
        self._workload = workload
        self._belief = belief
        self.options = options
        self.has_gaps = bool((workload.most > workload.duration).any())
        self._new_ints, self._new_floats = _new_rows(workload, belief)
        self.jobs: list[int] = []  #: of each row, ascending
        self.n = 0
        self._allocate(256)
        self._alloc = array("q")  #: GPUs held, those of one job together, in the order of the rows
        self._alloc_gpus: Ints | None = None
        self._alloc_start: Ints | None = None
        self._has_tiers = len(workload.tier_deadline) > 0
        self._tier_count = np.diff(workload.tier_start)

    def seen(self) -> tuple[Ints, Floats]:
        """Both matrices as others may see them: read-only."""
        return self._seen_ints[:, : self.n], self._seen_floats[:, : self.n]

    def _allocate(self, capacity: int) -> None:
        ints, floats = np.zeros((I.ROWS, capacity), dtype=np.int64), np.zeros((F.ROWS, capacity))
        if self.n:
            ints[:, : self.n], floats[:, : self.n] = self.ints[:, : self.n], self.floats[:, : self.n]
        self.ints, self.floats, self.capacity = ints, floats, capacity
        self._seen_ints, self._seen_floats = ints.view(), floats.view()
        self._seen_ints.flags.writeable = self._seen_floats.flags.writeable = False

    def row(self, job: int) -> int:
        """Row of a job that is here; jobs are numbered in the order of their submission."""
        return bisect_left(self.jobs, job)

    def add(self, job: int, now: float, profile_gpus: int = 0) -> None:
        """A job waits for GPUs. One that was held up before (profiling) takes the place of its submission.

        Of one that is yet to be profiled, on ``profile_gpus``, nothing is known.
        """
        if self.n == self.capacity:
            self._allocate(2 * self.capacity)
        row = self.row(job)
        if row < self.n:
            self.ints[:, row + 1 : self.n + 1] = self.ints[:, row : self.n]
            self.floats[:, row + 1 : self.n + 1] = self.floats[:, row : self.n]
        self.ints[:, row] = self._new_ints[job]
        self.floats[:, row] = self._new_floats[job]
        self.floats[F.SINCE, row] = self.floats[F.GRANTED, row] = now
        if profile_gpus:
            self.ints[I.PROFILE, row], self.ints[I.PROFILE_GPUS, row] = -1, profile_gpus
            self.floats[F.BELIEF, row] = np.nan
        self.jobs.insert(row, job)
        self.n += 1
        self._alloc_start = None

    def profiled(self, row: int) -> None:
        """Its speed is known from now on, and how long it takes is believed."""
        job = int(self.ints[I.JOB, row])
        self.ints[I.PROFILE_GPUS, row] = 0
        self.ints[I.PROFILE, row] = self._workload.profile[job]
        self.floats[F.BELIEF, row] = self._belief[job]

    def remove(self, row: int) -> None:
        """A job that holds nothing has ended."""
        self.ints[:, row : self.n - 1] = self.ints[:, row + 1 : self.n]
        self.floats[:, row : self.n - 1] = self.floats[:, row + 1 : self.n]
        self.n -= 1
        del self.jobs[row]
        self._alloc_start = None

    def hold(self, row: int, gpus: Iterable[int]) -> None:
        first = self._held_before(row)
        held = array("q", gpus)
        self._alloc[first:first] = held
        self.ints[I.HELD, row] = len(held)
        self._alloc_start = self._alloc_gpus = None

    def _held_before(self, row: int) -> int:
        """GPUs of the jobs before this one."""
        if row == self.n - 1:
            return len(self._alloc) - int(self.ints[I.HELD, row])
        if self._alloc_start is not None:
            return int(self._alloc_start[row])
        return int(np.add.reduce(self.ints[I.HELD, :row]))

    def release(self, row: int) -> list[int]:
        """The GPUs that it held."""
        first = self._held_before(row)
        last = first + int(self.ints[I.HELD, row])
        gpus = self._alloc[first:last].tolist()
        del self._alloc[first:last]
        self.ints[I.HELD, row] = 0
        self._alloc_start = self._alloc_gpus = None
        return gpus

    @property
    def alloc_gpus(self) -> Ints:
        if self._alloc_gpus is None:
            self._alloc_gpus = np.array(self._alloc, dtype=np.int64)
            self._alloc_gpus.flags.writeable = False
        return self._alloc_gpus

    @property
    def alloc_start(self) -> Ints:
        if self._alloc_start is None:
            starts = np.zeros(self.n + 1, dtype=np.int64)
            self.ints[I.HELD, : self.n].cumsum(out=starts[1:])
            self._alloc_start = starts
        return self._alloc_start

    def allocation(self, row: int) -> Ints:
        first, last = self.alloc_start[row : row + 2].tolist()
        return self.alloc_gpus[first:last]

    def tiers(self) -> tuple[Ints, Floats, Floats]:
        w = self._workload
        starts = np.zeros(self.n + 1, dtype=np.int64)
        if not self._has_tiers:
            return starts, w.tier_deadline, w.tier_reward
        jobs = self.ints[I.JOB, : self.n]
        counts = self._tier_count[jobs]
        np.cumsum(counts, out=starts[1:])
        rows = np.repeat(w.tier_start[jobs] - starts[:-1], counts) + np.arange(starts[-1])
        return starts, w.tier_deadline[rows], w.tier_reward[rows]


def _new_rows(workload: Workload, belief: Floats) -> tuple[Ints, Floats]:
    """What the columns of each job hold when it comes, but for the moment: a row a job, so that one is copied at once."""
    ints, floats = np.zeros((len(workload), I.ROWS), dtype=np.int64), np.zeros((len(workload), F.ROWS))
    last = np.full(len(workload), np.inf)
    some = np.diff(workload.tier_start) > 0
    last[some] = workload.tier_deadline[workload.tier_start[1:][some] - 1]
    for place, whole in (
        (I.JOB, np.arange(len(workload))),
        (I.PHASE, np.full(len(workload), Phase.PENDING)),
        (I.GPUS_MIN, workload.gpus_min),
        (I.GPUS_MAX, workload.gpus_max),
        (I.PRIORITY, workload.priority),
        (I.DEMAND, workload.demand),
        (I.USER, workload.user),
        (I.MODEL, workload.model),
        (I.PROFILE, workload.profile),
    ):
        ints[:, place] = whole
    for position, column in (
        (F.SUBMITTED, workload.submitted),
        (F.DEADLINE, last),
        (F.MEMORY, workload.gpu_memory),
        (F.LEFT, workload.duration),
        (F.BELIEF, belief),
        (F.WORK, np.maximum(workload.duration, 1e-9)),  # one that takes no time has a share of its work done all the same
        (F.LEASE_END, np.full(len(workload), np.inf)),
        (F.GAP, workload.most - workload.duration),
    ):
        floats[:, position] = column
    return ints, floats
