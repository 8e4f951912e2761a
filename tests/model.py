"""What the property tests run the engine against: a clock to turn, runners that are only messages, and a View built naively."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
from stoker.engine.fleet.board import Board
from stoker.engine.protocol import (
    VERSION,
    Assignment,
    GpuInfo,
    Hello,
    Record,
    Records,
    Report,
    WorkerUpdate,
)
from stoker.engine.store.store import Store
from stoker.policies.contract import Plan, View


class Clock:
    """Time that passes only when told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Inert:
    """The daemon's periodic tasks, none of which runs by itself: the tests call what they want to happen."""

    def every(self, name: str, interval: float, work: Callable[[], object], *, soon: bool = False) -> None:
        pass

    def wake(self, name: str) -> None:
        pass

    def wake_at(self, name: str, moment: float) -> None:
        pass


@contextlib.contextmanager
def one_transaction(store: Store) -> Iterator[None]:
    """What is submitted to the store inside is committed together: the writer is kept busy until the end of the block."""
    busy, go = threading.Event(), threading.Event()

    def hold(con: Any) -> None:
        busy.set()
        go.wait()

    holder = threading.Thread(target=store.exclusive, args=[hold])
    holder.start()
    busy.wait()
    try:
        yield
    finally:
        go.set()
        holder.join()


#: how a worker may end, with its exit code; the first is the most frequent
ENDS = [("completed", 0), ("failed", 1), ("failed", 3), ("failed", -15), ("oom", 1), ("hang", -9), ("lost", None), ("start-failed", None)]


@dataclass(repr=False)
class Worker:
    """One part of a lease on its node: a process with its run directory."""

    assignment: Assignment
    ranks: tuple[int, ...]
    state: str = "taken"  #: taken, starting, running, exited
    since: float = 0.0
    outcome: str | None = None
    exit_code: int | None = None
    stop: str | None = None
    told: str = "taken"  #: last state that was acknowledged
    written: dict[int, int] = field(default_factory=dict)  #: rank to records in its file
    acked: dict[int, int] = field(default_factory=dict)
    step: int = 0
    disowned: bool = False

    def __repr__(self) -> str:
        return f"worker of lease {self.assignment.lease}, {self.state}"

    @property
    def alive(self) -> bool:
        return self.state in ("starting", "running")


ORDER = ["taken", "starting", "running", "exited"]


@dataclass(repr=False)
class Agent:
    """A runner as `runners.agent` behaves towards the daemon; what survives its own death are its workers' files."""

    node: str
    pool: str
    slots: int
    skew: float  #: of its host's clock, seconds
    clock: Clock
    up: bool = False
    session: int = 0
    boot: int = 0
    workers: dict[int, Worker] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)  #: leases whose end was acknowledged
    answer: list[Assignment] | None = None  #: of the last poll, not yet acted on
    desired: dict[int, Assignment] | None = None
    health: dict[str, str] = field(default_factory=dict)
    unsaid: set[str] = field(default_factory=set)  #: GPUs whose health has changed since it was last acknowledged

    def __post_init__(self) -> None:
        self.health = {f"{self.node}/cpu{i}": "ok" for i in range(self.slots)}

    def __repr__(self) -> str:
        return self.node

    @property
    def now(self) -> float:
        return self.clock() + self.skew

    def hello(self) -> Hello:
        return Hello(protocol=VERSION, version="t", node=self.node, host=self.node, boot_id=f"boot{self.boot}", pid=1, pid_started=1.0,
                     home="/h", address=self.node, pool=self.pool, gpus=[self._gpu(gpu) for gpu in self.health],
                     leases=sorted(self.workers))  # fmt: skip

    def _gpu(self, gpu: str) -> GpuInfo:
        return GpuInfo(id=gpu, index=int(gpu[-1]), kind="cpu", name="cpu", health=self.health[gpu])  # type: ignore[arg-type]

    def registered(self, session: int) -> None:
        self.up, self.session, self.answer, self.desired = True, session, None, None
        self.unsaid.clear()

    def die(self, *, host: bool) -> None:
        """kill -9 of the agent; with ``host``, a reboot: every process and, with a fresh disk, every run directory is gone."""
        self.up = False
        if host:
            self.boot += 1
            self.workers.clear()

    def poll(self, board: Board) -> None:
        self.answer = asyncio.run(board.poll(self.node, -1, 0.0)).leases

    def reconcile(self) -> None:
        """Act on the last answer: take up what is new, stop what is marked, kill what is not listed."""
        if self.answer is not None:
            self.desired, self.answer = {a.lease: a for a in self.answer}, None
        if self.desired is None:
            return
        for lease, assignment in self.desired.items():
            if lease not in self.workers and lease not in self.closed:
                self.workers[lease] = Worker(assignment, _ranks(assignment))
        for lease, worker in self.workers.items():
            wanted = self.desired.get(lease)
            worker.stop = "fenced" if wanted is None or worker.disowned else wanted.stop
            if worker.stop is not None and (worker.state == "taken" or worker.stop == "fenced"):
                self.end(worker, "stopped", None)

    def may_start(self, worker: Worker) -> bool:
        """Its GPUs are free of workers that are still leaving."""
        others = {gpu for w in self.workers.values() if w is not worker and w.alive for gpu in w.assignment.gpus}
        return worker.state == "taken" and worker.stop is None and others.isdisjoint(worker.assignment.gpus)

    def advance(self, worker: Worker) -> None:
        if self.may_start(worker):
            worker.state = "starting"
        elif worker.state == "starting":
            worker.state, worker.since = "running", self.now
        elif worker.state == "running":
            self.write(worker)

    def write(self, worker: Worker, count: int = 2) -> None:
        """Records into the report files of its ranks."""
        worker.step += count
        for rank in worker.ranks:
            worker.written[rank] = worker.written.get(rank, 0) + count

    def end(self, worker: Worker, outcome: str, code: int | None) -> None:
        if worker.state != "exited":
            worker.state, worker.outcome, worker.exit_code = "exited", outcome, code
            if outcome == "unkillable":
                for gpu in worker.assignment.gpus:
                    self.set_health(gpu, "quarantined")

    def set_health(self, gpu: str, health: str) -> None:
        self.health[gpu] = health
        self.unsaid.add(gpu)

    def report(self, *, left: bool = False) -> Report:
        workers, records = [], []
        for lease, worker in self.workers.items():
            for rank, written in worker.written.items():
                start = worker.acked.get(rank, 0)
                if written > start:
                    records.append(
                        Records(lease=lease, rank=rank, records=[_record(seq, self.now) for seq in range(start + 1, written + 1)])
                    )
            workers += [self._update(lease, worker, state) for state in _unsaid(worker)]
        gpus = [self._gpu(gpu) for gpu in sorted(self.unsaid)]
        return Report(node=self.node, session=self.session, workers=workers, records=records, gpus=gpus, left=left)

    def _update(self, lease: int, worker: Worker, state: str) -> WorkerUpdate:
        common = {"lease": lease, "state": state, "ts": worker.since if state == "running" else self.now}
        if state == "exited":
            return WorkerUpdate(**common, exit_code=worker.exit_code, outcome=worker.outcome)
        return WorkerUpdate(**common, pid=7, pid_started=1.0, boot_id=f"boot{self.boot}", run_dir="/r")

    def acknowledged(self, report: Report, stale: Sequence[int]) -> None:
        for records in report.records:
            if records.lease in self.workers:
                acked = self.workers[records.lease].acked
                acked[records.rank] = max(acked.get(records.rank, 0), records.records[-1].seq)
        for update in report.workers:
            if (worker := self.workers.get(update.lease)) and ORDER.index(update.state) > ORDER.index(worker.told):
                worker.told = update.state
        self.unsaid -= {gpu.id for gpu in report.gpus if gpu.health == self.health[gpu.id]}
        for lease in stale:
            if lease in self.workers:
                self.workers[lease].disowned = True
                self.end(self.workers[lease], "stopped", None)
        for lease, worker in list(self.workers.items()):
            if worker.told == "exited" or (worker.disowned and worker.state == "exited"):
                self.closed.add(lease)
                del self.workers[lease]


def _unsaid(worker: Worker) -> list[str]:
    """The states to report: those since the last acknowledged one, as far as the worker went through them."""
    states = ORDER[ORDER.index(worker.told) + 1 : ORDER.index(worker.state) + 1]
    return [state for state in states if state != "running" or worker.since]


def _ranks(assignment: Assignment) -> tuple[int, ...]:
    first = 0 if assignment.node_rank == 0 else assignment.world_size - len(assignment.gpus)
    return tuple(range(first, first + len(assignment.gpus)))


def _record(seq: int, now: float) -> Record:
    return Record(seq=seq, ts=now, step=seq, values={"loss": 1.0 / seq})


# -- a View, built by hand ------------------------------------------------------------------------------------------------


def tables(con: duckdb.DuckDBPyConnection, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Whole tables, times as seconds since the epoch."""
    found = {}
    for name in names:
        result = con.execute(f'SELECT * FROM "{name}"')
        columns = [column[0] for column in result.description]
        found[name] = [dict(zip(columns, map(_plain, row), strict=True)) for row in result.fetchall()]
    return found


def _plain(value: Any) -> Any:
    import datetime

    return value.replace(tzinfo=datetime.UTC).timestamp() if isinstance(value, datetime.datetime) else value


def naive_view(db: dict[str, list[dict[str, Any]]], pool: str, now: float) -> dict[str, Any]:
    """What `engine.view.snapshot` has to answer, by loops over the tables: the reference it is compared with."""
    nodes = {node["id"]: node for node in db["nodes"]}
    shown = sorted(
        (gpu["node_id"], gpu["idx"], gpu)
        for gpu in db["gpus"]
        if gpu["pool"] == pool and gpu["health"] != "missing" and nodes[gpu["node_id"]]["state"] not in ("gone", "stopped")
    )
    gpus = [gpu for _, _, gpu in shown]
    row_of = {gpu["id"]: row for row, gpu in enumerate(gpus)}
    names = sorted({gpu["node_id"] for gpu in gpus})
    leases = {lease["id"]: lease for lease in db["leases"]}
    jobs = [job for job in db["jobs"] if job["pool"] == pool and _schedulable(job, db, now)]
    jobs.sort(key=lambda job: (job["submitted_at"], job["id"]))
    rows = []
    for job in jobs:
        lease = leases.get(job["lease_id"])
        running = max(0.0, now - lease["started_at"]) if lease and lease["started_at"] is not None else 0.0
        held = sorted((g["node_id"], g["gpu_id"]) for g in db["lease_gpus"] if lease and g["lease_id"] == lease["id"])
        remaining, memory = _estimate(job, db, job["run_time"] + running)
        rows.append(
            {
                "id": job["id"],
                "submitted_at": job["submitted_at"],
                "phase": 0 if lease is None else 2 if job["state"] == "suspending" else 1,
                "gpus_min": job["gpus_min"],
                "gpus_max": job["gpus_max"],
                "priority": job["priority"],
                "demand": ["best-effort", "soft", "strict"].index(job["demand"]),
                "deadline": math.inf if job["deadline"] is None else job["deadline"],
                "attained": job["attained"] + running * (lease["gpu_count"] if lease else 0),
                "run_time": job["run_time"] + running,
                "lease_time": max(0.0, now - lease["granted_at"]) if lease else 0.0,
                "remaining": remaining,
                "gpu_memory": memory,
                "preemptions": job["preemptions"],
                "lease_id": lease["id"] if lease else 0,
                "expires_at": math.inf if lease is None or lease["expires_at"] is None else lease["expires_at"],
                "gpus": [row_of[gpu] for _, gpu in held if gpu in row_of],
                "tiers": sorted((t["deadline"], t["reward"]) for t in db["tiers"] if t["job_id"] == job["id"]),
                "owner": job["owner"],
                "model": job["model"],
            }
        )
    return {
        "gpus": [
            (g["id"], names.index(g["node_id"]), g["idx"], g["health"] == "ok" and nodes[g["node_id"]]["state"] == "up") for g in gpus
        ],
        "nodes": names,
        "jobs": rows,
    }


def _schedulable(job: dict[str, Any], db: dict[str, list[dict[str, Any]]], now: float) -> bool:
    if job["finished_at"] is not None:
        return False
    if job["lease_id"] is not None:
        return True
    return _ready(job, now) and not _capped(job, db, now)


def _ready(job: dict[str, Any], now: float) -> bool:
    return job["state"] == "pending" and not job["held"] and (job["not_before"] is None or job["not_before"] <= now)


def _capped(job: dict[str, Any], db: dict[str, list[dict[str, Any]]], now: float) -> bool:
    """The tasks of its array that run, and those that are ready and come before it, use up the cap."""
    if job["array_cap"] is None:
        return False
    tasks = [other for other in db["jobs"] if other["array_id"] == job["array_id"]]
    running = sum(other["lease_id"] is not None for other in tasks)
    before = sum(other["id"] < job["id"] and other["lease_id"] is None and _ready(other, now) for other in tasks)
    return running + before >= job["array_cap"]


def waits_for(job: dict[str, Any], db: dict[str, list[dict[str, Any]]], now: float) -> str | None:
    """The word for what a job without a lease waits for, None: for GPUs."""
    if job["held"]:
        return "held"
    if any(not need["met"] for need in db["dependencies"] if need["job_id"] == job["id"]):
        return "dependency"
    if job["not_before"] is not None and job["not_before"] > now:
        return "backoff"
    return "cap" if _capped(job, db, now) else None


def _estimate(job: dict[str, Any], db: dict[str, list[dict[str, Any]]], ran: float) -> tuple[float, float]:
    """Seconds of work left and bytes of GPU memory: by its own pace, else by that of its model, else as the submitter says."""
    progress: dict[str, Any] = next((p for p in db["progress"] if p["job_id"] == job["id"]), {})
    known = [p for p in db["profiles"] if p["model"] == job["model"] and p["gpu_count"] == job["gpus_min"]]
    paces = [p["seconds_per_step"] for p in known if p["seconds_per_step"] is not None]
    durations = [p["duration"] for p in known if p["duration"] is not None]
    memories = [p["peak_memory"] for p in known if p["peak_memory"] is not None]
    memory = float(job["gpu_memory"] or max(memories, default=0))
    total = progress.get("total_steps") or job["total_steps"]
    pace = progress.get("seconds_per_step") or min(paces, default=None)
    if total is not None and pace is not None:
        return max(0.0, (total - progress.get("step", 0)) * pace), memory
    duration = job["est_duration"] if job["est_duration"] is not None else float(np.mean(durations)) if durations else None
    return (math.nan if duration is None else max(0.0, duration - ran)), memory


# -- a policy that does what the test says -------------------------------------------------------------------------------


@dataclass
class Scripted:
    """Answers with what it was given, or raises it; ``meanwhile`` happens while it plans, after the View was taken."""

    answer: Callable[[View], Plan]
    meanwhile: Callable[[], None]

    def plan(self, view: View) -> Plan:
        self.meanwhile()
        return self.answer(view)
