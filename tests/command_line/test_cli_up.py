"""`stoker up` as a keeper of processes: restarts, clean ends, and starts that cannot succeed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from e2e import Said, command
from small_disk import Quota, SmallDisk
from stoker.engine.cli.running.children import FIRST_PAUSE, LONGEST_PAUSE, Child, describe_exit
from stoker.engine.client import Client
from stoker.engine.home import Home
from stoker.engine.identity import stat
from stoker.runners.lease import processes
from waiting import patient, until


class Up:
    """`stoker up` in the foreground, in a session of its own as a terminal would give it."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.log = home.path / "up.txt"
        self.log.touch()
        command = [sys.executable, "-m", "stoker.engine.cli.main", "--home", str(home.path), "up", *arguments]
        self.process = forked.start(command, self.log, os.environ)
        self.client = Client(home, url="", token="")

    def until(self, what: Callable[[], Any]) -> Any:
        """What it brings about; fails with its last words at once when it has ended."""
        return until(what, says=lambda: self.said()[-3000:], alive=(self.process,))

    def daemon(self) -> int:
        return int(self.client.get("/v1/status")["pid"])

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture
def up(home: Home) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(home, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.client.close()
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
        one.process.wait(patient(60))


@pytest.mark.slow
def test_a_killed_daemon_is_restarted_and_ctrl_c_ends_both(home: Home, up: Callable[..., Up]) -> None:
    running = up("--slots", "1", "--node", "here")
    first = running.until(running.daemon)
    agent = running.until(lambda: running.client.get("/v1/runners")["runners"])[0]["pid"]
    os.kill(first, signal.SIGKILL)
    second = running.until(lambda: (found := running.daemon()) != first and found)
    assert "the daemon died (signal SIGKILL); restarting it in 500ms" in running.said()
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(patient(90)) == 0
    for pid in (agent, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("daemon_lives", [True, pytest.param(False, marks=pytest.mark.nightly)])  # by day one that is in the way
def test_the_next_up_takes_over_what_a_killed_one_has_left(home: Home, up: Callable[..., Up], daemon_lives: bool) -> None:
    """It ran on unwatched, and the next `up` was refused: nobody would have started it again."""
    first = up("--slots", "1", "--node", "here")
    daemon = first.until(first.daemon)
    spec = {"name": "long", "kind": "train", "command": ["sleep", "600"], "workdir": "/"}
    (job,) = first.client.post("/v1/jobs", {"jobs": [spec], "provenance": {"argv": ["test"], "cwd": "/"}})["jobs"]
    lease = first.until(lambda: [each for each in first.client.get(f"/v1/jobs/{job['id']}")["leases"] if each["state"] == "running"])[0]
    agent = first.client.get("/v1/runners")["runners"][0]["pid"]
    first.process.kill()
    first.process.wait()
    if not daemon_lives:
        os.kill(daemon, signal.SIGKILL)
    rivals = [up("--slots", "1", "--node", "here") for _ in range(2)]
    refused = until(lambda: [each for each in rivals if each.process.poll() is not None])
    assert [each.process.wait() for each in refused] == [4]
    (second,) = [each for each in rivals if each not in refused]
    assert second.until(lambda: (found := second.daemon()) != daemon and found) not in (daemon, agent)

    def runner_but(former: int) -> int | None:
        (found,) = second.client.get("/v1/runners")["runners"]
        return found["pid"] if found["state"] == "up" and found["pid"] != former else None

    follower = second.until(lambda: runner_but(agent))
    assert second.said().count("an earlier 'stoker up' was killed: its runner (pid ") == 1
    assert all((found := stat(pid)) is None or found.dead for pid in (daemon, agent))
    os.kill(follower, signal.SIGKILL)
    second.until(lambda: runner_but(follower))
    (only,) = second.client.get(f"/v1/jobs/{job['id']}")["leases"]
    assert (only["id"], only["state"]) == (lease["id"], "running")
    of_home(home, "down", "--workers")


def daemons(up: Up) -> dict[int, list[str]]:
    """Command lines of its daemons that have begun."""
    lines: dict[int, list[str]] = {}
    for one in processes.descendants(up.process.pid, processes.table()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one.process.pid}/cmdline").read_text().split("\0")
            if "stoker.engine.daemon" in words:
                lines[one.process.pid] = words
    return lines


@pytest.mark.slow
def test_a_daemon_that_is_killed_while_it_starts_is_restarted(home: Home, up: Callable[..., Up]) -> None:
    """What may be lost is accepted for the first daemon that answers, and for none after it."""
    running = up("--slots", "1", "--node", "here", "--accept-loss")
    ((first, words),) = running.until(lambda: daemons(running)).items()
    os.kill(first, signal.SIGKILL)
    assert "--accept-loss" in words
    ((second, words),) = running.until(lambda: (found := daemons(running)) and first not in found and found).items()
    assert "the daemon died (signal SIGKILL); restarting it in 500ms" in running.said() and "--accept-loss" in words
    running.until(lambda: running.daemon() == second)
    running.until(lambda: running.client.get("/v1/runners")["runners"])

    def no_more_loss() -> bool:
        pid = running.daemon()
        os.kill(pid, signal.SIGKILL)
        ((_, words),) = running.until(lambda: (found := daemons(running)) and pid not in found and found).items()
        return "--accept-loss" not in words

    running.until(no_more_loss)  # it may be killed before `up` has seen that it answers
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(patient(90)) == 0


@pytest.mark.slow
def test_a_killed_runner_is_restarted(home: Home, up: Callable[..., Up]) -> None:
    running = up("--slots", "1", "--node", "here")
    running.until(running.daemon)
    agent = running.until(lambda: running.client.get("/v1/runners")["runners"])[0]["pid"]
    os.kill(agent, signal.SIGKILL)
    running.until(lambda: running.client.get("/v1/runners")["runners"][0]["pid"] != agent)
    assert "the runner died (signal SIGKILL)" in running.said()


@pytest.mark.slow
@pytest.mark.nightly  # a daemon on a full disk: test_bad_start.py; a runner: test_full_disk.py
def test_a_full_disk_ends_neither_up_nor_its_runner(home: Home, disk: SmallDisk | Quota, up: Callable[..., Up]) -> None:
    """Its log is on that disk as well. It used to die of the line that tells of the daemon's death, and to take the runner along."""
    running = up("--slots", "1", "--node", "here")
    pid = running.process.pid
    first = running.until(running.daemon)
    agent = running.until(lambda: running.client.get("/v1/runners")["runners"])[0]["pid"]
    with running.log.open("ab") as log:  # to the end of a block: in one that it has already there would be room for more lines
        log.write(b"\n" * (-log.tell() % 4096))
    (home.path / "reserve").unlink(missing_ok=True)  # with it the daemon would start
    disk.fill(pid)
    os.kill(first, signal.SIGKILL)
    tried: set[int] = set()

    def twice() -> bool:
        tried.update(one.process.pid for one in processes.descendants(pid, processes.table()))
        return len(tried - {first, agent}) >= 2

    running.until(twice)
    os.kill(agent, 0)
    disk.free(pid)
    second = running.until(running.daemon)
    running.until(lambda: running.client.get("/v1/runners")["runners"][0]["state"] == "up")
    assert running.client.get("/v1/runners")["runners"][0]["pid"] == agent, "it went on all the time"
    disk.fill(pid)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(patient(90)) == 0, "a last line that is lost does not change the exit code"
    for ended in (agent, second):
        with pytest.raises(ProcessLookupError):
            os.kill(ended, 0)


def test_down_ends_up(home: Home, up: Callable[..., Up]) -> None:
    running = up("--no-runner")
    running.until(running.daemon)
    done = subprocess.run([sys.executable, "-m", "stoker", "--home", str(home.path), "down", "--json"], capture_output=True, check=True)
    assert b'"stopped": true' in done.stdout
    # `down` answers when all is over, so that an `up` may follow at once.
    assert running.process.wait(patient(60)) == 0
    assert not home.socket.exists()


@pytest.mark.slow
@pytest.mark.nightly  # one whose daemon runs: test_down_ends_up; one that cannot start: test_what_cannot_start_is_not_tried_again
def test_down_ends_an_up_whose_daemon_cannot_be_started_again(home: Home, up: Callable[..., Up]) -> None:
    running = up("--no-runner")
    daemon = running.until(running.daemon)
    os.kill(daemon, signal.SIGSTOP)
    home.database.write_bytes(b"this is no database" * 1000)
    os.kill(daemon, signal.SIGKILL)
    running.until(lambda: "the daemon died (exit code 8); restarting it" in running.said())
    down = [sys.executable, "-m", "stoker", "--home", str(home.path), "down"]
    refused = subprocess.run([*down, "--workers"], capture_output=True, text=True, check=False)
    assert refused.returncode == 6, "nobody could stop the jobs"
    done = subprocess.run(down, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no daemon answered; 'stoker up', which was to keep one running, has ended\n"), done.stderr
    assert running.process.wait(patient(60)) == 0


@pytest.mark.parametrize("how", [["up"], ["up", "--detach"]])
def test_what_cannot_start_is_not_tried_again(home: Home, how: list[str]) -> None:
    home.database.write_bytes(b"this is no database" * 1000)
    command = [sys.executable, "-m", "stoker", "--home", str(home.path), *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 8
    assert "stoker: error: " in done.stderr and "Traceback" not in done.stderr
    assert "the daemon did not start (exit code 8)" in done.stderr


def test_a_runner_that_can_never_start_is_given_up(home: Home, up: Callable[..., Up]) -> None:
    """It says why once; the daemon goes on."""
    home.create()
    (home.path / "runners").mkdir(exist_ok=True)
    with (home.path / "runners" / "here.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = up("--slots", "1", "--node", "here")
        running.until(lambda: "is not tried again" in running.said())
        assert running.daemon()
    assert running.said().count("a runner of node 'here' is running already") == 1
    assert "restarting it" not in running.said()


def of_home(home: Home, *arguments: str) -> Said:
    """A command in a process that gives up at once a runner that cannot run."""
    return command(home, *arguments, changes="from stoker.engine.cli.running import up; up.OTHER_RUNNER = 0", timeout=patient(120))


def test_detached_it_tells_at_once_that_its_runner_cannot_run(home: Home) -> None:
    """It waited for a minute, and left the reason to the log."""
    begin = time.monotonic()
    done = of_home(home, "up", "--detach", "--slots", "1", "--node", "no name")
    took = time.monotonic() - begin
    assert of_home(home, "down").code == 0
    assert (done.code, done.out) == (4, "") and took < patient(40)
    assert "'no name' is no name" in done.err and "the daemon is up, and its runner is not" in done.err


def test_detached_it_takes_a_drained_runner_for_one_that_has_joined(home: Home) -> None:
    """An upgrade: the host is drained, Stoker is started anew. It waited for a minute and said that the runner had not joined."""
    start = ["up", "--detach", "--slots", "1", "--node", "here"]
    for words in (start, ["drain", "here", "--wait"], ["down"]):
        assert of_home(home, *words).code == 0
    done = of_home(home, *start)
    assert of_home(home, "down", "--workers").code == 0
    assert done.code == 0 and "'stoker runner resume here' lets it start jobs" in done.err


def test_bad_configuration_is_named(home: Home) -> None:
    Path(home.config).write_text("[polcy]\n")
    command = [sys.executable, "-m", "stoker", "--home", str(home.path), "up"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 2 and "config.toml" in done.stderr and "did you mean 'policy'" in done.stderr


def test_back_off_doubles_up_to_a_limit() -> None:
    child = Child("x", ["false"])
    child.started = time.monotonic()
    pauses = [child.plan_restart() for _ in range(10)]
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_child_that_lived_long_is_restarted_at_once() -> None:
    child = Child("x", ["false"])
    child.started = time.monotonic()
    child.plan_restart()
    child.plan_restart()
    child.started = time.monotonic() - 3600
    assert child.plan_restart() == FIRST_PAUSE


def test_a_child_that_does_not_leave_is_killed() -> None:
    child = Child("x", [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"])
    child.start()
    assert child.process is not None
    pid = child.process.pid
    until(lambda: _ignores_term(pid))
    assert child.stop(0.2) == -signal.SIGKILL


def _ignores_term(pid: int) -> bool:
    ignored = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


@pytest.mark.parametrize(("code", "words"), [(0, "exit code 0"), (8, "exit code 8"), (-9, "signal SIGKILL"), (-250, "signal 250")])
def test_ends_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
