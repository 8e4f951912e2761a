"""What a policy sees is what the tables say: the View of random tables beside the SQL view `work`, row by row."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from stoker.engine.scheduling.measured_profiles import throughput
from stoker.engine.scheduling.query_columns import Beside, GroupedRows, csr, fetch, fetch_of, first_known, rows_of
from stoker.engine.scheduling.view import PROFILED_AT_MOST, PROFILED_ON, Snapshot, snapshot
from stoker.engine.scheduling.work import work_of
from stoker.engine.store import migrate
from stoker.engine.store.sqlfiles import view_files
from stoker.policies.contract import Phase

pytestmark = pytest.mark.xdist_group("view-of-tables")

NOW = 1_800_000_000.0
JOBS = 80
TABLES = ("jobs", "leases", "lease_gpus", "progress", "iteration_estimates", "profiles", "speeds", "tiers", "gpus", "nodes")
MODELS, SIGNATURES, PRODUCTS = ("cnn", "text", "gpt"), (11, 12, 13, 14), ("A100", "H100", "L4")
NODE_STATES = ("up", "up", "suspect", "draining", "drained", "stopped", "gone")

Row = dict[str, Any]


def make_database() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    migrate.apply(con, migrate.available())
    for file in view_files():
        con.execute(Path(file).read_text())
    return con


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database."""
    with make_database() as made:
        yield made


@pytest.fixture(scope="module")
def to_fill() -> Iterator[duckdb.DuckDBPyConnection]:
    with make_database() as made:
        yield made


def insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row]) -> None:
    if rows:
        marks = ", ".join(f"({', '.join('?' * len(rows[0]))})" for _ in rows)
        con.execute(f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES {marks}", [value for row in rows for value in row.values()])


def select(con: duckdb.DuckDBPyConnection, query: str) -> list[Row]:
    result = con.execute(query)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None)


class Tables:
    """Random rows; whatever may be NULL often is. What was never started has no progress, and without that nothing is estimated."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes = [self.node(name, state) for name, state in zip("hgfedcba", ("up", *self.rng.permutation(NODE_STATES)), strict=True)]
        self.gpus = [self.gpu(node["id"], idx) for node in self.nodes for idx in self.rng.permutation(4).tolist()]
        self.jobs = [self.job(number) for number in self.rng.permutation(JOBS) + 1]
        self.leases = [self.lease(job) for job in self.jobs if job["lease_id"]]
        started = [job["id"] for job in self.jobs if job["attempts"]]
        self.progress = [self.progress_of(job) for job in started if self.chance(0.8)]
        self.estimates = [self.estimate(row) for row in self.progress if self.chance(0.6)]
        self.profiles = [self.profile(m, p, n) for m in MODELS for p in PRODUCTS for n in (1, 2, 4) if self.chance(0.4)]
        self.speeds = [self.speed(s, p) for s in SIGNATURES[1:] for p in PRODUCTS if self.chance(0.5)]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def real(self, high: float) -> float:
        return float(self.rng.uniform(0.0, high))

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def maybe(self, draw: Callable[[], Any], probability: float = 0.6) -> Any:
        return draw() if self.chance(probability) else None

    def node(self, name: str, state: str) -> Row:
        return {"id": name, "host": name, "boot_id": "b", "pid": 1, "pid_started": 0.0, "home": "/", "version": "0", "session": 1,
                "state": state, "address": "", "joined_at": moment(0), "last_seen": moment(0)}  # fmt: skip

    def gpu(self, node: str, idx: int) -> Row:
        pool = "default" if self.chance(0.8) else "other"
        product = self.pick(PRODUCTS[:2] if pool == "default" else PRODUCTS)
        return {"id": f"{self.whole(0, 999):03}-{node}-{idx}", "node_id": node, "idx": idx, "pool": pool, "kind": "cuda", "name": product,
                "memory": self.whole(0, 2**40), "health": self.pick(("ok", "ok", "dirty", "quarantined", "missing"))}  # fmt: skip

    def job(self, number: int) -> Row:
        state = self.pick(("pending", "pending", "pending", "running", "suspending", "profiling", "completed"))
        holds = state in ("running", "suspending", "profiling")
        attempts = 0 if state == "profiling" else self.whole(0, 3) + (state in ("running", "suspending"))
        started = attempts > 0 and self.chance(0.9)
        gang, demand = self.pick((1, 2, 4)), self.pick(("best-effort", "best-effort", "soft", "strict"))
        return {
            "id": int(number), "name": f"job{number}", "pool": "default" if self.chance(0.9) else "other",
            "owner": self.pick(("ann", "bob")), "state": state, "state_since": moment(NOW), "priority": self.whole(-2, 3),
            "held": self.chance(0.05), "gpus_min": gang, "gpus_max": 2 * gang, "gpu_memory": self.pick((0, 0, 2**33)), "demand": demand,
            "deadline": None if demand == "best-effort" else moment(NOW + self.real(1e5)), "model": self.pick(MODELS),
            "total_steps": self.maybe(lambda: self.whole(1, 1000)), "est_duration": self.maybe(lambda: self.real(1e4), 0.4),
            "submitted_at": moment(NOW - self.whole(0, 40)), "first_start_at": moment(NOW - 30) if started else None,
            "finished_at": moment(NOW) if state == "completed" else None, "attempts": attempts, "failures": 0, "preemptions": 0,
            "not_before": moment(NOW + self.pick((-5, 5))) if self.chance(0.2) else None, "cancel_requested": False,
            "lease_id": int(1000 - number) if holds else None, "run_time": self.real(1e3) if attempts else 0.0,
            "attained": self.real(1e3) if attempts else 0.0, "labels": "{}", "spec": "{}",
            "signature": self.maybe(lambda: self.pick(SIGNATURES), 0.8), "unmeasured": self.whole(0, PROFILED_AT_MOST + 1),
            "kind": self.pick(("train", "prompt")), "backbone": self.maybe(lambda: "minilm", 0.3),
            "share": self.maybe(lambda: self.pick(("packed", "exclusive")), 0.3),
        }  # fmt: skip

    def lease(self, job: Row) -> Row:
        return {"id": job["lease_id"], "job_id": job["id"], "attempt": job["attempts"], "gpu_count": self.whole(1, 5), "state": "running",
                "granted_at": moment(NOW - self.real(90)), "started_at": self.maybe(lambda: moment(NOW - self.real(80) + 2)),
                "expires_at": self.maybe(lambda: moment(NOW + self.real(90))), "policy": "fifo",
                "profile": job["state"] == "profiling"}  # fmt: skip

    def progress_of(self, job: int) -> Row:
        return {"job_id": job, "step": self.whole(0, 800), "total_steps": self.maybe(lambda: self.whole(1, 1000)),
                "seconds_per_step": self.maybe(lambda: self.real(5.0)), "updated_at": moment(NOW)}  # fmt: skip

    def estimate(self, progress: Row) -> Row:
        return {"job_id": progress["job_id"], "at_step": 1, "iterations": self.whole(1, 1000), "low": 1, "high": 1000, "probability": 0.5,
                "spread": self.maybe(lambda: self.real(1.0)), "points": 9, "seconds": 0.1, "updated_at": moment(NOW)}  # fmt: skip

    def profile(self, model: str, product: str, gpus: int) -> Row:
        return {"model": model, "gpu_name": product, "gpu_count": gpus, "seconds_per_step": self.maybe(lambda: self.real(5.0)),
                "duration": self.maybe(lambda: self.real(1e4)), "peak_memory": self.maybe(lambda: self.whole(1, 2**40)), "samples": 3,
                "updated_at": moment(NOW)}  # fmt: skip

    def speed(self, signature: int, product: str) -> Row:
        return {"signature": signature, "gpu_name": product, "model": f"model {signature}", "gang": signature % 4 + 1,
                "compute": self.real(5.0) + 0.01, "within_node": self.maybe(lambda: self.real(1.0)),
                "across_nodes": self.maybe(lambda: self.real(1.0)), "peak_memory": self.maybe(lambda: self.whole(1, 2**40)), "samples": 3,
                "updated_at": moment(NOW)}  # fmt: skip

    def fill(self, con: duckdb.DuckDBPyConnection) -> None:
        gpus = [gpu["id"] for gpu in self.gpus]
        held = [
            {"lease_id": lease["id"], "gpu_id": gpu, "node_id": gpu.split("-")[1]} for lease, gpu in zip(self.leases, gpus, strict=False)
        ]
        tiers = [{"job_id": job["id"], "deadline": job["deadline"] - dt.timedelta(seconds=late), "reward": float(late)}
                 for late in (0, 50) for job in self.jobs if job["deadline"]]  # fmt: skip
        tables = (self.jobs, self.leases, held, self.progress, self.estimates, self.profiles, self.speeds, tiers, self.gpus, self.nodes)
        for table, rows in zip(TABLES, tables, strict=True):
            insert(con, table, rows)


@pytest.fixture(scope="module", params=range(12))
def seen(to_fill: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> tuple[Tables, Snapshot, duckdb.DuckDBPyConnection]:
    """Tables, and the view of them; the tests only look at them."""
    for table in TABLES:
        to_fill.execute(f"DELETE FROM {table}")
    tables = Tables(request.param)
    tables.fill(to_fill)
    return tables, snapshot(to_fill, "default", NOW), to_fill


Seen = tuple[Tables, Snapshot, duckdb.DuckDBPyConnection]


def known(value: float | None) -> float:
    return math.nan if value is None else value


def same(found: np.ndarray[Any, Any] | None, wanted: Sequence[float]) -> None:
    assert found is not None
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def trained(job: Row, lease: Row | None) -> float:
    """Seconds that the lease has added to what the job ran before."""
    if lease is None or lease["profile"] or lease["started_at"] is None:
        return 0.0
    return float(max(0.0, NOW - lease["started_at"].replace(tzinfo=dt.UTC).timestamp()))


@pytest.mark.sampled(3)
def test_work_is_the_sql_view_column_by_column(seen: Seen) -> None:
    tables, _, con = seen
    work = {row["job_id"]: row for row in select(con, "SELECT * FROM work")}
    assert set(work) == {job["id"] for job in tables.jobs if job["finished_at"] is None}
    for pool in ("default", "other"):
        jobs = fetch(con, "policy/jobs", pool)
        found = work_of(con, jobs, fetch_of(con, "policy/speeds", np.array(SIGNATURES)), fetch(con, "policy/gpus", pool)["product"])
        rows = [work[number] for number in jobs["id"].tolist()]
        for name in ("ahead", "ahead_most", "done", "spread", "duration", "gpu_memory"):
            same(getattr(found, name), [known(row[name]) for row in rows])
        assert found.measured.tolist() == [row["measured"] for row in rows]


def test_what_is_left_follows_from_the_sql_view(seen: Seen) -> None:
    tables, found, con = seen
    jobs = found.view.jobs
    job_of, lease_of = {job["id"]: job for job in tables.jobs}, {lease["job_id"]: lease for lease in tables.leases}
    work = {row["job_id"]: row for row in select(con, "SELECT * FROM work")}
    rows = [work[number] for number in jobs.id.tolist()]
    ran = [job_of[n]["run_time"] + trained(job_of[n], lease_of.get(n)) for n in jobs.id.tolist()]
    by_steps = [known(row["ahead"]) for row in rows]
    left = [known(row["duration"]) - run if math.isnan(ahead) else ahead for row, run, ahead in zip(rows, ran, by_steps, strict=True)]
    remaining = np.maximum(left, 0.0)
    most = np.fmax([known(row["ahead_most"]) for row in rows], remaining)
    same(jobs.run_time, ran)
    same(jobs.remaining, remaining.tolist())
    same(jobs.remaining_most, most.tolist())
    same(jobs.uncertainty, [known(row["spread"]) for row in rows])
    same(jobs.progress, [min(known(row["done"]), 1.0) if row["done"] is not None else math.nan for row in rows])
    same(jobs.gpu_memory, [row["gpu_memory"] or 0.0 for row in rows])
    for column in (jobs.remaining, jobs.uncertainty, jobs.progress):  # nothing is proved by what is nowhere or everywhere
        assert column is not None and 0 < np.isnan(column).sum() < len(column)
    assert (most > remaining).any() and (jobs.gpu_memory == 0).any()


def test_profiles_are_the_slowest_speeds_measured_on_the_pools_gpus(seen: Seen) -> None:
    tables, found, con = seen
    jobs, profiles = found.view.jobs, found.view.profiles
    assert jobs.profile is not None and jobs.profile_gpus is not None
    job_of = {job["id"]: job for job in tables.jobs}
    here = {gpu["name"] for gpu in tables.gpus if gpu["pool"] == "default"}
    measured = {row["job_id"] for row in select(con, "SELECT job_id FROM work WHERE measured")}
    for row, number in enumerate(jobs.id.tolist()):
        job, profile, wanted = job_of[number], int(jobs.profile[row]), int(jobs.profile_gpus[row])
        speeds = [s for s in tables.speeds if s["signature"] == job["signature"] and s["gpu_name"] in here]
        tried = job["first_start_at"] is not None or job["unmeasured"] >= PROFILED_AT_MOST
        assert (profile >= 0) == bool(speeds)
        assert number in measured or not speeds
        assert wanted == (0 if speeds or tried or job["signature"] is None else min(job["gpus_min"], PROFILED_ON))
        if speeds:
            gang = speeds[0]["gang"]
            terms = [
                max((s[name] for s in speeds if s[name] is not None), default=None) for name in ("compute", "within_node", "across_nodes")
            ]
            expected, speed = throughput(gang, *terms), profiles[profile].throughput
            assert speed is not None and profiles[profile].name == f"{speeds[0]['model']} on {gang}"
            assert speed.rates.tolist() == expected.rates.tolist() and speed.spread.tolist() == expected.spread.tolist()


def test_leases_and_the_gpus_of_a_pool_are_seen(seen: Seen) -> None:
    tables, found, con = seen
    view, state_of = found.view, {node["id"]: node["state"] for node in tables.nodes}
    offered = {node for node, state in state_of.items() if state not in ("gone", "stopped")}
    mine = [gpu for gpu in tables.gpus if gpu["pool"] == "default" and gpu["health"] != "missing" and gpu["node_id"] in offered]
    there = sorted(mine, key=lambda gpu: (gpu["node_id"], gpu["idx"]))
    assert view.gpus.id.tolist() == [gpu["id"] for gpu in there]
    assert [view.nodes.id[node] for node in view.gpus.node] == [gpu["node_id"] for gpu in there]
    assert view.gpus.index.tolist() == [gpu["idx"] for gpu in there]
    assert view.gpus.memory.tolist() == [gpu["memory"] for gpu in there]
    assert view.gpus.usable.tolist() == [gpu["health"] == "ok" and state_of[gpu["node_id"]] == "up" for gpu in there]
    lease_of = {lease["job_id"]: lease for lease in tables.leases}
    held = {row["lease_id"]: row["gpu_id"] for row in select(con, "SELECT lease_id, gpu_id FROM lease_gpus")}
    for row, number in enumerate(view.jobs.id.tolist()):
        lease = lease_of.get(number)
        assert found.lease_id[row] == (lease["id"] if lease else 0) and (view.jobs.phase[row] == Phase.PENDING) == (lease is None)
        end = lease and lease["expires_at"]
        assert found.expires_at[row] == pytest.approx(end.replace(tzinfo=dt.UTC).timestamp() if end else math.inf)
        gpus = [held.get(lease["id"])] if lease else []
        assert view.gpus.id[view.jobs.allocation(row)].tolist() == [gpu for gpu in gpus if gpu in view.gpus.id]


def test_schedulable_jobs_of_the_pool_are_seen_in_order_with_their_tiers(seen: Seen) -> None:
    tables, found, _ = seen
    jobs = found.view.jobs
    wanted = [
        job for job in tables.jobs
        if job["pool"] == "default" and job["finished_at"] is None
        and (job["lease_id"] or not (job["held"] or (job["not_before"] and job["not_before"] > moment(NOW))))
    ]  # fmt: skip
    wanted.sort(key=lambda job: (job["submitted_at"], job["id"]))
    assert jobs.id.tolist() == [job["id"] for job in wanted]
    for row, job in enumerate(wanted):
        own = slice(int(jobs.tier_start[row]), int(jobs.tier_start[row + 1]))
        assert jobs.tier_reward[own].tolist() == ([50.0, 0.0] if job["deadline"] else [])
    for name in ("kind", "backbone", "share"):
        column = getattr(jobs, name)
        assert column is not None and column.tolist() == [job[name] or "" for job in wanted]


def test_what_no_job_says_has_no_column(con: duckdb.DuckDBPyConnection) -> None:
    tables = Tables(0)
    insert(con, "jobs", [job | {"backbone": None, "share": None, "lease_id": None} for job in tables.jobs])
    jobs = snapshot(con, "default", NOW).view.jobs
    assert len(jobs) and jobs.backbone is None and jobs.share is None
    assert jobs.kind is not None and set(jobs.kind) == {"train", "prompt"}


def test_a_pool_without_anything_is_an_empty_view(con: duckdb.DuckDBPyConnection) -> None:
    found = snapshot(con, "default", NOW)
    assert (len(found.view.jobs), len(found.view.gpus), len(found.view.nodes), found.view.profiles) == (0, 0, 0, ())


def test_a_query_parsed_on_one_connection_serves_all(con: duckdb.DuckDBPyConnection) -> None:
    insert(con, "nodes", [Tables(0).node("here", "up")])
    assert fetch(con.cursor(), "policy/nodes")["id"].tolist() == ["here"]
    with duckdb.connect() as other:
        other.execute(
            "CREATE TABLE nodes AS SELECT 'there' AS id, NULL::VARCHAR AS state, 'h' AS host, '/' AS home, '' AS place, '' AS shared_place,"
            " 7 AS fetch_at_most, TIMESTAMP '1970-01-01 00:00:09' AS leaves_at, now() AS last_seen"
        )
        found = {name: column.tolist() for name, column in fetch(other, "policy/nodes").items()}
        assert found == {"id": ["there"], "state": [None], "places": ["h:/\n\n"], "fetch_at_most": [7.0], "leaves": [9.0]}


def test_groups_pass_over_what_is_not_known() -> None:
    nan = math.nan
    groups = GroupedRows(np.array([7, 3, 7, 3, 5]))
    values = np.array([1.0, nan, 2.0, 4.0, nan])
    assert groups.keys.tolist() == [3, 5, 7] and groups.first.tolist() == [1, 4, 0]
    same(groups.least(values), [4.0, nan, 1.0])
    same(groups.most(values), [4.0, nan, 2.0])
    same(groups.mean(values), [4.0, nan, 1.5])
    assert GroupedRows(np.zeros(0, dtype=np.int64)).mean(np.zeros(0)).tolist() == []


def test_rows_are_joined_in_whatever_order_they_come() -> None:
    keys = np.array([4, 9, 1, 4])
    assert rows_of(keys, np.array([9, 4, 2])).tolist() == [1, 0, -1, 1]
    beside = Beside(keys, {"id": np.array([9, 4]), "value": np.array([math.nan, 6.0])}, "id")
    same(beside.floats("value"), [6.0, math.nan, math.nan, 6.0])
    same(beside.floats("value", 0.0), [6.0, 0.0, 0.0, 6.0])
    assert beside.there.tolist() == [True, True, False, True]
    same(Beside(keys, {}, "id").floats("value", 2.0), [2.0] * 4)
    same(first_known(np.array([math.nan, 1.0]), np.array([5.0, 6.0])), [5.0, 1.0])


def test_values_are_grouped_by_owner_and_keep_their_order() -> None:
    starts, values = csr(np.array([5, 2, 8]), np.array([2, 8, 7, 2]), np.array([10, 11, 12, 13]))
    assert (starts.tolist(), values.tolist()) == ([0, 0, 2, 3], [10, 13, 11])
