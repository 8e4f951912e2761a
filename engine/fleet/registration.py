"""Messages of runners, registrations and reports, and their effects on leases and jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ..adapters.stored_adapters import keep as keep_adapters
from ..errors import Conflict, Stale, StokerError, UsageError
from ..estimation.speeds import MeasuredSpeed, learn_speeds
from ..jobs.begin_from import first_saved, trained_together
from ..jobs.leases import EXCLUSIVE, HOST_LACKS, LeaseStop, end, exclude, stop
from ..jobs.moves import Move, move
from ..jobs.outcomes import End
from ..jobs.pipeline_steps import rows_of
from ..jobs.states import State
from ..protocol import (
    MOST_WORDS,
    VERSION,
    Ack,
    Begun,
    ForkServer,
    Hello,
    LeftAdapter,
    Record,
    Records,
    Report,
    Sample,
    WorkerUpdate,
)  # fmt: skip
from ..store.transaction import Transaction
from .job_files import drop_files, take_files
from .offers import require_free
from .places_told import saved_on, take_place

T = TypeVar("T", bound=msgspec.Struct)
CHANGE_OF_PACE = 0.1  #: relative change of a pace from which on expected starts are computed anew at once
CLOCK_TOLERANCE = 1.0  #: seconds by which a runner's clock may differ from ours, travel time included: its times then count as ours
#: ends of workers from the worst: the worst part decides the end of a gang
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
        try:
            require_free(tx, message)
        except Conflict as conflict:
            answers.append(conflict)
            continue
        found = tx.objects("node", message.node)
        known = found[0] if found else None
        if known and known["state"] not in ("stopped", "gone") and (known["host"], known["home"]) != (message.host, message.home):
            # Taking over the name would declare its jobs lost while they run: they would be started a second time.
            answers.append(
                Conflict(
                    f"runner {message.node} is {known['home']} on {known['host']}: choose another --node; if that one is no more, "
                    f"'stoker runner forget {message.node}' first"
                )
            )
            continue
        session = (known["session"] if known else 0) + 1
        _register(tx, message, session, known)
        gone = [row[0] for row in tx.execute("forgotten_leases", message.node, list(message.leases))]
        last_seen = known["last_seen"] if known else tx.now
        _exit(tx, {(lease, message.node): _lost(lease, last_seen, "its runner has lost its run directory") for lease in gone})
        _try_again(tx, message.node)
        tx.update("jobs", ["id"], [{"id": job, "not_sent": None} for (job,) in tx.execute("not_sent_from", message.node)])
        answers.append(session)
    tx.touch("nodes", "leases", "queue")
    return answers


def _register(tx: Transaction, message: Hello, session: int, known: dict[str, Any] | None) -> None:
    # A drain by a person stays; one of its own ended with the runner that handed its node back.
    handed_back = known is not None and known["leaves_at"] is not None and known["leaves_at"] <= tx.now
    kept = known["state"] if known and known["state"] in ("draining", "drained") and not handed_back else "up"
    node = {"id": message.node, "host": message.host, "boot_id": message.boot_id, "pid": message.pid, "pid_started": message.pid_started,
            "home": message.home, "version": message.version, "session": session, "state": kept, "address": message.address,
            "joined_at": tx.now, "last_seen": tx.now, "leaving": False,
            "place": message.place, "shared_place": None, "checkpoints": None,
            "fetch_at_most": message.fetch_at_most, "fence_after": message.fence_after,
            "leaves_at": None if message.leaves_in is None else tx.now + message.leaves_in}  # fmt: skip
    tx.upsert("nodes", ["id"], [node])
    tx.delete("pilots", "node_id", [message.node])
    if (pilot := pilot_of(message)) is not None:
        tx.insert("pilots", [pilot])
    offered = [{"id": gpu.id, "node_id": message.node, "idx": gpu.index, "pool": message.pool, "kind": gpu.kind, "name": gpu.name,
                "memory": gpu.memory, "health": gpu.health, "note": _short(gpu.note)} for gpu in message.gpus]  # fmt: skip
    tx.delete("fork_servers", "node_id", [message.node])  # they have ended with the agent that had them
    missing = {row[0] for row in tx.execute("node_gpus", message.node)} - {gpu.id for gpu in message.gpus}
    tx.update("gpus", ["id"], [{"id": gpu, "health": "missing", "note": "its runner no longer finds it"} for gpu in missing])
    tx.upsert("gpus", ["id"], offered)
    tx.event("node.up", f"runner:{message.node}", node=message.node, before=known["state"] if known else None, after=kept,
             detail={"version": message.version, "gpus": len(offered), "session": session})  # fmt: skip


def pilot_of(message: Hello) -> dict[str, Any] | None:
    """The batch job of which a runner says that it is a part; None: none."""
    engine, *words = (message.pilot or "").split("/")
    if engine != "slurm" or len(words) != 3 or not all(words):
        return None
    return {"node_id": message.node, "engine": engine, **dict(zip(("cluster", "job", "host"), words, strict=True)), "seen": False}


def _try_again(tx: Transaction, node: str) -> None:
    """A restarted runner may now have files that jobs lacked there."""
    rows = [(job, json.loads(excluded)) for job, excluded in tx.execute("excluding", node)]
    kept = [(job, {name: why for name, why in excluded.items() if name != node}) for job, excluded in rows]
    tx.update("jobs", ["id"], [{"id": job, "excluded": json.dumps(excluded) if excluded else None} for job, excluded in kept])


def _short(text: str | None) -> str | None:
    """A runner's words: too long ones are cut, not refused, as the rest of the message is valid."""
    return text if text is None or len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "…"


def report(tx: Transaction, batch: Sequence[Report]) -> Sequence[Ack | StokerError]:
    """Take runners' reports: records, workers' states, samples, health of GPUs. Each as a whole, or Stale."""
    sessions = dict(tx.execute("sessions"))
    current = [_by_our_clock(message, tx.now) for message in batch if sessions.get(message.node) == message.session]
    for message in current:
        if message.place is not None:
            take_place(tx, message.node, message.place)
    live = _live(tx, current)
    stale = _take_records(tx, [(m.node, records) for m in current for records in m.records], live)
    # A runner's clock may be ahead of ours, or behind: no event is later than now, and none of a lease before its grant.
    granted = {(lease, node): part.lease.granted_at for (lease, node), part in live.items()}
    updates = [
        (m.node, msgspec.structs.replace(update, ts=min(max(update.ts, granted.get((update.lease, m.node), 0.0)), tx.now)))
        for m in current
        for update in m.workers
    ]
    for node, update in updates:
        if (update.lease, node) not in live:
            stale.setdefault(node, set()).add(update.lease)
    _take_updates(tx, [(node, update) for node, update in updates if (update.lease, node) in live], live)
    told = {sample.gpu for m in current for sample in m.samples} | {gpu.id for m in current for gpu in m.gpus}
    nodes = dict(tx.execute("gpu_nodes", sorted(told))) if told else {}  # of another node's GPU a runner has nothing to tell
    _take_samples(tx, [(m.node, sample) for m in current for sample in m.samples if nodes.get(sample.gpu) == m.node])
    _take_turns(tx, [sample for m in current for sample in m.samples if nodes.get(sample.gpu) == m.node])
    health = [(m.node, gpu) for m in current for gpu in m.gpus if nodes.get(gpu.id) == m.node]
    for node, gpu in health:
        tx.event("gpu.health", f"runner:{node}", node=node, after=gpu.health, reason=_short(gpu.note), detail={"gpu": gpu.id})
        tx.touch("queue")
    tx.update("gpus", ["id"], [{"id": gpu.id, "health": gpu.health, "note": _short(gpu.note)} for _, gpu in health])
    for message in current:
        if message.servers is not None:
            _take_servers(tx, message.node, message.servers)
        if message.files is not None:
            take_files(tx, message.node, message.files)
        if message.hands_back:
            _hand_back(tx, message.node)
        if message.left:
            _leave(tx, message.node)
    return [
        Ack(stale=sorted(stale.get(message.node, ())))
        if sessions.get(message.node) == message.session
        else Stale(f"runner {message.node}: another agent has registered under this name since")
        for message in batch
    ]


def _by_our_clock(message: Report, now: float) -> Report:
    """A report with all its times as this daemon would have written them: a runner tells what its own clock says."""
    if message.now is None or abs(behind := now - message.now) < CLOCK_TOLERANCE:
        return message
    return msgspec.structs.replace(
        message,
        workers=[_later(update, behind) for update in message.workers],
        records=[
            msgspec.structs.replace(one, records=[_later(record, behind) for record in one.records]) for one in message.records
        ],
        samples=[_later(sample, behind) for sample in message.samples],
        servers=None if message.servers is None else [
            msgspec.structs.replace(_later(one, behind, "since"), until=None if one.until is None else one.until + behind)
            for one in message.servers
        ],
    )  # fmt: skip


def _later(told: T, seconds: float, field: str = "ts") -> T:
    return msgspec.structs.replace(told, **{field: max(getattr(told, field) + seconds, 0.0)})


@dataclass(slots=True)
class _Lease:
    """A live lease with its job, one object for all its parts."""

    job: int
    job_state: State
    state: str
    granted_at: float
    started_at: float | None
    total_steps: int | None  #: of the job, as submitted
    metric: str | None  #: that the job's stopping rule watches
    profile: bool  #: a profiling run, of which nothing but its measurements is kept
    share: str  #: as in `leases`
    has_run: bool  #: its job, in this lease or an earlier one
    nodes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """The part of a live lease on one node."""

    lease: _Lease
    state: str  #: of the worker


def _live(tx: Transaction, messages: Sequence[Report]) -> dict[tuple[int, str], _Part]:
    wanted = {r.lease for m in messages for r in m.records} | {u.lease for m in messages for u in m.workers}
    parts: dict[tuple[int, str], _Part] = {}
    leases: dict[int, _Lease] = {}
    for number, node, worker, job, job_state, *facts in tx.execute("live_parts", sorted(wanted)) if wanted else ():
        lease = leases.setdefault(number, _Lease(job, State(job_state), *facts))
        lease.nodes.append(node)
        parts[number, node] = _Part(lease, worker)
    return parts


def _take_records(tx: Transaction, batch: Sequence[tuple[str, Records]], live: Mapping[tuple[int, str], _Part]) -> dict[str, set[int]]:
    """Store records that are new; answers with the leases of each node that are no longer its own."""
    stale: dict[str, set[int]] = {}
    marks = {(lease, rank): seq for lease, rank, seq in tx.execute("marks", sorted({r.lease for _, r in batch}))} if batch else {}
    metrics: list[dict[str, Any]] = []
    moved: dict[tuple[int, int], int] = {}
    latest: dict[int, _Latest] = {}
    speeds: list[MeasuredSpeed] = []
    pipelines: list[dict[str, Any]] = []
    begun: list[tuple[int, Begun]] = []
    left: list[tuple[int, LeftAdapter]] = []
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
            if record.speed is not None:
                speeds.append(MeasuredSpeed(records.lease, record.speed, record.total, record.ts))
            if record.speed is not None or part.lease.profile:
                continue
            if record.begun is not None or record.adapter is not None:
                begun += [(part.lease.job, record.begun)] if record.begun is not None else []
                left += [(part.lease.job, record.adapter)] if record.adapter is not None else []
                continue
            source = {"job_id": part.lease.job, "lease_id": records.lease, "rank": records.rank, "seq": record.seq, "ts": record.ts}
            if record.pipeline is not None:
                pipelines += rows_of(record.pipeline, source)
                continue
            metrics += [source | {"step": record.step, "name": name, "value": value} for name, value in record.values.items()]
            if records.rank == 0:
                latest.setdefault(part.lease.job, _Latest(part.lease, record, node)).take(record)
    tx.insert("metrics", metrics)
    tx.insert("pipelines", pipelines)
    newest = [{"lease_id": lease, "rank": rank, "seq": seq} for (lease, rank), seq in moved.items()]
    tx.put("report_marks", ["lease_id", "rank"], newest, marks.keys())
    _progress(tx, latest)
    learn_speeds(tx, speeds)
    keep_adapters(tx, begun, left)
    trained_together(tx, begun)
    return stale


@dataclass(slots=True)
class _Latest:
    """The newest values in a job's records."""

    lease: _Lease
    first: Record
    node: str  #: of rank 0
    last: Record = field(init=False)
    values: dict[str, float] = field(default_factory=dict)
    total: int | None = None
    checkpoint: int | None = None
    memory: int | None = None
    kept: int | None = None

    def take(self, record: Record) -> None:
        self.last = record
        self.values.update(record.values)
        for name in ("total", "checkpoint", "memory", "kept"):
            if (value := getattr(record, name)) is not None:
                setattr(self, name, value)


def _progress(tx: Transaction, latest: Mapping[int, _Latest]) -> None:
    """Update `progress` with the newest records of each job."""
    known = {row["job_id"]: row for row in tx.objects("progress_of", list(latest))} if latest else {}
    rows = []
    saved = [job for job, new in latest.items() if new.checkpoint is not None and known.get(job, _NO_PROGRESS)["checkpoint_step"] is None]
    for job, new in latest.items():
        old = known.get(job, _NO_PROGRESS)
        watched = new.lease.metric
        if watched in new.values:
            tx.touch("watched")
        rows.append(
            row := {
                "job_id": job,
                "step": new.last.step,
                "total_steps": _first(new.total, old["total_steps"], new.lease.total_steps),
                "loss": new.values.get("loss", old["loss"]),
                "metric": new.values.get(watched, old["metric"]) if watched else old["metric"],
                "seconds_per_step": _pace(old, new),
                "checkpoint_step": _first(new.checkpoint, old["checkpoint_step"]),
                "peak_memory": max(filter(None, (new.memory, old["peak_memory"])), default=None),
                "updated_at": min(new.last.ts, tx.now),
            }
        )
        if _is_news(old, row):
            tx.touch("estimates")
    tx.put("progress", ["job_id"], rows, {(job,) for job in known})
    _keep(tx, {job: new.kept for job, new in latest.items() if new.kept is not None})
    saved_on(tx, {job: (new.node, "") for job, new in latest.items() if new.checkpoint is not None})
    first_saved(tx, saved)


def _keep(tx: Transaction, kept: Mapping[int, int]) -> None:
    """The GPU memory that jobs keep while others have the turn, and so do jobs like them that wait."""
    more = tx.objects("keep_more", list(kept), list(kept.values())) if kept else []
    if more:
        alike = tx.objects("keep_alike", [row["id"] for row in more], [row["kept_memory"] for row in more])
        tx.update("jobs", ["id"], [*more, *(row for row in alike if row["id"] not in kept)])
        tx.touch("queue", "leases")  # others may fit beside them; their runners judge by it too


_NO_PROGRESS: Mapping[str, Any] = dict.fromkeys(
    ("step", "total_steps", "loss", "metric", "seconds_per_step", "checkpoint_step", "peak_memory", "updated_at")
)


def _is_news(old: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the expected end of the job moves: its steps or their pace have become known, or have changed."""
    before, now = old["seconds_per_step"], row["seconds_per_step"]
    if row["total_steps"] != old["total_steps"] or (before is None) != (now is None):
        return True
    return now is not None and abs(now - before) > CHANGE_OF_PACE * before


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _pace(old: Mapping[str, Any], new: _Latest) -> float | None:
    """Seconds per step, as a moving average within one lease, so that a stop between two does not count.

    It is that of a job alone on its GPUs: beside others it does not change.
    """
    started, updated = new.lease.started_at, old["updated_at"]
    within = started is not None and updated is not None and updated >= started
    ts, step = (updated, old["step"]) if within else (new.first.ts, new.first.step)
    before = old["seconds_per_step"]
    if new.lease.share != EXCLUSIVE or new.last.step <= step or new.last.ts <= ts:
        return None if before is None else float(before)
    pace = (new.last.ts - ts) / (new.last.step - step)
    return float(pace) if before is None else float(0.7 * before + 0.3 * pace)


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
        if update.state == "starting" and update.port is not None:
            row["port"] = update.port
            tx.touch("leases")  # the other nodes of the gang wait for it, or the other replicas
        if update.state == "running":
            row["started_at"] = update.ts
        if changes := _advance(update, part.lease):
            leases.setdefault(update.lease, {"id": update.lease}).update(changes)
        moves += _follow(tx, node, update, part.lease)
    tx.update("workers", ["lease_id", "node_id"], list(workers.values()))
    tx.update("leases", ["id"], list(leases.values()))
    move(tx, moves)
    _exit(tx, exits, live)


def _advance(update: WorkerUpdate, lease: _Lease) -> dict[str, Any]:
    """The changes of a lease: it follows its farthest worker, and never goes back."""
    changes: dict[str, Any] = {}
    if update.state == "running" and lease.started_at is None:
        lease.started_at = changes["started_at"] = update.ts
        changes |= {"warm": update.warm, "cold_because": _short(update.cold_because)}
    if REACHED[update.state] > REACHED[lease.state]:
        lease.state = changes["state"] = update.state
    return changes


def _follow(tx: Transaction, node: str, update: WorkerUpdate, lease: _Lease) -> list[Move]:
    """The job, too, follows its farthest worker, unless it is being stopped."""
    to = {"starting": State.STARTING, "running": State.RUNNING}[update.state]
    if lease.job_state not in (State.ASSIGNED, State.STARTING) or lease.job_state is to:
        return []
    lease.job_state = to
    changes = {"first_start_at": update.ts} if to is State.RUNNING and not lease.has_run else {}
    return [Move(lease.job, to, f"on {', '.join(sorted(lease.nodes))}", f"runner:{node}", update.lease, changes)]


def _exit(
    tx: Transaction, exits: Mapping[tuple[int, str], WorkerUpdate], live: Mapping[tuple[int, str], _Part] = MappingProxyType({})
) -> None:
    """Workers are gone; a lease without workers ends, by the worst of their ends."""
    if not exits:
        return
    tx.update(
        "workers",
        ["lease_id", "node_id"],
        [
            {"lease_id": lease, "node_id": node, "state": "exited", "ended_at": update.ts, "exit_code": update.exit_code,
             "outcome": update.outcome, "message": _short(update.message)}
            for (lease, node), update in exits.items()
        ],
    )  # fmt: skip
    lacking: dict[int, dict[str, str]] = {}
    for (lease, node), update in exits.items():
        if update.outcome in HOST_LACKS and update.host_at_fault:
            lacking.setdefault(live[lease, node].lease.job, {})[node] = _short(update.message) or ""
    exclude(tx, lacking)
    saved = {live[part].lease.job: (part[1], update) for part, update in exits.items()
             if update.saved and part in live and not live[part].lease.profile}  # fmt: skip
    saved_on(tx, {job: (node, update.place or "") for job, (node, update) in saved.items()},
             {job: update.saved or 0 for job, (_, update) in saved.items()})  # fmt: skip
    ends = {}
    for lease, outcomes, codes, messages, why, at, nodes in tx.execute("finished_leases", sorted({lease for lease, _ in exits})):
        worst = min(range(len(outcomes)), key=lambda i: (SEVERITY.index(outcomes[i]), codes[i] == 0))
        ends[lease] = End(outcomes[worst], codes[worst], why, messages[worst], at, tuple(nodes))
    end(tx, ends)
    # The rest of a gang waits for the part that is gone, for minutes (torch's exit barrier): end it too.
    broken = {lease for (lease, _), update in exits.items() if update.outcome != "completed"} - ends.keys()
    stop(tx, [LeaseStop(lease, "partner", "daemon") for lease in sorted(broken)])


def _lost(lease: int, at: float, why: str) -> WorkerUpdate:
    message = f"{why}; the job goes on from its last checkpoint"
    return WorkerUpdate(lease=lease, state="exited", ts=at, outcome="lost", message=message)


def _take_samples(tx: Transaction, batch: Sequence[tuple[str, Sample]]) -> None:
    tx.insert(
        "telemetry",
        [
            {"ts": s.ts, "gpu_id": s.gpu, "node_id": node, "lease_id": s.lease, "utilisation": s.utilisation,
             "memory_used": s.memory_used, "power": s.power, "temperature": s.temperature}
            for node, s in batch
        ],
    )  # fmt: skip


def _take_turns(tx: Transaction, samples: Sequence[Sample]) -> None:
    """The holder of the turn, and the waiting time of each."""
    told = {s.lease: s for s in samples if s.lease is not None}
    if not told:
        return
    known = {lease: (node, turn, waited) for lease, node, turn, waited in tx.execute("turns_of_leases", sorted(told))}
    rows = [
        {"lease_id": lease, "node_id": known[lease][0], "turn": one.turn, "waited": max(one.waited or 0.0, known[lease][2] or 0.0)}
        for lease, one in told.items()
        if lease in known and (one.turn, one.waited or known[lease][2]) != known[lease][1:]
    ]
    tx.update("workers", ["lease_id", "node_id"], rows)


def _take_servers(tx: Transaction, node: str, servers: Sequence[ForkServer]) -> None:
    """Take all fork servers of a runner; policies and forecasts are asked again."""
    tx.delete("fork_servers", "node_id", [node])
    rows = {
        (one.recipe, one.backbone): {
            "node_id": node, "recipe": one.recipe, "backbone": one.backbone, "state": one.state, "pid": one.pid,
            "since": min(one.since, tx.now), "until": one.until, "memory": one.memory, "note": _short(one.note),
        }
        for one in servers
    }  # fmt: skip
    tx.insert("fork_servers", list(rows.values()))
    tx.touch("queue")


def _leave(tx: Transaction, node: str) -> None:
    """An agent leaves only without running work: assigned leases that it has not taken up never started."""
    tx.delete("fork_servers", "node_id", [node])
    tx.update("nodes", ["id"], [{"id": node, "state": "stopped"}])
    tx.event("node.stopped", f"runner:{node}", node=node, after="stopped", reason="its agent has left")
    _give_up(tx, node, f"runner {node} has left", tx.now)
    tx.touch("nodes", "leases", "queue")


def _hand_back(tx: Transaction, node: str) -> None:
    """A runner drains itself: no more jobs begin there, and jobs that it stops are queued again."""
    (row,) = tx.objects("node", node)
    if row["state"] not in ("up", "suspect"):
        return
    tx.update("nodes", ["id"], [{"id": node, "state": "draining", "leaving": True, "leaves_at": tx.now}])
    why = "it hands its node back"
    tx.event("node.state", f"runner:{node}", node=node, before=row["state"], after="draining", reason=why)
    stop(tx, [LeaseStop(lease, "drain", f"runner:{node}") for (lease,) in tx.execute("node_leases", node)])
    tx.touch("nodes", "leases", "queue")


def _give_up(tx: Transaction, node: str, why: str, at: float) -> None:
    """Declare all living parts on a runner lost ``at`` a time; the caller knows that none runs."""
    gone = [row[0] for row in tx.execute("node_leases", node)]
    _exit(tx, {(lease, node): _lost(lease, at, why) for lease in gone})


#: states to which a runner may change other than by its own registration
NODE_TRANSITIONS = {
    "up": {"suspect", "draining", "gone"},
    "suspect": {"up", "draining", "gone"},
    "draining": {"drained", "up", "gone"},
    "drained": {"draining", "up", "gone"},
    "stopped": {"gone"},
    "gone": set[str](),
}


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of a runner's state, by a person or by the daemon's watch."""

    node: str
    state: str
    actor: str
    reason: str
    leaving: bool = False  #: it is to leave when its workers have ended
    session: int | None = None  #: apply only while this session is in force, as the finding is about it; None: always


def change_node(tx: Transaction, batch: Sequence[NodeChange]) -> Sequence[StokerError | None]:
    """Set the states of runners. ``gone``: every worker there is declared lost; the caller has made sure that they are."""
    answers: list[StokerError | None] = []
    for change in batch:
        found = tx.objects("node", change.node)
        before = found[0]["state"] if found else "unknown"
        if change.session is not None and change.session != (found[0]["session"] if found else None):
            answers.append(Stale(f"runner {change.node} has registered again meanwhile"))
            continue
        if change.state not in NODE_TRANSITIONS.get(before, ()) and before != change.state:
            serve = (
                "it serves again after 'stoker runner start' on its host" if before in ("stopped", "gone") else "see 'stoker runner list'"
            )
            answers.append(Conflict(f"runner {change.node} is {before}: it can't become {change.state}; {serve}"))
            continue
        tx.event("node.state", change.actor, node=change.node, before=before, after=change.state, reason=change.reason)
        tx.update("nodes", ["id"], [{"id": change.node, "state": change.state, "leaving": change.leaving}])
        if change.state == "gone":
            tx.delete("fork_servers", "node_id", [change.node])
            tx.update("nodes", ["id"], [{"id": change.node, "session": found[0]["session"] + 1}])  # if it comes back, it must register
            _give_up(tx, change.node, f"runner {change.node} was declared dead", found[0]["last_seen"])  # no later run is known
            drop_files(tx, change.node)
        answers.append(None)
    tx.touch("nodes", "leases", "queue")
    return answers


def look_again(tx: Transaction, batch: Sequence[None]) -> Sequence[None]:
    """Runners have become silent, or are heard again, whose states tell of no silence."""
    tx.touch("nodes", "leases", "queue")
    return batch


def seen(tx: Transaction, batch: Sequence[Mapping[str, float]]) -> Sequence[None]:
    """Write when runners were last heard: node to seconds ago."""
    last: dict[str, float] = {}
    for heard in batch:
        last.update(heard)
    tx.update("nodes", ["id"], [{"id": node, "last_seen": tx.now - ago} for node, ago in last.items()])
    return [None] * len(batch)
