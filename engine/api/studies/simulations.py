"""Endpoints of the simulator: store the figures of a run, list the runs, hand out this daemon's own history."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ...errors import NotFound, UsageError, nearest
from ...json_rows import objects
from ...sim.results.figures import Figure, Figures, Long
from ...studies.stored_simulations import NewRun, add_run
from ..call import Call, endpoint

MOST_RUNS = 1000  #: runs of a listing
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  #: fits an INTEGER column
Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class RunRow(Figures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columns of `sim_runs` that the client knows."""

    study: Text
    trace: Text
    trace_id: Long | None = None
    trace_sha256: Text | None = None
    policy: Text
    config: dict[str, Any]
    nodes: Text
    options: dict[str, Any]
    seed: Long
    version: Text
    status: Literal["completed", "failed"]
    error: Text | None
    jobs: Long
    finished: Long
    rejected: Long
    dropped: Long
    not_submitted: Long = 0
    undecided: Long = 0
    events: Long
    decisions: Long
    plan_seconds: Figure
    wall_seconds: Figure


class JobColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: list[Long] = []
    started: list[Figure | None] = []
    ended: list[Figure | None] = []
    run_time: list[Figure] = []
    gpu_time: list[Figure] = []
    lost: list[Figure] = []
    preemptions: list[Count] = []
    rho: list[Figure | None] = []
    reward: list[Figure | None] = []
    rejected: list[bool] = []
    submitted: list[Figure] | None = None  #: from an older client, as the next two
    jct: list[Figure | None] | None = None
    gpus: list[Count] | None = None


class UsageColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ts: list[Figure] = []
    busy: list[Count] = []
    running: list[Count] = []
    waiting: list[Count] = []


class RunMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: RunRow
    jobs: JobColumns = JobColumns()
    usage: UsageColumns = UsageColumns()


async def add(call: Call) -> dict[str, Any]:
    """Store a whole run; with ``?more=1`` this is its beginning, and the answer says where to send the rest of its jobs."""
    message = await call.message(RunMessage)
    new = await call.upload(_new_run, message, call.who.user)
    if call.query("more") in ("1", "true"):
        return {"upload": call.daemon.run_uploads.begin(new)}
    return await _store(call, new)


async def add_more(call: Call) -> dict[str, Any]:
    """Add the next jobs of an upload; with ``?last=1`` the run is stored."""
    columns = await call.message(JobColumns)
    jobs = await call.upload(_columns, "jobs", columns)
    token, uploads = call.path("token"), call.daemon.run_uploads
    uploads.add(token, call.who.user, int(call.number("offset") or 0), jobs)
    if call.query("last") not in ("1", "true"):
        return {"upload": token}
    return await _store(call, await call.upload(uploads.end, token, call.who.user))


async def _store(call: Call, new: NewRun) -> dict[str, Any]:
    return {"id": await asyncio.wrap_future(call.daemon.store.submit(add_run, new))}


def _new_run(message: RunMessage, user: str) -> NewRun:
    return NewRun(msgspec.structs.asdict(message.run), _columns("jobs", message.jobs), _columns("usage", message.usage), user)


def _columns(what: str, message: msgspec.Struct) -> dict[str, Any]:
    """The columns as arrays, NaN for null; UsageError when they differ in length."""
    lists: dict[str, list[Any]] = {name: values for name, values in msgspec.structs.asdict(message).items() if values is not None}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"{what}: its columns differ in length: {', '.join(f'{name} {rows}' for name, rows in lengths.items())}")
    types = {field.name: field.type for field in msgspec.structs.fields(message)}
    plain = {list[Long]: np.int64, list[Count]: np.int64, list[Count] | None: np.int64, list[bool]: np.bool_}
    return {name: np.array(values, dtype=plain.get(types[name], np.float64)) for name, values in lists.items()}


async def list_runs(call: Call) -> dict[str, Any]:
    limit = min(int(call.number("limit") or MOST_RUNS), MOST_RUNS)
    return {"runs": await call.read(objects, call.daemon.store, "api/sim_runs", call.query("study"), limit)}


async def history(call: Call) -> dict[str, Any]:
    """Data for a replay: jobs that have ended, their GPUs and times, and the pool as it is."""
    pool, since = call.query("pool") or "default", call.number("since") or 0.0
    store = call.daemon.store

    def read() -> dict[str, Any]:
        pools = [row[0] for row in store.rows("api/sim_pools")]
        if pool not in pools:
            raise NotFound(f"there is no pool {pool!r}{nearest(pool, pools)}; there are: {', '.join(pools)}")
        return {
            "pool": pool,
            "jobs": objects(store, "api/sim_history", pool, since),
            "stays": objects(store, "api/sim_stays", pool, since),
            "nodes": [row[0] for row in store.rows("api/sim_nodes", pool)],
            "left_out": objects(store, "api/sim_left_out", pool, since)[0],
            "models": objects(store, "api/sim_models", pool),
            "slowdowns": objects(store, "api/sim_slowdowns", pool),
        }

    return await call.read(read)


ENDPOINTS = [
    endpoint("/v1/simulations", "submit", add, ["POST"]),
    endpoint("/v1/simulations/uploads/{token}", "submit", add_more, ["POST"]),
    endpoint("/v1/simulations", "read", list_runs),
    endpoint("/v1/simulations/history", "read", history),
]
