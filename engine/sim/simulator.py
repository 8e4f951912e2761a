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
from collections.abc import Callable

import numpy as np

from ...policies.cells import free_gpus, grid_of
from ...policies.contract import Ints, Phase, Plan, Policy, View
from ...policies.standstill import Standstill
from ..guards import Actions, Memory, Start, next_look, protection, reconcile
from ..plan_check import PlanError, check
from .cluster import Cluster
from .columns import F, I
from .errors import SimulationError
from .live import LiveJobs
from .options import NO_LIMITS, Options
from .plain import plain_starts
from .recorder import Recorder
from .result import Result
from .said import in_a_line, says_of_its_plan
from .table import Table
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
        self.starts_alone = self.plain and not self.profiles and says_of_its_plan(policy, "starts_alone")
        self.heap: list[tuple[float, int, int, int, int]] = []  #: (time, kind, sequence, job, version)
        self.version = [0] * len(workload)  #: of a job's lease; events of an older one are void
        self.total = len(self.gpus)
        self.free = free_gpus(grid_of(self.gpus), self.gpus.usable)
        self.leased = False  #: whether any lease ever had an end
        self.partners: dict[int, set[int]] = {}  #: jobs that share GPUs, and with whom
        self.stretches: dict[int, list[tuple[float, float]]] = {}  #: (seconds, speed) before, of jobs whose pace changed in their lease
        self.unmeasured: dict[int, float] = {}  #: seconds of training that its profile still takes, of jobs whose profile is not known
        self.profiling: set[int] = set()  #: jobs in a profiling run
        self.fails_at = [math.inf] * len(workload)
        self.limited = options.limits != NO_LIMITS
        self.batch: dict[int, int] = {}  #: batch sizes that the policy has chosen
        self.memory = Memory()
        self.now = 0.0
        self.arrivals = np.flatnonzero(~self.recorder.dropped)
        self.arrived = 0
        self.to_come = len(self.arrivals)  #: jobs that the policy has not seen yet
        self.profilers = options.costs.profiler_gpus
        self.unprofiled: list[int] = []  #: jobs that wait for a profiler, first come first
        self.sequence = self.events = self.decisions = self.waking = self.running = self.stopping = self.busy = 0
        self.handle = (self._end, self._stopped, self._fail, self._profiled, self._measured, self._lease_ends, self._wake)  #: by kind
        self.plan_seconds = 0.0
        self.standstill: Standstill | None = None  #: of those who wait since the last decision
        self.freed: list[int] = []  #: GPUs that jobs left since then by their end
        self.came: list[int] = []  #: jobs that came since then
        self.changed = self.acted = self.lapsed = self.vacated = False
        self.fruitless = self.in_vain = 0

    # The clock

    def run(self, progress: Progress | None) -> None:
        submitted = self.workload.submitted[self.arrivals].tolist()
        until = math.inf if self.options.until is None else self.options.until
        decided_at, count = -math.inf, 0
        while True:
            moment = min(
                submitted[self.arrived] if self.arrived < len(submitted) else math.inf,
                self.heap[0][0] if self.heap else math.inf,
                self._next_round(),
            )
            if moment > until or math.isinf(moment):
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
            self.recorder.usage(moment, self.busy, self.running + self.stopping, self.table.n)
            if progress is not None and self.events % 256 == 0:
                progress(self.recorder.ended_count, len(self.arrivals))
        self._close(self.now if math.isinf(until) else until)

    def _next_round(self) -> float:
        """The next round, inf: there is none, or nothing could come of it."""
        if self.interval is None or not self.table.n:
            return math.inf
        waits = self.running + self.stopping < self.table.n
        if not (self.changed or self.acted or waits):
            return math.inf
        rounds = math.floor(self.now / self.interval) + 1
        moment = rounds * self.interval
        return moment if moment > self.now else (rounds + 1) * self.interval  # a quotient of floats can be one too low

    def _is_due(self) -> bool:
        if self.rigid and self.running + self.stopping == self.table.n:
            self.changed = False
            return False
        if self.interval is None:
            return self.changed
        if self.vacated:  # GPUs that a round has given away wait for nobody
            return True
        return self.table.n > 0 and self.now == round(self.now / self.interval) * self.interval

    def _process(self, submitted: list[float]) -> None:
        """All events of this moment."""
        self.lapsed = self.vacated = False
        while self.heap and self.heap[0][0] <= self.now:
            _, kind, _, job, version = heapq.heappop(self.heap)
            if (self.waking if kind == Kind.WAKE else self.version[job]) == version:
                self.events += 1
                self.handle[kind](job)
                if kind != Kind.END:
                    self.standstill = None
        while self.arrived < len(submitted) and submitted[self.arrived] <= self.now:
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
            self._appear(job, min(_PROFILE_GPUS, int(self.workload.gpus_min[job])))
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
        self.came.append(job)
        self.to_come -= 1
        self.changed = True

    def _measured(self, job: int) -> None:
        """It has trained for long enough to be known; a profiling run is over with that."""
        row = self.table.row(job)
        if job in self.profiling:
            self._leave_profiling(job, row)
            self._release(job)
            self.running -= 1
            self.in_vain = 0
            self.table.ints[I.PHASE, row] = Phase.PENDING
        self._know(job, row)
        self.changed = True

    def _know(self, job: int, row: int) -> None:
        del self.unmeasured[job]
        self.table.profiled(row)

    def _end(self, job: int) -> None:
        self.unmeasured.pop(job, None)
        row = self.table.row(job)
        self._vacate(job, row)
        self.table.remove(row)
        self.recorder.end(job, self.now)
        self.running -= 1
        self.in_vain = 0
        self.changed = True

    def _stopped(self, job: int) -> None:
        row = self.table.row(job)
        if job in self.profiling:
            self.profiling.remove(job)
        else:
            self.recorder.lose(job, self.options.costs.suspend * int(self.table.ints[I.HELD, row]))
            self.table.ints[I.PREEMPTIONS, row] += 1
        if self.unmeasured.get(job, math.inf) < _ROUNDING:
            self._know(job, row)
        self._release(job)
        self.stopping -= 1
        self.vacated = True
        self.table.ints[I.PHASE, row] = Phase.PENDING
        self.changed = True

    def _fail(self, job: int) -> None:
        """A worker dies: what it did since its last checkpoint is lost, and it waits again."""
        row, every = self.table.row(job), self.options.costs.checkpoint_interval
        if job in self.profiling:
            self._leave_profiling(job, row)
        else:
            stretches = self._trained(job, row)
            unsaved = sum(seconds for seconds, _ in stretches) % every if every > 0 else 0.0
            self._undo(job, row, stretches, unsaved)
        self._release(job)
        self.running -= 1
        self.table.ints[I.PHASE, row] = Phase.PENDING
        self.changed = True

    def _lease_ends(self, job: int) -> None:
        if self.table.floats[F.LEASE_END, self.table.row(job)] <= self.now:  # else it has been renewed
            self.changed = self.lapsed = True  # a decision at this moment may still renew it

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

    def _start_alone(self) -> bool:
        """Start the only job that waits, if it fits; of policies that declare so (``Policy.starts_alone``) the plan is known unasked."""
        table = self.table
        if table.n - self.running - self.stopping != 1:
            return False
        self.standstill = None  # it was of this one
        return self._start_freely(int(table.ints[I.PHASE, : table.n].argmin()))  # PENDING is the least

    def _start_freely(self, row: int) -> bool:
        """Start this job where the policy would, if it fits on what is free."""
        table = self.table
        gpus = self.free.find(int(table.ints[I.GPUS_MIN, row]), None, False)
        if gpus is None:
            return False
        self._start(Start(int(table.ints[I.JOB, row]), gpus, None))
        self.changed, self.acted, self.fruitless = False, True, 0
        self.waking += 1
        self._end_leases()
        return True

    def _stands_still(self) -> bool:
        """Whether those whom the last plan left waiting wait on for certain; one who has come since, and fits, has then started."""
        still, came, freed = self.standstill, self.came, self.freed
        self.came, self.freed = [], []
        if still is None or len(came) > 1 or not still.outlives(freed):
            return False
        if came:
            return still.passable and self._start_freely(self.table.row(came[0]))
        self.changed = self.acted = False
        return True

    def _decide(self) -> None:
        if self.starts_alone and (self._stands_still() or self._start_alone()):
            return
        view = self.view()
        start = time.perf_counter()
        try:
            plan = self.policy.plan(view)
        except (Exception, SystemExit) as error:  # a policy is anybody's code
            raise self._error(f"the policy failed: {type(error).__name__}: {error}") from error
        self.plan_seconds += time.perf_counter() - start
        self.decisions += 1
        self.came, self.freed = [], []
        starts = plain_starts(plan, self.table, self.free, self.total) if self.plain else None
        if starts is not None:
            actions = Actions(starts)
            self.standstill = plan.standstill if plan.wake_at is None and self.interval is None else None
        else:
            self.standstill = None
            try:
                plan = check(plan, view, reasons=self.observer is not None)
            except PlanError as error:
                raise self._error(f"invalid plan: {error}; the plan: {in_a_line(plan)}") from None
            actions = reconcile(view, plan, self.options.limits, self.memory)
        if self.observer is not None:
            self.observer(view, plan, actions)
        self.changed = False
        if actions.stops:
            self.memory = self.memory.after(actions.stops, self.now, self.options.limits)
        again = self._next_look(view, plan, actions)  # before the actions: the view is a window on the table
        self._carry_out(plan, actions)
        self._end_leases()
        self.waking += 1
        if again > self.now:
            self._push(again, Kind.WAKE, 0, self.waking)
        if actions.stops:  # as the daemon looks again at once: what was free all along may suit somebody now
            self._push(self.now, Kind.WAKE, 0, self.waking)
        idle = not (self.acted or self.heap or self.to_come)
        self.fruitless = self.fruitless + 1 if idle or self._only_wakes() else 0

    def _next_look(self, view: View, plan: Plan, actions: Actions) -> float:
        """When to ask again even if nothing happens: as the daemon does."""
        if not self.limited:
            return math.inf if plan.wake_at is None else plan.wake_at
        return next_look(view, plan, actions, self.options.limits, self.memory)

    def _only_wakes(self) -> bool:
        return not (self.acted or self.to_come or self.running + self.stopping)

    def _carry_out(self, plan: Plan, actions: Actions) -> None:
        self._set_batches(plan)
        for stop in actions.stops:
            self._suspend(stop.job)
        for start in actions.starts:
            self._start(start)
        for job, lease_end in actions.renewals:
            self._set_lease_end(job, self.table.row(job), lease_end)
        self._give_up(plan)
        self.acted = bool(actions.stops or actions.starts or plan.rejected)

    def _set_batches(self, plan: Plan) -> None:
        """Batch sizes that the policy chooses hold at once; a job trains at one efficiency until the next choice."""
        for job, allocation in plan.allocations.items():
            if allocation.batch_size is not None and self.batch.get(job) != allocation.batch_size:
                self.batch[job] = allocation.batch_size
                self._change_pace(job)

    def _start(self, start: Start) -> None:
        job, given, lease_end, profile = start
        table, row, gpus = self.table, self.table.row(job), np.array(given, dtype=np.int64)
        attempt = self.recorder.start(job, self.now, profile=profile)
        cost = self.truth.start_cost(job, gpus, resumed=attempt > 0 and not profile)
        if profile:
            self.profiling.add(job)
        if cost:
            self.recorder.lose(job, cost * len(gpus))
        table.hold(row, given)
        table.ints[I.PHASE, row] = Phase.ACTIVE
        table.floats[F.GRANTED, row] = self.now
        table.floats[F.SINCE, row] = self.now + cost
        self.version[job] += 1
        self.running += 1
        alone = self.free.has(given)
        self.free.set(given, False)
        self.busy += len(gpus) if alone else int((self._users(gpus) == 1).sum())
        if not alone:
            self._meet(job, gpus)
        self._pace(job, row, gpus)
        failure = self.truth.time_to_failure(job, len(gpus), attempt, profile=profile)
        self.fails_at[job] = self.now + cost + failure
        self._push(self.fails_at[job], Kind.FAILURE, job, self.version[job])
        self._set_lease_end(job, row, lease_end)

    def _set_lease_end(self, job: int, row: int, lease_end: float | None) -> None:
        end = math.inf if lease_end is None else lease_end
        if end != self.table.floats[F.LEASE_END, row]:
            self.leased = True
            self.table.floats[F.LEASE_END, row] = end
            self._push(end, Kind.LEASE_END, job, self.version[job])

    def _end_leases(self) -> None:
        """Suspend whoever holds GPUs by a lease that has run out and was not renewed."""
        table = self.table
        if not self.leased:
            return
        for row in (table.floats[F.LEASE_END, : table.n] <= self.now).nonzero()[0].tolist():
            if table.ints[I.PHASE, row] == Phase.ACTIVE:
                self._suspend(int(table.ints[I.JOB, row]))
                self.acted = True

    def _suspend(self, job: int) -> None:
        """Told to stop: it saves its work, and its GPUs are free when that is done."""
        row, floats, suspend = self.table.row(job), self.table.floats, self.options.costs.suspend
        self._spare_start(job, row, self.now)
        if job in self.profiling:
            suspend, done = 0.0, self._measure(job, row)
        else:
            done = self._interrupt(job, row)
        self.in_vain = 0 if done > 0 else self.in_vain + 1
        if self.in_vain > _IN_VAIN:
            raise self._error(f"the policy goes round in circles: the last {_IN_VAIN} jobs that it stopped had got nothing done")
        floats[F.SPEED, row] = 0.0
        floats[F.SINCE, row] = self.now
        self.table.ints[I.PHASE, row] = Phase.STOPPING
        self.running -= 1
        self.stopping += 1
        self.version[job] += 1
        self._push(self.now + suspend, Kind.STOPPED, job, self.version[job])

    def _interrupt(self, job: int, row: int) -> float:
        """A job that trains is to stop; the seconds of training in this lease that were not in vain."""
        lost = self.options.costs.lost_on_suspend
        stretches = self._trained(job, row)
        self._undo(job, row, stretches, lost)
        self.recorder.preempt(job)
        return sum(seconds for seconds, _ in stretches) - lost

    def _measure(self, job: int, row: int) -> float:
        """A profiling run is to stop; the seconds that it has measured, which brought nothing else."""
        seconds = sum(seconds for seconds, _ in self._trained(job, row))
        self.recorder.lose(job, seconds * int(self.table.ints[I.HELD, row]))
        return seconds

    def _leave_profiling(self, job: int, row: int) -> None:
        self._measure(job, row)
        self.profiling.remove(job)

    def _give_up(self, plan: Plan) -> None:
        for job in plan.rejected:
            self.table.remove(self.table.row(job))
            self.recorder.reject(job)
            self.version[job] += 1

    # Work

    def _settle(self, row: int) -> float:
        """Bring the work left up to this moment, from which time in training is counted anew; the seconds since it was last."""
        floats = self.table.floats
        trained = max(0.0, self.now - floats[F.SINCE, row])
        floats[F.LEFT, row] = max(0.0, floats[F.LEFT, row] - trained * floats[F.SPEED, row])
        floats[F.SINCE, row] = max(self.now, floats[F.SINCE, row])
        return float(trained)

    def _trained(self, job: int, row: int) -> list[tuple[float, float]]:
        """(seconds, speed) of its training in this lease, up to this moment."""
        seconds = self._settle(row)
        if job in self.unmeasured:
            self.unmeasured[job] -= seconds
        return [*self.stretches.pop(job, ()), (seconds, float(self.table.floats[F.SPEED, row]))]

    def _undo(self, job: int, row: int, stretches: list[tuple[float, float]], seconds: float) -> None:
        """The last ``seconds`` of the training are lost, as far as there were so many."""
        for trained, speed in reversed(stretches):
            undone = min(seconds, trained)
            self.table.floats[F.LEFT, row] += undone * speed
            self.recorder.lose(job, undone * int(self.table.ints[I.HELD, row]))
            seconds -= undone

    def _spare_start(self, job: int, row: int, moment: float) -> None:
        """What of its start was still ahead of it has cost nothing."""
        ahead = max(0.0, float(self.table.floats[F.SINCE, row]) - moment)
        self.recorder.lose(job, -ahead * int(self.table.ints[I.HELD, row]))

    def _pace(self, job: int, row: int, gpus: Ints | None = None) -> None:
        """The job's speed as things stand now, and its end at that speed."""
        floats = self.table.floats
        if job in self.unmeasured:
            self._push(floats[F.SINCE, row] + max(self.unmeasured[job], 0.0), Kind.MEASURED, job, self.version[job])
        if job in self.profiling:
            return
        partners = sorted(self.partners[job]) if job in self.partners else []
        done = 1.0 - floats[F.LEFT, row] / floats[F.WORK, row]
        gpus = self.table.allocation(row) if gpus is None else gpus
        speed = self.truth.speed(job, gpus, partners, self.batch.get(job, 0), done)
        floats[F.SPEED, row] = speed
        self._push(floats[F.SINCE, row] + floats[F.LEFT, row] / speed, Kind.END, job, self.version[job])

    def _release(self, job: int) -> None:
        row = self.table.row(job)
        floats = self.table.floats
        ran = self.now - floats[F.GRANTED, row]
        floats[F.ATTAINED, row] += ran * self.table.ints[I.HELD, row]
        floats[F.RAN, row] += ran
        floats[F.LEASE_END, row] = np.inf
        floats[F.SPEED, row] = 0.0
        self._vacate(job, row)

    def _vacate(self, job: int, row: int) -> None:
        """Its GPUs are free, but for those that others share."""
        self.stretches.pop(job, None)
        gpus = self.table.release(row)
        left = gpus if job not in self.partners else [gpu for gpu, users in zip(gpus, self._users(gpus).tolist(), strict=True) if not users]
        self.free.set(left, True)
        self.freed += left
        self.busy -= len(left)
        self.version[job] += 1
        self.recorder.leave(job, float(self.table.floats[F.GRANTED, row]), self.now, gpus)
        if job in self.partners:
            self._part(job)

    def _users(self, gpus: Ints | list[int]) -> Ints:
        """How many jobs are on each of these GPUs."""
        return np.bincount(self.table.alloc_gpus, minlength=len(self.gpus))[gpus]

    def _meet(self, job: int, gpus: Ints) -> None:
        """Whoever is on these GPUs too trains at another pace from now on."""
        table = self.table
        shared = np.zeros(len(self.gpus), dtype=bool)
        shared[gpus] = True
        rows = np.searchsorted(table.alloc_start, np.flatnonzero(shared[table.alloc_gpus]), side="right") - 1
        for other in table.ints[I.JOB, np.unique(rows)].tolist():
            if other != job:
                self.partners.setdefault(job, set()).add(other)
                self.partners.setdefault(other, set()).add(job)
                self._change_pace(other)

    def _part(self, job: int) -> None:
        self.standstill = None  # who is left alone on GPUs can be displaced
        for other in sorted(self.partners.pop(job)):
            self.partners[other].discard(job)
            if not self.partners[other]:
                del self.partners[other]
            self._change_pace(other)

    def _change_pace(self, job: int) -> None:
        row = self.table.row(job)
        if self.table.ints[I.PHASE, row] == Phase.ACTIVE:
            self.stretches[job] = self._trained(job, row)
            self.version[job] += 1  # its end comes at another time; the ends of its lease and its luck are as they were
            self._pace(job, row)
            self._push(self.fails_at[job], Kind.FAILURE, job, self.version[job])
            self._push(float(self.table.floats[F.LEASE_END, row]), Kind.LEASE_END, job, self.version[job])

    # The end

    def _close(self, moment: float) -> None:
        """What still runs has held its GPUs until now."""
        table = self.table
        for row in np.flatnonzero(table.ints[I.HELD, : table.n]).tolist():
            job, gpus = int(table.ints[I.JOB, row]), table.allocation(row)
            if table.ints[I.PHASE, row] == Phase.STOPPING:
                self.recorder.lose(job, (moment - float(table.floats[F.SINCE, row])) * len(gpus))
            else:
                self._spare_start(job, row, moment)
                if job in self.profiling:
                    before = sum(seconds for seconds, _ in self.stretches.get(job, ()))
                    self.recorder.lose(job, (before + max(moment - float(table.floats[F.SINCE, row]), 0.0)) * len(gpus))
            self.recorder.leave(job, float(table.floats[F.GRANTED, row]), moment, gpus.tolist())

    def _error(self, what: str) -> SimulationError:
        return SimulationError(f"policy {self.policy.name} at {self.now:g} s: {what}")
