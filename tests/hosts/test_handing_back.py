"""Runners whose hosts are taken away: told to leave, or when their time is up, they stop their jobs, tell it, and leave."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from afar import Clock, Daemon
from e2e import Jobs, RunnerProcess, command, end_workers, until
from stoker.engine.fleet import registration
from stoker.engine.home import Home
from stoker.engine.protocol import Report
from stoker.engine.spec.model import JobSpec

SAVES = """
import stoker, time
path = stoker.checkpoint_dir() / "n"
n = int(path.read_text()) if path.exists() else 0
print("begins at", n, flush=True)
while not stoker.should_stop():
    n += 1
    path.write_text(str(n))
    stoker.report(step=n, checkpoint=n)
    time.sleep(0.05)
"""


def test_told_to_leave_it_saves_its_jobs_and_they_go_on_with_the_next_runner(start_daemon, home: Home) -> None:
    client = start_daemon().client()
    jobs = Jobs(client)
    job = jobs.python("saves", SAVES)
    pilot = RunnerProcess(home, "pilot", 1, "--hand-back", "--until", f"{time.time() + 2400:.0f}")
    try:
        pilot.start(client)
        until(lambda: (found := client.get(f"/v1/jobs/{job}")["progress"]) and found["checkpoint_step"] > 3)
        assert "pilot leaves in 3" in client.get(f"/v1/jobs/{job}/explain")["summary"]
        assert pilot.stop() == 0  # SIGTERM
        found = jobs.show(job)
        assert (found["state"], found["failures"]) == ("pending", 0)
        assert found["state_reason"].startswith("its runner is being drained")
        (row,) = client.get("/v1/runners")["runners"]
        assert (row["state"], row["busy"]) == ("stopped", 0)
        saved = client.get(f"/v1/jobs/{job}")["progress"]["checkpoint_step"]
        pilot.start(client)  # the next one of that name serves
        assert until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"].startswith(f"begins at {saved}"))
        # Killed in the middle of handing back, too.
        assert pilot.process is not None
        pilot.process.send_signal(signal.SIGTERM)
        pilot.kill()
        pilot.start(client)
        assert client.get("/v1/runners")["runners"][0]["state"] == "up"
    finally:
        pilot.end()
        end_workers(home)


def test_told_to_leave_before_it_has_met_a_daemon_it_leaves_at_once(home: Home) -> None:
    pilot = RunnerProcess(home, "pilot", 1, "--hand-back")
    try:
        pilot.launch()
        until(lambda: home.is_locked_by("pilot", pilot.pid), 60)
        assert pilot.stop() == 0
    finally:
        pilot.end()


@pytest.mark.slow
def test_when_its_time_is_up_it_leaves_by_itself(start_daemon, home: Home) -> None:
    client = start_daemon().client()
    jobs = Jobs(client)
    job = jobs.python("saves", SAVES, grace=2.0)
    pilot = RunnerProcess(home, "pilot", 1, "--until", f"{time.time() + 20:.3f}")
    try:
        pilot.start(client)
        until(lambda: client.get("/v1/runners")["runners"][0]["state"] == "stopped", 60)
        assert jobs.state(job) == "pending" and pilot.process is not None and pilot.process.wait(10) == 0
    finally:
        pilot.end()
        end_workers(home)


def test_nothing_is_begun_on_a_node_that_is_handed_back(daemon: Daemon, clock: Clock) -> None:
    daemon.join("h2", leaves_in=60.0)
    job = daemon.submit(JobSpec(name="a", command=["true"]))
    lease = daemon.grant(job, "h2")
    told = Report(node="h2", session=daemon.sessions["h2"], hands_back=True)
    daemon.store.write(registration.report, told)
    daemon.store.write(registration.report, told)  # again, after a lost answer
    (node,) = daemon.store.objects("api/runners")
    assert node["state"] == "draining" and daemon.job(job)["state"] == "suspending"
    daemon.tell("h2", lease, "exited", clock.now, outcome="stopped")
    assert daemon.job(job)["state_reason"] == "its runner is being drained"
    daemon.join("h2")
    assert daemon.store.objects("api/runners")[0]["state"] == "up"


@pytest.mark.parametrize("given", ["yesterday", "10s", "2001-01-01T10:00"])
def test_a_time_that_is_none_or_too_near_is_refused(home: Home, given: str, tmp_path: Path) -> None:
    said = command(home, "runner", "start", "--until", given)
    assert said.code == 2 and said.line.startswith("stoker: error: --until: ")
