"""PromptTuner: warm pools of GPUs for each LLM, as small as the deadlines of the jobs allow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..contract import Allocation, Demand, Phase, Plan, Reason, View, Waiting, tunable
from ..queues.elastic import Curves
from .cold_allocation import add, book, delay_schedulable, grow, offer
from .gpu_pools import GpuPools
from .job_times import JobTimes
from .warm_allocation import start_warm

LEAST_SECONDS_APART = 0.05  #: seconds between two rounds at least (002 ch. 4.5.3)
TOO_FEW = Reason("resources", "too few GPUs are free, and jobs whose deadlines can be kept come first")


class PromptTuner:
    """Deadlines of jobs that start from a backbone, such as prompt tuning, at the least cost (002 ch. 4.4.4).

    Each backbone (LLM) has a pool of GPUs that have it loaded; all other GPUs are cold, and cost nothing. A job that waits gets the
    fewest warm GPUs on which it ends by its deadline, the most urgent first (algorithm 1). Where these are not enough, and no running
    job will leave some in time, the fewest cold GPUs join the pool (algorithm 2). A GPU that serves no job for the window
    leaves its pool. Nothing that starts from a backbone is preempted.

    Where 002 is silent, these rules hold. A job also counts idle GPUs of its pool where they alone are too few for it. Where too few GPUs
    are cold, other pools lend it idle ones that no job waits for, the longest idle first; these load its LLM. Jobs that cannot end in time,
    and those without a deadline or a backbone, come last, in the order of submission. Jobs that cannot end in time wait for warm GPUs,
    unless their pool has too few. Jobs without a backbone run on cold GPUs. If they have no deadline either, they are preempted when a pool
    must grow and no other GPU is free.
    """

    @dataclass(frozen=True)
    class Config:
        window: float = tunable(60.0, "seconds without a job after which a GPU leaves its warm pool", low=0.0, high=86400.0)
        loading: float = tunable(10.0, "seconds until a cold GPU has loaded a backbone", low=0.0, high=3600.0)

    name: ClassVar[str] = "prompttuner"
    interval: ClassVar[float | None] = None
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self._curves = Curves()

    def plan(self, view: View) -> Plan:
        return _Round(view, self.config, self._curves).plan()


class _Round:
    """One decision. Jobs are rows of the view."""

    def __init__(self, view: View, config: PromptTuner.Config, curves: Curves) -> None:
        jobs = view.jobs
        self.view, self.config = view, config
        self.pools = GpuPools(view, config.loading)
        self.times = JobTimes(view, curves)
        self.backbone: list[str] = self.pools.backbone.tolist()
        pending, timed = jobs.phase == Phase.PENDING, (self.pools.backbone != "") & (jobs.demand != Demand.BEST_EFFORT)
        self.timed = self.times.most_urgent(np.flatnonzero(pending & timed))
        self.others = np.flatnonzero(pending & ~timed).tolist()
        self.given: dict[int, tuple[int, ...]] = {}
        self.preempted: list[int] = []
        self.waiting: dict[Reason, list[int]] = {}
        self.moments: dict[str, list[float]] = {}
        self.booked: set[str] = set()  #: pools for whose GPUs jobs wait

    def plan(self) -> Plan:
        view = self.view
        names = {self.backbone[job] for job in [*self.timed, *self.others]} - {""}
        for name in sorted(names):
            waits = [job for job in self.timed if self.backbone[job] == name]
            started = start_warm(name, waits, self.pools, self.times, view.now)
            self.given |= started
            ends = [view.now + self.times.seconds(job, len(gpus)) for job, gpus in started.items() for _ in gpus]
            self.moments[name] = sorted([*self.pools.moments(name, self._leaves), *np.nan_to_num(ends, nan=np.inf).tolist()])
        late = [job for job in self.timed if job not in self.given and not self._served(job)]
        for job in sorted([*late, *self.others]):  # rows are in the order of submission
            self._serve_last(job, late=job in late)
        shrunk = self.pools.shrink(self.config.window, self.booked)
        ids = view.jobs.id
        order = [job for job in [*self.timed, *self.others] if job not in self.given]
        return Plan(
            {int(ids[job]): Allocation(gpus) for job, gpus in self.given.items()},
            waiting=[Waiting(reason, [int(ids[job]) for job in jobs]) for reason, jobs in self.waiting.items()],
            order=[int(ids[job]) for job in order],
            preempt=[int(ids[job]) for job in self.preempted],
            wake_at=self._wake_at(shrunk=shrunk),
            memory=self.pools.memory(),
            warm=self.pools.members(),
        )

    def _leaves(self, job: int) -> float:
        """When a job leaves its GPUs. One that should have ended by now is taken to need the seconds of a loading."""
        now = self.view.now
        if self.view.jobs.phase[job] == Phase.STOPPING:
            return now
        takes = self.times.seconds(job, int(self.view.jobs.held[job]))
        return math.inf if math.isnan(takes) else now + (takes if takes > 0 else self.config.loading)

    def _served(self, job: int) -> bool:
        """Whether the job ends in time although it waits (algorithm 2)."""
        name, now, loading = self.backbone[job], self.view.now, self.config.loading
        if delay_schedulable(job, self.moments[name], self.times):
            return self._waits(job, Reason("delayed", f"ends in time on GPUs that are warm for {name}, when they are free"))
        if grow(job, name, self.pools, self.moments, self.times, now, loading) or self._displace(job):
            return self._waits(job, Reason("loading", f"waits for GPUs that load {name}"))
        return False

    def _waits(self, job: int, reason: Reason) -> bool:
        if job not in self.given:
            if reason.code in ("delayed", "loading"):
                self.booked.add(self.backbone[job])
            self.waiting.setdefault(reason, []).append(job)
        return True

    def _displace(self, job: int) -> bool:
        """Preempt jobs without a backbone and a deadline, the last started first, for GPUs on which this job ends in time."""
        pools, now = self.pools, self.view.now
        cold, able = pools.cold(job), pools.able(job)
        theirs = [(victim, gpu) for victim, gpus in pools.victims.items() for gpu in gpus if able[gpu]]
        within = float(self.times.deadline[job]) - now - self.config.loading
        need = self.times.fewest(job, within, int(cold.sum()) + len(theirs))
        if not need:
            return False
        free = pools.take(cold, min(need, int(cold.sum())))
        taken = theirs[: need - len(free)]
        gpus = tuple(sorted([*free, *(gpu for _, gpu in taken)]))
        for victim in dict.fromkeys(victim for victim, _ in taken):
            self.preempted.append(victim)
            del pools.victims[victim]
        pools.join(self.backbone[job], gpus)
        self.given[job] = gpus
        return True

    def _serve_last(self, job: int, *, late: bool) -> None:
        name, least, now = self.backbone[job], int(self.view.jobs.gpus_min[job]), self.view.now
        if not name:
            if (cold := self.pools.cold(job)).sum() >= least:
                self.given[job] = self.pools.take(cold, least)
            else:
                self._waits(job, TOO_FEW)
            return
        moments, ready, there = self.moments[name], self.pools.ready(name, job), offer(job, name, self.pools, self.moments, now)
        at = moments[least - 1] if len(moments) >= least else math.inf
        if at <= now and ready.sum() >= least:
            self.given[job] = self.pools.take(ready, least)
        elif at > now + self.config.loading and not (late and at < math.inf) and there.total >= least:
            add(job, name, least, there, self.pools, self.moments, self.times, now + self.config.loading)
            self._waits(job, Reason("loading", f"waits for GPUs that load {name}"))
            return
        else:
            self._waits(job, self._last(job, late=late))
        if at < math.inf:
            self.booked.add(name)
            book(moments, least, max(at, now) + self.times.seconds(job, least))

    def _last(self, job: int, *, late: bool) -> Reason:
        """Why a job that comes last waits."""
        idle = f"starts when GPUs that are warm for {self.backbone[job]} are idle"
        if not late:
            return Reason("last", f"no deadline; {idle}")
        if self.times.fewest(job, float(self.times.deadline[job]) - self.view.now - self.config.loading, len(self.view.gpus)):
            return TOO_FEW
        return Reason("late", f"cannot end by its deadline any more; {idle}")

    def _wake_at(self, *, shrunk: bool) -> float | None:
        """When to plan again. ``shrunk``: GPUs have left their pools, and were not yet cold in this round."""
        waits = bool(self.waiting)
        moments: Iterable[float] = (at for name in self.moments.values() for at in name if at > self.view.now) if waits else ()
        soonest = min(self.pools.next_change(self.config.window, self.booked, waits=waits), min(moments, default=math.inf))
        if shrunk and waits:
            soonest = self.view.now
        return max(soonest, self.view.now + LEAST_SECONDS_APART) if soonest < math.inf else None
