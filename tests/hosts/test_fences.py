"""A runner that does not hear its daemon stops its jobs, and only then they are begun elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from afar import Clock, Daemon
from e2e import DaemonProcess, Jobs, RunnerProcess, end_workers, free_port, until
from stoker.engine.config import load
from stoker.engine.errors import UsageError
from stoker.engine.fleet.silence import MARGIN, Fleet
from stoker.engine.home import Home
from stoker.engine.identity import boot_clock
from stoker.engine.spec.model import JobSpec
from stoker.runners.network.heard import Heard, overdue_in

BEATS = """
import os, sys, time
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        print(os.environ["STOKER_RUN_DIR"], time.monotonic(), file=file)
        time.sleep(0.02)
"""


class Wire:
    """A link to a port of this host that can be cut: nothing goes either way, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._target, self._open = port, threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError), one, other:
            while data := one.recv(65536):
                self._open.wait()
                other.sendall(data)


@pytest.fixture
def wire(start_daemon: Callable[..., DaemonProcess], home: Home, tmp_path: Path) -> Iterator[tuple[Jobs, Wire, dict[str, RunnerProcess]]]:
    """A daemon with two runners, h1 behind a wire."""
    home.config.write_text('[runners]\nsilent_after = 1.5\nfence_after = "3s"\n')
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}", changes="from stoker.engine.fleet import silence\nsilence.MARGIN = 1.5").client()
    token = client.post("/v1/tokens", {"name": "far", "role": "runner"})["token"]
    with ExitStack() as at_end:
        made = Wire(port)
        at_end.callback(made.close)
        runners = {}
        for node, where in (("h1", made.port), ("h2", port)):
            (folder := tmp_path / node).mkdir()
            environment = {"STOKER_URL": f"http://127.0.0.1:{where}", "STOKER_TOKEN": token}
            runners[node] = RunnerProcess(Home(folder), node, 1, env=environment)
            at_end.callback(end_workers, Home(folder))
            at_end.callback(runners[node].end)
            runners[node].start(client)
            if node == "h1":
                client.post("/v1/runners/h1/resume", {})
        yield Jobs(client), made, runners


@pytest.mark.parametrize("agent", ["lives", "killed"])
@pytest.mark.sampled(2)
def test_a_job_of_a_host_that_was_cut_off_ends_there_before_it_begins_elsewhere(
    wire: tuple[Jobs, Wire, dict[str, RunnerProcess]], home: Home, tmp_path: Path, agent: str
) -> None:
    jobs, link, runners = wire
    client = jobs.client
    client.post("/v1/runners/h2/drain", {})
    beats = tmp_path / "beats"
    job = jobs.submit("beats", sys.executable, "-c", BEATS, str(beats), grace=0.5)
    until(beats.exists)
    client.post("/v1/runners/h2/resume", {})
    link.cut()
    if agent == "killed":
        runners["h1"].kill()  # its supervisors are alone

    def of(node: str) -> list[float]:
        lines = [line.split() for line in beats.read_text().splitlines()]
        return [float(line[1]) for line in lines if len(line) == 2 and f"/{node}/" in line[0]]

    until(lambda: of("h2"), 60)
    first, last = of("h2")[0], of("h1")[-1]
    time.sleep(0.5)
    assert of("h1")[-1] == last < first
    states = {row["id"]: row["state"] for row in client.get("/v1/runners")["runners"]}
    assert states == {"h1": "gone", "h2": "up"}
    assert {row["outcome"] for row in client.get(f"/v1/jobs/{job}")["leases"]} == {"lost", None}
    link.mend()
    if agent == "killed":
        runners["h1"].launch()
    until(lambda: {row["id"]: row["state"] for row in client.get("/v1/runners")["runners"]}["h1"] == "up", 60)
    assert jobs.show(job)["state"] == "running" and of("h1")[-1] == last


def test_only_what_stops_by_itself_is_begun_elsewhere_and_not_too_early(daemon: Daemon, clock: Clock) -> None:
    now, began = [0.0], clock.now
    fences = {"boot_id": "elsewhere", "fence_after": 100.0}
    for node, more in (("h1", fences), ("h2", {"boot_id": "elsewhere"}), ("h3", fences)):
        daemon.join(node, **more)
        daemon.grant(daemon.submit(JobSpec(name="a", command=["true"], grace=50.0)), node)
    fleet = Fleet(daemon.store, lambda: now[0])
    for node, session in daemon.sessions.items():
        fleet.registered(node, session)
    now[0] = 1.0
    fleet.hear("h1", daemon.sessions["h1"])  # h3 may not have had the answer that says that it is to stop

    def states() -> dict[str, str]:
        clock.now = began + now[0]
        fleet.watch()
        fleet.reload()
        return {row["id"]: row["state"] for row in daemon.store.objects("api/runners")}

    assert states() == {"h1": "up", "h2": "up", "h3": "up"}
    now[0] = 150.0 + MARGIN
    assert states() == {"h1": "suspect", "h2": "suspect", "h3": "suspect"}
    now[0] = 152.0 + MARGIN
    assert states() == {"h1": "gone", "h2": "suspect", "h3": "suspect"}
    assert [daemon.job(number)["state"] for number in (1, 2, 3)] == ["pending", "assigned", "assigned"]


def supervised(run: Path, heard: Path, script: str = "sleep 60", grace: float = 0.3) -> subprocess.Popen[bytes]:
    launch = {
        "argv": ["sh", "-c", script],
        "env": {},
        "cwd": str(run),
        "log_limit": 1 << 20,
        "kill_wait": 5.0,
        "heard": str(heard),
        "grace": grace,
    }
    run.mkdir()
    process = subprocess.Popen([sys.executable, "-m", "stoker.runners.lease.supervisor", str(run)], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(launch).encode())
    process.stdin.close()
    return process


def test_a_supervisor_stops_its_job_by_itself_and_begins_none_too_late(tmp_path: Path) -> None:
    heard = Heard(tmp_path / "n1.heard")
    heard.begin(boot_clock(), 1.5)
    began = time.monotonic()
    process = supervised(tmp_path / "run-1", heard.path, "trap '' TERM; while :; do sleep 0.05; done")
    assert process.wait(20) == 0 and time.monotonic() - began > 1.5
    ended = json.loads((tmp_path / "run-1" / "exit.json").read_text())
    assert ended["outcome"] == "lost" and "the daemon was not heard for too long (runners.fence_after)" in ended["message"]
    assert supervised(tmp_path / "run-2", heard.path, "touch ran").wait(20) == 0
    assert json.loads((tmp_path / "run-2" / "exit.json").read_text())["message"].startswith("not started: the daemon was not heard")
    assert not (tmp_path / "run-2" / "ran").exists()
    heard.begin(boot_clock(), None)  # there is no such rule any more
    assert supervised(tmp_path / "run-3", heard.path, "touch ran").wait(20) == 0
    assert (tmp_path / "run-3" / "ran").exists()


def test_what_was_heard_is_noted_now_and_then_and_counts_from_when_it_was_sent(tmp_path: Path) -> None:
    heard = Heard(tmp_path / "n1.heard")
    assert overdue_in(str(heard.path)) is None and not heard.overdue
    heard.begin(boot_clock(), None)
    assert not heard.path.exists()
    heard.begin(boot_clock() - 70, 60.0)
    assert heard.overdue and math.isclose(overdue_in(str(heard.path)) or 0.0, -10, abs_tol=2)
    heard.renew(boot_clock())
    assert not heard.overdue and math.isclose(overdue_in(str(heard.path)) or 0.0, 60, abs_tol=2)
    before = heard.path.read_text()
    heard.renew(boot_clock() + 1)
    assert heard.path.read_text() == before
    heard.path.write_text("rubbish")
    assert overdue_in(str(heard.path)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [("soon", "runners.fence_after: must be a duration"), ("30s", "runners.fence_after: '30s' is less than runners.silent_after, 60 s")],
)
def test_a_time_that_is_none_or_too_short_is_refused(home: Home, given: str, words: str) -> None:
    home.config.write_text(f'[runners]\nfence_after = "{given}"\n')
    with pytest.raises(UsageError) as caught:
        load(home)
    assert words in str(caught.value)
