"""Endpoints that act on many jobs at once: failed or cancelled ones are submitted again, live ones that match are cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec

from ...errors import Conflict, UsageError
from ...jobs.control import Control
from ...jobs.owners import require_own
from ...jobs.states import State
from ...jobs.submission import SubmitRequest, submit
from ...json_rows import objects
from ...spec.expand import fired
from ...spec.model import JobSpec, Provenance, Submission, base_name
from ..call import Call, endpoint
from ..thread_pools import Kind
from .jobs import controlled, named_job
from .selection import as_json, known_states, like

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Word = Annotated[str, msgspec.Meta(min_length=1)]  #: an empty one may be a slip, and would match more jobs than were meant


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    array: bool = False  #: retry all tasks of the job's array that failed or were cancelled
    key: Key | None = None  #: a request repeated with the same key submits nothing more


async def retry(call: Call) -> dict[str, Any]:
    """Submit jobs that failed or were cancelled again, as new jobs with the same specs and owners; deadlines count from now."""
    return await submit_again(call, await call.options(Retry))


async def submit_again(call: Call, asked: Retry) -> dict[str, Any]:
    named = await named_job(call, Kind.CONTROL)
    submission, numbers, before = await call.control(_again, call, named.job, asked, named.array or asked.array)
    if before:
        return {"jobs": before}
    jobs = await asyncio.wrap_future(call.daemon.store.submit(submit, SubmitRequest(submission, call.who.user)))
    return {"jobs": [{**job, "of": numbers[job["name"]]} for job in jobs]}


def _again(call: Call, job: int, asked: Retry, array: bool) -> tuple[Submission, dict[str, int], list[dict[str, Any]]]:
    """The submission, and the job that each new job retries, by name; or the jobs that the same request has submitted before: by then
    a name means those."""
    store = call.daemon.store
    tasks = [number for (number,) in store.rows("api/array_tasks", job)]
    found = objects(store, "api/to_retry", (tasks if array else []) or [job])
    provenance = Provenance(argv=[], cwd="/")
    told = [{**{name: row[name] for name in ("id", "name", "state")}, "existing": True, "of": retried} for row in found
            if asked.key and (retried := _retried_with(asked.key, row["spec"].get("idempotency_key") or "")) is not None]  # fmt: skip
    if told:
        return Submission(jobs=[], provenance=provenance), {}, told
    bad = [row for row in found if row["state"] in (State.FAILED, State.CANCELLED)]
    if not bad:
        raise Conflict(_not_retried(found))
    if bad[0]["spec"].get("replicas"):
        bad = _whole_group(objects(store, "api/to_retry", tasks))
    for row in bad:
        require_own(f"job {row['id']} {row['name']}", row["owner"], call.only)
    now = time.time()
    specs = [_anew(msgspec.convert(row["spec"], JobSpec), row, asked.key, now) for row in bad]
    for known in objects(store, "api/provenance", bad[0]["id"]):
        provenance = msgspec.convert(known, Provenance)
    return Submission(jobs=specs, provenance=provenance), {row["name"]: row["id"] for row in bad}, []


def _retried_with(key: str, made: str) -> int | None:
    """The job that a job was made to retry, by the key that `_anew` gave it; None: it is of another request, or was not made by one."""
    begin, _, number = made.rpartition("/")
    return int(number) if begin == key and number.isdecimal() else None


def _not_retried(found: list[dict[str, Any]]) -> str:
    if len(found) > 1:
        return f"no task of {base_name(found[0]['name'])} has failed or was cancelled, so there is nothing to retry"
    job = f"job {found[0]['id']} {found[0]['name']}"
    if found[0]["state"] == State.COMPLETED:
        return f"{job} has completed: submit it again to run it once more"
    return f"{job} is {found[0]['state']}: 'stoker cancel {found[0]['id']}' ends it first"


def _anew(spec: JobSpec, row: dict[str, Any], key: str | None, now: float) -> JobSpec:
    fresh = fired(spec, submitted_at=row["submitted_at"], at=now)
    idempotency = None if key is None else f"{key}/{row['id']}"  # two jobs of a name are two retries
    return msgspec.structs.replace(fresh, idempotency_key=idempotency, user=row["owner"], hold=False)


def _whole_group(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All replicas of a group: a part of them would be another group, which trains everything anew beside the first."""
    name = base_name(found[0]["name"])
    if any(row["state"] == State.COMPLETED for row in found):
        raise Conflict(f"the replicas {name} have finished all steps, so there is nothing to retry")
    if any(row["state"] not in (State.FAILED, State.CANCELLED) for row in found):
        raise Conflict(f"the other replicas of {name} go on without it; 'stoker cancel {name}' ends them, and then all are retried")
    return found


class Matching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user: Word | None = None  #: None: the user of the request
    states: list[str] = []
    name: Word | None = None  #: * and ? stand for any characters
    labels: dict[str, str] = {}


async def cancel_matching(call: Call) -> dict[str, Any]:
    """Cancel all jobs that have not ended and match, in one transaction."""
    asked = await call.options(Matching)
    states = known_states(asked.states)
    if asked == Matching():
        raise UsageError("user: name the user, states, name or labels of the jobs that are to be cancelled")
    user = asked.user if asked.user is not None else call.who.user
    found = await call.control(call.daemon.store.rows, "api/live_matching", user, states, like(asked.name), as_json(asked.labels))
    if not found:
        return {"jobs": []}
    return await controlled(call, Control("cancel", tuple(job for (job,) in found), call.who.user, only=call.only))


ENDPOINTS = [
    endpoint("/v1/jobs/{ref}/retry", "submit", retry, ["POST"]),
    endpoint("/v1/cancel", "submit", cancel_matching, ["POST"]),
]
