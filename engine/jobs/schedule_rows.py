"""Recurring jobs as the tables hold them: added, fired, removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import Conflict, NotFound, StokerError
from ..store.transaction import Transaction
from .owners import require_own


@dataclass(frozen=True, slots=True)
class NewSchedule:
    name: str
    cron: str
    spec: str  #: Submission as JSON
    user: str


def add_schedule(tx: Transaction, batch: Sequence[NewSchedule]) -> Sequence[int | StokerError]:
    """Add recurring jobs. The name is the key: a repetition after a lost answer finds the existing one."""
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
    fired_at: float | None = None  #: time of its submission; None: remove it
    only: str | None = None  #: the only user whose schedules may be changed; None: any


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
