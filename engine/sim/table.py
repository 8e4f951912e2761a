"""The jobs that have been submitted and have not ended: a record of each, and columns of all from which Views are cut without copying.

Events change records, which are plain Python and cheap to change one at a time. The columns are brought up to date when a View is wanted:
what comes and goes between two of them never gets there. Rows stand in the order of submission, close together: those behind a job that
has ended move up. So a View costs a few slices, and what has ended costs nothing. Arrays of a View are windows on this table: read-only,
and good until the next View.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left

import numpy as np

from ...policies.contract import Floats, Ints, Phase
from .columns import F, I
from .options import Options
from .workload import Workload

_LEAST_WORK = 1e-9  #: a job that takes no time has a share of its work done all the same


class Job:
    """A job at hand, with what changes of it. Work is in seconds on ``gpus_min`` GPUs, placed as well as can be."""

    __slots__ = (
        "attained",  #: GPU-seconds of earlier leases
        "belief",  #: believed work over true work, NaN: nothing is believed
        "gpus",  #: rows of the GPUs that it holds
        "granted",  #: when its lease was
        "lease_end",
        "left",  #: work left at ``since``
        "number",  #: row of the workload: jobs are numbered in the order of their submission
        "phase",
        "preemptions",
        "profile",
        "profile_gpus",  #: of the profiling run that it needs, 0: it has been profiled
        "ran",  #: seconds of earlier leases
        "since",  #: when it began, or is to begin, to train in its lease
        "speed",  #: work a second, 0: makes no progress
        "work",  #: all of it
    )

    def __init__(self, number: int, now: float, work: float, belief: float, profile: int) -> None:
        self.number = number
        self.since = self.granted = now
        self.left = work
        self.work = max(work, _LEAST_WORK)
        self.belief = belief
        self.profile, self.profile_gpus = profile, 0
        self.phase = Phase.PENDING
        self.gpus: list[int] = []
        self.preemptions = 0
        self.attained = self.ran = self.speed = 0.0
        self.lease_end = math.inf


class Table:
    def __init__(self, workload: Workload, belief: Floats, options: Options) -> None:
        self._workload = workload
        self.options = options
        self.has_gaps = bool((workload.most > workload.duration).any())
        self.at_hand: dict[int, Job] = {}  #: by number
        self._new: dict[int, Job] = {}  #: of these, those without a row yet
        self._stale: dict[int, Job] = {}  #: those whose row is not as they are
        self._gone: list[int] = []  #: numbers that have a row and are not at hand any more
        self._rows: list[int] = []  #: number of the job in each row, ascending
        self._work, self._belief, self._profile = workload.duration.tolist(), belief.tolist(), workload.profile.tolist()
        self._constant_ints, self._constant_floats = _constant(workload)
        self._ints, self._floats = np.zeros((I.ROWS, 0), dtype=np.int64), np.zeros((F.ROWS, 0))
        self._allocate(256)
        self._alloc = array("q")  #: GPUs held, those of one job together, in the order of the rows
        self._alloc_gpus: Ints | None = None
        self._alloc_start: Ints | None = None
        self._has_tiers = len(workload.tier_deadline) > 0
        self._tier_count = np.diff(workload.tier_start)

    def __len__(self) -> int:
        return len(self.at_hand)

    def add(self, number: int, now: float, profile_gpus: int = 0) -> Job:
        """A job waits for GPUs. Of one that is yet to be profiled, on ``profile_gpus``, nothing is known."""
        job = Job(number, now, self._work[number], self._belief[number], self._profile[number])
        if profile_gpus:
            job.profile, job.profile_gpus, job.belief = -1, profile_gpus, math.nan
        self.at_hand[number] = self._new[number] = job
        return job

    def of(self, number: int) -> Job:
        """The record of a job, to be changed."""
        job = self.at_hand[number]
        if number not in self._new:
            self._stale[number] = job
        return job

    def profiled(self, job: Job) -> None:
        """Its speed is known from now on, and how long it takes is believed."""
        job.profile, job.profile_gpus, job.belief = self._profile[job.number], 0, self._belief[job.number]

    def remove(self, number: int) -> None:
        """A job that holds nothing has ended."""
        del self.at_hand[number]
        if self._new.pop(number, None) is None:
            self._stale.pop(number, None)
            self._gone.append(number)

    def columns(self) -> tuple[Ints, Floats]:
        """Both matrices as they are now and as others may see them: read-only."""
        self._refresh()
        n = len(self._rows)
        return self._seen_ints[:, :n], self._seen_floats[:, :n]

    @property
    def alloc_gpus(self) -> Ints:
        if self._alloc_gpus is None:
            self._alloc_gpus = np.array(self._alloc, dtype=np.int64)
            self._alloc_gpus.flags.writeable = False
        return self._alloc_gpus

    @property
    def alloc_start(self) -> Ints:
        if self._alloc_start is None:
            n = len(self._rows)
            self._alloc_start = np.zeros(n + 1, dtype=np.int64)
            self._ints[I.HELD, :n].cumsum(out=self._alloc_start[1:])
        return self._alloc_start

    def tiers(self) -> tuple[Ints, Floats, Floats]:
        return self.tiers_of(self._ints[I.JOB, : len(self._rows)])

    def tiers_of(self, jobs: Ints) -> tuple[Ints, Floats, Floats]:
        """``tier_start``, ``tier_deadline`` and ``tier_reward`` of `Jobs`, of these (numbers of the workload)."""
        w = self._workload
        starts = np.zeros(len(jobs) + 1, dtype=np.int64)
        if not self._has_tiers:
            return starts, w.tier_deadline, w.tier_reward
        counts = self._tier_count[jobs]
        np.cumsum(counts, out=starts[1:])
        rows = np.repeat(w.tier_start[jobs] - starts[:-1], counts) + np.arange(starts[-1])
        return starts, w.tier_deadline[rows], w.tier_reward[rows]

    # The columns

    def as_they_come(self, numbers: slice) -> tuple[Ints, Floats]:
        """Both matrices of jobs that have just come."""
        w, constant = self._workload, self._constant_ints[numbers].T
        ints, floats = np.zeros((I.ROWS, constant.shape[1]), dtype=np.int64), np.zeros((F.ROWS, constant.shape[1]))
        ints[I.PHASE], ints[I.PROFILE] = Phase.PENDING, w.profile[numbers]
        ints[I.CHANGING :], floats[F.CHANGING :] = constant, self._constant_floats[numbers].T
        floats[F.LEFT], floats[F.WORK] = w.duration[numbers], np.maximum(w.duration[numbers], _LEAST_WORK)
        floats[F.LEASE_END], floats[F.BELIEF] = np.inf, self._belief[numbers]
        ints.flags.writeable = floats.flags.writeable = False
        return ints, floats

    def _allocate(self, capacity: int) -> None:
        ints, floats = np.zeros((I.ROWS, capacity), dtype=np.int64), np.zeros((F.ROWS, capacity))
        n = len(self._rows)
        ints[:, :n], floats[:, :n] = self._ints[:, :n], self._floats[:, :n]
        self._ints, self._floats, self._capacity = ints, floats, capacity
        self._seen_ints, self._seen_floats = ints.view(), floats.view()
        self._seen_ints.flags.writeable = self._seen_floats.flags.writeable = False

    def _refresh(self) -> None:
        if self._stale or self._gone:
            self._write_changes()
        if self._new:
            self._append()

    def _write_changes(self) -> None:
        """Write the rows of who has changed, and take out those of who has gone."""
        rows, ints = self._rows, self._ints
        changed = [(bisect_left(rows, number), job) for number, job in self._stale.items()]
        gone = sorted([bisect_left(rows, number) for number in self._gone])
        lasts = ints[I.HELD, : len(rows)].cumsum()
        edits: list[tuple[int, list[int]]] = [(row, job.gpus) for row, job in changed]
        edits += [(row, []) for row in gone]
        edits.sort(reverse=True)  # from the last row on, so that what stands before it is where it was
        for row, gpus in edits:
            last = int(lasts[row])
            self._alloc[last - int(ints[I.HELD, row]) : last] = array("q", gpus)
        self._write([row for row, _ in changed], [job for _, job in changed])
        if gone:
            self._close_up(gone)
        self._stale, self._gone = {}, []
        self._alloc_start = self._alloc_gpus = None

    def _write(self, rows: list[int] | slice, jobs: list[Job]) -> None:
        if jobs:
            ints = [(job.phase, len(job.gpus), job.preemptions, job.profile, job.profile_gpus) for job in jobs]
            floats = [
                (job.since, job.left, job.speed, job.granted, job.attained, job.ran, job.lease_end, job.belief, job.work) for job in jobs
            ]
            self._ints[: I.CHANGING, rows] = np.array(ints).T
            self._floats[: F.CHANGING, rows] = np.array(floats).T

    def _close_up(self, gone: list[int]) -> None:
        """Those behind who has gone move up."""
        first, n = gone[0], len(self._rows)
        stay = np.ones(n - first, dtype=bool)
        stay[np.array(gone) - first] = False
        places = stay.nonzero()[0] + first
        for matrix in (self._ints, self._floats):
            matrix[:, first : n - len(gone)] = matrix.take(places, axis=1)
        for row in reversed(gone):
            del self._rows[row]

    def _append(self) -> None:
        """Rows for those who have come; one that was held up (profiling) takes the place of its submission."""
        numbers, n = sorted(self._new), len(self._rows)
        while n + len(numbers) > self._capacity:
            self._allocate(2 * self._capacity)
        in_order = not n or numbers[0] > self._rows[-1]
        places = slice(n, n + len(numbers))
        self._ints[I.CHANGING :, places] = self._constant_ints[numbers].T
        self._floats[F.CHANGING :, places] = self._constant_floats[numbers].T
        jobs = [self._new[number] for number in numbers]
        self._write(places, jobs)
        for job in jobs:
            self._alloc.extend(job.gpus)
        self._rows += numbers
        self._new = {}
        self._alloc_start = self._alloc_gpus = None
        if not in_order:
            self._sort()

    def _sort(self) -> None:
        n = len(self._rows)
        order = np.argsort(self._rows)
        for matrix in (self._ints, self._floats):
            matrix[:, :n] = matrix.take(order, axis=1)
        self._rows.sort()
        self._alloc = array("q", itertools.chain.from_iterable(self.at_hand[number].gpus for number in self._rows))


def _constant(workload: Workload) -> tuple[Ints, Floats]:
    """What the columns of each job hold as long as it is at hand: a row a job, so that those of a few are copied at once."""
    n = len(workload)
    last = np.full(n, np.inf)
    some = np.diff(workload.tier_start) > 0
    last[some] = workload.tier_deadline[workload.tier_start[1:][some] - 1]
    ints = (np.arange(n), workload.gpus_min, workload.gpus_max, workload.priority, workload.demand, workload.user, workload.model)
    floats = (workload.submitted, last, workload.gpu_memory, workload.most - workload.duration)
    return np.stack(ints, axis=1), np.stack(floats, axis=1)
