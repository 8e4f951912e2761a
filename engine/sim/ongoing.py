"""Simulation from the middle: a pool as a View has it, jobs running on their GPUs, under leases that stand, goes on from there.

The clock starts at 0, the moment of the View; what was before has negative times. Nothing arrives: all jobs are there.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from ...policies.contract import Bools, Floats, Gpus, Ints, Nodes, Phase, Policy, View
from ..guards import Memory
from .cluster import Cluster
from .columns import F, I
from .options import Options
from .simulator import Kind, _Simulation
from .workload import Workload

STOPS_IN = 2.0  #: seconds until a job that has been told to stop has done so (002 fig. 5.3a: 2 to 4 s with the saving)


class OutOfTime(Exception):
    """The simulation has used up its processor time."""


class _Known(Exception):
    """Nothing that is asked for can change any more."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose ends are asked for, a row a job of the View. The simulation stops when it knows them."""

    to_the_end: Bools  #: until they end
    until_deadline: Bools  #: until they end or their last deadline passes


@dataclass(frozen=True, slots=True)
class _Pool(Cluster):
    """The GPUs of a View, with those that are out of use."""

    known: tuple[Nodes, Gpus]

    def tables(self) -> tuple[Nodes, Gpus]:
        return self.known


def ends_from(
    view: View, left: Floats, policy: Policy, options: Options, watched: Watched, *, memory: Memory, cpu_seconds: float = math.inf
) -> Floats:
    """When the jobs of ``view`` end, in seconds from its moment, a row a job; NaN: later than the simulation ran, or never.

    ``left``: seconds of work that each job has left in truth, on ``gpus_min`` GPUs; what the policy believes of it is
    ``view.jobs.remaining`` at first, and stays as wrong. ``memory``: who gave way to whom, by the jobs' ids.
    Raises SimulationError when the policy fails, OutOfTime after ``cpu_seconds`` of this thread.
    """
    simulation = _Ongoing(view, left, policy, options, watched, memory, time.thread_time() + cpu_seconds)
    try:
        simulation.run(None)
    except _Known:
        pass
    return simulation.recorder.ended


class _Ongoing(_Simulation):
    def __init__(
        self, view: View, left: Floats, policy: Policy, options: Options, watched: Watched, memory: Memory, cpu_until: float
    ) -> None:
        gpus_of = tuple(np.bincount(view.gpus.node, minlength=len(view.nodes)).tolist())
        super().__init__(_workload(view, left), _Pool(gpus_of, (view.nodes, view.gpus)), policy, options, None)
        self._watched = watched
        self._cpu_until = cpu_until
        self._last_deadline = np.where(watched.until_deadline, view.jobs.deadline - view.now, -np.inf)
        self.memory = _memory(memory, view)
        self._take_over(view, left)

    def _take_over(self, view: View, left: Floats) -> None:
        """Put the jobs in the table as they stand."""
        jobs, table, here = view.jobs, self.table, self.arrivals
        for job in here.tolist():
            table.add(job, 0.0)
        self.arrived, self.to_come = len(here), 0
        ints, floats = table.ints[:, : table.n], table.floats[:, : table.n]
        ints[I.PREEMPTIONS] = jobs.preemptions[here]
        floats[F.ATTAINED] = jobs.attained[here] - jobs.lease_time[here] * jobs.held[here]
        floats[F.RAN] = jobs.run_time[here] - jobs.lease_time[here]
        floats[F.GRANTED] = -jobs.lease_time[here]
        floats[F.LEFT] = left[here]
        floats[F.WORK] = _whole(view, left)[here]
        floats[F.BELIEF] = jobs.remaining[here] / np.maximum(left[here], 1e-9)
        self.recorder.attempts[here] = jobs.run_time[here] > 0
        for row, job in enumerate(here.tolist()):
            if jobs.alloc_start[job + 1] > jobs.alloc_start[job]:
                self._hold(job, row, view)
        self.changed = True
        self._push(0.0, Kind.WAKE, 0, self.waking)

    def _hold(self, job: int, row: int, view: View) -> None:
        """The job has the GPUs that it has, and trains or is about to have stopped."""
        jobs, table, gpus = view.jobs, self.table, view.jobs.allocation(job)
        table.hold(row, gpus)
        table.ints[I.PHASE, row] = jobs.phase[job]
        self.recorder.attempts[job] = 1
        self.version[job] = 1
        users = self._users(gpus)
        self.free.set(gpus, False)
        self.busy += int((users == 1).sum())
        if jobs.phase[job] == Phase.STOPPING:
            self.stopping += 1
            self._push(STOPS_IN, Kind.STOPPED, job, 1)
            return
        self.running += 1
        if (users > 1).any():
            self._meet(job, gpus)
        self._pace(job, row)
        end = math.inf if jobs.lease_end is None else float(jobs.lease_end[job]) - view.now
        self._set_lease_end(job, row, max(end, 0.0))

    def _vacate(self, job: int, row: int) -> None:
        """GPUs that are out of use stay so when their job has left."""
        gpus = self.table.allocation(row)
        super()._vacate(job, row)
        self.free.set(gpus[~self.gpus.usable[gpus] & (self._users(gpus) == 0)], False)

    def _decide(self) -> None:
        if self._is_known():
            raise _Known
        if time.thread_time() > self._cpu_until:
            raise OutOfTime
        super()._decide()

    def _is_due(self) -> bool:
        """A lease that runs out between rounds is asked for too: the rounds here are ours, and not those of the policy."""
        return self.lapsed or super()._is_due()

    def _is_known(self) -> bool:
        over = ~np.isnan(self.recorder.ended) | self.recorder.rejected | self.recorder.dropped
        late = ~self._watched.until_deadline | (self._last_deadline < self.now)
        return bool((over | ~self._watched.to_the_end).all() and (over | late).all())


def _whole(view: View, left: Floats) -> Floats:
    """Seconds of work of the whole job: what it has left and, as far as is known, what it has done."""
    jobs = view.jobs
    done = jobs.run_time
    if jobs.progress is not None:
        share = np.where(np.isnan(jobs.progress) | (jobs.progress >= 1.0), 0.0, jobs.progress)
        done = np.where(share > 0.0, left * share / (1.0 - share), done)
    return np.maximum(left + done, 1e-9)


def _workload(view: View, left: Floats) -> Workload:
    jobs = view.jobs
    users, user = np.unique(jobs.user, return_inverse=True)
    models, model = np.unique(jobs.model, return_inverse=True)
    nothing: Ints = np.zeros(len(jobs), dtype=np.int64)
    return Workload(
        name=f"pool {view.pool} now",
        key=[str(job) for job in jobs.id.tolist()],
        submitted=jobs.submitted_at - view.now,
        duration=(whole := _whole(view, left)),
        most=whole,
        gpus_min=jobs.gpus_min,
        gpus_max=jobs.gpus_max,
        priority=jobs.priority,
        demand=jobs.demand,
        user=user.astype(np.int64),
        model=model.astype(np.int64),
        users=[str(code) for code in users.tolist()],
        models=[str(code) for code in models.tolist()],
        tier_start=jobs.tier_start,
        tier_deadline=jobs.tier_deadline - view.now,
        tier_reward=jobs.tier_reward,
        estimate=np.full(len(jobs), np.nan),
        gpu_memory=jobs.gpu_memory,
        iterations=np.full(len(jobs), np.nan),
        batch_size=nothing,
        profile=nothing - 1 if jobs.profile is None else jobs.profile,
        profiles=view.profiles,
    )


def _memory(memory: Memory, view: View) -> Memory:
    """The same of the simulation's jobs, which are rows of the view."""
    row_of = {job: row for row, job in enumerate(view.jobs.id.tolist())}
    return Memory(
        {
            (row_of[victim], row_of[winner]): moment - view.now
            for (victim, winner), moment in memory.gave_way.items()
            if victim in row_of and winner in row_of
        }
    )
