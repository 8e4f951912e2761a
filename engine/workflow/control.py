"""What people do to jobs: cancel, hold, release, change the priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import StokerError
from ..states import FINAL, State
from ..store.transaction import Transaction
from .leases import Stop, stop
from .moves import Move, move


@dataclass(frozen=True, slots=True)
class Control:
    action: Literal["cancel", "hold", "release", "priority"]
    jobs: tuple[int, ...]
    user: str
    priority: int = 0


def control(tx: Transaction, batch: Sequence[Control]) -> Sequence[list[dict[str, Any]] | StokerError]:
    """Do what was asked, request by request; answers with ``[{id, name, state, message}]``. Repeating an action is harmless."""
    acts = {"cancel": _cancel, "hold": _hold, "release": _release, "priority": _priority}
    answers: list[list[dict[str, Any]] | StokerError] = []
    for request in batch:
        jobs = tx.objects("controlled_jobs", list(request.jobs))
        messages = []
        for job in jobs:  # as it stands now: the end of one may have ended those that need it
            (current,) = tx.objects("controlled_jobs", [job["id"]])
            messages.append(acts[request.action](tx, current, request))
        states = dict(tx.execute("job_states", list(request.jobs)))
        answers.append(
            [
                {"id": job["id"], "name": job["name"], "state": states[job["id"]], "message": message}
                for job, message in zip(jobs, messages, strict=True)
            ]
        )
    tx.touch("queue")
    return answers


def _cancel(tx: Transaction, job: dict[str, Any], request: Control) -> str:
    if job["state"] in FINAL:
        return f"had already ended as {job['state']}"
    if job["lease_id"] is not None:
        tx.update("jobs", ["id"], [{"id": job["id"], "cancel_requested": True}])
        stop(tx, [Stop(job["lease_id"], "cancelled", request.user)])
        return "is being stopped"
    reason = f"cancelled by {request.user}"
    move(tx, [Move(job["id"], State.CANCELLED, reason, request.user, changes={"cancel_requested": True, "outcome": "cancelled"})])
    return "cancelled"


def _hold(tx: Transaction, job: dict[str, Any], request: Control) -> str:
    if job["state"] in FINAL:
        return f"had already ended as {job['state']}"
    if job["held"]:
        return "was held already"
    tx.update("jobs", ["id"], [{"id": job["id"], "held": True}])
    tx.event("job.hold", request.user, job=job["id"])
    if job["lease_id"] is not None:
        stop(tx, [Stop(job["lease_id"], "held", request.user)])
        # Whether it saves while it stops is not known yet, and a script need not save at all.
        then = "it goes on from its checkpoint" if job["saved"] else "it goes on from what it saves now, or begins anew if it saves nothing"
        return f"is being stopped; when released, {then}"
    if job["state"] == State.PENDING:
        move(tx, [Move(job["id"], State.SUBMITTED, f"held by {request.user}", request.user)])
    return "held"


def _release(tx: Transaction, job: dict[str, Any], request: Control) -> str:
    if not job["held"]:
        return "was not held"
    tx.update("jobs", ["id"], [{"id": job["id"], "held": False}])
    tx.event("job.release", request.user, job=job["id"])
    if tx.execute("ready", [job["id"]]):
        move(tx, [Move(job["id"], State.PENDING, f"released by {request.user}", request.user)])
    return "released"


def _priority(tx: Transaction, job: dict[str, Any], request: Control) -> str:
    if job["state"] in FINAL:
        return f"had already ended as {job['state']}"
    tx.update("jobs", ["id"], [{"id": job["id"], "priority": request.priority}])
    tx.event("job.priority", request.user, job=job["id"], before=str(job["priority"]), after=str(request.priority))
    return f"priority {job['priority']} -> {request.priority}"
