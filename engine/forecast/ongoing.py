"""Simulation from the middle: it continues a pool from a View, with running jobs on their GPUs and leases in force.

The clock continues from the moment of the View, as policies begin rounds and cycles, and end leases, at multiples of their lengths. In a
forecast no jobs arrive. In a trial of AutoSched (002 ch. 6.4) the expected jobs arrive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...policies.contract import Bools, Floats, Gpus, Ints, Nodes, Phase, Plan, Policy, View
from ...policies.contract import Memory as PolicyMemory
from ..scheduling.guards import Actions, Evictions
from ..sim.agenda import NOBODY, EventKind
from ..sim.cluster import Cluster
from ..sim.results.result import Result
from ..sim.run_options import Options
from ..sim.simulator import Simulation
from ..sim.table import Job
from ..sim.truth import Truth
from ..sim.workload import Workload, joined
from .work_draws import endless

STOPS_IN = 2.0  #: seconds from the request to stop to a job's end (002 fig. 5.3a: 2 to 4 s with the saving)


class OutOfTime(Exception):
    """The simulation has used up its CPU time, or its decisions. ``run``: the state of `drained` so far."""

    run: tuple[Workload, Result] | None = None


class _Known(Exception):
    """All that was asked for is known."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The jobs whose ends are asked for, a row per job of the View. The simulation stops when it knows them."""

    to_the_end: Bools  #: until they end
    until_deadline: Bools  #: until they end or their last deadline passes


class _Leaving:
    """Takes nodes out of a simulation when they are handed back."""

    def __init__(self, leaves: Floats, now: float) -> None:
        self._left = sorted(((max(at, now), node) for node, at in enumerate(leaves.tolist()) if math.isfinite(at)), reverse=True)

    @property
    def next_at(self) -> float:
        return self._left[-1][0] if self._left else math.inf

    def act(self, simulation: Simulation) -> None:
        while self.next_at <= simulation.now:
            simulation.take_out(self._left.pop()[1])


@dataclass(frozen=True, slots=True)
class _Pool(Cluster):
    """The GPUs of a View, with those that are out of use."""

    known: tuple[Nodes, Gpus]

    def tables(self) -> tuple[Nodes, Gpus]:
        return self.known


def ends_from(
    view: View,
    left: Floats,
    policy: Policy,
    options: Options,
    watched: Watched,
    *,
    evictions: Evictions,
    memory: PolicyMemory = None,
    cpu_seconds: float = math.inf,
    start_up: Floats | None = None,
) -> Floats:
    """The ends of the jobs of ``view``, in seconds from its moment, a row per job; NaN: after the simulation's end, or never.

    ``left``: true seconds of work left of each job, on ``gpus_min`` GPUs; the policy's belief is ``view.jobs.remaining``
    at first, and keeps its error. ``evictions``: victims and their displacers, by the jobs' ids.
    ``memory``: the policy's state.
    ``start_up``: seconds that the first start of each job takes; None: as in ``options``.
    Raises SimulationError when the policy fails, OutOfTime after ``cpu_seconds`` of this thread.
    """
    simulation = _Ongoing(view, left, policy, options, watched, evictions, memory, time.thread_time() + cpu_seconds, start_up)
    try:
        simulation.run(None)
    except _Known:
        pass
    return simulation.recorder.ended - view.now


def drained(
    view: View,
    left: Floats,
    coming: Workload,
    policy: Policy,
    options: Options,
    *,
    evictions: Evictions,
    memory: PolicyMemory = None,
    cpu_seconds: float = math.inf,
    most_decisions: float = math.inf,
) -> tuple[Workload, Result]:
    """The pool until all that have an end have ended, or until ``options.until``.

    Its jobs are those of the view, then ``coming``.

    The other arguments and errors are those of `ends_from`; OutOfTime is also raised after ``most_decisions``. For present jobs
    the result counts only preemptions from now on.
    """
    watched = Watched(~endless(view.jobs), np.zeros(len(left), dtype=bool))
    until = time.thread_time() + cpu_seconds
    simulation = _Ongoing(view, left, policy, options, watched, evictions, memory, until, None, coming)
    simulation.most_decisions = most_decisions
    try:
        simulation.run(None)
    except OutOfTime as error:
        error.run = _come_to(simulation)
        raise
    except _Known:
        simulation.close(simulation.now)
    return _come_to(simulation)


def _come_to(simulation: Simulation) -> tuple[Workload, Result]:
    return simulation.workload, simulation.recorder.result(simulation.events, simulation.decisions, simulation.plan_seconds, 0.0)


class _Starts(Truth):
    """First starts take the measured time of each job's model."""

    def __init__(self, workload: Workload, gpus: Gpus, options: Options, start_up: Floats) -> None:
        super().__init__(workload, gpus, options.costs, options.seed)
        self._start_up = start_up

    def start_cost(self, job: int, gpus: Sequence[int], *, resumed: bool) -> float:
        return super().start_cost(job, gpus, resumed=True) if resumed else float(self._start_up[job])


class _Ongoing(Simulation):
    def __init__(
        self,
        view: View,
        left: Floats,
        policy: Policy,
        options: Options,
        watched: Watched,
        evictions: Evictions,
        memory: PolicyMemory,
        cpu_until: float,
        start_up: Floats | None,
        coming: Workload | None = None,
    ) -> None:
        gpus_of = tuple(np.bincount(view.gpus.node, minlength=len(view.nodes)).tolist())
        workload = _workload(view, left)
        self._at_hand = len(workload)
        if coming is not None:
            workload = joined(workload, coming)
        truth = None if start_up is None else _Starts(workload, view.gpus, options, start_up)
        leaving = None if view.nodes.leaves is None else _Leaving(view.nodes.leaves, view.now)
        super().__init__(workload, _Pool(gpus_of, (view.nodes, view.gpus)), policy, options, None, truth, leaving)
        if view.jobs.need is not None and not self.table.places_move:
            self.needs = tuple(view.needs)
            self.table.place = np.full(len(workload), -1, dtype=np.int64)
            self.table.place[: self._at_hand] = np.where(view.jobs.need < 0, -view.jobs.need - 1, -1)
        self._watched = watched
        self._cpu_until = cpu_until
        self.most_decisions = math.inf
        self._last_deadline = np.where(watched.until_deadline, view.jobs.deadline, -np.inf)
        self.agenda.now = view.now
        self.evictions, self.memory = evictions, memory
        self.recorder.finished_before = view.finished_service
        after = int(view.jobs.id.max(initial=0)) + 1  # ids of coming jobs
        self.table.ids = np.concatenate((view.jobs.id, np.arange(after, after + len(workload) - self._at_hand)))
        self._number = {job: number for number, job in enumerate(self.table.ids.tolist())}
        self._drains = coming is not None
        self._start_up = self._starting = np.zeros(len(left))
        if start_up is not None:
            self._start_up = start_up
            begun = (view.jobs.held > 0) & (view.jobs.run_time == 0.0)
            self._starting = np.where(begun, np.maximum(start_up - view.jobs.lease_time, 0.0), 0.0)
        self._take_over(view, left)

    def _take_over(self, view: View, left: Floats) -> None:
        """Put the jobs in the table in their present state."""
        jobs = view.jobs
        self._take_over_profiling(view)
        self.arrived = int((self.arrivals < self._at_hand).sum())
        self.to_come = len(self.arrivals) - self.arrived
        for _ in range(self.arrived):
            self.recorder.come(view.now)
        columns = (
            jobs.preemptions,
            jobs.attained - jobs.lease_time * jobs.held,
            jobs.run_time - jobs.lease_time,
            view.now - jobs.lease_time,
            left,
            _whole(view, left),
            jobs.remaining / np.maximum(left, 1e-9),
            jobs.run_time > 0,
            jobs.held,
        )
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        for number, job in self.table.at_hand.items():
            job.preemptions, job.attained, job.ran, job.granted, job.left, job.work, job.belief, begun, _ = rows[number]
            self.recorder.attempts[number] = int(begun)
        for number, job in self.table.at_hand.items():
            if rows[number][-1]:
                self._hold(job, view)
        self.changed = True
        self.agenda.put(view.now, EventKind.WAKE, NOBODY)

    def _take_over_profiling(self, view: View) -> None:
        """Jobs of unknown speed are before or in their profiling runs, if the policy gives such."""
        jobs = view.jobs
        needed = np.zeros(len(jobs), dtype=np.int64) if not self.profiles or jobs.profile_gpus is None else jobs.profile_gpus
        trained = np.maximum(jobs.lease_time - self._start_up, 0.0)
        for job in self.arrivals[self.arrivals < self._at_hand].tolist():
            self.table.add(job, view.now, int(needed[job]))
            self.waiting.add(job)
            if needed[job]:
                self.training.unmeasured[job] = max(self.options.costs.profiling - float(trained[job]), 0.0)
                if 0 < jobs.held[job] < jobs.gpus_min[job]:
                    self.training.profiling.add(job)

    def _know(self, job: Job) -> None:
        """The belief about its duration comes from the view, and keeps its error."""
        belief = job.belief
        super()._know(job)
        if job.number < self._at_hand:
            job.belief = belief

    def _hold(self, job: Job, view: View) -> None:
        """The job has its GPUs, and trains or is stopping."""
        jobs, number = view.jobs, job.number
        job.since = view.now + float(self._starting[number])
        job.phase = int(jobs.phase[number])
        self.recorder.attempts[number] = int(number not in self.training.profiling)  # no run continues a profiling run
        self.waiting.discard(number)
        self.training.occupy(job, jobs.allocation(number).tolist())
        if job.phase == Phase.STOPPING:
            self.agenda.put(view.now + STOPS_IN, EventKind.STOPPED, number)
            return
        self.training.pace(job)
        end = math.inf if jobs.lease_end is None else float(jobs.lease_end[number])
        self.training.renew(job, max(end, view.now))

    def _objections(self, wanted: Mapping[int, int]) -> Mapping[int, str]:
        return {}  # earlier sources have ended before, and are not known here

    def _by_number(self, plan: Plan, actions: Actions) -> tuple[Plan, Actions]:
        number = self._number
        return (
            replace(
                plan,
                allocations={number[job]: given for job, given in plan.allocations.items()},
                rejected=[number[job] for job in plan.rejected],
            ),
            Actions(
                starts=[start._replace(job=number[start.job]) for start in actions.starts],
                stops=[stop._replace(job=number[stop.job]) for stop in actions.stops],
                renewals=[renewal._replace(job=number[renewal.job]) for renewal in actions.renewals],
            ),
        )

    def _process(self, submitted: list[float]) -> None:
        super()._process(submitted)
        if self._drains and self._is_known():  # before servers count as ended
            raise _Known

    def _decide(self) -> None:
        if self._is_known():
            raise _Known
        if self.decisions >= self.most_decisions or time.thread_time() > self._cpu_until:
            raise OutOfTime
        super()._decide()

    def _is_due(self) -> bool:
        """Also ask for leases that run out between rounds, as the rounds here are ours, not the policy's."""
        return bool(self.lapsed) or super()._is_due()

    def _is_known(self) -> bool:
        if self._drains and (self._watched.to_the_end.all() or self.to_come):
            return False  # it ends by itself
        over = ~np.isnan(self.recorder.ended) | self.recorder.rejected | self.recorder.dropped
        if self._drains:
            return bool(over[self._at_hand :].all() and (over[: self._at_hand] | ~self._watched.to_the_end).all())
        late = ~self._watched.until_deadline | (self._last_deadline < self.now)
        return bool((over | ~self._watched.to_the_end).all() and (over | late).all())


def _whole(view: View, left: Floats) -> Floats:
    """Seconds of work of the whole job: the rest and, as far as is known, the done part."""
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
        submitted=jobs.submitted_at,
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
        tier_deadline=jobs.tier_deadline,
        tier_reward=jobs.tier_reward,
        estimate=np.full(len(jobs), np.nan),
        gpu_memory=jobs.gpu_memory,
        iterations=np.full(len(jobs), np.nan),
        batch_size=nothing,
        profile=nothing - 1 if jobs.profile is None else jobs.profile,
        profiles=view.profiles,
        kind=jobs.kind,
        backbone=jobs.backbone,
        share=jobs.share,
        slowdowns=view.slowdowns,
    )
