"""Runners whose hosts are taken away: told to leave, or when their time is up, they stop their jobs, tell it, and leave."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from afar import Clock, Daemon
from e2e import SAVES, Jobs, RunnerProcess, command, end_workers, free_port, until
from stoker.engine.errors import Stale, StokerError, Unreachable
from stoker.engine.fleet import registration
from stoker.engine.forecast.explain import explain
from stoker.engine.home import Home
from stoker.engine.jobs.leases import LeaseStop, stop
from stoker.engine.protocol import Assignments, Report, SendCheckpoint
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.model import JobSpec
from stoker.policies import registry
from stoker.runners.handover import handed_back
from stoker.runners.host.agent import Agent, Options
from stoker.runners.host.gpus import find
from stoker.runners.host.link import Outbox
from stoker.runners.host.runs import RunPhase
from stoker.runners.lease.rundir import RunDir
from waiting import patient


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


@pytest.mark.parametrize("agent", ["serves", "is new"])
def test_handed_back_while_its_daemon_is_away_it_leaves_and_the_next_one_tells_how_its_jobs_ended(
    start_daemon, home: Home, tmp_path: Path, agent: str
) -> None:
    (tmp_path / "far").mkdir()
    there, port = Home(tmp_path / "far"), free_port()
    daemon = start_daemon("--tcp", f"127.0.0.1:{port}")
    client = daemon.client()
    token = client.post("/v1/tokens", {"name": "pilots", "role": "runner"})["token"]
    jobs = Jobs(client)
    job = jobs.python("saves", SAVES, grace=5.0)
    pilot = RunnerProcess(there, "pilot", 1, "--hand-back", env={"STOKER_URL": f"http://127.0.0.1:{port}", "STOKER_TOKEN": token})
    soon = "from stoker.runners.handover import handed_back\nhanded_back.LONGEST_ABSENCE = 0.5"
    pilot.command[1:3] = ["-c", f"import sys\nfrom stoker.runners.host import agent\n{soon}\nsys.exit(agent.main())"]
    try:
        pilot.start(client)
        until(lambda: (found := client.get(f"/v1/jobs/{job}")["progress"]) and found["checkpoint_step"] > 3)
        daemon.kill()
        if agent == "is new":  # it has never met a daemon, and has the job of the one before it
            pilot.kill()
            pilot.launch()
            until(lambda: "is adopted" in pilot.said() and "waiting for it" in pilot.said())
        assert pilot.stop() == 0
        assert "no daemon has heard of the end of 1 job" in pilot.said()
        (run,) = RunDir.find(there.path)
        assert run.read("exit.json")["outcome"] == "stopped"
        daemon.start()
        assert jobs.state(job) in ("running", "suspending")  # nobody has told
        saved = int((run.path.parent / "checkpoints" / "n").read_text())
        pilot.start(client)
        assert until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"].startswith(f"begins at {saved}"))
        assert [row["outcome"] for row in client.get(f"/v1/jobs/{job}")["leases"]] == [None, "preempted"]
        assert jobs.show(job)["failures"] == 0
    finally:
        pilot.end()
        end_workers(there)


def test_it_waits_for_its_daemon_from_when_its_jobs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take to stop: the daemon hears of that only then."""
    now = 1000.0
    monkeypatch.setattr(handed_back.time, "monotonic", lambda: now)
    back, run = handed_back.HandedBack(None), SimpleNamespace(phase=RunPhase.LIVE)
    runs: Any = [run]
    assert not back.waits_in_vain([])  # it is not handed back
    back.begin()
    now += 10 * handed_back.LONGEST_ABSENCE
    assert not back.waits_in_vain(runs)
    run.phase = RunPhase.ENDED
    assert not back.waits_in_vain(runs)
    now += handed_back.LONGEST_ABSENCE + 1
    assert not back.waits_in_vain(runs, taken=now - 1) and back.waits_in_vain(runs)
    # Not beyond its time, unless a daemon is there and takes the rest.
    monkeypatch.setattr(handed_back, "boot_clock", lambda: now)
    limited = handed_back.HandedBack(now + handed_back.LAST_WORDS)
    limited.begin()
    now += handed_back.LAST_WORDS - 1
    assert not limited.waits_in_vain(runs)
    now += 2
    assert limited.waits_in_vain(runs) and not limited.waits_in_vain(runs, taken=now - 1)


def test_it_leaves_no_checkpoint_behind_because_its_daemon_is_away_for_a_moment(home: Home) -> None:
    answers: list[StokerError | Assignments] = [
        Unreachable("no daemon answers"),
        Assignments(version=1, leases=[], send=[SendCheckpoint(job=1, after=1)]),
        Assignments(version=2, leases=[]),
        Stale("another agent has the node"),
        Unreachable("no daemon answers"),
    ]

    class Daemons:
        def post_raw(self, *_: object, **__: object) -> bytes:
            answer = answers.pop(0)
            if isinstance(answer, StokerError):
                raise answer
            return msgspec.json.encode(answer)

    agent = Agent(Options(home.create().path, "pilot"), Daemons, find("pilot", 1))
    outbox = Outbox(Daemons(), "pilot", 1)
    agent.handed_back = True
    assert not agent._all_sent(outbox) and outbox.waiting
    assert not agent._all_sent(outbox) and not outbox.waiting  # else one that is not handed back would ask without a pause
    assert agent._all_sent(outbox) and agent._all_sent(outbox)
    agent.handed_back = False
    assert agent._all_sent(outbox), "one that only stops leaves nothing with its daemon, which may never come back"


@pytest.mark.slow
def test_when_its_time_is_up_it_leaves_by_itself(start_daemon, home: Home) -> None:
    client = start_daemon().client()
    jobs = Jobs(client)
    job = jobs.python("saves", SAVES, grace=2.0)
    pilot = RunnerProcess(home, "pilot", 1, "--until", f"{time.time() + 20:.3f}")
    try:
        pilot.start(client)
        until(lambda: client.get("/v1/runners")["runners"][0]["state"] == "stopped", 60)
        assert jobs.state(job) == "pending" and pilot.process is not None and pilot.process.wait(patient(30)) == 0
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


def test_what_saves_nothing_is_not_begun_where_it_could_not_end(daemon: Daemon, clock: Clock) -> None:
    daemon.join("h1", leaves_in=3600.0)
    job = JobSpec(name="a", command=["train"], estimate=7200.0)

    def starts() -> tuple[dict[int, int], list[tuple[int, str, str]]]:
        with daemon.store.read() as con:
            seen = snapshot(con, "default", clock.now)
        plan = registry.create("fifo", {}).plan(seen.view)
        return {number: len(one.gpus) for number, one in plan.allocations.items()}, seen.ineligible

    first = daemon.submit(job)
    assert starts() == ({first: 1}, [])  # nobody knows whether it saves
    lease = daemon.grant(first, "h1")
    daemon.tell("h1", lease, "running", clock.now)
    clock.now += 10
    daemon.store.write(lambda tx, batch: [stop(tx, batch)], LeaseStop(lease, "preempted", "test"))
    daemon.tell("h1", lease, "exited", clock.now, outcome="stopped")
    words = "takes 2h, saves nothing, and so is not begun on h1, which leaves in 59m"
    assert starts() == ({}, [(first, "leaving", words)])
    told = {"job_id": first, "code": "leaving", "reason": words, "updated_at": clock.now}
    daemon.store.write(lambda tx, batch: [tx.insert("waiting", batch)], told)
    assert explain(daemon.store, first)["summary"] == f"waits: {words}"
    short = daemon.submit(msgspec.structs.replace(job, name="b", estimate=60.0))
    assert starts()[0] == {short: 1}
    daemon.join("h2")
    assert starts()[0] == {first: 1, short: 1}
    with daemon.store.read() as con:  # forecasts know it too
        assert snapshot(con, "default", clock.now).view.nodes.leaves.tolist() == [pytest.approx(1_800_003_600.0), math.inf]
    other = daemon.grant(first, "h2")  # the next ones like it may go anywhere once one has saved
    daemon.tell("h2", other, "running", clock.now)
    daemon.tell("h2", other, "exited", clock.now, outcome="stopped", saved=10)
    daemon.submit(job)
    assert starts()[1] == []


@pytest.mark.parametrize("given", ["yesterday", "10s", "2001-01-01T10:00"])
def test_a_time_that_is_none_or_too_near_is_refused(home: Home, given: str, tmp_path: Path) -> None:
    said = command(home, "runner", "start", "--until", given)
    assert said.code == 2 and said.line.startswith("stoker: error: --until: ")
