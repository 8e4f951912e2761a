"""Views for tests: written by hand, random (hypothesis), and a small world that moves by what the engine does."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import Actions, Evictions, PreemptionLimits, protect, reconcile
from stoker.engine.scheduling.plan_check import check
from stoker.policies.contract import Allocation, Demand, Gpus, Jobs, Memory, Need, Nodes, Phase, Plan, Policy, Profile, View
from stoker.policies.placement.consolidated import Placement

NOW = 1_000_000.0
GIB = float(2**30)


@dataclass
class Job:
    """One job of a view; what is left out is what a plain 1-GPU job has."""

    id: int
    gpus: int = 1
    gpus_max: int | None = None
    priority: int = 0
    submitted: float = 0.0
    remaining: float = math.nan
    run_time: float = 0.0
    lease_time: float = 0.0
    preemptions: int = 0
    memory: float = 0.0
    held: tuple[int, ...] = ()
    stopping: bool = False
    demand: Demand | None = None  #: None: what the tiers say
    tiers: tuple[tuple[float, float], ...] = ()  #: (absolute deadline, reward), earliest first
    profile: int = -1
    model: int = 0
    lease_end: float = math.inf
    profile_gpus: int = 0
    remaining_most: float = math.nan
    overhead: float = math.nan
    share: str = ""
    kind: str = "train"

    @property
    def wants(self) -> Demand:
        by_tiers = (Demand.BEST_EFFORT, Demand.STRICT, Demand.SOFT)[min(len(self.tiers), 2)]
        return by_tiers if self.demand is None else self.demand

    @property
    def phase(self) -> int:
        return Phase.STOPPING if self.stopping else Phase.ACTIVE if self.held else Phase.PENDING


def make_view(
    nodes: Sequence[int],
    jobs: Sequence[Job] = (),
    *,
    unusable: Sequence[int] = (),
    memory: Sequence[float] = (),
    now: float = NOW,
    profiles: Sequence[Profile] = (),
) -> View:
    """A pool whose nodes have ``nodes`` GPUs each, and its jobs."""
    count = sum(nodes)
    node = np.repeat(np.arange(len(nodes)), nodes)
    index = np.concatenate([np.arange(n) for n in nodes]) if nodes else np.zeros(0, dtype=np.int64)
    usable = np.ones(count, dtype=bool)
    usable[list(unusable)] = False
    gpus = Gpus(
        id=np.array([f"n{n}/g{i}" for n, i in zip(node, index, strict=True)], dtype=object),
        node=node.astype(np.int64),
        index=index.astype(np.int64),
        usable=usable,
        memory=np.array(memory, dtype=float) if len(memory) else np.zeros(count),
    )
    hosts = Nodes(np.array([f"n{n}" for n in range(len(nodes))], dtype=object))
    return View(now, "default", make_jobs(jobs), gpus, hosts, profiles=profiles)


def placed(view: View, only_on: Mapping[int, Sequence[int]], leaves: Sequence[float] | None = None) -> View:
    """With jobs (ids) that may start on some nodes only, and with nodes that are handed back."""
    allowed = [np.isin(np.arange(len(view.nodes)), list(nodes)) for nodes in only_on.values()]
    need = view.jobs.gpu_memory.copy()
    for number, job in enumerate(only_on, 1):
        need[view.jobs.id == job] = -number
    needs = tuple(Need(float(view.jobs.gpu_memory[need == -number][0]), nodes) for number, nodes in enumerate(allowed, 1))
    nodes = replace(view.nodes, leaves=None if leaves is None else np.array(leaves))
    return replace(view, jobs=replace(view.jobs, need=need if only_on else None), needs=needs, nodes=nodes)


def make_jobs(jobs: Sequence[Job]) -> Jobs:
    def ints(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float]) -> np.ndarray:
        return np.array(values, dtype=np.float64)

    jobs = sorted(jobs, key=lambda job: (job.submitted, job.id))
    return Jobs(
        id=ints([job.id for job in jobs]),
        submitted_at=floats([job.submitted for job in jobs]),
        phase=ints([job.phase for job in jobs]),
        gpus_min=ints([job.gpus for job in jobs]),
        gpus_max=ints([job.gpus_max or job.gpus for job in jobs]),
        priority=ints([job.priority for job in jobs]),
        demand=ints([job.wants for job in jobs]),
        deadline=floats([job.tiers[-1][0] if job.tiers else math.inf for job in jobs]),
        attained=floats([job.run_time * job.gpus for job in jobs]),
        run_time=floats([job.run_time for job in jobs]),
        lease_time=floats([job.lease_time for job in jobs]),
        remaining=floats([job.remaining for job in jobs]),
        gpu_memory=floats([job.memory for job in jobs]),
        preemptions=ints([job.preemptions for job in jobs]),
        user=ints([0] * len(jobs)),
        model=ints([job.model for job in jobs]),
        alloc_start=np.concatenate([[0], np.cumsum([len(job.held) for job in jobs])]).astype(np.int64),
        alloc_gpus=ints([gpu for job in jobs for gpu in job.held]),
        tier_start=np.concatenate([[0], np.cumsum([len(job.tiers) for job in jobs])]).astype(np.int64),
        tier_deadline=floats([deadline for job in jobs for deadline, _ in job.tiers]),
        tier_reward=floats([reward for job in jobs for _, reward in job.tiers]),
        profile=ints([job.profile for job in jobs]),
        lease_end=floats([job.lease_end for job in jobs]),
        profile_gpus=ints([job.profile_gpus for job in jobs]),
        remaining_most=floats([job.remaining_most for job in jobs]),
        overhead=floats([job.overhead for job in jobs]),
        kind=np.array([job.kind for job in jobs], dtype=object),
        share=np.array([job.share for job in jobs], dtype=object),
    )


class Kept:
    """A policy with the memory that its engine keeps for it from plan to plan."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.memory: Memory = None

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(dataclasses.replace(view, memory=self.memory))
        self.memory = json.loads(json.dumps(plan.memory))
        return plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


def written_out(plan: Plan, view: View) -> Plan:
    """The same plan with every job that is to have GPUs in it."""
    return dataclasses.replace(plan, allocations=complete(plan, view))


def complete(plan: Plan, view: View) -> dict[int, Allocation]:
    """The allocation of every job that is to have GPUs, including jobs that keep theirs."""
    jobs = view.jobs
    rows = [row for row in np.flatnonzero(jobs.phase == Phase.ACTIVE).tolist() if int(jobs.id[row]) not in plan.preempt]
    return {int(jobs.id[row]): Allocation(tuple(jobs.allocation(row).tolist())) for row in rows} | dict(plan.allocations)


def given(plan: Plan) -> dict[int, tuple[int, ...]]:
    """GPUs of each job in a plan."""
    return {job: allocation.gpus for job, allocation in plan.allocations.items()}


def reasons(plan: Plan) -> dict[int, str]:
    """Code of the reason of each waiting job."""
    return {int(job): waiting.reason.code for waiting in plan.waiting for job in waiting.jobs}


def accounts_for_all(answer: Plan, view: View) -> None:
    """Each job that can be scheduled is given GPUs or waits, with a reason and a place in the order."""
    runs, why = given(answer), reasons(answer)
    assert why.keys() | runs.keys() == set(view.jobs.id[view.jobs.phase != Phase.STOPPING].tolist())
    assert why.keys().isdisjoint(runs)
    assert sorted(answer.order) == sorted(why)


def calls_impossible_what_is_too_large(answer: Plan, view: View) -> None:
    """And nothing else."""
    jobs, placement = view.jobs, Placement(view)
    rows = {job: row for row, job in enumerate(jobs.id.tolist())}
    for job, code in reasons(answer).items():
        too_large = jobs.gpus_min[rows[job]] > placement.capacity(memory=jobs.gpu_memory[rows[job]])
        assert (code in ("impossible", "no-gpus")) == too_large


def leaves_alone(answer: Plan, view: View, *, also_unprotected: bool = False) -> None:
    """Jobs that run under protection (or all that run) are given what they hold."""
    runs, stays = given(answer), view.jobs.phase == Phase.ACTIVE
    if not also_unprotected:
        stays &= view.jobs.protected
    for row in np.flatnonzero(stays):
        assert runs[int(view.jobs.id[row])] == tuple(view.jobs.allocation(row))


@st.composite
def views(draw: st.DrawFn, *, max_jobs: int = 14, running: bool = True, deadlines: bool = False, profiles: Sequence[Profile] = ()) -> View:
    """A pool of up to four odd-sized nodes, with jobs that wait, run and stop, and GPUs that are out of use.

    With ``deadlines`` some jobs have up to three; with ``profiles`` most have one of these, and some have never run.
    """
    nodes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=0, max_size=4))
    count = sum(nodes)
    sizes = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 6, 8, 9, 12, 16])
    ids = draw(st.lists(st.integers(1, 500), unique=True, max_size=max_jobs))
    free = draw(st.permutations(range(count)))
    jobs = []
    for job_id in sorted(ids):
        job = Job(
            job_id,
            gpus=draw(sizes),
            priority=draw(st.integers(-1, 2)),
            submitted=float(draw(st.integers(0, 5))),
            remaining=draw(st.one_of(st.just(math.nan), st.integers(0, 20_000).map(float))),
            run_time=float(draw(st.integers(0, 20_000))),
            preemptions=draw(st.integers(0, 3)),
            memory=draw(st.sampled_from([0.0, 0.0, 0.0, 16 * GIB, 48 * GIB])),
        )
        job.gpus_max = job.gpus + draw(st.integers(0, 3))
        if deadlines:
            after = sorted(draw(st.lists(st.integers(-5_000, 40_000), max_size=3, unique=True)))
            job.tiers = tuple((NOW + deadline, reward) for deadline, reward in zip(after, (100.0, 50.0, 20.0), strict=False))
        if profiles:
            job.profile = draw(st.integers(-1, len(profiles) - 1))
            job.run_time *= draw(st.integers(0, 1))
        if running and len(free) >= job.gpus and draw(st.booleans()):
            job.held, free = tuple(sorted(free[: job.gpus])), free[job.gpus :]
            job.lease_time = float(draw(st.integers(0, 100)))
            job.stopping = draw(st.integers(0, 3)) == 0
        jobs.append(job)
    unusable = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=3)) if count else []
    memory = [draw(st.sampled_from([0.0, 24 * GIB, 80 * GIB])) for _ in range(count)]
    return make_view(nodes, jobs, unusable=unusable, memory=memory, profiles=profiles)


@dataclass
class World:
    """Jobs and GPUs that obey the engine's actions: a stop takes a tick, then the job waits again."""

    nodes: Sequence[int]
    jobs: dict[int, Job]
    limits: PreemptionLimits = PreemptionLimits()
    unusable: Sequence[int] = ()
    seconds: float = 10.0  #: a tick
    progress: bool = False  #: jobs with a known length work and end
    now: float = NOW
    evictions: Evictions = field(default_factory=Evictions)
    memory: Memory = None  #: the policy's
    finished: set[int] = field(default_factory=set)
    stops: int = 0

    def view(self) -> View:
        view = make_view(self.nodes, list(self.jobs.values()), unusable=self.unusable, now=self.now)
        return dataclasses.replace(protect(view, self.limits), memory=self.memory)

    def tick(self, policy: Policy) -> Actions:
        view = self.view()
        plan = check(policy.plan(view), view)
        self.memory = plan.memory
        actions = reconcile(view, plan, self.limits, self.evictions)
        self.check_actions(actions)
        self.evictions = self.evictions.after(actions.stops, self.now, self.limits)
        self._apply(actions)
        self._pass_time()
        return actions

    def check_actions(self, actions: Actions) -> None:
        held = {gpu for job in self.jobs.values() for gpu in job.held}
        for start in actions.starts:
            assert self.jobs[start.job].phase == Phase.PENDING
            assert held.isdisjoint(start.gpus), "a start on GPUs that somebody holds"
            held |= set(start.gpus)
        starters = {start.job for start in actions.starts}
        for stop in actions.stops:
            victim = self.jobs[stop.job]
            assert victim.phase == Phase.ACTIVE
            assert victim.lease_time >= self.limits.min_run_time
            assert self.limits.max_preemptions is None or victim.preemptions < self.limits.max_preemptions
            assert stop.for_job not in starters, "an eviction for a job that starts without it"

    def _apply(self, actions: Actions) -> None:
        for job in self.jobs.values():
            if job.stopping:
                self.jobs[job.id] = dataclasses.replace(job, stopping=False, held=(), lease_time=0.0)
        for stop in actions.stops:
            job = self.jobs[stop.job]
            self.jobs[stop.job] = dataclasses.replace(job, stopping=True, preemptions=job.preemptions + 1)
            self.stops += 1
        for start in actions.starts:
            self.jobs[start.job] = dataclasses.replace(self.jobs[start.job], held=start.gpus, lease_time=0.0)

    def _pass_time(self) -> None:
        self.now += self.seconds
        for job in list(self.jobs.values()):
            if job.phase != Phase.ACTIVE:
                continue
            job.lease_time += self.seconds
            if self.progress:
                job.run_time += self.seconds
                job.remaining -= self.seconds
                if job.remaining <= 0:
                    self.finished.add(job.id)
                    del self.jobs[job.id]

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        return {job.id: job.held for job in self.jobs.values()}
