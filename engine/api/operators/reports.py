"""Data of `stoker report`: the queries of sql/report/, by name, on a cursor of the daemon; and the bank of adapters."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import NotFound, nearest
from ...json_rows import objects, plain
from ...store.reading import Value, read
from ...store.sqlfiles import names
from ..call import Call, endpoint
from ..thread_pools import Kind

MAX_ROWS = 100_000
MAX_SECONDS = 300.0


class ReportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    values: dict[str, Value] = {}


async def report(call: Call) -> dict[str, Any]:
    asked = await call.message(ReportQuery)
    known = names("report")
    if asked.query not in known:
        raise NotFound(f"query: no query of a report is named {asked.query!r}{nearest(asked.query, known)}; there are: {', '.join(known)}")
    return await call.run(Kind.REPORT, _answer, call, asked)


def _answer(call: Call, asked: ReportQuery) -> dict[str, Any]:
    found = read(call.daemon.store, f"report/{asked.query}", asked.values, rows=MAX_ROWS, seconds=MAX_SECONDS)
    rows = [[plain(value) for value in row] for row in found.rows]
    return {"columns": found.columns, "rows": rows, "truncated": found.truncated}


async def adapters(call: Call) -> dict[str, Any]:
    every = call.query("all") in ("1", "true")
    return {"adapters": await call.read(objects, call.daemon.store, "api/adapters", call.query("user"), every)}


ENDPOINTS = [endpoint("/v1/report", "read", report, ["POST"]), endpoint("/v1/adapters", "read", adapters)]
