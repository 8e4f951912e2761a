"""Properties of the whole engine, by hypothesis: whatever people, runners, policies and crashes do, the invariants hold.

A state machine drives a real store, the real write commands, the real scheduling and board, with runners that are only
messages (`model.Agent`). ``HYPOTHESIS_PROFILE=long`` runs it for many more and longer histories.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from stoker.engine.config import Config, Guards
from stoker.engine.errors import Conflict, NotFound, Stale, StokerError, UsageError
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.board import Board
from stoker.engine.fleet.watch import look_at_leases
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.states import FINAL, State, legal
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import Report
from stoker.engine.scheduling.plan_check import PlanError, check
from stoker.engine.scheduling.policy_settings import PolicySetting, set_policy
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.scheduling.view import Snapshot, snapshot
from stoker.engine.spec.check import require_all
from stoker.engine.spec.model import Demand, Dependency, JobSpec, Provenance, Retries, Stop, Submission, Tier
from stoker.engine.spec.same import differences
from stoker.engine.store.store import Committed, Store
from stoker.policies.contract import Allocation, Group, Plan, Reason, View, Waiting, plan_of
from stoker.policies.contract import Phase as JobPhase
from stores import reopened

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
PROFILES = {
    # Not shrunk, as that takes minutes: the whole history is printed.
    "short": settings(COMMON, max_examples=4, stateful_step_count=30, phases=[Phase.generate]),
    "nightly": settings(COMMON, derandomize=False, max_examples=100, stateful_step_count=30, phases=[Phase.generate]),
    "long": settings(COMMON, derandomize=False, max_examples=100_000, stateful_step_count=60, phases=[Phase.generate]),
    "shrink": settings(COMMON, derandomize=False, max_examples=100_000, stateful_step_count=60),
}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "short")

POOLS = ("default", "small")
GUARDS = Guards(min_run_time=30.0, max_preemptions=3, cooldown=60.0)
YIELDING = ("preempted", "expired")
TABLES = ("jobs", "leases", "lease_gpus", "workers", "waiting", "metrics", "report_marks", "dependencies", "nodes", "gpus", "decisions",
          "tiers", "progress", "profiles")  # fmt: skip
Tables = dict[str, list[dict[str, Any]]]


# -- what is submitted -----------------------------------------------------------------------------------------------------


@st.composite
def job_specs(draw: st.DrawFn, name: str) -> JobSpec:
    least = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 5, 7]))
    demand = Demand()
    if draw(st.integers(0, 4)) == 0:
        ends = sorted(draw(st.lists(st.integers(10, 5000), min_size=1, max_size=3, unique=True)))
        demand = Demand("soft", tuple(Tier(2_000_000_000.0 + end, float(len(ends) - i)) for i, end in enumerate(ends)))
    return JobSpec(
        name=name,
        recipe="toy",
        params={"model": draw(st.sampled_from(["a", "b"]))},
        pool=draw(st.sampled_from(["default", "default", "default", "small"])),
        user=draw(st.sampled_from(["ann", "bob"])),
        priority=draw(st.integers(-1, 2)),
        gpus_min=least,
        gpus_max=least + draw(st.integers(0, 2)),
        gpu_memory=draw(st.sampled_from([0, 0, 2**30])),
        demand=demand,
        stop=Stop(iterations=draw(st.sampled_from([None, 20, 100]))),
        retries=Retries(
            limit=draw(st.integers(0, 2)), backoff=draw(st.sampled_from([0.0, 10.0])), never_on=draw(st.sampled_from([(), (3,)]))
        ),
        timeout=draw(st.sampled_from([None, None, 200.0])),
        estimate=draw(st.sampled_from([None, 5.0, 150.0])),
        hold=draw(st.integers(0, 5)) == 0,
        idempotency_key=draw(st.sampled_from([None, None, "k0", "k1", "k2"])),
    )


@st.composite
def submissions(draw: st.DrawFn, known: list[str]) -> list[JobSpec]:
    """A job, several with needs among themselves and of earlier ones, or an array."""
    if draw(st.integers(0, 3)) == 0:
        size = draw(st.integers(2, 5))
        task = msgspec.structs.replace(draw(job_specs("array")), gpus_min=1, gpus_max=1, array_size=size)
        if (key := task.idempotency_key) is None:
            task = msgspec.structs.replace(task, array_cap=draw(st.sampled_from([None, 1, 2])))
        else:  # with the same key it is the same array, which may have grown
            caps = {"k0": None, "k1": 1, "k2": 2}
            task = JobSpec(name="array", recipe="toy", user=task.user, array_size=size, array_cap=caps[key], idempotency_key=key)
        return [
            msgspec.structs.replace(task, name=f"array[{i}]", array_index=i, idempotency_key=key and f"{key}[{i}]") for i in range(size)
        ]
    names = draw(st.lists(st.sampled_from([f"j{i}" for i in range(8)]), min_size=1, max_size=3, unique=True))
    specs: list[JobSpec] = []
    for name in names:
        spec = draw(job_specs(name))
        if spec.idempotency_key in {s.idempotency_key for s in specs}:  # two equal ones are refused before they come here
            spec = msgspec.structs.replace(spec, idempotency_key=None)
        others = {*known} - {*names} | {s.name for s in specs}
        if others and draw(st.integers(0, 2)) == 0:
            needs = draw(st.lists(st.sampled_from(sorted(others)), min_size=1, max_size=2, unique=True))
            spec = msgspec.structs.replace(spec, after=tuple(Dependency(n, draw(st.sampled_from(["ok", "any"]))) for n in needs))
        specs.append(spec)
    return specs


def _user(spec: JobSpec) -> str:
    return spec.user or "ann"


@dataclass
class Job:
    """What the outside knows of an accepted job."""

    id: int
    spec: JobSpec
    needs: list[tuple[int, str]]
    array: int | None
    held: bool
    cancelled: bool = False
    state: State | None = None  #: by the events
    since: float = 0.0


# -- the machine -----------------------------------------------------------------------------------------------------------


class Engine(RuleBasedStateMachine):
    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-"))
        self.clock = model.Clock()
        self.undone: list[BaseException] = []
        self.generation = 0
        self.jobs: dict[int, Job] = {}
        self.keys: dict[tuple[str, str], tuple[int, float]] = {}  #: user and key to the job, and when it was submitted
        self.sent: list[list[JobSpec]] = []
        self.reports: list[Report] = []
        self.acked: set[tuple[int, int, int]] = set()
        self.parts: dict[int, dict[str, str]] = defaultdict(dict)  #: lease to node to how its worker ended
        self.seen_events = 0
        self.ticks: Counter[str] = Counter()
        self.past: Tables | None = None
        self.agents = {
            name: model.Agent(name, pool, slots, skew, self.clock)
            for name, pool, slots, skew in (("n1", "default", 4, 0.0), ("n2", "default", 2, 3.0), ("m1", "small", 2, -2.0))
        }
        shutil.copy(self.template, self.folder / "0.duckdb")
        self._use(reopened(self.folder / "0.duckdb", clock=self.clock))

    def _use(self, store: Store) -> None:
        self.store = store
        self._spy_on_rollbacks()
        self.board = Board(self.store)
        self.board.refresh()
        self.store.listen(self._committed)
        self.scheduling = Scheduling(self.store, model.Inert(), Config(guards=GUARDS), clock=self.clock)  # type: ignore[arg-type]
        self.scheduling.reload()

    def _spy_on_rollbacks(self) -> None:
        recover = self.store._recover

        def spy(batch: list[Any], error: Exception) -> None:
            self.undone.append(error)
            recover(batch, error)

        self.store._recover = spy  # type: ignore[method-assign]

    def _committed(self, commit: Committed) -> None:
        if commit.topics & {"leases", "nodes"}:
            self.board.refresh()

    @initialize()
    def runners_come(self) -> None:
        for agent in self.agents.values():
            self._hello(agent)
        self.scheduling.reload()
        self.verify()

    # -- people

    @rule(data=st.data(), again=st.integers(0, 4))
    def submit(self, data: st.DataObject, again: int) -> None:
        if self.sent and again == 0:
            specs = data.draw(st.sampled_from(self.sent), label="sent again")
        else:
            known = [str(job.id) for job in self.jobs.values()] + [job.spec.name for job in self.jobs.values()]
            specs = data.draw(submissions(sorted(set(known))), label="jobs")
            require_all(specs)
            self.sent.append(specs)
        self._accepted(specs, self.store.submit(submit, self._request(specs)))
        self.verify()

    @rule(data=st.data())
    def submit_twice_at_once(self, data: st.DataObject) -> None:
        """A client that repeats itself as its answer is late: both requests land in one transaction."""
        specs = data.draw(submissions([]))
        with model.one_transaction(self.store):
            answers = [self.store.submit(submit, self._request(specs)) for _ in range(2)]
        for answer in answers:
            self._accepted(specs, answer)
        self.verify()

    def _request(self, specs: list[JobSpec]) -> SubmitRequest:
        return SubmitRequest(Submission(jobs=specs, provenance=Provenance(argv=["x"], cwd="/")), "ann")

    def _accepted(self, specs: list[JobSpec], answer: Future[list[dict[str, Any]]]) -> None:
        expected = self._expected_refusal(specs)
        if expected is not None:
            with pytest.raises(expected):
                answer.result()
            return
        rows = answer.result()
        assert [row["name"] for row in rows] == [spec.name for spec in specs]
        ids: dict[str, int] = {}
        for spec, row in zip(specs, rows, strict=True):
            before = self._before(spec)
            assert row["existing"] == (before is not None)
            assert row["id"] not in self.jobs if before is None else row["id"] == before
            ids[spec.name] = row["id"]
            if spec.idempotency_key:
                self.keys.setdefault((_user(spec), spec.idempotency_key), (row["id"], self.clock()))
            if before is None:
                array = None if spec.array_size is None else ids[specs[0].name]
                self.jobs[row["id"]] = Job(row["id"], spec, [], array, spec.hold)
        first = min((row["id"] for row in rows if not row["existing"]), default=0)
        for spec, row in zip(specs, rows, strict=True):
            if not row["existing"]:
                known = {name: number for name, number in ids.items() if name != spec.name}
                self.jobs[row["id"]].needs = [(self._find(need.job, known, _user(spec), below=first), need.mode) for need in spec.after]

    def _expected_refusal(self, specs: list[JobSpec]) -> type[StokerError] | None:
        own = {spec.name for spec in specs}
        known = {spec.name: before for spec in specs if (before := self._before(spec)) is not None}
        for spec in specs:
            if spec.name in known:
                number, at = self.keys[_user(spec), spec.idempotency_key or ""]
                if differences(self.jobs[number].spec, spec, self.clock() - at):
                    return Conflict
        fresh = [spec for spec in specs if spec.name not in known]
        sizes = self._pool_sizes()
        for spec in fresh:
            if 0 < sizes[spec.pool] < spec.gpus_min:
                return UsageError
        for spec in fresh:
            for need in spec.after:
                if need.job in own and need.job != spec.name and need.job not in known:
                    continue
                job = self._find(need.job, known if need.job != spec.name else {}, _user(spec), below=None)
                if job is None:
                    return NotFound
                if need.mode == "ok" and self.jobs[job].state in (State.FAILED, State.CANCELLED):
                    return UsageError
        return None

    def _before(self, spec: JobSpec) -> int | None:
        """The job that its user has submitted with the key of ``spec`` before."""
        return self.keys.get((_user(spec), spec.idempotency_key or ""), (None, 0.0))[0]

    def _find(self, word: str, own: dict[str, int], user: str, below: int | None) -> Any:
        """The job that a word of `after:` means: one of the same request, that of the number, the user's newest of the name, anybody's."""
        if word in own:
            return own[word]
        jobs = [job for job in self.jobs.values() if word in (job.spec.name, str(job.id)) and (below is None or job.id < below)]
        return max(jobs, key=lambda job: (word == str(job.id), _user(job.spec) == user, job.id)).id if jobs else None

    def _pool_sizes(self) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for node in self.past["nodes"] if self.past else ():
            if node["state"] not in ("gone", "stopped"):
                sizes[self.agents[node["id"]].pool] += self.agents[node["id"]].slots
        return sizes

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold", "release", "release", "priority"]))
    def people_act(self, data: st.DataObject, action: str) -> None:
        live = [job.id for job in self.jobs.values() if job.state not in FINAL] or list(self.jobs)
        targets = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=3, unique=True))
        self._act(action, targets, data.draw(st.integers(-2, 3)))
        self.verify()

    def _act(self, action: Any, targets: list[int], priority: int = 0) -> None:
        rows = self.store.write(control, Control(action, tuple(targets), "ann", priority))
        assert {row["id"] for row in rows} == set(targets)
        for number in targets:
            job = self.jobs[number]
            if action == "cancel" and job.state not in FINAL:
                job.cancelled = True
            if (action == "hold" and job.state not in FINAL) or action == "release":
                job.held = action == "hold"

    # -- policies

    @rule(pool=st.sampled_from(POOLS), policy=st.sampled_from(["fifo", "srtf", "priority"]))
    def set_policy(self, pool: str, policy: str) -> None:
        self.store.write(set_policy, PolicySetting(pool, policy, 5.0, {}, "ann"))
        self.scheduling.reload()
        self.verify()

    @rule(seconds=st.sampled_from([0.0, 1.0, 31.0]))
    def tick_all(self, seconds: float) -> None:
        self.clock.now += seconds
        for pool in POOLS:
            compare(self._snapshot(pool), self._tables(), pool)
            self._tick(pool)
        self.scheduling.forecast()
        self.verify(explained=POOLS)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold"]))
    def people_act_while_a_policy_plans(self, data: st.DataObject, action: str) -> None:
        pending = [job.id for job in self.jobs.values() if job.state is State.PENDING] or list(self.jobs)
        target = data.draw(st.sampled_from(pending))
        self._tick(self.jobs[target].spec.pool, meanwhile=lambda: self._act(action, [target]))
        self.verify()

    @rule(data=st.data(), pool=st.sampled_from(POOLS))
    def a_policy_plans_anything(self, data: st.DataObject, pool: str) -> None:
        """A plan at random, sound or not: `plan_check` foretells whether it is acted on."""
        seen = self._snapshot(pool)
        plan = data.draw(plans(seen.view), label="plan")
        if accepted(plan, seen.view):
            self._tick(pool, lambda view: plan)
            self.verify(explained=[pool])
            return
        before = self._facts()
        self._tick(pool, _raise if plan is None else lambda view: plan)
        assert self._facts() == before, "a plan that was refused has changed more than why its jobs wait"
        self.verify()

    def _tick(self, pool: str, answer: Callable[[View], Plan] | None = None, meanwhile: Callable[[], None] = lambda: None) -> None:
        """One tick of the policy in force, or of one that plans ``answer``."""
        state = self.scheduling._pools[pool]
        self.scheduling._take_up(state)
        policy = state.policy
        state.policy = model.Scripted(answer or policy.plan, meanwhile)  # type: ignore[assignment]
        self.scheduling.tick(pool)
        state.policy = policy
        self.ticks[pool] += 1

    def _snapshot(self, pool: str) -> Snapshot:
        with self.store.read() as con:
            return snapshot(con, pool, self.clock.now)

    def _tables(self) -> Tables:
        with self.store.read() as con:
            return model.tables(con, *TABLES)

    def _facts(self) -> list[Any]:
        """All but why jobs wait, and that a policy fails, which is told once."""
        tables = ("jobs", "leases", "lease_gpus", "(FROM events WHERE kind NOT IN ('policy.error', 'job.waiting'))")
        with self.store.read() as con:
            return [con.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in tables]

    # -- runners

    def _hello(self, agent: model.Agent) -> None:
        agent.registered(self.store.write(runners.hello, agent.hello()))

    def _up(self) -> list[model.Agent]:
        return [agent for agent in self.agents.values() if agent.up]

    @rule(rounds=st.integers(1, 3))
    def runners_go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.clock.now += 1.0
            for agent in self._up():
                agent.poll(self.board)
                agent.reconcile()
                for worker in list(agent.workers.values()):
                    if worker.alive and worker.stop is not None:
                        agent.end(worker, "stopped", 75)
                    agent.advance(worker)
            self._report_together(self._up())
        self.verify()

    @rule(seconds=st.sampled_from([1.0, 31.0]), rounds=st.integers(1, 3))
    def all_goes_well(self, seconds: float, rounds: int) -> None:
        """What happens most of the time, so that there is something for the other rules to disturb."""
        self.tick_all(seconds)
        self.runners_go_on(rounds)

    @rule(seconds=st.sampled_from([1.0, 31.0]))
    def urgent_work_comes(self, seconds: float) -> None:
        """A job that displaces others where the policy lets it."""
        self.clock.now += seconds
        pool = POOLS[len(self.jobs) % 2]
        spec = JobSpec(name="urgent", recipe="toy", pool=pool, priority=len(self.jobs), gpus_min=2, gpus_max=2, estimate=1.0)
        self._accepted([spec], self.store.submit(submit, self._request([spec])))
        self.verify()
        self.tick_all(0.0)

    @rule(data=st.data(), act=st.booleans())
    def runner_polls(self, data: st.DataObject, act: bool) -> None:
        """Only asks, or only acts, so that it may act on an answer that is old by then."""
        if up := self._up():
            agent = self._pick(data, up)
            agent.reconcile() if act else agent.poll(self.board)

    @precondition(lambda self: any(agent.workers for agent in self.agents.values()))
    @rule(data=st.data(), times=st.integers(1, 3))
    def worker_goes_on(self, data: st.DataObject, times: int) -> None:
        agent, worker = self._worker(data)
        for _ in range(times):
            if agent.up or worker.alive:
                agent.advance(worker)

    @precondition(lambda self: any(agent.workers for agent in self.agents.values()))
    @rule(data=st.data(), end=st.sampled_from([model.ENDS[0], model.ENDS[0], *model.ENDS, ("unkillable", None), ("stopped", 75)]))
    def worker_ends(self, data: st.DataObject, end: tuple[str, int | None]) -> None:
        agent, worker = self._worker(data)
        agent.end(worker, *end)

    def _pick(self, data: st.DataObject, agents: Collection[model.Agent]) -> model.Agent:
        return self.agents[data.draw(st.sampled_from([agent.node for agent in agents]), label="runner")]

    def _worker(self, data: st.DataObject) -> tuple[model.Agent, model.Worker]:
        found = [(node, lease) for node, agent in self.agents.items() for lease in agent.workers]
        node, lease = data.draw(st.sampled_from(found), label="worker")
        return self.agents[node], self.agents[node].workers[lease]

    @rule(data=st.data(), fate=st.sampled_from(["taken", "taken", "lost", "unanswered", "together"]))
    def runner_reports(self, data: st.DataObject, fate: str) -> None:
        if not (up := self._up()):
            return
        if fate == "together":
            self._report_together(up)
        else:
            agent = self._pick(data, up)
            message = agent.report()
            if fate != "lost":
                self._taken(message, self.store.submit(runners.report, message), agent if fate == "taken" else None)
        self.verify()

    def _report_together(self, agents: list[model.Agent]) -> None:
        messages = [agent.report() for agent in agents]
        with model.one_transaction(self.store):
            answers = [self.store.submit(runners.report, message) for message in messages]
        for agent, message, answer in zip(agents, messages, answers, strict=True):
            self._taken(message, answer, agent)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def an_old_report_arrives_again(self, data: st.DataObject) -> None:
        message = self.reports[-data.draw(st.integers(1, min(8, len(self.reports))), label="how long ago")]
        self._taken(message, self.store.submit(runners.report, message), None)
        self.verify()

    def _taken(self, message: Report, answer: Future[Any], agent: model.Agent | None) -> None:
        """What follows from a report that has arrived; ``agent`` hears the answer, unless that is lost."""
        self.reports.append(message)
        assert self.past is not None
        if message.session != next(row["session"] for row in self.past["nodes"] if row["id"] == message.node):
            with pytest.raises(Stale):
                answer.result()
            return
        stale = set(answer.result().stale)
        for records in message.records:
            if records.lease not in stale:
                self.acked |= {(records.lease, records.rank, record.seq) for record in records.records}
        for update in message.workers:
            if update.lease not in stale and update.state == "exited":
                self.parts[update.lease].setdefault(message.node, str(update.outcome))
        if agent is not None:
            agent.acknowledged(message, sorted(stale))

    @precondition(lambda self: len(self._up()) > 1)
    @rule(data=st.data(), host=st.booleans())
    def runner_dies(self, data: st.DataObject, host: bool) -> None:
        """kill -9 of an agent, or the crash of its host with all that runs there."""
        self._pick(data, self._up()).die(host=host)

    @precondition(lambda self: len(self._up()) < len(self.agents))
    @rule(data=st.data())
    def runner_returns(self, data: st.DataObject) -> None:
        agent = self._pick(data, [agent for agent in self.agents.values() if not agent.up])
        self._hello(agent)
        self.verify()

    @precondition(lambda self: len(self._up()) > 1)
    @rule(data=st.data())
    def runner_leaves(self, data: st.DataObject) -> None:
        """An agent that has nothing in hand says goodbye."""
        if idle := [agent for agent in self._up() if not agent.workers]:
            agent = self._pick(data, idle)
            message = agent.report(left=True)
            self._taken(message, self.store.submit(runners.report, message), agent)
            agent.die(host=False)
            self.verify()

    @rule(data=st.data(), state=st.sampled_from(["draining", "up", "suspect", "gone"]))
    def node_is_changed(self, data: st.DataObject, state: str) -> None:
        """Drain, resume, silence; and `forget`, which is refused as long as anything of the node may be alive."""
        assert self.past is not None
        agents = [agent for agent in self.agents.values() if state != "gone" or not (agent.up or agent.workers)]
        if agents:
            node = self._pick(data, agents).node
            before = next(row["state"] for row in self.past["nodes"] if row["id"] == node)
            change = runners.NodeChange(node, state, "ann", "test")
            if state == before or state in runners.NODE_TRANSITIONS[before]:
                self.store.write(runners.change_node, change)
            else:
                with pytest.raises(Conflict):
                    self.store.write(runners.change_node, change)
            self.verify()

    @rule(data=st.data(), health=st.sampled_from(["ok", "ok", "dirty", "quarantined"]))
    def gpu_changes(self, data: st.DataObject, health: str) -> None:
        agent = self._pick(data, self.agents.values())
        agent.set_health(data.draw(st.sampled_from(sorted(agent.health))), health)

    # -- time, and the daemon itself

    @rule(seconds=st.sampled_from([5.0, 40.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        look_at_leases(self.store, self.clock.now, self.scheduling.asked_at, self.scheduling.spared, self._tick)
        self.verify()

    @precondition(lambda self: self.generation < 2)
    @rule(clean=st.booleans())
    def daemon_restarts(self, clean: bool) -> None:
        """A clean stop; or a crash, seen from the files: a copy of database and log as they lie there, opened as new."""
        self.generation += 1
        path = self.store.path
        if clean:
            self.scheduling.flush()
            self.store.close()
        else:
            path = self.folder / f"{self.generation}.duckdb"
            for file in self.store.path.parent.glob(f"{self.store.path.name}*"):
                shutil.copy(file, file.with_name(file.name.replace(self.store.path.name, path.name)))
            self.store.close()
        self._use(Store.open(path, clock=self.clock))
        if not clean:
            self.ticks = Counter()
            for decision in self._tables()["decisions"]:
                self.ticks[decision["pool"]] += decision["ticks"]
        self.verify()

    # -- what always holds

    def verify(self, explained: Collection[str] = ()) -> None:
        """Every invariant; ``explained``: pools that have just been planned, so that each waiting job has its reason."""
        now = self._tables()
        assert not self.undone, f"a write was undone: {self.undone}"
        leases = {lease["id"]: lease for lease in now["leases"]}
        live = {number: lease for number, lease in leases.items() if lease["state"] != "ended"}
        gpus: dict[int, list[str]] = defaultdict(list)
        for row in now["lease_gpus"]:
            gpus[row["lease_id"]].append(row["gpu_id"])
        self._verify_events(now)
        self._verify_leases(now, live, gpus)
        self._verify_new_leases(now, leases, gpus)
        self._verify_jobs(now, leases)
        self._verify_records(now)
        self._verify_waiting(now, explained)
        self._verify_guards(now)
        self._verify_processes()
        ticks = Counter[str]()
        for decision in now["decisions"]:
            ticks[decision["pool"]] += decision["ticks"]
        assert all(ticks[pool] <= self.ticks[pool] for pool in ticks)
        self.past = now

    def _follow_events(self) -> None:
        """Every chain is legal, and ends once."""
        with self.store.read() as con:
            fresh = con.execute(
                "SELECT seq, epoch(ts), job_id, before, after FROM events WHERE kind = 'job.state' AND seq > $1 ORDER BY seq",
                [self.seen_events],
            ).fetchall()
        for seq, ts, number, before, after in fresh:
            self.seen_events = seq
            job = self.jobs[number]
            assert before == job.state
            assert job.state is None or legal(job.state, State(after))
            job.state, job.since = State(after), ts

    def _verify_events(self, now: Tables) -> None:
        """The jobs stand where their events end."""
        self._follow_events()
        assert [row["id"] for row in sorted(now["jobs"], key=lambda row: row["id"])] == sorted(self.jobs)
        for row in now["jobs"]:
            job = self.jobs[row["id"]]
            assert (row["state"], row["held"]) == (job.state, job.held)
            assert row["state_since"] == pytest.approx(job.since, abs=1e-5)
            assert (row["finished_at"] is not None) == (job.state in FINAL)
            if job.state in FINAL:  # when its last worker ended, by its host, or when it was decided without one
                ends = [lease["ended_at"] for lease in now["leases"] if lease["job_id"] == row["id"] and lease["ended_at"] is not None]
                assert any(row["finished_at"] == pytest.approx(at, abs=1e-5) for at in (job.since, max(ends, default=job.since)))
                assert row["finished_at"] <= job.since + 1e-5

    def _verify_leases(self, now: Tables, live: dict[int, dict[str, Any]], gpus: dict[int, list[str]]) -> None:
        assert max(Counter(lease["job_id"] for lease in live.values()).values(), default=1) == 1
        assert {lease["job_id"]: number for number, lease in live.items()} == {
            row["id"]: row["lease_id"] for row in now["jobs"] if row["lease_id"] is not None
        }
        assert max(Counter(gpu for number in live for gpu in gpus[number]).values(), default=1) == 1
        nodes = {row["id"]: row["state"] for row in now["nodes"]}
        for worker in now["workers"]:
            if worker["lease_id"] in live and worker["state"] != "exited":
                assert nodes[worker["node_id"]] not in ("gone", "stopped"), "a runner that has left, or is dead, is to run something"
        for lease in now["leases"]:
            low, high = self.jobs[lease["job_id"]].spec.gpus_min, self.jobs[lease["job_id"]].spec.gpus_max
            assert low <= lease["gpu_count"] == len(gpus[lease["id"]]) <= high
        arrays = Counter(self.jobs[lease["job_id"]].array for lease in live.values())
        for job in self.jobs.values():
            cap = job.spec.array_cap
            assert cap is None or job.array is None or arrays[job.array] <= cap

    def _verify_new_leases(self, now: Tables, leases: dict[int, dict[str, Any]], gpus: dict[int, list[str]]) -> None:
        """Grants since the last look: on free and sound GPUs, to jobs that nothing holds back. And what is past stays."""
        past = {lease["id"]: lease for lease in self.past["leases"]} if self.past else {}
        usable = self._usable(now) | (self._usable(self.past) if self.past else set())
        for number, lease in leases.items():
            if number not in past:
                job = self.jobs[lease["job_id"]]
                assert not job.held and not job.cancelled
                assert all(self._met(need, mode) for need, mode in job.needs)
                assert usable.issuperset(gpus[number])
                continue
            before = past[number]
            assert before["state"] != "ended" or lease == before, "an ended lease has changed"
            assert before["started_at"] in (None, lease["started_at"]), "the start of a lease has moved"
            order = ["granted", "starting", "running", "stopping", "ended"]
            assert order.index(before["state"]) <= order.index(lease["state"]), "a lease has gone backwards"

    @staticmethod
    def _usable(tables: Tables) -> set[str]:
        up = {row["id"] for row in tables["nodes"] if row["state"] == "up"}
        return {row["id"] for row in tables["gpus"] if row["health"] == "ok" and row["node_id"] in up}

    def _met(self, need: int, mode: str) -> bool:
        state = self.jobs[need].state
        return state is State.COMPLETED or (mode == "any" and state in FINAL)

    def _verify_jobs(self, now: Tables, leases: dict[int, dict[str, Any]]) -> None:
        by_job: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for lease in leases.values():
            by_job[lease["job_id"]].append(lease)
        outcomes: dict[int, dict[str, str]] = defaultdict(dict)
        for worker in now["workers"]:
            outcomes[worker["lease_id"]][worker["node_id"]] = worker["outcome"]
        for lease, parts in self.parts.items():
            assert parts.items() <= outcomes[lease].items(), "the end of a worker is not what its runner said first"
        for row in now["jobs"]:
            job, mine = self.jobs[row["id"]], sorted(by_job[row["id"]], key=lambda lease: lease["id"])
            ended = [lease for lease in mine if lease["state"] == "ended"]
            spans = [max(0.0, lease["ended_at"] - lease["started_at"]) if lease["started_at"] else 0.0 for lease in ended]
            assert row["run_time"] == pytest.approx(sum(spans), abs=1e-3)
            assert row["attained"] == pytest.approx(sum(s * lease["gpu_count"] for s, lease in zip(spans, ended, strict=True)), abs=1e-3)
            assert [lease["attempt"] for lease in mine] == list(range(1, len(mine) + 1)) and row["attempts"] == len(mine)
            preempted = [lease for lease in ended if lease["outcome"] == "preempted" and lease["stop_reason"] in YIELDING]
            assert row["preemptions"] == len(preempted)
            self._verify_state(job, row, ended, outcomes)

    def _verify_state(self, job: Job, row: dict[str, Any], ended: list[dict[str, Any]], outcomes: dict[int, dict[str, str]]) -> None:
        """The state of a job is what people asked for and what became of its leases."""
        unmet = [(need, mode) for need, mode in job.needs if not self._met(need, mode)]
        hopeless = any(mode == "ok" and self.jobs[need].state in FINAL for need, mode in unmet)
        done = bool(ended) and set(outcomes[ended[-1]["id"]].values()) == {"completed"}
        limit, final_codes = job.spec.retries.limit, job.spec.retries.never_on
        assert row["failures"] <= limit + 1
        assert (job.state is State.COMPLETED) == done
        assert not (job.cancelled or hopeless) or job.state in FINAL or row["lease_id"] is not None
        match job.state:
            case State.SUBMITTED:
                assert job.held or unmet
            case State.PENDING:
                assert not job.held and not unmet
            case State.FAILED:
                assert row["failures"] == limit + 1 or row["exit_code"] in final_codes or row["outcome"] == "oom"
            case State.CANCELLED:
                assert job.cancelled or (hopeless and row["outcome"] == "dependency")

    def _verify_records(self, now: Tables) -> None:
        """What was acknowledged is stored, once; nothing else is."""
        stored = Counter((m["lease_id"], m["rank"], m["seq"]) for m in now["metrics"])
        assert stored == Counter(self.acked)
        marks = {(mark["lease_id"], mark["rank"]): mark["seq"] for mark in now["report_marks"]}
        assert marks == {(lease, rank): max(s for le, r, s in self.acked if (le, r) == (lease, rank)) for lease, rank, _ in self.acked}

    def _verify_waiting(self, now: Tables, explained: Collection[str]) -> None:
        waiting = {row["job_id"]: row["code"] for row in now["waiting"]}
        waits = [row for row in now["jobs"] if row["state"] in (State.SUBMITTED, State.PENDING)]
        assert waiting.keys() <= {row["id"] for row in waits}
        for row in waits:
            if row["pool"] in explained:
                code = model.waits_for(row, now, self.clock.now)
                assert row["id"] in waiting, f"job {row['id']} waits, and nothing says why"
                assert code is None or waiting[row["id"]] == code

    def _verify_guards(self, now: Tables) -> None:
        """The limits of preemption, from what is in the tables: they hold over restarts and changes of policy too."""
        gave_way: dict[tuple[int, int], list[float]] = defaultdict(list)
        spent: Counter[int] = Counter()
        for lease in now["leases"]:
            if lease["stop_reason"] == "preempted":
                assert lease["stop_at"] - lease["granted_at"] >= GUARDS.min_run_time - 1e-3
                spent[lease["job_id"]] += lease["outcome"] == "preempted"
                if lease["stop_for"] is not None:
                    gave_way[lease["job_id"], lease["stop_for"]].append(lease["stop_at"])
        assert max(spent.values(), default=0) <= (GUARDS.max_preemptions or 0)
        for (victim, winner), times in gave_way.items():
            for ts in times:
                others = [*times, *gave_way.get((winner, victim), ())]
                assert sum(abs(ts - other) < GUARDS.cooldown - 1e-3 for other in others) == 1, "jobs evict each other in turn"

    def _verify_processes(self) -> None:
        """From the workers' side: no job and no GPU is run by two leases at once."""
        alive = {
            (worker.assignment.job, lease) for agent in self.agents.values() for lease, worker in agent.workers.items() if worker.alive
        }
        assert len({job for job, _ in alive}) == len(alive)
        gpus = Counter(
            gpu for agent in self.agents.values() for worker in agent.workers.values() if worker.alive for gpu in worker.assignment.gpus
        )
        assert max(gpus.values(), default=1) == 1

    # -- the end

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._run_to_completion()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    def _run_to_completion(self) -> None:
        """Everybody is well and lets go: every job ends, in a bounded number of rounds."""
        self._act("release", list(self.jobs))
        for agent in self.agents.values():
            self._hello(agent)
            self.store.write(runners.change_node, runners.NodeChange(agent.node, "up", "ann", "resumed"))
            for gpu in agent.health:
                agent.set_health(gpu, "ok")
        self.scheduling.reload()
        self.verify()
        sizes, rounds = self._pool_sizes(), 0
        self._act("cancel", [job.id for job in self.jobs.values() if job.spec.gpus_min > sizes[job.spec.pool]])
        while any(job.state not in FINAL for job in self.jobs.values()):
            rounds += 1
            assert rounds <= 20 + 4 * len(self.jobs), {
                job.id: (job.state, job.spec) for job in self.jobs.values() if job.state not in FINAL
            }
            self._round()
            if rounds % 5 == 0:
                self.verify()
            else:
                self._follow_events()
        self.verify()
        self.scheduling.flush()
        ticks = Counter[str]()
        for decision in self._tables()["decisions"]:
            ticks[decision["pool"]] += decision["ticks"]
        assert ticks == +self.ticks, "ticks are missing from the decisions"

    def _round(self) -> None:
        self.clock.now += 20.0
        look_at_leases(self.store, self.clock.now, self.scheduling.asked_at, self.scheduling.spared, self._tick)
        for pool in POOLS:
            self._tick(pool)
        for agent in self.agents.values():
            agent.poll(self.board)
            agent.reconcile()
            for worker in agent.workers.values():
                if worker.stop is not None:
                    agent.end(worker, "stopped", 75)
                elif worker.state == "running":
                    agent.end(worker, "completed", 0)
                agent.advance(worker)
                agent.advance(worker)
        self._report_together(list(self.agents.values()))


def _raise(view: View) -> Plan:
    raise ZeroDivisionError("a policy is anybody's code")


def accepted(plan: Plan | None, view: View) -> bool:
    if plan is None:
        return False
    try:
        check(plan, view)
    except PlanError:
        return False
    return True


@st.composite
def plans(draw: st.DrawFn, view: View) -> Plan | None:
    """A plan at random: most often sound, sometimes impossible; None: the policy raises."""
    jobs = view.jobs
    flaw = draw(st.sampled_from([*["none"] * 6, "raise", "unknown job", "unknown GPU", "half a gang", "shared", "ended"]))
    if flaw == "raise":
        return None
    allocations: dict[int, Allocation] = {}
    ends = st.sampled_from([None, None, view.now + 20.0, view.now + 500.0])
    mine = {row: draw(st.sampled_from(["keep", "keep", "new", "none"])) for row in range(len(jobs)) if jobs.phase[row] != JobPhase.STOPPING}
    given: set[int] = set()
    for row, wish in mine.items():
        held = tuple(jobs.allocation(row).tolist())
        if wish == "keep" and held:
            allocations[int(jobs.id[row])] = Allocation(held, draw(ends))
            given |= set(held)
    for row, wish in mine.items():
        free = [gpu for gpu in np.flatnonzero(view.gpus.usable).tolist() if gpu not in given]
        low, high = int(jobs.gpus_min[row]), int(jobs.gpus_max[row])
        if wish != "none" and int(jobs.id[row]) not in allocations and len(free) >= low:
            chosen = tuple(draw(st.permutations(free))[: draw(st.integers(low, high))])
            allocations[int(jobs.id[row])] = Allocation(chosen, draw(ends))
            given |= set(chosen)
    groups = _spoil(flaw, allocations, view)
    left_out = [int(jobs.id[row]) for row in mine if int(jobs.id[row]) not in allocations]
    waiting = [Waiting(Reason("resources", "of no use now"), left_out)] if left_out else []
    return plan_of(view, allocations, waiting=waiting, groups=groups)


def _spoil(flaw: str, allocations: dict[int, Allocation], view: View) -> list[Group]:
    jobs = list(allocations)
    match flaw:
        case "unknown job":
            allocations[10**6] = Allocation((0,))
        case "unknown GPU" if jobs:
            allocations[jobs[0]] = Allocation((len(view.gpus),))
        case "half a gang" if jobs:
            allocations[jobs[-1]] = Allocation(allocations[jobs[-1]].gpus[:-1])
        case "ended" if jobs:
            allocations[jobs[0]] = Allocation(allocations[jobs[0]].gpus, view.now - 1.0)
        case "shared" if len(jobs) > 1:
            allocations[jobs[-1]] = allocations[jobs[0]]
            return [Group("packed", (jobs[0], jobs[-1]))]
    return []


def compare(seen: Snapshot, db: Tables, pool: str) -> None:
    """A View is a function of the tables and its time: what the queries answer is what plain loops over the tables do."""
    view = seen.view
    jobs = view.jobs
    naive = model.naive_view(db, pool, view.now)
    gpus = zip(view.gpus.id.tolist(), view.gpus.node.tolist(), view.gpus.index.tolist(), view.gpus.usable.tolist(), strict=True)
    assert list(gpus) == naive["gpus"]
    assert view.nodes.id.tolist() == naive["nodes"]
    assert jobs.id.tolist() == [row["id"] for row in naive["jobs"]]
    for row, expected in enumerate(naive["jobs"]):
        for name in ("phase", "gpus_min", "gpus_max", "priority", "demand", "preemptions"):
            assert getattr(jobs, name)[row] == expected[name], name
        for name in ("submitted_at", "deadline", "attained", "run_time", "lease_time", "remaining", "gpu_memory"):
            assert getattr(jobs, name)[row] == pytest.approx(expected[name], abs=1e-4, nan_ok=True), name
        assert jobs.allocation(row).tolist() == expected["gpus"]
        tiers = slice(jobs.tier_start[row], jobs.tier_start[row + 1])
        assert list(zip(jobs.tier_deadline[tiers].tolist(), jobs.tier_reward[tiers].tolist(), strict=True)) == expected["tiers"]
        assert (seen.lease_id[row], seen.expires_at[row]) == (expected["lease_id"], pytest.approx(expected["expires_at"]))
    for name, codes in (("owner", jobs.user), ("model", jobs.model)):
        assert len({(row[name], code) for row, code in zip(naive["jobs"], codes.tolist(), strict=True)}) == len(set(codes.tolist()))
    waits = {job["id"]: model.waits_for(job, db, view.now) for job in db["jobs"] if job["pool"] == pool and job["finished_at"] is None}
    waits = {job["id"]: waits[job["id"]] for job in db["jobs"] if job["id"] in waits and job["lease_id"] is None}
    assert {job: code for job, code, _ in seen.ineligible} == {job: code for job, code in waits.items() if code}


@pytest.mark.timeout(0 if PROFILE != "short" else 300)
def test_whatever_happens_the_invariants_hold(template: Path) -> None:
    Engine.template = template
    run_state_machine_as_test(Engine, settings=PROFILES[PROFILE])


# -- what the machine has found, each in its smallest form -----------------------------------------------------------------


@pytest.fixture
def engine(template: Path) -> Iterator[Engine]:
    Engine.template = template
    machine = Engine()
    machine.runners_come()
    yield machine
    machine.teardown()


def accept(engine: Engine, *specs: JobSpec) -> list[int]:
    answer = engine.store.submit(submit, engine._request(list(specs)))
    engine._accepted(list(specs), answer)
    engine.verify()
    return [row["id"] for row in answer.result()]


def spec(name: str, **fields: Any) -> JobSpec:
    return JobSpec(name=name, recipe="toy", **fields)


def test_parts_of_a_gang_that_report_in_one_transaction_do_not_undo_it(engine: Engine) -> None:
    accept(engine, spec("gang", gpus_min=6, gpus_max=6))
    engine.tick_all(0.0)
    engine.runners_go_on(3)
    assert engine.jobs[1].state is State.RUNNING


def test_a_lease_told_to_stop_before_its_worker_has_started_takes_its_reports(engine: Engine) -> None:
    (job,) = accept(engine, spec("late"))
    engine.tick_all(0.0)
    agent = engine.agents["n1"] if engine._tables()["lease_gpus"][0]["node_id"] == "n1" else engine.agents["n2"]
    agent.poll(engine.board)
    agent.reconcile()
    agent.advance(agent.workers[1])
    engine._act("cancel", [job])
    engine._report_together([agent])
    engine.verify()
    assert engine.jobs[job].state is State.SUSPENDING


def test_what_a_runner_has_not_taken_up_when_it_leaves_goes_back_to_the_queue(engine: Engine) -> None:
    (job,) = accept(engine, spec("stranded", gpus_min=4, gpus_max=4))
    engine.tick_all(0.0)
    agent = engine.agents["n1"]
    message = agent.report(left=True)
    engine._taken(message, engine.store.submit(runners.report, message), agent)
    agent.die(host=False)
    engine.verify()
    assert engine.jobs[job].state is State.PENDING


def test_a_displaced_job_and_the_one_that_waits_for_it_both_say_why(engine: Engine) -> None:
    (first,) = accept(engine, spec("first", gpus_min=2, gpus_max=2, pool="small"))
    engine.tick_all(0.0)
    (second,) = accept(engine, spec("second", gpus_min=2, gpus_max=2, pool="small", priority=1))
    engine.tick_all(31.0)
    engine.verify(explained=["small"])
    assert (engine.jobs[first].state, engine.jobs[second].state) == (State.SUSPENDING, State.PENDING)
    engine.runners_go_on(1)
    engine.tick_all(0.0)
    assert (engine.jobs[first].state, engine.jobs[second].state) == (State.PENDING, State.ASSIGNED)


def test_a_repeated_submission_is_answered_though_it_could_not_be_accepted_now(engine: Engine) -> None:
    first, second = (spec("a", idempotency_key="a"), spec("b", idempotency_key="b", after=(Dependency("a", "any"), Dependency("c"))))
    accept(engine, spec("c", hold=True))
    jobs = accept(engine, first, second)
    engine._act("cancel", [1])
    assert accept(engine, first, second) == jobs


def test_new_jobs_of_a_repeated_submission_wait_for_the_jobs_that_were_there(engine: Engine) -> None:
    (first,) = accept(engine, spec("a", idempotency_key="a", hold=True))
    accept(engine, spec("a"))  # newer, and of the same name
    _, needy = accept(engine, spec("a", idempotency_key="a", hold=True), spec("b", after=(Dependency("a"),)))
    assert engine.jobs[needy].needs == [(first, "ok")]
    engine._act("cancel", [first])
    engine.verify()
    assert engine.jobs[needy].state is State.CANCELLED
    answer = engine.store.submit(submit, engine._request([spec("a", idempotency_key="a", hold=True), spec("c", after=(Dependency("a"),))]))
    with pytest.raises(UsageError, match="could never start"):
        answer.result()


def test_a_job_and_the_one_that_needs_it_are_cancelled_by_one_request(engine: Engine) -> None:
    jobs = accept(engine, spec("a"), spec("b", after=(Dependency("a"),)))
    engine._act("cancel", jobs)
    engine.verify()
    assert [engine.jobs[job].state for job in jobs] == [State.CANCELLED] * 2
