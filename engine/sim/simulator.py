"""Discrete-event simulation of one policy on one workload: the plan(), the checks and the guards that run live, on a virtual clock.

Events stand on a heap keyed (time, kind, sequence). All events of one moment are processed before the policy is asked once,
in the order of `Kind`: a job that ends frees its GPUs before what arrives at that moment is considered. A plan is carried out
as the daemon does: a start on GPUs that somebody holds stops the holders and waits until a later decision finds them free.
Nothing happens between events, unless the policy works in rounds: then decisions wait for the next multiple of its interval,
but for the moment at which a job that was told to stop has stopped, as somebody waits for its GPUs. A round at which nothing has
happened since the last one, nothing waits and nothing was changed is left out. A lease that runs out between rounds is not renewed.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from ...policies.cells import free_gpus, grid_of
from ...policies.contract import Allocation, Ints, Phase, Plan, Policy, View
from ..guards import Actions, Memory, next_look, protect, reconcile
from ..plan_check import PlanError, check
from .cluster import Cluster
from .columns import F, I
from .errors import SimulationError
from .live import LiveJobs
from .options import NO_LIMITS, Options
from .recorder import Recorder
from .result import Result
from .table import Table
from .truth import Truth, beliefs
from .workload import Workload

Progress = Callable[[int, int], None]  #: jobs that have ended, of all
Observer = Callable[[View, Plan, Actions], None]

_FRUITLESS = 1000  #: decisions in a row that change nothing, with nothing to come, after which nothing ever will
_AT_ONE_MOMENT = 10_000  #: decisions at one moment, after which the policy is taken to go round in circles
_IN_VAIN = 100_000  #: stops in a row of jobs that had got nothing done, after which it is taken to do so as time passes


class Kind:
    """Kinds of events, in the order in which those of one moment are processed."""

    END = 0
    STOPPED = 1
    FAILURE = 2
    PROFILED = 3
    LEASE_END = 4
    WAKE = 5


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
    simulation = _Simulation(workload, cluster, policy, options, observer)
    simulation.run(progress)
    return simulation.recorder.result(simulation.events, simulation.decisions, simulation.plan_seconds, time.perf_counter() - began)


class _Simulation:
    def __init__(self, workload: Workload, cluster: Cluster, policy: Policy, options: Options, observer: Observer | None) -> None:
        self.workload, self.policy, self.options, self.observer = workload, policy, options, observer
        self.nodes, self.gpus = cluster.tables()
        self.truth = Truth(workload, self.gpus, options.costs, options.seed)
        self.table = Table(workload, beliefs(workload, options.errors, options.seed))
        self.recorder = Recorder(workload, ~self.truth.fits())
        self.interval = options.interval if options.interval is not None else getattr(policy, "interval", None)
        self.uses_history = getattr(policy, "uses_history", False)
        self.rigid = getattr(policy, "rigid", False)
        self.heap: list[tuple[float, int, int, int, int]] = []  #: (time, kind, sequence, job, version)
        self.version = np.zeros(len(workload), dtype=np.int64)  #: of a job's lease; events of an older one are void
        self.free = free_gpus(grid_of(self.gpus), self.gpus.usable)
        self.leased = False  #: whether any lease ever had an end
        self.users = np.zeros(len(self.gpus), dtype=np.int64)  #: jobs on each GPU
        self.partners: dict[int, set[int]] = {}  #: jobs that share GPUs, and with whom
        self.stretches: dict[int, list[tuple[float, float]]] = {}  #: (seconds, speed) before, of jobs whose pace changed in their lease
        self.fails_at = np.full(len(workload), math.inf)
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
        self.plan_seconds = 0.0
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
        handle = (self._end, self._stopped, self._fail, self._profiled, self._lease_ends, self._wake)
        while self.heap and self.heap[0][0] <= self.now:
            _, kind, _, job, version = heapq.heappop(self.heap)
            if (self.waking if kind == Kind.WAKE else self.version[job]) == version:
                self.events += 1
                handle[kind](job)
        while self.arrived < len(submitted) and submitted[self.arrived] <= self.now:
            self.events += 1
            self._arrive(int(self.arrivals[self.arrived]))
            self.arrived += 1

    def _push(self, moment: float, kind: int, job: int, version: int) -> None:
        if math.isfinite(moment):
            self.sequence += 1
            heapq.heappush(self.heap, (moment, kind, self.sequence, job, version))

    # Events

    def _arrive(self, job: int) -> None:
        costs = self.options.costs
        if costs.profiling <= 0:
            self._profiled(job)
        elif costs.profiler_gpus <= 0 or self.profilers > 0:
            self.profilers -= 1
            self._push(self.now + costs.profiling, Kind.PROFILED, job, int(self.version[job]))
        else:
            self.unprofiled.append(job)

    def _profiled(self, job: int) -> None:
        if self.options.costs.profiling > 0:
            self.profilers += 1
            if self.options.costs.profiler_gpus > 0 and self.unprofiled:
                self._arrive(self.unprofiled.pop(0))
        self.table.add(job, self.now)
        self.to_come -= 1
        self.changed = True

    def _end(self, job: int) -> None:
        self._release(job)
        self.table.remove(self.table.row(job))
        self.recorder.end(job, self.now)
        self.running -= 1
        self.in_vain = 0
        self.changed = True

    def _stopped(self, job: int) -> None:
        self.recorder.lose(job, self.options.costs.suspend * int(self.table.ints[I.HELD, self.table.row(job)]))
        self._release(job)
        self.stopping -= 1
        self.vacated = True
        row = self.table.row(job)
        self.table.ints[I.PHASE, row] = Phase.PENDING
        self.table.ints[I.PREEMPTIONS, row] += 1
        self.changed = True

    def _fail(self, job: int) -> None:
        """A worker dies: what it did since its last checkpoint is lost, and it waits again."""
        row, every = self.table.row(job), self.options.costs.checkpoint_interval
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
        if not self.limited:
            return view
        return protect(dataclasses.replace(view, jobs=jobs.plain()), self.options.limits)

    def _decide(self) -> None:
        view = self.view()
        start = time.perf_counter()
        try:
            plan = self.policy.plan(view)
        except (Exception, SystemExit) as error:  # a policy is anybody's code
            raise self._error(f"the policy failed: {type(error).__name__}: {error}") from error
        self.plan_seconds += time.perf_counter() - start
        self.decisions += 1
        try:
            plan = check(plan, view, reasons=self.observer is not None)
        except PlanError as error:
            raise self._error(f"invalid plan: {error}; the plan: {_shown(plan)}") from None
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
            self._start(start.job, start.gpus, start.lease_end)
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

    def _start(self, job: int, given: tuple[int, ...], lease_end: float | None) -> None:
        table, row, gpus = self.table, self.table.row(job), np.array(given, dtype=np.int64)
        attempt = self.recorder.start(job, self.now)
        cost = self.truth.start_cost(job, gpus, resumed=attempt > 0)
        self.recorder.lose(job, cost * len(gpus))
        table.hold(row, gpus)
        table.ints[I.PHASE, row] = Phase.ACTIVE
        table.floats[F.GRANTED, row] = self.now
        table.floats[F.SINCE, row] = self.now + cost
        self.version[job] += 1
        self.running += 1
        alone = self.free.has(given)
        self.users[gpus] += 1
        self.free.set(gpus, False)
        self.busy += len(gpus) if alone else int((self.users[gpus] == 1).sum())
        if not alone:
            self._meet(job, gpus)
        self._pace(job, row)
        failure = self.truth.time_to_failure(job, len(gpus), attempt)
        self.fails_at[job] = self.now + cost + failure
        self._push(float(self.fails_at[job]), Kind.FAILURE, job, int(self.version[job]))
        self._set_lease_end(job, row, lease_end)

    def _set_lease_end(self, job: int, row: int, lease_end: float | None) -> None:
        end = math.inf if lease_end is None else lease_end
        if end != self.table.floats[F.LEASE_END, row]:
            self.leased = True
            self.table.floats[F.LEASE_END, row] = end
            self._push(end, Kind.LEASE_END, job, int(self.version[job]))

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
        row, costs, floats = self.table.row(job), self.options.costs, self.table.floats
        self._spare_start(job, row, self.now)
        stretches = self._trained(job, row)
        self._undo(job, row, stretches, costs.lost_on_suspend)
        self.in_vain = self.in_vain + 1 if sum(seconds for seconds, _ in stretches) <= costs.lost_on_suspend else 0
        if self.in_vain > _IN_VAIN:
            raise self._error(f"the policy goes round in circles: the last {_IN_VAIN} jobs that it stopped had got nothing done")
        floats[F.SPEED, row] = 0.0
        floats[F.SINCE, row] = self.now
        self.table.ints[I.PHASE, row] = Phase.STOPPING
        self.recorder.preempt(job)
        self.running -= 1
        self.stopping += 1
        self.version[job] += 1
        self._push(self.now + costs.suspend, Kind.STOPPED, job, int(self.version[job]))

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
        return [*self.stretches.pop(job, ()), (self._settle(row), float(self.table.floats[F.SPEED, row]))]

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

    def _pace(self, job: int, row: int) -> None:
        """The job's speed as things stand now, and its end at that speed."""
        partners = sorted(self.partners.get(job, ()))
        floats = self.table.floats
        done = 1.0 - floats[F.LEFT, row] / floats[F.WORK, row]
        speed = self.truth.speed(job, self.table.allocation(row), partners, self.batch.get(job, 0), done)
        floats[F.SPEED, row] = speed
        self._push(floats[F.SINCE, row] + floats[F.LEFT, row] / speed, Kind.END, job, int(self.version[job]))

    def _release(self, job: int) -> None:
        row = self.table.row(job)
        floats = self.table.floats
        ran = self.now - floats[F.GRANTED, row]
        floats[F.ATTAINED, row] += ran * self.table.ints[I.HELD, row]
        floats[F.RAN, row] += ran
        floats[F.LEASE_END, row] = np.inf
        floats[F.SPEED, row] = 0.0
        self.stretches.pop(job, None)
        gpus = self.table.release(row)
        self.users[gpus] -= 1
        left = gpus if job not in self.partners else gpus[self.users[gpus] == 0]
        self.free.set(left, True)
        self.busy -= len(left)
        self.version[job] += 1
        self.recorder.leave(job, float(floats[F.GRANTED, row]), self.now, gpus)
        if job in self.partners:
            self._part(job)

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
            self._push(float(self.fails_at[job]), Kind.FAILURE, job, int(self.version[job]))
            self._push(float(self.table.floats[F.LEASE_END, row]), Kind.LEASE_END, job, int(self.version[job]))

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
            self.recorder.leave(job, float(table.floats[F.GRANTED, row]), moment, gpus)

    def _error(self, what: str) -> SimulationError:
        return SimulationError(f"policy {self.policy.name} at {self.now:g} s: {what}")


def _shown(plan: object) -> str:
    """A plan in a line: what it gives, as far as that can be read."""
    allocations = getattr(plan, "allocations", None)
    if not isinstance(allocations, Mapping):
        return repr(plan)[:200]
    given = [f"{job}: {allocation.gpus if isinstance(allocation, Allocation) else allocation}" for job, allocation in allocations.items()]
    return "{" + ", ".join(given[:10]) + (", …" if len(given) > 10 else "") + "}"
