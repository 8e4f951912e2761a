"""What operators set: policies of pools, tokens, recurring jobs. Nothing is overwritten: the newest row is in force."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Conflict, NotFound, StokerError
from ..store.transaction import Transaction
from .owners import require_own


@dataclass(frozen=True, slots=True)
class PolicySetting:
    pool: str
    policy: str
    interval: float  #: seconds
    config: Mapping[str, Any]
    set_by: str
    code: str = ""  #: digest of the source of one's own


def set_policy(tx: Transaction, batch: Sequence[PolicySetting]) -> Sequence[int]:
    """Set the policy of a pool; answers with the version of its configuration. In force at the next tick."""
    rows: list[dict[str, Any]] = [
        {"id": tx.number("policy_settings"), "pool": s.pool, "policy": s.policy, "interval": s.interval, "config": json.dumps(s.config),
         "set_by": s.set_by, "ts": tx.now}
        for s in batch
    ]  # fmt: skip
    tx.insert("policy_settings", rows)
    for s, row in zip(batch, rows, strict=True):
        detail = {"pool": s.pool, "interval": s.interval, "config": dict(s.config), "id": row["id"], "code": s.code or None}
        tx.event("policy.set", s.set_by, after=s.policy, detail=detail)
    tx.touch("policy")
    return [row["id"] for row in rows]


@dataclass(frozen=True, slots=True)
class NewToken:
    name: str
    role: str
    digest: str  #: SHA-256, hexadecimal
    actor: str


def add_token(tx: Transaction, batch: Sequence[NewToken]) -> Sequence[int]:
    rows: list[dict[str, Any]] = [
        {"id": tx.number("tokens"), "name": t.name, "role": t.role, "digest": t.digest, "created_at": tx.now, "revoked": False}
        for t in batch
    ]
    tx.insert("tokens", rows)
    for t in batch:
        tx.event("token.created", t.actor, detail={"name": t.name, "role": t.role})
    tx.touch("tokens")
    return [row["id"] for row in rows]


def revoke_token(tx: Transaction, batch: Sequence[tuple[int, str]]) -> Sequence[StokerError | None]:
    """``(number, actor)``: the token is no longer accepted."""
    known = {row[0] for row in tx.execute("token_ids")}
    tx.update("tokens", ["id"], [{"id": number, "revoked": True} for number, _ in batch if number in known])
    for number, actor in batch:
        if number in known:
            tx.event("token.revoked", actor, detail={"id": number})
    tx.touch("tokens")
    return [None if number in known else NotFound(f"token {number}: there is none; 'stoker token list' shows them") for number, _ in batch]


@dataclass(frozen=True, slots=True)
class NewSchedule:
    name: str
    cron: str
    spec: str  #: Submission as JSON
    user: str


def add_schedule(tx: Transaction, batch: Sequence[NewSchedule]) -> Sequence[int | StokerError]:
    """Add recurring jobs. The name is the key: the same again, after a lost answer, is the one that is there."""
    known = {(user, name): (number, cron) for number, user, name, cron in tx.execute("schedule_names")}
    answers: list[int | StokerError] = []
    for s in batch:
        number, cron = known.get((s.user, s.name), (0, ""))
        if number and cron != s.cron:
            answers.append(Conflict(f"cron: {s.name} is schedule {number} already, at {cron!r}; 'stoker schedule remove {number}' first"))
            continue
        if not number:
            number = tx.number("schedules")
            known[s.user, s.name] = (number, s.cron)
            tx.insert("schedules", [{"id": number, "name": s.name, "cron": s.cron, "enabled": True, "spec": s.spec, "created_by": s.user,
                                     "created_at": tx.now, "last_at": None}])  # fmt: skip
            tx.event("schedule.created", s.user, detail={"name": s.name, "cron": s.cron})
        answers.append(number)
    tx.touch("schedules")
    return answers


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    schedule: int
    actor: str
    fired_at: float | None = None  #: it has submitted; None: it is removed
    only: str | None = None  #: the user whose schedules alone may be changed; None: anybody's


def change_schedule(tx: Transaction, batch: Sequence[ScheduleChange]) -> Sequence[StokerError | None]:
    known = {number: (owner, name) for number, owner, name in tx.execute("schedule_ids")}
    answers: list[StokerError | None] = []
    for change in batch:
        if change.schedule not in known:
            answers.append(NotFound(f"schedule {change.schedule}: there is none; 'stoker schedule list' shows them"))
            continue
        owner, name = known[change.schedule]
        try:
            require_own(f"schedule {change.schedule} {name}", owner, change.only)
        except StokerError as error:
            answers.append(error)
            continue
        if change.fired_at is not None:
            tx.update("schedules", ["id"], [{"id": change.schedule, "last_at": change.fired_at}])
        else:
            tx.update("schedules", ["id"], [{"id": change.schedule, "enabled": False}])
            tx.event("schedule.removed", change.actor, detail={"id": change.schedule})
            tx.touch("schedules")
        answers.append(None)
    return answers


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the history that changes no other table."""

    kind: str
    actor: str
    reason: str
    detail: Mapping[str, Any] | None = None
    job: int | None = None
    node: str | None = None


def note(tx: Transaction, batch: Sequence[Note]) -> Sequence[None]:
    for n in batch:
        tx.event(n.kind, n.actor, job=n.job, node=n.node, reason=n.reason, detail=n.detail)
    return [None] * len(batch)
