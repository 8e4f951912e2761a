"""Jobs that start by a fork: the same results as in fresh processes, and nothing lost, doubled or left, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e import servers_of
from forked import Forked
from stoker.engine import identity
from stoker.engine.home import Home
from stoker.engine.identity import Process
from stoker.engine.protocol import Assignment
from stoker.runners.host.launch import prepare
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from stoker.runners.warm import fork_server
from stoker.runners.warm.warm_starts import ServerKind, WarmServer, WarmStarts
from test_agent import Host, until
from waiting import patient

USER = """
import torch
from stoker.runners.training import Task

left_open = open("left.txt", "a")

def task():
    left_open.write("x")
    data = [(torch.rand(4), torch.rand(1)) for _ in range(32)]
    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return Task(model=torch.nn.Linear(4, 1), train=data, loss=loss, batch_size=8)
"""


def job(lease: int, **spec: Any) -> Assignment:
    what = {} if "entrypoint" in spec or "command" in spec else {"recipe": "toy"}
    content = {"name": f"job-{lease}", "stop": {"iterations": 3}, **what, **spec}
    return Assignment(lease=lease, job=lease, attempt=1, spec=content, gpus=["n1/cpu0"], world_size=1)


class Warm(Host):
    """A host whose agent starts jobs by fork where it can."""

    def start(self, *options: str) -> Forked:
        return super().start("--warm", "auto", *options)

    def servers(self) -> list[Process]:
        """Fork servers of this host's agents."""
        pids = [pid for agent in self.agents for pid in servers_of(agent.pid)]
        return [found.process for pid in pids if (found := identity.stat(pid))]

    def train(self, lease: int, **spec: Any) -> list[dict[str, Any]]:
        """Run a job to its end; what it has reported, without times."""
        self.daemon.want(job(lease, **spec))
        update = self.daemon.update(lease)
        assert update.outcome == "completed", (update, self.run(lease).log.read_text()[-2000:])
        records = [json.loads(line) for line in self.run(lease).reports(0).read_text().splitlines()]
        return [{name: value for name, value in record.items() if name not in ("ts", "at", "seq", "speed")} for record in records]

    def warmed(self, lease: int, **spec: Any) -> list[dict[str, Any]]:
        """Run a first job, and wait until a server has loaded what its next one needs; its reports."""
        reports = self.train(lease, **spec)
        self.daemon.want()
        until(lambda: any(processes.command(server.pid) == fork_server.READY_NAME for server in self.servers()))
        return reports

    def is_warm(self, lease: int) -> bool:
        return processes.command(self.supervisor(lease).pid) == "stoker-lease"

    def runs_warm(self, lease: int, **spec: Any) -> Process:
        """Start a job that lasts, by a fork; its supervisor."""
        self.daemon.want(job(lease, stop={"iterations": 100_000}, params={"step_ms": 20.0, "checkpoint_every": 1}, **spec))
        self.daemon.update(lease, "running")
        assert self.is_warm(lease)
        until(lambda: self.run(lease).reports(0).exists())
        return self.supervisor(lease)


@pytest.fixture
def host(home: Home) -> Iterator[Warm]:
    host = Warm(home.path)
    host.daemon.open()
    host.start()
    yield host
    host.close()


MAILS = str(Path(__file__).parents[1] / "whole" / "few_mails.jsonl")
ALL = {
    "digits-cnn": {"recipe": "digits-cnn"},
    "entrypoint": {"entrypoint": "mine:task"},
    "prompt-tune": {"recipe": "prompt-tune", "params": {"backbone": "tiny", "data": "rows.csv", "batch_size": 4, "max_tokens": 16}},
    "toy": {"recipe": "toy"},
    "dlrm": {"recipe": "dlrm", "params": {"rows": 1000}},
    "text-classifier": {"recipe": "text-classifier", "params": {"limit": 64, "eval_limit": 8}},
    "jpeg-cnn": {"recipe": "jpeg-cnn", "params": {"side": 28}},
    "an LLM": {"recipe": "prompt-tune", "backbone": "smollm2-135m", "params": {"data": MAILS, "eval_limit": 4}},
    "causal-lm": {"recipe": "causal-lm", "backbone": "tiny", "params": {"data": MAILS, "context": 16, "batch_size": 2}},
    "causal-lm of an LLM": {"recipe": "causal-lm", "params": {"data": MAILS, "context": 16, "batch_size": 1, "eval_limit": 1}},
}
BY_DAY = ("digits-cnn",)  # one with an entrypoint is forked, and ends in each way, in test_warm_chaos.py


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "jobs"),
    [*(pytest.param(name, 2, id=name) for name in BY_DAY),
     *(pytest.param(name, 100, id=f"{name}, job 100", marks=pytest.mark.nightly) for name in ALL)],
)  # fmt: skip
@pytest.mark.nightly  # so do those of all recipes on a directory: test_warm_directories.py
def test_a_forked_job_equals_a_fresh_process_to_the_bit(host: Warm, name: str, jobs: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"it is {word} {n},{word}\n" for n in range(40) for word in ("good", "bad"))
    )
    spec: dict[str, Any] = {**ALL[name], "workdir": str(tmp_path)}
    cold = host.warmed(1, **spec)
    assert any("loss" in record.get("values", {}) for record in cold)
    for lease in range(2, jobs + 2):
        assert host.train(lease, **spec) == cold, lease
    assert said(host).count("starts warm") == jobs
    if "entrypoint" in spec:
        assert (tmp_path / "left.txt").read_text() == "x" * (jobs + 1)  # what a Python file still held is written too


def said(host: Warm) -> str:
    """Let the agent leave; what it has logged."""
    agent = host.agents[-1]
    agent.send_signal(signal.SIGTERM)
    agent.wait(patient(60))
    return host.said()


@pytest.mark.slow
def test_whatever_is_killed_nothing_is_left(host: Warm) -> None:
    host.warmed(1)
    (server,) = host.servers()

    supervisor = host.runs_warm(2)
    both = processes.tagged(host.run(2).tag)  # though neither was started by an exec
    assert {processes.command(found.pid) for found in both} == {"stoker-lease", "job:job-2"}
    shown = {Path(f"/proc/{found.pid}/cmdline").read_bytes().rstrip(b"\0") for found in both}
    assert shown == {b"stoker: supervisor of lease 2, job job-2", b"stoker: job job-2"}
    processes.send(supervisor, signal.SIGKILL)
    assert host.daemon.update(2).outcome == "lost"
    assert processes.tagged(host.run(2).tag) == []

    supervisor = host.runs_warm(3)
    (worker,) = processes.descendants(supervisor.pid, processes.table())
    processes.send(worker.process, signal.SIGKILL)
    assert host.daemon.update(3).outcome == "failed"

    supervisor = host.runs_warm(4)
    processes.send(server, signal.SIGKILL)
    until(lambda: not identity.alive(server))
    host.daemon.want(job(4, stop={"iterations": 100_000}), job(5, stop={"iterations": 2}))
    assert host.daemon.update(5).outcome == "completed"
    assert identity.alive(supervisor)  # what a server has forked goes on without it
    (other,) = until(lambda: (found := host.servers()) != [server] and found)  # another is loaded

    host.agents[-1].kill()
    host.start()
    until(lambda: not identity.alive(other))  # it leaves with its agent, and what one had forked goes on
    stopped = job(4, stop={"iterations": 100_000})
    host.daemon.want(Assignment(**{**{name: getattr(stopped, name) for name in stopped.__struct_fields__}, "stop": "preempted"}))
    assert host.daemon.update(4).outcome == "stopped"
    assert (host.run(4).path / "stop-seen").exists()
    until(lambda: not identity.alive(supervisor))  # its last word is written a moment before it leaves


@pytest.mark.slow
@pytest.mark.parametrize(
    "pauses", [(0.0, 0.03), pytest.param((0.0, 0.01, 0.02, 0.04, 0.06), marks=pytest.mark.nightly)], ids=["two", "five"]
)
@pytest.mark.nightly  # one that is killed: above; one that hangs: test_warm_chaos.py
def test_a_server_that_is_killed_while_it_forks_or_hangs_loses_no_job_and_starts_none_twice(host: Warm, pauses: tuple[float, ...]) -> None:
    host.warmed(1)
    for lease, pause in enumerate(pauses, 2):
        server = ready(host)
        host.daemon.want(job(lease))
        until(lambda lease=lease: (host.run(lease).path / "assignment.json").exists())
        time.sleep(pause)  # its request is on its way, or taken up, or has been
        processes.send(server, signal.SIGKILL)
        assert host.daemon.update(lease).outcome == "completed"
        steps = [json.loads(line)["step"] for line in host.run(lease).reports(0).read_text().splitlines()]
        assert steps == sorted(steps)
        until(
            lambda lease=lease: processes.tagged(host.run(lease).tag) == []
        )  # a supervisor's last word is written a moment before it leaves
        until(lambda server=server: not identity.alive(server))
        host.daemon.want()
    server = ready(host)
    processes.send(server, signal.SIGSTOP)
    began = time.monotonic()
    host.train(100)
    assert not identity.alive(server)
    assert time.monotonic() - began > 1.9  # it was waited for
    assert "its fork server did not start it" in said(host)


def ready(host: Warm) -> Process:
    """The server, once it has loaded."""
    return until(lambda: next((server for server in host.servers() if processes.command(server.pid) == fork_server.READY_NAME), None))


def launched(home: Path, lease: int, assignment: Assignment) -> tuple[RunDir, Any]:
    run = RunDir(home, lease, lease)
    run.path.mkdir(parents=True)
    run.checkpoints.mkdir()
    return run, prepare(run, assignment, [])


def test_why_a_job_starts_cold(tmp_path: Path) -> None:
    def why(number: int, given: Assignment, enabled: bool = True) -> str | None:
        return WarmStarts(enabled).why_cold(given, launched(tmp_path, number, given)[1])

    first = "no process had loaded recipe toy yet"
    assert why(1, job(1)) == first
    assert why(2, job(2), enabled=False) == "warm starts are off on this runner"
    assert why(10, job(10, warm="off")) == "the job says warm: off"
    assert why(3, job(3, command=["true"])) == "a command is a program of its own"
    for number, name in enumerate(("OMP_NUM_THREADS", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED"), 4):
        assert why(number, job(number, env={name: "2"})) == f"its environment differs in {name}, which is read at import"
    assert why(9, job(9, env={"MY_OWN": "1"})) == first


@pytest.mark.slow
def test_a_process_that_a_fork_would_break_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert fork_server.unfit() == "CUDA was initialised at import, which no fork survives"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", UNFIT], capture_output=True, text=True, check=True, env=env)
    gpus, threads = done.stdout.splitlines()
    assert "GPUs were asked for at import" in gpus
    assert threads == "1 threads were started at import, which a fork would lose"


#: as after torch.cuda.is_available() where there are GPUs, and with a thread
UNFIT = """
import threading, torch
from stoker.runners.warm import fork_server
bad, torch.cuda._is_in_bad_fork = torch.cuda._is_in_bad_fork, lambda: True
print(fork_server.unfit())
torch.cuda._is_in_bad_fork = bad
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(fork_server.unfit())
"""


@pytest.mark.slow
def test_a_forked_job_imports_nothing_before_its_first_step(tmp_path: Path) -> None:
    """Else each job would pay for it: its server has loaded all that its worker needs."""
    run, launch = launched(tmp_path, 1, given := job(1, recipe="digits-cnn", stop={"iterations": 1}))
    run.write("assignment.json", msgspec.to_builtins(given))
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, env=launch["env"])
    assert [
        name for name in done.stdout.splitlines()[-1].split() if not name.startswith("torch.utils.serialization")
    ] == []  # that is for its checkpoint


IMPORTS = """
import sys
from stoker.runners.warm import fork_server
fork_server.load(["digits-cnn"])
from stoker.runners.worker import worker
before = set(sys.modules)
assert worker.main() == 0
print(*sorted(sys.modules.keys() - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("forks", [20, pytest.param(1000, marks=pytest.mark.nightly)])
def test_forks_leak_nothing(forks: int, tmp_path: Path) -> None:
    server = WarmServer.start(ServerKind(None), {**os.environ, "OMP_NUM_THREADS": "1", "STOKER_TAG": "-" * fork_server.TAG_PLACE}, "")
    try:
        until(lambda: server.ready or server.gone)
        assert server.ready, server.why
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        before, seen = len(list(descriptors.iterdir())), set()
        for lease in range(1, forks + 1):  # none gets far: the server has no part in what follows a fork
            run, launch = launched(tmp_path, lease, job(lease, entrypoint="none:here"))
            spare, forked = server.ask(), server.ask()
            assert spare is not None and forked is not None
            spare.wait()  # it was forked for nothing, as where its server turns out to be outdated
            assert forked.send(run, launch)
            assert until(forked.poll) == 1
            seen.add(run.read("supervisor.json")["pid"])
            assert run.read("exit.json")["exit_code"] == 2
            if lease == 10:
                settled = identity.stat(server.process.pid).memory
        assert len(seen) == forks
        assert len(list(descriptors.iterdir())) == before
        assert identity.stat(server.process.pid).memory < settled + (1 << 20)
        until(lambda: not processes.descendants(server.process.pid, processes.table()))  # the last one is told a moment before it leaves
    finally:
        server.end()
