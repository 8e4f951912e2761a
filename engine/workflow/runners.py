"""What runners say: they register, they report; what follows for leases and jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Stale, StokerError, UsageError
from ..protocol import VERSION, Ack, Hello, Records, Report, Sample, WorkerUpdate
from ..states import State
from ..store.transaction import Transaction
from .leases import Stop, end, stop
from .moves import Move, move
from .outcomes import End

#: ends of workers from the worst: the worst part decides what became of a gang
SEVERITY = ("unkillable", "lost", "oom", "hang", "start-failed", "failed", "stopped", "completed")


def hello(tx: Transaction, batch: Sequence[Hello]) -> Sequence[int | StokerError]:
    """Register runners; answers with their sessions. Leases of theirs that they no longer know are lost."""
    answers: list[int | StokerError] = []
    for message in batch:
        if message.protocol != VERSION:
            answers.append(
                UsageError(
                    f"runner {message.node} speaks protocol {message.protocol}, the daemon {VERSION}: install the same version of stoker"
                )
            )
            continue
        known = tx.objects("node", message.node)
        session = (known[0]["session"] if known else 0) + 1
        _register(tx, message, session, known[0] if known else None)
        gone = [row[0] for row in tx.execute("forgotten_leases", message.node, list(message.leases))]
        _exit(tx, {(lease, message.node): _lost(lease, tx.now, "its runner has lost its run directory") for lease in gone})
        answers.append(session)
    tx.touch("nodes", "leases", "queue")
    return answers


def _register(tx: Transaction, message: Hello, session: int, known: dict[str, Any] | None) -> None:
    kept = known["state"] if known and known["state"] in ("draining", "drained") else "up"
    node = {"id": message.node, "host": message.host, "boot_id": message.boot_id, "pid": message.pid, "pid_started": message.pid_started,
            "home": message.home, "version": message.version, "session": session, "state": kept, "address": message.address,
            "joined_at": tx.now, "last_seen": tx.now}  # fmt: skip
    tx.upsert("nodes", ["id"], [node])
    offered = [{"id": gpu.id, "node_id": message.node, "idx": gpu.index, "pool": message.pool, "kind": gpu.kind, "name": gpu.name,
                "memory": gpu.memory, "health": gpu.health, "note": gpu.note} for gpu in message.gpus]  # fmt: skip
    missing = {row[0] for row in tx.execute("node_gpus", message.node)} - {gpu.id for gpu in message.gpus}
    tx.update("gpus", ["id"], [{"id": gpu, "health": "missing", "note": "its runner no longer finds it"} for gpu in missing])
    tx.upsert("gpus", ["id"], offered)
    tx.event("node.up", f"runner:{message.node}", node=message.node, before=known["state"] if known else None, after=kept,
             detail={"version": message.version, "gpus": len(offered), "session": session})  # fmt: skip


def report(tx: Transaction, batch: Sequence[Report]) -> Sequence[Ack | StokerError]:
    """Take what runners report: records, workers' states, samples, health of GPUs. All of a report, or Stale."""
    sessions = dict(tx.execute("sessions"))
    current = [message for message in batch if sessions.get(message.node) == message.session]
    live = _live(tx, current)
    stale = _take_records(tx, [(m.node, records) for m in current for records in m.records], live)
    updates = [(m.node, update) for m in current for update in m.workers]
    for node, update in updates:
        if (update.lease, node) not in live:
            stale.setdefault(node, set()).add(update.lease)
    _take_updates(tx, [(node, update) for node, update in updates if (update.lease, node) in live], live)
    _take_samples(tx, [(m.node, sample) for m in current for sample in m.samples])
    health = [{"id": gpu.id, "health": gpu.health, "note": gpu.note} for m in current for gpu in m.gpus]
    for message in current:
        for gpu in message.gpus:
            tx.event("gpu.health", f"runner:{message.node}", node=message.node, after=gpu.health, reason=gpu.note, detail={"gpu": gpu.id})
            tx.touch("queue")
        if message.left:
            _leave(tx, message.node)
    tx.update("gpus", ["id"], health)
    return [
        Ack(stale=sorted(stale.get(message.node, ())))
        if sessions.get(message.node) == message.session
        else Stale(f"runner {message.node}: another agent has registered under this name since")
        for message in batch
    ]


@dataclass(slots=True)
class _Lease:
    """A live lease with its job, one object for all its parts."""

    job: int
    job_state: State
    state: str
    started: bool


@dataclass(slots=True)
class _Part:
    """The part of a live lease on one node."""

    lease: _Lease
    state: str  #: of the worker


def _live(tx: Transaction, messages: Sequence[Report]) -> dict[tuple[int, str], _Part]:
    wanted = {r.lease for m in messages for r in m.records} | {u.lease for m in messages for u in m.workers}
    parts: dict[tuple[int, str], _Part] = {}
    leases: dict[int, _Lease] = {}
    for number, node, job, worker, job_state, state, started in tx.execute("live_parts", sorted(wanted)) if wanted else ():
        lease = leases.setdefault(number, _Lease(job, State(job_state), state, started))
        parts[number, node] = _Part(lease, worker)
    return parts


def _take_records(tx: Transaction, batch: Sequence[tuple[str, Records]], live: Mapping[tuple[int, str], _Part]) -> dict[str, set[int]]:
    """Store records that are new; answers with the leases of each node that are no longer its own."""
    stale: dict[str, set[int]] = {}
    marks = {(lease, rank): seq for lease, rank, seq in tx.execute("marks", sorted({r.lease for _, r in batch}))} if batch else {}
    metrics: list[dict[str, Any]] = []
    moved: dict[tuple[int, int], int] = {}
    latest: dict[int, dict[str, Any]] = {}
    for node, records in batch:
        part = live.get((records.lease, node))
        if part is None:
            stale.setdefault(node, set()).add(records.lease)
            continue
        key = (records.lease, records.rank)
        for record in records.records:
            if record.seq <= moved.get(key, marks.get(key, 0)):
                continue  # sent again after a lost answer
            moved[key] = record.seq
            metrics += [
                {"job_id": part.lease.job, "lease_id": records.lease, "rank": records.rank, "seq": record.seq, "ts": record.ts,
                 "step": record.step, "name": name, "value": value}
                for name, value in record.values.items()
            ]  # fmt: skip
            if records.rank == 0:
                _fold(latest.setdefault(part.lease.job, {"lease": records.lease, "values": {}}), record)
    tx.insert("metrics", metrics)
    tx.upsert("report_marks", ["lease_id", "rank"], [{"lease_id": k[0], "rank": k[1], "seq": seq} for k, seq in moved.items()])
    _progress(tx, latest)
    return stale


def _fold(into: dict[str, Any], record: Any) -> None:
    into.setdefault("first", (record.ts, record.step))
    into["last"] = (record.ts, record.step)
    into["values"].update(record.values)
    for name in ("total", "checkpoint", "memory"):
        if getattr(record, name) is not None:
            into[name] = getattr(record, name)


def _progress(tx: Transaction, latest: Mapping[int, dict[str, Any]]) -> None:
    """Bring `progress` up to date with the newest records of each job."""
    known = {row["id"]: row for row in tx.objects("progress_of", list(latest))} if latest else {}
    rows = []
    for job, new in latest.items():
        old = known[job]
        ts, step = new["last"]
        values = new["values"]
        metric = old["stop_metric"]
        rows.append(
            {
                "job_id": job,
                "step": step,
                "total_steps": new.get("total", old["total_steps"]),
                "loss": values.get("loss", old["loss"]),
                "metric": values.get(metric, old["metric"]) if metric else old["metric"],
                "seconds_per_step": _pace(old, new),
                "checkpoint_step": new.get("checkpoint", old["checkpoint_step"]),
                "peak_memory": max(filter(None, (new.get("memory"), old["peak_memory"])), default=None),
                "updated_at": ts,
            }
        )
    tx.upsert("progress", ["job_id"], rows)


def _pace(old: Mapping[str, Any], new: Mapping[str, Any]) -> float | None:
    """Seconds a step, moving average; measured within one lease only, so that a stop between two is not counted."""
    ts, step = new["last"]
    since = (old["updated_at"], old["step"]) if old["lease_id"] == new["lease"] and old["step"] is not None else new["first"]
    if since[0] is None or step <= since[1] or ts <= since[0]:
        return None if old["seconds_per_step"] is None else float(old["seconds_per_step"])
    pace = (ts - since[0]) / (step - since[1])
    return float(pace) if old["seconds_per_step"] is None else float(0.7 * old["seconds_per_step"] + 0.3 * pace)


#: how far a worker or a lease has come
REACHED = {"granted": 0, "starting": 1, "running": 2, "stopping": 3, "exited": 4}


def _take_updates(tx: Transaction, batch: Sequence[tuple[str, WorkerUpdate]], live: dict[tuple[int, str], _Part]) -> None:
    workers: dict[tuple[int, str], dict[str, Any]] = {}
    leases: dict[int, dict[str, Any]] = {}
    moves: list[Move] = []
    exits: dict[tuple[int, str], WorkerUpdate] = {}
    for node, update in batch:
        part = live[update.lease, node]
        if REACHED[update.state] <= REACHED[part.state]:
            continue  # sent again after a lost answer
        part.state = update.state
        if update.state == "exited":
            exits[update.lease, node] = update
            continue
        row = workers.setdefault((update.lease, node), {"lease_id": update.lease, "node_id": node})
        row.update(state=update.state, pid=update.pid, pid_started=update.pid_started, boot_id=update.boot_id, run_dir=update.run_dir)
        if update.state == "running":
            row["started_at"] = update.ts
        if changes := _advance(update, part.lease):
            leases.setdefault(update.lease, {"id": update.lease}).update(changes)
        moves += _follow(tx, node, update, part.lease)
    tx.update("workers", ["lease_id", "node_id"], list(workers.values()))
    tx.update("leases", ["id"], list(leases.values()))
    move(tx, moves)
    _exit(tx, exits)


def _advance(update: WorkerUpdate, lease: _Lease) -> dict[str, Any]:
    """What changes in a lease: it follows the first of its workers that gets there, and never goes back."""
    changes: dict[str, Any] = {}
    if update.state == "running" and not lease.started:
        lease.started, changes["started_at"] = True, update.ts
    if REACHED[update.state] > REACHED[lease.state]:
        lease.state = changes["state"] = update.state
    return changes


def _follow(tx: Transaction, node: str, update: WorkerUpdate, lease: _Lease) -> list[Move]:
    """The job, too, follows the first of its workers, unless it is being stopped."""
    to = {"starting": State.STARTING, "running": State.RUNNING}[update.state]
    if lease.job_state not in (State.ASSIGNED, State.STARTING) or lease.job_state is to:
        return []
    lease.job_state = to
    changes = {"first_start_at": update.ts} if to is State.RUNNING and not tx.execute("has_started", lease.job) else {}
    return [Move(lease.job, to, f"on {node}", f"runner:{node}", update.lease, changes)]


def _exit(tx: Transaction, exits: Mapping[tuple[int, str], WorkerUpdate]) -> None:
    """Workers are gone; leases all of whose workers are gone end, as the worst of them did."""
    if not exits:
        return
    tx.update(
        "workers",
        ["lease_id", "node_id"],
        [
            {"lease_id": lease, "node_id": node, "state": "exited", "ended_at": update.ts, "exit_code": update.exit_code,
             "outcome": update.outcome, "message": update.message}
            for (lease, node), update in exits.items()
        ],
    )  # fmt: skip
    ends = {}
    for lease, outcomes, codes, messages, why in tx.execute("finished_leases", sorted({lease for lease, _ in exits})):
        worst = min(range(len(outcomes)), key=lambda i: SEVERITY.index(outcomes[i]))
        ends[lease] = End(outcomes[worst], codes[worst], why, messages[worst])
    end(tx, ends)
    # The rest of a gang waits for the part that is gone, for minutes (torch's exit barrier): end it too.
    broken = {lease for (lease, _), update in exits.items() if update.outcome != "completed"} - ends.keys()
    stop(tx, [Stop(lease, "partner", "daemon") for lease in sorted(broken)])


def _lost(lease: int, now: float, why: str) -> WorkerUpdate:
    message = f"{why}; the job goes on from its last checkpoint"
    return WorkerUpdate(lease=lease, state="exited", ts=now, outcome="lost", message=message)


def _take_samples(tx: Transaction, batch: Sequence[tuple[str, Sample]]) -> None:
    tx.insert(
        "telemetry",
        [
            {"ts": s.ts, "gpu_id": s.gpu, "node_id": node, "lease_id": s.lease, "utilisation": s.utilisation,
             "memory_used": s.memory_used, "power": s.power, "temperature": s.temperature}
            for node, s in batch
        ],
    )  # fmt: skip


def _leave(tx: Transaction, node: str) -> None:
    tx.update("nodes", ["id"], [{"id": node, "state": "stopped"}])
    tx.event("node.stopped", f"runner:{node}", node=node, after="stopped", reason="its agent has left")
    tx.touch("nodes", "queue")


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of a runner's state, by a person or by the daemon's watch."""

    node: str
    state: str
    actor: str
    reason: str


def change_node(tx: Transaction, batch: Sequence[NodeChange]) -> Sequence[None]:
    """Set the states of runners. ``gone``: every worker there is declared lost; the caller has made sure that they are."""
    for change in batch:
        tx.event("node.state", change.actor, node=change.node, after=change.state, reason=change.reason)
        tx.update("nodes", ["id"], [{"id": change.node, "state": change.state}])
        if change.state == "gone":
            gone = [row[0] for row in tx.execute("node_leases", change.node)]
            _exit(tx, {(lease, change.node): _lost(lease, tx.now, f"runner {change.node} was declared dead") for lease in gone})
    tx.touch("nodes", "leases", "queue")
    return [None] * len(batch)


def seen(tx: Transaction, batch: Sequence[Mapping[str, float]]) -> Sequence[None]:
    """When runners were last heard: node to time."""
    last: dict[str, float] = {}
    for heard in batch:
        last.update(heard)
    tx.update("nodes", ["id"], [{"id": node, "last_seen": ts} for node, ts in last.items()])
    return [None] * len(batch)
