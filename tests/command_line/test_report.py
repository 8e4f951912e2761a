"""Reports: the numbers against hand-computed ones, the figures and the page on every size of history."""

from __future__ import annotations

import base64
import html.parser
import json
import math
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pytest
from stoker.engine.json_rows import plain
from stoker.engine.report import Table, read_report, write_report
from stoker.engine.report.data import Report, Scope, Steps, collect
from stoker.engine.store.reading import read_on
from stoker.engine.store.sqlfiles import MIGRATIONS, view_files
from stoker.policies.autosched.search import METRICS
from waiting import patient

pytestmark = pytest.mark.xdist_group("report")

T0 = 1_750_000_000.0
FIGURES = {"gantt.png", "jct.png", "waiting.png", "utilisation.png", "queue.png", "loss.png"}
Row = dict[str, Any]


class History:
    """Builds the rows that a daemon would have written. Times are seconds after T0."""

    def __init__(self, slots: int = 2, kind: str = "cpu") -> None:
        self.rows: dict[str, list[Row]] = {}
        self.lease = 0
        self.add("nodes", id="n1", host="h", boot_id="b", pid=1, pid_started=0.0, home="x", version="0", session=1, state="up",
                 address="a", joined_at=0.0, last_seen=0.0)  # fmt: skip
        for index in range(slots):
            self.add("gpus", id=f"n1/{index}", node_id="n1", idx=index, pool="default", kind=kind, name=kind, memory=0, health="ok")

    def add(self, table: str, **row: Any) -> None:
        self.rows.setdefault(table, []).append(row)

    def event(self, job: int, at: float, before: str | None, after: str, reason: str = "", lease: int | None = None) -> None:
        seq = len(self.rows.get("events", ())) + 1
        self.add(
            "events", seq=seq, ts=at, kind="job.state", job_id=job, lease_id=lease, before=before, after=after, actor="t", reason=reason
        )

    def job(self, job: int, name: str, submitted: float, ready: float | None, **more: Any) -> None:
        row: Row = {
            "id": job, "name": name, "kind": "train", "pool": "default", "owner": "ada", "state": "pending", "state_since": submitted,
            "priority": 0, "held": False, "gpus_min": 1, "gpus_max": 1, "gpu_memory": 0, "demand": "best-effort", "model": name,
            "submitted_at": submitted, "finished_at": None, "attempts": 0, "failures": 0, "preemptions": 0, "cancel_requested": False,
            "run_time": 0.0, "attained": 0.0, "outcome": None, "labels": "{}", "spec": "{}",
        }  # fmt: skip
        self.add("jobs", **{**row, **more})
        self.event(job, submitted, None, "submitted", "submitted")
        if ready is not None:
            self.event(job, ready, "submitted", "pending", "ready")

    def run(self, job: int, slots: list[int], granted: float, started: float, ended: float, outcome: str, after: str) -> int:
        """One attempt, with the events from the grant to the state that follows it."""
        self.lease += 1
        row = self.rows["jobs"][job - 1]
        row["attempts"] += 1
        row["preemptions"] += outcome == "preempted"
        row["failures"] += outcome not in ("preempted", "completed", "lost")
        if after in ("completed", "failed"):
            row.update(state=after, finished_at=ended, outcome=outcome)
        self.add("leases", id=self.lease, job_id=job, attempt=row["attempts"], gpu_count=len(slots), state="ended", granted_at=granted,
                 started_at=started, ended_at=ended, outcome=outcome, policy="fifo")  # fmt: skip
        for slot in slots:
            self.add("lease_gpus", lease_id=self.lease, gpu_id=f"n1/{slot}", node_id="n1")
        self.event(job, granted, "pending", "assigned", lease=self.lease)
        self.event(job, started, "assigned", "running", lease=self.lease)
        self.event(job, ended, "running", after, lease=self.lease)
        return self.lease

    def loss(self, job: int, lease: int, step: int, value: float, at: float, name: str = "loss") -> None:
        self.add("metrics", job_id=job, lease_id=lease, rank=0, seq=step, ts=at, step=step, name=name, value=value)

    def store(self, con: duckdb.DuckDBPyConnection) -> None:
        for file in (*sorted(MIGRATIONS.glob("*.sql")), *view_files()):
            con.execute(file.read_text())
        for table, rows in self.rows.items():
            types = dict(con.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ?", [table]).fetchall())
            for first in range(0, len(rows), 200):
                self._insert(con, table, types, rows[first : first + 200])

    @staticmethod
    def _insert(con: duckdb.DuckDBPyConnection, table: str, types: dict[str, str], rows: list[Row]) -> None:
        columns = sorted({column for row in rows for column in row})
        values = [
            datetime.fromtimestamp(T0 + row[column], UTC).replace(tzinfo=None)
            if types[column] == "TIMESTAMP" and row.get(column) is not None
            else row.get(column)
            for row in rows
            for column in columns
        ]
        group = f"({', '.join('?' * len(columns))})"
        names = ", ".join(f'"{column}"' for column in columns)
        con.execute(f'INSERT INTO "{table}" ({names}) VALUES {", ".join([group] * len(rows))}', values)


class Database:
    """A query function like the daemon's: bounded, and JSON in between, which knows neither NaN nor infinity."""

    def __init__(self, history: History) -> None:
        self.con = duckdb.connect()
        self.most = 100_000
        history.store(self.con)

    def __call__(self, query: str, values: Mapping[str, object]) -> Table:
        answer = read_on(self.con.cursor(), f"report/{query}", values, rows=self.most, seconds=60.0)  # type: ignore[arg-type]
        rows = msgspec.json.decode(msgspec.json.encode([[plain(value) for value in row] for row in answer.rows]))
        return Table(answer.columns, rows, answer.truncated)


def small() -> History:
    """Six jobs on two slots, 140 seconds: every number that follows from it is worked out by hand in the tests."""
    made = History()
    made.job(1, "encoder", 0, 0)
    made.job(2, "cnn", 0, 0, demand="soft", spec='{"stop": {"metric": "f1"}}')
    made.job(3, "urgent", 50, 50, demand="strict", priority=10)
    made.job(4, "child", 0, 80, demand="strict")
    made.job(5, "gang", 100, 100, gpus_min=2, gpus_max=2)
    made.job(6, "unwanted", 0, None, demand="strict", state="cancelled", finished_at=20.0, outcome="cancelled")
    made.event(6, 20, "submitted", "cancelled")
    made.add("dependencies", job_id=4, needs=3, mode="ok", met=True)
    for job, deadline, reward in ((2, 100, 10.0), (2, 200, 4.0), (3, 90, 1.0), (4, 125, 5.0), (6, 50, 7.0)):
        made.add("tiers", job_id=job, deadline=deadline, reward=reward)
    second = made.run(2, [1], 0, 1, 60, "failed", "pending")
    first = made.run(1, [0], 10, 12, 52, "preempted", "pending")
    made.run(3, [0], 52, 53, 80, "completed", "completed")
    retried = made.run(2, [1], 70, 71, 110, "completed", "completed")
    resumed = made.run(1, [0], 80, 82, 120, "completed", "completed")
    made.run(4, [1], 110, 111, 130, "completed", "completed")
    made.run(5, [0, 1], 130, 131, 140, "oom", "failed")
    for step in range(1, 41):
        made.loss(1, first, step, 2.0 / step, 12 + step)
    for step in range(30, 71):
        made.loss(1, resumed, step, 2.0 / step, 52 + step)
    for step in range(1, 21):
        made.loss(2, second, step, 1.0 / step if step < 15 else math.nan, 1 + step)
        made.loss(2, retried, step, 0.9 / step, 71 + step)
    made.loss(1, resumed, 50, 0.7, 102, "accuracy")
    made.loss(1, resumed, 70, 0.91, 122, "accuracy")
    made.loss(2, retried, 20, 0.5, 91, "accuracy")
    made.loss(2, retried, 20, 0.75, 91, "f1")
    for at in range(0, 60, 5):
        made.add("telemetry", ts=at, gpu_id="n1/1", node_id="n1", lease_id=second, utilisation=0.8)
        if 10 <= at < 50:
            made.add("telemetry", ts=at, gpu_id="n1/0", node_id="n1", lease_id=first, utilisation=0.5)
    return made


def large(jobs: int) -> History:
    """A random but plausible busy host: eight GPUs, served in order of submission."""
    rng = np.random.default_rng(7)
    made = History(slots=8, kind="cuda")
    free = [0.0] * 8
    now = 0.0
    for job in range(1, jobs + 1):
        now += float(rng.exponential(45))
        gpus = int(rng.choice([1, 1, 1, 2, 4]))
        lasts = float(rng.lognormal(5.5, 1.1))
        made.job(job, f"bert-base-{job}", now, now, model=f"model-{rng.zipf(1.6) % 40}")
        slots = sorted(range(8), key=lambda slot: free[slot])[:gpus]
        begin = max(now, *(free[slot] for slot in slots))
        outcome = str(rng.choice(["completed", "completed", "completed", "preempted", "oom"]))
        after = "pending" if outcome == "preempted" else "completed" if outcome == "completed" else "failed"
        lease = made.run(job, slots, begin, begin + 2, begin + lasts, outcome, after)
        if outcome == "preempted":
            again = begin + lasts + 30
            lease = made.run(job, slots, again, again + 2, again + lasts / 2, "completed", "completed")
            lasts = again + lasts / 2 - begin
        for slot in slots:
            free[slot] = begin + lasts
        for step in range(1, 4):
            made.loss(job, lease, step, float(3.0 / step + rng.random()), begin + step)
    return made


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    made = Database(small())
    yield made
    made.con.close()


@pytest.fixture(scope="module")
def report(database: Database) -> Report:
    return collect(database, Scope.of(None, None, T0 + 500))


def test_summary_is_what_hand_computation_gives(database: Database) -> None:
    found = read_report(database, now=T0 + 500).summary
    assert found["jobs"] == {"total": 6, "completed": 4, "failed": 1, "cancelled": 1, "running": 0, "waiting": 0}
    # JCTs 120, 110, 30, 130; waits 38, 10, 2, 110, 30, 20.
    assert found["jct"] == pytest.approx({"mean": 97.5, "median": 115.0, "p99": 129.7, "max": 130.0})
    assert found["waiting"] == pytest.approx({"mean": 35.0, "median": 25.0, "p99": 38 + 0.95 * 72})
    # Job 2 missed its first step and earned the second, 3 was in time, 4 was late; 6 was a person's to cancel.
    assert found["deadlines"] == {"promised": 3, "due": 3, "met": 2}
    assert found["reward"] == pytest.approx({"earned": 5.0, "possible": 16.0, "share": 5 / 16})
    assert (found["preemptions"], found["failed_attempts"], found["makespan"]) == (1, 2, 140.0)
    # Slot 0: 42 + 28 + 40 + 10 s; slot 1: 60 + 40 + 20 + 10 s; of 2 x 140 s.
    assert found["gpus"] == pytest.approx({"count": 2, "seconds": 250.0, "leased": 250 / 280, "measured": 3.4 / 6})
    assert [(row["id"], row["metric"], row["value"]) for row in found["reached"]] == [(1, "accuracy", 0.91), (2, "f1", 0.75)]
    json.dumps(found, allow_nan=False)


def test_waits_by_reason(report: Report) -> None:
    waits: dict[str, dict[str, float]] = {}
    for row in report.waits:
        waits.setdefault(row["label"], {})[row["code"]] = row["seconds"]
    assert waits == {
        "1": {"gpus": 10, "preempted": 28, "start": 4},
        "2": {"retry": 10, "start": 2},
        "3": {"gpus": 2, "start": 1},
        "4": {"dependency": 80, "gpus": 30, "start": 1},
        "5": {"gpus": 30, "start": 1},
        "6": {"held": 20},
    }


def test_the_wait_for_max_running_is_not_one_for_gpus() -> None:
    made = History()
    made.job(1, "task", 0, 0)
    for at_, code in ((5, "cap"), (35, "resources"), (50, "behind")):
        seq = len(made.rows["events"]) + 1
        made.add("events", seq=seq, ts=at_, kind="job.waiting", job_id=1, after=code, actor="t", reason=code)
    made.run(1, [0], 70, 71, 90, "completed", "completed")
    found = read_report(Database(made), now=T0 + 100)
    assert {row["code"]: row["seconds"] for row in found.waits} == {"gpus": 40, "cap": 30, "start": 1}


def test_commands_wait_together_by_their_names_without_number_user_and_label() -> None:
    """Each has a digest of its own, as its arguments differ; recipes have their models."""
    names = ["bert-1", "ann-bert-2", "bert_003", "big-bert[4]", "Bert lr 1e-4"]
    others = ["resnet50-1", "resnet50-2", "job17", "job18", "ann", "7"]
    made = History()
    for number in range(1, 41):
        name = (names + others)[(number - 1) % 11]
        made.job(number, name, 0, 0, model=f"command/{name}@{number:08x}", labels='{"size": "big", "lr": "x"}', owner="ann")
        made.run(number, [0], 10, 11, 20, "completed", "completed")
    made.job(41, "vit-1", 0, 0, model="vit/b16")
    found = read_report(Database(made), now=T0 + 100)
    jobs = {row["label"]: row["jobs"] for row in found.waits}
    assert jobs == {"command/bert": 20, "command/resnet50": 8, "command/job": 6, "command/ann": 3, "command/7": 3, "vit/b16": 1}


def at(steps: Steps, seconds: float) -> float:
    return float(steps.value[np.searchsorted(steps.moment, T0 + seconds, side="right") - 1])


def test_queue_and_utilisation_over_time(report: Report) -> None:
    moments = (5, 30, 51, 65, 75, 105, 135)
    assert [at(report.queue["waiting"], moment) for moment in moments] == [1, 0, 1, 2, 1, 2, 0]
    assert [at(report.queue["blocked"], moment) for moment in moments] == [2, 1, 1, 1, 1, 0, 0]
    assert [at(report.queue["running"], moment) for moment in moments] == [1, 2, 2, 1, 2, 2, 1]
    assert report.leased == pytest.approx([0.5, *[1.0] * 5, 0.5, *[1.0] * 5, 0.5, 1.0])
    assert report.measured == pytest.approx([0.4, *[0.65] * 4, 0.4, *[math.nan] * 8], nan_ok=True)


def test_scope_by_time_and_by_jobs(database: Database) -> None:
    later = read_report(database, since=T0 + 115, now=T0 + 500).summary
    assert (later["jobs"]["total"], later["jobs"]["completed"], later["begin"] - T0) == (3, 2, 115.0)
    chosen = read_report(database, jobs=[2, 3], now=T0 + 500).summary
    assert (chosen["jobs"]["total"], chosen["jct"]["mean"], chosen["reward"]["earned"]) == (2, 70.0, 5.0)
    bars = collect(database, Scope.of(None, [2, 3], T0 + 500)).bars
    assert {bar["job_id"] for bar in bars if bar["chosen"]} == {2, 3}
    assert {bar["job_id"] for bar in bars if not bar["chosen"]} == {1, 4}  # others that held a GPU meanwhile, shown in grey


def test_jobs_that_still_wait_and_run_reach_to_now() -> None:
    made = History()
    made.job(1, "waits", 0, 0)
    made.job(2, "runs", 10, 10, state="running", demand="strict")
    made.add("waiting", job_id=1, code="resources", reason="both slots are busy", updated_at=5)
    made.add("tiers", job_id=2, deadline=1000, reward=1.0)
    made.add("leases", id=1, job_id=2, attempt=1, gpu_count=2, state="running", granted_at=20, started_at=21, policy="fifo")
    for slot in (0, 1):
        made.add("lease_gpus", lease_id=1, gpu_id=f"n1/{slot}", node_id="n1")
    made.event(2, 20, "pending", "assigned", lease=1)
    found = collect(Database(made), Scope.of(None, None, T0 + 100))
    assert found.summary["jobs"] == {"total": 2, "completed": 0, "failed": 0, "cancelled": 0, "running": 1, "waiting": 1}
    assert found.summary["jct"]["mean"] is None
    assert found.summary["waiting"]["mean"] == pytest.approx((100 + 10) / 2)
    assert found.summary["deadlines"] == {"promised": 1, "due": 0, "met": 0}
    assert found.summary["gpus"]["leased"] == pytest.approx(0.8)
    assert at(found.queue["waiting"], 99) == 1
    assert found.jobs[1]["note"] == "both slots are busy"


class Outside(html.parser.HTMLParser):
    """Collects what a page would fetch, its images, the cells of its tables, and elements that nobody meant."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.images: list[bytes] = []
        self.cells: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")
        for name, value in attrs:
            if name in ("src", "href", "srcset") and value is not None:
                head, _, data = value.partition(",")
                if head == "data:image/png;base64":
                    self.images.append(base64.b64decode(data, validate=True))
                else:
                    self.fetched.append(value)

    def handle_data(self, data: str) -> None:
        if self.cells and self.lasttag == "td":
            self.cells[-1] += data.strip()


def read(page: Path) -> Outside:
    parser = Outside()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def png_size(image: bytes) -> tuple[int, int]:
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    return int(width), int(height)


@pytest.fixture(scope="module")
def page(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(read_report(database, now=T0 + 500), tmp_path_factory.mktemp("module") / "report", title="Demo")


def test_the_page_is_whole_and_needs_nothing_else(page: Path) -> None:
    assert (page.parent.name, page.name) == ("report", "index.html")
    assert {file.name for file in page.parent.iterdir()} == FIGURES | {"index.html"}
    parsed = read(page)
    assert parsed.fetched == []
    assert "url(" not in page.read_text() and "@import" not in page.read_text()
    assert "cut off" not in page.read_text()
    assert sorted(parsed.images) == sorted((page.parent / name).read_bytes() for name in FIGURES)
    for image in parsed.images:
        width, height = png_size(image)
        assert width == 1440 and 300 < height < 2000
    for text in ("encoder", "failed: oom", "2 (1 preempted)", "missed, 5s late", "f1 0.75", "accuracy 0.91"):
        assert text in parsed.cells, text


def test_no_job_at_all(tmp_path: Path) -> None:
    database = Database(History(slots=0))
    page = write_report(read_report(database, now=T0), tmp_path, title="Nothing yet")
    assert {file.name for file in tmp_path.iterdir()} == {"index.html"}
    assert "No job has completed." in page.read_text() and "No lease was granted" in page.read_text()
    found = read_report(database, now=T0).summary
    assert (found["jobs"]["total"], found["jct"]["mean"], found["gpus"]["leased"], found["makespan"]) == (0, None, None, None)


def test_figures_that_no_longer_apply_are_removed(page: Path, tmp_path: Path) -> None:
    shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True)
    write_report(read_report(Database(History(slots=0)), now=T0), tmp_path, title="b")
    assert {file.name for file in tmp_path.iterdir()} == {"index.html"}


@pytest.mark.slow
def test_one_job_with_hostile_texts_and_a_loss_that_is_never_a_number(tmp_path: Path) -> None:
    made = History(slots=1)
    made.job(1, "$\\frac{<script>alert('x')</script>&日本", 0, 0, owner="<b>ada", state_reason="a\nb <i>")
    lease = made.run(1, [0], 0, 0, 0, "oom", "failed")
    for step in range(3):
        made.loss(1, lease, step, math.nan, step)
    page = write_report(read_report(Database(made), now=T0), tmp_path, title="<script>title")
    parsed = read(page)
    assert {"script", "b", "i"}.isdisjoint(parsed.tags)
    assert "<b>ada" in parsed.cells
    assert "loss.png" in {file.name for file in tmp_path.iterdir()}
    assert "jct.png" not in {file.name for file in tmp_path.iterdir()}


def test_colour_codes_of_a_stored_reason_are_not_on_the_page(tmp_path: Path) -> None:
    """Those that are stored today have none, but a database may have reasons of an earlier version."""
    made = History()
    reason = "\x1b[1;31mRuntimeError\x1b[0m: \x1b]0;title\x07no data\x07"
    made.job(1, "a", 0, 0, state="failed", finished_at=5.0, outcome="failed", state_reason=reason)
    page = write_report(read_report(Database(made), now=T0 + 9), tmp_path, title="Colours").read_text()
    assert '<tr class="note"><td colspan="16">RuntimeError: no data�</td></tr>' in page
    assert "\x1b" not in page and "[1;31m" not in page


def test_a_long_reason_has_a_row_of_its_own_and_only_numbers_are_not_broken(tmp_path: Path) -> None:
    made = History()
    reason = "exit code 3: " + "x" * 400
    made.job(1, "a-name-" * 12, 0, 0, state="failed", finished_at=5.0, outcome="failed", state_reason=reason)
    page = write_report(read_report(Database(made), now=T0 + 9), tmp_path, title="Long").read_text()
    assert f'<tr class="note"><td colspan="16">{reason}</td></tr>' in page
    assert f'<td data-name="name">{"a-name-" * 12}' in page  # on a narrow screen each cell says what it is
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)  # type: ignore[union-attr]
    assert re.findall(r"([^{}]*)\{[^{}]*nowrap", style) == ["\ntd.n "]


@pytest.mark.parametrize(
    ("longest", "name", "ticks"),
    [
        (0.0, "s", ["0"]),
        (0.7, "s", ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]),
        (25.0, "s", ["0", "5", "10", "15", "20", "25"]),
        (100.0, "s", ["0", "15", "30", "45", "60", "75", "90"]),
        (300.0, "min", ["0", "1", "2", "3", "4", "5"]),
        (3600.0, "min", ["0", "10", "20", "30", "40", "50", "60"]),
        (3 * 3600.0, "h", ["0", "0.5", "1", "1.5", "2", "2.5", "3"]),
        (36 * 3600.0, "h", ["0", "6", "12", "18", "24", "30", "36"]),
        (10 * 86_400.0, "d", ["0", "2", "4", "6", "8", "10"]),
        (400 * 86_400.0, "d", ["0", "50", "100", "150", "200", "250", "300", "350", "400"]),
    ],
)
def test_durations_are_told_in_the_unit_in_which_they_read_well(longest: float, name: str, ticks: list[str]) -> None:
    from stoker.engine.report import style

    axes = style.figure(2.0).subplots()
    assert style.durations(axes, longest) == name
    axes.set_xlim(0, longest or 0.5)
    shown = axes.xaxis.get_major_formatter()
    assert [shown(at, None) for at in axes.get_xticks() if 0 <= at <= longest * 1.001] == ticks


@pytest.mark.slow
def test_more_jobs_than_a_page_lists_are_aggregated(tmp_path: Path) -> None:
    database = Database(large(600))
    found = collect(database, Scope.of(None, None, T0 + 1e7))
    assert len({row["label"] for row in found.waits}) <= 40  # models, not jobs
    assert sum(row["jobs"] for row in {row["label"]: row for row in found.waits}.values()) == 600
    assert len({row["job_id"] for row in found.curves}) == 12
    assert len(found.jobs) == 500
    page = write_report(read_report(database, now=T0 + 1e7), tmp_path, title="Many jobs")
    assert "The newest 500 of 600." in page.read_text()
    assert page.stat().st_size < 3_000_000
    assert all(png_size(image)[1] < 2000 for image in read(page).images)


def test_distribution_keeps_its_ends_when_it_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.report.data.MOST_POINTS", 10)
    database = Database(large(100))
    found = collect(database, Scope.of(None, None, T0 + 1e7))
    jct, share = found.jct.floats("jct"), found.jct.floats("share")
    assert len(jct) <= 11
    assert share[0] == 1 / found.summary["jobs"]["completed"] and share[-1] == 1.0
    assert jct[-1] == pytest.approx(found.summary["jct"]["max"])


def test_an_answer_cut_short_is_said(tmp_path: Path) -> None:
    cut = Database(small())
    cut.most = 5
    assert "cut off" in write_report(read_report(cut, now=T0 + 500), tmp_path, title="t").read_text()


def test_matplotlib_is_loaded_late_and_pyplot_never() -> None:
    code = "import sys, stoker.engine.report as r; assert 'matplotlib' not in sys.modules; import stoker.engine.report.plots; " \
           "assert 'matplotlib.pyplot' not in sys.modules and 'duckdb' not in sys.modules"  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patient(60))


@pytest.mark.slow
def test_the_pipeline_that_told_last_is_drawn(tmp_path: Path) -> None:
    made = small()
    whole = {"pipeline": "pipeline", "controller": "rate", "reward": 5.0, "cpus": 2.0, "cpu_used": 1.0, "memory_used": 1, "memory_total": 4}
    for job, start in ((1, 10.0), (2, 60.0)):
        for seq in range(1, 5):
            for position, (stage, unit) in enumerate((("udf", "workers"), ("prefetch", "MiB"))):
                made.add("pipelines", job_id=job, lease_id=job, rank=0, seq=seq, ts=start + seq, stage=stage, position=position, workers=1,
                         unit=unit, value=seq, action=1, wanted=seq, items=9.0, starved=0.0, blocked=0.0, queue=0, queue_bytes=0,
                         throughput=9.0, refused="no" if seq == 3 else None, **whole)  # fmt: skip
    database = Database(made)
    page = write_report(read_report(database, now=T0 + 500), tmp_path, title="Demo")
    assert "Of cnn #2, whose tuner told last" in page.read_text()
    width, height = png_size((tmp_path / "pipeline.png").read_bytes())
    assert width == 1440 and height < 2000
    drawn = collect(database, Scope.of(None, [1], T0 + 500)).pipeline
    assert {step["name"] for step in drawn} == {"encoder"} and all(step["acted"] for step in drawn)
    assert [(step["seq"], step["ts"] - T0) for step in drawn if step["held"]] == [(3, 13)] and len(drawn) == 4
    assert drawn[0]["stages"] == [
        {"stage": "udf", "workers": 1, "unit": "workers", "value": 1}, {"stage": "prefetch", "workers": 1, "unit": "MiB", "value": 1},
    ]  # fmt: skip


@pytest.mark.slow
def test_the_causal_graph_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    from stoker.engine.report.causes_plot import BETWEEN, layers_of  # with matplotlib, which few tests need

    made = small()
    edges = [["queues", "queueing"], ["jobs", "queueing"], ["queueing", "preemptions"], ["queueing", "jct"], ["preemptions", "jct"],
             ["fragmentation", "jct"]]  # fmt: skip
    made.add("causal_models", pool="default", policy="tiresias", objective="jct", version="v", samples=160, edges=json.dumps(edges),
             learnt="{}", updated_at=10.0)  # fmt: skip
    found = read_report(Database(made), now=T0 + 500)
    assert {(edge["cause"], edge["effect"]) for edge in found.causes} == {tuple(edge) for edge in edges}
    assert layers_of(found.causes, "jct") == (["jobs", "queues"], ["fragmentation", "preemptions", "queueing"], ["jct"])
    assert BETWEEN == METRICS
    assert "What tuning has learnt" in write_report(found, tmp_path, title="Demo").read_text()
    assert png_size((tmp_path / "causes.png").read_bytes())[0] == 1440
    without = write_report(read_report(Database(small()), now=T0 + 500), tmp_path, title="Demo").read_text()
    assert "What tuning has learnt" not in without and not (tmp_path / "causes.png").exists()
