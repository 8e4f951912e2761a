"""Discrete-event simulation of one policy on one workload: the plan(), the checks and the guards that run live, on a virtual clock.

Events stand on a heap keyed (time, kind, sequence). All events of one moment are processed before the policy is asked once,
in the order of `Kind`: a job that ends frees its GPUs before what arrives at that moment is considered. A plan is carried out
as the daemon does: a start on GPUs that somebody holds stops the holders and waits until a later decision finds them free.
Nothing happens between events, unless the policy works in rounds: then decisions wait for the next multiple of its interval,
but for the moment at which a job that was told to stop has stopped, as somebody waits for its GPUs. A round at which nothing has
happened since the last one, nothing waits and nothing was changed is left out. A lease that runs out between rounds is not renewed.

A policy with ``profiles`` gives jobs their profiling runs. Such a job is at hand from its submission on, of unknown length, until it has
trained for ``Costs.profiling`` seconds in all, in runs on fewer GPUs than its gang (002 ch. 5.3.2.1) or, if it needs no more than these, at
its work. A profiling run makes no progress of the work. It ends when it has measured enough, or with its lease; nothing needs saving then,
so that costs nothing and is no preemption. To other policies a job is unknown until it has been profiled.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from ...policies.cells import free_gpus, grid_of
from ...policies.contract import Jobs, Phase, Plan, Policy, View
from ...policies.serving import Ranking
from ..guards import Actions, Memory, Start, next_look, protection, reconcile
from ..plan_check import PlanError, check
from .arrivals import Arrivals, checked
from .cluster import Cluster
from .errors import SimulationError
from .failures import Failures
from .foreseen import Foreseen
from .live import LiveJobs
from .options import NO_LIMITS, Options
from .plain import plain_actions
from .recorder import Recorder
from .result import Result
from .said import in_a_line, says_of_its_plan
from .table import Job, Table
from .truth import Truth, beliefs
from .workload import Workload

Progress = Callable[[int, int], None]  #: jobs that have ended, of all
Observer = Callable[[View, Plan, Actions], None]

_PROFILE_GPUS = 2  #: that a profile takes at most (002 ch. 5.3.2.1)
_ROUNDING = 1e-6  #: seconds of a profile that a lease may lack for the last digits of sums of times
_FRUITLESS = 1000  #: decisions in a row that change nothing, with nothing to come, after which nothing ever will
_AT_ONE_MOMENT = 10_000  #: decisions at one moment, after which the policy is taken to go round in circles
_IN_VAIN = 100_000  #: stops in a row of jobs that had got nothing done, after which it is taken to do so as time passes


class Kind:
    """Kinds of events, in the order in which those of one moment are processed."""

    END = 0
    STOPPED = 1
    FAILURE = 2
    PROFILED = 3
    MEASURED = 4
    LEASE_END = 5
    WAKE = 6


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    options: Options,
    *,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Result:
    """Run the workload to its end (or to ``options.until``).

    ``observer`` sees each decision before it is carried out. The same arguments give the same result, whatever the machine.
    Raises SimulationError when the policy raises or its plan is invalid.
    """
    began = time.perf_counter()
    simulation = Simulation(workload, cluster, policy, options, observer)
    simulation.run(progress)
    return simulation.recorder.result(simulation.events, simulation.decisions, simulation.plan_seconds, time.perf_counter() - began)


class Simulation:
    def __init__(self, workload: Workload, cluster: Cluster, policy: Policy, options: Options, observer: Observer | None) -> None:
        self.workload, self.policy, self.options, self.observer = workload, policy, options, observer
        self.nodes, self.gpus = cluster.tables()
        self.truth = Truth(workload, self.gpus, options.costs, options.seed)
        self.table = Table(workload, beliefs(workload, options.errors, options.seed), options)
        self.recorder = Recorder(workload, ~self.truth.fits())
        self.interval = options.interval if options.interval is not None else getattr(policy, "interval", None)
        self.uses_history = getattr(policy, "uses_history", False)
        self.rigid = getattr(policy, "rigid", False)
        self.profiles = getattr(policy, "profiles", False) and options.costs.profiling > 0
        self.plain = observer is None and not self.gpus.memory.any()  #: nobody looks at reasons, and every free GPU suits every job
        self.heap: list[tuple[float, int, int, int, int]] = []  #: (time, kind, sequence, job, version)
        self.gangs: list[int] = workload.gpus_min.tolist()
        self.version = [0] * len(workload)  #: of a job's lease; events of an older one are void
        self.free = free_gpus(grid_of(self.gpus), self.gpus.usable)
        self.on: list[tuple[int, ...]] = [()] * len(self.gpus)  #: jobs on each GPU
        self.waiting: set[int] = set()
        self.lapsed: list[int] = []  #: jobs whose lease has run out at this moment
        self.partners: dict[int, set[int]] = {}  #: jobs that share GPUs, and with whom
        self.stretches: dict[int, list[tuple[float, float]]] = {}  #: (seconds, speed) before, of jobs whose pace changed in their lease
        self.unmeasured: dict[int, float] = {}  #: seconds of training that its profile still takes, of jobs whose profile is not known
        self.profiling: set[int] = set()  #: jobs in a profiling run
        self.fails_at = [math.inf] * len(workload)
        self.failures = Failures(workload.key, until=options.until)
        self.limited = options.limits != NO_LIMITS
        self.batch: dict[int, int] = {}  #: batch sizes that the policy has chosen
        self.memory = Memory()
        self.arrivals = np.flatnonzero(~self.recorder.dropped)
        self.arrived = 0
        self.to_come = len(self.arrivals)  #: jobs that the policy has not seen yet
        self.profilers = options.costs.profiler_gpus
        self.unprofiled: list[int] = []  #: jobs that wait for a profiler, first come first
        self.sequence = self.events = self.decisions = self.waking = 0
        self.handle = (self._end, self._stopped, self._fail, self._profiled, self._measured, self._lease_ends, self._wake)  #: by kind
        self.now = self.plan_seconds = 0.0
        self.foreseen = self._foresight()
        self.changed = self.acted = self.vacated = False
        self.fruitless = self.in_vain = 0

    def _foresight(self) -> Foreseen:
        costs, errors = self.options.costs, self.options.errors
        alone = self.plain and not self.profiles and says_of_its_plan(self.policy, "starts_alone")
        return Foreseen(
            self.gangs,
            self.free,
            alone=alone,
            arrivals=Arrivals(self.table, self._rank) if alone and says_of_its_plan(self.policy, "ranking") else None,
            proofs=self.interval is None and math.isinf(errors.corrected),  # else what is believed of a job jumps while it runs
            stops_freely=not (costs.suspend or costs.lost_on_suspend),
        )

    # The clock

    def run(self, progress: Progress | None) -> None:
        submitted = [*self.workload.submitted[self.arrivals].tolist(), math.inf]
        until = math.inf if self.options.until is None else self.options.until
        decided_at, count = -math.inf, 0
        while True:
            moment = submitted[self.arrived]
            if self.heap and self.heap[0][0] < moment:
                moment = self.heap[0][0]
            if self.interval is not None:
                moment = min(moment, self._next_round(self.interval))
            if moment > until or moment == math.inf:
                break
            self.now = moment
            self._process(submitted)
            if self._is_due():
                count = count + 1 if moment == decided_at else 0
                decided_at = moment
                if count > _AT_ONE_MOMENT:
                    raise self._error("the policy goes round in circles: its plans start and stop the same jobs again and again")
                self._decide()
                if self.fruitless > _FRUITLESS:
                    break
            elif self.lapsed:
                self._end_leases()
            if progress is not None and self.events % 256 == 0:
                progress(self.recorder.over, len(self.arrivals))
        self._close(self.now if math.isinf(until) else until)

    def _next_round(self, interval: float) -> float:
        """The next round, inf: nothing could come of it."""
        if not (self.table.at_hand and (self.changed or self.acted or self.waiting)):
            return math.inf
        rounds = math.floor(self.now / interval) + 1
        moment = rounds * interval
        return moment if moment > self.now else (rounds + 1) * interval  # a quotient of floats can be one too low

    def _is_due(self) -> bool:
        if self.rigid and not self.waiting:
            self.changed = False
            return False
        if self.interval is None:
            return self.changed
        if self.vacated:  # GPUs that a round has given away wait for nobody
            return True
        return bool(self.table.at_hand) and self.now == round(self.now / self.interval) * self.interval

    def _process(self, submitted: list[float]) -> None:
        """All events of this moment."""
        self.lapsed, self.vacated = [], False
        heap, now = self.heap, self.now
        while heap and heap[0][0] <= now:
            _, kind, _, job, version = heapq.heappop(heap)
            if (self.waking if kind == Kind.WAKE else self.version[job]) == version:
                self.events += 1
                self.handle[kind](job)
                self.foreseen.happened(ends=kind == Kind.END, stops=kind == Kind.STOPPED)
        while submitted[self.arrived] <= now:
            self.events += 1
            self._arrive(int(self.arrivals[self.arrived]))
            self.arrived += 1

    def _push(self, moment: float, kind: int, job: int, version: int) -> None:
        if moment < math.inf:
            self.sequence += 1
            heapq.heappush(self.heap, (moment, kind, self.sequence, job, version))

    # Events

    def _arrive(self, job: int) -> None:
        costs = self.options.costs
        if self.profiles:
            self.unmeasured[job] = costs.profiling
            self._appear(job, min(_PROFILE_GPUS, self.gangs[job]))
        elif costs.profiling <= 0:
            self._appear(job)
        elif costs.profiler_gpus <= 0 or self.profilers > 0:
            self.profilers -= 1
            self._push(self.now + costs.profiling, Kind.PROFILED, job, self.version[job])
        else:
            self.unprofiled.append(job)

    def _profiled(self, job: int) -> None:
        """On a profiler of its own."""
        self.profilers += 1
        if self.options.costs.profiler_gpus > 0 and self.unprofiled:
            self._arrive(self.unprofiled.pop(0))
        self._appear(job)

    def _appear(self, job: int, profile_gpus: int = 0) -> None:
        self.table.add(job, self.now, profile_gpus)
        self.waiting.add(job)
        self.recorder.come(self.now)
        self.foreseen.came(job)
        self.to_come -= 1
        self.changed = True

    def _wait(self, job: Job) -> None:
        """It has left its GPUs and waits for others."""
        job.phase = Phase.PENDING
        self.waiting.add(job.number)
        self.changed = True

    def _measured(self, number: int) -> None:
        """It has trained for long enough to be known; a profiling run is over with that."""
        job = self.table.of(number)
        if number in self.profiling:
            self._leave_profiling(job)
            self._release(job)
            self.in_vain = 0
            self._wait(job)
        self._know(job)
        self.changed = True

    def _know(self, job: Job) -> None:
        del self.unmeasured[job.number]
        self.table.profiled(job)

    def _end(self, number: int) -> None:
        self.unmeasured.pop(number, None)
        self._vacate(self.table.at_hand[number])
        self.table.remove(number)
        self.recorder.end(number, self.now)
        self.in_vain = 0
        self.changed = True

    def _stopped(self, number: int) -> None:
        job = self.table.of(number)
        if number in self.profiling:
            self.profiling.remove(number)
        else:
            self.recorder.lose(number, self.options.costs.suspend * len(job.gpus))
            job.preemptions += 1
        if self.unmeasured.get(number, math.inf) < _ROUNDING:
            self._know(job)
        self._release(job)
        self.vacated = True
        self._wait(job)

    def _fail(self, number: int) -> None:
        """A worker dies: what it did since its last checkpoint is lost, and it waits again."""
        job, every = self.table.of(number), self.options.costs.checkpoint_interval
        if number in self.profiling:
            self._leave_profiling(job)
        else:
            stretches = self._trained(job)
            unsaved = sum(seconds for seconds, _ in stretches) % every if every > 0 else 0.0
            self._undo(job, stretches, unsaved)
            if hopeless := self.failures.hopeless(number, job.left):
                raise self._error(hopeless)
        self._release(job)
        self._wait(job)

    def _lease_ends(self, number: int) -> None:
        if self.table.at_hand[number].lease_end <= self.now:  # else it has been renewed
            self.lapsed.append(number)  # a decision at this moment may still renew it
            self.changed = True

    def _wake(self, _: int) -> None:
        self.changed = True

    # Decisions

    def view(self) -> View:
        jobs = LiveJobs(self.table, self.now)
        service = self.recorder.finished_service() if self.uses_history else None
        view = View(self.now, "default", jobs, self.gpus, self.nodes, self.workload.profiles, service, self.free)
        if self.limited:
            jobs.protect(*protection(view, self.options.limits))
        return view

    def _decide(self) -> None:
        starts = self.foreseen.answer(self.now, self.waiting)
        if starts is not None:
            self._start_unasked(starts)
            return
        view = self.view()
        asked = self._ask(view)
        plain = plain_actions(asked, self.table, self.workload, self.free, self.on, guarded=self.limited) if self.plain else None
        if plain is not None:
            plan, actions = asked, plain
        else:
            try:
                plan = check(asked, view, reasons=self.observer is not None)
            except PlanError as error:
                raise self._error(f"invalid plan: {error}; the plan: {in_a_line(asked)}") from None
            actions = reconcile(view, plan, self.options.limits, self.memory)
        if self.observer is not None:
            self.observer(view, plan, actions)
        self.changed = False
        if actions.stops:
            self.memory = self.memory.after(actions.stops, self.now, self.options.limits)
        again = self._next_look(view, plan, actions)  # before the actions: the view is a window on the table
        self._carry_out(plan, actions)
        self.foreseen.said(asked, actions, self.waiting)
        self._end_leases()
        self.waking += 1
        if again > self.now:
            self._push(again, Kind.WAKE, 0, self.waking)
        if actions.stops and not self.foreseen.follows:  # as the daemon looks again at once: what was free all along may suit somebody now
            self._push(self.now, Kind.WAKE, 0, self.waking)
        idle = not (self.acted or self.heap or self.to_come)
        self.fruitless = self.fruitless + 1 if idle or self._only_wakes() else 0

    def _start_unasked(self, starts: list[Start]) -> None:
        for start in starts:
            self._start(start)
        self.changed, self.acted = False, bool(starts)
        if starts:
            self.fruitless = 0
        if not self.waiting:
            self.waking += 1  # nobody's turn can come
        if self.lapsed:
            self._end_leases()

    def _ask(self, view: View) -> Plan:
        start = time.perf_counter()
        try:
            plan = self.policy.plan(view)
        except (Exception, SystemExit) as error:  # a policy is anybody's code
            raise self._error(f"the policy failed: {type(error).__name__}: {error}") from error
        self.plan_seconds += time.perf_counter() - start
        self.decisions += 1
        return plan

    def _rank(self, jobs: Jobs) -> Ranking:
        try:
            return checked(self.policy.ranking(jobs), len(jobs))  # type: ignore[attr-defined]
        except (Exception, SystemExit) as error:
            raise self._error(f"ranking(): {type(error).__name__}: {error}") from error

    def _next_look(self, view: View, plan: Plan, actions: Actions) -> float:
        """When to ask again even if nothing happens: as the daemon does."""
        if not self.limited:
            return math.inf if plan.wake_at is None else plan.wake_at
        return next_look(view, plan, actions, self.options.limits, self.memory)

    def _only_wakes(self) -> bool:
        return not (self.acted or self.to_come or len(self.waiting) < len(self.table))

    def _carry_out(self, plan: Plan, actions: Actions) -> None:
        self._set_batches(plan)
        for stop in actions.stops:
            self._suspend(stop.job)
        for start in actions.starts:
            self._start(start)
        for job, lease_end in actions.renewals:
            self._set_lease_end(self.table.of(job), lease_end)
        self._give_up(plan)
        self.acted = bool(actions.stops or actions.starts or plan.rejected)

    def _set_batches(self, plan: Plan) -> None:
        """Batch sizes that the policy chooses hold at once; a job trains at one efficiency until the next choice."""
        for job, allocation in plan.allocations.items():
            if allocation.batch_size is not None and self.batch.get(job) != allocation.batch_size:
                self.batch[job] = allocation.batch_size
                self._change_pace(self.table.of(job))

    def _start(self, start: Start) -> None:
        number, gpus, lease_end, profile = start
        job = self.table.of(number)
        attempt = self.recorder.start(number, profile=profile)
        cost = self.truth.start_cost(number, gpus, resumed=attempt > 0 and not profile)
        if profile:
            self.profiling.add(number)
        if cost:
            self.recorder.lose(number, cost * len(gpus))
        job.phase = Phase.ACTIVE
        job.granted = self.now
        job.since = self.now + cost
        self.version[number] += 1
        self.waiting.discard(number)
        self._occupy(job, gpus)
        self._pace(job)
        failure = self.truth.time_to_failure(number, len(gpus), attempt, profile=profile)
        if failure < math.inf:
            self.fails_at[number] = job.since + failure
            self._push(self.fails_at[number], Kind.FAILURE, number, self.version[number])
        if lease_end is not None:
            self._set_lease_end(job, lease_end)

    def _occupy(self, job: Job, gpus: Sequence[int]) -> None:
        """It has these GPUs; whoever is on them too trains at another pace from now on."""
        job.gpus = list(gpus)
        self.free.set(gpus, False)
        partners = {other for gpu in gpus for other in self.on[gpu]}
        if partners:
            self.recorder.share(self.now, sum(bool(self.on[gpu]) for gpu in gpus))
        for gpu in gpus:
            self.on[gpu] += (job.number,)
        for other in sorted(partners):
            self.partners.setdefault(job.number, set()).add(other)
            self.partners.setdefault(other, set()).add(job.number)
            self._change_pace(self.table.of(other))

    def _set_lease_end(self, job: Job, lease_end: float | None) -> None:
        end = math.inf if lease_end is None else lease_end
        if end != job.lease_end:
            job.lease_end = end
            self._push(end, Kind.LEASE_END, job.number, self.version[job.number])

    def _end_leases(self) -> None:
        """Suspend whoever holds GPUs by a lease that has run out and was not renewed."""
        for number in sorted(self.lapsed):
            job = self.table.at_hand[number]
            if job.lease_end <= self.now and job.phase == Phase.ACTIVE:
                self._suspend(number)
                self.acted = True
                self.foreseen.doubt()

    def _suspend(self, number: int) -> None:
        """Told to stop: it saves its work, and its GPUs are free when that is done."""
        job, suspend = self.table.of(number), self.options.costs.suspend
        self._spare_start(job, self.now)
        if number in self.profiling:
            suspend, done = 0.0, self._measure(job)
        else:
            done = self._interrupt(job)
        self.in_vain = 0 if done > 0 else self.in_vain + 1
        if self.in_vain > _IN_VAIN:
            raise self._error(f"the policy goes round in circles: the last {_IN_VAIN} jobs that it stopped had got nothing done")
        job.speed = 0.0
        job.since = self.now
        job.phase = Phase.STOPPING
        self.version[number] += 1
        self._push(self.now + suspend, Kind.STOPPED, number, self.version[number])

    def _interrupt(self, job: Job) -> float:
        """A job that trains is to stop; the seconds of training in this lease that were not in vain."""
        lost = self.options.costs.lost_on_suspend
        stretches = self._trained(job)
        self._undo(job, stretches, lost)
        self.recorder.preempt(job.number)
        return sum(seconds for seconds, _ in stretches) - lost

    def _measure(self, job: Job) -> float:
        """A profiling run is to stop; the seconds that it has measured, which brought nothing else."""
        seconds = sum(seconds for seconds, _ in self._trained(job))
        self.recorder.lose(job.number, seconds * len(job.gpus))
        return seconds

    def _leave_profiling(self, job: Job) -> None:
        self._measure(job)
        self.profiling.remove(job.number)

    def _give_up(self, plan: Plan) -> None:
        for job in plan.rejected:
            self.table.remove(job)
            self.waiting.discard(job)
            self.recorder.reject(job, self.now)
            self.version[job] += 1

    # Work

    def _settle(self, job: Job) -> float:
        """Bring the work left up to this moment, from which time in training is counted anew; the seconds since it was last."""
        trained = max(0.0, self.now - job.since)
        job.left = max(0.0, job.left - trained * job.speed)
        job.since = max(self.now, job.since)
        return trained

    def _trained(self, job: Job) -> list[tuple[float, float]]:
        """(seconds, speed) of its training in this lease, up to this moment."""
        seconds = self._settle(job)
        if job.number in self.unmeasured:
            self.unmeasured[job.number] -= seconds
        return [*self.stretches.pop(job.number, ()), (seconds, job.speed)]

    def _undo(self, job: Job, stretches: list[tuple[float, float]], seconds: float) -> None:
        """The last ``seconds`` of the training are lost, as far as there were so many."""
        for trained, speed in reversed(stretches):
            undone = min(seconds, trained)
            job.left += undone * speed
            self.recorder.lose(job.number, undone * len(job.gpus))
            seconds -= undone

    def _spare_start(self, job: Job, moment: float) -> None:
        """What of its start was still ahead of it has cost nothing."""
        self.recorder.lose(job.number, -max(0.0, job.since - moment) * len(job.gpus))

    def _pace(self, job: Job) -> None:
        """The job's speed as things stand now, and its end at that speed."""
        number = job.number
        version = self.version[number]
        if number in self.unmeasured:
            self._push(job.since + max(self.unmeasured[number], 0.0), Kind.MEASURED, number, version)
        if number in self.profiling:
            return
        partners = sorted(self.partners[number]) if number in self.partners else []
        job.speed = self.truth.speed(number, job.gpus, partners, self.batch.get(number, 0), 1.0 - job.left / job.work)
        self._push(job.since + job.left / job.speed, Kind.END, number, version)

    def _release(self, job: Job) -> None:
        ran = self.now - job.granted
        job.attained += ran * len(job.gpus)
        job.ran += ran
        job.lease_end = math.inf
        job.speed = 0.0
        self._vacate(job)

    def _vacate(self, job: Job) -> None:
        """Its GPUs are free, but for those that others share."""
        number, gpus = job.number, job.gpus
        job.gpus = []
        self.stretches.pop(number, None)
        self.version[number] += 1
        self.recorder.leave(number, job.granted, self.now, gpus)
        if number in self.partners:
            self._part(number, gpus)
            return
        for gpu in gpus:
            self.on[gpu] = ()
        self._open(gpus)

    def _open(self, gpus: list[int]) -> None:
        """Nobody holds these any more."""
        self.free.set(gpus, True)
        self.foreseen.freed(gpus)

    def _part(self, number: int, gpus: list[int]) -> None:
        """It leaves GPUs that it shared, or some of which it did."""
        for gpu in gpus:
            self.on[gpu] = tuple(other for other in self.on[gpu] if other != number)
        left = [gpu for gpu in gpus if not self.on[gpu]]
        self.recorder.share(self.now, len(left) - len(gpus))
        self._open(left)
        self.foreseen.doubt()  # who is left alone on GPUs can be displaced
        for other in sorted(self.partners.pop(number)):
            self.partners[other].discard(number)
            if not self.partners[other]:
                del self.partners[other]
            self._change_pace(self.table.of(other))

    def _change_pace(self, job: Job) -> None:
        if job.phase == Phase.ACTIVE:
            number = job.number
            self.stretches[number] = self._trained(job)
            self.version[number] += 1  # its end comes at another time; the ends of its lease and its luck are as they were
            self._pace(job)
            self._push(self.fails_at[number], Kind.FAILURE, number, self.version[number])
            self._push(job.lease_end, Kind.LEASE_END, number, self.version[number])

    # The end

    def _close(self, moment: float) -> None:
        """What still runs has held its GPUs until now."""
        for number in sorted(self.table.at_hand):
            job = self.table.at_hand[number]
            if not job.gpus:
                continue
            if job.phase == Phase.STOPPING:
                self.recorder.lose(number, (moment - job.since) * len(job.gpus))
            else:
                self._spare_start(job, moment)
                if number in self.profiling:
                    before = sum(seconds for seconds, _ in self.stretches.get(number, ()))
                    self.recorder.lose(number, (before + max(moment - job.since, 0.0)) * len(job.gpus))
            self.recorder.cut_short(number, job.granted, moment, job.gpus)

    def _error(self, what: str) -> SimulationError:
        return SimulationError(f"policy {self.policy.name} at {self.now:g} s: {what}")
