"""The turn of a GPU, between real processes: one holder at a time whatever is killed and when, equals in turn, priority first."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from stoker.engine.errors import StokerError
from stoker.engine.protocol import Assignment
from stoker.runners.host.gpus import find
from stoker.runners.host.runs import Run
from stoker.runners.lease.rundir import RunDir
from stoker.runners.share.slot_turns import SlotTurns
from stoker.runners.share.turn import Turn, look, path_of
from waiting import patient, until

#: What each process does: `turn`, its place; `note`, a line that others read; `words`, a page of theirs that only the holder writes.
PROLOGUE = """
import mmap, os, random, sys, time
from pathlib import Path
from stoker.runners.share.turn import Turn

path, lease, priority, notes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(*what):
    os.write(notes, (" ".join(map(str, what)) + chr(10)).encode())
turn = Turn(path, lease, priority)
"""
#: Nothing may write the witness while somebody has the turn but who has it.
WITNESSED = """
words = memoryview(mmap.mmap(os.open(sys.argv[5], os.O_RDWR), 4096)).cast("q")
draw = random.Random(lease)
while True:
    turn.take()
    words[0] = lease
    words[1] += 1
    time.sleep(draw.random() * 0.0005)
    if words[0] != lease:
        note("two", lease, words[0])
    turn.give()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []

    def run(lease: int, code: str, priority: int = 0, *more: object) -> subprocess.Popen[bytes]:
        given = [str(tmp_path / "turn"), str(lease), str(priority), str(tmp_path / "notes"), *map(str, more)]
        started.append(subprocess.Popen([sys.executable, "-c", PROLOGUE + code, *given]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def notes(tmp_path: Path) -> list[str]:
    path = tmp_path / "notes"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("turns", "kills"), [(300, 12), pytest.param(10_000, 2_000, marks=pytest.mark.nightly)])
def test_there_are_never_two_holders_whatever_is_killed(start, tmp_path: Path, turns: int, kills: int) -> None:
    witness = tmp_path / "witness"
    witness.write_bytes(bytes(4096))
    with witness.open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
    alive = {lease: start(lease, WITNESSED, 0, witness) for lease in (1, 2, 3)}
    draw, killed, lease = random.Random(7), 0, 3
    until(lambda: words[1] > 20)
    while words[1] < turns or killed < kills:
        seen = words[1]
        time.sleep(draw.random() * 0.01)
        if killed < kills:
            victim = words[0] if words[0] in alive and draw.random() < 0.8 else draw.choice(sorted(alive))  # mostly who has the turn
            alive.pop(victim).kill()
            killed, lease = killed + 1, lease + 1
            alive[lease] = start(lease, WITNESSED, 0, witness)
        until(lambda seen=seen: words[1] > seen, says=lambda: f"nobody has the turn: {look(tmp_path / 'turn')}")
    assert notes(tmp_path) == []


def test_equals_take_turns_in_the_order_of_asking(start, tmp_path: Path) -> None:
    """On two cores too, where a plain lock starves one of them."""
    code = "\nwhile True:\n    turn.take()\n    note(lease)\n    end = time.perf_counter() + 0.002\n"
    code += "    while time.perf_counter() < end: pass\n    turn.give()\n"
    for lease in (1, 2):
        start(lease, code)
    until(lambda: len(set(notes(tmp_path))) == 2)
    began = len(notes(tmp_path))
    until(lambda: len(notes(tmp_path)) > began + 100)
    taken = notes(tmp_path)[began:]
    assert sum(first != second for first, second in pairwise(taken)) > 0.8 * len(taken)


def test_a_forked_child_of_a_killed_holder_keeps_nothing(start, tmp_path: Path) -> None:
    holder = start(1, "\nturn.take()\npid = os.fork()\nif pid: note('holds', pid)\ntime.sleep(600)\n")
    until(lambda: notes(tmp_path))
    child = int(notes(tmp_path)[0].split()[1])
    ours = Turn(tmp_path / "turn", 2)
    try:
        assert look_from_elsewhere(tmp_path).startswith("1 ")
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # lives
        ours.take()
    finally:
        os.kill(child, signal.SIGKILL)
        ours.close()


def look_from_elsewhere(tmp_path: Path) -> str:
    """As an agent sees it: closing the file here would give up our own locks."""
    code = "import sys; from pathlib import Path; from stoker.runners.share.turn import look; s = look(Path(sys.argv[1])); "
    code += "print(s.holder, round(s.silent, 1), sorted(s.waiting.items()))"
    return subprocess.run([sys.executable, "-c", code, str(tmp_path / "turn")], capture_output=True, text=True, check=True).stdout


def test_a_higher_priority_goes_before_at_the_next_point(start, tmp_path: Path) -> None:
    start(1, "\nturn.take()\nnote('low')\nwhile True:\n    time.sleep(0.001)\n    if turn.wanted(): turn.pause()\n")
    until(lambda: notes(tmp_path) == ["low"])
    high, same = Turn(tmp_path / "turn", 2, priority=1), start(3, "\nnote('asks')\nturn.take()\nnote('equal')\n")
    until(lambda: "asks" in notes(tmp_path))
    for _ in range(5):
        high.take()
        assert look_from_elsewhere(tmp_path).split()[0] == "2"
        high.give()
        time.sleep(0.01)
    assert "equal" not in notes(tmp_path), "an equal waits until the step is over"
    same.kill()
    high.close()


def test_who_is_asked_to_leave_goes_before_all(start, tmp_path: Path) -> None:
    start(1, "\nwhile True:\n    turn.take()\n    time.sleep(0.001)\n    if turn.wanted(): turn.pause()\n    turn.give()\n", 5)
    start(2, "\nwhile True:\n    turn.take()\n    time.sleep(0.001)\n    if turn.wanted(): turn.pause()\n    turn.give()\n", 5)
    until(lambda: (tmp_path / "turn").exists() and "(" in look_from_elsewhere(tmp_path))
    began = time.monotonic()
    leaves = Turn(tmp_path / "turn", 3, leaving=lambda: time.monotonic() > began + 0.2)
    leaves.take()
    assert time.monotonic() < began + patient(5) and not leaves.wanted(), "nor does it give way before its step is over"
    leaves.close()


def test_whoever_waits_and_is_stopped_is_passed_over_and_a_stopped_holder_is_seen(start, tmp_path: Path) -> None:
    waits = start(1, "\nnote('there')\nturn.take()\nnote('has it')\ntime.sleep(600)\n", 9)
    ours = Turn(tmp_path / "turn", 2)
    ours.take()
    until(lambda: "(1, 9)" in look_from_elsewhere(tmp_path))
    waits.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert not ours.wanted()
    ours.give()
    ours.take()  # at once, though one of a higher priority stands before us
    ours.give()
    waits.send_signal(signal.SIGCONT)
    until(lambda: "has it" in notes(tmp_path))
    waits.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    holder, silent, *_ = look_from_elsewhere(tmp_path).split()
    assert holder == "1" and float(silent) >= 0.3
    waits.kill()
    waits.wait()
    ours.take()
    ours.close()


def test_a_file_and_a_holder_of_an_earlier_version_are_as_good_as_any(start, tmp_path: Path) -> None:
    """These have the slots alone, and know nothing of what is behind them."""
    (tmp_path / "turn").write_bytes(bytes(1024))
    before = start(1, "\nturn.take()\nprint(turn.path)\nnote('holds')\ntime.sleep(600)\n")
    until(lambda: notes(tmp_path))
    with (tmp_path / "turn").open("r+b") as file:
        file.truncate(1024)  # as it has left it
    assert look(tmp_path / "turn") == (1, pytest.approx(0.0, abs=patient(5)), {}, {})
    ours = Turn(tmp_path / "turn", 2, priority=5)
    ours.ask()
    assert not ours.granted()
    before.kill()
    until(ours.granted)
    ours.close()


def test_a_file_system_without_record_locks_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(StokerError, match=r"^share: no turns can be taken by .*/turn: No locks available; the home needs room, and a"):
        Turn(tmp_path / "turn", 1)


def test_gpus_have_files_of_their_own(tmp_path: Path) -> None:
    assert len({path_of(tmp_path, gpu) for gpu in ("a/cpu0", "a%2Fcpu0", "a-cpu0", "GPU-1")}) == 4
    assert look(tmp_path / "none") == (None, 0.0, {}, {})


def test_an_agent_tells_who_takes_turns_and_sees_who_keeps_them_from_others(start, tmp_path: Path) -> None:
    turns = SlotTurns(find("here", 1, None), tmp_path, "cooperative")
    runs = []
    for lease, priority in ((1, 0), (2, 7)):
        assignment = Assignment(
            lease=lease, job=lease, attempt=1, spec={}, gpus=["here/cpu0"], world_size=1, share="switched", priority=priority
        )
        directory = RunDir(tmp_path, lease, lease)
        runs.append(Run.take_up(directory, assignment, "here"))
    turns.tell(runs)
    told = [run.dir.read("turn.json") for run in runs]
    assert told == [{"path": str(tmp_path / "turns" / "here%2Fcpu0"), "priority": priority} for priority in (0, 7)]
    (tmp_path / "turns").mkdir()
    (tmp_path / "turn").symlink_to(told[0]["path"])
    start(1, "\nturn.take()\nnote('holds')\ntime.sleep(600)\n")
    until(lambda: notes(tmp_path))
    seen = turns.look({1: 0.0, 2: 0.0})
    assert (seen.turn, seen.stuck) == ({1: "has"}, set()) and seen.waited[1] < 2.0, "nobody waits for it"
    start(2, "\nturn.take()\n", 7)
    until(lambda: turns.look({}).turn == {1: "has", 2: "waits"})
    until(lambda: turns.look({1: 0.1, 2: 0.1}).stuck == {1})
    assert turns.look({1: 600.0, 2: 0.1}).stuck == set()
    until(lambda: turns.look({}).waited[2] > 0.2)
    runs[0].adjust(msgspec.structs.replace(runs[0].assignment, share="exclusive"))
    turns.tell(runs)
    assert runs[0].dir.read("turn.json")["path"] is None
    again = SlotTurns(find("here", 1, None), tmp_path, "kernel")  # another agent, and other turns
    again.tell(runs)
    assert [run.dir.read("turn.json")["path"] for run in runs] == [None, None]
