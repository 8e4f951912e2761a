"""A store with one runner and a pool whose policy says what a test wants, without any process: what tests of plans and leases share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from stoker.engine.config import Config, Guards, PolicyDefault
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.board import Board
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Report, WorkerUpdate
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import JobSpec, Provenance, Stop, Submission
from stoker.engine.store.store import Store
from stoker.engine.tasks import Tasks
from stoker.policies.contract import Allocation, Plan, View


class Says:
    """A policy that answers with the plan that it was told."""

    def __init__(self, plan: Plan) -> None:
        self.answer = plan

    def plan(self, view: View) -> Plan:
        return self.answer


def spec(name: str, **fields: Any) -> JobSpec:
    return JobSpec(name=name, recipe="toy", params={"model": name}, stop=Stop(iterations=100), **fields)


def _hello(node: str, slots: int, memory: int) -> Hello:
    gpus = [GpuInfo(id=f"{node}/cpu{i}", index=i, kind="cpu", name="cpu", memory=memory) for i in range(slots)]
    return Hello(protocol=VERSION, version="t", node=node, host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
                 pool="default", gpus=gpus, leases=[])  # fmt: skip


class Host:
    """A runner with some slots, a pool whose policy says what the test wants, and jobs of one model each."""

    def __init__(self, store: Store, slots: int = 2, memory: int = 0, nodes: int = 1) -> None:
        self.store = store
        for node in range(nodes, 0, -1):
            self.session = store.write(runners.hello, _hello(f"n{node}", slots, memory))  # of the first one: the others are only there
        self.scheduling = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo"), guards=Guards(min_run_time=0.0)))
        self.scheduling.reload()
        self.board = Board(store)

    def submit(self, name: str, **fields: Any) -> int:
        job: int = self.store.write(
            submit, SubmitRequest(Submission(jobs=[spec(name, **fields)], provenance=Provenance(argv=[], cwd="/")), "ann")
        )[0]["id"]
        return job

    def tick(self, allocations: Mapping[int, Allocation], **rest: Any) -> str:
        """The outcome of one decision."""
        self.scheduling._pools["default"].policy = Says(Plan(allocations, **rest))
        self.scheduling.tick("default")
        return str(self.rows("SELECT outcome FROM decisions ORDER BY id DESC LIMIT 1")[0][0])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.store.read() as con:
            return con.execute(query).fetchall()

    def shares(self) -> list[tuple[int, str, str]]:
        return self.rows("SELECT job_id, gpu_id, share FROM live_shares ORDER BY 1, 2")

    def report(self, *updates: WorkerUpdate, **more: Any) -> None:
        answer = self.store.write(runners.report, Report(node="n1", session=self.session, workers=list(updates), **more))
        assert not answer.stale

    def lease(self, job: int) -> int:
        return int(self.rows(f"SELECT max(id) FROM leases WHERE job_id = {job}")[0][0])

    def runs(self, *jobs: int) -> None:
        self.report(*(WorkerUpdate(lease=self.lease(job), state="running", ts=time.time(), run_dir="/r") for job in jobs))

    def ends(self, job: int, outcome: Any = "completed") -> None:
        self.report(WorkerUpdate(lease=self.lease(job), state="exited", ts=time.time(), exit_code=0, outcome=outcome))

    def assigned(self) -> dict[int, tuple[list[str], str]]:
        """What the runner is told: job to its GPUs and how it shares them."""
        self.board.refresh()
        answer = asyncio.run(self.board.poll("n1", -1, 0.0))
        return {one.job: (list(one.gpus), one.share) for one in answer.leases}
