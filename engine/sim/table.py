"""The jobs that have been submitted and have not ended, as columns from which Views are cut without copying.

Rows stand in the order of submission, close together: a job that ends is taken out and those behind it move up. So a View
costs a few slices, and what has ended costs nothing. Arrays of a View are windows on this table: read-only, and good until
the next event.
"""

from __future__ import annotations

import numpy as np

from ...policies.contract import Floats, Ints, Phase
from .columns import F, I
from .workload import Workload


class Table:
    """Columns of the jobs at hand."""

    ints: Ints
    floats: Floats

    def __init__(self, workload: Workload, belief: Floats) -> None:
        self._workload = workload
        self._belief = belief
        self.n = 0
        self._allocate(256)
        self.alloc_gpus = np.zeros(0, dtype=np.int64)
        self._alloc_start: Ints | None = None
        self._has_tiers = len(workload.tier_deadline) > 0
        counts = np.diff(workload.tier_start)
        self._tier_count = counts
        last = np.full(len(workload), np.inf)
        last[counts > 0] = workload.tier_deadline[workload.tier_start[1:][counts > 0] - 1]
        self._deadline = last

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
        return int(self.ints[I.JOB, : self.n].searchsorted(job))

    def add(self, job: int, now: float) -> None:
        """A job waits for GPUs. One that was held up before (profiling) takes the place of its submission."""
        if self.n == self.capacity:
            self._allocate(2 * self.capacity)
        row = self.n if not self.n or self.ints[I.JOB, self.n - 1] < job else self.row(job)
        if row < self.n:
            self.ints[:, row + 1 : self.n + 1] = self.ints[:, row : self.n]
            self.floats[:, row + 1 : self.n + 1] = self.floats[:, row : self.n]
        w = self._workload
        self.ints[:, row] = (
            job, Phase.PENDING, w.gpus_min[job], w.gpus_max[job], w.priority[job], w.demand[job], 0, w.user[job], w.model[job],
            w.profile[job], 0,
        )  # fmt: skip
        work = max(float(w.duration[job]), 1e-9)  # one that takes no time has a share of its work done all the same
        self.floats[:, row] = (
            w.submitted[job], self._deadline[job], w.gpu_memory[job], 0.0, 0.0, now, now, w.duration[job], 0.0, self._belief[job], work,
            np.inf,
        )  # fmt: skip
        self.n += 1
        self._alloc_start = None

    def remove(self, row: int) -> None:
        """A job that holds nothing has ended."""
        self.ints[:, row : self.n - 1] = self.ints[:, row + 1 : self.n]
        self.floats[:, row : self.n - 1] = self.floats[:, row + 1 : self.n]
        self.n -= 1
        self._alloc_start = None

    def hold(self, row: int, gpus: Ints) -> None:
        first = int(self.alloc_start[row])
        self.alloc_gpus = np.concatenate((self.alloc_gpus[:first], gpus, self.alloc_gpus[first:]))
        self.ints[I.HELD, row] = len(gpus)
        self._alloc_start = None

    def release(self, row: int) -> Ints:
        """The GPUs that it held."""
        first, last = self.alloc_start[row : row + 2].tolist()
        gpus = self.alloc_gpus[first:last]
        self.alloc_gpus = np.concatenate((self.alloc_gpus[:first], self.alloc_gpus[last:]))
        self.ints[I.HELD, row] = 0
        self._alloc_start = None
        return gpus

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
