"""Real servers under a daemon and a runner: asked by command and HTTP, killed in every part, and never a client that hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, Said, command, until
from stoker.engine.errors import StokerError, UsageError
from stoker.engine.home import Home
from stoker.runners.lease import processes
from stoker.runners.share.inference_client import InferenceClient

pytestmark = pytest.mark.slow

SLOW = """
import os, time, torch
from torch import nn
from stoker.runners.training import Task

def answer(model, requests):
    if "die" in requests:
        os._exit(0)
    for request in requests:
        time.sleep(request if isinstance(request, float) else 0)
        if request == "raise":
            raise ValueError("not this one")
    return [str(request) for request in requests]

def task():
    return Task(model=nn.Linear(1, 1), answer=answer)
"""
SERVER: dict[str, Any] = {"kind": "infer", "entrypoint": "slow:task", "grace": 10.0, "serve": {"batch": 4, "queue": 8}}


class Stand:
    """A host with a server, and who asks it."""

    def __init__(self, home: Home, daemon: DaemonProcess, runner: RunnerProcess, folder: Path) -> None:
        self.home, self.daemon, self.runner, self.jobs = home, daemon, runner, Jobs(daemon.client())
        (folder / "slow.py").write_text(SLOW)
        self.server = self.jobs.submit("slow", workdir=str(folder), **SERVER)
        self.pool = ThreadPoolExecutor(4)

    def ask(self, *requests: Any, timeout: float = 30.0) -> list[dict[str, Any]]:
        with contextlib.closing(InferenceClient(self.run_dir(), "slow", timeout)) as client:
            return client.ask(requests)

    def run_dir(self) -> Path:
        return Path(self.jobs.client.get(f"/v1/jobs/{self.server}/server")["run_dir"])

    def serves(self) -> None:
        """Wait until it answers, in this lease or in the next one."""
        until(lambda: self.ask("a") == [{"answer": "a"}])

    def in_flight(self, *requests: Any) -> Future[Any]:
        """Somebody asks, and the server has it in hand; what comes of it: the answers, or the error in words."""

        def asked() -> Any:
            try:
                return self.ask(*requests)
            except StokerError as error:
                return str(error)

        future = self.pool.submit(asked)
        time.sleep(0.3)
        return future

    def worker(self) -> int:
        supervisor = self.jobs.sql(
            f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {self.server} AND l.state = 'running'"
        )
        return next(one.pid for one in processes.descendants(supervisor[0][0], processes.table()) if one.pid != supervisor[0][0])

    def supervisor(self) -> int:
        rows = self.jobs.sql(
            f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {self.server} AND l.state = 'running'"
        )
        return int(rows[0][0])

    def lease(self) -> int:
        return int(self.jobs.sql(f"SELECT max(id) FROM leases WHERE job_id = {self.server}")[0][0])

    def cli(self, *arguments: str, **options: Any) -> Said:
        return command(self.home, *arguments, **options)


@pytest.fixture
def stand(
    home: Home, tmp_path: Path, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> Iterator[Stand]:
    home.config.write_text("[guards]\nmin_run_time = 0.0\n")
    found = Stand(home, start_daemon(), start_runner(slots=2), tmp_path)
    yield found
    found.pool.shutdown(wait=True)
    with contextlib.suppress(StokerError):
        found.jobs.act("cancel", found.server)


ENDED = "slow ended before it answered: 'stoker explain slow' says why; ask again when it serves again"


def test_it_is_asked_by_command_and_by_http(stand: Stand, tmp_path: Path) -> None:
    stand.serves()
    assert stand.cli("ask", "slow", "how far is it").out == "how far is it\n"
    assert json.loads(stand.cli("ask", "slow", "[1, 2]", "--json").out) == "[1, 2]"
    (tmp_path / "set.txt").write_text("one\n\n" + "".join(f"{number}\n" for number in range(40)) + "raise\nlast\n")
    asked = stand.cli("ask", "slow", "--file", str(tmp_path / "set.txt"))
    assert asked.code == 1 and asked.out.splitlines() == ["one", *map(str, range(40)), "", "last"]
    assert asked.err == "stoker: error: line 43: ValueError: not this one\n"
    assert (
        "slow serves until it is cancelled: leave out --wait"
        in stand.cli("submit", "--kind", "infer", "--recipe", "toy", "--name", "slow", "--wait").line
    )
    argv = [sys.executable, "-m", "stoker", "--home", str(stand.home.path), "ask", "slow", "--file", "-", "--json"]
    piped = subprocess.run(argv, input="x\n", capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout) == [{"line": 1, "answer": "x"}]
    for arguments, words in (
        (("ask", "slow", "--file", str(tmp_path / "none")), "none: No such file or directory"),
        (("ask", "slow", "raise"), "ValueError: not this one"),
    ):
        assert words in stand.cli(*arguments).line
    client = stand.jobs.client
    assert client.post("/v1/jobs/slow/ask", {"requests": ["a", "raise"]})["answers"] == [
        {"answer": "a"},
        {"error": "ValueError: not this one"},
    ]
    with pytest.raises(UsageError, match="requests is no list with one or more of them"):
        client.post("/v1/jobs/slow/ask", {"requests": []})
    with pytest.raises(StokerError, match="the request is larger than 1 MiB: send less at once"):
        client.post("/v1/jobs/slow/ask", {"requests": ["x" * (1 << 20)]})
    with pytest.raises(StokerError, match=r"slow has not answered within 0\.2 s"):
        client.post("/v1/jobs/slow/ask?timeout=0.2", {"requests": [1.0]})
    until(lambda: stand.jobs.sql("SELECT name, errors > 0, p50 < 5 FROM latency_now LIMIT 1") == [("slow", True, True)])
    assert "serves since" in stand.cli("show", "slow").out and "answered" in stand.cli("ps").out
    stopped(stand)
    killed(stand, "worker")


def killed(stand: Stand, who: str) -> None:
    """Kill a part while requests are in flight: no client hangs, and it serves again."""
    before, asked = stand.lease(), stand.in_flight(1.0, 0.5)
    if who == "worker":
        os.kill(stand.worker(), signal.SIGKILL)
    elif who == "supervisor":
        os.kill(stand.supervisor(), signal.SIGKILL)
    else:
        (stand.runner if who == "agent" else stand.daemon).kill()
    if who in ("agent", "daemon"):  # the server is another process, and knows nothing of it
        assert asked.result(60) == [{"answer": "1.0"}, {"answer": "0.5"}]
        (stand.runner if who == "agent" else stand.daemon).start()
        stand.serves()
        assert stand.lease() == before
    else:
        assert asked.result(60) == ENDED
        until(lambda: stand.lease() > before)
        stand.serves()
    assert stand.jobs.sql(f"SELECT failures, state FROM jobs WHERE id = {stand.server}") == [(0, "running")]


def stopped(stand: Stand) -> None:
    """SIGSTOP: nobody is kept for ever, and it goes on."""
    pid = stand.worker()
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert stand.cli("ask", "slow", "a", "--timeout", "0.5").line == (
        "stoker: error: slow has not answered within 0.5 s: wait longer, or look at its log"
    )
    assert time.monotonic() - began < 20
    threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
    assert stand.ask("b") == [{"answer": "b"}]


@pytest.mark.nightly
def test_whoever_is_killed_while_requests_are_in_flight_no_client_hangs_and_it_serves_again(stand: Stand) -> None:
    stand.serves()
    for who in ("worker", "agent", "daemon", "supervisor"):
        killed(stand, who)


@pytest.mark.nightly
def test_who_is_asked_to_leave_answers_what_it_has_in_hand(stand: Stand) -> None:
    stand.serves()
    for action, state, back in (("hold", "submitted", "release"), ("drain", "pending", "resume"), ("cancel", "cancelled", None)):
        asked = stand.in_flight(1.0, 0.0, 0.0, 0.0, "later", "later")
        if action == "drain":
            stand.jobs.client.post("/v1/runners/here/drain")
        else:
            stand.jobs.act(action, stand.server)
        answers = asked.result(60)
        assert answers[0] == {"answer": "1.0"} and answers[-1] == {"error": "this server is being stopped; ask again when it serves again"}
        until(lambda: stand.jobs.state(stand.server) == state)  # noqa: B023 - it is waited for here
        assert stand.jobs.sql(f"SELECT failures FROM jobs WHERE id = {stand.server}") == [(0,)]
        line = stand.cli("ask", "slow", "a").line
        assert "does not serve now" in line or "has ended: cancelled" in line
        if back is not None:
            stand.jobs.client.post("/v1/runners/here/resume" if back == "resume" else f"/v1/jobs/{stand.server}/release", {})
            stand.serves()


@pytest.mark.nightly
def test_one_that_ends_by_itself_or_cannot_begin_has_failed_in_one_line(stand: Stand, tmp_path: Path) -> None:
    stand.serves()
    assert stand.in_flight("die").result(60) == ENDED
    row = stand.jobs.ended(stand.server)
    assert (row["state"], row["state_reason"]) == ("failed", "the server ended by itself, with exit code 0: look at its log")
    hangs = stand.jobs.submit("hangs", workdir=str(tmp_path), hang_after=1.0, **SERVER)
    stand.server = hangs
    stand.serves()
    time.sleep(3)  # nobody asks, which is no hang
    assert stand.ask("b") == [{"answer": "b"}]
    asked = stand.in_flight(60.0)
    assert stand.jobs.ended(hangs)["outcome"] == "hang" and asked.result(60) == ENDED
    (tmp_path / "weights.pt").write_bytes(b"nothing")
    wrong = stand.jobs.submit("wrong", kind="infer", recipe="toy", weights=str(tmp_path / "weights.pt"), workdir=str(tmp_path))
    mute = stand.jobs.submit("mute", kind="infer", recipe="dlrm", params={"rows": 1000}, workdir=str(tmp_path))
    assert "weights.pt cannot be read as weights saved by torch.save" in stand.jobs.ended(wrong)["state_reason"]
    assert "kind: infer: the task has no answer(model, requests), so it cannot serve" in stand.jobs.ended(mute)["state_reason"]
    late = stand.jobs.submit("late", workdir=str(tmp_path), timeout=0.5, **SERVER)
    assert stand.jobs.ended(late)["outcome"] == "timeout"


@pytest.mark.nightly
def test_beside_a_training_it_goes_before_and_the_training_goes_on(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    """By turns, as on a GPU: the training pauses in place for each request."""
    home.config.write_text('[guards]\nmin_run_time = 0.0\n[share]\nturn = "cooperative"\n')
    jobs = Jobs(start_daemon().client())
    start_runner(slots=1)
    jobs.client.post("/v1/policy", {"policy": "switchflow"})
    share = {"gpu": "switched"}
    trains = jobs.submit("trains", recipe="toy", stop={"iterations": 1_000_000}, share=share, params={"batch_size": 64, "samples": 1024})
    server = jobs.submit("serves", kind="infer", recipe="toy", weights="job:trains", share=share, priority=10)
    until(lambda: jobs.sql("SELECT count(*) FROM live_shares WHERE share = 'switched' AND lease_state = 'running'") == [(2,)])

    def step() -> int:
        return int(jobs.sql(f"SELECT coalesce(max(step), 0) FROM metrics WHERE job_id = {trains}")[0][0])

    until(lambda: jobs.client.post("/v1/jobs/serves/ask", {"requests": [[0.0] * 8]}))
    before = step()
    with contextlib.closing(InferenceClient(jobs.run_dir(server), "serves")) as client:
        for number in range(200):
            ((answer),) = client.ask([[number / 200] * 8])
            assert isinstance(answer["answer"], float)
            time.sleep(0.005)
    until(lambda: step() > before + 5)
    jobs.act("cancel", trains)
    jobs.ended(trains)
    assert "times for others on its GPU" in (jobs.run_dir(trains) / "output.log").read_text()
    assert client is not None and jobs.client.post("/v1/jobs/serves/ask", {"requests": [[0.0] * 8]})["answers"]
    jobs.act("cancel", server)
    assert jobs.ended(server)["state"] == "cancelled"
