"""Why a job waits, runs or ended as it did, from what the tables say: `stoker explain`."""

from __future__ import annotations

from typing import Any

from .rows import objects
from .states import FINAL, State
from .store.store import Store


def explain(store: Store, job: int) -> dict[str, Any]:
    """The answer of `GET /v1/jobs/REF/explain`; see docs/api.md."""
    (row,) = objects(store, "api/job", job)
    found = objects(store, "api/waiting", job)
    waiting = found[0] if found else None
    decisions = [_decision(job, decision) for decision in objects(store, "api/job_decisions", job)]
    blockers = objects(store, "api/blockers", row["pool"]) if row["state"] == State.PENDING else []
    return {
        "job": {"id": job, "name": row["name"], "state": row["state"]},
        "summary": _summary(row, waiting),
        "waiting": waiting,
        "decisions": decisions,
        "blockers": blockers,
        "deadline": _deadline(store, row, waiting),
        "expected": expected(store, job),
        "silent": objects(store, "api/silent", job),
    }


def expected(store: Store, job: int) -> dict[str, Any] | None:
    """When a job that stops at a metric is expected to get there; None: it stops otherwise, has ended, or nothing is known yet."""
    found = objects(store, "api/expected", job)
    return found[0] if found else None


def _summary(row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    state = row["state"]
    if state in (State.PENDING, State.SUBMITTED):
        why = waiting["reason"] if waiting else row["state_reason"] or "the policy has not looked at it yet"
        place = f" (place {waiting['position']} in the queue)" if waiting and waiting["position"] else ""
        return f"{why}{place}" if why.startswith("waits") else f"waits: {why}{place}"
    if state in FINAL:
        return f"{state}: {row['state_reason']}" if row["state_reason"] != state else str(state)
    return f"{state} {row['state_reason']}, attempt {row['attempts']}"


def _decision(job: int, row: dict[str, Any]) -> dict[str, Any]:
    """What a decision meant for this job."""
    plan = row.pop("plan")
    what, why = "waits", plan["deferred"].get(str(job), "")
    for start in plan["starts"]:
        if start["job"] == job:
            what, why = f"starts on {', '.join(start['gpus'])}", f"lease {start['lease']}"
    for stop in plan["stops"]:
        if stop["lease"] in row["leases"]:
            what, why = f"stops ({stop['reason']})", f"for job {stop['for']}" if stop["for"] else ""
    return {"ts": row["ts"], "policy": row["policy"], "outcome": row["outcome"], "what": what, "why": why}


def _deadline(store: Store, row: dict[str, Any], waiting: dict[str, Any] | None) -> dict[str, Any] | None:
    at = row["deadline"]
    if at is None:
        return None
    if row["finished_at"] is not None:
        met = row["state"] == State.COMPLETED and row["finished_at"] <= at
        return {"at": at, "estimate": row["finished_at"], "verdict": "met" if met else "missed"}
    now, remaining = store.rows("api/now")[0][0], store.rows("api/remaining", row["id"])[0][0]
    est_start = waiting["est_start"] if waiting else None
    start = now if row["lease_id"] is not None else est_start
    estimate = None if remaining is None or start is None else max(start, now) + remaining
    if now > at:
        verdict = "missed"
    elif remaining is None:
        verdict = "not known: nothing tells yet how long it takes (give 'estimate', or let it report steps)"
    elif estimate is None:
        verdict = "not known: nothing tells yet when it starts"
    else:
        verdict = "on time" if estimate <= at else "at risk"
    return {"at": at, "estimate": estimate, "verdict": verdict}
