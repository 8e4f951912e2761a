"""Transitions of jobs: the one place where `jobs.state` changes, each change with its event in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Conflict
from ..store.transaction import Transaction
from .states import ACTIVE, FINAL, State, legal

WAITING = frozenset({State.SUBMITTED, State.PENDING})
GOING_ON = frozenset({State.STARTING, State.RUNNING})  #: moves from a granted lease to these change nothing for a policy


@dataclass(frozen=True, slots=True)
class Move:
    """One transition. ``changes`` are further columns of ``jobs`` to set with it."""

    job: int
    to: State
    reason: str
    actor: str
    lease: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def move(tx: Transaction, moves: Sequence[Move]) -> None:
    """Make the transitions in order; several for one job are allowed. Ends of jobs settle the jobs that wait for them.

    Raises Conflict if one is not legal: that is our own error, and undoes the transaction.
    """
    while moves:
        state = {row[0]: State(row[1]) for row in tx.execute("job_states", [m.job for m in moves])}
        waited = {job for job, before in state.items() if before in WAITING}
        rows: dict[int, dict[str, Any]] = {}
        for step in moves:
            before = state.get(step.job)
            if before is None or not legal(before, step.to):
                raise Conflict(f"job {step.job}: no transition from {before} to {step.to} ({step.reason})")
            state[step.job] = step.to
            rows.setdefault(step.job, {"id": step.job}).update(_columns(tx, before, step))
            tx.event("job.state", step.actor, job=step.job, lease=step.lease, before=before, after=step.to, reason=step.reason)
        tx.update("jobs", ["id"], list(rows.values()))
        tx.delete("waiting", "job_id", [job for job in waited if state[job] not in WAITING])
        if any(step.to not in GOING_ON for step in moves):
            tx.touch("queue")
        moves = _settle(tx, {job: now for job, now in state.items() if now in FINAL})


def _columns(tx: Transaction, before: State, step: Move) -> dict[str, Any]:
    columns: dict[str, Any] = {"state": step.to, "state_since": tx.now, "state_reason": step.reason, **step.changes}
    if step.to in FINAL:
        columns.setdefault("finished_at", tx.now)
    if step.to not in ACTIVE:
        columns["lease_id"] = None
    if before is State.SUBMITTED and step.to is State.PENDING:
        columns["eligible_at"] = tx.now
    return columns


def _settle(tx: Transaction, ended: Mapping[int, State]) -> list[Move]:
    """The effects of ended jobs on those that wait for them: go on, or be cancelled as their need can't be met."""
    if not ended:
        return []
    met: list[dict[str, Any]] = []
    lost: dict[int, Move] = {}
    for job, needs, mode in tx.execute("dependents", list(ended)):
        if mode == "any" or ended[needs] is State.COMPLETED:
            met.append({"job_id": job, "needs": needs, "met": True})
        else:
            reason = f"job {needs}, which it needs, ended as {ended[needs]}"
            lost[job] = Move(job, State.CANCELLED, reason, "daemon", changes={"outcome": "dependency"})
    for job, source, saved in tx.execute("weight_waiters", list(ended)):
        if not saved:
            reason = f"job {source}, with whose weights it was to begin, ended as {ended[source]} without a checkpoint"
            lost[job] = Move(job, State.CANCELLED, reason, "daemon", changes={"outcome": "dependency"})
    tx.update("dependencies", ["job_id", "needs"], met)
    ready = [row[0] for row in tx.execute("ready", [row["job_id"] for row in met]) if row[0] not in lost] if met else []
    return [*lost.values(), *(Move(job, State.PENDING, "all that it waited for has ended", "daemon") for job in ready)]
