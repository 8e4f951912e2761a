"""The agent against a scripted daemon on a real socket, with real supervisors and workers."""

from __future__ import annotations

import errno
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import forked
import msgspec
import pytest
from forked import Forked
from stoker.engine import identity, protocol
from stoker.engine.errors import Conflict, Stale, StokerError, StoreError
from stoker.engine.home import Home
from stoker.engine.identity import Process
from stoker.engine.protocol import Assignment, Assignments, Hello, Poll, Report
from stoker.runners.host import agent, link
from stoker.runners.host import report_tail as tail
from stoker.runners.host.gpus import CpuSlots
from stoker.runners.host.runs import Run, RunPhase
from stoker.runners.lease import processes, rundir, supervisor
from stoker.runners.lease.rundir import RunDir
from stoker.runners.old_files import clean
from stoker.runners.runner_lock import held_lock
from waiting import patient, until


class Daemon:
    """Speaks the protocol by script: what it wants, what it has been told, and how it misbehaves."""

    def __init__(self, home: Path):
        self.home = home
        self.changed = threading.Condition()
        self.wanted: dict[int, Assignment] = {}
        self.shutdown: str | None = None
        self.version = 0
        self.session = 0
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []
        self.polls = 0
        self.heartbeat, self.telemetry = 5.0, 60.0
        self.lose_answers = 0  #: so many reports are taken, and their answers lost
        self.stale: set[int] = set()  #: leases that are disowned
        self.usurped = False  #: another agent has the node
        self.refusals: list[StokerError] = []  #: answers to the next hellos
        self.server: Any = None

    # -- as a server

    def open(self) -> None:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    status, answer = 200, daemon.answer(self.path, body)
                except StokerError as error:
                    status, answer = error.http_status, {"error": {"code": error.code, "message": str(error)}}
                if answer is None:
                    self.close_connection = True
                    return
                content = msgspec.json.encode(answer)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # the agent was killed

        self.server = Server(str(self.home / "stoker.sock"), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            (self.home / "stoker.sock").unlink()
            self.server = None
            with self.changed:
                self.session += 1  # what still hangs on a poll is of the past
                self.changed.notify_all()
                self.session -= 1

    def answer(self, path: str, body: bytes) -> Any:
        with self.changed:
            if path == protocol.HELLO:
                self.hellos.append(msgspec.json.decode(body, type=Hello))
                if self.refusals:
                    raise self.refusals.pop(0)
                self.session += 1
                return protocol.Welcome(session=self.session, telemetry_interval=self.telemetry, heartbeat=self.heartbeat)
            if self.usurped:
                raise Stale("another session")
            if path == protocol.POLL:
                self.polls += 1
                poll = msgspec.json.decode(body, type=Poll)
                self.changed.wait_for(lambda: poll.version != self.version or self.usurped or not self.server, poll.wait)
                if self.usurped:
                    raise Stale("another session")
                if not self.server:
                    return None
                return Assignments(version=self.version, leases=list(self.wanted.values()), shutdown=self.shutdown)
            self.reports.append(msgspec.json.decode(body, type=Report))
            self.changed.notify_all()
            if self.lose_answers:
                self.lose_answers -= 1
                return None
            mentioned = {w.lease for w in self.reports[-1].workers} | {r.lease for r in self.reports[-1].records}
            return protocol.Ack(stale=sorted(self.stale & mentioned))

    # -- as a test sees it

    def want(self, *assignments: Assignment, shutdown: str | None = None) -> None:
        """These leases, and no others."""
        with self.changed:
            self.wanted = {a.lease: a for a in assignments}
            self.shutdown = shutdown
            self.version += 1
            self.changed.notify_all()

    def usurp(self) -> None:
        with self.changed:
            self.usurped = True
            self.changed.notify_all()

    def states(self, lease: int) -> list[str]:
        """States told of a lease, repetitions dropped."""
        with self.changed:
            return list(dict.fromkeys(w.state for r in self.reports for w in r.workers if w.lease == lease))

    def update(self, lease: int, state: str = "exited") -> protocol.WorkerUpdate:
        """Wait for a state of a lease."""

        def found() -> Any:
            with self.changed:
                return next((w for r in self.reports for w in r.workers if (w.lease, w.state) == (lease, state)), None)

        update: protocol.WorkerUpdate = until(found)
        return update

    def steps(self, lease: int) -> list[int]:
        """Steps of the records taken, each seq once, in the order in which they came first."""
        with self.changed:
            found = [record for r in self.reports for rs in r.records if rs.lease == lease for record in rs.records]
            return list({record.seq: record.step for record in found}.values())


class Host:
    """One home with its daemon and agents."""

    def __init__(self, home: Path):
        self.home = home
        self.daemon = Daemon(home)
        self.agents: list[Forked] = []

    def start(self, *options: str) -> Forked:
        command = [sys.executable, "-m", "stoker.runners.host.agent", "--home", str(self.home), "--node", "n1", "--slots", "2", *options]
        log = self._log(len(self.agents))
        log.touch()
        process = forked.start(command, log, {**os.environ, "OMP_NUM_THREADS": "1"})
        self.agents.append(process)
        return process

    def _log(self, agent: int) -> Path:
        return self.home / f"agent-{agent}.log"

    def said(self) -> str:
        """By the last agent."""
        return self._log(len(self.agents) - 1).read_text()

    def run(self, lease: int) -> RunDir:
        return RunDir(self.home, lease, lease)

    def supervisor(self, lease: int) -> Process:
        found = until(lambda: self.run(lease).read("supervisor.json"))
        return Process(found["pid"], found["started"])

    def says(self, lease: int, text: str) -> None:
        log = self.run(lease).log
        until(lambda: log.exists() and text in log.read_text())

    def close(self) -> None:
        for process in self.agents:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.daemon.close()
        for run in RunDir.find(self.home):
            if (found := run.read("supervisor.json")) and found["pid"]:
                processes.send(Process(found["pid"], found["started"]), signal.SIGKILL)
            assert processes.end_tagged(run.tag) == []


@pytest.fixture
def host(home: Home) -> Iterator[Host]:
    found = Host(home.path)
    found.daemon.open()
    yield found
    found.close()


def job(lease: int, code: str | None = None, *, argv: tuple[str, ...] = (), stop: str | None = None, **spec: Any) -> Assignment:
    """A lease of the job of the same number, on slot 0."""
    command = argv or (sys.executable, "-S", "-c", code or "")
    grace, gpus = spec.pop("grace", 20.0), spec.pop("gpus", ["n1/cpu0"])
    return Assignment(
        lease=lease,
        job=lease,
        attempt=1,
        spec={"name": f"job{lease}", "command": command, "env_file": None, **spec},
        gpus=gpus,
        world_size=1,
        stop=stop,
        grace=grace,
    )


#: reports steps from a file's length on, so that a test decides how far it gets
REPORTS = """
import json, os, time
out = open(os.environ["STOKER_RUN_DIR"] + "/reports-0.jsonl", "a", buffering=1)
def report(step):
    out.write(json.dumps({"seq": step, "ts": time.time(), "step": step, "values": {"loss": 1 / step}}) + "\\n")
print("up", flush=True)
"""
WAITS = REPORTS + "report(1)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
CHECKPOINTS = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" + WAITS


def test_a_job_from_start_to_end(host: Host) -> None:
    host.start()
    host.daemon.want(job(1, REPORTS + "for i in range(1, 101): report(i)"))
    end = host.daemon.update(1)
    assert (end.outcome, end.exit_code) == ("completed", 0)
    assert host.daemon.states(1) == ["starting", "running", "exited"]
    assert host.daemon.steps(1) == list(range(1, 101)), "all of them are there when the end is told"
    hello = host.daemon.hellos[0]
    assert [gpu.id for gpu in hello.gpus] == ["n1/cpu0", "n1/cpu1"]
    assert (hello.protocol, hello.leases) == (protocol.VERSION, [])
    running = host.daemon.update(1, "running")
    assert running.boot_id == identity.boot_id()
    assert Process(running.pid or 0, running.pid_started or 0) == host.supervisor(1)


def test_what_has_ended_is_not_started_again(host: Host) -> None:
    """The daemon's list may be older than our report."""
    host.start()
    host.daemon.want(job(1, "print('up')"))
    host.daemon.update(1)
    until(lambda: tail.Acked.load(host.run(1)).closed)
    host.daemon.want(job(1, "print('up')"), job(2, "print('up')"))
    host.daemon.update(2)
    assert host.run(1).log.read_text() == "up\n"


def test_killed_agent_is_replaced_and_jobs_go_on(host: Host) -> None:
    first = host.start()
    host.daemon.want(job(1, WAITS + "report(2)"))
    until(lambda: host.daemon.steps(1) == [1])
    before = host.supervisor(1)
    first.kill()
    first.wait()
    host.start()
    until(lambda: len(host.daemon.hellos) == 2)
    assert host.daemon.hellos[1].leases == [1]
    assert identity.alive(before)
    (host.run(1).path / "go").touch()
    assert host.daemon.update(1).outcome == "completed"
    assert host.run(1).log.read_text() == "up\n", "started once"
    assert host.daemon.steps(1) == [1, 2]


def test_end_while_no_agent_lives(host: Host) -> None:
    first = host.start()
    host.daemon.want(job(1, WAITS + "report(2)"))
    until(lambda: host.daemon.steps(1) == [1])
    first.kill()
    first.wait()
    (host.run(1).path / "go").touch()
    until(lambda: host.run(1).read("exit.json"))
    host.start()
    assert host.daemon.update(1).outcome == "completed"
    assert host.daemon.steps(1) == [1, 2]


def test_killed_supervisor_loses_the_job_and_leaves_nothing(host: Host) -> None:
    host.start()
    host.daemon.want(job(1, "import subprocess\n" + WAITS.replace("report(1)", "subprocess.Popen(['setsid', 'sleep', '600']); report(1)")))
    until(lambda: host.daemon.steps(1) == [1])
    until(lambda: "sleep" in [processes.command(found.pid) for found in processes.tagged(host.run(1).tag)])
    until(lambda: len(processes.tagged(host.run(1).tag)) == 3)  # its own, and the supervisor
    processes.send(host.supervisor(1), signal.SIGKILL)
    end = host.daemon.update(1)
    assert end.outcome == "lost"
    assert "checkpoint" in (end.message or "")
    assert processes.tagged(host.run(1).tag) == []


def test_lost_answers(host: Host) -> None:
    """The daemon has taken a report and its answer is lost: all of it comes again, and nothing is skipped."""
    host.daemon.lose_answers = 4
    host.start()
    host.daemon.want(job(1, REPORTS + "for i in range(1, 31): report(i); time.sleep(0.02)"))
    host.daemon.update(1)
    until(lambda: tail.Acked.load(host.run(1)).closed)
    assert host.daemon.lose_answers == 0
    assert host.daemon.steps(1) == list(range(1, 31))
    resent = [record.seq for r in host.daemon.reports for rs in r.records for record in rs.records]
    assert len(resent) >= 30


def test_daemon_away(host: Host) -> None:
    """Workers go on without it, and everything is told when it is back."""
    host.start()
    host.daemon.want(job(1, WAITS + "report(2)"))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.close()
    (host.run(1).path / "go").touch()
    until(lambda: host.run(1).read("exit.json"))
    host.daemon.open()
    assert host.daemon.update(1).outcome == "completed"
    assert host.daemon.steps(1) == [1, 2]
    assert len(host.daemon.hellos) == 1, "its session goes on"


def test_agent_waits_for_a_daemon(host: Host) -> None:
    host.daemon.close()
    host.start()
    until(lambda: "no daemon answers" in host.said())
    host.daemon.open()
    until(lambda: host.daemon.hellos)


@pytest.mark.slow
def test_progress_without_a_daemon_is_no_hang(host: Host) -> None:
    """Nobody acknowledges its records; it idles between them, longer than hang_after in all."""
    host.daemon.telemetry = 0.1
    host.start()
    code = REPORTS + "report(1)\nwhile not os.path.exists('go'): time.sleep(0.01)\nfor i in range(2, 26): report(i); time.sleep(0.45)"
    host.daemon.want(job(1, code, hang_after=10.0))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.close()
    (host.run(1).path / "go").touch()
    assert until(lambda: host.run(1).read("exit.json"))["outcome"] == "completed"


def test_hello_is_repeated_while_the_store_cannot_be_written(host: Host) -> None:
    host.daemon.refusals = [StoreError("the disk is full"), StokerError("the daemon answered 500")]
    host.start()
    host.daemon.want(job(1, "print('up')"))
    assert host.daemon.update(1).outcome == "completed"
    assert len(host.daemon.hellos) == 3


def test_a_node_of_somebody_else_is_refused_in_one_line(host: Host) -> None:
    host.daemon.refusals = [Conflict("node n1 is served from another host; choose another --node")]
    process = host.start()
    assert process.wait(patient(60)) == Conflict.exit_code == 4
    assert host.said() == "stoker runner: node n1 is served from another host; choose another --node\n"


def test_stray_files_cost_nobody_anything(host: Host) -> None:
    """Copies that people made, what cannot be read, and the damaged files of one lease: the other one goes on."""
    jobs = host.home / "jobs"
    for stray in ("old/run-3", "7/run-old", "7/run-8/deeper", "9/run-9"):
        (jobs / stray).mkdir(parents=True)
    (jobs / "9" / "run-9" / "assignment.json").write_text("[]")
    (jobs / "7" / "run-10").write_text("a file")
    process = host.start()
    host.daemon.want(job(1, WAITS), job(2, WAITS + "report(2)", gpus=["n1/cpu1"]))
    until(lambda: host.daemon.steps(1) == host.daemon.steps(2) == [1])
    first = host.run(1).path
    (first / "reports-old.jsonl").write_text("{}")
    (first / "reports-0 (copy).jsonl").mkdir()
    (first / "reports-1.jsonl").mkdir()
    (first / "exit.json").write_text("[1, 2")
    (host.run(2).path / "go").touch()
    assert host.daemon.update(2).outcome == "completed"
    assert host.daemon.steps(2) == [1, 2]
    processes.send(host.supervisor(1), signal.SIGKILL)
    assert host.daemon.update(1).outcome == "lost", "what exit.json said cannot be read"
    assert process.poll() is None


SURROGATE, DEEP = '"\\udce9"', "[" * 100_000
EXIT = '{"outcome": "completed", "exit_code": 0, "message": %s, "ended_at": 1.0, "survivors": [%s]}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        (f'put(\'reports-0.jsonl\', \'A{{"seq": 2, "ts": 1.0, "step": 2, "values": {{{SURROGATE}: 1}}}}\')', "completed"),
        (f"put('reports-0.jsonl', '{DEEP}')", "completed"),
        ('put(\'reports-99999999999999.jsonl\', \'{"seq": 1, "ts": 1.0, "step": 2}\')', "completed"),
        ("os.mkfifo('reports-3.jsonl')", "completed"),
        ("os.mkfifo('exit.json')", "completed"),
        ("os.mkfifo('.cpus.json.tmp')", "completed"),
        ("os.mkdir('exit.json')", "lost"),
        ("os.symlink('exit.json', 'exit.json')", "completed"),
        (f"put('exit.json', '{EXIT % (SURROGATE, '')}'); os.kill(os.getppid(), 9)", "lost"),
        (f"put('exit.json', '{EXIT % ('null', '7')}'); os.kill(os.getppid(), 9)", "lost"),
        ("open('/proc/self/comm', 'wb').write(b'\\xff\\xfe'); os.kill(os.getppid(), 15); time.sleep(60)", "lost"),
        ("print('Root Cause (first observed failure):\\n rank : ' + '9' * 9000 + '\\n exitcode : 1'); os._exit(1)", "failed"),
    ],
)
@pytest.mark.sampled(3)
def test_nothing_that_a_job_writes_ends_the_agent(host: Host, written: str, outcome: str) -> None:
    process = host.start()
    put = "def put(name, text):\n    with open(name, 'a') as file: file.write(text.removeprefix('A') + chr(10))\n"
    host.daemon.want(
        job(1, REPORTS + "report(1)\nos.chdir(os.environ['STOKER_RUN_DIR'])\n" + put + written.replace("\\udce9", "\\\\udce9"))
    )
    until(lambda: 1 in host.daemon.steps(1))
    end = host.daemon.update(1)
    assert end.outcome == outcome
    assert ("its supervisor was killed" in (end.message or "")) == ("getppid(), 9" in written or "mkdir" in written), end.message
    host.daemon.want(job(2, "print('up')"))
    assert host.daemon.update(2).outcome == "completed"
    assert process.poll() is None


def test_cancel_on_a_full_disk(host: Host) -> None:
    """stop.json cannot be written: the job is signalled all the same, and the agent lives."""
    process = host.start()
    host.daemon.want(job(1, CHECKPOINTS))
    until(lambda: host.daemon.steps(1) == [1])
    (host.run(1).path / "stop.json").mkdir()
    host.daemon.want(job(1, CHECKPOINTS, stop="cancelled"))
    assert host.daemon.update(1).exit_code == 75
    assert process.poll() is None


def test_stop_with_grace(host: Host) -> None:
    host.start()
    host.daemon.want(job(1, CHECKPOINTS))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.want(job(1, CHECKPOINTS, stop="preempted"))
    end = host.daemon.update(1)
    assert (end.outcome, end.exit_code) == ("stopped", 75)
    assert (host.run(1).read("exit.json") or {})["stop_reason"] == "preempted"


def test_stop_of_what_was_never_started(host: Host) -> None:
    host.start()
    host.daemon.want(job(1, "print('up')", stop="cancelled"))
    assert host.daemon.update(1).outcome == "stopped"
    assert host.daemon.states(1) == ["starting", "exited"]
    assert not host.run(1).log.exists()


@pytest.mark.parametrize("pause", [0.0, 0.03, 0.08, 0.15])
def test_stop_during_the_start(host: Host, pause: float) -> None:
    """At whatever moment it comes, it is heard."""
    host.start()
    until(lambda: host.daemon.polls)
    host.daemon.want(job(1, "import time; time.sleep(600)"))
    time.sleep(pause)
    host.daemon.want(job(1, "import time; time.sleep(600)", stop="preempted"))
    assert host.daemon.update(1).outcome == "stopped"


def test_unlisted_leases_are_killed(host: Host) -> None:
    """Fenced off: its GPUs may be somebody else's. No grace, whatever it does with SIGTERM."""
    host.start()
    host.daemon.want(job(1, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.want(job(2, "print('up')"))
    assert host.daemon.update(2).outcome == "completed"
    end = host.daemon.update(1)
    assert (end.outcome, end.exit_code) == ("stopped", -9)
    ended = host.run(1).read("exit.json") or {}
    assert ended["stop_reason"] == "fenced"
    assert ended["ended_at"] <= (host.run(2).read("exit.json") or {})["started_at"], "the slot was free before it was used again"


def test_unlisted_leases_of_a_former_agent_are_killed(host: Host) -> None:
    first = host.start()
    host.daemon.want(job(1, WAITS))
    until(lambda: host.daemon.steps(1) == [1])
    first.kill()
    first.wait()
    host.daemon.want()
    host.start()
    assert host.daemon.update(1).outcome == "stopped"


def test_disowned_leases_are_ended_and_forgotten(host: Host) -> None:
    host.daemon.stale = {1}
    host.start()
    host.daemon.want(job(1, WAITS))
    until(lambda: tail.Acked.load(host.run(1)).closed)
    assert "exited" not in host.daemon.states(1)
    until(lambda: not processes.tagged(host.run(1).tag))  # its supervisor leaves right after its last word


def test_hang_is_stopped(host: Host) -> None:
    host.daemon.telemetry = 0.1
    host.start()
    host.daemon.want(job(1, REPORTS + "report(1); time.sleep(600)", hang_after=0.5))
    end = host.daemon.update(1)
    assert end.outcome == "hang"
    samples = [sample for report in host.daemon.reports for sample in report.samples]
    assert {(sample.gpu, sample.lease) for sample in samples} == {("n1/cpu0", 1)}


@pytest.mark.slow
def test_slow_progress_is_no_hang(host: Host) -> None:
    """A process that idles between its reports, and one that computes without any: both longer than hang_after in all."""
    host.daemon.telemetry = 0.1
    host.start()
    idle = REPORTS + "for i in range(1, 25): report(i); time.sleep(0.45)"
    busy = "import time\nend = time.monotonic() + 4.5\nwhile time.monotonic() < end: pass"
    host.daemon.want(job(1, idle, hang_after=10.0), job(2, busy, hang_after=4.0, gpus=["n1/cpu1"]))
    assert host.daemon.update(1).outcome == "completed"
    assert host.daemon.update(2).outcome == "completed"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"workdir": "/no/such/place"}, "workdir: there is no directory /no/such/place"),
        ({"argv": ("no-such-program",)}, "command: no program 'no-such-program'"),
        ({"argv": ("./no-such-script",)}, "command: there is no program"),
        ({"env_file": "/no/such/file"}, "env_file: cannot read /no/such/file on this node: No such file"),
        ({"gpus": ["n1/cpu7"]}, "no GPU n1/cpu7"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_cannot_start(host: Host, spec: dict[str, Any], words: str) -> None:
    host.start()
    host.daemon.want(job(1, **spec))
    end = host.daemon.update(1)
    assert end.outcome == "start-failed"
    assert words in (end.message or "")
    assert host.daemon.states(1) == ["starting", "exited"]


def test_another_agent_took_the_node(host: Host) -> None:
    process = host.start()
    host.daemon.want(job(1, WAITS))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.usurp()
    assert process.wait(patient(60)) == Stale.exit_code
    assert "another one has taken node 'n1'" in host.said()
    assert identity.alive(host.supervisor(1)), "its worker is the other one's affair"


def test_two_agents_of_one_node(host: Host) -> None:
    host.start()
    until(lambda: host.daemon.hellos)
    host.start().wait(patient(60))
    assert "a runner of node 'n1' is running already (pid " in host.said()


def test_sigterm_leaves_workers_alone(host: Host) -> None:
    process = host.start()
    host.daemon.want(job(1, WAITS))
    until(lambda: host.daemon.steps(1) == [1])
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient(60)) == 0
    assert identity.alive(host.supervisor(1))
    assert not any(report.left for report in host.daemon.reports), "the daemon must not give its job up"


def test_shutdown_waits_for_the_workers(host: Host) -> None:
    process = host.start()
    host.daemon.want(job(1, CHECKPOINTS))
    until(lambda: host.daemon.steps(1) == [1])
    host.daemon.want(job(1, CHECKPOINTS, stop="drain"), shutdown="stop")
    assert host.daemon.update(1).outcome == "stopped"
    host.daemon.want(shutdown="stop")
    assert process.wait(patient(60)) == 0
    assert host.daemon.reports[-1].left


def test_an_idle_agent_says_nothing(host: Host) -> None:
    """No reports but one of what lies on its disk, no polls but the long ones, and next to no CPU."""
    host.daemon.heartbeat = 0.5
    host.daemon.telemetry = 0.05
    process = host.start()
    until(lambda: host.daemon.polls >= 2)
    before, polls = identity.stat(process.pid), host.daemon.polls
    until(lambda: host.daemon.polls >= polls + 3)
    after = identity.stat(process.pid)
    assert before and after
    assert [report.files for report in host.daemon.reports] == [[]]
    assert after.cpu - before.cpu <= 0.5  # of 1.5 s: one that does not wait takes them all


def an_agent(home: Path) -> agent.Agent:
    return agent.Agent(agent.Options(home=home, node="n1"), client=lambda: pytest.fail("no daemon"), devices=CpuSlots("n1", 2))


def test_a_full_disk_does_not_keep_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", full)
    with held_lock(Home(tmp_path), "n1"), pytest.raises(Conflict, match="is running already"):
        held_lock(Home(tmp_path), "n1")
    assert "No space left on device; the lock itself holds" in caplog.text


def test_what_waits_is_stopped_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can neither be registered as taken nor noted as ended; it is not started all the same."""
    one = an_agent(tmp_path)
    one.runs[1] = taken_up(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module in (rundir, supervisor):
        monkeypatch.setattr(module, "write_atomically", full)
    one._want(Assignments(version=1, leases=[job(1, stop="cancelled")]))
    one.reconcile()
    assert (one.runs[1].phase, (one.runs[1].exit or {})["outcome"]) == (RunPhase.ENDED, "stopped")
    assert one.runs[1].supervisor is None


def test_the_disowned_are_ended_before_the_first_answer(tmp_path: Path) -> None:
    one = an_agent(tmp_path)
    one.runs = {1: taken_up(tmp_path), 2: Run.take_up(RunDir(tmp_path, 2, 2), job(2), "n1")}
    one.runs[1].disown()
    assert one.desired is None
    one.reconcile()
    assert [run.phase for run in one.runs.values()] == [RunPhase.ENDED, RunPhase.WAITING]


def test_a_damaged_registration_loses_the_job_and_leaves_nothing(tmp_path: Path) -> None:
    run = taken_up(tmp_path)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "STOKER_TAG": run.dir.tag}) as child:
        until(lambda: processes.tagged(run.dir.tag))
        (run.dir.path / "supervisor.json").write_text('{"pid": ')
        run.look()
        assert child.wait(patient(60)) == -signal.SIGKILL
    assert (run.exit or {})["outcome"] == "lost"


# -- without processes ---------------------------------------------------------------------------------------------------


def taken_up(home: Path, **spec: Any) -> Run:
    return Run.take_up(RunDir(home, 1, 1), job(1, **spec), "n1")


def test_a_reboot_loses_the_job(tmp_path: Path) -> None:
    """After a reboot the same pid with the same start time may be anybody."""
    me = processes.myself()
    taken_up(tmp_path)
    RunDir(tmp_path, 1, 1).write("supervisor.json", {"pid": me.pid, "started": me.started, "boot_id": "another"})
    run = Run.load(RunDir(tmp_path, 1, 1), "n1")
    assert run is not None
    assert run.phase is RunPhase.ENDED
    assert (run.exit or {})["outcome"] == "lost"
    assert "rebooted" in (run.exit or {})["message"]


def test_leases_of_other_nodes_of_the_home_are_left_alone(tmp_path: Path) -> None:
    taken_up(tmp_path)
    assert Run.load(RunDir(tmp_path, 1, 1), "n2") is None
    assert Run.load(RunDir(tmp_path, 1, 1), "n1") is not None


def test_nodes_of_a_gang_share_a_home(tmp_path: Path) -> None:
    first, second = RunDir(tmp_path, 1, 7), RunDir(tmp_path, 1, 7, node_rank=1)
    assert first.path != second.path
    assert first.tag != second.tag
    assert first.checkpoints == second.checkpoints
    first.path.mkdir(parents=True)
    second.path.mkdir()
    assert RunDir.find(tmp_path) in ([first, second], [second, first])


def test_acknowledgements_survive_a_torn_file(tmp_path: Path) -> None:
    run = taken_up(tmp_path)
    (run.dir.path / "acked.json").write_text('{"states": ["sta')
    assert tail.Acked.load(run.dir) == tail.Acked(run.dir)


def test_only_whole_lines_are_read(tmp_path: Path) -> None:
    run = taken_up(tmp_path).dir
    line = '{"seq": 1, "ts": 1.0, "step": 1}\n'
    run.reports(0).write_text(line + line[:12])
    batch = tail.read(run, 0, 0)
    assert ([r.seq for r in batch.records], batch.offset) == ([1], len(line))
    assert tail.read(run, 0, batch.offset).records == []


def test_bad_lines_cost_only_themselves(tmp_path: Path) -> None:
    run = taken_up(tmp_path).dir
    good = '{"seq": %d, "ts": 1.0, "step": %d, "values": {"loss": %s}}\n'
    run.reports(0).write_text(good % (1, 1, "0.5") + "\0\0garbage\n" + good % (2, 2, "NaN") + good % (3, 3, "null"))
    records = tail.read(run, 0, 0).records
    assert [(r.seq, r.values) for r in records] == [(1, {"loss": 0.5}), (2, {}), (3, {})]


def test_the_job_s_log_says_once_what_was_no_report(tmp_path: Path) -> None:
    run = taken_up(tmp_path)
    good = b'{"seq": 1, "ts": 1.0, "step": 1}\n'
    run.dir.log.write_bytes(b"its output\n")
    run.dir.reports(0).write_bytes(good + b"\xff garbage\n[]\n")
    for _ in range(3):  # nothing is acknowledged meanwhile
        (batch,), complete = link.news(run, 100)
        assert len(batch.records) == 1 and complete
    with run.dir.reports(0).open("ab") as file:
        file.write(b'{"seq": "two"}\n')
    link.news(run, 100)
    run.acked.offsets[0] = run.dir.reports(0).stat().st_size
    link.news(run, 100)
    output, first, second = run.dir.log.read_text().splitlines()
    assert output == "its output"
    assert first.startswith("[stoker: 2 lines of reports-0.jsonl are no report and left out, the first: ") and first.endswith("]")
    assert second.startswith("[stoker: 1 line of reports-0.jsonl is no report and left out: ")


def test_a_report_without_end_is_left_out_with_a_word(tmp_path: Path) -> None:
    run = taken_up(tmp_path)
    run.dir.reports(0).write_bytes(b"x" * (1 << 20))
    link.news(run, 100)
    assert run.dir.log.read_text() == "[stoker: a line of reports-0.jsonl has more than 1048576 bytes and is left out]\n"


def test_retention(tmp_path: Path) -> None:
    """Only what the daemon has acknowledged is ever removed; raw reports first, logs much later, checkpoints never."""
    run = taken_up(tmp_path)
    for path in (run.dir.log, run.dir.reports(0)):
        path.write_text("x")

    def after(days: float) -> list[str]:
        run.acked.save()
        then = time.time() - days * 86400
        os.utime(run.dir.path / "acked.json", (then, then))
        clean(tmp_path, set())
        return sorted(path.name for path in run.dir.path.glob("[or]*")) if run.dir.path.exists() else ["nothing"]

    assert after(400) == ["output.log", "reports-0.jsonl"], "not acknowledged"
    run.acked.closed = True
    assert after(0.5) == ["output.log", "reports-0.jsonl"]
    assert after(2) == ["output.log"]
    saved = run.dir.checkpoints / "step-1"
    saved.touch()
    assert after(31) == ["nothing"]
    assert saved.exists()


def test_of_a_job_without_checkpoints_nothing_stays(tmp_path: Path) -> None:
    """Once its last lease is removed: the checkpoint directory belongs to all of them."""
    runs = [Run.take_up(RunDir(tmp_path, 1, lease), job(lease), "n1") for lease in (1, 2)]
    for run, left in zip(runs, (["checkpoints", "run-2"], []), strict=True):
        run.acked.closed = True
        run.acked.save()
        clean(tmp_path, set(), keep_reports=0.0, keep_logs=0.0)
        assert sorted(path.name for path in tmp_path.glob("jobs/1/*")) == left
    assert not (tmp_path / "jobs" / "1").exists()
