"""Builds the View of a pool from the tables: the daemon's side of the policies' contract.

The queries only fetch; what depends on the moment is computed here. A policy ticks on every event, and of its
time planning SQL is the most: so few queries, with few expressions, and none for what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..policies.contract import Bools, Demand, Floats, Gpus, Ints, Jobs, Nodes, Phase, View
from .overheads import Overheads
from .profiles import profiles_of, rows_of
from .sqlfiles import sql

if TYPE_CHECKING:
    import duckdb

Columns = dict[str, np.ndarray[Any, Any]]

PROFILED_AT_MOST = 2  #: profiling runs whose leases were too short to measure anything; then the job runs unmeasured
PROFILED_ON = 2  #: GPUs that show what a job computes and what its ranks say to each other, at most (002 ch. 5.3.2.1)


NOT_MEASURED = Overheads()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A View with what the engine needs beside it to act on a Plan. Rows are those of ``view.jobs``."""

    view: View
    lease_id: Ints  #: live lease of each job, 0: none
    expires_at: Floats  #: end of that lease, inf: none
    ineligible: list[tuple[int, str, str]]  #: job, code and reason of what waits for something other than GPUs


def snapshot(con: duckdb.DuckDBPyConnection, pool: str, now: float, overheads: Overheads = NOT_MEASURED) -> Snapshot:
    """Read one pool in one transaction, so that jobs, leases and GPUs fit each other."""
    con.execute("BEGIN")
    try:
        gpus = _by_position(con.execute(sql("policy/gpus"), [pool]).fetchnumpy())
        everything = con.execute(sql("policy/jobs"), [pool]).fetchnumpy()
        schedulable = _schedulable(everything, now)
        order = np.lexsort((everything["id"], everything["submitted_at"]))
        rows = order[schedulable[order]]
        jobs = {name: column[rows] for name, column in everything.items()}
        lease_id = _ints(jobs["lease_id"])
        held = con.execute(sql("policy/held"), [lease_id[lease_id > 0].tolist()]).fetchnumpy() if lease_id.any() else _NONE_HELD
        tiers = con.execute(sql("policy/tiers"), [pool]).fetchnumpy() if jobs["timed"].any() else _NO_TIERS
        signature = _ints(jobs["signature"])
        profiles, known = profiles_of(con, pool, signature[jobs["measured"]]) if jobs["measured"].any() else ((), _NONE_KNOWN)
        ineligible = [] if schedulable.all() else con.execute(sql("policy/ineligible"), [pool, now]).fetchall()
    finally:
        con.execute("COMMIT")
    nodes, node_of = np.unique(np.asarray(gpus["node_id"], dtype=object), return_inverse=True)
    overhead = overheads.of(pool, jobs["model"], _ints(jobs["gpus_min"]))
    view = View(
        now=now,
        pool=pool,
        jobs=_jobs(jobs, lease_id, _rows_of_held(gpus["id"], held), tiers, rows_of(signature, known), overhead, now),
        gpus=Gpus(
            id=np.asarray(gpus["id"], dtype=object),
            node=np.asarray(node_of, dtype=np.int64),
            index=np.asarray(gpus["idx"], dtype=np.int64),
            usable=np.asarray(gpus["usable"], dtype=bool),
            memory=np.asarray(gpus["memory"], dtype=np.float64),
        ),
        nodes=Nodes(id=nodes),
        profiles=profiles,
    )
    return Snapshot(view, lease_id, _seconds(jobs["expires_at"], np.inf), ineligible)


_NONE_HELD: Columns = {"lease_id": np.zeros(0, dtype=np.int64), "gpu_id": np.zeros(0, dtype=object)}
_NONE_KNOWN: Ints = np.zeros(0, dtype=np.int64)
_NO_TIERS: Columns = {"job_id": np.zeros(0, dtype=np.int64), "deadline": np.zeros(0), "reward": np.zeros(0)}


def _schedulable(jobs: Columns, now: float) -> Bools:
    """Those that hold GPUs, and those that wait for nothing else; tasks of an array only as many as it may run at once."""
    holds = _ints(jobs["lease_id"]) > 0
    free = jobs["pending"] & ~jobs["held"] & ~holds & (_seconds(jobs["not_before"], -np.inf) <= now)
    cap = _floats(jobs["array_cap"], np.inf)
    if np.isfinite(cap).any():
        array = _ints(jobs["array_id"])
        for number in np.unique(array[free & np.isfinite(cap)]):
            tasks = np.flatnonzero(free & (array == number))
            tasks = tasks[np.argsort(jobs["id"][tasks])]
            room = max(0, int(cap[tasks[0]]) - int((holds & (array == number)).sum()))
            free[tasks[room:]] = False
    schedulable: Bools = holds | free
    return schedulable


def _jobs(
    jobs: Columns, lease_id: Ints, held: tuple[Ints, Ints], tiers: Columns, profile: Ints, overhead: Floats | None, now: float
) -> Jobs:
    ids, gang = _ints(jobs["id"]), _ints(jobs["gpus_min"])
    tried = np.isfinite(_seconds(jobs["first_start_at"], np.nan)) | (_ints(jobs["unmeasured"]) >= PROFILED_AT_MOST)
    unmeasured = (profile < 0) & (_ints(jobs["signature"]) > 0) & ~tried
    trains_since = np.where(np.ma.filled(jobs["profiling"], False), np.inf, _seconds(jobs["started_at"], np.inf))
    since_start = np.maximum(now - trains_since, 0.0)  # a runner's clock may be ahead of ours
    run_time = _floats(jobs["run_time"]) + since_start
    ahead = _floats(jobs["ahead"], np.nan)
    remaining = np.maximum(np.where(np.isnan(ahead), _floats(jobs["duration"], np.nan) - run_time, ahead), 0.0)
    most, spread = np.fmax(_floats(jobs["ahead_most"], np.nan), remaining), _floats(jobs["spread"], np.nan)
    alloc_start, alloc_gpus = _csr(lease_id, *held)
    tier_start, tier_deadline = _csr(ids, tiers["job_id"], tiers["deadline"])
    _, tier_reward = _csr(ids, tiers["job_id"], tiers["reward"])
    return Jobs(
        id=ids,
        submitted_at=_seconds(jobs["submitted_at"]),
        phase=np.where(lease_id == 0, Phase.PENDING, np.where(jobs["stopping"], Phase.STOPPING, Phase.ACTIVE)).astype(np.int64),
        gpus_min=gang,
        gpus_max=_ints(jobs["gpus_max"]),
        priority=_ints(jobs["priority"]),
        demand=np.where(jobs["strict"], Demand.STRICT, np.where(jobs["timed"], Demand.SOFT, Demand.BEST_EFFORT)).astype(np.int64),
        deadline=_seconds(jobs["deadline"], np.inf),
        attained=_floats(jobs["attained"]) + since_start * _floats(jobs["gpu_count"]),
        run_time=run_time,
        lease_time=np.maximum(now - _seconds(jobs["granted_at"], np.inf), 0.0),
        remaining=remaining,
        gpu_memory=_floats(jobs["gpu_memory"]),
        preemptions=_ints(jobs["preemptions"]),
        user=_codes(jobs["owner"]),
        model=_codes(jobs["model"]),
        alloc_start=alloc_start,
        alloc_gpus=alloc_gpus,
        tier_start=tier_start,
        tier_deadline=tier_deadline,
        tier_reward=tier_reward,
        lease_end=_seconds(jobs["expires_at"], np.inf),
        remaining_most=most if (most > remaining).any() else None,
        uncertainty=None if np.isnan(spread).all() else spread,
        overhead=overhead,
        profile=profile,
        progress=np.minimum(_floats(jobs["done"], np.nan), 1.0),
        profile_gpus=np.where(unmeasured, np.minimum(gang, PROFILED_ON), 0),
    )


def _by_position(gpus: Columns) -> Columns:
    """By node, then by their position on it."""
    order = np.lexsort((gpus["idx"], np.asarray(gpus["node_id"], dtype=str)))
    return {name: column[order] for name, column in gpus.items()}


def _rows_of_held(gpus: np.ndarray[Any, Any], held: Columns) -> tuple[Ints, Ints]:
    """Leases and the rows of their GPUs, ascending. One that has gone missing under a running job has no row: the job keeps the rest."""
    row_of = {gpu: row for row, gpu in enumerate(gpus)}
    known = np.array([gpu in row_of for gpu in held["gpu_id"]], dtype=bool)
    rows = np.array([row_of[gpu] for gpu in held["gpu_id"][known]], dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    return _ints(held["lease_id"])[known][order], rows[order]


def _csr(ids: Ints, owner: Ints, values: np.ndarray[Any, Any]) -> tuple[Ints, np.ndarray[Any, Any]]:
    """Group ``values`` by their owner in the order of ``ids``; values of owners that are not there are left out."""
    order = np.argsort(ids, kind="stable")
    position = np.searchsorted(ids, owner, sorter=order)
    inside = position < len(ids)
    position = order[position[inside]] if len(ids) else np.zeros(0, dtype=np.int64)
    owner, values = owner[inside], values[inside]
    match = ids[position] == owner
    position, values = position[match], values[match]
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(np.bincount(position, minlength=len(ids)), out=starts[1:])
    return starts, values[np.argsort(position, kind="stable")]


def _codes(values: np.ndarray[Any, Any]) -> Ints:
    """Small codes in order of value: 0, 1, 2, …"""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _ints(column: np.ndarray[Any, Any]) -> Ints:
    """NULL is 0."""
    return np.ma.filled(column, 0).astype(np.int64)


def _floats(column: np.ndarray[Any, Any], missing: float = 0.0) -> Floats:
    return np.ma.filled(column.astype(np.float64), missing)


def _seconds(column: np.ndarray[Any, Any], missing: float = 0.0) -> Floats:
    """Timestamps as seconds since the epoch."""
    return _floats(column.astype("datetime64[us]").astype(np.int64).astype(np.float64) / 1e6, missing)
