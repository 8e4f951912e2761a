"""Commands that know nothing of turns, under real supervisors: stopped while another has the turn, and never for longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stoker.engine.identity import stat
from stoker.engine.protocol import Assignment
from stoker.runners.host.runs import Run, RunPhase
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from stoker.runners.share.command_turns import below
from stoker.runners.share.turn import Turn, look
from waiting import PATIENCE, patient, until

#: Two processes, of which one hides in a session of its own; each counts in a file. SIGTERM: a last word.
COUNTS = """
import os, signal, sys, time
def leave(*_):
    print("saved", flush=True)
    sys.exit(75)
name = "first"
if os.fork() == 0:
    os.setsid()
    name = "second"
else:
    signal.signal(signal.SIGTERM, leave)
file = os.open(name, os.O_RDWR | os.O_CREAT)
count = 0
while True:
    count += 1
    os.pwrite(file, str(count).encode(), 0)
    time.sleep(0.001)
"""
#: Says itself where it may be held up.
YIELDS = """
import os, time
import stoker
file = os.open("first", os.O_RDWR | os.O_CREAT)
for count in range(1, 1000000):
    stoker.yield_point()
    os.pwrite(file, str(count).encode(), 0)
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end: pass
"""
TAKES = "import sys, time; from pathlib import Path; from stoker.runners.share.turn import Turn\n"
TAKES += "turn = Turn(Path(sys.argv[1]), 2, int(sys.argv[2]))\n"


class Command:
    def __init__(self, home: Path, code: str, lease: int, priority: int) -> None:
        self.home, self.run = home, RunDir(home, job=1, lease=lease)
        self.run.path.mkdir(parents=True)
        self.tell(home / "turn", priority)
        env = {**os.environ, "STOKER_TAG": self.run.tag, "STOKER_LEASE_ID": str(lease), "STOKER_RUN_DIR": str(self.run.path)}
        launch = {"argv": [sys.executable, "-c", code], "env": env, "cwd": str(home), "log_limit": 1 << 20, "kill_wait": 5.0, "turns": True}
        argv = [sys.executable, "-I", "-m", "stoker.runners.lease.supervisor", str(self.run.path)]
        self.supervisor = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
        assert self.supervisor.stdin is not None
        with self.supervisor.stdin as pipe:
            pipe.write(json.dumps(launch).encode())

    def tell(self, path: Path | None, priority: int = 0) -> None:
        self.run.replace("turn.json", {"path": None if path is None else str(path), "priority": priority})

    def count(self, name: str = "first") -> int:
        found = self.home / name
        return int(found.read_text() or 0) if found.exists() else 0

    def goes_on(self, *names: str) -> None:
        for name in names or ("first",):
            before = self.count(name)
            until(lambda name=name, before=before: self.count(name) > before + 5)  # type: ignore[misc]

    def stands_still(self, *names: str) -> bool:
        before = [self.count(name) for name in names or ("first",)]
        time.sleep(0.1)
        return before == [self.count(name) for name in names or ("first",)]

    def stop(self, grace: float = 20.0) -> None:
        self.run.write("stop.json", {"reason": "cancelled", "grace": grace})
        self.supervisor.send_signal(signal.SIGTERM)

    def end(self) -> dict[str, Any]:
        assert self.supervisor.wait(patient(30)) == 0
        assert processes.tagged(self.run.tag) == []
        ended: dict[str, Any] = self.run.read("exit.json")
        return ended


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def start(code: str = COUNTS, priority: int = 0) -> Command:
        made.append(Command(tmp_path, code, len(made) + 1, priority))
        return made[-1]

    yield start
    for one in made:
        one.supervisor.kill()
        one.supervisor.wait()
        processes.end_tagged(one.run.tag)


@pytest.fixture
def takes(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []

    def start(code: str, priority: int) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen([sys.executable, "-c", TAKES + code, str(tmp_path / "turn"), str(priority)], stdout=subprocess.PIPE)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_it_stands_still_while_a_higher_priority_has_the_turn_and_goes_on_whatever_becomes_of_that(command, takes, tmp_path: Path) -> None:
    one = command()
    one.goes_on("first", "second")
    ours = Turn(tmp_path / "turn", 9, priority=5)
    began = time.monotonic()
    ours.take()
    assert time.monotonic() - began < patient(0.5)
    until(lambda: one.stands_still("first", "second"))
    ours.give()
    one.goes_on("first", "second")
    ours.close()
    other = takes("turn.take(); print('has it', flush=True); time.sleep(600)\n", 5)
    assert other.stdout.readline() == b"has it\n"
    until(lambda: one.stands_still("first", "second"))
    other.kill()
    one.goes_on("first", "second")
    ours = Turn(tmp_path / "turn", 9, priority=5)
    ours.take()
    until(lambda: one.stands_still("first", "second"))
    one.tell(None)  # the agent says that it has its GPU alone
    one.goes_on("first", "second")
    ours.close()


@pytest.mark.parametrize("first", [False, True])
def test_one_that_is_stopped_hears_that_it_is_to_leave(command, tmp_path: Path, first: bool) -> None:
    """Also one that somebody has stopped besides, with its supervisor."""
    one = command()
    one.goes_on("first", "second")
    ours = Turn(tmp_path / "turn", 9, priority=5)
    ours.take()
    until(lambda: one.stands_still("first", "second"))
    if first:
        for process in processes.descendants(one.supervisor.pid, processes.table()):
            processes.send(process.process, signal.SIGSTOP)
        one.supervisor.send_signal(signal.SIGSTOP)
        one.supervisor.send_signal(signal.SIGCONT)  # as an agent does before it says anything
    one.stop()
    ended = one.end()
    assert ended["outcome"] == "stopped" and "saved" in one.run.log.read_text()
    ours.close()


def test_a_supervisor_that_is_stopped_while_it_has_the_turn_is_seen_by_the_agent_and_ends_its_command(command, tmp_path: Path) -> None:
    one = command()
    one.goes_on()
    one.supervisor.send_signal(signal.SIGSTOP)
    assignment = Assignment(lease=1, job=1, attempt=1, spec={}, gpus=["here/cpu0"], world_size=1, share="switched")
    run = Run.take_up(one.run, assignment, "here")
    run.look()
    assert run.phase is RunPhase.LIVE
    until(lambda: look(tmp_path / "turn").silent > 0.3)
    run.stop("hang", 5.0)
    assert one.end()["stop_reason"] == "hang"


def test_all_that_is_below_is_found_as_by_a_look_at_all_processes(command) -> None:
    one = command()
    one.goes_on("first", "second")
    root = one.supervisor.pid
    assert {*below(root)} == {found.process for found in processes.descendants(root, processes.table())}
    assert len(below(root)) == 2 and below(below(root)[1].pid) == []


def test_equals_change_by_time(command, takes) -> None:
    """Steps of 5 ms beside it: each has about half of the time, neither the slices of the other."""
    one = command()
    one.goes_on()
    code = "n, end = 0, time.monotonic() + 2\nwhile time.monotonic() < end:\n"
    code += "    turn.take(); time.sleep(0.005); turn.give(); n += 1\nprint(n)\n"
    other, before = takes(code, 0), one.count()
    steps = int(other.stdout.readline())
    assert steps > 40 / PATIENCE and one.count() - before > 200 / PATIENCE, (steps, one.count() - before)


def test_a_script_with_yield_points_takes_turns_by_itself(command, takes, tmp_path: Path) -> None:
    one = command(YIELDS)
    until((one.run.path / "takes-turns").exists)
    one.goes_on()
    ours = Turn(tmp_path / "turn", 9, priority=5)
    ours.take()
    until(one.stands_still)
    (main,) = processes.descendants(one.supervisor.pid, processes.table())
    assert stat(main.pid).state != "T", "it waits, and is not stopped"
    ours.give()
    one.goes_on()
    ours.close()
    other = takes("n = 0\nwhile n < 20:\n    turn.take(); time.sleep(0.002); turn.give(); n += 1\nprint(n)\n", 0)
    assert other.stdout.readline() == b"20\n", "equals have their turns at its yield points"
    ours = Turn(tmp_path / "turn", 9, priority=5)
    ours.take()
    until(one.stands_still)
    one.stop()
    assert one.end()["outcome"] == "stopped"
    ours.close()


def test_a_yield_point_without_turns_does_nothing() -> None:
    code = "import stoker; stoker.yield_point(); stoker.yield_point(); print('on')"
    env = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout == "on\n"
