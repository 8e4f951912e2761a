"""The jobs that are submitted and have not ended: a record of each, and columns of all, from which Views are cut.

Events change records, which are plain Python and cheap to change one at a time. Rows are made from records when a View is wanted, so a job
that comes and goes between two Views never gets a row. Rows stand in the order of submission in one piece of memory; a new one is joined
from the unchanged pieces of the old. Arrays of a View are read-only, and valid until the next View.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from ...policies.contract import Floats, Ints, Phase
from .record_columns import FORMAT, RecordColumn
from .run_options import Options
from .workload import Workload

_pack = struct.Struct(FORMAT).pack
_LEAST_WORK = 1e-9  #: so that a job without work has a defined progress


class Job:
    """The changing values of a job at hand. Work is in seconds on ``gpus_min`` GPUs in the best placement."""

    __slots__ = (
        "attained",  #: GPU-seconds that it has had, without ``rate`` times the time since ``granted``
        "belief",  #: believed work over true work; NaN: no belief
        "gpus",  #: rows of the GPUs that it holds
        "granted",  #: time of its lease
        "lease_end",
        "left",  #: work left at ``since``
        "number",  #: row of the workload: jobs are numbered in the order of their submission
        "phase",
        "preemptions",
        "profile",
        "profile_gpus",  #: of the profiling run that it needs; 0: it has been profiled
        "ran",  #: seconds of earlier leases
        "rate",  #: GPU-seconds per second: a GPU's time is divided equally among its jobs
        "since",  #: past or future time at which training begins in its lease
        "speed",  #: work per second; 0: no progress
        "work",  #: all of it
    )

    def __init__(self, number: int, now: float, left: float, work: float, belief: float, profile: int) -> None:
        self.number = number
        self.since = self.granted = now
        self.left, self.work, self.belief = left, work, belief
        self.profile, self.profile_gpus = profile, 0
        self.phase = Phase.PENDING
        self.gpus: list[int] = []
        self.preemptions = 0
        self.attained = self.ran = self.rate = self.speed = 0.0
        self.lease_end = math.inf


class Table:
    def __init__(self, workload: Workload, belief: Floats, options: Options) -> None:
        self.workload, self.options = workload, options
        self.deadline = workload.last_deadline()  #: one per job; inf: it has none
        self.gap = workload.most - workload.duration  #: work from its own end to its maximum of iterations, one per job
        self.has_gaps = bool(self.gap.any())
        self.places_move = options.places == "node"  #: a suspended job leaves its checkpoint on its node
        #: of each job the number (from 0) of the need with the nodes that can read its checkpoint, -1: all nodes; None: all for all jobs
        self.place: Ints | None = np.full(len(workload), -1, dtype=np.int64) if options.places == "node" else None
        self.ids: Ints | None = None  #: of all jobs in views; None: their numbers
        self.at_hand: dict[int, Job] = {}  #: by number
        self._touched: set[int] = set()  #: numbers of jobs that have come, changed or gone since the last View
        self._numbers: list[int] = []  #: of the job in each row, ascending
        self._left, self._work = workload.duration.tolist(), np.maximum(workload.duration, _LEAST_WORK).tolist()
        self._belief, self._profile = belief.tolist(), workload.profile.tolist()
        self._rows: Ints = np.zeros((0, RecordColumn.COUNT), dtype=np.int64)
        self.alloc_gpus: Ints = np.zeros(0, dtype=np.int64)
        self.alloc_start: Ints = np.zeros(1, dtype=np.int64)
        self._has_tiers = len(workload.tier_deadline) > 0
        self._tier_count = np.diff(workload.tier_start)

    def __len__(self) -> int:
        return len(self.at_hand)

    def add(self, number: int, now: float, profile_gpus: int = 0) -> Job:
        """A job waits for GPUs. If it is still to be profiled, on ``profile_gpus``, its speed is unknown."""
        job = Job(number, now, self._left[number], self._work[number], self._belief[number], self._profile[number])
        if profile_gpus:
            job.profile, job.profile_gpus, job.belief = -1, profile_gpus, math.nan
        self.at_hand[number] = job
        self._touched.add(number)
        return job

    def of(self, number: int) -> Job:
        """The record of a job, to be changed."""
        self._touched.add(number)
        return self.at_hand[number]

    def profiled(self, job: Job) -> None:
        """Its speed is known from now on, and its length is believed."""
        job.profile, job.profile_gpus, job.belief = self._profile[job.number], 0, self._belief[job.number]

    def remove(self, number: int) -> None:
        """A job without GPUs has ended."""
        del self.at_hand[number]
        self._touched.add(number)

    def columns(self) -> tuple[Ints, Floats]:
        """All columns as they are now: as whole numbers, and the same memory as others."""
        if self._touched:
            self._refresh()
        ints = self._rows.T
        return ints, ints.view(np.float64)

    def tiers(self) -> tuple[Ints, Floats, Floats]:
        """``tier_start``, ``tier_deadline`` and ``tier_reward`` of `Jobs`."""
        w, jobs = self.workload, np.array(self._numbers, dtype=np.int64)
        starts = np.zeros(len(jobs) + 1, dtype=np.int64)
        if not self._has_tiers:
            return starts, w.tier_deadline, w.tier_reward
        counts = self._tier_count[jobs]
        np.cumsum(counts, out=starts[1:])
        rows = np.repeat(w.tier_start[jobs] - starts[:-1], counts) + np.arange(starts[-1])
        return starts, w.tier_deadline[rows], w.tier_reward[rows]

    # The columns

    def _refresh(self) -> None:
        """Make rows of new and changed jobs, between the unchanged rows."""
        old, old_rows = self._numbers, self._rows.data
        old_alloc, start = self.alloc_gpus.data, self.alloc_start.data
        rows: list[bytes | memoryview] = []
        alloc: list[array[int] | memoryview] = []
        numbers: list[int] = []

        def keep(first: int, last: int) -> None:
            rows.append(old_rows[first:last])
            alloc.append(old_alloc[start[first] : start[last]])
            numbers.extend(old[first:last])

        done = 0
        for number in sorted(self._touched):
            row, job = bisect_left(old, number, done), self.at_hand.get(number)
            if row > done:
                keep(done, row)
            done = bisect_right(old, number, row)
            if job is not None:
                rows.append(_row(job))
                alloc.append(array("q", job.gpus))
                numbers.append(number)
        keep(done, len(old))
        self._touched, self._numbers = set(), numbers
        self._rows = np.frombuffer(b"".join(rows), dtype=np.int64).reshape(-1, RecordColumn.COUNT)
        self.alloc_gpus = np.frombuffer(b"".join(alloc), dtype=np.int64)
        self.alloc_start = np.zeros(len(numbers) + 1, dtype=np.int64)
        self._rows[:, RecordColumn.HELD].cumsum(out=self.alloc_start[1:])


def _row(job: Job) -> bytes:
    return _pack(
        job.number,
        job.phase,
        len(job.gpus),
        job.preemptions,
        job.profile,
        job.profile_gpus,
        job.since,
        job.left,
        job.speed,
        job.granted,
        job.attained,
        job.ran,
        job.lease_end,
        job.belief,
        job.work,
        job.rate,
    )
