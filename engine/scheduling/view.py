"""Builds the View of a pool from the tables: the daemon's side of the policies' contract.

Each query fetches from one table, and only runs where there may be rows. Joins, and values that depend on the time, are computed
here: a policy ticks on every event, and DuckDB's planning of queries takes most of a tick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...policies.contract import Bools, Demand, Floats, Gpus, Ints, Jobs, Nodes, Phase, View
from ..hosts.places import Saved, closed, places_of, reason, too_short
from ..store.sqlfiles import run
from .measured_profiles import profiles_of, slowdowns_of, transfers_of
from .overheads import Overheads
from .query_columns import Array, Beside, Columns, codes, csr, fetch, fetch_of, first_known, floats, ints, rows_of, seconds, words
from .warm_gpus import Servers, warm_columns
from .work import Work, work_of

if TYPE_CHECKING:
    import duckdb

PROFILED_AT_MOST = 2  #: after so many profiling runs without a measurement a job runs unmeasured
PROFILED_ON = 2  #: GPUs of a profiling run at most: enough to measure computation and communication (002 ch. 5.3.2.1)

NOT_MEASURED = Overheads()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A View, and the further columns that the engine needs to act on a Plan. Rows are those of ``view.jobs``."""

    view: View
    lease_id: Ints  #: the job's live lease, 0: none
    expires_at: Floats  #: end of that lease, inf: open-ended, or none
    profiling: Bools  #: whether that lease is a profiling run
    ineligible: list[tuple[int, str, str]]  #: job, code and reason of jobs that wait for something other than GPUs
    replicas: Mapping[int, int]  #: group of each replica, of groups that train while some of their tasks wait


def snapshot(con: duckdb.DuckDBPyConnection, pool: str, now: float, overheads: Overheads = NOT_MEASURED) -> Snapshot:
    """Read one pool in one transaction, so that jobs, leases and GPUs are consistent."""
    con.execute("BEGIN")
    try:
        seen = _read(con, pool, now)
    finally:
        con.execute("COMMIT")
    jobs, lease_id = seen.jobs, ints(seen.jobs["lease_id"])
    gpus, nodes = _gpus(seen.gpus, seen.nodes, seen.servers, now)
    leases = Beside(lease_id, seen.leases, "id")
    profiles, known = profiles_of(seen.speeds, seen.gpus["product"], floats(seen.gpus["memory"]))
    profile = rows_of(ints(jobs["signature"]), known)
    overhead = overheads.of(pool, jobs["model"], ints(jobs["gpus_min"]))
    divided = Beside(lease_id, seen.divided, "lease_id")
    table = _jobs(jobs, seen.work, leases, divided, _rows_of_held(gpus.id, seen.held), seen.tiers, profile, overhead, now)
    slowdowns = slowdowns_of(seen.slowdowns, profiles, seen.gpus["product"])
    transfers, left = transfers_of(seen.bank, seen.gains, known)
    view = View(now, pool, table, gpus, nodes, profiles, slowdowns=slowdowns, transfers=transfers, left=left)
    profiling = leases.floats("profile", 0.0) > 0
    found = Snapshot(view, lease_id, leases.seconds("expires_at", np.inf), profiling, seen.ineligible, seen.replica_groups)
    return _checkpoint_first(_within_places(found, seen), seen)


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of one transaction's queries. Queries that no job needs were not run and have no columns."""

    jobs: Columns  #: schedulable jobs, in submission order
    work: Work  #: a row a job
    leases: Columns
    divided: Columns  #: service of leases that share their GPUs
    held: Columns
    tiers: Columns
    speeds: Columns  #: speeds of the jobs' signatures, on any GPU
    slowdowns: Columns  #: slow-downs of pairs of these models
    gpus: Columns
    nodes: Columns
    bank: Columns  #: ended jobs whose adapters are in the bank and may help some of these, by signature; {}: no job may begin with one
    gains: Columns  #: gains measured for beginnings with an adapter
    servers: Servers  #: empty where no GPU is in a backbone's pool
    ineligible: list[tuple[int, str, str]]
    saved: dict[int, Saved]  #: checkpoint of each row that has one or is to begin with one
    unsaving: dict[int, float]  #: expected end of each row that loses all its work when stopped, where a node leaves before that
    steps: dict[int, int]  #: step of each job's checkpoint, where it may be out of reach
    groups: dict[int, int]  #: group of each row that shares its input, where there is more than one node
    #: of groups none of which trains so far: array, job, name, step of its checkpoint, has GPUs
    replicas: list[tuple[int, int, str, int, bool]]
    replica_groups: dict[int, int]


def _within_places(found: Snapshot, seen: _Read) -> Snapshot:
    """Add the nodes on which each job may start; leave out jobs that wait for a place that is not there."""
    beside = _beside(found.view, seen.groups)
    if not seen.saved and not any(seen.jobs["excluded"]) and not seen.unsaving and not beside:
        return found
    places = places_of(zip(*(seen.nodes[name] for name in ("id", "state", "places", "fetch_at_most", "leaves")), strict=True))
    view = found.view
    free = np.ones(len(view.gpus), dtype=bool)
    free[view.jobs.alloc_gpus] = False
    where = closed(seen.jobs, view.jobs.gpu_memory, seen.saved, view.gpus, view.nodes, places, free, seen.unsaving, beside)
    if where.need is None:
        return found
    ids, excluded = view.jobs.id, seen.jobs["excluded"]
    waits = [
        (int(ids[row]), *reason(int(ids[row]), saved, seen.steps.get(int(ids[row])), excluded[row], places))
        if row not in seen.unsaving
        else (int(ids[row]), *too_short(view.nodes.id, seen.unsaving[row] - view.now, places, view.now))
        for row, saved in where.nowhere.items()
    ]
    view = replace(view, jobs=replace(view.jobs, need=where.need), needs=tuple(where.needs))
    found = replace(found, view=view, ineligible=[*found.ineligible, *waits])
    return without(found, list(where.nowhere)) if waits else found


def _beside(view: View, groups: Mapping[int, int]) -> dict[int, Bools]:
    """The nodes of those that share their input with a row that waits: there it finds the batches that they make."""
    jobs, nodes = view.jobs, defaultdict[int, Bools](lambda: np.zeros(len(view.nodes.id), dtype=bool))
    for row, group in groups.items():
        nodes[group][view.gpus.node[jobs.alloc_gpus[jobs.alloc_start[row] : jobs.alloc_start[row + 1]]]] = True
    return {row: nodes[group] for row, group in groups.items() if not jobs.held[row] and nodes[group].any()}


def _checkpoint_first(found: Snapshot, seen: _Read) -> Snapshot:
    """Of a group of replicas that is to go on from a checkpoint the tasks that have the newest one: any other would wait with its GPU."""
    if not seen.replicas:
        return found
    array_of = dict(zip(seen.jobs["id"].tolist(), seen.jobs["array_id"].tolist(), strict=True))
    waiting = {int(job): row for row, job in enumerate(found.view.jobs.id) if not found.lease_id[row]}
    waits = dict[int, tuple[int, str, str]]()
    for array, group in groupby(seen.replicas, key=lambda task: task[0]):
        tasks = list(group)
        startable = [task for task in tasks if task[1] in waiting]
        held = [step for *_, step, holds in tasks if holds]
        if held and all(step <= max(held) for *_, step, _ in startable):  # it has begun, and the others copy its state
            continue
        _, _, name, newest, _ = max(startable or tasks, key=lambda task: task[3])
        reason = f"{name} goes first, which has its group's checkpoint at step {newest}"
        reason += "" if startable else f", and cannot start now; 'stoker move {name} --restart' gives the checkpoint up"
        first = {job for _, job, _, step, _ in startable if step == newest}
        waits |= {row: (job, "group", reason) for job, row in waiting.items() if array_of[job] == array and job not in first}
    if not waits:
        return found
    return without(replace(found, ineligible=[*found.ineligible, *waits.values()]), list(waits))


def without(found: Snapshot, rows: list[int]) -> Snapshot:
    """The snapshot without some jobs, which hold no GPUs."""
    stay = np.ones(len(found.view.jobs), dtype=bool)
    stay[rows] = False
    jobs = found.view.jobs
    columns: dict[str, Any] = {
        field.name: None if (column := getattr(jobs, field.name)) is None else column[stay]
        for field in fields(Jobs)
        if field.name not in ("alloc_start", "alloc_gpus", "tier_start", "tier_deadline", "tier_reward")
    }
    tiers = np.diff(jobs.tier_start)
    kept = np.repeat(stay, tiers)
    starts = {"alloc_start": jobs.held[stay], "tier_start": tiers[stay]}
    columns |= {name: np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) for name, counts in starts.items()}
    columns |= {"alloc_gpus": jobs.alloc_gpus, "tier_deadline": jobs.tier_deadline[kept], "tier_reward": jobs.tier_reward[kept]}
    view = replace(found.view, jobs=Jobs(**columns))
    return replace(found, view=view, lease_id=found.lease_id[stay], expires_at=found.expires_at[stay], profiling=found.profiling[stay])


def _read(con: duckdb.DuckDBPyConnection, pool: str, now: float) -> _Read:
    everything = fetch(con, "policy/jobs", pool)
    schedulable = _schedulable(everything, now)
    order = np.lexsort((everything["id"], everything["submitted_at"]))
    rows = order[schedulable[order]]
    jobs = {name: column[rows] for name, column in everything.items()}
    lease_id, signature = ints(jobs["lease_id"]), ints(jobs["signature"])
    held_leases = lease_id[lease_id > 0]
    bank = fetch(con, "policy/bank_of_signatures") if jobs["begins"].any() else {}
    gains = fetch(con, "policy/gains_of_signatures") if bank else {}
    if bank:  # of a long history most is of no use to the jobs that are here, and what is known of pairs is a square of it
        useful = np.concatenate([signature, ints(gains["source"])[np.isin(gains["job"], signature)]])
        bank = {name: column[np.isin(bank["signature"], useful)] for name, column in bank.items()}
    signatures = np.concatenate([signature, ints(bank["signature"])]) if bank else signature
    speeds = fetch_of(con, "policy/speeds", np.unique(signatures[signatures > 0]))
    gpus, nodes = fetch(con, "policy/gpus", pool), fetch(con, "policy/nodes")
    work = work_of(con, jobs, speeds, gpus["product"])
    leases = fetch_of(con, "policy/leases", held_leases)
    shared = ints(leases["id"][leases["shared"]]).tolist() if leases else []
    return _Read(
        jobs,
        work,
        leases=leases,
        divided=fetch(con, "store/divided_service", shared, now) if shared else {},
        held=fetch_of(con, "policy/held", held_leases),
        tiers=fetch(con, "policy/tiers", pool) if jobs["timed"].any() else {},
        speeds=speeds,
        slowdowns=fetch_of(con, "policy/slowdowns", np.unique(speeds["model"])) if speeds else {},
        gpus=gpus,
        nodes=nodes,
        servers=run(con, "policy/fork_servers").fetchall() if any(gpus["warm"]) else [],
        bank=bank,
        gains=gains,
        ineligible=[] if schedulable.all() else run(con, "policy/ineligible", pool, now).fetchall(),
        unsaving=_unsaving(con, jobs, work, floats(nodes["leaves"])[nodes["state"] == "up"], now),
        groups={row: int(jobs["input"][row]) for row in np.flatnonzero(jobs["input"]).tolist()} if len(set(gpus["node_id"])) > 1 else {},
        **_saved(con, jobs),
        **_replicas(con, jobs, everything),
    )


def _unsaving(con: duckdb.DuckDBPyConnection, jobs: Columns, work: Work, leaves: Floats, now: float) -> dict[int, float]:
    """Expected ends of jobs that would lose all their work when stopped, where some node leaves before."""
    if not np.isfinite(leaves).any():
        return {}
    soonest = float(np.nanmin(leaves))
    long = (now + work.duration > soonest) & (ints(jobs["lease_id"]) == 0)
    rows = {int(jobs["id"][row]): int(row) for row in np.flatnonzero(long)}
    found = run(con, "policy/saves_nothing", list(rows)).fetchall() if rows else []
    return {rows[job]: now + float(work.duration[rows[job]]) for (job,) in found}


def _saved(con: duckdb.DuckDBPyConnection, jobs: Columns) -> dict[str, Any]:
    """Checkpoints of the jobs: their own, and those of other jobs with which they are to begin. Most pools have one place only."""
    source = floats(jobs["begin_from"])
    sizes, not_sent = floats(jobs["saved_bytes"]), jobs["not_sent"]
    saved = {
        row: Saved(str(place), size=float(sizes[row]), handed_on=bool(jobs["handed_on"][row]), not_sent=not_sent[row])
        for row, place in enumerate(jobs["place"])
        if place is not None
    }
    bound = {int(jobs["id"][row]): row for row in saved if jobs["array_id"][row] and not jobs["lease_id"][row]}
    for (job,) in run(con, "policy/copying_replicas", list(bound)).fetchall() if bound else ():
        del saved[bound[job]]
    begins = {row: int(source[row]) for row in np.flatnonzero(~np.isnan(source)).tolist() if row not in saved}
    wanted = sorted(set(begins.values()))
    of = dict(run(con, "policy/places_of_jobs", wanted).fetchall()) if wanted else {}
    saved |= {row: Saved(of[job], own=False) for row, job in begins.items() if job in of}
    owners = [int(jobs["id"][row]) for row in saved if not jobs["lease_id"][row]]
    steps = dict(run(con, "policy/saved_steps", owners).fetchall()) if owners else {}
    return {"saved": saved, "steps": steps}


def _replicas(con: duckdb.DuckDBPyConnection, jobs: Columns, everything: Columns) -> dict[str, Any]:
    """Of groups of replicas some of whose tasks wait: the group of each replica, of those that train, and the checkpoints of those none of
    which trains as far as the newest."""
    array, holds = ints(jobs["array_id"]), ints(jobs["lease_id"]) > 0
    waiting = np.unique(array[~holds & (array > 0)])
    training = set(np.intersect1d(waiting, array[holds]).tolist())
    rows = np.flatnonzero(np.isin(ints(everything["array_id"]), waiting))
    saved = {int(everything["array_id"][row]) for row in rows if everything["place"][row] is not None}
    arrays = sorted(training | saved)
    found = {group for (group,) in run(con, "policy/replicas_of", arrays).fetchall()} if arrays else set()
    members = np.flatnonzero(np.isin(array, sorted(found & training))).tolist()
    return {
        "replica_groups": {int(jobs["id"][row]): int(array[row]) for row in members},
        "replicas": run(con, "policy/saved_replicas", sorted(found & saved)).fetchall() if found & saved else [],
    }


def _schedulable(jobs: Columns, now: float) -> Bools:
    """Jobs that hold GPUs or wait for nothing but GPUs; of an array only as many tasks as may run at once."""
    holds = ints(jobs["lease_id"]) > 0
    free = jobs["pending"] & ~jobs["held"] & ~holds & (seconds(jobs["not_before"], -np.inf) <= now)
    cap = floats(jobs["array_cap"], np.inf)
    if np.isfinite(cap).any():
        array = ints(jobs["array_id"])
        for number in np.unique(array[free & np.isfinite(cap)]):
            tasks = np.flatnonzero(free & (array == number))
            tasks = tasks[np.argsort(jobs["id"][tasks])]
            room = max(0, int(cap[tasks[0]]) - int((holds & (array == number)).sum()))
            free[tasks[room:]] = False
    schedulable: Bools = holds | free
    return schedulable


def _jobs(
    jobs: Columns,
    work: Work,
    leases: Beside,
    divided: Beside,
    held: tuple[Ints, Ints],
    tiers: Columns,
    profile: Ints,
    overhead: Floats | None,
    now: float,
) -> Jobs:
    ids, gang, lease_id = ints(jobs["id"]), ints(jobs["gpus_min"]), ints(jobs["lease_id"])
    tried = np.isfinite(seconds(jobs["first_start_at"])) | (ints(jobs["unmeasured"]) >= PROFILED_AT_MOST)
    unmeasured = (profile < 0) & (ints(jobs["signature"]) > 0) & ~tried
    trains_since = np.where(leases.floats("profile", 0.0) > 0, np.inf, leases.seconds("started_at", np.inf))
    since_start = np.maximum(now - trains_since, 0.0)  # a runner's clock may be ahead of ours
    run_time = floats(jobs["run_time"]) + since_start
    service = first_known(divided.floats("service", np.nan), since_start * leases.floats("gpu_count", 0.0))
    remaining = np.maximum(np.where(np.isnan(work.ahead), work.duration - run_time, work.ahead), 0.0)
    most = np.fmax(work.ahead_most, remaining)
    alloc_start, alloc_gpus = csr(lease_id, *held)
    tier_start, tier_deadline, tier_reward = _tiers(ids, tiers)
    return Jobs(
        id=ids,
        submitted_at=seconds(jobs["submitted_at"]),
        phase=np.where(lease_id == 0, Phase.PENDING, np.where(jobs["stopping"], Phase.STOPPING, Phase.ACTIVE)).astype(np.int64),
        gpus_min=gang,
        gpus_max=ints(jobs["gpus_max"]),
        priority=ints(jobs["priority"]),
        demand=np.where(jobs["strict"], Demand.STRICT, np.where(jobs["timed"], Demand.SOFT, Demand.BEST_EFFORT)).astype(np.int64),
        deadline=seconds(jobs["deadline"], np.inf),
        attained=floats(jobs["attained"]) + service,
        run_time=run_time,
        lease_time=np.maximum(now - leases.seconds("granted_at", np.inf), 0.0),
        remaining=remaining,
        gpu_memory=np.fmax(work.gpu_memory, 0.0),
        kept=_kept(floats(jobs["kept_memory"]), np.fmax(work.gpu_memory, 0.0)),
        preemptions=ints(jobs["preemptions"]),
        user=codes(jobs["owner"]),
        model=codes(jobs["model"]),
        alloc_start=alloc_start,
        alloc_gpus=alloc_gpus,
        tier_start=tier_start,
        tier_deadline=tier_deadline,
        tier_reward=tier_reward,
        lease_end=leases.seconds("expires_at", np.inf),
        remaining_most=most if (most > remaining).any() else None,
        uncertainty=None if np.isnan(work.spread).all() else work.spread,
        overhead=overhead,
        profile=profile,
        progress=np.minimum(work.done, 1.0),
        profile_gpus=np.where(unmeasured, np.minimum(gang, PROFILED_ON), 0),
        kind=words(jobs["kind"]),
        backbone=words(jobs["backbone"]),
        share=words(jobs["share"]),
        begins=jobs["begins"].astype(bool),
    )


def _kept(known: Floats, whole: Floats) -> Floats | None:
    """The memory that jobs keep between their turns."""
    return None if np.isnan(known).all() else np.where(np.isnan(known), whole, np.minimum(known, whole))


def _tiers(ids: Ints, tiers: Columns) -> tuple[Ints, Floats, Floats]:
    if not tiers:
        return np.zeros(len(ids) + 1, dtype=np.int64), np.zeros(0), np.zeros(0)
    start, deadline = csr(ids, tiers["job_id"], tiers["deadline"])
    return start, deadline, csr(ids, tiers["job_id"], tiers["reward"])[1]


def _gpus(gpus: Columns, nodes: Columns, servers: Servers, now: float) -> tuple[Gpus, Nodes]:
    """GPUs and nodes of the pool, by node, then by position on it. A job may start on a healthy GPU of a node that is up."""
    state_of = dict(zip(nodes["id"], nodes["state"], strict=True))
    states = np.array([state_of.get(node, "gone") for node in gpus["node_id"]], dtype=object)
    there = np.flatnonzero((gpus["health"] != "missing") & (states != "gone") & (states != "stopped"))
    names, node_of = np.unique(gpus["node_id"][there].astype(str), return_inverse=True)
    order = np.lexsort((gpus["idx"][there], node_of))
    there = there[order]
    since = seconds(gpus["warm_since"][there], now)
    warm, warm_at = warm_columns(gpus["warm"][there], since, gpus["node_id"][there], servers, now)
    table = Gpus(
        id=gpus["id"][there],
        node=node_of[order].astype(np.int64),
        index=ints(gpus["idx"][there]),
        usable=((gpus["health"] == "ok") & (states == "up"))[there],
        memory=floats(gpus["memory"][there]),
        warm=warm,
        warm_at=warm_at,
    )
    leaves_at = dict(zip(nodes["id"], floats(nodes["leaves"], np.inf).tolist(), strict=True))
    leaves = np.array([leaves_at.get(name, np.inf) for name in names], dtype=np.float64)
    return table, Nodes(id=names.astype(object), leaves=leaves if np.isfinite(leaves).any() else None)


def _rows_of_held(gpus: Array, held: Columns) -> tuple[Ints, Ints]:
    """Leases and the rows of their GPUs, ascending. A GPU that went missing under a running job has no row: the job keeps the others."""
    if not held:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    row_of = {gpu: row for row, gpu in enumerate(gpus)}
    rows = np.array([row_of.get(gpu, -1) for gpu in held["gpu_id"]], dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    return ints(held["lease_id"])[order], rows[order]
