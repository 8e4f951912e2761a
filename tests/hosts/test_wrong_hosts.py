"""Hosts that lack what a job needs to start, pools whose runners have yet to come, runners that may not serve or are outdated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from afar import Daemon
from e2e import DaemonProcess, Jobs, RunnerProcess, command, end_workers, free_port, until
from stoker.engine.errors import UsageError
from stoker.engine.fleet import registration
from stoker.engine.fleet.board import Board
from stoker.engine.fleet.registration import NodeChange
from stoker.engine.home import Home
from stoker.engine.protocol import Assignment
from stoker.engine.spec.model import JobSpec, PipelineOptions, Retries, Stop
from stoker.runners.host.launch import CannotStart, prepare
from stoker.runners.lease.rundir import RunDir
from stoker.runners.network.probe import serve, served

MISSING = "workdir: there is no directory /data on this node; create it, or submit from another one"


def fail(daemon: Daemon, node: str, lease: int, words: str = MISSING, *, host_at_fault: bool = True) -> None:
    daemon.tell(node, lease, "exited", 0.0, outcome="start-failed", message=words, host_at_fault=host_at_fault)


def test_a_host_that_lacks_something_is_left_out_for_that_job_until_none_is_left(daemon: Daemon) -> None:
    for node in ("h1", "h2"):
        daemon.join(node)
    job = daemon.submit(JobSpec(name="a", command=["true"], workdir="/data"))
    fail(daemon, "h1", daemon.grant(job, "h1"))
    found = daemon.job(job)
    assert (found["state"], found["failures"], found["state_reason"]) == ("pending", 0, f"{MISSING}; another host is tried")
    assert json.loads(daemon.store.rows("store/excluded_of", [job])[0][1]) == {"h1": MISSING}
    fail(daemon, "h2", daemon.grant(job, "h2"))
    assert (daemon.job(job)["state"], daemon.job(job)["state_reason"]) == ("failed", MISSING)


def test_with_retries_all_hosts_are_tried_again(daemon: Daemon) -> None:
    for node in ("h1", "h2"):
        daemon.join(node)
    job = daemon.submit(JobSpec(name="a", command=["true"], workdir="/data", retries=Retries(limit=1)))
    for node in ("h1", "h2"):
        fail(daemon, node, daemon.grant(job, node))
    assert (daemon.job(job)["state"], daemon.job(job)["failures"]) == ("pending", 1)
    assert daemon.store.rows("store/excluded_of", [job]) == [(job, None)]


def test_what_is_wrong_with_the_job_itself_excludes_nobody(daemon: Daemon) -> None:
    for node in ("h1", "h2"):
        daemon.join(node)
    job = daemon.submit(JobSpec(name="a", command=["true"]))
    fail(daemon, "h1", daemon.grant(job, "h1"), "gpu_memory: 9 GiB is more than GPU 0 has", host_at_fault=False)
    assert daemon.job(job)["state"] == "failed"


def test_a_host_that_is_no_more_is_no_other_host(daemon: Daemon) -> None:
    for node in ("h1", "h2"):
        daemon.join(node)
    daemon.store.write(registration.change_node, NodeChange("h2", "gone", "ann", "dead"))
    job = daemon.submit(JobSpec(name="a", command=["true"], workdir="/data"))
    fail(daemon, "h1", daemon.grant(job, "h1"))
    assert daemon.job(job)["state"] == "failed"


def test_a_runner_that_was_started_anew_is_tried_again(daemon: Daemon) -> None:
    for node in ("h1", "h2"):
        daemon.join(node)
    job = daemon.submit(JobSpec(name="a", command=["true"], workdir="/data"))
    fail(daemon, "h1", daemon.grant(job, "h1"))
    daemon.join("h1")
    assert daemon.store.rows("store/excluded_of", [job]) == [(job, None)]


def test_a_part_of_a_gang_excludes_its_host_alone(daemon: Daemon) -> None:
    for node in ("h1", "h2", "h3"):
        daemon.join(node)
    job = daemon.submit(JobSpec(name="a", command=["true"], gpus_min=2, gpus_max=2))
    lease = daemon.grant(job, "h1", "h2")
    fail(daemon, "h2", lease)
    daemon.tell("h1", lease, "exited", 0.0, outcome="stopped")
    assert daemon.job(job)["state"] == "pending"
    assert set(json.loads(daemon.store.rows("store/excluded_of", [job])[0][1])) == {"h2"}


def test_a_gang_over_hosts_does_not_meet_at_127_0_0_1(tmp_path: Path) -> None:
    def assignment(hosts: int) -> Assignment:
        spec = {"name": "a", "command": ["true"], "workdir": str(tmp_path)}
        return Assignment(
            lease=1, job=1, attempt=1, spec=spec, gpus=["a"], world_size=2, nodes=2, hosts=hosts, rendezvous="127.0.0.1:29501"
        )

    with pytest.raises(CannotStart, match=r"address: a gang over 2 hosts cannot meet at 127.0.0.1, which only this host reaches") as caught:
        prepare(RunDir(tmp_path, 1, 1), assignment(2), ())
    assert caught.value.host_at_fault
    env = prepare(RunDir(tmp_path, 1, 1), assignment(1), (), inherited={})["env"]  # two runners of one host may
    assert (env["MASTER_ADDR"], env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("127.0.0.1", "lo", "lo")
    mine = prepare(RunDir(tmp_path, 1, 1), assignment(1), (), inherited={"NCCL_SOCKET_IFNAME": "ib0"})["env"]
    assert (mine["GLOO_SOCKET_IFNAME"], mine["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")


@pytest.mark.parametrize(
    ("address", "words"),
    [("198.51.100.7", "this host has no interface with the address 198.51.100.7"), ("no such name", "neither an address nor a name")],
)
def test_an_address_that_is_not_this_hosts_is_refused(home: Home, address: str, words: str) -> None:
    for arguments in (["up", "--address", address], ["runner", "start", "--address", address]):
        said = command(home, *arguments)
        assert said.code == 2 and "--address: " in said.err and words in said.err and "Traceback" not in said.err


def test_a_pool_may_be_named_before_its_runners_join(start_daemon, start_runner, home: Home) -> None:
    client = start_daemon().client()
    start_runner("here", 1)
    jobs = Jobs(client)
    with pytest.raises(UsageError, match=r"'stoker policy set NAME --pool slurm --create' names one"):
        jobs.shell("early", "true", pool="slurm")
    assert command(home, "policy", "set", "fifo", "--pool", "slurm", "--create").code == 0
    job = jobs.shell("early", "true", pool="slurm")
    summary = until(lambda: (said := client.get(f"/v1/jobs/{job}/explain")["summary"]) and "pool slurm" in said and said)
    assert "no runner has joined pool slurm yet" in summary
    start_runner("pilot", 1, "--pool", "slurm")
    assert jobs.ended(job)["state"] == "completed"


def test_a_runner_that_is_sent_to_another_daemon_leaves_its_jobs_alone(start_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    daemon = start_daemon("--tcp", f"127.0.0.1:{ports[0]}")
    (far := Home(tmp_path / "far")).create()
    other = DaemonProcess(Home(tmp_path / "other").create(), "--tcp", f"127.0.0.1:{ports[1]}")
    try:
        clients = [daemon.client(), other.start()]
        environments = [
            {
                "STOKER_URL": f"http://127.0.0.1:{port}",
                "STOKER_TOKEN": client.post("/v1/tokens", {"name": "far", "role": "runner"})["token"],
            }
            for port, client in zip(ports, clients, strict=True)
        ]
        runner = RunnerProcess(far, "far", 1, env=environments[0])
        runner.start(clients[0])
        jobs = Jobs(clients[0])
        job = jobs.shell("waits", "until [ -e go ]; do sleep 0.05; done", workdir=str(tmp_path))
        until(lambda: jobs.state(job) == "running")
        runner.kill()
        wrong = RunnerProcess(far, "far", 1, env=environments[1])
        wrong.launch()
        assert wrong.process is not None and wrong.process.wait(60) == 4
        wrong.end()
        assert f"the jobs in {far.path} on " in wrong.said() and "are another daemon's: choose another --home" in wrong.said()
        assert clients[1].get("/v1/runners")["runners"] == []
        runner.start(clients[0])
        (tmp_path / "go").touch()
        assert jobs.ended(job)["state"] == "completed" and len(clients[0].get(f"/v1/jobs/{job}")["leases"]) == 1
        runner.end()
        shutil.rmtree(far.path / "jobs")  # nothing is left that is somebody else's
        wrong.start(clients[1])
        wrong.end()
    finally:
        end_workers(far)
        other.end()


def test_a_full_disk_does_not_keep_a_runner_from_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("STOKER_URL", "http://gpu1:7465")
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    (taken := tmp_path / f".serves.{os.getpid()}").mkdir()  # nothing can be written there
    serve(tmp_path, "one")
    assert served(tmp_path) is None and "serves cannot be written" in caplog.text
    taken.rmdir()
    serve(tmp_path, "one")
    taken.mkdir()
    caplog.clear()
    serve(tmp_path, "one")
    assert served(tmp_path) == "one" and not caplog.text  # nothing had to be written


@pytest.mark.parametrize("role", ["read", "submit"])
def test_a_token_of_another_role_is_refused_before_anything_has_begun(
    start_daemon: Callable[..., DaemonProcess], tmp_path: Path, role: str
) -> None:
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}").client()
    token = client.post("/v1/tokens", {"name": role, "role": role})["token"]
    (far := Home(tmp_path / "far")).create()
    runner = RunnerProcess(far, "far", 1, env={"STOKER_URL": f"http://127.0.0.1:{port}", "STOKER_TOKEN": token})
    try:
        runner.launch()
        assert runner.process is not None and runner.process.wait(60) == 5
        assert f"this needs role runner: token '{role}' has role {role}" in runner.said() and "Traceback" not in runner.said()
        assert client.get("/v1/runners")["runners"] == []
    finally:
        runner.end()


class FormerPipeline(msgspec.Struct, forbid_unknown_fields=True):
    tune: str = "rate"
    workers: dict[str, int] = {}


class FormerSpec(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    recipe: str
    pipeline: FormerPipeline
    stop: dict[str, Any] = {}
    params: dict[str, Any] = {}


def told_specs(daemon: Daemon, *jobs: int) -> list[dict[str, Any]]:
    """What a runner is told of jobs that it gets."""
    for number, job in enumerate(jobs):
        daemon.join(f"h{number}")
        daemon.grant(job, f"h{number}")
    board = Board(daemon.store)
    board.refresh()
    return [board._answers[f"h{number}"].leases[0].spec for number in range(len(jobs))]


def test_a_runner_of_a_former_version_is_told_no_younger_field_that_says_nothing(daemon: Daemon) -> None:
    """Such as that of before `pipeline.processes`; what a job asks for is told whatever the runner knows."""
    given: dict[str, Any] = {"recipe": "toy", "params": {"backbone": None}, "stop": Stop(iterations=7)}
    plain = JobSpec(name="plain", pipeline=PipelineOptions(workers={"decode": 2}), **given)
    young = JobSpec(name="young", pipeline=PipelineOptions(processes=True), **given)
    told = told_specs(daemon, daemon.submit(plain), daemon.submit(young))
    assert [msgspec.convert(one, JobSpec) for one in told] == [plain, young]
    assert msgspec.convert(told[0], FormerSpec) == FormerSpec(
        name="plain", recipe="toy", pipeline=FormerPipeline(workers={"decode": 2}), stop={"iterations": 7}, params={"backbone": None}
    )
    with pytest.raises(msgspec.ValidationError, match="unknown field `processes`"):
        msgspec.convert(told[1], FormerSpec)


def test_a_stored_spec_of_a_former_version_keeps_no_runner_from_being_told(daemon: Daemon) -> None:
    """One that this version would refuse: the runner judges it, and the others get their jobs."""
    old, new = (daemon.submit(JobSpec(name=name, command=("true",))) for name in ("old", "new"))
    spec = {"name": "old", "command": ["true"], "share": {"gpu": "joined"}}
    daemon.store.exclusive(lambda con: con.execute("UPDATE jobs SET spec = $1 WHERE id = $2", [json.dumps(spec), old]).fetchall())
    assert told_specs(daemon, old, new) == [spec, {"name": "new", "command": ["true"]}]
