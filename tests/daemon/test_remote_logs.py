"""Logs of jobs on other hosts: a runner over TCP with a home of its own, whose files the daemon must not look at."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from e2e import Jobs, RunnerProcess, command, runner_afar, until
from stoker.engine.client import Client
from stoker.engine.errors import Conflict
from stoker.engine.fleet.remote_logs import LogSource, RemoteLogs
from stoker.engine.fleet.remote_requests import RemoteRequests
from stoker.engine.home import Home
from stoker.engine.identity import boot_id
from stoker.engine.protocol import VERSION, Assignments, GpuInfo, Hello, LogPiece, LogRequest, Poll
from waiting import patient

LINES = 67_000  #: of about 1 KiB: a log has 64 MiB
pytestmark = pytest.mark.xdist_group("remote-logs")


@pytest.fixture
def afar(start_daemon, home: Home) -> Iterator[tuple[Jobs, Home, RunnerProcess]]:
    """Jobs of a daemon whose one runner is on another host, as far as can be told."""
    with runner_afar(start_daemon) as found:
        yield found


@pytest.mark.slow
def test_a_log_on_another_host_is_fetched_through_its_runner(afar: tuple[Jobs, Home, RunnerProcess], home: Home) -> None:
    jobs, there, runner = afar
    job = jobs.python("many", f"for number in range({LINES}): print('x' * 1000, number)")  # it is rotated on its way
    quiet = jobs.shell("quiet", "true")
    assert jobs.ended(job)["state"] == "completed"
    assert jobs.run_dir(job).is_relative_to(there.path)
    lines = ["x" * 1000 + f" {number}" for number in range(LINES)]
    assert command(home, "logs", str(job), "-n", "2").out.splitlines() == lines[-2:]
    assert command(home, "logs", str(job), "-n", "5000").out.splitlines() == lines[-5000:]
    assert command(home, "logs", str(job)).out.splitlines() == lines[-65:]
    jobs.ended(quiet)
    said = command(home, "logs", str(quiet))
    assert (said.code, said.out, said.err) == (0, "", f"stoker: job {quiet} has written nothing\n")
    # What the daemon could read in that path counts for nothing: without its runner it does not know what lies there.
    # What it keeps is the end of what was written, of which nothing is asked anew.
    kept = until(lambda: list(home.path.glob(f"kept-logs/{job}/*/output.log")))
    assert kept[0].read_text().splitlines() == lines[-len(kept[0].read_text().splitlines()) :] and kept[0].stat().st_size > 1_000_000
    runner.kill()
    assert command(home, "logs", str(job), "-n", "2", timeout=patient(60)).out.splitlines() == lines[-2:]
    running = jobs.client.get(f"/v1/jobs/{job}/logs", lines=2)
    assert running["more"] is False
    shutil.rmtree(home.path / "kept-logs")
    said = command(home, "logs", str(job), timeout=patient(60))
    assert said.code == 4
    assert f"the log of job {job} is on host {socket.gethostname()}, in {jobs.run_dir(job)}/output.log: runner far " in said.line
    runner.start(jobs.client)
    assert command(home, "logs", str(job), "-n", "1").out.splitlines() == lines[-1:]
    shutil.rmtree(jobs.run_dir(job))
    said = command(home, "logs", str(job))
    assert said.code == 3 and f"there is no log of job {job} any more" in said.line


@pytest.mark.slow
def test_a_log_on_another_host_is_followed(afar: tuple[Jobs, Home, RunnerProcess], home: Home, tmp_path: Path) -> None:
    jobs, _, _ = afar
    job = jobs.shell("steps", f"echo one; until test -e {tmp_path}/go; do sleep 0.05; done; printf two")
    until(lambda: jobs.client.get(f"/v1/jobs/{job}/logs")["text"] == "one\n")
    argv = [sys.executable, "-m", "stoker", "--home", str(home.path), "logs", "-f", str(job)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "one\n"
        (tmp_path / "go").touch()
        assert follower.stdout.read() == "two"
    assert follower.returncode == 0


def test_a_runner_that_sends_no_logs_is_told_of(start_daemon, home: Home) -> None:
    """One of a former version, which neither says that it sends logs nor understands that one is wanted."""
    client: Client = start_daemon().client()
    gpu = GpuInfo(id="old/cpu0", index=0, kind="cpu", name="slot")
    hello = Hello(
        protocol=VERSION, version="0", node="old", host="elsewhere", boot_id="b", pid=1, pid_started=1.0, home="/far", address="127.0.0.1",
        pool="default", gpus=[gpu], leases=[],
    )  # fmt: skip
    session = msgspec.json.decode(client.post_raw("/v1/runner/hello", msgspec.json.encode(hello)))["session"]
    jobs = Jobs(client)
    job = jobs.shell("job", "true", params={"of": None})
    poll = {"node": "old", "session": session, "version": -1, "wait": 5.0}
    (lease,) = until(lambda: client.post("/v1/runner/poll", poll)["leases"])
    assert lease["spec"].pop("params") == {"of": None}, "which the job is called with"
    assert "null" not in json.dumps(lease["spec"]), "it refuses a field that is younger than it, though nothing was given for it"
    run_dir = f"/far/jobs/{job}/run-{lease['lease']}"
    update = {"lease": lease["lease"], "state": "starting", "ts": 1.0, "run_dir": run_dir}
    client.post("/v1/runner/report", {"node": "old", "session": session, "workers": [update]})
    argv = [sys.executable, "-m", "stoker", "--home", str(home.path), "logs", str(job)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as asking:
        while asking.poll() is None:
            assert not client.post("/v1/runner/poll", {**poll, "wait": 0.1}).get("logs")
        assert asking.stderr is not None
        said = asking.stderr.read()
    where = f"on host elsewhere, in {run_dir}/output.log"
    assert said == f"stoker: error: the log of job {job} is {where}: runner old is of a version that sends no logs; read it there\n"
    assert asking.returncode == 4


HERE = LogSource(7, 3, Path("/h/jobs/7/run-3"), True, "a", socket.gethostname(), "/h", boot_id(), 5, "up")


class _Silent:
    """A fleet and a board of which nothing else is needed."""

    def wake(self, node: str) -> None: ...

    def silence(self, node: str) -> float:
        return 120.0


def remote_logs(home: Home = Home(Path("/h"))) -> RemoteLogs:  # noqa: B008 - it is never changed
    return RemoteLogs(RemoteRequests(_Silent()), _Silent(), home)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "here"),
    [
        ({}, True),
        ({"host": "another"}, False),
        ({"home": "/k"}, False),
        ({"boot_id": "of a clone with the same name"}, False),
        ({"boot_id": "of before the host was started again", "state": "stopped"}, True),
    ],
)
def test_whose_a_directory_is_does_not_depend_on_what_exists(other: dict[str, str], here: bool) -> None:
    assert remote_logs().is_here(dataclasses.replace(HERE, **other)) is here


def test_a_home_that_hosts_share_is_known_by_the_lock_of_the_runner(home: Home) -> None:
    """Also that of a container which was started again, and so has another name."""
    logs = remote_logs(home)
    there = dataclasses.replace(HERE, home=str(home.path), host="another")
    assert not logs.is_here(there)
    home.runner_lock("a").parent.mkdir()
    home.runner_lock("a").write_text("5")
    assert logs.is_here(there)
    assert not logs.is_here(dataclasses.replace(there, pid=6))  # the name has gone to a runner elsewhere since
    assert not logs.is_here(dataclasses.replace(there, home="/h"))


def test_a_request_is_told_once_and_answered_once() -> None:
    async def ask() -> None:
        requests = RemoteRequests(_Silent())  # type: ignore[arg-type]
        logs = RemoteLogs(requests, _Silent(), Home(Path("/h")))  # type: ignore[arg-type]
        asking = asyncio.create_task(logs.fetch(dataclasses.replace(HERE, run_dir=Path("/far/jobs/7/run-3.1")), None, 5))
        await asyncio.sleep(0)
        poll = Poll(node="a", session=1, version=0, wait=1.0, sends_logs=True)
        assert requests.waiting(poll) and not requests.waiting(msgspec.structs.replace(poll, node="b"))
        nothing = Assignments(version=0, leases=[])
        (request,) = requests.hand_out(poll, nothing).logs
        assert request == LogRequest(number=request.number, job=7, lease=3, node_rank=1, lines=5)
        assert not requests.waiting(poll) and requests.hand_out(poll, nothing) == nothing
        piece = LogPiece(node="b", session=1, number=request.number, text="not its runner")
        requests.take(piece)
        requests.take(LogPiece(node="a", session=1, number=request.number, text="yes"))
        requests.take(LogPiece(node="a", session=1, number=request.number, text="again"))
        assert (await asking).text == "yes"
        requests.take(LogPiece(node="a", session=1, number=request.number, text="late"))

    asyncio.run(ask())


def test_a_silent_runner_is_not_asked() -> None:
    with pytest.raises(Conflict, match=r"is on host \S+, in /h/jobs/7/run-3/output.log: runner a has been silent for 2m; read it there"):
        asyncio.run(remote_logs().fetch(dataclasses.replace(HERE, state="suspect"), None, None))
