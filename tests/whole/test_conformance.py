"""One scripted history through the daemon's own code path and through the simulator: every view and every decision is the same.

The daemon's side is a store on a file, `Scheduling` with a clock that the test sets, and runners that the test plays by the tables: they
take up a lease at once, train in virtual time, slower beside others on their GPUs, report steps, and are gone ``suspend`` seconds after
they are told to stop. Periodic tasks are replaced by what wakes them. The simulator gets the same jobs, cluster, guards and costs.

Both are asked at the same moments, but for two: the daemon looks again after all that it has done itself, the simulator after stops; and
the one or the other saves itself the question when nobody waits. Such a look is compared only if it starts or stops somebody.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.config import Config, Guards, PolicyDefault
from stoker.engine.fleet import registration as runners
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, WorkerUpdate
from stoker.engine.scheduling import ticks as module
from stoker.engine.scheduling.guards import Actions, PreemptionLimits
from stoker.engine.scheduling.overheads import Overheads
from stoker.engine.scheduling.policy_settings import PolicySetting, set_policy
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import NO_LIMITS, Costs, Options
from stoker.engine.sim.simulator import Simulation, simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.engine.spec.model import Demand, JobSpec, Provenance, Share, Stop, Submission, Tier
from stoker.engine.store.transaction import Transaction
from stoker.engine.tasks import Tasks
from stoker.policies import contract, registry
from stoker.policies.contract import Phase, Plan, View
from stores import reopened
from waiting import patient

EPOCH = 1_000_000.0  #: the daemon's time of the simulator's 0
STEPS = 1_000_000  #: in a second of training
AT_ONCE = 1e-4  #: the tables keep microseconds: what is so near is one moment
CLOSE = 0.02  #: seconds by which figures may differ for that

BUSY, SLOWDOWN = 0.6, 1.1  #: of a GPU alone, and of two jobs beside each other

LIMITS = PreemptionLimits(min_run_time=40.0, max_preemptions=2, cooldown=90.0)
COSTS = Costs(suspend=7.0, resume=11.0, cold_start=5.0, warm_start=5.0)
FREE = Costs()


@dataclass(frozen=True)
class Job:
    at: int
    duration: int
    gpus: int = 1
    priority: int = 0
    deadline: int | None = None  #: strict, seconds after its submission
    user: str = "ann"
    share: str = ""
    kind: str = "train"


@dataclass(frozen=True)
class Case:
    policy: str
    config: dict[str, Any] = field(default_factory=dict)
    limits: PreemptionLimits = NO_LIMITS
    costs: Costs = FREE
    cluster: str = "2x4"
    then: tuple[float, dict[str, Any]] = (math.inf, {})  #: a moment, and the configuration from there on


@dataclass(frozen=True)
class Decision:
    """What was seen and what was decided, in the terms of both sides."""

    now: float
    view: dict[str, Any]
    starts: list[tuple[int, list[str], str]]
    lease_ends: list[float]
    stops: list[tuple[int, str, int | None]]
    deferred: list[tuple[int, str]]
    waiting: list[tuple[int, str, str]]

    @property
    def acts(self) -> bool:
        return bool(self.starts or self.stops)

    def matters(self, before: Decision | None) -> bool:
        again = before is not None and self.now - before.now < AT_ONCE
        return self.acts or (Phase.PENDING in self.view["phase"] and not again)


def _write_down(view: View, plan: Plan, actions: Actions, epoch: float) -> Decision:
    names = view.gpus.id
    return Decision(
        view.now - epoch,
        _columns(view, epoch),
        [(start.job, [str(names[gpu]) for gpu in start.gpus], start.share) for start in actions.starts],
        [math.inf if start.lease_end is None else start.lease_end - epoch for start in actions.starts],
        [tuple(stop) for stop in actions.stops],
        [tuple(deferred) for deferred in actions.deferred],
        [(int(job), group.reason.code, group.reason.text) for group in plan.waiting for job in group.jobs],
    )


#: Columns that tell what is known before anything has run: the simulator is given it, the daemon has yet to measure it. And `begins`, which
#: people ask for and no trace says: in the simulator everybody may.
NOT_OF_THE_DAEMON = {"profile", "profile_gpus", "progress", "uncertainty", "begins"}


def _columns(view: View, epoch: float) -> dict[str, Any]:
    jobs = view.jobs
    columns = {f.name: getattr(jobs, f.name) for f in dataclasses.fields(contract.Jobs) if f.name not in NOT_OF_THE_DAEMON}
    for name in ("submitted_at", "deadline", "tier_deadline", "lease_end"):
        columns[name] = columns[name] - epoch
    if columns["remaining_most"] is None:
        columns["remaining_most"] = columns["remaining"]
    if columns["share"] is None:  # nobody has said
        columns["share"] = [""] * len(jobs)
    for name in ("user", "model"):  # which code stands for whom is each side's own: equals have equal ones
        columns[name] = [columns[name].tolist().index(code) for code in columns[name]]
    if columns["protected"] is None:
        columns["protected"] = np.zeros(len(jobs), dtype=bool)
    until = columns.pop("protected_until")
    columns["protected_until"] = np.where(columns["protected"], np.inf if until is None else until - epoch, -np.inf)
    columns["gpu"] = view.gpus.id
    for name in ("node", "index", "usable", "memory"):
        columns[f"gpu_{name}"] = getattr(view.gpus, name)
    columns["nodes"] = view.nodes.id
    return {name: np.asarray(column).tolist() for name, column in columns.items()}


# The simulator's side


def _workload(jobs: Sequence[Job], cluster: Cluster) -> Workload:
    """Before the jobs stands one that no cluster holds: it is dropped, and the others get the numbers that the daemon gives them."""
    everybody = [Job(0, 1, cluster.total + 1), *jobs]
    return make_workload(
        "scripted",
        [float(job.at) for job in everybody],
        [float(job.duration) for job in everybody],
        [job.gpus for job in everybody],
        priority=[job.priority for job in everybody],
        demand=[contract.Demand.BEST_EFFORT if job.deadline is None else contract.Demand.STRICT for job in everybody],
        users=[job.user for job in everybody],
        models=["toy" for _ in everybody],
        profiles=[contract.Profile("toy", utilisation=BUSY, memory=0.0)],
        slowdowns=np.array([[SLOWDOWN]]),
        tiers=[[] if job.deadline is None else [(float(job.at + job.deadline), 100.0)] for job in everybody],
        kind=[job.kind for job in everybody],
        share=[job.share for job in everybody],
        switched_slowdowns=np.array([[SLOWDOWN]]),
    )


def simulated(jobs: Sequence[Job], case: Case) -> list[Decision]:
    decisions: list[Decision] = []
    cluster = Cluster.parse(case.cluster)
    policy = registry.create(case.policy, case.config)
    simulate(
        _workload(jobs, cluster), cluster, policy, Options(costs=case.costs, limits=case.limits),
        observer=lambda view, plan, actions: decisions.append(_write_down(view, plan, actions, 0.0)), control=Reconfiguring(case),
    )  # fmt: skip
    return decisions


class Reconfiguring:
    """Sets the configuration that a case has from its middle on."""

    def __init__(self, case: Case) -> None:
        self.policy, (self.next_at, self.config) = case.policy, case.then

    def act(self, simulation: Simulation) -> None:
        self.next_at = math.inf
        simulation.reconfigure(registry.create(self.policy, self.config))


# The daemon's side


class Wakes:
    """In the place of the periodic tasks: remembers what was asked for."""

    def __init__(self) -> None:
        self.due = False
        self.at = math.inf

    def every(self, name: str, interval: float, work: Callable[[], object], *, soon: bool = False) -> None:
        pass

    def wake(self, name: str) -> None:
        self.due |= name == "policy default"

    def wake_at(self, name: str, moment: float) -> None:
        assert name == "policy default"
        self.at = moment


@dataclass
class Work:
    """A job as its runner knows it."""

    job: Job
    left: float
    attempts: int = 0


@dataclass
class Lease:
    number: int
    work: Work
    gpus: list[str]
    nodes: list[str]  #: the first one has rank 0
    since: float  #: when it begins, or began, to train at its present pace
    trains: float  #: when it begins to train
    before: float = 0.0  #: work that it has done by then
    pace: float = 1.0
    stop_at: float = math.inf
    taken: bool = False  #: its worker's start has been reported
    told: float = -math.inf  #: when its progress was reported last
    reports: int = 0

    def trained(self, now: float) -> float:
        """Seconds of work, as it would be done alone."""
        return self.before + max(0.0, min(now, self.stop_at) - self.since) * self.pace

    def go_on(self, now: float, pace: float) -> None:
        """At another pace from now on."""
        if pace != self.pace:
            self.before, self.since, self.pace = self.trained(now), max(now, self.since), pace

    def over(self, suspend: float) -> float:
        return self.stop_at + suspend if math.isfinite(self.stop_at) else self.since + (self.work.left - self.before) / self.pace


class Live:
    """The daemon without its process, and runners that train in virtual time."""

    def __init__(self, path: Path, case: Case) -> None:
        self.now, self.costs, self.policy, self.then = 0.0, case.costs, case.policy, case.then
        self.store = reopened(path, clock=self.clock)
        for node, gpus in enumerate(Cluster.parse(case.cluster).nodes):
            self.store.write(runners.hello, _hello(f"n{node}", gpus))
        self.store.write(_know_the_model, None)
        limits = case.limits
        config = Config(guards=Guards(limits.min_run_time, limits.max_preemptions, limits.cooldown), policy=PolicyDefault())
        self.store.write(set_policy, PolicySetting("default", case.policy, 5.0, case.config, "test"))
        self.wakes = Wakes()
        self.scheduling = Scheduling(self.store, self.wakes, config, self.clock)  # type: ignore[arg-type]
        self.scheduling.know_overheads(self._measured_overheads(case.costs))
        self.scheduling.start()
        self.works: dict[int, Work] = {}
        self.leases: dict[int, Lease] = {}
        self.decisions: list[Decision] = []

    def clock(self) -> float:
        return EPOCH + self.now

    def run(self, jobs: Sequence[Job], monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
        monkeypatch.setattr(module, "reconcile", self._observed(module.reconcile))
        coming = deque(jobs)
        self.wakes.due = False  # nothing has happened yet
        while not math.isinf(moment := self._next(coming)):
            self.now = moment
            self._report()
            if self.then[0] <= moment:
                self._reconfigure()
            while coming and coming[0].at <= moment + AT_ONCE:
                self._submit(coming.popleft())
            if self.wakes.at <= self.clock() + AT_ONCE:
                self.wakes.at, self.wakes.due = math.inf, True
            self._decide()
        assert all(work.left == 0 for work in self.works.values()), "the history has come to rest with jobs that have not ended"
        return self.decisions

    def close(self) -> None:
        self.store.close()

    def _next(self, coming: Sequence[Job]) -> float:
        turns = [lease.trains for lease in self.leases.values() if lease.work.job.share == "switched" and lease.trains > self.now]
        return min(
            coming[0].at if coming else math.inf, min(turns, default=math.inf), self._next_end(), self.wakes.at - EPOCH, self.then[0]
        )

    def _reconfigure(self) -> None:
        """As a person does it, or AutoSched."""
        self.store.write(set_policy, PolicySetting("default", self.policy, 5.0, self.then[1], "test"))
        self.scheduling.reload()
        self.then, self.wakes.due = (math.inf, {}), True

    def _observed(self, reconcile: Callable[..., Actions]) -> Callable[..., Actions]:
        def observe(view: View, plan: Plan, *rest: Any) -> Actions:
            actions = reconcile(view, plan, *rest)
            self.decisions.append(_write_down(view, plan, actions, EPOCH))
            return actions

        return observe

    def _decide(self) -> None:
        while self.wakes.due:
            self.wakes.due = False
            self.wakes.at = math.inf
            before = len(self.decisions)
            self.scheduling.tick("default")
            assert len(self.decisions) == before + 1, self._rows("SELECT outcome, error FROM decisions ORDER BY id DESC LIMIT 1")
            self._take_up()
            self._report()

    def _measured_overheads(self, costs: Costs) -> Overheads:
        """What suspensions would have been measured to cost by now."""
        ((model,),) = self._rows("SELECT hash('toy')")
        seconds = costs.suspend + costs.resume
        return Overheads([("default", model, gpus, seconds + costs.resume_per_gpu * (gpus - 1), 1) for gpus in range(1, 9)])

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.store.read() as con:
            return con.execute(statement).fetchall()

    def _submit(self, job: Job) -> None:
        number = len(self.works) + 1
        demand = Demand() if job.deadline is None else Demand("strict", (Tier(self.clock() + job.deadline),))
        spec = JobSpec(
            name=f"job-{number}", recipe="toy", user=job.user, priority=job.priority, gpus_min=job.gpus, gpus_max=job.gpus,
            demand=demand, stop=Stop(iterations=job.duration * STEPS), estimate=float(job.duration),
            share=Share(gpu=job.share) if job.share else None,
        )  # fmt: skip
        request = SubmitRequest(Submission(jobs=[spec], provenance=Provenance(argv=[], cwd="/")), job.user)
        assert self.store.write(submit, request)[0]["id"] == number
        self.works[number] = Work(job, float(job.duration))

    def _take_up(self) -> None:
        """What the tables say of leases, as a poll would tell it."""
        rows = self._rows(
            "SELECT l.id, l.job_id, l.stop_reason IS NOT NULL, list(g.id ORDER BY g.node_id, g.idx), "
            "list(g.node_id ORDER BY g.node_id, g.idx) FROM leases l JOIN lease_gpus lg ON lg.lease_id = l.id "
            "JOIN gpus g ON g.id = lg.gpu_id WHERE l.state <> 'ended' GROUP BY ALL ORDER BY l.id"
        )
        for number, job, stop, gpus, nodes in rows:
            if number not in self.leases:
                work = self.works[job]
                since = self.now + self._start_cost(work, len(gpus))
                self.leases[number] = Lease(number, work, gpus, list(dict.fromkeys(nodes)), since, since)
                work.attempts += 1
            if stop and math.isinf(self.leases[number].stop_at):
                self.leases[number].stop_at = self.now
        self._slow_each_other()

    def _slow_each_other(self) -> None:
        for lease in self.leases.values():
            others = [other for other in self.leases.values() if other is not lease and other.gpus[0] == lease.gpus[0]]
            # Who starts, or saves its work, takes no turns.
            beside = [one.work.job for one in others if one.work.job.share != "switched" or one.trains <= self.now < one.stop_at]
            lease.go_on(self.now, min((_pace(lease.work.job, other) for other in beside), default=1.0))

    def _start_cost(self, work: Work, gpus: int) -> float:
        if work.attempts:
            return self.costs.resume + self.costs.resume_per_gpu * (gpus - 1)
        return self.costs.cold_start

    def _next_end(self) -> float:
        return min((lease.over(self.costs.suspend) for lease in self.leases.values()), default=math.inf)

    def _report(self) -> None:
        """Every runner tells all that is new at this moment."""
        told: dict[str, tuple[list[WorkerUpdate], list[Records]]] = defaultdict(lambda: ([], []))
        ended = [lease for lease in self.leases.values() if lease.over(self.costs.suspend) <= self.now + AT_ONCE]
        for lease in self.leases.values():
            if news := list(self._news(lease, ended=lease in ended)):
                for node in lease.nodes:
                    told[node][0].extend(news)
            if lease.since <= min(self.now, lease.stop_at) and lease.told < self.now:
                told[lease.nodes[0]][1].append(self._progress(lease))
            lease.taken = True
        reports = [Report(node=node, session=1, workers=updates, records=records) for node, (updates, records) in sorted(told.items())]
        for answer in [self.store.submit(runners.report, report) for report in reports]:
            assert not answer.result().stale
        for lease in ended:
            completed = math.isinf(lease.stop_at)
            lease.work.left = 0.0 if completed else lease.work.left - lease.trained(self.now)
            del self.leases[lease.number]
        self._slow_each_other()

    def _news(self, lease: Lease, *, ended: bool) -> Iterator[WorkerUpdate]:
        if not lease.taken:
            yield WorkerUpdate(lease=lease.number, state="running", ts=self.clock(), run_dir="/nowhere")
        if ended:
            outcome: Literal["stopped", "completed"] = "stopped" if math.isfinite(lease.stop_at) else "completed"
            yield WorkerUpdate(lease=lease.number, state="exited", ts=self.clock(), outcome=outcome)

    def _progress(self, lease: Lease) -> Records:
        lease.told, moment = self.now, min(self.now, lease.stop_at)
        step = round(STEPS * (lease.work.job.duration - lease.work.left + lease.trained(moment)))
        lease.reports += 1
        record = Record(seq=lease.reports, ts=EPOCH + moment, step=step, values={"loss": 1.0})
        return Records(lease=lease.number, rank=0, records=[record])


def _pace(job: Job, beside: Job) -> float:
    """How fast it is beside one other: where they are switched the higher priority has all the time that it uses."""
    if job.share != "switched" or job.priority == beside.priority:
        return 1.0 / SLOWDOWN
    return 1.0 if job.priority > beside.priority else (1.0 - BUSY) / BUSY


def _hello(node: str, gpus: int) -> Hello:
    slots = [GpuInfo(id=f"{node}/gpu{index}", index=index, kind="cpu", name="slot") for index in range(gpus)]
    return Hello(protocol=VERSION, version="t", node=node, host=node, boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
                 pool="default", gpus=slots, leases=[])  # fmt: skip


def _know_the_model(tx: Transaction, batch: Sequence[None]) -> Sequence[None]:
    """Its pace, as earlier jobs would have shown it: so the daemon tells what is left by steps, whatever starts and stops cost.

    Without that it takes an estimate of the submitter's for the time that the job will hold GPUs, which start-up counts in.
    """
    known = {"model": "toy", "gpu_name": "slot", "seconds_per_step": 1 / STEPS, "samples": 1, "updated_at": tx.now}
    rows = [{**known, "gpu_count": gpus} for gpus in range(1, 9)]
    tx.upsert("profiles", ["model", "gpu_name", "gpu_count"], rows)
    speed = {"gpu_name": "slot", "model": "toy", "compute": 1 / STEPS, "within_node": 0.0, "samples": 1, "updated_at": tx.now}
    speed["utilisation"] = BUSY
    gangs = [JobSpec(name="any", recipe="toy", gpus_min=gpus, gpus_max=gpus) for gpus in range(1, 9)]
    tx.upsert("speeds", ["signature", "gpu_name"], [{**speed, "signature": gang.signature, "gang": gang.gpus_min} for gang in gangs])
    pair = {"model": "toy", "beside": "toy", "gpu_name": "slot", "kind": "packed", "slowdown": SLOWDOWN, "samples": 1, "updated_at": tx.now}
    tx.upsert("slowdowns", ["model", "beside", "gpu_name", "kind"], [pair])
    return [None] * len(batch)


def lived(jobs: Sequence[Job], case: Case, template: Path) -> list[Decision]:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        live = Live(Path(shutil.copy(template, directory)), case)
        try:
            return live.run(jobs, monkeypatch)
        finally:
            live.close()


# The comparison


def compare(jobs: Sequence[Job], case: Case, template: Path) -> list[Decision]:
    """The decisions, which are the same on both sides."""
    of_the_simulator, of_the_daemon = _telling(simulated(jobs, case)), _telling(lived(jobs, case, template))
    for theirs, ours in zip(of_the_simulator, of_the_daemon, strict=False):
        differences = _differences(ours, theirs)
        assert not differences, "\n".join([f"the daemon at {ours.now:g} s, the simulator at {theirs.now:g} s", *differences])
    assert len(of_the_daemon) == len(of_the_simulator)
    return of_the_daemon


def _telling(decisions: Sequence[Decision]) -> list[Decision]:
    return [decision for decision, before in zip(decisions, [None, *decisions[:-1]], strict=True) if decision.matters(before)]


def _differences(ours: Decision, theirs: Decision) -> list[str]:
    """What differs: the daemon's, then the simulator's."""
    pairs = {f.name: (getattr(ours, f.name), getattr(theirs, f.name)) for f in dataclasses.fields(Decision) if f.name != "view"}
    pairs |= {f"view.{name}": (ours.view[name], theirs.view[name]) for name in ours.view}
    return [f"{name}: {daemon} != {simulator}" for name, (daemon, simulator) in pairs.items() if not _same(daemon, simulator)]


def _same(one: Any, other: Any) -> bool:
    if one == other or isinstance(one, float):
        return one == other or abs(one - other) < CLOSE
    floats = isinstance(one, list) and all(isinstance(value, float) for value in [*one, *other])
    return floats and len(one) == len(other) and np.allclose(one, other, rtol=0, atol=CLOSE)


#: Gangs on one and on both nodes, two of which must wait for others to stop; equal moments; urgent jobs while others start and stop.
HISTORY = [
    Job(0, 300, gpus=2, user="ann"),
    Job(0, 240, gpus=4, user="bob"),
    Job(10, 500, gpus=1, user="ann", deadline=900),
    Job(25, 120, gpus=8, priority=2, user="cy"),
    Job(40, 60, gpus=1, priority=5, user="bob", deadline=200),
    Job(40, 45, gpus=2, priority=5, user="cy"),
    Job(41, 90, gpus=6, priority=1, user="ann", deadline=400),
    Job(90, 30, gpus=3, user="bob"),
    Job(120, 200, gpus=1, priority=3, user="ann"),
    Job(130, 20, gpus=8, priority=9, user="cy", deadline=100),
    Job(140, 75, gpus=5, priority=4, user="bob"),
    Job(300, 10, gpus=1, user="cy", deadline=30),
    Job(301, 10, gpus=4, priority=7, user="ann"),
    Job(420, 150, gpus=2, priority=1, user="bob", deadline=600),
]

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "fifo": ("fifo", {}),
    "backfill": ("fifo", {"backfill": True}),
    "priority": ("priority", {}),
    "srtf": ("srtf", {}),
    "srsf": ("srtf", {"measure": "service", "hysteresis": 1.0}),
    "sjf": ("sjf", {}),
    "edf": ("edf", {}),
    "las": ("las", {"quantum": 100.0}),
    "tiresias": ("tiresias", {"threshold_1": 100.0, "threshold_2": 400.0}),
    "tiresias-time": ("tiresias", {"threshold_1": 50.0, "queues": 2, "priority": "time"}),
    "themis": ("themis", {"lease_term": 60.0}),
    "genie": ("genie", {}),
    "hydra": ("hydra", {}),
    "lucid": ("lucid", {"profiler_capacity": 0}),
    "lucid-profiled": ("lucid", {"profiler_capacity": 2, "profile_time": 30.0}),
    "switchflow": ("switchflow", {}),
    "unisched": ("unisched", {"be_lease": 50.0, "overhead": 8.0, "placement": "consolidated"}),
    "chronus": ("chronus", {"be_lease": 25.0, "slo_leases": 4, "profiler_gpus": 2}),
}
#: Of these policies the day has other options, or others that are served from the same columns; the small histories below have all.
#: Each has one much like it by day: `priority`, `unisched` and `lucid-profiled` here, `tiresias`, `lucid` and `switchflow` in tests below.
BY_DAY = ("unisched", "lucid-profiled")
PREEMPTIVE = {"priority", "srtf", "srsf", "edf", "las", "tiresias", "themis", "unisched"}


def check(name: str, limits: PreemptionLimits, costs: Costs, template: Path, jobs: Sequence[Job] = HISTORY) -> None:
    policy, config = POLICIES[name]
    decisions = compare(jobs, Case(policy, config, limits, costs), template)
    assert sum(len(decision.starts) for decision in decisions) >= len(jobs)
    assert name not in PREEMPTIVE or any(decision.stops for decision in decisions), "nobody was preempted: the history shows too little"


def test_the_simulator_decides_as_the_daemon_does(template: Path) -> None:
    check("priority", LIMITS, COSTS, template)


@pytest.mark.slow
def test_pairs_on_a_gpu_are_decided_alike(template: Path) -> None:
    """Two GPUs for singles and gangs of two, of about one length: most start beside another, and some beside one that a third has left."""
    jobs = [Job(7 * number, 100 + 13 * (number % 4), gpus=2 if number in (2, 3, 8, 9) else 1) for number in range(12)]
    decisions = compare(jobs, Case("lucid", {"profiler_capacity": 0}, NO_LIMITS, COSTS, cluster="1x2"), template)
    assert sum(share == "packed" for decision in decisions for *_, share in decision.starts) >= 5, "few were packed"


@pytest.mark.slow
def test_who_takes_turns_where_is_decided_alike(template: Path) -> None:
    """Two GPUs, of which one or both are switched at times; priorities put some behind others there, and equals are there too."""
    share = ["switched", "switched", "switched", "switched", ""]
    jobs = [Job(9 * number, 70 + 13 * (number % 4), priority=number % 3 // 2, share=share[number % 5]) for number in range(12)]
    decisions = compare(jobs, Case("switchflow", {"most": 2}, NO_LIMITS, COSTS, cluster="1x2"), template)
    assert sum(share == "switched" for decision in decisions for *_, share in decision.starts) >= 5, "few were switched"


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_DAY)
def test_with_such_policies_the_first_jobs(name: str, template: Path) -> None:
    check(name, LIMITS, COSTS, template, HISTORY[:8])


@pytest.mark.nightly  # by day the first jobs, and all with `priority`
@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"priority"}))
def test_with_any_policy(name: str, template: Path) -> None:
    check(name, LIMITS, COSTS, template)


@pytest.mark.slow
def test_another_configuration_in_the_middle(template: Path) -> None:
    """Jobs are in their queues, preempted and about to stop when the thresholds change (002 ch. 6.5.3)."""
    before, after = (
        {"threshold_1": 100.0, "threshold_2": 400.0},
        {"queues": 4, "threshold_1": 30.0, "threshold_2": 200.0, "threshold_3": 900.0},
    )
    jobs = HISTORY[:8]
    changed = compare(jobs, Case("tiresias", before, NO_LIMITS, COSTS, then=(150.0, after)), template)
    same = _telling(simulated(jobs, Case("tiresias", before, NO_LIMITS, COSTS)))
    assert [decision.starts for decision in changed] != [decision.starts for decision in same], "the change changed nothing"


@pytest.mark.nightly  # and in the small histories below
@pytest.mark.parametrize(
    ("name", "limits", "costs"),
    [("backfill", NO_LIMITS, COSTS), ("priority", LIMITS, FREE), ("srtf", NO_LIMITS, FREE)],
    ids=["backfill-costs", "priority-limits", "srtf-neither"],
)
def test_without_guards_or_costs(name: str, limits: PreemptionLimits, costs: Costs, template: Path) -> None:
    check(name, limits, costs, template)


@st.composite
def histories(draw: st.DrawFn) -> list[Job]:
    """A few jobs on two nodes of two GPUs; moments coincide often."""
    moment = st.integers(0, 12).map(lambda ten: 10 * ten)
    jobs = st.builds(
        Job, at=moment, duration=st.integers(1, 9).map(lambda ten: 10 * ten), gpus=st.sampled_from([1, 1, 2, 3, 4]),
        priority=st.integers(0, 3), deadline=st.sampled_from([None, 50, 150]), user=st.sampled_from(["ann", "bob"]),
    )  # fmt: skip
    return sorted(draw(st.lists(jobs, min_size=2, max_size=7)), key=lambda job: job.at)


@pytest.mark.slow
@pytest.mark.timeout(600)  # each example opens a store
@settings(max_examples=3)
@given(
    histories(),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from([NO_LIMITS, PreemptionLimits(min_run_time=15.0, max_preemptions=1, cooldown=30.0)]),
    st.sampled_from([FREE, Costs(suspend=3.0, resume=4.0, resume_per_gpu=1.0, cold_start=2.0, warm_start=2.0)]),
)
def test_any_history_is_decided_alike(template: Path, jobs: list[Job], name: str, limits: PreemptionLimits, costs: Costs) -> None:
    policy, config = POLICIES[name]
    compare(jobs, Case(policy, config, limits, costs, cluster="2x2"), template)


def test_the_daemon_asks_again_when_it_is_to() -> None:
    """`Wakes` above stands for this."""
    asked = threading.Event()
    tasks = Tasks(lambda *_: None)
    tasks.start()
    try:
        tasks.every("policy default", 3600.0, asked.set)
        tasks.wake_at("policy default", time.time() + 7200.0)
        assert (tasks.next_run("policy default") or math.inf) < time.time() + 3700.0, "later than its interval"
        tasks.wake_at("policy default", time.time() + 0.01)
        assert asked.wait(patient(60))
        tasks.wake_at("unknown", time.time())
    finally:
        tasks.stop()
