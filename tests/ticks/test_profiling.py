"""Measured speed: what times come to, what reports add up to, what follows for a job, and what a policy sees of it."""

import contextlib
import math
import time
from pathlib import Path
from types import SimpleNamespace

import duckdb
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.estimation.speeds import fold
from stoker.engine.fleet import registration as runners
from stoker.engine.jobs import leases
from stoker.engine.jobs.outcomes import End, judge
from stoker.engine.jobs.states import State
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, Speed, WorkerUpdate
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.scheduling.measured_profiles import throughput
from stoker.engine.scheduling.query_columns import rows_of
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.model import JobSpec, PipelineOptions, Provenance, Retries, Reuse, Stop, Submission
from stoker.engine.store import migrate
from stoker.policies.contract import Phase
from stoker.policies.estimate.throughput import Throughput
from stoker.runners.train.batch_feeds import Part
from stoker.runners.train.profiling_run import Profiling, Times, standard_error, terms
from stoker.runners.train.speed import Watch
from stoker.runners.worker import script

seconds = st.floats(1e-4, 1e2)
NOTHING = dict.fromkeys(("compute", "within_node", "across_nodes", "peak_memory", "samples"))

# What times come to


@given(seconds, seconds, st.floats(0, 1e2), st.integers(2, 16))
def test_the_terms_of_exact_times_are_the_times(loading, alone, per_rank, ranks):
    together = alone + (ranks - 1) * per_rank
    compute, communication = terms([(loading, alone, together)] * ranks)
    assert compute == pytest.approx(loading + alone)
    assert communication == pytest.approx(per_rank, abs=1e-9 * (loading + together))


@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=2, max_size=8))
def test_the_slowest_rank_makes_the_pace_and_communication_is_never_negative(ranks):
    compute, communication = terms(ranks)
    assert communication >= 0
    assert compute == max(loading + alone for loading, alone, _ in ranks)
    assert compute + (len(ranks) - 1) * communication == pytest.approx(max(compute, *(loading + both for loading, _, both in ranks)))


def test_one_rank_says_nothing_to_others():
    assert terms([(0.1, 0.4, 0.4)]) == (0.5, None)


@given(seconds, st.lists(st.floats(1.0, 1e3), max_size=9))
def test_steps_that_were_held_up_move_nothing(step, held_up):
    times = Times([step] * 20, [*[step] * 20, *(step * more for more in held_up)], [step] * 20)
    assert times.summary() == (step, step, step) and times.precise()


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=50))
def test_four_times_the_steps_halve_the_error(steps):
    assert standard_error(steps * 4) == pytest.approx(standard_error(steps) / 2)


class Gang:
    """In the place of a trainer with two ranks: its steps take time of a clock that only they move."""

    def __init__(self, jitter: float = 0.0, step: float = 0.1, warming_up: float = 5.0) -> None:
        self.now, self.synchronised, self.steps = 0.0, True, 0
        self.jitter, self.step, self.warming_up = jitter, step, warming_up
        self.trainer = SimpleNamespace(parallel=self, ranks=self, total=500, parts=self.parts, update=self.update, close=lambda: None)
        self.first = True

    def parts(self) -> list[Part]:
        self.now += 0.01
        return [Part(1, "batch", 1)]

    def update(self, batches: list[str], share: float) -> "Gang":
        self.steps += 1
        warming_up = self.warming_up if self.steps <= 3 else 0.0
        self.now += self.step * (1.3 if self.synchronised else 1.0) + warming_up + self.jitter * (self.steps % 7)
        return self

    def item(self) -> float:
        return 1.0

    @contextlib.contextmanager
    def no_sync(self):
        self.synchronised = False
        yield
        self.synchronised = True

    def gather(self, value):
        return [value, value]

    def sum(self, value):
        self.now += 0.02
        return 2 * value


@pytest.fixture
def told(monkeypatch):
    found: list[dict] = []
    monkeypatch.setattr(script, "report_speed", lambda **speed: found.append(speed))
    return found


def test_a_profiling_run_measures_what_ranks_say_to_each_other_and_ends_by_itself(told):
    gang = Gang()
    assert Profiling(gang.trainer, lambda: gang.now).run() is True
    (speed,) = told
    assert speed["compute"] == pytest.approx(0.11) and speed["communication"] == pytest.approx(0.05)
    assert speed["total"] == 500 and 20 <= speed["steps"] <= 24


def test_steps_that_scatter_are_measured_until_the_time_is_over(told):
    gang = Gang(jitter=0.5)
    assert Profiling(gang.trainer, lambda: gang.now).run() is True
    assert 290 < gang.now < 320 and 20 < told[0]["steps"] < 400


def test_short_steps_that_scatter_are_measured_until_there_are_enough(told):
    gang = Gang(jitter=0.03)
    assert Profiling(gang.trainer, lambda: gang.now).run() is True
    assert gang.now < 280 and 400 <= told[0]["steps"] < 404


@pytest.mark.parametrize(("step", "kept"), [(10.0, 6), (15.0, 3), (18.0, 3), (40.0, 3), (100.0, 3)])
def test_slow_steps_are_measured_as_often_as_there_is_time_and_once_at_least(told, step, kept):
    """A run that came back without having measured anything would be repeated for ever."""
    gang = Gang(step=step, warming_up=0.0)
    assert Profiling(gang.trainer, lambda: gang.now).run() is True
    (speed,) = told
    assert speed["steps"] == kept
    assert speed["compute"] == pytest.approx(step + 0.01) and speed["communication"] == pytest.approx(0.3 * step + 0.02)
    assert gang.now <= 300 or gang.steps == 8, "only the first round may take longer than there is time"


def test_a_slow_warming_up_alone_ends_no_run(told):
    gang = Gang(warming_up=80.0)
    assert Profiling(gang.trainer, lambda: gang.now).run() is True
    (speed,) = told
    assert speed["compute"] == pytest.approx(0.11) and speed["steps"] >= 20


@pytest.mark.parametrize(("rounds", "kept"), [(2, []), (4, [9])])
def test_what_was_measured_before_a_stop_is_kept_if_it_is_enough(told, monkeypatch, rounds, kept):
    gang = Gang()
    monkeypatch.setattr(script, "should_stop", lambda: gang.steps >= 8 * rounds)
    assert Profiling(gang.trainer, lambda: gang.now).run() is False
    assert [speed["steps"] for speed in told] == kept


def test_a_training_is_timed_by_what_ddp_has_noted(told):
    noted = {"backward_comm_time": 30_000_000, "backward_compute_comm_overlap_time": 10_000_000}
    rates = []
    model = SimpleNamespace(_get_ddp_logging_data=lambda: noted, _set_ddp_runtime_logging_sample_rate=rates.append)
    watch = Watch(model, SimpleNamespace(first=True, size=3))
    for seconds in [9.0, 9.0, 9.0, *[0.1] * 30]:
        watch.stepped(seconds)
    watch.tell()
    assert told == [{"steps": 30, "compute": pytest.approx(0.08), "communication": pytest.approx(0.01)}] and rates == [1]
    noted.clear()  # as before the first iteration that DDP has timed
    watch.stepped(0.1)
    watch.tell()
    assert len(told) == 1


# What reports add up to


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30))
def test_a_row_stays_within_what_was_reported(reports):
    row = dict(NOTHING)
    for compute, communication in reports:
        row |= fold(row, Speed(compute=compute, communication=communication, steps=20), across=False)
    assert min(c for c, _ in reports) * 0.999 <= row["compute"] <= max(c for c, _ in reports) * 1.001
    assert min(c for _, c in reports) * 0.999 <= row["within_node"] <= max(c for _, c in reports) * 1.001
    assert row["samples"] == len(reports) and row["across_nodes"] is None


def test_what_runs_corrects_a_wrong_profile():
    row = dict(NOTHING) | fold(NOTHING, Speed(compute=1.0, communication=0.0, steps=20), across=True)
    for _ in range(20):
        row |= fold(row, Speed(compute=2.0, communication=0.5, steps=20, memory=7), across=True)
    assert row["compute"] == pytest.approx(2.0, rel=0.02) and row["across_nodes"] == pytest.approx(0.5, rel=0.02)
    assert row["peak_memory"] == 7


# What is predicted


@given(st.integers(1, 100), seconds, st.floats(0, 10), st.floats(0, 10))
def test_on_its_gang_a_step_takes_what_the_equation_says(gang, compute, within, across):
    speed = throughput(gang, compute, within, across)
    assert gang / speed.rate(gang) == pytest.approx(compute + (gang - 1) * within)
    assert gang / speed.rate(gang, spread=True) == pytest.approx(compute + (gang - 1) * max(within, across))
    if gang <= 64 and across >= within:
        assert speed.rate(gang) == pytest.approx(Throughput.of_iteration(compute, within, across).rate(gang))


@given(st.integers(1, 16), seconds, st.floats(0, 1))
def test_what_was_not_measured_is_taken_from_what_was(gang, compute, communication):
    within, across = throughput(gang, compute, communication, None), throughput(gang, compute, None, communication)
    for speed in (within, across):
        assert (speed.rates == speed.spread).all()
    assert (within.rates == across.rates).all()
    alone = throughput(gang, compute, None, None)
    assert np.allclose(alone.rates / alone.rates[0], np.arange(1, len(alone.rates) + 1))


@given(st.sets(st.integers(1, 50)), st.lists(st.integers(0, 51)))
def test_rows_of_profiles_are_found(known, wanted):
    ordered = sorted(known)
    found = rows_of(np.array(wanted, dtype=np.int64), np.array(ordered, dtype=np.int64))
    assert found.tolist() == [ordered.index(one) if one in known else -1 for one in wanted]


# Whose speed it is


def spec(**fields):
    return JobSpec(**{"name": "a", "recipe": "toy", "gpus_min": 4, "gpus_max": 4, "params": {"width": 8, "batch_size": 64}, **fields})


@pytest.mark.parametrize(
    "other",
    [{"gpus_min": 2}, {"params": {"width": 9, "batch_size": 64}}, {"params": {"width": 8, "batch_size": 32}}, {"recipe": "digits"},
     {"env": {"STOKER_THREADS": "2"}}, {"recipe": None, "entrypoint": "toy"}, {"reuse": Reuse()}, {"pipeline": PipelineOptions()}],
    ids=["gang", "size", "batch", "recipe", "threads", "entrypoint", "reuse", "pipeline"],
)  # fmt: skip
def test_work_that_may_be_faster_or_slower_has_a_signature_of_its_own(other):
    assert spec(**other).signature != spec().signature


def test_work_of_one_speed_shares_its_signature():
    again = spec(name="b", params={"batch_size": 64, "width": 8, "seed": 3, "lr": 0.1}, gpus_max=8, priority=3, workdir="/x")
    assert again.signature == spec().signature
    assert 0 < spec().signature < 2**63
    assert spec(recipe=None, command=("true",)).signature is None
    here, there = (spec(recipe=None, entrypoint="m:f", workdir=folder).signature for folder in ("/a", "/b"))
    assert here != there


# What follows for the job


@pytest.mark.parametrize(
    ("end", "state", "outcome", "failed", "unmeasured"),
    [
        (End("completed", 0, None), State.PENDING, "profiled", False, True),
        (End("stopped", 75, "expired"), State.PENDING, "profiled", False, True),
        (End("stopped", 75, "preempted"), State.PENDING, "profiled", False, False),
        (End("lost", None, "preempted"), State.PENDING, "profiled", False, False),
        (End("failed", -15, "timeout"), State.PENDING, "profiled", False, True),
        (End("stopped", 75, "cancelled"), State.CANCELLED, "cancelled", False, False),
        (End("completed", 0, "cancelled"), State.CANCELLED, "cancelled", False, False),
        (End("lost", None, None), State.PENDING, "lost", False, False),
        (End("failed", -9, None), State.PENDING, "failed", True, False),
        (End("oom", 76, None), State.PENDING, "oom", True, False),
    ],
)
def test_the_end_of_a_profiling_run(end, state, outcome, failed, unmeasured):
    verdict = judge(end, Retries(limit=1), failures=0, cancelled=False, held=False, profile=True)
    assert (verdict.state, verdict.outcome, verdict.failed, verdict.unmeasured) == (state, outcome, failed, unmeasured)
    assert not verdict.preempted
    assert not judge(end, Retries(limit=1), failures=0, cancelled=False, held=False, profile=True, measured=True).unmeasured


# In the tables


class Host:
    """A store with one runner of four slots."""

    def __init__(self, store):
        self.store = store
        gpus = [GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="slot") for i in range(4)]
        hello = Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="a",
                      pool="default", gpus=gpus, leases=[])  # fmt: skip
        self.session = store.write(runners.hello, hello)

    def submit(self, *specs):
        request = SubmitRequest(Submission(jobs=list(specs), provenance=Provenance(argv=["x"], cwd="/")), "ann")
        return [row["id"] for row in self.store.write(submit, request)]

    def grant(self, job, slots=2, **how):
        given = leases.Grant(job, tuple((f"n1/cpu{slot}", "n1") for slot in range(slots)), time.time() + 300, **how)
        decision = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
        lease = self.store.write(enact, Enactment(decision, grants=[given])).leases[0]
        self.report(WorkerUpdate(lease=lease, state="running", ts=time.time() - 50, pid=7, pid_started=1.0, boot_id="b", run_dir="/r"))
        return lease

    def report(self, *updates, lease=None, records=()):
        given = [Records(lease=lease, rank=0, records=list(records))] if records else []
        self.store.write(runners.report, Report(node="n1", session=self.session, workers=list(updates), records=given))

    def exit(self, lease, outcome="completed", code=0):
        self.report(WorkerUpdate(lease=lease, state="exited", ts=time.time(), exit_code=code, outcome=outcome))

    def rows(self, query, *values):
        with self.store.read() as con:
            return con.execute(query, list(values)).fetchall()

    def jobs(self):
        with self.store.read() as con:
            view = snapshot(con, "default", time.time()).view
        return view, view.jobs


@pytest.fixture
def host(store):
    return Host(store)


MEASURED = Record(seq=2, ts=time.time(), step=0, total=200, speed=Speed(compute=0.3, communication=0.1, steps=30))


def test_nothing_of_a_profiling_run_is_kept_but_what_it_measured(host):
    (job,) = host.submit(spec())
    assert host.jobs()[1].profile_gpus.tolist() == [2]
    lease = host.grant(job, profile=True)
    jobs = host.jobs()[1]
    assert (jobs.phase.tolist(), jobs.held.tolist(), jobs.profile_gpus.tolist()) == ([Phase.ACTIVE], [2], [2])
    assert jobs.run_time.tolist() == [0.0] and jobs.attained.tolist() == [0.0]
    assert host.rows("SELECT state FROM jobs") == [("profiling",)]
    host.report(lease=lease, records=[Record(seq=1, ts=time.time(), step=7, values={"loss": 1.0}), MEASURED, MEASURED])
    host.exit(lease)
    assert host.rows("SELECT count(*) FROM metrics UNION ALL SELECT count(*) FROM progress") == [(0,), (0,)]
    assert host.rows("SELECT state, attempts, preemptions, failures, run_time, attained, first_start_at, total_steps FROM jobs") == [
        ("pending", 0, 0, 0, 0.0, 0.0, None, 200)
    ]
    assert host.rows("SELECT outcome, attempt, profile FROM leases") == [("profiled", 0, True)]
    assert host.rows("SELECT model, gpu_name, gang, compute, within_node, across_nodes, samples FROM speeds") == [
        ("toy", "slot", 4, 0.3, 0.1, None, 1)
    ]
    assert host.rows("SELECT count(*) FROM failures") == [(0,)]


def test_a_measured_job_has_a_profile_and_an_end(host):
    first, like, other = host.submit(spec(), spec(name="b", params={**spec().params, "lr": 0.5}), spec(name="c", params={}))
    lease = host.grant(first, profile=True)
    host.report(lease=lease, records=[MEASURED])
    host.exit(lease)
    view, jobs = host.jobs()
    assert jobs.id.tolist() == [first, like, other]
    assert jobs.profile.tolist() == [0, 0, -1] and len(view.profiles) == 1
    assert jobs.profile_gpus.tolist() == [0, 0, 2]
    assert 4 / view.profiles[0].throughput.rate(4) == pytest.approx(0.6)
    assert jobs.remaining[0] == pytest.approx(200 * 0.6) and math.isnan(jobs.remaining[2])
    assert jobs.progress[0] == 0.0 and math.isnan(jobs.progress[1])
    lease = host.grant(first, slots=4)
    assert host.rows("SELECT state, attempts FROM jobs WHERE id = $1", first) == [("running", 1)]
    host.report(lease=lease, records=[msgspec.structs.replace(MEASURED, seq=1, speed=Speed(compute=0.5, communication=0.1, steps=20))])
    assert host.rows("SELECT compute, samples FROM speeds") == [(pytest.approx(0.4), 2)]


def test_parts_of_another_size_teach_nothing(host):
    (job,) = host.submit(spec(gpus_min=2, gpus_max=4))
    lease = host.grant(job, slots=3)
    host.report(lease=lease, records=[MEASURED])
    assert host.rows("SELECT count(*) FROM speeds") == [(0,)]
    assert host.jobs()[1].profile_gpus.tolist() == [0]  # it runs: it shows its own pace


def test_what_cannot_be_measured_in_two_leases_is_not_tried_again(host):
    job, *_ = host.submit(spec(), spec(name="b", gpus_min=1, gpus_max=1), spec(name="c", recipe=None, command=("true",)))
    assert host.jobs()[1].profile_gpus.tolist() == [2, 1, 0]
    for tries in (1, 2):
        lease = host.grant(job, profile=True)
        decision = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
        host.store.write(enact, Enactment(decision, stops=[leases.LeaseStop(lease, "expired", "daemon")]))
        host.exit(lease, "stopped", 75)
        assert host.jobs()[1].profile_gpus.tolist() == [2 if tries < 2 else 0, 1, 0]
    assert host.rows("SELECT state, preemptions FROM jobs WHERE id = $1", job) == [("pending", 0)]


def test_what_has_measured_nothing_twice_is_not_tried_again(host):
    (job,) = host.submit(spec())
    for left in (2, 0):
        host.exit(host.grant(job, profile=True))
        assert host.jobs()[1].profile_gpus.tolist() == [left]
    said = "its profiling run ended without having measured its speed"
    assert host.rows("SELECT outcome, message FROM leases") == [("profiled", said)] * 2
    assert host.rows("SELECT state, unmeasured, failures FROM jobs") == [("pending", 2, 0)]


def test_a_run_that_was_measured_in_the_report_of_its_end_counts_as_measured(host):
    (job,) = host.submit(spec())
    lease = host.grant(job, profile=True)
    host.report(
        WorkerUpdate(lease=lease, state="exited", ts=time.time(), exit_code=0, outcome="completed"), lease=lease, records=[MEASURED]
    )
    assert host.rows("SELECT message FROM leases") == [("its speed was measured; it waits for the GPUs to train on",)]
    assert host.rows("SELECT unmeasured FROM jobs") == [(0,)]


def test_what_is_left_is_told_by_the_pace_on_the_gpus_of_the_pool(host):
    """A slower product of another pool tells nothing where the pool's own was measured; where it was not, it is better than nothing."""
    (job,) = host.submit(spec(stop=Stop(iterations=100)))
    row = {"signature": spec().signature, "model": "toy", "gang": 4, "within_node": 0.0, "samples": 1}
    host.store.write(_insert, {**row, "gpu_name": "slower", "compute": 9.0, "peak_memory": 7})
    assert host.jobs()[1].remaining.tolist() == [900.0]
    host.store.write(_insert, {**row, "gpu_name": "slot", "compute": 1.0})
    jobs = host.jobs()[1]
    assert jobs.remaining.tolist() == [100.0] and jobs.gpu_memory.tolist() == [7.0]
    assert host.rows("SELECT ahead, gpu_memory FROM work WHERE job_id = $1", job) == [(100.0, 7)]


def test_speeds_of_other_gpus_are_not_this_pools(host):
    host.submit(spec())
    row = {"gpu_name": "other", "model": "toy", "gang": 4, "compute": 1.0, "samples": 1}
    host.store.write(_insert, {**row, "signature": spec().signature})
    assert host.jobs()[1].profile.tolist() == [-1]
    assert host.jobs()[1].profile_gpus.tolist() == [2]


def _insert(tx, batch):
    tx.insert("speeds", [{**row, "updated_at": tx.now} for row in batch])
    return [None] * len(batch)


def test_a_database_of_before_takes_the_migration(tmp_path: Path):
    con = duckdb.connect(str(tmp_path / "old.duckdb"))
    everything = migrate.available()
    migrate.apply(con, everything[:2])
    con.execute(
        "INSERT INTO leases (id, job_id, attempt, gpu_count, state, granted_at, policy) VALUES (1, 1, 1, 1, 'running', now(), 'fifo')"
    )
    migrate.apply(con, everything[2:])
    assert con.execute("SELECT profile FROM leases").fetchall() == [(False,)]
    con.close()
