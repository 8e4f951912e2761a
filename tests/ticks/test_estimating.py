"""What is learnt beside the ticks: when jobs get to the metric that they stop at, and what suspensions cost."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import Jobs, command, until
from stoker.engine.estimation import estimating as module
from stoker.engine.estimation.estimating import REFIT, REMEASURE, Estimating
from stoker.engine.fleet import registration as runners
from stoker.engine.forecast.explain import explain
from stoker.engine.format import expectation
from stoker.engine.jobs import leases
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.json_rows import first
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, WorkerUpdate
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.scheduling.overheads import Overheads
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.model import JobSpec, Provenance, Stop, Submission
from stores import reopened

SLOTS = 4
PACE = 0.5  #: seconds a step
MOST = 5000


def accuracy(step: int) -> float:
    """Reaches 0.9 at step 921."""
    return 1.0 - math.exp(-step / 400)


class Host:
    """A store with one runner on a clock that the test turns, and the estimating task."""

    def __init__(self, path) -> None:
        self.now = time.time() - 100_000.0  # of the past: views look back from the clock of the database
        self.path = path
        self.known: list[Overheads] = []
        self.open()
        gpus = [GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(SLOTS)]
        hello = Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h",
                      address="localhost", pool="default", gpus=gpus, leases=[])  # fmt: skip
        self.session = self.store.write(runners.hello, hello)
        self.seq = 0

    def open(self) -> None:
        self.store = reopened(self.path, clock=lambda: self.now)
        self.estimating = Estimating(self.store, self.known.append, lambda: self.now)
        self.store.listen(self.estimating.committed)

    def restart(self) -> None:
        self.store.close()
        self.open()

    def submit(self, name: str = "job", **fields: Any) -> int:
        stop = Stop(iterations=MOST, metric="accuracy", target=0.9)
        spec = JobSpec(name=name, **{"recipe": "toy", "stop": stop, **fields})
        request = SubmitRequest(Submission(jobs=[spec], provenance=Provenance(argv=["x"], cwd="/")), "ann")
        return self.store.write(submit, request)[0]["id"]

    def run(self, job: int, slot: int = 0) -> int:
        """Granted, and started 2 s later."""
        decision = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
        given = leases.Grant(job, ((f"n1/cpu{slot}", "n1"),), None)
        (lease,) = self.store.write(enact, Enactment(decision, grants=[given])).leases
        self.now += 2.0
        self.report(WorkerUpdate(lease=lease, state="running", ts=self.now, run_dir="/r"))
        return lease

    def suspend(self, lease: int, seconds: float) -> None:
        decision = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
        self.store.write(enact, Enactment(decision, stops=[leases.LeaseStop(lease, "expired", "daemon")]))
        self.now += seconds
        self.report(WorkerUpdate(lease=lease, state="exited", ts=self.now, exit_code=75, outcome="stopped"))

    def report(self, *updates: WorkerUpdate, records: Sequence[Records] = ()) -> None:
        self.store.write(runners.report, Report(node="n1", session=self.session, workers=list(updates), records=list(records)))

    def train(self, lease: int, steps: Sequence[int], value=accuracy, name: str = "accuracy") -> None:
        for step in steps:
            self.now += PACE * (steps[1] - steps[0] if len(steps) > 1 else 1)
            self.seq += 1
            record = Record(seq=self.seq, ts=self.now, step=step, values={name: value(step), "loss": 1.0})
            self.report(records=[Records(lease=lease, rank=0, records=[record])])

    def look(self) -> None:
        self.now += REFIT
        self.estimating.look()

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.store.read() as con:
            return con.execute(query, list(parameters)).fetchall()

    def estimate(self, job: int) -> dict[str, Any] | None:
        return first(self.store, "api/expected", job)

    def view(self):
        with self.store.read() as con:
            return snapshot(con, "default", self.now, self.known[-1] if self.known else Overheads()).view


@pytest.fixture
def host(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """How long fits take here postpones none."""
    monkeypatch.setattr(module, "FITTING_SHARE", math.inf)
    monkeypatch.setattr(module, "FITTING_SECONDS_PER_LOOK", math.inf)
    made = Host(database)
    yield made
    made.store.close()


def test_what_is_left_of_a_job_that_stops_at_a_metric_follows_its_curve(host):
    job, other = host.submit(), host.submit("plain", stop=Stop(iterations=MOST), estimate=77.0)
    lease = host.run(job)
    host.train(lease, range(20, 401, 20))
    ((most, before),) = host.rows("SELECT ahead_most, ahead FROM work WHERE job_id = $1", job)
    assert most == before == pytest.approx((MOST - 400) * PACE), "nothing is estimated yet"
    host.look()
    found = host.estimate(job)
    assert 600 < found["low"] <= found["iterations"] <= found["high"] <= MOST
    assert found["iterations"] < 2000, "it gets there at step 921"
    assert found["probability"] > 0.6 and (found["at_step"], found["points"], found["maximum"]) == (400, 20, MOST)
    ((most, ahead, done),) = host.rows("SELECT ahead_most, ahead, done FROM work WHERE job_id = $1", job)
    assert (most, ahead) == (pytest.approx((MOST - 400) * PACE), pytest.approx((found["iterations"] - 400) * PACE))
    assert done == pytest.approx(400 / found["iterations"])
    jobs = host.view().jobs
    assert jobs.id.tolist() == [job, other]
    assert jobs.remaining == pytest.approx([ahead, 77.0])
    assert jobs.remaining_most == pytest.approx([most, 77.0])
    assert jobs.uncertainty[0] > 0 and math.isnan(jobs.uncertainty[1])


def test_an_estimate_is_never_below_what_has_run(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, range(20, 401, 20))
    host.look()
    late = host.estimate(job)["iterations"] + 100
    host.train(lease, [late], lambda _: 0.85)
    assert host.rows("SELECT ahead, done FROM work WHERE job_id = $1", job) == [(0.0, 1.0)]
    host.look()
    assert late <= host.estimate(job)["iterations"] <= MOST
    host.train(lease, [MOST + 10], lambda _: 0.85)
    host.look()
    assert host.rows("SELECT done FROM work WHERE job_id = $1", job)[0][0] >= 1.0
    assert host.view().jobs.remaining.tolist() == [0.0]


def test_a_metric_that_does_not_rise_is_expected_to_take_the_maximum(host):
    job = host.submit()
    noise = np.random.default_rng(5).normal(0.1, 0.01, 500)
    host.train(host.run(job), range(20, 801, 20), lambda step: float(noise[step // 20]))
    host.look()
    found = host.estimate(job)
    assert found["iterations"] == found["high"] == MOST
    assert found["probability"] < 0.4
    assert host.view().jobs.remaining_most is None, "all are expected to take what they take at most"


def test_a_metric_may_fall_to_its_target(host):
    job = host.submit(stop=Stop(iterations=MOST, metric="perplexity", target=20.0, mode="min"))
    host.train(host.run(job), range(20, 401, 20), lambda step: 10.0 + 90.0 * math.exp(-step / 400), "perplexity")
    host.look()
    found = host.estimate(job)
    assert 500 < found["iterations"] < 2000, "it gets there at step 879"


def test_values_that_are_none_are_left_out(host):
    sound, broken = host.submit("sound"), host.submit("broken")
    host.train(host.run(sound, 0), range(20, 401, 20))
    bad = {40: math.nan, 100: math.inf, 240: -math.inf}
    host.train(host.run(broken, 1), range(10, 401, 10), lambda step: bad.get(step, math.nan if step % 20 else accuracy(step)))
    host.look()
    one, other = host.estimate(sound), host.estimate(broken)
    assert other["points"] == 20 - len(bad)
    assert other["iterations"] == pytest.approx(one["iterations"], rel=0.1)


def test_two_values_tell_nothing(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, [20, 40])
    host.look()
    assert host.estimate(job) is None
    host.train(lease, [60, 80])
    host.look()
    assert host.estimate(job)["points"] == 4


def test_a_job_is_fitted_again_when_it_has_gone_on_and_not_too_often(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, range(20, 201, 20))
    host.look()
    host.train(lease, [220])
    host.estimating.look()
    assert host.estimate(job)["at_step"] == 200, "within the 10 s"
    host.look()
    first = host.estimate(job)
    assert first["at_step"] == 220
    host.look()
    host.train(lease, [230], name="something else")
    host.look()
    assert host.estimate(job) == first, "no new value of its metric"


def test_one_look_fits_no_longer_than_its_share_and_the_others_come_next(host, monkeypatch):
    monkeypatch.setattr(module, "FITTING_SECONDS_PER_LOOK", 0.0)
    jobs = [host.submit(f"job-{number}") for number in range(3)]
    for slot, job in enumerate(jobs):
        host.train(host.run(job, slot), range(20, 201, 20))
    for number in range(1, 4):
        host.estimating.look()
        assert sum(host.estimate(job) is not None for job in jobs) == number


def test_a_maximum_of_nothing_keeps_nobody_from_an_estimate(host, caplog):
    """A script may report 0 steps in all."""
    broken, sound = host.submit("broken"), host.submit("sound")
    lease, other = host.run(broken, 0), host.run(sound, 1)
    host.train(lease, range(20, 201, 20))
    host.report(records=[Records(lease=lease, rank=0, records=[Record(seq=999, ts=host.now, step=220, total=0, values={"accuracy": 0.4})])])
    host.train(other, range(20, 201, 20))
    host.look()
    assert host.estimate(broken) is None and host.estimate(sound)["points"] == 10
    assert caplog.records == [], "nothing was tried"


def test_a_curve_that_cannot_be_fitted_costs_only_its_own_job_and_is_told_once(host, monkeypatch, caplog):
    broken, sound = host.submit("broken", stop=Stop(iterations=77, metric="accuracy", target=0.9)), host.submit("sound")
    fit = module.estimate_iterations

    def fails(*curve: Any, maximum: int, **more: Any) -> Any:
        if maximum == 77:
            raise ValueError("no such curve")
        return fit(*curve, maximum=maximum, **more)

    monkeypatch.setattr(module, "estimate_iterations", fails)
    ran = [host.run(broken, 0), host.run(sound, 1)]
    for last in (200, 240):
        for lease in ran:
            host.train(lease, range(last - 180, last + 1, 20))
        host.look()
        assert host.estimate(broken) is None and host.estimate(sound)["at_step"] == last
    assert [record.getMessage() for record in caplog.records] == [f"job {broken}: its iterations can't be estimated: no such curve"]


def test_estimates_outlive_the_daemon(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, range(20, 401, 20))
    host.look()
    before = host.estimate(job)
    host.restart()
    host.look()
    assert host.estimate(job) == before
    host.train(lease, [420, 440])
    host.look()
    assert host.estimate(job)["at_step"] == 440


def test_what_a_job_trained_again_after_a_loss_counts_once(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, range(20, 401, 20), lambda _: 0.5)
    host.suspend(lease, 1.0)
    host.train(host.run(job), range(20, 401, 20))
    host.look()
    assert host.estimate(job)["points"] == 20
    assert host.estimate(job)["iterations"] < 2000


def test_people_are_told_when_it_gets_there(host):
    job = host.submit()
    assert explain(host.store, job)["expected"] is None
    host.train(host.run(job), range(20, 401, 20))
    host.look()
    found = explain(host.store, job)["expected"]
    assert found == host.estimate(job)
    row = {"metric": "accuracy", "target": 0.9, "iterations": 1200, "low": 900, "high": 1800, "maximum": 5000, "probability": 0.854}
    said = "to reach accuracy 0.9 at step ~1 200 (900 to 1 800), 85 % likely within the maximum of 5 000"
    assert expectation(row) == said


# What suspensions cost


def test_what_suspensions_cost_is_measured_and_carried_over(host):
    seen, same_model, other = host.submit("a"), host.submit("b"), host.submit("c", recipe="other")
    assert host.view().jobs.overhead is None
    lease = host.run(seen)
    host.train(lease, [10])
    for leaving, resuming in ((3.0, 11.0), (5.0, 17.0)):
        host.suspend(lease, leaving)
        host.now += 50.0  # it waits
        lease = host.run(seen)
        host.now += resuming - 2.0 - PACE
        host.train(lease, [20])
    assert host.rows("SELECT pool, gpu_count, suspensions, suspend, resume, overhead FROM overheads") == [
        ("default", 1, 2, pytest.approx(4.0, abs=1e-3), pytest.approx(14.0, abs=1e-3), pytest.approx(18.0, abs=1e-3))
    ]
    host.now += REMEASURE
    host.estimating.look()
    jobs = host.view().jobs
    assert jobs.id.tolist() == [seen, same_model, other]
    assert jobs.overhead == pytest.approx([18.0] * 3, abs=1e-3)


def test_a_clock_that_was_set_back_makes_no_suspension_cheaper_than_nothing(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, [10])
    host.suspend(lease, -30.0)
    host.run(job)
    assert host.rows("SELECT suspend, resume, overhead FROM overheads") == [(0.0, pytest.approx(2.0), pytest.approx(2.0))]
    known = Overheads([("p", 1, 1, -30.0, 1)])
    assert known.of("p", np.array([1], dtype=np.uint64), np.array([1])) == pytest.approx([0.0])


def test_what_is_not_a_suspension_is_not_measured(host):
    job = host.submit()
    lease = host.run(job)
    host.train(lease, [10])
    host.report(WorkerUpdate(lease=lease, state="exited", ts=host.now, outcome="lost", message="gone"))
    host.now += 10.0
    lease = host.run(job)
    host.train(lease, [20])
    host.suspend(lease, 2.0)
    assert host.rows("SELECT * FROM overheads") == [], "a loss, and a suspension that nothing has followed yet"


def test_of_what_was_never_measured_the_nearest_counts():
    known = Overheads([("p", 1, 1, 10.0, 1), ("p", 1, 2, 20.0, 3), ("p", 2, 1, 50.0, 1), ("q", 9, 1, 99.0, 1)])
    found = known.of("p", np.array([1, 1, 1, 2, 7], dtype=np.uint64), np.array([1, 2, 8, 1, 1]))
    assert found == pytest.approx([10.0, 20.0, 17.5, 50.0, 24.0])
    assert known.of("empty", np.array([1], dtype=np.uint64), np.array([1])) is None


#: Of a daemon that fits the curve of a job each second, not every ten.
OFTEN = "from stoker.engine.estimation import estimating\nestimating.REFIT = 1.0"


#: Of a job that learns as digits-cnn does, and takes no time of a core for it.
LEARNS = """
import math, stoker, time
for step in range(20, 50_000, 20):
    stoker.report(step=step, loss=2.3 * math.exp(-step / 4000), accuracy=0.97 - 0.87 * math.exp(-step / 4000))
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["reported", "digits-cnn"])
def test_a_job_is_foreseen_while_it_runs(home, start_daemon, start_runner, trains):
    daemon = start_daemon(changes=OFTEN)
    start_runner(slots=1)
    jobs = Jobs(daemon.client())
    stop = {"metric": "accuracy", "target": 0.93, "iterations": 50_000}
    # So slow a learner that the daemon looks several times before it is good enough.
    slow = {"lr": 0.00007, "batch_size": 8, "channels": 4, "eval_every": 20}
    what = {"recipe": "digits-cnn", "params": slow} if trains else {"command": [sys.executable, "-c", LEARNS]}
    job = jobs.submit("digits", stop=stop, **what)
    show = daemon.client().get
    found = until(lambda: show(f"/v1/jobs/{job}")["expected"], says=daemon.said)
    assert found["points"] >= 3 and found["low"] <= found["iterations"] <= found["high"] <= 50_000
    later = until(lambda: (now := show(f"/v1/jobs/{job}")["expected"]) and now["iterations"] < 50_000 and now)
    assert later["points"] >= found["points"]

    query = f"SELECT e.iterations, p.step, p.seconds_per_step, w.ahead FROM iteration_estimates e JOIN progress p USING (job_id) " \
            f"JOIN work w USING (job_id) WHERE job_id = {job}"  # fmt: skip
    ((iterations, step, pace, ahead),) = jobs.sql(query)
    assert ahead == pytest.approx(max(iterations - step, 0) * pace)
    said = command(home, "show", str(job))
    assert "to reach accuracy 0.93 at step ~" in said.out and "likely within the maximum of 50 000" in said.out
    assert "to reach accuracy 0.93 at step ~" in command(home, "explain", str(job)).out

    daemon.kill()
    daemon.start()
    kept = show(f"/v1/jobs/{job}")["expected"]
    assert kept["at_step"] >= later["at_step"]
    jobs.act("cancel", job)
    jobs.ended(job)
    assert show(f"/v1/jobs/{job}")["expected"] is None
