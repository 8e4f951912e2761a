"""Builds the View of a pool from the tables: the daemon's side of the policies' contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..policies.contract import Gpus, Ints, Jobs, Nodes, View
from .sqlfiles import sql

if TYPE_CHECKING:
    import duckdb

_INTS = ("phase", "gpus_min", "gpus_max", "priority", "demand", "preemptions")
_FLOATS = ("submitted_at", "deadline", "attained", "run_time", "lease_time", "remaining", "gpu_memory")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A View with what the engine needs beside it to act on a Plan. Rows are those of ``view.jobs``."""

    view: View
    lease_id: Ints  #: live lease of each job, 0: none
    expires_at: np.ndarray[Any, np.dtype[np.float64]]  #: end of that lease, inf: none
    ineligible: list[tuple[int, str, str]]  #: job, code and reason of what waits for something other than GPUs


def snapshot(con: duckdb.DuckDBPyConnection, pool: str, now: float) -> Snapshot:
    """Read one pool in one transaction, so that jobs, leases and GPUs fit each other."""
    con.execute("BEGIN")
    try:
        gpus = con.execute(sql("policy/gpus"), [pool]).fetchnumpy()
        jobs = con.execute(sql("policy/jobs"), [pool, now]).fetchnumpy()
        held = con.execute(sql("policy/held"), [pool]).fetchnumpy()
        tiers = con.execute(sql("policy/tiers"), [pool]).fetchnumpy()
        ineligible = con.execute(sql("policy/ineligible"), [pool, now]).fetchall()
    finally:
        con.execute("COMMIT")
    nodes, node_of = np.unique(np.asarray(gpus["node_id"], dtype=object), return_inverse=True)
    row_of_gpu = {gpu: row for row, gpu in enumerate(gpus["id"])}
    ids = np.asarray(jobs["id"], dtype=np.int64)
    # A GPU that has gone missing under a running job has no row: the job keeps what is left of its allocation.
    known = np.array([gpu in row_of_gpu for gpu in held["gpu_id"]], dtype=bool)
    held_gpus = np.array([row_of_gpu[gpu] for gpu in held["gpu_id"][known]], dtype=np.int64)
    alloc_start, alloc_gpus = _csr(ids, np.asarray(held["job_id"], dtype=np.int64)[known], held_gpus)
    tier_job = np.asarray(tiers["job_id"], dtype=np.int64)
    tier_start, tier_deadline = _csr(ids, tier_job, np.asarray(tiers["deadline"], dtype=np.float64))
    _, tier_reward = _csr(ids, tier_job, np.asarray(tiers["reward"], dtype=np.float64))
    columns: dict[str, Any] = {name: np.asarray(jobs[name], dtype=np.int64) for name in _INTS}
    columns |= {name: np.asarray(jobs[name], dtype=np.float64) for name in _FLOATS}
    table = Jobs(
        id=ids,
        user=_codes(jobs["user_code"]),
        model=_codes(jobs["model_code"]),
        **columns,
        alloc_start=alloc_start,
        alloc_gpus=alloc_gpus,
        tier_start=tier_start,
        tier_deadline=tier_deadline,
        tier_reward=tier_reward,
    )
    view = View(
        now=now,
        pool=pool,
        jobs=table,
        gpus=Gpus(
            id=np.asarray(gpus["id"], dtype=object),
            node=np.asarray(node_of, dtype=np.int64),
            index=np.asarray(gpus["idx"], dtype=np.int64),
            usable=np.asarray(gpus["usable"], dtype=bool),
            memory=np.asarray(gpus["memory"], dtype=np.float64),
        ),
        nodes=Nodes(id=nodes),
    )
    return Snapshot(view, np.asarray(jobs["lease_id"], dtype=np.int64), np.asarray(jobs["expires_at"], dtype=np.float64), ineligible)


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


def _codes(values: Any) -> Ints:
    """Small codes in order of value: 0, 1, 2, …"""
    return np.unique(np.asarray(values, dtype=np.int64), return_inverse=True)[1].astype(np.int64)
