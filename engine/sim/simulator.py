"""Discrete-event simulation of one policy on one workload: the live plan(), checks and guards on a virtual clock.

Events stand on a heap keyed (time, kind, sequence). All events of one moment are processed before the policy is asked once,
in the order of `EventKind`: a job that ends frees its GPUs before arrivals of that moment are considered. A plan is carried out
as by the daemon: a start on held GPUs stops their holders, and waits until a later decision finds the GPUs free.
Decisions are made at events. If the policy works in rounds, they wait for the next multiple of its interval, except when a job that was
asked to stop has stopped, as another job waits for its GPUs. Rounds are left out while there are no jobs, and for a `rigid` policy while
no job waits. A lease that runs out between rounds is not renewed; it goes on while no job waits. With ``Costs.commit`` a plan is in force
so much later than it was decided. The policy is asked again only then, as the daemon's ticks never overlap; parts of the plan that no
longer fit are left out.

A policy with ``profiles`` gives jobs their profiling runs. It sees a job from its submission on, of unknown length until it has trained
for ``Costs.profiling`` seconds in all: in runs on fewer GPUs than its gang (002 ch. 5.3.2.1) or, if it needs no more than these, at its
work. A profiling run makes no progress. It ends when it has measured enough, or with its lease; nothing has to be saved then, so its end
is free and no preemption. Other policies do not see a job until it has been profiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ...policies.contract import Allocation, Gpus, Need, Phase, Plan, Policy, View
from ...policies.contract import Memory as PolicyMemory
from ...policies.placement.cells import Grid, free_gpus
from ..scheduling.guards import Actions, Evictions, Start, next_look, protection, reconcile
from ..scheduling.plan_check import PlanError, check
from ..scheduling.policy_errors import words
from .agenda import NOBODY, Agenda, EventKind
from .cluster import Cluster
from .execution import Training
from .failures import Failures
from .live import LiveJobs
from .results.recorder import Recorder
from .results.result import Result
from .run_options import NO_LIMITS, Options
from .simulation_error import SimulationError
from .table import Job, Table
from .truth import Truth, beliefs
from .workload import Workload, as_asked

Progress = Callable[[int, int], None]  #: gets the number of ended jobs, and of all
Observer = Callable[[View, Plan, Actions], None]

_PROFILE_GPUS = 2  #: most GPUs of a profile (002 ch. 5.3.2.1)
_FRUITLESS = 1000  #: decisions in a row without a change, and without future events, after which the run ends
_AT_ONE_MOMENT = 10_000  #: decisions at one moment after which the policy counts as going round in circles
_IN_VAIN = 100_000  #: stops in a row of jobs without progress after which it counts as going round in circles over time


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    options: Options,
    *,
    progress: Progress | None = None,
    observer: Observer | None = None,
    control: Control | None = None,
) -> Result:
    """Run the workload to its end (or to ``options.until``).

    ``observer`` sees each decision before it is carried out. The same arguments give the same result, whatever the machine.
    Raises SimulationError when the policy raises or its plan is invalid.
    """
    began = time.perf_counter()
    simulation = Simulation(workload, cluster, policy, options, observer, control=control)
    simulation.run(progress)
    return simulation.recorder.result(simulation.events, simulation.decisions, simulation.plan_seconds, time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision, and its effects once it is in force."""

    plan: Plan
    actions: Actions
    over: list[int]  #: jobs whose leases have run out and end with this plan
    again: float  #: time of the next question even without events


class Control(Protocol):
    """A controller that may reconfigure a running simulation, such as AutoSched."""

    @property
    def next_at(self) -> float:
        """The time of its next turn; inf: never."""

    def act(self, simulation: Simulation) -> None: ...


class Simulation:
    """Events and decisions; `Training` has the jobs on their GPUs in between. ``truth``: None: that of the options."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        options: Options,
        observer: Observer | None,
        truth: Truth | None = None,
        control: Control | None = None,
    ) -> None:
        self.control = control
        workload = workload if getattr(policy, "elastic", False) else as_asked(workload)
        self.workload, self.policy, self.options, self.observer = workload, policy, options, observer
        self.nodes, self.gpus = cluster.tables()
        truth = truth or Truth(workload, self.gpus, options.costs, options.seed)
        self.table = Table(workload, beliefs(workload, options.errors, options.seed), options)
        self.recorder = Recorder(workload, ~truth.fits())
        self._take_up(policy)
        self.agenda = Agenda(len(workload))
        each = np.eye(len(self.nodes.id), dtype=bool) if options.places == "node" else ()
        self.needs = tuple(Need(0.0, node) for node in each)  #: to be on that node; memory is not known
        self.free = free_gpus(Grid(self.gpus.node, self.gpus.index), self.gpus.usable)
        self.training = Training(self.table, truth, self.recorder, self.agenda, options.costs, self.free, self.gpus)
        self.waiting: set[int] = set()
        self.lapsed: list[int] = []  #: jobs whose lease has run out at this moment
        self.spared: set[int] = set()  #: jobs whose lease had run out by the last decision, and which go on as no job waited
        self.coming: _Decided | None = None  #: not in force yet
        self.failures = Failures(workload.key, until=options.until)
        self.limited = options.limits != NO_LIMITS
        self.evictions = Evictions()
        self.memory: PolicyMemory = None  #: the policy's state between decisions
        self.arrivals = np.flatnonzero(~self.recorder.dropped)
        self.arrived = 0
        self.to_come = len(self.arrivals)  #: jobs that the policy has not seen yet
        self.profilers = options.costs.profiler_gpus
        self.unprofiled: list[int] = []  #: jobs that wait for a profiler, first come first
        self.events = self.decisions = 0
        #: by kind
        self.handle = (
            self._end, self._stopped, self._fail, self._profiled, self._measured, self._lease_ends, self._wake, self._in_force,
            self._trains,
        )  # fmt: skip
        self.plan_seconds = 0.0
        self.changed = self.acted = self.vacated = False
        self.fruitless = self.in_vain = 0

    def _take_up(self, policy: Policy) -> None:
        self.policy = policy
        self.interval = self.options.interval if self.options.interval is not None else getattr(policy, "interval", None)
        self.uses_history = getattr(policy, "uses_history", False)
        self.rigid = getattr(policy, "rigid", False)
        self.profiles = getattr(policy, "profiles", False) and self.options.costs.profiling > 0

    def reconfigure(self, policy: Policy) -> None:
        """Take up another configuration of the policy at once, like the daemon: allocations, leases and the policy's memory stay."""
        self._take_up(policy)
        self.changed = True

    @property
    def now(self) -> float:
        return self.agenda.now

    # The clock

    def run(self, progress: Progress | None) -> None:
        submitted = [*self.workload.submitted[self.arrivals].tolist(), math.inf]
        until = math.inf if self.options.until is None else self.options.until
        decided_at, count = -math.inf, 0
        while True:
            moment = min(submitted[self.arrived], self.agenda.next())
            if self.interval is not None:
                moment = min(moment, self._next_round(self.interval))
            if moment == math.inf:
                break
            if self.control is not None:
                moment = min(moment, self.control.next_at)
            if moment > until:
                break
            self.agenda.now = moment
            self.training.account_warm(moment)
            self._process(submitted)
            if self.control is not None and self.now >= self.control.next_at:
                self.control.act(self)
            if self._is_due():
                count = count + 1 if moment == decided_at else 0
                decided_at = moment
                if count > _AT_ONE_MOMENT:
                    raise self._error("the policy goes round in circles: its plans start and stop the same jobs again and again")
                self._decide()
                if self.fruitless > _FRUITLESS:
                    break
            elif self.lapsed and self.coming is None:
                self._take_back(self._over(Actions()))  # the policy is not asked at this moment, so nothing is renewed
            if progress is not None and self.events % 256 == 0:
                progress(self.recorder.over, len(self.arrivals))
        self.close(self.now if math.isinf(until) else until)

    def close(self, end: float) -> None:
        """Settle the accounts of the remaining jobs at the end."""
        self.training.account_warm(end)
        self.recorder.warm_idle = 0.0 if self.training.pools is None else self.training.pools.idle_gpu_time
        self.training.close(end)

    def _next_round(self, interval: float) -> float:
        """The next round; inf: it could change nothing. The policy tells whether progress, or time alone, may change its shares."""
        if not self.table.at_hand or (self.rigid and not self.waiting):
            return math.inf
        rounds = math.floor(self.now / interval) + 1
        moment = rounds * interval
        return moment if moment > self.now else (rounds + 1) * interval  # a quotient of floats can be one too low

    def _is_due(self) -> bool:
        if self.coming is not None:
            return False
        if self.rigid and not self.waiting:
            self.changed = False
            return False
        if self.interval is None:
            return self.changed
        if self.vacated:  # GPUs that a round has given away do not wait for the next
            return True
        return bool(self.table.at_hand) and self.now == round(self.now / self.interval) * self.interval

    def _process(self, submitted: list[float]) -> None:
        """All events of this moment."""
        now = self.now
        if self.coming is None:  # else they are for the next decision
            self.lapsed, self.vacated = [], False
        while (due := self.agenda.pop()) is not None:
            kind, job = due
            self.events += 1
            self.handle[kind](job)
        while submitted[self.arrived] <= now:
            self.events += 1
            self._arrive(int(self.arrivals[self.arrived]))
            self.arrived += 1

    # Events

    def _arrive(self, job: int) -> None:
        costs = self.options.costs
        if self.profiles:
            self.training.unmeasured[job] = costs.profiling
            self._appear(job, min(_PROFILE_GPUS, int(self.workload.gpus_min[job])))
        elif costs.profiling <= 0:
            self._appear(job)
        elif costs.profiler_gpus <= 0 or self.profilers > 0:
            self.profilers -= 1
            self.agenda.put(self.now + costs.profiling, EventKind.PROFILED, job)
        else:
            self.unprofiled.append(job)

    def _profiled(self, job: int) -> None:
        """It was profiled outside the cluster."""
        self.profilers += 1
        if self.options.costs.profiler_gpus > 0 and self.unprofiled:
            self._arrive(self.unprofiled.pop(0))
        self._appear(job)

    def _appear(self, job: int, profile_gpus: int = 0) -> None:
        self.table.add(job, self.now, profile_gpus)
        self.waiting.add(job)
        self.recorder.come(self.now)
        self.to_come -= 1
        self.changed = True

    def _wait(self, job: Job) -> None:
        """It has left its GPUs and waits for others."""
        job.phase = Phase.PENDING
        self.waiting.add(job.number)
        self.changed = True

    def _measured(self, number: int) -> None:
        """It has trained long enough for its profile; that ends a profiling run."""
        job = self.table.of(number)
        if self.training.leave_profiling(job):
            self.in_vain = 0
            self._wait(job)
        self._know(job)
        self.changed = True

    def _know(self, job: Job) -> None:
        del self.training.unmeasured[job.number]
        self.table.profiled(job)

    def _end(self, number: int) -> None:
        self.training.end(self.table.at_hand[number])
        self.table.remove(number)
        self.waiting.discard(number)  # it may have been at its target by training with another
        self.recorder.end(number, self.now)
        self.in_vain = 0
        self.changed = True

    def _trains(self, number: int) -> None:
        self.training.begun(self.table.of(number))

    def _stopped(self, number: int) -> None:
        job = self.table.of(number)
        if self.training.stopped(job):
            self._know(job)
        self.vacated = True
        self._wait(job)

    def _fail(self, number: int) -> None:
        job = self.table.of(number)
        if self.training.fail(job) and (hopeless := self.failures.hopeless(number, job.left)):
            raise self._error(hopeless)
        self._wait(job)

    def _lease_ends(self, number: int) -> None:
        if self.table.at_hand[number].lease_end <= self.now:  # else it has been renewed
            self.lapsed.append(number)  # a decision at this moment may still renew it
            self.changed = True

    def _wake(self, _: int) -> None:
        self.changed = True

    # Decisions

    def _gpus(self) -> Gpus:
        if self.training.pools is None:
            return self.gpus
        warm, warm_at = self.training.pools.columns()
        return replace(self.gpus, warm=warm, warm_at=warm_at)

    def view(self) -> View:
        service = self.recorder.finished_service() if self.uses_history else None
        jobs = LiveJobs(self.table, self.now)
        work = self.workload
        view = View(
            self.now, "default", jobs, self._gpus(), self.nodes, work.profiles, service, self.free, self.memory, slowdowns=work.slowdowns,
            transfers=work.transfers, needs=self.needs, left=self.training.merging.left,
        )  # fmt: skip
        if not self.limited:
            return view
        return replace(view, jobs=LiveJobs(self.table, self.now, protection(view, self.options.limits)))

    def _decide(self) -> None:
        view = self.view()
        asked = self._ask(view)
        try:
            plan = check(asked, view, reasons=self.observer is not None, objections=self._objections)
        except PlanError as error:
            raise self._error(f"invalid plan: {error}; the plan: {_in_a_line(asked)}") from None
        if (objection := self.training.merging.objection(plan)) is not None:
            raise self._error(f"invalid plan: {objection}")
        self.memory = plan.memory
        actions = reconcile(view, plan, self.options.limits, self.evictions)
        if self.observer is not None:
            self.observer(view, plan, actions)
        self.changed = False
        if actions.stops:
            self.evictions = self.evictions.after(actions.stops, self.now, self.options.limits)
        again = self._next_look(view, plan, actions)  # before the actions, as the view reads the table
        plan, actions = self._by_number(plan, actions)
        decided, delay = _Decided(plan, actions, self._over(actions), again), self.options.costs.commit
        if delay > 0:
            self.coming = decided
            self.agenda.put(self.now + delay, EventKind.IN_FORCE, NOBODY)
        else:
            self._put_in_force(decided)

    def _objections(self, wanted: Mapping[int, int]) -> Mapping[int, str]:
        """The daemon's objections to jobs that begin with others' weights. A source that has trained at all has saved a checkpoint."""
        return {job: words for job, source in wanted.items() if (words := self._objection(job, source)) is not None}

    def _objection(self, job: int, source: int) -> str | None:
        if not 0 <= source < len(self.workload) or self.workload.submitted[source] > self.now:
            return "there is no such job"
        if job == source:
            return "that is itself"
        backbones = self.workload.backbone
        if backbones is not None and backbones[job] and backbones[source] and backbones[job] != backbones[source]:
            return f"job {source} starts from the backbone {backbones[source]}, and this one from {backbones[job]}: the models differ"
        of = self.table.at_hand.get(source)
        saved = not np.isnan(self.recorder.ended[source]) if of is None else of.left < of.work or (of.speed > 0 and of.since < self.now)
        return None if saved else f"job {source} has saved no checkpoint yet"

    def _by_number(self, plan: Plan, actions: Actions) -> tuple[Plan, Actions]:
        """The same of rows of the workload, which are the ids of its jobs."""
        return plan, actions

    def _in_force(self, _: int) -> None:
        decided, self.coming = self.coming, None
        assert decided is not None
        self._put_in_force(decided)
        self.changed |= self.acted or decided.again <= self.now  # the daemon looks again at what it has committed

    def _put_in_force(self, decided: _Decided) -> None:
        actions = decided.actions
        self._carry_out(decided.plan, actions)
        self._take_back(decided.over)
        self.agenda.void(NOBODY)
        if decided.again > self.now:
            self.agenda.put(decided.again, EventKind.WAKE, NOBODY)
        if actions.stops:  # like the daemon, ask again at once: GPUs free all along may suit another job now
            self.agenda.put(self.now, EventKind.WAKE, NOBODY)
        none_runs = len(self.waiting) >= len(self.table) or math.isinf(self.agenda.next())
        self.fruitless = self.fruitless + 1 if none_runs and not (self.acted or self.to_come) else 0

    def _ask(self, view: View) -> Plan:
        start = time.perf_counter()
        try:
            plan = self.policy.plan(view)
        except (Exception, SystemExit) as error:  # a policy may be any code
            raise self._error(f"the policy failed: {words(error)}") from error
        self.plan_seconds += time.perf_counter() - start
        self.decisions += 1
        return plan

    def _next_look(self, view: View, plan: Plan, actions: Actions) -> float:
        """The time of the next question even without events, as for the daemon."""
        if not self.limited:
            return math.inf if plan.wake_at is None else plan.wake_at
        return next_look(view, plan, actions, self.options.limits, self.evictions)

    def _carry_out(self, plan: Plan, actions: Actions) -> None:
        sizes = ((job, one.batch_size) for job, one in plan.allocations.items() if job in self.table.at_hand)
        if plan.warm is not None:
            self.training.change_pools(plan.warm)
        self.training.set_batches((job, size) for job, size in sizes if size is not None)
        for stop in actions.stops:
            if self._is(stop.job, Phase.ACTIVE):
                self._suspend(stop.job)
        for start in actions.starts:
            self._start(start)
        for job, lease_end in actions.renewals:
            if self._is(job, Phase.ACTIVE):
                self.training.renew(self.table.of(job), lease_end)
        self._give_up(plan)
        self.acted = bool(actions.stops or actions.starts or plan.rejected)

    def _start(self, start: Start) -> None:
        self.training.start(start)
        self.waiting.discard(start.job)

    def _is(self, number: int, phase: int) -> bool:
        """Whether the job still exists in this phase: it may have ended or failed since the decision."""
        job = self.table.at_hand.get(number)
        return job is not None and job.phase == phase

    def _over(self, actions: Actions) -> list[int]:
        """Jobs with an ended lease that leave their GPUs with this plan; while no job waits only profiling runs, as live."""
        if not (self.lapsed or self.spared):
            return []
        kept = {renewal.job for renewal in actions.renewals}.union(stop.job for stop in actions.stops)
        over = {job for job in self.spared.union(self.lapsed) - kept if self._has_run_out(job)}
        waits = len(self.waiting) > len(actions.starts)
        self.spared = set() if waits else over - self.training.profiling
        return sorted(over - self.spared)

    def _has_run_out(self, number: int) -> bool:
        return self._is(number, Phase.ACTIVE) and self.table.at_hand[number].lease_end <= self.now

    def _take_back(self, over: list[int]) -> None:
        for number in over:
            if self._has_run_out(number):
                self._suspend(number)
                self.acted = True

    def take_out(self, node: int) -> None:
        """A node is handed back: its jobs stop, and none starts there from now on."""
        there = self.gpus.node == node
        self.gpus = replace(self.gpus, usable=self.gpus.usable & ~there)
        gone = set(np.flatnonzero(there).tolist())
        self.training.take_out(gone)
        for number in [number for number, job in self.table.at_hand.items() if job.phase == Phase.ACTIVE and not gone.isdisjoint(job.gpus)]:
            self.training.suspend(self.table.of(number))
        self.changed = True

    def _suspend(self, number: int) -> None:
        self.in_vain = 0 if self.training.suspend(self.table.of(number)) > 0 else self.in_vain + 1
        if self.in_vain > _IN_VAIN:
            raise self._error(f"the policy goes round in circles: the last {_IN_VAIN} jobs that it stopped had got nothing done")

    def _give_up(self, plan: Plan) -> None:
        for job in plan.rejected:
            self.table.remove(job)
            self.waiting.discard(job)
            self.recorder.reject(job, self.now)
            self.agenda.void(job)

    def _error(self, what: str) -> SimulationError:
        return SimulationError(f"policy {self.policy.name} at {self.now:g} s: {what}")


def _in_a_line(plan: object) -> str:
    """A plan in one line: its allocations, as far as they can be read."""
    allocations = getattr(plan, "allocations", None)
    if not isinstance(allocations, Mapping):
        return repr(plan)[:200]
    given = [f"{job}: {allocation.gpus if isinstance(allocation, Allocation) else allocation}" for job, allocation in allocations.items()]
    return "{" + ", ".join(given[:10]) + (", …" if len(given) > 10 else "") + "}"
