"""Jobs on their GPUs: their partners there, their speed, their progress and its losses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...policies.contract import EXCLUSIVE, PACKED, SWITCHED, Gpus, Phase
from ...policies.placement.cells import Free
from ..scheduling.guards import Start
from .agenda import Agenda, EventKind
from .merging import Merging
from .results.recorder import Recorder
from .run_options import Costs
from .table import Job, Table
from .truth import Truth
from .warm_pools import LoadedByJobs, WarmPools

_ROUNDING = 1e-6  #: seconds by which a lease may miss a profile's end, as sums of times are rounded


class Training:
    """``free``: GPUs that no job holds."""

    def __init__(self, table: Table, truth: Truth, recorder: Recorder, agenda: Agenda, costs: Costs, free: Free, gpus: Gpus) -> None:
        self._table, self._truth, self._recorder, self._agenda = table, truth, recorder, agenda
        self._costs, self._free = costs, free
        self._undoable = max(costs.checkpoint_interval, costs.lost_on_suspend)  #: most seconds of training lost at once
        self._out_of_use = frozenset(np.flatnonzero(~gpus.usable).tolist())
        self._node = gpus.node
        self.on: list[tuple[int, ...]] = [()] * len(gpus)  #: jobs on each GPU
        self.unmeasured: dict[int, float] = {}  #: seconds of training until the profile of a job is known, for unprofiled jobs
        self.profiling: set[int] = set()  #: jobs in a profiling run
        self._partners: dict[int, set[int]] = {}  #: jobs that share GPUs, and their partners
        self._kinds: dict[int, str] = {}  #: their kind of sharing
        self._stretches: dict[int, list[tuple[float, float]]] = {}  #: earlier (seconds, speed) of jobs whose pace changed in their lease
        self._fails_at: dict[int, float] = {}  #: jobs whose worker will die in their lease, and the time
        self._batch: dict[int, int] = {}  #: batch sizes chosen by the policy
        self.merging = Merging(table, recorder, agenda, gpus.node.tolist())
        self._loading = max(costs.cold_start - costs.warm_start, 0.0)
        self._loaded = LoadedByJobs(len(gpus), self._loading)
        self.pools: WarmPools | None = None  #: once the policy has set some

    # Leases

    def start(self, start: Start) -> None:
        number, gpus, lease_end, profile, lasts, share, _, begin_from, joint = start
        job, now = self._table.of(number), self._agenda.now
        attempt = self._recorder.start(number, profile=profile)
        cost = self._start_cost(number, gpus, resumed=attempt > 0 and not profile)
        self.merging.part(number)
        if not profile:
            if self.merging.goes_on(begin_from, gpus):
                cost = min(cost, self._costs.handover)
            self.merging.begin(job, begin_from)
            self.merging.join(job, joint)
        if profile:
            self.profiling.add(number)
        job.phase = Phase.ACTIVE
        job.granted = now
        job.since = now + cost
        self._agenda.void(number)
        self.occupy(job, gpus, share)
        if cost:
            self._recorder.lose(number, cost * job.rate)
        self.pace(job)
        failure = self._truth.time_to_failure(number, len(gpus), attempt, profile=profile)
        if failure < math.inf:
            self._fails_at[number] = job.since + failure
            self._agenda.put(self._fails_at[number], EventKind.FAILURE, number)
        if lease_end is not None:
            self.renew(job, max(lease_end, now + lasts))

    def _start_cost(self, number: int, gpus: Sequence[int], *, resumed: bool) -> float:
        now, cost = self._agenda.now, self._truth.start_cost(number, gpus, resumed=resumed)
        if self.pools is None:
            model = self._table.workload.models[self._table.workload.model[number]]
            if not resumed and self._loaded.is_warm(model, gpus, now):
                cost = self._costs.warm_start
            self._loaded.trains(model, gpus, now + cost)
            return cost
        if resumed:
            return cost
        wait = self.pools.wait(self._backbone(number), gpus, now)
        return self._costs.cold_start if wait is None else wait + self._costs.warm_start

    def _backbone(self, number: int) -> str:
        of_all = self._table.workload.backbone
        return "" if of_all is None else str(of_all[number])

    def change_pools(self, warm: Mapping[str, Collection[int]]) -> None:
        """GPUs are in these warm pools from now on, and in no others."""
        loaded = {gpu: self._backbone(jobs[0]) for gpu, jobs in enumerate(self.on) if jobs}
        self.pools = self.pools or WarmPools(len(self.on), self._loading, self._agenda.now)
        self.pools.change(warm, loaded, self._agenda.now)

    def account_warm(self, now: float) -> None:
        """Count the time up to now, since when no GPU has changed hands."""
        (self._loaded if self.pools is None else self.pools).account(now, self.on)

    def renew(self, job: Job, lease_end: float | None) -> None:
        """Its lease lasts until then; None: for ever."""
        end = math.inf if lease_end is None else lease_end
        if end != job.lease_end:
            job.lease_end = end
            self._agenda.put(end, EventKind.LEASE_END, job.number)

    def suspend(self, job: Job) -> float:
        """Stop the job: it saves its work, and then its GPUs are free.

        Returns the seconds of training in this lease that are not lost.
        """
        number, now, suspend = job.number, self._agenda.now, self._costs.suspend
        self._spare_start(job, now)
        if number in self.profiling:
            suspend, done = 0.0, self._measure(job)
        else:
            done = self._interrupt(job)
        job.speed = 0.0
        job.since = now
        job.phase = Phase.STOPPING
        self.merging.follow(job)
        self._agenda.void(number)
        self._agenda.put(now + suspend, EventKind.STOPPED, number)
        return done

    def stopped(self, job: Job) -> bool:
        """It has saved its work and leaves; returns whether its profile is complete, up to rounding."""
        if job.number in self.profiling:
            self.profiling.remove(job.number)
        else:
            self._recorder.lose(job.number, self._costs.suspend * job.rate)
            job.preemptions += 1
        self._release(job)
        return self.unmeasured.get(job.number, math.inf) < _ROUNDING

    def fail(self, job: Job) -> bool:
        """A worker dies: work since its last checkpoint is lost. Returns whether it was at its work, not in a profiling run."""
        at_work = job.number not in self.profiling
        if at_work:
            every, stretches = self._costs.checkpoint_interval, self._trained(job)
            self._undo(job, stretches, sum(seconds for seconds, _ in stretches) % every if every > 0 else 0.0)
            self._release(job)
        else:
            self.leave_profiling(job)
        return at_work

    def leave_profiling(self, job: Job) -> bool:
        """It leaves the GPUs of its profiling run, if it is in one."""
        if job.number not in self.profiling:
            return False
        self._measure(job)
        self.profiling.remove(job.number)
        self._release(job)
        return True

    def end(self, job: Job) -> None:
        self.unmeasured.pop(job.number, None)
        if not self.merging.end(job):
            self._vacate(job)

    def close(self, moment: float) -> None:
        """The simulation ends: running jobs have held their GPUs until then."""
        for number, job in sorted(self._table.at_hand.items()):
            if not job.gpus:
                continue
            if job.phase == Phase.STOPPING:
                self._recorder.lose(number, (moment - job.since) * job.rate)
            else:
                self._spare_start(job, moment)
                if number in self.profiling:
                    before = sum(seconds for seconds, _ in self._stretches.get(number, ()))
                    self._recorder.lose(number, (before + max(moment - job.since, 0.0)) * job.rate)
            self._recorder.cut_short(number, job.granted, moment, job.gpus, job.attained + (moment - job.granted) * job.rate)

    # GPUs

    def occupy(self, job: Job, gpus: Sequence[int], share: str = EXCLUSIVE) -> None:
        """It gets these GPUs; other jobs there share them in the same way, and change their pace now."""
        number = job.number
        job.gpus = list(gpus)
        job.rate = float(len(gpus))
        self._free.set(gpus, False)
        partners = {other for gpu in gpus for other in self.on[gpu]}
        if partners:
            self._recorder.share(self._agenda.now, sum(bool(self.on[gpu]) for gpu in gpus))
        for gpu in gpus:
            self.on[gpu] += (number,)
        for other in sorted(partners):
            self._partners.setdefault(number, set()).add(other)
            self._partners.setdefault(other, set()).add(number)
            self._kinds[number] = self._kinds[other] = share
            self._divide(self._table.of(other))
            self._change_pace(self._table.of(other))
        if partners:
            self._divide(job)

    def _divide(self, job: Job) -> None:
        """Divide the time of its GPUs among all jobs there from now on."""
        rate = sum(1.0 / len(self.on[gpu]) for gpu in job.gpus)
        job.attained += (self._agenda.now - job.granted) * (job.rate - rate)
        job.rate = rate

    def _release(self, job: Job) -> None:
        """Its lease is over, and its work is not."""
        job.ran += self._agenda.now - job.granted
        job.lease_end = math.inf
        job.speed = 0.0
        if self._table.places_move and self._table.place is not None and job.left < job.work and job.number not in self.profiling:
            nodes = set(self._node[job.gpus].tolist())
            self._table.place[job.number] = nodes.pop() if len(nodes) == 1 else -1  # a gang over nodes needs a shared disk
        self.merging.follow(job)
        self._vacate(job)

    def _vacate(self, job: Job) -> None:
        """Free its GPUs, except those that others share."""
        number, gpus = job.number, job.gpus
        self.merging.leave(job, gpus)
        job.gpus = []
        job.attained += (self._agenda.now - job.granted) * job.rate
        job.rate = 0.0
        self._stretches.pop(number, None)
        self._fails_at.pop(number, None)
        self._agenda.void(number)
        self._recorder.leave(number, job.granted, self._agenda.now, gpus, job.attained)
        if number in self._partners:
            self._part(number, gpus)
            return
        for gpu in gpus:
            self.on[gpu] = ()
        self._open(gpus)

    def _open(self, gpus: list[int]) -> None:
        """Mark these GPUs as free."""
        if self._out_of_use:
            gpus = [gpu for gpu in gpus if gpu not in self._out_of_use]
        self._free.set(gpus, True)

    def take_out(self, gpus: Iterable[int]) -> None:
        """Their host leaves: nothing starts there any more. The caller suspends the jobs there."""
        self._out_of_use |= set(gpus)
        self._free.set(list(gpus), False)

    def _part(self, number: int, gpus: list[int]) -> None:
        """It leaves GPUs of which it shared some."""
        for gpu in gpus:
            self.on[gpu] = tuple(other for other in self.on[gpu] if other != number)
        left = [gpu for gpu in gpus if not self.on[gpu]]
        self._recorder.share(self._agenda.now, len(left) - len(gpus))
        self._open(left)
        self._kinds.pop(number)
        for other in sorted(self._partners.pop(number)):
            self._partners[other].discard(number)
            if not self._partners[other]:
                del self._partners[other]
            self._divide(self._table.of(other))
            self._change_pace(self._table.of(other))

    # Pace

    def set_batches(self, batches: Iterable[tuple[int, int]]) -> None:
        """The policy's batch sizes hold at once. Until its next choice, even of the same size, a job trains at one efficiency: that of its
        progress now, as the noise of gradients grows with progress (Pollux, OSDI 2021, sec. 3.1)."""
        for job, batch in batches:
            self._batch[job] = batch
            self._change_pace(self._table.of(job))

    def pace(self, job: Job) -> None:
        """Set the job's present speed, and its end at that speed."""
        number = job.number
        if number in self.unmeasured:
            self._agenda.put(job.since + max(self.unmeasured[number], 0.0), EventKind.MEASURED, number)
        if number in self.profiling:
            return
        partners = sorted(self._partners[number]) if number in self._partners else []
        done, kind = 1.0 - job.left / job.work, self._kinds.get(number, PACKED)
        if partners and kind == SWITCHED:  # a job that starts, or saves its work, takes no turns
            partners = [one for one in partners if self._takes_turns(self._table.of(one))]
            if job.since > self._agenda.now:
                self._agenda.put(job.since, EventKind.TRAINS, number)
        if (together := self.merging.speed(number, job.gpus)) is not None:
            job.speed = together
        else:
            job.speed = self._truth.speed(number, job.gpus, partners, self._batch.get(number, 0), done, kind)
        self._agenda.put(job.since + job.left / job.speed if job.speed > 0 else math.inf, EventKind.END, number)
        self.merging.follow(job)

    def _takes_turns(self, job: Job) -> bool:
        return job.phase == Phase.ACTIVE and job.since <= self._agenda.now

    def begun(self, job: Job) -> None:
        """It has started, and takes turns from now on."""
        for other in sorted(self._partners.get(job.number, ())):
            self._change_pace(self._table.of(other))

    def _change_pace(self, job: Job) -> None:
        if job.phase == Phase.ACTIVE:
            number = job.number
            self._stretches[number] = self._trained(job)
            self._agenda.void(number)  # only its end moves; the ends of its lease and its failure stay
            self.pace(job)
            self._agenda.put(self._fails_at.get(number, math.inf), EventKind.FAILURE, number)
            self._agenda.put(job.lease_end, EventKind.LEASE_END, number)

    # Work

    def _settle(self, job: Job) -> float:
        """Update the work left to this moment, and restart the count of training time; returns the seconds since the last update."""
        now = self._agenda.now
        trained = max(0.0, now - job.since)
        job.left = max(0.0, job.left - trained * job.speed)
        job.since = max(now, job.since)
        return trained

    def _trained(self, job: Job) -> list[tuple[float, float]]:
        """(seconds, speed) of its training in this lease, up to this moment."""
        seconds = self._settle(job)
        if job.number in self.unmeasured:
            self.unmeasured[job.number] -= seconds
        stretches = self._stretches.pop(job.number, [])
        if stretches and stretches[-1][1] == job.speed:
            seconds += stretches.pop()[0]
        stretches.append((seconds, job.speed))
        while len(stretches) > 2 and sum(some for some, _ in stretches[2:]) >= self._undoable:
            stretches[:2] = [(stretches[0][0] + stretches[1][0], 0.0)]  # its speed no longer matters
        return stretches

    def _interrupt(self, job: Job) -> float:
        """Stop a training; returns the seconds of training in this lease that are not lost."""
        lost = self._costs.lost_on_suspend
        stretches = self._trained(job)
        self._undo(job, stretches, lost)
        self._recorder.preempt(job.number)
        return sum(seconds for seconds, _ in stretches) - lost

    def _measure(self, job: Job) -> float:
        """Stop a profiling run; returns its measured seconds, which are no progress."""
        seconds = sum(seconds for seconds, _ in self._trained(job))
        self._recorder.lose(job.number, seconds * job.rate)
        return seconds

    def _undo(self, job: Job, stretches: list[tuple[float, float]], seconds: float) -> None:
        """The last ``seconds`` of the training, or all of it if it was shorter, are lost."""
        for trained, speed in reversed(stretches):
            undone = min(seconds, trained)
            job.left += undone * speed
            self._recorder.lose(job.number, undone * job.rate)
            seconds -= undone

    def _spare_start(self, job: Job, moment: float) -> None:
        """The part of its start that was still ahead has no cost."""
        self._recorder.lose(job.number, -max(0.0, job.since - moment) * job.rate)
