"""The table `pipelines`, from a tuner's step in a job to SQL, `stoker pipeline` and the plot; and the cores that a job may use."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e import Jobs, until
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.cli.jobs.pipeline_command import _facts, _limit
from stoker.engine.cli.main import run
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.jobs.pipeline_history import describe
from stoker.engine.protocol import Pipeline, Record, Records, Speed
from stoker.engine.spec.model import PipelineOptions
from stoker.engine.store.maintenance import Retention, thin
from stoker.engine.store.store import Store
from stoker.runners.host.divided_cores import divide
from stoker.runners.loaders.readings import step_telemetry as telemetry
from stoker.runners.loaders.readings.step_telemetry import Journal
from stoker.runners.loaders.tuning.controller import Decision, Knob, Observation, StageReading, Unit, Values
from stoker.runners.worker import cores, script
from test_workflow import Host, spec

DAY = 86_400.0


def reading(name: str, workers: int = 1, **more: Any) -> StageReading:
    given = {"items": 100, "per_batch": 32.0, "cpu": 0.01, "wait": 0.002, "starved": 0.1, "blocked": 0.0, "queue": 3, "queue_bytes": 300}
    return StageReading(name=name, workers=workers, item_bytes=100.0, **{**given, **more})


def observation(values: Values = (1, 2, 64), **more: Any) -> Observation:
    """Three stages, the last of which only holds data."""
    stages = (reading("read", values[0]), reading("udf", values[1]), reading("prefetch", 0, cpu=math.nan, wait=math.nan))
    knobs = (Knob("read", Unit.WORKERS), Knob("udf", Unit.WORKERS), Knob("prefetch", Unit.MIB, 1, 4096))
    given = {"at": 9.0, "window": 2.0, "batch_size": 32.0, "throughput": 50.0, "demand": 80.0, "cpus": 2.0, "cpu_used": 1.5}
    memory = {"memory_used": 1 << 30, "memory_total": 4 << 30}
    return Observation(stages=stages, knobs=knobs, values=values, **{**given, **memory, **more})


class Told:
    """A journal on a clock that the test sets, and what it has told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[dict[str, Any]] = []
        self.journal = Journal("pipeline", lambda fields: self.steps.append(dict(fields)), lambda: self.now)

    def step(self, after: float, given: Values = (1, 2, 64), refused: str = "", why: str = "", **more: Any) -> bool:
        """One step of the tuner; whether it was told."""
        self.now += after
        before = len(self.steps)
        self.journal.step(observation(**more), "rate", Decision(given, why), given, refused)
        return len(self.steps) > before

    def actions(self, stage: str) -> list[int]:
        return [s["action"] for step in self.steps for s in step["stages"] if s["name"] == stage]


# -- what a job tells -------------------------------------------------------------------------------------------------


def test_what_changes_nothing_is_told_every_ten_seconds() -> None:
    told = Told()
    assert [told.step(2.0) for _ in range(7)] == [True, False, False, False, False, True, False]


def test_a_change_a_reason_and_a_refusal_are_told_at_once() -> None:
    told = Told()
    assert told.step(0.0)
    assert (
        told.step(2.0, (1, 4, 64)) and told.step(2.0, (1, 4, 64), why="because") and told.step(2.0, (1, 4, 64), why="because", refused="no")
    )
    assert told.step(2.0, (1, 4, 64), why="because", refused="no", resized=True)
    assert not told.step(2.0, (1, 4, 64), why="because", refused="no")
    assert told.actions("udf") == [0, 2, 0, 0, 0]


def test_a_tuner_in_a_hurry_does_not_flood() -> None:
    told = Told()
    assert sum(told.step(0.01, (1, 2 + i, 64)) for i in range(1000)) == 10
    assert sum(told.actions("udf")) == told.steps[-1]["stages"][1]["value"] - 2


def test_another_pipeline_of_the_same_name_begins_anew() -> None:
    """As where a script makes one each epoch, or one to train and then one to validate."""
    told = Told()
    told.step(0.0, (1, 4, 64))
    fewer = dataclasses.replace(observation(), knobs=observation().knobs[:1], values=(1,))
    told.now += 2.0
    told.journal.step(fewer, "rate", Decision((5,)), (5,), "")
    told.now += 2.0
    told.journal.step(observation(), "rate", Decision((1, 3, 64)), (1, 3, 64), "")
    assert [[stage.get("action") for stage in step["stages"]] for step in told.steps] == [[0, 2, 0], [4, None, None], [0, 1, 0]]


def test_a_pipeline_that_delivers_nothing_falls_silent_so_that_a_hang_is_seen() -> None:
    """A runner takes a job whose reports do not grow, and that does nothing, for hung: its tuner must not hide that."""
    told = Told()
    assert told.step(0.0) and told.step(2.0, throughput=0.0, why="it stalls")
    assert not any(told.step(60.0, (1, 3 + i, 64), throughput=0.0) for i in range(5))
    assert told.step(2.0, (1, 7, 64))
    assert told.actions("udf") == [0, 0, 5]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 20), st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from([0.0, 50.0])), min_size=1, max_size=30))
def test_changes_add_up_to_the_values_whatever_is_left_out(steps: list[tuple[float, Values, float]]) -> None:
    told = Told()
    for after, values, throughput in steps:
        told.step(after, values, throughput=throughput)
    for place, (stage, first) in enumerate({"read": 1, "udf": 2, "prefetch": 64}.items()):
        assert first + sum(told.actions(stage)) == told.steps[-1]["stages"][place]["value"]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(script, "_state", script._State())
    monkeypatch.setattr(telemetry, "_journals", {})
    return tmp_path


def test_a_step_is_a_record_of_the_protocol(run_dir: Path) -> None:
    """What is not finite is left out: no item was finished, the demand has no bound."""
    decision = Decision((1, 5, 128), "udf is slow")
    telemetry.report(observation(demand=math.inf), "rate", decision, (1, 4, 128), "no memory for a fifth")
    (line,) = (run_dir / "reports-0.jsonl").read_bytes().splitlines()
    record = msgspec.json.decode(line, type=Record)
    told = record.pipeline
    assert isinstance(told, Pipeline) and (record.seq, record.values) == (1, {})
    assert (told.controller, told.why, told.refused, told.demand) == ("rate", "udf is slow", "no memory for a fifth", None)
    assert (told.throughput, told.reward, told.cpus) == (50.0, 50.0 * 0.75, 2.0)
    read, udf, prefetch = told.stages
    assert (udf.workers, udf.unit, udf.value, udf.action, udf.wanted, udf.throughput) == (4, "workers", 4, 2, 5, 50.0)
    assert (prefetch.workers, prefetch.unit, prefetch.value, prefetch.action, prefetch.cpu) == (0, "MiB", 128, 64, None)
    assert (read.action, read.cpu, read.wait, read.starved, read.queue_bytes) == (0, 0.01, 0.002, 0.1, 300)


def test_several_pipelines_of_one_process_are_told_apart(run_dir: Path) -> None:
    for name in ("train", "validation"):
        telemetry.report(observation(), "rate", Decision((1, 2, 64)), (1, 2, 64), "", name=name)
    lines = (run_dir / "reports-0.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Record).pipeline.name for line in lines] == ["train", "validation"]


def test_outside_a_job_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "_state", script._State())
    monkeypatch.setattr(telemetry, "_journals", {})
    telemetry.report(observation(), "rate", Decision((1, 2, 64)), (1, 2, 64), "")
    assert script.given_cores() is None
    assert list(tmp_path.iterdir()) == []


# -- cores ------------------------------------------------------------------------------------------------------------


def test_the_share_is_read_again_when_it_changes(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is not there yet or was cut short by a full disk, what held before still holds."""
    assert script.given_cores() is None
    file = run_dir / "cpus.json"
    for cpus in (4.0, 1.5):
        (run_dir / "new").write_text(json.dumps({"cpus": cpus}))
        (run_dir / "new").replace(file)
        assert script.given_cores() == cpus
    file.write_text("{")
    assert script.given_cores() == 1.5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert script.given_cores() == 0.5, "ranks of one node divide it"


@settings(max_examples=60)
@given(st.floats(0.5, 256), st.dictionaries(st.integers(1, 99), st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=8))
def test_all_cores_are_given_and_none_twice(total: float, held: dict[int, set[int]]) -> None:
    shares = divide(total, {lease: [f"g{gpu}" for gpu in gpus] for lease, gpus in held.items()})
    assert sum(shares.values()) == pytest.approx(total, abs=0.001 * len(held))
    for lease, gpus in held.items():
        for other, others in held.items():
            if gpus >= others:
                assert shares[lease] >= shares[other] - 0.001


def test_shares_go_by_the_gpus_in_use() -> None:
    assert divide(8.0, {1: ["a"], 2: ["b", "c", "d"]}) == {1: 2.0, 2: 6.0}
    assert divide(8.0, {1: ["a"]}) == {1: 8.0}, "those of idle GPUs are lent"
    assert divide(8.0, {1: ["a"], 2: ["a"], 3: ["b"]}) == {1: 2.0, 2: 2.0, 3: 4.0}, "who share a GPU share its cores"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a", {"a/cpu.max": "max 100000"}, math.inf),
        ("0::/../outside", {"cpu.max": "50000 100000"}, 0.5),
        ("3:cpu,cpuacct:/j", {"cpu,cpuacct/j/cpu.cfs_quota_us": "300000", "cpu,cpuacct/j/cpu.cfs_period_us": "100000"}, 3.0),
        ("3:cpu,cpuacct:/j", {"cpu/j/cpu.cfs_quota_us": "-1", "cpu/j/cpu.cfs_period_us": "100000"}, math.inf),
        ("3:cpu:/host/name", {"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25),
        ("2:memory:/a", {"memory/a/cpu.max": "10000 100000"}, math.inf),
    ],
    ids=["v2", "v2-none", "v2-outside", "v1", "v1-none", "v1-hosts-name", "other-controller"],
)
def test_quota_of_a_cgroup(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert cores.quota(tmp_path, tmp_path / "own") == expected
    assert cores.usable(tmp_path, tmp_path / "own") <= expected
    assert cores.quota(tmp_path, tmp_path / "none") == math.inf


# -- what is stored ---------------------------------------------------------------------------------------------------


def step(seq: int, ts: float, workers: int = 2, action: int = 0, **more: Any) -> Record:
    stages = [
        {"name": "read", "workers": 1, "unit": "workers", "value": 1, "action": 0, "wanted": 1, "cpu": 0.001, "wait": 0.01, "starved": 0.0,
         "blocked": 0.7, "throughput": 60.0},
        {"name": "udf", "workers": workers, "unit": "workers", "value": workers, "action": action, "wanted": workers, "cpu": 0.04,
         "starved": 0.0, "blocked": 0.05, "throughput": 50.0},
        {"name": "prefetch", "workers": 0, "unit": "MiB", "value": 64, "action": 0, "wanted": 64},
    ]  # fmt: skip
    whole = {"controller": "rate", "throughput": 50.0, "demand": 80.0, "reward": 37.5, "cpus": 2.0, "cpu_used": 1.9}
    pipeline = {**whole, "memory_used": 1 << 30, "memory_total": 4 << 30, "stages": stages, **more}
    return msgspec.convert({"seq": seq, "ts": ts, "step": 0, "pipeline": pipeline}, Record)


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store)


@pytest.fixture
def lease(host: Host) -> int:
    """Of job 1, which runs."""
    (job,) = host.submit(spec("dlrm"))
    given = host.grant(job)
    host.run(given)
    return given


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.read() as con:
        return con.execute(query).fetchall()


def test_one_row_a_stage_each_step_once(host: Host, lease: int, store: Store) -> None:
    first = Records(lease=lease, rank=0, records=[step(1, 100.0), Record(seq=2, ts=100.5, step=7, values={"loss": 1.0})])
    host.report(records=[first])
    host.report(
        records=[first, Records(lease=lease, rank=1, records=[step(1, 101.0, workers=4, action=2, why="it is slow", refused="not 5")])]
    )
    found = rows(store, "SELECT job_id, rank, seq, stage, position, workers, unit, value, action FROM pipelines ORDER BY rank, position")
    assert found == [
        (1, 0, 1, "read", 0, 1, "workers", 1, 0), (1, 0, 1, "udf", 1, 2, "workers", 2, 0), (1, 0, 1, "prefetch", 2, 0, "MiB", 64, 0),
        (1, 1, 1, "read", 0, 1, "workers", 1, 0), (1, 1, 1, "udf", 1, 4, "workers", 4, 2), (1, 1, 1, "prefetch", 2, 0, "MiB", 64, 0),
    ]  # fmt: skip
    assert rows(store, "SELECT DISTINCT why, refused, epoch(ts), reward FROM pipelines WHERE rank = 1") == [
        ("it is slow", "not 5", 101.0, 37.5)
    ]
    latencies = rows(store, "SELECT latency, cpu, wait FROM pipelines WHERE rank = 0 ORDER BY position")
    assert latencies == [(pytest.approx(0.011), 0.001, 0.01), (0.04, 0.04, None), (None, None, None)]
    assert rows(store, "SELECT step, loss FROM progress") == [(7, 1.0)], "a tuner's step is no progress of the training"


def test_a_profiling_run_leaves_no_pipeline(host: Host, store: Store) -> None:
    (job,) = host.submit(spec(gpus_min=2, gpus_max=2))
    lease = host.grant(job, 0, 1)
    host.run(lease)
    store.write(lambda tx, batch: [tx.update("leases", ["id"], [{"id": lease, "profile": True}])], None)
    host.report(
        records=[Records(lease=lease, rank=0, records=[step(1, 100.0), Record(seq=2, ts=101.0, step=0, speed=Speed(compute=1.0, steps=3))])]
    )
    assert rows(store, "SELECT count(*) FROM pipelines") == [(0,)]


def test_retention_keeps_what_was_done_and_one_step_an_hour(host: Host, lease: int, store: Store) -> None:
    start = 20 * DAY

    def fill(tx: Any, batch: Any) -> list[None]:
        hour = math.floor((tx.now - start) / 3600) * 3600.0
        old = [step(i + 1, hour + 600.0 * i, 2 + (i >= 4), int(i == 4), refused="no" if i == 8 else "") for i in range(12)]
        host.records = [Records(lease=lease, rank=0, records=[*old, *(step(i, tx.now - 60.0) for i in range(13, 16))])]
        return [None]

    store.write(fill, None)
    host.report(records=host.records)
    removed = store.write(thin, Retention())
    assert [row[0] for row in rows(store, "SELECT DISTINCT seq FROM pipelines ORDER BY seq")] == [1, 5, 7, 9, 13, 14, 15]
    assert removed["pipelines"] == 3 * 8
    assert rows(store, "SELECT count(*), count(DISTINCT stage) FROM pipelines") == [(21, 3)]
    assert store.write(thin, Retention())["pipelines"] == 0
    host.report(records=host.records)
    assert rows(store, "SELECT count(*) FROM pipelines") == [(21,)], "what was thinned does not come back"


# -- what is seen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "limits"),
    [({}, "udf"), ({"demand": None}, "udf"), ({"throughput": 79.0}, None)],
    ids=["busiest", "without-demand", "training"],
)
def test_the_bottleneck_is_the_busiest_stage_unless_the_training_is(
    host: Host, lease: int, store: Store, more: dict[str, Any], limits: str | None
) -> None:
    host.report(records=[Records(lease=lease, rank=0, records=[step(1, 100.0, throughput=1.0), step(2, 101.0, **more)])])
    found = rows(store, "SELECT stage FROM pipelines_now WHERE bottleneck")
    assert found == ([(limits,)] if limits else [])
    assert rows(store, "SELECT stage, state, busy FROM pipelines_now WHERE stage = 'udf'") == [("udf", "running", pytest.approx(0.95))]
    told = describe(store, 1, rank=None, name=None, decisions=10, points=0)
    assert told["pipelines"][0]["bottleneck"] == limits and told["decisions"] == []


def test_where_every_stage_is_idle_none_limits(host: Host, lease: int, store: Store) -> None:
    idle = step(1, 100.0, throughput=0.0)
    assert idle.pipeline is not None
    stages = [msgspec.structs.replace(stage, starved=1.0, blocked=0.0) for stage in idle.pipeline.stages]
    record = msgspec.structs.replace(idle, pipeline=msgspec.structs.replace(idle.pipeline, stages=stages))
    host.report(records=[Records(lease=lease, rank=0, records=[record])])
    assert rows(store, "SELECT stage FROM pipelines_now WHERE bottleneck") == []
    assert rows(store, "SELECT cpu, wait FROM pipelines_now WHERE stage = 'read'") == [(0.001, 0.01)]


@pytest.mark.parametrize(
    ("throughput", "limits"),
    [(79.0, "the training"), (20.0, "not known: no stage was at work"), (0.0, "not known: nothing was delivered")],
    ids=["enough", "idle", "nothing"],
)
def test_what_limits_is_the_training_only_where_it_gets_what_it_takes(throughput: float, limits: str) -> None:
    assert _limit({"bottleneck": None, "throughput": throughput, "demand": 80.0}) == limits


def test_only_the_newest_lease_counts_as_now(host: Host, lease: int, store: Store) -> None:
    """The second attempt has fewer ranks; what ranks of the first one told is history."""
    host.report(records=[Records(lease=lease, rank=rank, records=[step(9, 100.0, workers=8)]) for rank in (0, 1)])
    host.stop(lease)
    host.exit(lease, "stopped")
    second = host.grant(1)
    host.run(second)
    host.report(records=[Records(lease=second, rank=0, records=[step(1, 200.0, workers=3)])])
    assert rows(store, "SELECT rank, workers FROM pipelines_now WHERE stage = 'udf'") == [(0, 3)]
    told = describe(store, 1, rank=0, name="pipeline", decisions=10, points=100)
    assert [(s["lease_id"], s["stages"][1]["workers"]) for s in told["history"]] == [(lease, 8), (second, 3)]


def test_a_long_history_is_thinned_to_the_points_and_what_was_refused_stays(host: Host, lease: int, store: Store) -> None:
    steps = [step(i, 100.0 + i, action=int(i % 100 == 50), refused="no" if i == 777 else "") for i in range(1, 1001)]
    host.report(records=[Records(lease=lease, rank=0, records=steps)])
    told = describe(store, 1, rank=None, name=None, decisions=3, points=50)
    assert len(told["history"]) == 50
    assert [s["seq"] for s in told["history"] if s["held"]] == [777]
    assert sum(s["acted"] for s in told["history"]) == 10
    assert [d["seq"] for d in told["decisions"]] == [950, 850, 777]
    assert told["decisions"][0]["changes"] == [{"stage": "udf", "unit": "workers", "action": 1, "value": 2, "wanted": 2}]


def test_a_job_without_a_pipeline_gets_the_remedy(host: Host, lease: int, store: Store) -> None:
    with pytest.raises(NotFound, match=r"no data pipeline.*autotuned"):
        describe(store, 1, rank=None, name=None, decisions=1, points=1)
    host.report(records=[Records(lease=lease, rank=2, records=[step(1, 100.0)])])
    with pytest.raises(UsageError, match=r"^job 1 has no pipeline of rank 5; it has pipeline of rank 2"):
        describe(store, 1, rank=5, name=None, decisions=1, points=1)
    with pytest.raises(UsageError, match=r"^job 1 has no pipeline 'foo'; it has"):
        describe(store, 1, rank=None, name="foo", decisions=1, points=1)
    assert describe(store, 1, rank=None, name=None, decisions=1, points=1)["shown"] == {"rank": 2, "pipeline": "pipeline"}


def test_a_pipeline_that_has_told_nothing_is_not_denied(host: Host, store: Store) -> None:
    (job,) = host.submit(spec("piped", pipeline=PipelineOptions(memory=1 << 30)))
    with pytest.raises(NotFound, match=r"job 1, which is (pending|submitted), has told nothing yet"):
        describe(store, job, rank=None, name=None, decisions=1, points=1)
    lease = host.grant(job)
    host.run(lease)
    host.exit(lease, "failed")
    with pytest.raises(NotFound, match=r"^job 1 \(failed\) ended before its pipeline had told anything.*stoker logs 1"):
        describe(store, job, rank=None, name=None, decisions=1, points=1)


def test_an_ended_job_is_told_of_in_the_past_and_with_the_memory_that_was_allowed(host: Host, store: Store) -> None:
    (job,) = host.submit(spec("piped", pipeline=PipelineOptions(memory=1 << 30)))
    lease = host.grant(job)
    host.run(lease)
    host.report(records=[Records(lease=lease, rank=0, records=[step(1, 100.0, refused="refused udf 9 (given 2): why")])])
    running = dict(_facts(*_shown(store, job), 200.0))
    assert "delivers" in running and "limited by" in running
    assert running["memory"] == "1.0 GiB of 1.0 GiB (pipeline.memory; there are 4.0 GiB)"
    assert running["refused"] == "udf 9 (given 2): why"
    host.exit(lease, "failed")
    ended = dict(_facts(*_shown(store, job), 200.0))
    assert ended["was limited by"] == "stage udf" and "would have taken" in ended["delivered at its end"]


def _shown(store: Store, job: int) -> tuple[dict[str, Any], dict[str, Any]]:
    answer = describe(store, job, rank=None, name=None, decisions=1, points=0)
    return answer, answer["pipelines"][0]


# -- on real parts ----------------------------------------------------------------------------------------------------

TUNED = """
import os, sys, time
from stoker.runners.worker import script
from stoker.runners.loaders.readings import step_telemetry as telemetry
from stoker.runners.loaders.tuning.controller import Decision, Knob, Observation, StageReading, Unit
telemetry.LEAST_PAUSE = 0.0
folder, steps = sys.argv[1], int(sys.argv[2])
knobs = (Knob("udf", Unit.WORKERS),)
def step(i):
    stage = StageReading("udf", 1 + i, 10, 1.0, 0.1, 0.0, 0.0, 0.0, 1, 100, 100.0)
    seen = Observation(i, 1.0, (stage,), knobs, (1 + i,), 8.0, 5.0 + i, 20.0, script.given_cores(), 1.0, 1 << 30, 1 << 32)
    telemetry.report(seen, "rate", Decision((3 + i,), f"step {i}"), (2 + i,), "no memory" if i % 10 == 3 else "")
for i in range(steps):
    step(i)
    if i % 50 == 49:
        while not os.path.exists(f"{folder}/go-{i + 1}"):
            time.sleep(0.01)
"""


def told_steps(jobs: Jobs) -> int:
    return int(jobs.sql("SELECT count(*) FROM pipelines")[0][0])


def png_size(path: Path) -> tuple[int, int]:
    image = path.read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    return int(width), int(height)


@pytest.mark.slow
def test_a_tuners_steps_survive_the_daemon_and_are_shown(
    home: Any, start_daemon: Callable[..., Any], start_runner: Callable[..., Any], stoker: Said
) -> None:
    daemon = start_daemon()
    start_runner(slots=1)
    jobs = Jobs(daemon.client())
    job = jobs.submit("tuned", *_python(TUNED, home.path, 150))
    until(lambda: told_steps(jobs) == 50)
    daemon.kill()
    (home.path / "go-50").touch()  # the second fifty are told while there is no daemon
    reports = next(iter(home.path.glob(f"jobs/{job}/run-*"))) / "reports-0.jsonl"
    until(lambda: len(reports.read_bytes().splitlines()) == 100)
    daemon.start()
    until(lambda: told_steps(jobs) == 100)
    (home.path / "go-100").touch()
    until(lambda: told_steps(jobs) == 150)
    (home.path / "go-150").touch()
    assert jobs.ended(job)["state"] == "completed"
    assert jobs.sql("SELECT seq, workers, action FROM pipelines ORDER BY seq") == [(i + 1, 2 + i, 1) for i in range(150)]
    assert jobs.sql("SELECT bottleneck, throughput, why, refused FROM pipelines_now") == [(False, 154.0, "step 149", None)]
    assert {cpus for (cpus,) in jobs.sql("SELECT cpus FROM pipelines")} == {cores.usable()}
    _is_shown(stoker, home.path, job)
    plain = jobs.submit("plain", "true")
    jobs.ended(plain)
    code, out, err = stoker("pipeline", "plain")
    assert (code, out, err.count("\n")) == (3, "", 1) and "no data pipeline" in err and "autotuned" in err


def _python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stoker(home: Any, capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["--home", str(home.path), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _is_shown(stoker: Said, folder: Path, job: int) -> None:
    """`stoker pipeline` in its forms, on the job that has told 150 steps."""
    code, out, err = stoker("pipeline", "tuned")
    assert (code, err) == (0, "") and "None" not in out
    assert "the training" in out and "step 149" in out and "udf +1 → 151 (wanted 152)" in out
    plot = folder / "plot.png"
    code, out, err = stoker("pipeline", str(job), "--plot", str(plot), "--json", "--steps", "2")
    answer = json.loads(out)
    assert png_size(plot)[0] == 1440 and answer["plot"] == str(plot)
    assert len(answer["history"]) == 150 and len(answer["decisions"]) == 2
    assert [s["stage"] for s in answer["pipelines"][0]["stages"]] == ["udf"]
    assert stoker("pipeline", str(job), "--rank", "4")[0] == 2
    assert "--plot: cannot write" in stoker("pipeline", str(job), "--plot", "/no/such/place/a.png")[2]


SHARES = """
import os, sys, time
from stoker.runners.worker import script
folder, name = sys.argv[1:]
print("begins with", os.environ["STOKER_CPUS"], flush=True)
seen, step = None, 0
while not os.path.exists(f"{folder}/end-{name}"):
    if script.given_cores() != seen:
        seen, step = script.given_cores(), step + 1
        script.report(step=step, cpus=seen)
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_cores_of_a_node_follow_the_jobs_that_run(
    home: Any, start_daemon: Callable[..., Any], start_runner: Callable[..., Any]
) -> None:
    """A second job starts: the first one's share shrinks; it ends: it grows again. A new agent goes on with it."""
    total = cores.usable()
    jobs = Jobs(start_daemon().client())
    runner = start_runner(slots=4)
    first = jobs.submit("first", *_python(SHARES, home.path, "first"))

    def shares(job: int) -> list[float]:
        return [row[0] for row in jobs.sql(f"SELECT value FROM metrics WHERE job_id = {job} AND name = 'cpus' ORDER BY step")]

    until(lambda: shares(first) == [total])
    second = jobs.submit("second", *_python(SHARES, home.path, "second"), gpus_min=3, gpus_max=3)
    until(lambda: shares(first) == [total, pytest.approx(total / 4, abs=0.001)], says=lambda: shares(first))
    until(lambda: shares(second) == [pytest.approx(total * 3 / 4, abs=0.001)])
    assert f"begins with {total * 3 / 4:g}" in (jobs.run_dir(second) / "output.log").read_text()
    runner.kill()
    runner.start()
    (home.path / "end-second").touch()
    jobs.ended(second)
    until(lambda: shares(first) == [total, pytest.approx(total / 4, abs=0.001), total], says=lambda: shares(first))
    (home.path / "end-first").touch()
    assert jobs.ended(first)["state"] == "completed"
