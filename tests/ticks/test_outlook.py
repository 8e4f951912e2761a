"""Expected starts and ends and the risk of deadlines: one answer, whoever is asked, kept up to date and never so often that it costs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e import Jobs, command, until
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.cli.jobs import forecasting
from stoker.engine.config import Config, Guards, Hook, PolicyDefault
from stoker.engine.estimation.stored_estimates import Estimate, write_estimates
from stoker.engine.fleet import registration as runners
from stoker.engine.forecast import foretelling
from stoker.engine.forecast.deadline_watch import DeadlineWatch
from stoker.engine.forecast.explain import explain
from stoker.engine.forecast.foretelling import REFRESH, UNWRITTEN_SHIFT_SECONDS, Foretelling
from stoker.engine.home import Home
from stoker.engine.hooks import Hooks
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.json_rows import objects
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, WorkerUpdate
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import Demand, JobSpec, Provenance, Submission, Tier
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction
from stoker.engine.tasks import Tasks
from stoker.policies.contract import View
from stores import reopened
from views import Job, make_view

# One answer, whoever is asked

WAITING, HOLDING, ENDED = ("submitted", "pending"), ("assigned", "running", "suspending", "profiling"), ("completed", "failed", "cancelled")
GIVEN_UP = ("crowded", "late", "rejected", "outweighed")
SPREAD = 500.0  #: seconds between what is compared, at least: far more than any query takes


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Jobs with what is known of each, in seconds from now. Deadlines are never within `SPREAD` of an end."""
    jobs = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        state = draw(st.sampled_from([*WAITING, *WAITING, *HOLDING, *ENDED]))
        jobs.append(
            {
                "id": number,
                "state": state,
                "deadline": draw(st.one_of(st.none(), st.integers(-2, 8).map(lambda n: n * 1000.0 + SPREAD))),
                "takes": draw(st.one_of(st.none(), st.integers(0, 5).map(lambda n: n * 1000.0), st.just(1e12))),
                "start": draw(st.one_of(st.none(), st.integers(-1, 4).map(lambda n: n * 1000.0))),
                "code": draw(st.sampled_from(["resources", "behind", *GIVEN_UP])),
                "demand": draw(st.sampled_from(["strict", "soft"])),
                "promised": draw(st.booleans()),
            }
        )
    return jobs


def replace_tables(tx: Transaction, batch: Sequence[tuple[float, list[dict[str, Any]]]]) -> list[None]:
    """What is drawn, in the place of what is there."""
    for now, jobs in batch:
        for table, key in (("jobs", "id"), ("leases", "job_id"), ("waiting", "job_id"), ("events", "job_id"),
                           ("deadline_promises", "job_id")):  # fmt: skip
            tx.delete(table, key, range(1, 10))
        for job in jobs:
            number, state = job["id"], job["state"]
            holds = state in HOLDING
            row = {
                "id": number, "name": f"job{number}", "kind": "train", "pool": "default", "owner": "ann", "state": state,
                "state_since": now - job.get("since", 100.0), "state_reason": "so", "priority": 0, "held": False,
                "gpus_min": 1, "gpus_max": 1, "gpu_memory": 0, "model": "m",
                "demand": "best-effort" if job["deadline"] is None else job["demand"], "submitted_at": now - 9000, "attempts": 0,
                "failures": 0, "preemptions": 0, "cancel_requested": False, "run_time": 0.0, "attained": 0.0, "labels": "{}", "spec": "{}",
                "deadline": None if job["deadline"] is None else now + job["deadline"], "est_duration": job["takes"],
                "lease_id": number if holds else None, "finished_at": now if state in ENDED else None,
            }  # fmt: skip
            tx.insert("jobs", [row])
            if job.get("promised"):
                tx.insert("deadline_promises", [{"job_id": number, "promised_at": now - 1000.0}])
            if holds:
                lease = {"id": number, "job_id": number, "attempt": 1, "gpu_count": 1, "state": "running", "granted_at": now,
                         "started_at": now, "policy": "fifo", "profile": state == "profiling"}  # fmt: skip
                tx.insert("leases", [lease])
            if state in WAITING:
                start = None if job["start"] is None else now + job["start"]
                waits = {"job_id": number, "code": job["code"], "reason": "so", "position": number, "est_start": start, "updated_at": now}
                tx.insert("waiting", [waits])
    return [None] * len(batch)


def risk(job: Mapping[str, Any]) -> str | None:
    """What is to be said of its deadline, in the order in which it is certain."""
    deadline, takes, state = job["deadline"], job["takes"], job["state"]
    if deadline is None:
        return None
    if state in ENDED:
        return "met" if state == "completed" and deadline >= 0 else "missed"
    if deadline < 0:
        return "missed"
    if state in WAITING and job["code"] in GIVEN_UP:
        return "at risk"
    unknown = "at risk" if job["promised"] and state not in ("suspending", "profiling") else "unknown"
    if takes is None:
        return unknown
    if takes > deadline:
        return "at risk"  # even if it went on now
    start = begins(job)
    return unknown if start is None else "at risk" if start + takes > deadline else "safe"


def begins(job: Mapping[str, Any]) -> float | None:
    """Seconds until it goes on."""
    if job["state"] in WAITING:
        return None if job["start"] is None else max(job["start"], 0.0)
    return 0.0 if job["state"] in ("assigned", "running") else None


def ends(job: Mapping[str, Any]) -> float | None:
    start = begins(job)
    return None if start is None or job["takes"] in (None, 1e12) else start + job["takes"]


def late_by(job: Mapping[str, Any]) -> float | None:
    """Seconds after its deadline at which it ends, at the least."""
    deadline, takes, end = job["deadline"], job["takes"], ends(job)
    if end is not None:
        return max(end - deadline, 0.0)
    if takes not in (None, 1e12) and takes > deadline:
        return takes - deadline
    return -deadline if deadline < 0 else None


def near(told: float | None, expected: float | None, now: float) -> bool:
    return told is None if expected is None else told is not None and abs(told - now - expected) < SPREAD / 2


@pytest.fixture(scope="module")
def shared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = reopened(Path(shutil.copyfile(template, tmp_path_factory.mktemp("shared") / "stoker.duckdb")))
    yield opened
    opened.close()


@pytest.mark.slow
@settings(max_examples=10)
@given(jobs=tables())
def test_listings_queue_explanations_and_alarms_agree(shared: Store, jobs: list[dict[str, Any]]) -> None:
    now = time.time()
    shared.write(replace_tables, (now, jobs))
    listed = {row["id"]: row for row in objects(shared, "api/jobs", True, 0.0, None, None, False, 100, None, None, None)}
    queue = {row["id"]: row for row in objects(shared, "api/top_queue")}
    running = {row["id"]: row for row in objects(shared, "api/top_running")}
    holders = {row["id"]: row for row in objects(shared, "api/blockers", "default")}
    DeadlineWatch(shared).look()
    with shared.read() as con:
        alarms = {row[0] for row in con.execute("SELECT job_id FROM events WHERE kind = 'job.deadline-at-risk'").fetchall()}
        slo = {number: (said, tardiness) for number, said, tardiness in con.execute("SELECT id, verdict, tardiness FROM slo").fetchall()}
    late = {row["id"] for row in objects(shared, "cookbook/11_deadlines_at_risk")}
    for job in jobs:
        number, state = job["id"], job["state"]
        row, said = listed[number], explain(shared, number)
        assert row["deadline_risk"] == risk(job), job
        assert (said["deadline"] or {"risk": None})["risk"] == risk(job), "explain"
        if job["deadline"] is not None:
            verdict, tardiness = slo[number]
            assert verdict == risk(job), "slo"
            assert state in ENDED or near(tardiness, late_by(job), 0.0), job
        if state not in ENDED:
            assert near(row["eta_at"], ends(job), now), job
            assert (number in alarms) == (number in late) == (risk(job) in ("at risk", "missed")), "alarms and the cookbook"
            if said["deadline"]:
                assert near(said["deadline"]["estimate"], ends(job), now), "explain"
                assert said["deadline"]["verdict"].startswith("not known") == (risk(job) == "unknown")
        if state in WAITING:
            assert queue[number]["deadline_risk"] == risk(job), "queue"
            assert all(near(told["est_start"], begins(job), now) for told in (row, queue[number], said["waiting"]))
        if state in HOLDING:
            assert running[number]["deadline_risk"] == risk(job), "top"
            assert near(running[number]["eta_at"], ends(job), now) and near(holders[number]["est_end"], ends(job), now)


def alarm(store: Store, **job: Any) -> list[str]:
    """What is announced of one job."""
    plain = {"id": 1, "state": "pending", "deadline": 1000.0, "takes": None, "start": None, "code": "resources", "demand": "strict"}
    store.write(replace_tables, (time.time(), [{**plain, **job}]))
    DeadlineWatch(store).look()
    with store.read() as con:
        return [row[0] for row in con.execute("SELECT reason FROM events WHERE kind = 'job.deadline-at-risk'").fetchall()]


def test_a_start_that_is_not_known_is_no_start_now(shared: Store) -> None:
    assert alarm(shared, takes=500.0) == [], "nobody knows when it starts: no alarm, and no all-clear"
    assert explain(shared, 1)["deadline"]["verdict"] == "not known: nothing tells yet when it starts"


def test_whoever_would_be_late_even_now_is_announced_though_its_start_is_not_known(shared: Store) -> None:
    (words,) = alarm(shared, takes=3000.0)
    late = re.match(r"would end (\d+) s after its deadline of ", words)
    assert late and 2000 <= int(late[1]) < 2060, words
    assert "even if it went on now" in words
    assert explain(shared, 1)["deadline"]["verdict"].startswith("at risk: on the GPUs that it asks for it would end too late")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"takes": 600.0, "start": 600.0}, "expected to end "),
        ({"state": "running", "takes": 2000.0}, "expected to end "),
        ({"deadline": -100.0}, "has passed, and it has not ended"),
        ({"takes": 10.0, "start": 10.0, "code": "crowded", "demand": "soft"}, "the policy keeps no GPUs for its deadline"),
        ({"takes": 1e12}, "even if it went on now"),
    ],
    ids=["its turn comes too late", "too slow", "over", "given up", "longer than any figure"],
)
def test_alarms_say_what_is_wrong(shared: Store, job: dict[str, Any], words: str) -> None:
    (said,) = alarm(shared, **job)
    assert words in said


def test_a_deadline_that_was_promised_and_is_no_longer_known_is_at_risk(shared: Store, tmp_path: Path) -> None:
    """Told once, by a hook too, after a restart as before; not while its start is about to be worked out anew."""
    heard = tmp_path / "heard"
    hooks = Hooks(shared, [Hook(("deadline-at-risk",), f'echo "$STOKER_REASON" >> {heard}', 10.0)])
    shared.listen(hooks.committed)
    assert alarm(shared, takes=500.0, start=100.0) == [], "it is safe"
    later: dict[str, Any] = {"takes": 500.0, "start": None, "promised": True}
    assert alarm(shared, **later, since=2.0) == [], "it has just come back into the queue"
    (words,) = alarm(shared, **later)
    assert re.fullmatch(r"its deadline of .* UTC was expected to be met, and when .* no longer known: 'stoker explain 1' says why", words)
    assert explain(shared, 1)["deadline"]["verdict"].startswith("at risk: it was expected to be met")
    (listed,) = objects(shared, "api/jobs", False, 0.0, None, None, False, 100, None, None, None)
    assert listed["deadline_risk"] == "at risk"
    DeadlineWatch(shared).look()
    hooks.close()
    assert heard.read_text() == f"{words}\n"
    (words,) = alarm(shared, takes=None, start=100.0, promised=True)
    assert "no longer known" in words, "nor is how long it takes"


def test_who_is_in_time_is_kept_in_mind(shared: Store) -> None:
    alarm(shared, takes=500.0, start=100.0)
    assert shared.rows("policy/promised_deadlines") == [(1,)]
    DeadlineWatch(shared).look()
    alarm(shared, takes=500.0, start=None)
    assert shared.rows("policy/promised_deadlines") == []


def test_a_job_that_is_being_stopped_is_not_about_to_end(shared: Store) -> None:
    assert alarm(shared, state="suspending", takes=500.0) == []
    (row,) = objects(shared, "api/top_running")
    assert (row["eta_at"], row["deadline_risk"]) == (None, "unknown")


# Kept up to date


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def grant_ago(tx: Transaction, batch: Sequence[tuple[int, float]]) -> list[None]:
    tx.update("leases", ["id"], [{"id": lease, "granted_at": time.time() - ago} for lease, ago in batch])
    return [None] * len(batch)


class Host:
    """A daemon's scheduling of one node with one slot, each step of it by hand."""

    def __init__(self, store: Store, policy: str = "fifo", min_run_time: float = 0.0) -> None:
        self.store, self.clock = store, Clock()
        gpus = [GpuInfo(id="n1/cpu0", index=0, kind="cpu", name="cpu")]
        greeting = Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h",
                         address="localhost", pool="default", gpus=gpus, leases=[])  # fmt: skip
        self.session = store.write(runners.hello, greeting)
        config = Config(policy=PolicyDefault(policy), guards=Guards(min_run_time=min_run_time))
        self.scheduling = Scheduling(store, Tasks(lambda *_: None), config, self.clock)
        self.scheduling.start()

    def submit(self, *specs: JobSpec) -> list[int]:
        wanted = SubmitRequest(Submission(jobs=list(specs), provenance=Provenance(argv=[], cwd="/")), "ann")
        jobs = [row["id"] for row in self.store.write(submit, wanted)]
        self.scheduling.tick("default")
        return jobs

    def pass_time(self, seconds: float = 5.0) -> None:
        self.clock.now += seconds
        self.scheduling.forecast()

    def told(self, job: int) -> tuple[float | None, str | None]:
        """Seconds until its expected start as it is written, and the risk of its deadline."""
        (row,) = objects(self.store, "api/jobs", True, 0.0, None, None, False, 1, None, None, None)
        assert row["id"] == job, "the newest is asked of"
        ((start,),) = [(start,) for number, _, start in self.store.rows("policy/foretold", "default") if number == job] or [(None,)]
        return None if start is None else start - self.clock.now, row["deadline_risk"]

    def show(self, job: int) -> dict[str, Any]:
        (row,) = objects(self.store, "api/job", job)
        return row

    def start(self, job: int, granted: float = 200.0) -> int:
        """Its worker has run for 100 s, or since its lease was granted so many seconds ago; its lease."""
        ((lease,),) = [(row["id"],) for row in objects(self.store, "api/leases", job)]
        self.store.write(grant_ago, (lease, granted))
        update = WorkerUpdate(lease=lease, state="running", ts=time.time() - 100, pid=9, pid_started=1.0, boot_id="b", run_dir="/tmp")
        self.report(workers=[update])
        return int(lease)

    def progress(self, lease: int, *steps: tuple[int, int, float], total: int) -> None:
        """Steps that were reported: each (number of the report, step, seconds ago)."""
        records = [Record(seq=seq, ts=time.time() - ago, step=step, values={"loss": 1.0}, total=total) for seq, step, ago in steps]
        self.report(records=[Records(lease=lease, rank=0, records=records)])

    def report(self, **parts: Any) -> None:
        self.store.write(runners.report, Report(node="n1", session=self.session, **parts))


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store)


def strict(after: float, **fields: Any) -> JobSpec:
    return JobSpec(
        **{"name": "timed", "recipe": "toy", "demand": Demand("strict", (Tier(time.time() + after),)), "estimate": 60.0, **fields}
    )


def test_who_waits_for_a_guard_has_one_expected_start_for_ps_and_explain(store: Store) -> None:
    """The end of the guard, where it is not known how long the victim would run."""
    host = Host(store, "priority", min_run_time=60.0)
    host.submit(JobSpec(name="victim", recipe="toy"))
    host.start(1, granted=0.0)
    (job,) = host.submit(JobSpec(name="urgent", recipe="toy", priority=9))
    host.pass_time()
    (listed,) = objects(store, "api/jobs", True, 0.0, None, None, False, 1, None, None, None)
    held = host.scheduling.held_back("default", job)
    said = explain(store, job, held_back=host.scheduling.held_back)
    assert held is not None and listed["id"] == job
    assert said["waiting"]["est_start"] == listed["est_start"] == pytest.approx(held.until, abs=UNWRITTEN_SHIFT_SECONDS)


def test_a_pace_that_becomes_known_or_changes_tells_the_start(host: Host) -> None:
    first, job = host.submit(JobSpec(name="first", recipe="toy"), strict(150.0))
    lease = host.start(first)
    host.pass_time()
    assert host.told(job) == (None, "unknown")
    host.progress(lease, (1, 10, 90.0), (2, 20, 80.0), total=50)
    host.pass_time()
    start, said = host.told(job)
    assert start == pytest.approx(30, abs=3) and said == "safe", "30 steps are left, a second each"
    host.progress(lease, (3, 25, 0.0), total=50)  # five steps in 80 s
    host.pass_time()
    start, said = host.told(job)
    assert start is not None and start > 100 and said == "at risk"


def test_a_pace_that_hardly_changes_is_no_news(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = host.submit(JobSpec(name="first", recipe="toy"), strict(4000.0))
    lease = host.start(first)
    host.progress(lease, (1, 10, 90.0), (2, 20, 80.0), total=5000)
    host.pass_time()
    monkeypatch.setattr(foretelling, "estimate_starts", lambda *_: pytest.fail("nothing had changed"))
    host.progress(lease, (3, 30, 69.9), total=5000)
    host.pass_time()


def test_an_estimate_that_is_learnt_tells_the_start(host: Host) -> None:
    first, job = host.submit(JobSpec(name="first", recipe="toy"), strict(10_000.0))
    lease = host.start(first)
    host.progress(lease, (1, 10, 90.0), (2, 20, 80.0), total=5000)
    host.pass_time()
    assert host.told(job)[0] == pytest.approx(4980, abs=5)
    host.store.write(write_estimates, [Estimate(first, 20, 120, 100, 150, 0.9, 0.1, 8, 0.1)])
    host.pass_time()
    assert host.told(job)[0] == pytest.approx(100, abs=5)


def test_a_start_that_has_passed_is_foretold_anew(host: Host) -> None:
    first, job = host.submit(JobSpec(name="first", recipe="toy", estimate=20.0), strict(10_000.0))
    host.pass_time()
    start, _ = host.told(job)
    assert start is not None and 0 < start < 25
    host.store.write(lambda tx, batch: [tx.update("jobs", ["id"], [{"id": first, "est_duration": 300.0}])], None)  # no news of that
    host.pass_time(21.0)
    assert host.told(job)[0] == pytest.approx(300, abs=25)


def test_a_forecast_is_made_anew_now_and_then_though_nothing_is_known_to_have_changed(host: Host) -> None:
    first, job = host.submit(JobSpec(name="first", recipe="toy", estimate=2000.0), strict(10_000.0))
    host.pass_time()
    host.store.write(lambda tx, batch: [tx.update("jobs", ["id"], [{"id": first, "est_duration": 4000.0}])], None)
    host.pass_time(REFRESH - 1)
    assert host.told(job)[0] == pytest.approx(2000 - REFRESH, abs=10)
    host.pass_time(2.0)
    assert host.told(job)[0] == pytest.approx(4000 - REFRESH, abs=40)


def test_who_is_not_in_line_any_more_has_no_expected_start(host: Host) -> None:
    _, job = host.submit(JobSpec(name="first", recipe="toy", estimate=20.0), strict(10_000.0))
    host.pass_time()
    assert host.told(job)[1] == "safe"
    host.store.write(control, Control("hold", (job,), "ann"))
    host.scheduling.tick("default")
    host.pass_time()
    assert host.told(job) == (None, "unknown")
    assert explain(host.store, job)["deadline"]["verdict"].startswith("not known")


def test_a_place_that_was_lost_with_its_row_is_written_again(host: Host) -> None:
    """The job left the queue and came back between two forecasts: what the last one wrote is gone."""
    _, job = host.submit(JobSpec(name="first", recipe="toy", estimate=200.0), strict(10_000.0))
    host.pass_time()
    host.store.write(lambda tx, batch: [tx.update("waiting", ["job_id"], [{"job_id": job, "position": None, "est_start": None}])], None)
    host.submit(JobSpec(name="other", recipe="toy"))
    host.pass_time()
    ((place, start),) = [(place, start) for number, place, start in host.store.rows("policy/foretold", "default") if number == job]
    assert place == 1 and start == pytest.approx(host.clock.now + 200, abs=20)


def test_news_without_end_cost_a_bounded_share(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used, made = Clock(), [0.0], []
    monkeypatch.setattr(foretelling.time, "thread_time", lambda: used[0])

    def look(took: float) -> View:
        made.append(clock.now)
        used[0] += took
        return make_view([1], [Job(1)], now=clock.now)

    for took, most in ((0.1, 4), (0.0, 61)):  # of a very long queue, and of a short one
        told = Foretelling(store, "default", lambda took=took: look(took), clock)
        made.clear()
        for _ in range(120):
            told.news()
            told.refresh([1])
            clock.now += 0.25
        assert most - 2 <= len(made) <= most, f"{took} s each in 30 s"


# Who goes first


@pytest.mark.parametrize("policy", ["edf", "hydra", "genie", "elasticflow", "unisched", "chronus"])
@pytest.mark.sampled(2)
def test_who_waits_behind_deadlines_is_told_so(store: Store, policy: str) -> None:
    host = Host(store, policy)
    script = {"command": ["true"], "estimate": 600.0}
    soft = Demand("soft", (Tier(time.time() + 1300, 100.0), Tier(time.time() + 20_000, 10.0)))
    (timed,) = host.submit(JobSpec(name="runs", demand=Demand("strict", (Tier(time.time() + 700),)), **script))
    behind, other = host.submit(JobSpec(name="plain", **script), JobSpec(name="soft", demand=soft, **script))
    host.pass_time()
    assert host.show(timed)["state"] == "assigned"
    said = explain(store, behind, host.scheduling.deadlines_first)["summary"]
    assert "; jobs with deadlines go first: " in said and "1 holds GPUs" in said, said
    assert "1 waits before it and " in said or policy in ("elasticflow", "unisched", "chronus"), "its turn is at the next round"
    assert "go first" not in explain(store, other, host.scheduling.deadlines_first)["summary"], "it has one itself"


def test_where_deadlines_do_not_count_nobody_is_said_to_wait_for_them(host: Host) -> None:
    _, behind = host.submit(strict(5000.0, name="runs"), JobSpec(name="plain", recipe="toy"))
    assert "go first" not in explain(host.store, behind, host.scheduling.deadlines_first)["summary"]


def test_who_is_held_does_not_wait_for_deadlines(store: Store) -> None:
    host = Host(store, "edf")
    _, held = host.submit(strict(5000.0), JobSpec(name="held", recipe="toy", hold=True))
    assert "go first" not in explain(store, held, host.scheduling.deadlines_first)["summary"]


# One verdict


@given(
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.49, 0.5, 0.89, 0.9, 1.0]), min_size=1, max_size=3).map(sorted),
    risk=st.sampled_from(["safe", "at risk"]),
    given_up=st.booleans(),
)
def test_what_is_said_beside_a_verdict_does_not_contradict_it(shares: list[float], risk: str, given_up: bool) -> None:
    now = 1_700_000_000.0
    steps = [{"deadline": now + 600 * n, "reward": 10.0, "probability": share, "impossible": False} for n, share in enumerate(shares, 1)]
    forecast = {"status": "estimated", "reason": None, "runs": 24, "simulated": 24, "needs": 60.0, "gpus": 1, "demand": "soft",
                "steps": steps,
                "end_50": now + 60, "end_90": now + 600, "others": {"deadlines": 0, "missed": 0.0}}  # fmt: skip
    given_up = given_up and risk == "at risk"
    said = forecasting.beside(forecast, risk, given_up=given_up, now=now)
    text = "\n".join(said)
    if given_up:
        assert "likely met" not in text.replace("unlikely", ""), "its policy says that it cannot be met"
    final = said[-1] if said else ""
    assert not (risk == "at risk" and "likely met" in final) and not (risk == "safe" and "unlikely" in final)
    assert given_up or said, "what is known is told"
    if not given_up:
        assert f"{round(shares[-1] * 100)}% of 24 simulated runs" in final


# As people see it


@pytest.mark.slow
def test_what_ps_does_not_know_explain_does_not_either_and_both_learn_it(
    home: Home, start_daemon: Callable[..., Any], start_runner: Callable[..., Any]
) -> None:
    jobs = Jobs(start_daemon().client())
    start_runner("here", 1)
    gate = home.path / "go"
    script = (
        "import pathlib, time, stoker\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\n"
        "for step in range(1, 2000):\n    stoker.report(step=step, total=3600, loss=1.0)\n    time.sleep(0.25)\n"
    )
    first = jobs.python("first", script)
    until(lambda: jobs.state(first) == "running")
    soft = {"kind": "soft", "tiers": [{"deadline": time.time() + 7200, "reward": 100}, {"deadline": time.time() + 9000, "reward": 10}]}
    job = jobs.shell("timed", "true", estimate=60.0, demand=soft)
    until(lambda: jobs.waits(job))

    def risks() -> tuple[str, str, str]:
        listed = {row["id"]: row for row in jobs.client.get("/v1/jobs")["jobs"]}
        queue = {row["id"]: row for row in jobs.client.get("/v1/top")["queue"]}
        return listed[job]["deadline_risk"], queue[job]["deadline_risk"], jobs.client.get(f"/v1/jobs/{job}/explain")["deadline"]["risk"]

    assert risks() == ("unknown", "unknown", "unknown")
    said = command(home, "explain", str(job)).out
    assert "not known: nothing tells yet when it starts" in said and "simulated" not in said
    gate.touch()
    until(lambda: risks() == ("safe", "safe", "safe"))
    said = command(home, "explain", str(job)).out
    assert ": on time" in said and "simulated" in said and "not known" not in said
    jobs.act("cancel", job)
    jobs.act("cancel", first)
    assert jobs.ended(first)["state"] == "cancelled"
