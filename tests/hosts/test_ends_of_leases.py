"""A lease ends when its worker ended, not when the daemon heard of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from afar import Clock, Daemon
from common import Runner
from e2e import DaemonProcess
from stoker.engine.fleet import registration
from stoker.engine.fleet.registration import NodeChange
from stoker.engine.jobs import leases
from stoker.engine.protocol import Assignment, WorkerUpdate
from stoker.engine.spec.model import JobSpec
from stoker.runners.host import runs
from stoker.runners.host.runs import Run
from stoker.runners.lease.rundir import RunDir
from waiting import until

JOB = JobSpec(name="a", command=["true"])


@pytest.mark.parametrize("off", [0.0, 3600.0, -3600.0])
def test_what_ran_while_a_link_was_cut_is_billed_and_no_more(daemon: Daemon, clock: Clock, off: float) -> None:
    """65 s of work, told after 130 s of silence; also by a host whose clock is an hour off."""
    daemon.join("h2")
    job = daemon.submit(JOB)
    lease, began = daemon.grant(job, "h2"), clock.now
    daemon.tell("h2", lease, "starting", began + off, now=began + off)
    daemon.tell("h2", lease, "running", began + off, now=began + off, run_dir="/h2/r")
    clock.now += 195.0
    daemon.tell("h2", lease, "exited", began + 65.0 + off, now=clock.now + off, exit_code=0, outcome="completed")
    (row,) = daemon.leases(job)
    assert (row["ended_at"] - row["started_at"]).total_seconds() == pytest.approx(65.0)
    found = daemon.job(job)
    assert (found["state"], found["run_time"], found["attained"]) == ("completed", pytest.approx(65.0), pytest.approx(65.0))
    assert found["finished_at"] == row["ended_at"]


def test_jobs_that_shared_a_gpu_have_its_time_divided_up_to_the_end_of_each(daemon: Daemon, clock: Clock) -> None:
    daemon.join("h2")
    began, given = clock.now, []
    for _ in range(2):
        job = daemon.submit(JOB)
        lease = daemon.grant(job, "h2") if not given else _beside(daemon, job)
        daemon.tell("h2", lease, "running", began, run_dir=f"/h2/r{lease}")
        given.append((job, lease))
    daemon.store.write(
        lambda tx, batch: [tx.update("leases", ["id"], [{"id": x, "share": "packed"} for x in batch[0]])], [x for _, x in given]
    )
    clock.now += 200.0
    (first, a), (second, b) = given
    daemon.tell("h2", b, "exited", began + 100.0, exit_code=0, outcome="completed")
    daemon.tell("h2", a, "exited", began + 60.0, exit_code=0, outcome="completed")
    # The first was alone with the second for 60 s; the other's end was told before that was known.
    assert daemon.job(first)["attained"] == pytest.approx(30.0)
    assert daemon.job(second)["attained"] == pytest.approx(50.0)


def _beside(daemon: Daemon, job: int) -> int:
    given = leases.Grant(job, (("h2/cpu0", "h2"),), None, share="packed")
    return int(daemon.store.write(lambda tx, batch: [leases.grant(tx, batch, "test", 0)], given)[0])


def test_a_runner_that_is_declared_dead_is_billed_up_to_its_last_word(daemon: Daemon, clock: Clock) -> None:
    daemon.join("h2")
    job = daemon.submit(JOB)
    lease, began = daemon.grant(job, "h2"), clock.now
    daemon.tell("h2", lease, "running", began, run_dir="/h2/r")
    clock.now += 40.0
    daemon.store.write(registration.seen, {"h2": 0.0})
    clock.now += 7200.0
    daemon.store.write(registration.change_node, NodeChange("h2", "gone", "ann", "dead"))
    assert daemon.job(job)["run_time"] == pytest.approx(40.0)
    assert daemon.job(job)["state"] == "pending"


def test_of_a_host_that_was_off_the_last_sign_of_a_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Assignment(lease=3, job=7, attempt=1, spec={}, gpus=["a/cpu0"], world_size=1)
    run = Run.take_up(RunDir(tmp_path, 7, 3), given, "a")
    run.dir.write("supervisor.json", {"pid": 1, "started": 1.0, "boot_id": "another"})
    run.dir.log.write_text("the last line\n")
    last = time.time() - 5000.0
    for path in run.dir.path.iterdir():
        os.utime(path, (last, last))
    monkeypatch.setattr(runs.processes, "end_tagged", lambda *_: [])
    found = Run.load(run.dir, "a")
    assert found is not None and found.exit is not None and found.exit["outcome"] == "lost"
    assert found.exit["ended_at"] == pytest.approx(last, abs=1.0)
    assert msgspec.json.decode((run.dir.path / "exit.json").read_bytes())["ended_at"] == found.exit["ended_at"]


def test_a_report_that_a_cut_link_has_held_back_does_not_set_its_runners_clock(start_daemon: Callable[..., DaemonProcess]) -> None:
    client = start_daemon().client()
    runner = Runner(client, "h2")
    runner.hello()
    job = client.post("/v1/jobs", {"jobs": [msgspec.to_builtins(JOB)], "provenance": {"argv": ["test"], "cwd": "/"}})["jobs"][0]["id"]
    lease = until(lambda: [one.lease for one in runner.poll(1.0).leases])[0]
    theirs = time.time() + 1000.0  # its clock is ahead
    runner.report(workers=[WorkerUpdate(lease=lease, state="starting", ts=theirs, run_dir="/h2/r")], now=theirs)
    running = WorkerUpdate(lease=lease, state="running", ts=theirs, pid=1, pid_started=0.0, boot_id="other", run_dir="/h2/r")
    runner.report(workers=[running], now=theirs)
    time.sleep(1.5)  # the next one is on the way for so long
    ended = WorkerUpdate(lease=lease, state="exited", ts=theirs + 0.1, exit_code=0, outcome="completed")
    runner.report(workers=[ended], now=theirs + 0.1)
    (row,) = client.get(f"/v1/jobs/{job}")["leases"]
    assert 0.0 <= row["ended_at"] - row["started_at"] < 1.0
