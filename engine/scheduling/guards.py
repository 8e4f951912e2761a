"""Turns a plan into the steps to take now, within guards that no policy can override.

Each eviction costs a job its work since the last checkpoint. Schedulers that evict whenever a policy asks
have failed in five ways, and each has its guard here:

- Evicting without a start: two 1-GPU jobs killed eleven, one a cycle, and used none of the room
  (ROCm/spur #888). Here each start names its GPUs (so does a running job that grows or moves): either all their holders
  can be stopped, or none is.
- Evicting too many: a job is stopped only where the plan gives one of its GPUs to another job. A job that the plan preempts
  or omits keeps running while no other job gets its GPUs: stopping it gains nothing (Kueue re-admits such victims).
- Evicting early, and repeatedly: a job runs for ``min_run_time`` before it may be stopped (KAI-Scheduler
  #126), and is preempted at most ``max_preemptions`` times. The end of a lease has the
  same effect as a preemption, so no lease ends sooner, and a job whose preemptions are spent has an open-ended lease.
  Protection ends exactly when the lease does (`protect`): a job can be stopped at the very moment at which its lease can be renewed.
- Evicting for no gain: an expired lease that the plan does not renew continues while the queue is empty (`anybody_waits`).
- Evicting each other in turn: Kueue #3779, #2821 and #14543 loop because the order that evicts is not the order
  that admits. Here each eviction is remembered for ``cooldown`` seconds. A victim may not displace the job that
  displaced it, directly or through others, so evictions never form a cycle. No job is evicted twice for the same
  job, so a job that fails to start in the room made for it does not go on evicting.

While victims stop, the policy plans the start again on their GPUs (`Placement.find_soon`), so GPUs that become free
one by one are not given to other jobs meanwhile (Kueue #13797).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...policies.contract import EXCLUSIVE, Allocation, Bools, Floats, Phase, Plan, View, asked
from .plan_check import holders
from .rowof import RowOf

RESOLUTION = 1e-6  #: seconds: the tables keep microseconds, so an end that is read back may lie this much after the planned one


@dataclass(frozen=True, slots=True)
class PreemptionLimits:
    """How much preemption a pool allows. Durations are seconds."""

    min_run_time: float = 60.0  #: a job runs for so long before it may be stopped
    max_preemptions: int | None = None  #: of one job; None: no limit
    cooldown: float = 300.0  #: for so long a preempted job may not displace the one that displaced it


class Start(NamedTuple):
    job: int
    gpus: tuple[int, ...]
    lease_end: float | None
    profile: bool = False  #: a profiling run on fewer GPUs than the gang
    lasts: float = 0.0  #: least duration of a lease with an end, in seconds from its grant, which comes a little after the decision
    share: str = EXCLUSIVE  #: `EXCLUSIVE`, or the kind of its group
    memory: float = 0.0  #: bytes that it is expected to need of each shared GPU, 0: not known
    begin_from: int | None = None  #: job with whose weights it begins, see `Allocation.begin_from`
    joint: int | None = None  #: job that trains together with it, see `Allocation.joint`


class PlannedStop(NamedTuple):
    job: int
    reason: str
    for_job: int | None  #: the job that gets its GPUs; None: it moves to other GPUs itself


class Deferred(NamedTuple):
    """A start or move of the plan that is postponed, and why."""

    job: int
    text: str


class Renewal(NamedTuple):
    """A running job that keeps its GPUs, and the new end of its lease."""

    job: int
    lease_end: float | None


class Joined(NamedTuple):
    """How a running job shares its GPUs from now on."""

    share: str  #: kind of its group
    memory: float  #: bytes that it is expected to need of each GPU, 0: not known


@dataclass(frozen=True, slots=True)
class Actions:
    starts: list[Start] = field(default_factory=list)
    stops: list[PlannedStop] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    renewals: list[Renewal] = field(default_factory=list)
    joined: dict[int, Joined] = field(default_factory=dict)  #: running jobs whose GPUs are shared from now on


@dataclass(frozen=True, slots=True)
class Evictions:
    """The last eviction of each victim for each job. Kept in memory; after a restart `leases.stop_for` and `stop_at` restore it."""

    gave_way: Mapping[tuple[int, int], float] = field(default_factory=dict)  #: (victim, job that got its GPUs) to time

    def after(self, stops: list[PlannedStop], now: float, limits: PreemptionLimits) -> Evictions:
        """The evictions after ``stops`` are committed; those older than the cooldown are forgotten."""
        recent = {pair: ts for pair, ts in self.gave_way.items() if now - ts < limits.cooldown}
        recent.update({(stop.job, stop.for_job): now for stop in stops if stop.for_job is not None})
        return Evictions(recent)

    def yields_to(self, job: int, now: float, limits: PreemptionLimits) -> set[int]:
        """Every job for which ``job`` was evicted recently, directly or through others."""
        winners: dict[int, list[int]] = {}
        for (victim, winner), ts in self.gave_way.items():
            if now - ts < limits.cooldown:
                winners.setdefault(victim, []).append(winner)
        found: set[int] = set()
        frontier = [job]
        while frontier:
            for winner in winners.get(frontier.pop(), ()):
                if winner not in found:
                    found.add(winner)
                    frontier.append(winner)
        return found


def _spent(view: View, limits: PreemptionLimits) -> Bools:
    """Jobs whose budget of preemptions is spent. Profiling runs do not count: they end by themselves."""
    jobs = view.jobs
    if limits.max_preemptions is None:
        return np.zeros(len(jobs), dtype=bool)
    spent: Bools = (jobs.preemptions >= limits.max_preemptions) & ((jobs.held == 0) | (jobs.held >= jobs.gpus_min))
    return spent


def protected_until(view: View, limits: PreemptionLimits) -> Floats:
    """Until when no eviction, move or end of lease is allowed, a row a job; inf once its budget of preemptions is spent.

    A value that differs from the end of the job's lease by a rounding only is set to that end: all then see one moment.
    """
    jobs = view.jobs
    until = np.where(_spent(view, limits), np.inf, view.now - jobs.lease_time + limits.min_run_time)
    if jobs.lease_end is None:
        return until
    ends = np.where(np.isfinite(jobs.lease_end), jobs.lease_end, -np.inf)
    return np.where(np.abs(until - ends) <= RESOLUTION, ends, until)


@dataclass(frozen=True, slots=True)
class Protection:
    """Columns of `Jobs` that keep a policy from choosing victims that a guard protects."""

    protected: Bools
    protected_until: Floats
    lease_end: Floats | None


def protection(view: View, limits: PreemptionLimits) -> Protection:
    until = np.where(view.jobs.phase == Phase.ACTIVE, protected_until(view, limits), -np.inf)
    ends = view.jobs.lease_end
    return Protection(until > view.now, until, None if ends is None else np.maximum(ends, until))


def protect(view: View, limits: PreemptionLimits) -> View:
    """The view with its protection filled in; no lease ends before its job's protection."""
    given = protection(view, limits)
    jobs = dataclasses.replace(view.jobs, protected=given.protected, protected_until=given.protected_until, lease_end=given.lease_end)
    return dataclasses.replace(view, jobs=jobs)


def anybody_waits(view: View, started: Collection[int]) -> bool:
    """Whether a job other than ``started`` waits for GPUs that the pool has. Expired leases are ended only for such a job."""
    jobs, gpus = view.jobs, view.gpus
    for row in np.flatnonzero((jobs.phase == Phase.PENDING) & ~np.isin(jobs.id, list(started))).tolist():
        if np.count_nonzero(gpus.usable & view.suits(row)) >= jobs.gpus_min[row]:
            return True
    return False


def in_vain(view: View, plan: Plan, replicas: Mapping[int, int]) -> dict[int, str]:
    """Waiting replicas that the plan starts in the place of another of their group, and those of such a group that it leaves waiting, with
    the reason not to start them: they train one model, so nothing would be gained. ``replicas``: the group of each."""
    if not replicas:
        return {}
    jobs, given = view.jobs, plan.allocations
    rows = [(job, row) for row, job in enumerate(jobs.id.tolist()) if job in replicas]
    left = {
        (replicas[job], gpu): job
        for job, row in rows
        if jobs.phase[row] == Phase.ACTIVE and job not in given
        for gpu in jobs.allocation(row).tolist()
    }
    pending = [job for job, row in rows if jobs.phase[row] == Phase.PENDING]
    places = {job: [(replicas[job], gpu) for gpu in given[job].gpus if (replicas[job], gpu) in left] for job in pending if job in given}
    stays = {group: left[group, gpu] for both in places.values() for group, gpu in both}
    return {
        job: f"job {stays[replicas[job]]} is a replica of the same group and goes on"
        for job in pending
        if replicas[job] in stays and (job not in given or places[job])
    }


def reconcile(view: View, plan: Plan, limits: PreemptionLimits, evictions: Evictions) -> Actions:
    """The steps to take now. ``plan`` has passed `plan_check.check`. Starts come first, in the plan's order, then moves.

    No job starts on a GPU that is still held. A start that needs an eviction is deferred: its victims are
    stopped now, and a later tick starts it. A running job that is to get other jobs' GPUs keeps running meanwhile.
    """
    if not plan.allocations:
        return Actions()
    tick = _Tick(view, plan, limits, evictions)
    moves = []
    for job, allocation in plan.allocations.items():
        row = tick.row_of[job]
        if view.jobs.phase[row] != Phase.ACTIVE:
            tick.start(job, allocation)
        elif set(allocation.gpus) == set(view.jobs.allocation(row).tolist()):
            tick.actions.renewals.append(Renewal(job, tick.lease_end(job, allocation)))
        else:
            moves.append((job, allocation))
    # After the starts: a job that had to make room for one has been stopped and need not be moved.
    for job, allocation in moves:
        tick.move(job, allocation)
    tick.move_in_turn()
    return tick.actions


def next_look(view: View, plan: Plan, actions: Actions, limits: PreemptionLimits, evictions: Evictions) -> float:
    """When to ask the policy again even if nothing happens: at its ``wake_at``, or when a guard ends that may hold a job back; inf: never.

    ``evictions`` include those of ``actions``.
    """
    now, jobs = view.now, view.jobs
    moments = [] if plan.wake_at is None else [plan.wake_at]
    if actions.deferred or np.count_nonzero(jobs.phase == Phase.PENDING) > len(actions.starts):
        until = protected_until(view, limits)[jobs.phase == Phase.ACTIVE]
        moments += [float(until.min(initial=math.inf, where=until > now)), *(ts + limits.cooldown for ts in evictions.gave_way.values())]
        if actions.starts and not _spent(view, limits)[np.isin(jobs.id, [start.job for start in actions.starts])].all():
            moments.append(now + limits.min_run_time)
    return min((moment for moment in moments if moment > now), default=math.inf)


class _Tick:
    def __init__(self, view: View, plan: Plan, limits: PreemptionLimits, evictions: Evictions) -> None:
        jobs = view.jobs
        self.view, self.plan, self.limits, self.evictions = view, plan, limits, evictions
        self.row_of = RowOf(jobs.id)
        self.holders: dict[int, list[int]] = {}
        for row, gpu in holders(plan, view):
            self.holders.setdefault(gpu, []).append(int(jobs.id[row]))
        self.partners: dict[int, set[int]] = {}
        self.kinds = {job: group.kind for group in plan.groups for job in group.jobs}
        for group in plan.groups:
            for job in group.jobs:
                self.partners.setdefault(job, set()).update(group.jobs)
        self.begun: dict[int, list[int]] = {}  # GPUs of groups, and the jobs that start there now
        self.stopped: set[int] = set()
        self.refused: set[int] = set()  # GPUs that a start was refused for now
        self.behind_movers: dict[int, list[int]] = {}  # jobs that are to move, and the holders of their new GPUs, some of which move too
        self.actions = Actions()

    @cached_property
    def protected_until(self) -> Floats:
        return protected_until(self.view, self.limits)

    def start(self, job: int, allocation: Allocation) -> None:
        if (unusable := self._unusable(job, allocation)) is not None:
            self._refuse(job, allocation, unusable)
            return
        holders = self._others_on(job, allocation)
        if not holders:
            end = self.lease_end(job, allocation)
            lasts = 0.0 if end is None else self.limits.min_run_time
            if job in self.partners:
                self._start_beside(job, allocation, end, lasts)
            else:
                self.actions.starts.append(
                    Start(job, allocation.gpus, end, allocation.profile, lasts, EXCLUSIVE, 0.0, allocation.begin_from, allocation.joint)
                )
            return
        if (objection := self._make_way(job, holders)) is not None:
            # A holder that is to move leaves by itself: it need not be displaced, and must not be kept from moving.
            if all(self._is_to_move(holder) or self._stopping(holder) or self._objection(holder, job) is None for holder in holders):
                self._defer(job, objection)
            else:
                self._refuse(job, allocation, objection)
            return
        self._defer(job, f"waits for {_jobs(holders)} to stop")

    def _start_beside(self, job: int, allocation: Allocation, end: float | None, lasts: float) -> None:
        """Start a job of a group, if the memory of its GPUs has room for all jobs that are to be there."""
        kind, need, joined = self.kinds[job], float(self.view.jobs.gpu_memory[self.row_of[job]]), dict[int, Joined]()
        for gpu in allocation.gpus:
            held = [other for other in self.holders.get(gpu, ()) if other in self.partners[job]]
            needs = {other: float(self.view.jobs.gpu_memory[self.row_of[other]]) for other in (*held, *self.begun.get(gpu, ()))}
            rows = [self.row_of[one] for one in (job, *needs)]
            total, wanted = float(self.view.gpus.memory[gpu]), self.view.jobs.beside_each_other(rows)
            if needs and 0 < total < wanted:
                words = f"{wanted / 2**30:.3g} GiB with {_jobs(sorted(needs))}, of {total / 2**30:.3g} GiB"
                self._defer(job, f"waits for memory of GPU {self.view.gpus.id[gpu]}: it would take {words}")
                return
            joined.update({other: Joined(kind, needs[other]) for other in held})
        for gpu in allocation.gpus:
            self.begun.setdefault(gpu, []).append(job)
        self.actions.joined.update(joined)
        self.actions.starts.append(
            Start(job, allocation.gpus, end, allocation.profile, lasts, kind, need, allocation.begin_from, allocation.joint)
        )

    def move(self, job: int, allocation: Allocation) -> None:
        """Stop a job that is to continue elsewhere, but only when it can continue at once.

        Jobs that the plan preempts make room for it first. Holders that are to move themselves come later (`move_in_turn`).
        """
        if job in self.stopped:
            return
        held = self.view.jobs.allocation(self.row_of[job]).tolist()
        if self.refused.intersection(held):
            self._defer(job, "is not moved: the job that wants its GPUs cannot start yet")
        elif (unusable := self._unusable(job, allocation)) is not None:
            self._defer(job, unusable)
        elif (objection := self._protection(job)) is not None:
            self._defer(job, objection)
        elif holders := self._others_on(job, allocation):
            if any(self._is_to_move(holder) for holder in holders):
                self.behind_movers[job] = holders
            else:
                self._defer(job, self._make_way(job, holders) or _until_gone(holders))
        else:
            self._stop(job, None)

    def move_in_turn(self) -> None:
        """Moves onto GPUs of jobs that are to move too: a chain is done from its end, one by one; a circle is done at once.

        No job of a circle can continue at once, so without this a job could never grow into the GPUs of another that also moves.
        """
        movers = {job: {holder for holder in others if self._is_to_move(holder)} for job, others in self.behind_movers.items()}
        behind: dict[int, list[int]] = {}  # jobs that wait for each mover
        for job, those in movers.items():
            for mover in those:
                behind.setdefault(mover, []).append(job)
        circle = dict(self.behind_movers)
        outside = [job for job, others in circle.items() if not self._wait_for_each_other(job, others, movers[job])]
        while outside:
            job = outside.pop()
            if circle.pop(job, None) is not None:
                outside += behind.get(job, ())
        for job in circle:
            self._stop(job, None)
        for job, others in circle.items():
            self._make_way(job, others)
        for job, others in self.behind_movers.items():
            if job not in circle:
                self._defer(job, _until_gone(others))

    def _wait_for_each_other(self, job: int, holders: list[int], movers: set[int]) -> bool:
        others = (holder for holder in holders if holder not in movers and not self._stopping(holder))
        return bool(movers) and movers <= self.behind_movers.keys() and all(self._objection(other, job) is None for other in others)

    def _make_way(self, job: int, holders: list[int]) -> str | None:
        """Stop all holders of GPUs that ``job`` is to have, or none; the objection, if there is one."""
        victims = [holder for holder in holders if not self._stopping(holder)]
        for victim in victims:
            if (objection := self._objection(victim, job)) is not None:
                return objection
        for victim in victims:
            self._stop(victim, job)
        return None

    def _is_to_move(self, holder: int) -> bool:
        return holder in self.plan.allocations and not self._stopping(holder)

    def _others_on(self, job: int, allocation: Allocation) -> list[int]:
        """Jobs that hold GPUs of ``allocation`` and do not share them by the plan."""
        sharing = self.partners.get(job, set()) | {job}
        holders = (holder for gpu in allocation.gpus for holder in self.holders.get(gpu, ()))
        return sorted({holder for holder in holders if holder not in sharing})

    def _unusable(self, job: int, allocation: Allocation) -> str | None:
        """Why a job may not start on GPUs even if they are free: they are out of use, or their nodes cannot read its checkpoint."""
        held = self.view.jobs.allocation(self.row_of[job])
        _, nodes = asked(float(self.view.jobs.asks[self.row_of[job]]), self.view.needs)
        if nodes is not None and (closed := [gpu for gpu in allocation.gpus if not nodes[self.view.gpus.node[gpu]] and gpu not in held]):
            return f"may not start on {self.view.nodes.id[self.view.gpus.node[closed[0]]]}"
        if self.view.gpus.usable[list(allocation.gpus)].all():
            return None
        for gpu in allocation.gpus:
            if not self.view.gpus.usable[gpu] and gpu not in held:
                return f"GPU {self.view.gpus.id[gpu]} is not usable now"
        return None

    def _objection(self, victim: int, job: int) -> str | None:
        if self._keeps(victim):
            return f"the plan lets job {victim} keep the GPUs"
        cooldown, now = self.limits.cooldown, self.view.now
        if victim in self.evictions.yields_to(job, now, self.limits):
            return f"gave way to job {victim} less than {cooldown:g} s ago and may not displace it yet"
        if now - self.evictions.gave_way.get((victim, job), -math.inf) < cooldown:
            return f"job {victim} gave way to it less than {cooldown:g} s ago and does not do so again yet"
        return self._protection(victim)

    def _keeps(self, victim: int) -> bool:
        kept = self.plan.allocations.get(victim)
        if kept is None:
            return victim not in self.plan.preempt
        return set(kept.gpus) == set(self.view.jobs.allocation(self.row_of[victim]).tolist())

    def lease_end(self, job: int, allocation: Allocation) -> float | None:
        """When the lease ends. An expiry has the effect of an eviction, so it does not come before the end of the job's protection."""
        if allocation.lease_end is None:
            return None
        until = float(self.protected_until[self.row_of[job]])
        if math.isinf(until):
            return allocation.lease_end if allocation.profile else None
        return max(allocation.lease_end, until)

    def _protection(self, job: int) -> str | None:
        until = self.protected_until[self.row_of[job]]
        if until <= self.view.now:
            return None
        if math.isinf(until):
            return f"job {job} has been preempted {self.limits.max_preemptions} times and is not preempted again"
        return f"job {job} has run for less than {self.limits.min_run_time:g} s and is not stopped before"

    def _stopping(self, job: int) -> bool:
        return job in self.stopped or self.view.jobs.phase[self.row_of[job]] == Phase.STOPPING

    def _stop(self, job: int, for_job: int | None) -> None:
        self.stopped.add(job)
        self.actions.stops.append(PlannedStop(job, "preempted", for_job))

    def _refuse(self, job: int, allocation: Allocation, text: str) -> None:
        self.refused.update(allocation.gpus)
        self._defer(job, text)

    def _defer(self, job: int, text: str) -> None:
        self.actions.deferred.append(Deferred(job, text))


def _until_gone(ids: list[int]) -> str:
    return f"is moved when {_jobs(ids)} {'has' if len(ids) == 1 else 'have'} left the GPUs that it moves to"


def _jobs(ids: list[int]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(map(str, ids))}"
