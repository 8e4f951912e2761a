"""The monitoring views: every column explained, right on a small hand-made picture, quick on a large one, robust in any time zone."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from stoker.engine.store.schema_text import schema
from stoker.engine.store.sqlfiles import sql, view_files

pytestmark = pytest.mark.xdist_group("views")

POPULATE = (Path(__file__).parents[1] / "populate.sql").read_text()
VIEWS = [path.stem[3:] for path in view_files()]


@pytest.fixture(scope="module")
def full(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect(str(shutil.copy(template, tmp_path_factory.mktemp("full"))))
    con.execute("SET VARIABLE jobs = 500")
    con.execute(POPULATE)
    yield con
    con.close()


@pytest.fixture
def con(template: Path, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect(str(shutil.copy(template, tmp_path)))
    con.execute("SET TimeZone = 'Asia/Tokyo'")  # views are in UTC whatever the session says
    yield con
    con.close()


def insert(con: duckdb.DuckDBPyConnection, table: str, **values: Any) -> None:
    columns, marks = ", ".join(values), ", ".join("?" for _ in values)
    con.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))


def ago(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(seconds=seconds)


def add_job(con: duckdb.DuckDBPyConnection, number: int, state: str, **values: Any) -> None:
    insert(con, "jobs", **{
        "id": number, "name": f"job{number}", "kind": "train", "pool": "default", "owner": "ann", "state": state, "state_since": ago(50),
        "state_reason": "so", "priority": 0, "held": False, "gpus_min": 1, "gpus_max": 1, "gpu_memory": 0, "demand": "best-effort",
        "model": "m", "submitted_at": ago(100), "attempts": 0, "failures": 0, "preemptions": 0, "cancel_requested": False, "run_time": 0,
        "attained": 0, "labels": "{}", "spec": "{}", **values,
    })  # fmt: skip


def add_lease(con: duckdb.DuckDBPyConnection, number: int, job: int, **values: Any) -> None:
    insert(con, "leases", **{
        "id": number, "job_id": job, "attempt": 1, "gpu_count": 1, "state": "running", "granted_at": ago(60), "started_at": ago(50),
        "policy": "fifo", **values,
    })  # fmt: skip


def one(con: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    result = con.execute(query)
    names = [column[0] for column in result.description]
    (row,) = result.fetchall()
    return dict(zip(names, row, strict=True))


def test_every_table_view_and_column_has_a_comment(con: duckdb.DuckDBPyConnection) -> None:
    relations = schema(con)
    assert {r["name"] for r in relations if r["kind"] == "view"} == set(VIEWS)
    assert "tokens" not in {r["name"] for r in relations}
    bare = [f"{r['name']}.{c['name']}" for r in relations for c in r["columns"] if not c["comment"] and r["name"] != "migrations"]
    assert bare == []
    assert [r["name"] for r in relations if not r["comment"] and r["name"] != "migrations"] == []


def test_schema_gives_columns_in_order(con: duckdb.DuckDBPyConnection) -> None:
    tiers = next(r for r in schema(con) if r["name"] == "tiers")
    assert [(c["name"], c["type"]) for c in tiers["columns"]] == [("job_id", "BIGINT"), ("deadline", "TIMESTAMP"), ("reward", "DOUBLE")]


@pytest.mark.parametrize("view", VIEWS)
def test_view_answers_on_an_empty_and_on_a_full_database(
    con: duckdb.DuckDBPyConnection, full: duckdb.DuckDBPyConnection, view: str
) -> None:
    assert con.execute(f"SELECT * FROM {view}").fetchall() == []
    result = full.execute(f"SELECT * FROM {view}")
    assert result.fetchall() or view in ("silent_jobs", "silent_runners")
    assert not any("TIME ZONE" in str(column[1]) for column in result.description)


def test_a_running_job(con: duckdb.DuckDBPyConnection) -> None:
    add_job(con, 1, "running", lease_id=7, deadline=ago(-20), demand="strict")
    add_lease(con, 7, 1)
    insert(con, "lease_gpus", lease_id=7, gpu_id="a", node_id="n2")
    insert(con, "lease_gpus", lease_id=7, gpu_id="b", node_id="n1")
    insert(con, "progress", job_id=1, step=50, total_steps=200, loss=0.5, seconds_per_step=1.0, updated_at=ago(1))
    job = one(con, "SELECT * FROM jobs_now")
    assert (job["progress"], job["gpus"], job["nodes"], job["total_steps"], job["loss"]) == (25.0, 2, "n1,n2", 200, 0.5)
    assert job["age"] == pytest.approx(100, abs=20)
    assert job["ran"] == pytest.approx(50, abs=20)
    assert job["waited"] == pytest.approx(50, abs=20)
    assert job["eta"] == pytest.approx(150, abs=20)
    assert job["deadline_risk"] == "at risk"
    assert one(con, "SELECT tardiness FROM slo")["tardiness"] == pytest.approx(130, abs=20)


def progress_of(con: duckdb.DuckDBPyConnection, state: str, step: int | None, stop: str, expected: int | None = None) -> float | None:
    """What jobs_now says of a job with 1000 steps at most."""
    ended = ago(1) if state in ("completed", "failed") else None
    add_job(con, 1, state, spec=f'{{"stop": {stop}}}', total_steps=1000, finished_at=ended)
    if step is not None:
        insert(con, "progress", job_id=1, step=step, updated_at=ago(1))
    if expected is not None:
        insert(con, "iteration_estimates", job_id=1, at_step=1, iterations=expected, low=1, high=expected, probability=1, points=5,
               seconds=1, updated_at=ago(1))  # fmt: skip
    return one(con, "SELECT progress FROM jobs_now")["progress"]


METRIC = '{"metric": "accuracy", "target": 0.9, "iterations": 1000}'


@pytest.mark.parametrize(
    ("state", "step", "stop", "expected", "progress"),
    [
        ("completed", 100, METRIC, 400, 100.0),  # it used to be 10 %
        ("completed", None, "{}", None, 100.0),
        ("running", 100, METRIC, None, None),  # of how many is not known
        ("running", 100, METRIC, 400, 25.0),
        ("running", 500, METRIC, 400, 99.0),
        ("running", None, METRIC, None, 0.0),
        ("failed", 100, METRIC, 400, None),
        ("running", 100, '{"iterations": 1000}', None, 10.0),
        ("failed", 1000, '{"iterations": 1000}', None, 100.0),
    ],
)
def test_progress_is_a_share_of_what_is_needed(
    con: duckdb.DuckDBPyConnection, state: str, step: int | None, stop: str, expected: int | None, progress: float | None
) -> None:
    assert progress_of(con, state, step, stop, expected) == progress


def test_a_job_on_a_runner_that_is_not_heard(con: duckdb.DuckDBPyConnection) -> None:
    states = {"up": 300, "suspect": 90, "draining": 120, "gone": 300}  # the state of what is heard may be written down late
    for node, (state, seen) in enumerate([*states.items(), ("draining", 10)], 1):
        insert(con, "nodes", id=f"n{node}", host=f"h{node}", boot_id="b", pid=1, pid_started=1, home="/", version="0", session=1,
               state=state, address="", joined_at=ago(999), last_seen=ago(seen), leaving=False)  # fmt: skip
        insert(con, "lease_gpus", lease_id=7, gpu_id=f"g{node}", node_id=f"n{node}")
    add_job(con, 1, "running", lease_id=7, array_id=1, array_index=0)
    add_job(con, 2, "pending", array_id=1, array_index=1)
    add_lease(con, 7, 1)
    rows = con.execute("SELECT id, silent_nodes, array_silent FROM jobs_now ORDER BY id").fetchall()
    assert rows == [(1, "n2,n3", 1), (2, None, 1)]
    since = one(con, "SELECT silent_since FROM jobs_now WHERE id = 1")["silent_since"]
    assert (ago(0) - since).total_seconds() == pytest.approx(120, abs=20)


def test_the_queue_is_in_the_order_of_service(con: duckdb.DuckDBPyConnection) -> None:
    add_job(con, 1, "pending", priority=5)
    add_job(con, 2, "pending")
    add_job(con, 3, "submitted", held=True)
    add_job(con, 4, "completed", finished_at=ago(1))
    for number, place in ((1, 2), (2, 1)):
        insert(
            con,
            "waiting",
            job_id=number,
            code="resources",
            reason=f"reason {number}",
            position=place,
            est_start=ago(-60),
            updated_at=ago(1),
        )
    insert(con, "profiles", model="m", gpu_name="x", gpu_count=1, duration=30, samples=1, updated_at=ago(1))
    rows = con.execute("SELECT id, position, reason FROM queue").fetchall()
    assert rows == [(2, 1, "reason 2"), (1, 2, "reason 1"), (3, None, "so")]
    # it starts in 60 s and takes 30 s, as earlier jobs of its model did
    assert one(con, "SELECT eta FROM jobs_now WHERE id = 1")["eta"] == pytest.approx(90, abs=20)


def test_arrays_are_counted(con: duckdb.DuckDBPyConnection) -> None:
    for number, state in enumerate(("completed", "failed", "running", "pending"), 10):
        ended = ago(1) if state in ("completed", "failed") else None
        add_job(con, number, state, array_id=10, array_index=number - 10, finished_at=ended, lease_id=1 if state == "running" else None)
    job = one(con, "SELECT * FROM jobs_now WHERE id = 10")
    assert (job["array_size"], job["array_ended"], job["array_active"], job["array_failed"]) == (4, 2, 1, 1)
    array = one(con, "SELECT * FROM arrays")
    assert (array["tasks"], array["waiting"], array["active"], array["completed"], array["failed"]) == (4, 1, 1, 1, 1)


@pytest.mark.parametrize(("health", "node", "held", "state"), [
    ("ok", "up", False, "free"), ("ok", "up", True, "busy"), ("dirty", "up", False, "dirty"), ("ok", "draining", False, "draining"),
    ("ok", "gone", False, "offline"), ("missing", "up", False, "offline"),
])  # fmt: skip
def test_state_of_a_gpu(con: duckdb.DuckDBPyConnection, health: str, node: str, held: bool, state: str) -> None:
    insert(con, "nodes", id="n", host="h", boot_id="b", pid=1, pid_started=1, home="/", version="1", session=1, state=node, address="a",
           joined_at=ago(99), last_seen=ago(1))  # fmt: skip
    insert(con, "gpus", id="g", node_id="n", idx=0, pool="default", kind="cuda", name="x", memory=10, health=health)
    insert(con, "telemetry", ts=ago(20), gpu_id="g", node_id="n", utilisation=0.2)
    insert(con, "telemetry", ts=ago(10), gpu_id="g", node_id="n", utilisation=0.7)
    if held:
        add_job(con, 1, "running", lease_id=7)
        add_lease(con, 7, 1)
        insert(con, "lease_gpus", lease_id=7, gpu_id="g", node_id="n")
    gpu = one(con, "SELECT * FROM gpus_now")
    assert (gpu["state"], gpu["utilisation"], gpu["job_id"]) == (state, 0.7, 1 if held else None)


def test_share_under_lease_of_five_minutes(con: duckdb.DuckDBPyConnection) -> None:
    bucket = dt.datetime.now(dt.UTC).replace(tzinfo=None, minute=0, second=0, microsecond=0) - dt.timedelta(hours=2)
    minute = dt.timedelta(minutes=1)
    add_job(con, 1, "completed", finished_at=ago(1))
    for number, start, end in ((1, -2, 1), (2, 3, 12)):
        add_lease(con, number, 1, state="ended", granted_at=bucket + start * minute, ended_at=bucket + end * minute)
        insert(con, "lease_gpus", lease_id=number, gpu_id="g", node_id="n")
    insert(con, "telemetry", ts=bucket + minute, gpu_id="g", node_id="n", utilisation=0.5)
    rows = con.execute("SELECT bucket, leased, utilisation FROM utilisation_5m").fetchall()
    assert [((at - bucket) / minute, pytest.approx(share), use) for at, share, use in rows] == [
        (-5, 0.4, None), (0, 0.6, 0.5), (5, 1.0, None), (10, 0.4, None)]  # fmt: skip


def test_completion_time_and_rewards(con: duckdb.DuckDBPyConnection) -> None:
    end = ago(10)
    add_job(con, 1, "completed", submitted_at=end - dt.timedelta(seconds=100), first_start_at=end - dt.timedelta(seconds=80),
            finished_at=end, run_time=40, attained=80, demand="soft", deadline=end + dt.timedelta(seconds=30))  # fmt: skip
    insert(con, "tiers", job_id=1, deadline=end - dt.timedelta(seconds=5), reward=3)
    insert(con, "tiers", job_id=1, deadline=end + dt.timedelta(seconds=30), reward=2)
    jct = one(con, "SELECT * FROM jct")
    assert (jct["queued"], jct["waiting"], jct["running"], jct["jct"], jct["gpu_seconds"], jct["slowdown"]) == (20, 60, 40, 100, 80, 2.5)
    slo = one(con, "SELECT * FROM slo")
    assert (slo["verdict"], slo["tardiness"], slo["reward_earned"], slo["reward_possible"]) == ("met", 0, 2, 3)


def test_waits_add_up_to_the_life_of_a_job(con: duckdb.DuckDBPyConnection) -> None:
    start = ago(100)
    for seq, (at, state) in enumerate(
        [(0, "submitted"), (10, "pending"), (30, "running"), (60, "pending"), (65, "running"), (90, "completed")]
    ):
        insert(con, "events", seq=seq, ts=start + dt.timedelta(seconds=at), kind="job.state", job_id=1, after=state, actor="x", reason="r")
    add_job(con, 1, "completed", submitted_at=start, finished_at=start + dt.timedelta(seconds=90))
    rows = con.execute("SELECT state, times, seconds, longest, waiting FROM job_waits ORDER BY state").fetchall()
    assert rows == [("pending", 2, 25, 20, True), ("running", 2, 55, 30, False), ("submitted", 1, 10, 10, True)]


def test_comments_and_views_can_be_made_again(con: duckdb.DuckDBPyConnection) -> None:
    for file in view_files():
        con.execute(file.read_text())
    assert len([r for r in schema(con) if r["kind"] == "view"]) == len(VIEWS)


def test_first_starts_are_measured(con: Any) -> None:
    granted = ago(60)
    after = [granted + dt.timedelta(seconds=seconds) for seconds in range(60)]
    for job, model, worker in ((1, "train/a", 2), (2, "train/a", 4), (3, "command/x@1", 0)):
        add_job(con, job, "completed", model=model, finished_at=after[59], outcome="completed")
        add_lease(con, job, job, granted_at=granted, started_at=after[worker], state="ended", ended_at=after[59], outcome="completed")
    add_lease(con, 9, 1, attempt=2, granted_at=after[10], started_at=after[50])  # later ones are not first
    add_job(con, 4, "completed", model="train/a", finished_at=after[59], outcome="completed")
    add_lease(con, 10, 4, granted_at=granted, started_at=granted, warm=True)  # a fork tells nothing of a fresh process
    for at in (10, 20):
        insert(con, "metrics", job_id=1, lease_id=1, rank=0, seq=at, ts=after[at], step=1, name="loss", value=1.0)
    found = con.execute(sql("policy/start_ups"), ["default"]).fetchall()
    assert [(model, times, *sort) for model, _, _, times, *sort in found] == [
        ("command/x@1", 1, False, True),
        ("train/a", 2, False, False),
        ("train/a", 1, True, True),
    ]
    assert found[1][1:3] == pytest.approx((3.0, 4.0))  # of two first starts one reported a step, 8 s later
