"""Lucid: jobs are profiled, ordered by their remaining service, and packed in pairs; no job is preempted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import kinds_of
from ..contract import PACKED, Allocation, Bools, Floats, Group, Ints, Phase, Plan, Reason, View, Waiting, tunable
from ..estimate.lengths import remaining_time
from ..placement.consolidated import Placement
from ..placement.feasible import holdable_in
from ..placement.packing import Sharing, Unpacked, sharing_scores, utilisation_and_memory
from ..queues.later import Later
from ..queues.reasons import lacking

#: A job is not packed with one that needs less than half its service: the short one would be slowed for all its life (the
#: time-aware choice of pairs in Lucid's released code).
MOST_TIMES_LONGER = 2.0
LARGEST_PROFILER = 4  #: the profiler takes a quarter of the pool at most


class Lucid:
    """Least estimated service (GPUs x duration) first; a job that finds no free GPUs may share those of one other job.

    Lucid (ASPLOS 2023) in its three parts, whose two knobs 002 ch. 6.6.5 tunes. Admission: some GPUs are set aside
    (the profiler capacity), and a job that has never run is run there first, for ``profile_time`` seconds, the smallest gang
    first; a short job ends in it. Larger jobs skip it. Order: the estimated remaining service, or the remaining time alone
    (``priority``; 002 table 6.1 names the key and not its values, which are those of Tiresias and Themis). Placement: if no free
    GPUs suffice, a job joins a running job of the same gang size, of one node at most, when their sharing scores (0 to 2 each, by
    their measured speeds beside each other, or else by GPU utilisation) add up to ``pack_knob`` at most and their memory fits. At
    most two share, and a job without a profile shares with none. Jobs that fit may overtake one that does not. Only the profiler's
    leases end; no job is preempted otherwise.

    Our decision: free GPUs come first. The released code looks for a partner first, and gives free GPUs to a job without one, unless
    its forecast of the cluster's load turns packing off. Here there is no such forecast, and packing beside free GPUs would slow two
    jobs and spare no wait, which is what 002's pack knob weighs against speed.
    """

    @dataclass(frozen=True)
    class Config:
        profiler_capacity: int = tunable(
            8, "GPUs set aside to profile new jobs, a quarter of the pool at most; 0: none is profiled", low=0, high=128
        )
        priority: str = tunable("service", "least first: a job's remaining GPUs times seconds, or its seconds alone",
                                choices=("service", "time"))  # fmt: skip
        profile_time: float = tunable(200.0, "seconds for which a new job is profiled at most", low=10.0, high=3600.0)
        pack_knob: int = tunable(2, "largest sum of the sharing scores of two packed jobs; -1: no packing", low=-1, high=4)
        tiny: float = tunable(0.3, "GPU utilisation up to which a job has sharing score 0", low=0.0, high=1.0)
        jumbo: float = tunable(0.65, "GPU utilisation from which on a job has sharing score 2", low=0.0, high=1.0)
        pack_memory: float = tunable(0.95, "share of a GPU's memory that two packed jobs may use together", low=0.1, high=1.0)
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)

    name: ClassVar[str] = "lucid"
    uses_history: ClassVar[bool] = True
    # Not declared rigid: a lease of the profiler ends at a decision, whether or not a job waits.

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        if not (view.jobs.phase == Phase.PENDING).any():
            return Plan({})
        tick = _Tick(view, self.config)
        tick.profile()
        tick.serve()
        return tick.plan()

    def unpacked(self, view: View, job: int) -> Unpacked | None:
        """Why a waiting job (id) has no partner; None: it has one, or GPUs of its own, or is to be profiled first."""
        tick = _Tick(view, self.config)
        tick.profile()
        tick.serve()
        row = int(np.flatnonzero(view.jobs.id == job)[0])
        if row in tick.given or row not in tick.queue:
            return None
        if self.config.pack_knob < 0:
            return Unpacked("pack_knob=-1 lets nobody share")
        return tick.sharing.refusal(row, MOST_TIMES_LONGER * tick.service >= tick.service[row])


class _Tick:
    """One plan in the making."""

    def __init__(self, view: View, config: Lucid.Config) -> None:
        self.view, self.jobs, self.config = view, view.jobs, config
        self.service = estimated_service(view, config.unknown)
        #: The key of the order of service, least first.
        self.urgency = self.service if config.priority == "service" else self.service / np.maximum(view.jobs.gpus_min, 1)
        capacity = min(config.profiler_capacity, len(view.gpus) // LARGEST_PROFILER)
        self.set_aside = np.arange(len(view.gpus)) >= len(view.gpus) - capacity
        everywhere = Placement(view)
        self.main, self.profiler = everywhere, everywhere.copy()
        self.main.take(np.flatnonzero(self.set_aside))
        self.profiler.take(np.flatnonzero(~self.set_aside))
        self.given: dict[int, Allocation] = {}  #: by row
        self.groups: list[tuple[int, int]] = []
        self.holdable = holdable_in(self.main, ~self.set_aside)
        pending = np.flatnonzero(self.jobs.phase == Phase.PENDING)
        fresh = (self.jobs.run_time[pending] <= 0) & (self.jobs.gpus_min[pending] <= capacity)
        if fresh.any():
            holdable = holdable_in(self.profiler, self.set_aside)
            fresh[fresh] = [holdable(*self._size(row)) for row in pending[fresh].tolist()]
        self.fresh, self.queue = pending[fresh], pending[~fresh]

    def _size(self, row: int) -> tuple[int, float]:
        return int(self.jobs.gpus_min[row]), float(self.jobs.asks[row])

    def profile(self) -> None:
        """Start new jobs on the profiler, the smallest gang first, so that many are profiled soon (section 3.2)."""
        end = self.view.now + self.config.profile_time
        failed: set[tuple[int, float]] = set()
        for row in self.fresh[np.argsort(self.jobs.gpus_min[self.fresh], kind="stable")].tolist():
            size = self._size(row)
            gpus = None if size in failed else self._find(self.profiler, row)
            if gpus is None:
                failed.add(size)
                continue
            self.profiler.take(gpus)
            self.given[row] = Allocation(gpus, lease_end=end)

    def serve(self) -> None:
        """Start profiled jobs alone or in pairs, the most urgent first; a start that failed for one job fails for all equal ones."""
        jobs = self.jobs
        queue = self.queue[np.argsort(self.urgency[self.queue], kind="stable")]
        utilisation, memory = utilisation_and_memory(self.view)
        scores = sharing_scores(utilisation, self.config.tiny, self.config.jumbo)
        limits = self.config.pack_knob, self.config.pack_memory, self.main.largest_node()
        self.sharing = Sharing(self.view, scores, memory, *limits, self._being_profiled())
        models = [] if jobs.profile is None or self.view.slowdowns is None else [jobs.profile[queue]]
        kinds = kinds_of(jobs.gpus_min[queue], jobs.asks[queue], scores[queue], memory[queue], *models)
        able = self.sharing.shares(queue)
        unplaceable: set[tuple[int, float]] = set()
        failed: dict[int, int] = {}  # kind to size of gang
        for row, kind, shares in zip(queue.tolist(), kinds.tolist(), able.tolist(), strict=True):
            if kind in failed:
                continue
            size = self._size(row)
            if size not in unplaceable:
                if self._place(row, shares):
                    # It may be joined, so jobs of its size may try again.
                    failed = {other: n for other, n in failed.items() if n != size[0]}
                    continue
                unplaceable.add(size)
            if not (shares and self._pack(row)):
                failed[kind] = size[0]

    def _being_profiled(self) -> Bools:
        """Jobs on the profiler: they leave soon, and measurements beside another job would be useless."""
        profiled = np.zeros(len(self.jobs), dtype=bool)
        hit = np.flatnonzero(self.set_aside[self.jobs.alloc_gpus])
        profiled[np.searchsorted(self.jobs.alloc_start, hit, side="right") - 1] = True
        return profiled

    def _place(self, row: int, shares: bool) -> bool:
        gpus = self._find(self.main, row)
        if gpus is None and not self.holdable(*self._size(row)):
            # Only the whole pool can hold it: the profiler gives way, or it would wait for ever.
            gpus = self._find(self._whole_pool(), row)
        if gpus is None:
            return False
        self.main.take(gpus)
        self.given[row] = Allocation(gpus)
        if shares:
            self.sharing.starts(row, gpus)
        return True

    def _whole_pool(self) -> Placement:
        whole = Placement(self.view)
        for allocation in self.given.values():
            whole.take(allocation.gpus)
        return whole

    def _pack(self, row: int) -> bool:
        partner = self.sharing.partner(row, MOST_TIMES_LONGER * self.service >= self.service[row])
        if partner is None:
            return False
        gpus = self.sharing.join(row, partner)
        self.given.setdefault(partner, Allocation(gpus))
        self.given[row] = Allocation(gpus)
        self.groups.append((partner, row))
        return True

    def _find(self, part: Placement, row: int) -> tuple[int, ...] | None:
        n, memory = self._size(row)
        return part.find_any(n, memory=memory)

    def plan(self) -> Plan:
        job = self.jobs.id
        return Plan(
            allocations={int(job[row]): allocation for row, allocation in self.given.items()},
            groups=[Group(PACKED, (int(job[first]), int(job[second]))) for first, second in self.groups],
            waiting=Later(self._waiting),
            order=Later(self._order),
        )

    def _order(self) -> list[int]:
        return [int(job) for job in self.jobs.id[self._unserved(np.concatenate([self.fresh, self.queue]))]]

    def _waiting(self) -> list[Waiting]:
        reasons = lacking(self.view, self._unserved(self.queue), self.main)
        if len(fresh := self._unserved(self.fresh)):
            reasons.append(Waiting(Reason("profiler", "is to be profiled; all GPUs of the profiler are taken"), self.jobs.id[fresh]))
        return reasons

    def _unserved(self, rows: Ints) -> Ints:
        rows = np.array([row for row in rows.tolist() if row not in self.given], dtype=np.int64)
        return rows[np.argsort(self.urgency[rows], kind="stable")]


def estimated_service(view: View, unknown: float) -> Floats:
    """GPU-seconds that each job still needs.

    For an unknown job it is the median of finished jobs' service beyond its own attained service (Lucid predicts from its history of
    jobs), or ``unknown`` if none took more.
    """
    jobs, history = view.jobs, view.finished_service
    service = remaining_time(jobs, unknown) * jobs.gpus_min
    blank = np.flatnonzero(np.isnan(jobs.remaining))
    if history is None or not len(history) or not len(blank):
        return service
    outlived = np.searchsorted(history, jobs.attained[blank], side="right")
    seen = outlived < len(history)
    median = history[(outlived[seen] + len(history)) // 2]
    service[blank[seen]] = median - jobs.attained[blank[seen]]
    return service
