"""Changes of jobs by people: cancel, hold, release, change the priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import StokerError
from ..spec.model import SERVES
from ..store.transaction import Transaction
from .begin_from import first_held
from .leases import LeaseStop, stop
from .moves import Move, move
from .owners import require_own
from .states import FINAL, State

#: columns of a job without known checkpoints
GIVEN_UP = dict.fromkeys(("place", "saved_bytes", "bundle", "not_sent"))
Job = dict[str, Any]  #: a row of `controlled_jobs`


@dataclass(frozen=True, slots=True)
class Control:
    action: Literal["cancel", "hold", "release", "priority", "move"]
    jobs: tuple[int, ...]
    user: str
    priority: int = 0
    only: str | None = None  #: the only user whose jobs may be changed; None: any


def control(tx: Transaction, batch: Sequence[Control]) -> Sequence[list[dict[str, Any]] | StokerError]:
    """Carry out requests one by one; answers with ``[{id, name, state, message}]``. Repeating an action is harmless.

    The jobs of one request are changed together, or none of them if one is another user's: an array has up to 10 000.
    """
    acts = {"cancel": _cancel, "hold": _hold, "release": _release, "priority": _priority, "move": _move}
    answers: list[list[dict[str, Any]] | StokerError] = []
    for request in batch:
        jobs = tx.objects("controlled_jobs", list(request.jobs))
        try:
            for job in jobs:
                require_own(f"job {job['id']} {job['name']}", job["owner"], request.only)
        except StokerError as error:
            answers.append(error)
            continue
        messages = acts[request.action](tx, jobs, request)
        states = dict(tx.execute("job_states", list(request.jobs)))
        answers.append([{"id": job["id"], "name": job["name"], "state": states[job["id"]], "message": messages[job["id"]]} for job in jobs])
    tx.touch("queue")
    return answers


def _ended(jobs: Sequence[Job]) -> dict[int, str]:
    return {job["id"]: f"had already ended as {job['state']}" for job in jobs if job["state"] in FINAL}


def _cancel(tx: Transaction, jobs: Sequence[Job], request: Control) -> dict[int, str]:
    messages = _ended(jobs)
    live = [job for job in jobs if job["id"] not in messages]
    leased = [job for job in live if job["lease_id"] is not None]
    tx.update("jobs", ["id"], [{"id": job["id"], "cancel_requested": True} for job in leased])
    stop(tx, [LeaseStop(job["lease_id"], "cancelled", request.user) for job in leased])
    reason, changes = f"cancelled by {request.user}", {"cancel_requested": True, "outcome": "cancelled"}
    move(tx, [Move(job["id"], State.CANCELLED, reason, request.user, changes=changes) for job in live if job["lease_id"] is None])
    return messages | {job["id"]: "cancelled" if job["lease_id"] is None else "is being stopped" for job in live}


def _hold(tx: Transaction, jobs: Sequence[Job], request: Control) -> dict[int, str]:
    messages = _ended(jobs)
    messages |= {job["id"]: "was held already" for job in jobs if job["held"] and job["id"] not in messages}
    fresh = [job for job in jobs if job["id"] not in messages]
    tx.update("jobs", ["id"], [{"id": job["id"], "held": True} for job in fresh])
    for job in fresh:
        tx.event("job.hold", request.user, job=job["id"])
    stop(tx, [LeaseStop(job["lease_id"], "held", request.user) for job in fresh if job["lease_id"] is not None])
    pending = [job["id"] for job in fresh if job["lease_id"] is None and job["state"] == State.PENDING]
    move(tx, [Move(job, State.SUBMITTED, f"held by {request.user}", request.user) for job in pending])
    first_held(tx, [job["id"] for job in fresh])
    return messages | {job["id"]: _held(job) for job in fresh}


def _held(job: Job) -> str:
    if job["lease_id"] is None:
        return "held"
    if job["kind"] == SERVES:
        return "is being stopped; when released, it serves again"
    # It may or may not save as it stops, and a script need not save at all.
    then = "it goes on from its checkpoint" if job["saved"] else "it goes on from what it saves now, or begins anew if it saves nothing"
    return f"is being stopped; when released, {then}"


def _release(tx: Transaction, jobs: Sequence[Job], request: Control) -> dict[int, str]:
    held = [job["id"] for job in jobs if job["held"]]
    tx.update("jobs", ["id"], [{"id": job, "held": False} for job in held])
    for job in held:
        tx.event("job.release", request.user, job=job)
    ready = tx.execute("ready", held)
    move(tx, [Move(job, State.PENDING, f"released by {request.user}", request.user) for (job,) in ready])
    return {job["id"]: "released" if job["held"] else "was not held" for job in jobs}


def _move(tx: Transaction, jobs: Sequence[Job], request: Control) -> dict[int, str]:
    """Give checkpoints up, so that jobs may begin anew anywhere."""
    messages = _ended(jobs)
    messages |= {job["id"]: f"is {job['state']}: 'stoker hold {job['id']}' stops it first" for job in jobs if job["lease_id"] is not None}
    anywhere = {
        job["id"]: "any runner" if job["begin_from"] is None else f"runners that read the weights of job {job['begin_from']}"
        for job in jobs
    }
    messages |= {job["id"]: f"has no checkpoint to give up: it may start on {anywhere[job['id']]}" for job in jobs
                 if job["id"] not in messages and job["place"] is None and job["excluded"] is None}  # fmt: skip
    moved = [job["id"] for job in jobs if job["id"] not in messages]
    tx.update("jobs", ["id"], [{"id": job, "excluded": None, **GIVEN_UP} for job in moved])
    tx.update("progress", ["job_id"], [{"job_id": job, "step": 0, "checkpoint_step": None} for job in moved])
    for job in moved:
        tx.event("job.move", request.user, job=job, reason=f"its checkpoint is given up: it may start on {anywhere[job]}")
    if moved:
        tx.touch("leases")  # for replicas that wait for it
    return messages | {job: f"may start on {anywhere[job]}, anew where its checkpoint is not" for job in moved}


def _priority(tx: Transaction, jobs: Sequence[Job], request: Control) -> dict[int, str]:
    messages = _ended(jobs)
    live = [job for job in jobs if job["id"] not in messages]
    tx.update("jobs", ["id"], [{"id": job["id"], "priority": request.priority} for job in live])
    if any(job["lease_id"] is not None for job in live):
        tx.touch("leases")  # for runners: it counts among those that share a GPU
    for job in live:
        tx.event("job.priority", request.user, job=job["id"], before=str(job["priority"]), after=str(request.priority))
    return messages | {job["id"]: f"priority {job['priority']} -> {request.priority}" for job in live}
