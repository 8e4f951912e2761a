"""Endpoints about workload traces: add (whole, or slice by slice), list, describe, read, drop."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from ...errors import LimitExceeded, UsageError
from ...json_rows import objects
from ...studies.stored_traces import NewTrace, add_trace, drop_trace, known_trace, no_trace
from ...traces.trace import Trace, TraceJob
from ..call import MAX_BODY, Call, decode, endpoint
from .uploads import Upload, begin

MAX_SLICE = 20_000  #: jobs in one answer
T = TypeVar("T")


async def _body(call: Call, kind: type[T]) -> T:
    """The message, which may be gzipped; unpacked it may not be larger than a request."""
    body = await call.body()
    return await call.upload(_unpacked, body, kind)


def _unpacked(body: bytes, kind: type[T]) -> T:
    if body[:2] == b"\x1f\x8b":
        unpacker = zlib.decompressobj(wbits=31)
        try:
            body = unpacker.decompress(body, MAX_BODY)
        except zlib.error as error:
            raise UsageError(f"the request is not gzip data: {error}") from None
        if unpacker.unconsumed_tail:
            raise LimitExceeded(f"the request is larger than {MAX_BODY >> 20} MiB unpacked: send fewer jobs at once")
        if not unpacker.eof:
            raise UsageError("the request's gzip data is cut off")
    return decode(body, kind)


async def add(call: Call) -> dict[str, Any]:
    """Store a whole trace; with ``?total=N`` (jobs) this is its beginning, and the answer says where to send the rest."""
    trace = await _body(call, Trace)
    upload = await call.upload(begin, trace, call.who.user)
    total = call.number("total")
    if total is None:
        return await _commit(call, upload)
    if total < max(upload.jobs, 1):
        raise UsageError(f"total: {total:g} jobs are fewer than came with this message")
    upload.total = int(total)
    existing = await call.upload(_existing, call, upload.request())
    return existing or {"upload": call.daemon.uploads.keep(upload)}


async def add_more(call: Call) -> dict[str, Any]:
    """Add the next jobs of an upload; with the last of them the trace is stored."""
    jobs = await _body(call, list[TraceJob])
    token, offset = call.path("token"), int(call.number("offset") or 0)
    uploads = call.daemon.uploads
    upload = await call.upload(uploads.add, token, call.who.user, offset, jobs)
    if upload.jobs < (upload.total or 0):
        return {"upload": token, "jobs": upload.jobs}
    answer = await _commit(call, upload)
    uploads.end(token)
    return answer


async def _commit(call: Call, upload: Upload) -> dict[str, Any]:
    if not upload.jobs:
        raise UsageError("jobs: there is none in this trace")
    request = upload.request()
    if existing := await call.upload(_existing, call, request):
        return existing
    return await asyncio.wrap_future(call.daemon.store.submit(add_trace, request))


def _existing(call: Call, request: NewTrace) -> dict[str, Any] | None:
    """The answer when the trace is stored already; Conflict when another one has its name. This spares a useless transaction."""
    number = known_trace(request, call.daemon.store.objects("api/traces", request.about.name))
    return None if number is None else {"id": number, "name": request.about.name, "jobs": request.jobs, "existing": True}


async def list_traces(call: Call) -> dict[str, Any]:
    return {"traces": await call.read(objects, call.daemon.store, "api/traces", None)}


async def show(call: Call) -> dict[str, Any]:
    return await call.read(_show, call)


def _row(call: Call) -> dict[str, Any]:
    """The row of the trace that the path names; NotFound with the nearest name."""
    store, name = call.daemon.store, call.path("name")
    rows = objects(store, "api/traces", name)
    if not rows:
        raise no_trace(name, [row["name"] for row in objects(store, "api/traces", None)])
    return rows[0]


def _show(call: Call) -> dict[str, Any]:
    row = _row(call)
    (summary,) = objects(call.daemon.store, "api/trace_summary", row["id"])
    return {"trace": row, "summary": summary}


async def jobs(call: Call) -> Response:
    return await call.read(_jobs, call)


def _jobs(call: Call) -> Response:
    """A slice of `TraceJob`s. ``id``: only of the trace with this number, so that a reader never mixes two of the same name."""
    row = _row(call)
    number = int(call.number("id") or row["id"])
    offset, limit = int(call.number("offset") or 0), min(int(call.number("limit") or MAX_SLICE), MAX_SLICE)
    found = call.daemon.store.objects("api/trace_jobs", number, offset, limit) if number == row["id"] else []
    for job in found:
        job["raw"] = None if job["raw"] is None else msgspec.Raw(job["raw"].encode())
    return Response(msgspec.json.encode({"jobs": found}), media_type="application/json")


async def drop(call: Call) -> dict[str, Any]:
    return await asyncio.wrap_future(call.daemon.store.submit(drop_trace, (call.path("name"), call.who.user, call.only), urgent=True))


ENDPOINTS = [
    endpoint("/v1/traces", "submit", add, ["POST"]),
    endpoint("/v1/traces", "read", list_traces),
    endpoint("/v1/traces/uploads/{token}", "submit", add_more, ["POST"]),
    endpoint("/v1/traces/{name}", "read", show),
    endpoint("/v1/traces/{name}", "submit", drop, ["DELETE"]),
    endpoint("/v1/traces/{name}/jobs", "read", jobs),
]
