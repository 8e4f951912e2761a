"""Carries out a policy's decision in one transaction: grants and stops leases, and records the decision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..jobs.leases import EXCLUSIVE, Grant, Join, LeaseStop, grant, join, stop
from ..store.transaction import Transaction
from .policy_errors import told


@dataclass(frozen=True, slots=True)
class Decision:
    """A row of `decisions`; see its columns. ``number`` is set when an existing row is to be updated."""

    pool: str
    policy: str
    config_id: int
    ts: float
    last_ts: float
    ticks: int
    jobs_seen: int
    status: str
    gap: float | None
    view_seconds: float
    plan_seconds: float
    apply_seconds: float
    outcome: str
    error: str | None = None
    deferred: Mapping[int, str] = field(default_factory=dict)
    number: int | None = None
    memory: str | None = None  #: the policy's new memory, as JSON; None: as before
    event: str = ""  #: kind of the event that is logged with it: the policy begins to fail, or stops failing


@dataclass(frozen=True, slots=True)
class Enactment:
    """Everything that one decision changes in the tables."""

    decision: Decision
    grants: Sequence[Grant] = ()
    stops: Sequence[LeaseStop] = ()
    renewals: Mapping[int, float | None] = field(default_factory=dict)  #: lease to its new end
    waiting: Sequence[tuple[int, str, str, bool]] = ()  #: job, code, reason, and whether the code has changed
    joined: Mapping[int, Join] = field(default_factory=dict)  #: leases whose GPUs are shared from now on
    warm: Mapping[str, str | None] = field(default_factory=dict)  #: GPUs that move to another backbone's pool; None: to none


@dataclass(frozen=True, slots=True)
class Enacted:
    decision: int
    leases: Sequence[int]
    skipped: Mapping[int, str]  #: jobs whose grant is no longer possible, and why


def enact(tx: Transaction, batch: Sequence[Enactment]) -> Sequence[Enacted]:
    """Carry out plans. Grants that have become impossible since the view was taken (a job cancelled, a GPU gone) are skipped."""
    return [_enact(tx, one) for one in batch]


def _enact(tx: Transaction, one: Enactment) -> Enacted:
    number = one.decision.number or tx.number("decisions")
    join(tx, one.joined, f"policy:{one.decision.policy}")
    grants, skipped = _possible(tx, one.grants)
    stop(tx, one.stops)
    leases = grant(tx, grants, one.decision.policy, number) if grants else []
    tx.update("leases", ["id"], [{"id": lease, "expires_at": expires} for lease, expires in one.renewals.items()])
    if one.warm:
        tx.update("gpus", ["id"], [{"id": gpu, "warm": name, "warm_since": tx.now} for gpu, name in one.warm.items()])
        tx.touch("nodes")
    _write_waiting(tx, one.waiting, f"policy:{one.decision.policy}")
    _write_decision(tx, one, number, leases, skipped)
    return Enacted(number, leases, skipped)


def _possible(tx: Transaction, grants: Sequence[Grant]) -> tuple[list[Grant], dict[int, str]]:
    if not grants:
        return [], {}
    startable = dict(tx.execute("startable", [g.job for g in grants]))
    found = tx.execute("room_on_gpus", sorted({gpu for g in grants for gpu, _ in g.gpus}))
    rooms = {gpu: _Room(*room) for gpu, *room in found}
    possible, skipped = [], {}
    for given in grants:
        if given.job not in startable:
            skipped[given.job] = "no longer waits"
        elif (lacking := _lacking(given, startable[given.job], rooms)) is not None:
            skipped[given.job] = lacking
        else:
            for gpu, _ in given.gpus:
                room = rooms[gpu]
                room.holders += 1
                room.alone += given.share == EXCLUSIVE
                room.kept, room.more = room.beside(given.memory, startable[given.job])
            possible.append(given)
    return possible, skipped


@dataclass(slots=True)
class _Room:
    """The occupancy of a GPU on which a job may start."""

    memory: int  #: bytes, 0: not known
    holders: int
    alone: int  #: of these, jobs that have it exclusively
    kept: int  #: bytes that these keep, also while others have the turn
    more: int  #: that one of them needs beyond that, at most

    def beside(self, memory: int, kept: int | None) -> tuple[int, int]:
        """``kept`` and ``more`` with one more job, of which it may be known what it keeps."""
        keeps = memory if kept is None else min(kept, memory)
        return self.kept + keeps, max(self.more, memory - keeps)


def _lacking(given: Grant, kept: int | None, rooms: Mapping[str, _Room]) -> str | None:
    """Why a grant is impossible on its GPUs; None: it is possible."""
    for gpu, _ in given.gpus:
        room = rooms.get(gpu)
        if room is None or (room.holders and (given.share == EXCLUSIVE or room.alone)):
            return "its GPUs are no longer free"
        if room.holders and 0 < room.memory < sum(room.beside(given.memory, kept)):
            return f"waits for memory of GPU {gpu}, which those who share it have taken"
    return None


def _write_waiting(tx: Transaction, waiting: Sequence[tuple[int, str, str, bool]], actor: str) -> None:
    still = {row[0] for row in tx.execute("still_waiting", [row[0] for row in waiting])} if waiting else set()
    current = [row for row in waiting if row[0] in still]
    tx.upsert(
        "waiting", ["job_id"], [{"job_id": job, "code": code, "reason": reason, "updated_at": tx.now} for job, code, reason, _ in current]
    )
    for job, code, reason, fresh in current:
        if fresh:
            tx.event("job.waiting", actor, job=job, after=code, reason=reason)


def _write_decision(tx: Transaction, one: Enactment, number: int, leases: Sequence[int], skipped: Mapping[int, str]) -> None:
    decision = one.decision
    row: dict[str, Any] = {"id": number, "last_ts": decision.last_ts, "ticks": decision.ticks}
    if decision.number is not None:
        tx.update("decisions", ["id"], [row])
        return
    started = [g for g in one.grants if g.job not in skipped]
    plan = {
        "starts": [
            {
                "job": g.job,
                "gpus": [gpu for gpu, _ in g.gpus],
                "lease": lease,
                **({"profile": True} if g.profile else {}),
                **({"share": g.share} if g.share != EXCLUSIVE else {}),
            }
            for g, lease in zip(started, leases, strict=True)
        ],
        "stops": [{"lease": s.lease, "reason": s.reason, "for": s.for_job} for s in one.stops],
        **({"warm": dict(one.warm)} if one.warm else {}),
        "deferred": {str(job): why for job, why in {**decision.deferred, **skipped}.items()},
    }
    row |= {name: getattr(decision, name) for name in (
        "pool", "policy", "config_id", "ts", "jobs_seen", "status", "gap", "view_seconds", "plan_seconds", "apply_seconds",
        "outcome", "error", "memory")}  # fmt: skip
    tx.insert("decisions", [{**row, "plan": json.dumps(plan)}])
    if decision.event:
        reason = None if decision.error is None else told(decision.policy, decision.pool, decision.error)
        detail = {"pool": decision.pool, "decision": number}
        tx.event(decision.event, f"policy:{decision.policy}", after=decision.outcome, reason=reason, detail=detail)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Places in the queue and estimated starts: rows of (job, position, estimated start or None)."""

    rows: Sequence[tuple[int, int | None, float | None]]


def write_forecast(tx: Transaction, batch: Sequence[Forecast]) -> Sequence[None]:
    """Update places and estimated starts; jobs that no longer wait are left unchanged."""
    latest = {row[0]: row for one in batch for row in one.rows}
    rows = [{"job_id": job, "position": position, "est_start": start} for job, position, start in latest.values()]
    tx.update("waiting", ["job_id"], rows)
    return [None] * len(batch)
