"""Batches in shared memory: each is made once while its members keep up, and nobody waits for one that is behind, dead or stopped."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stoker.runners.share import batch_ring
from stoker.runners.share.batch_ring import BatchRing, NoRoom, living
from waiting import patient, until

MEMORY = 8 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ring"


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], Any]], int]]:
    """Run a function in a process of its own. What is left is killed; one that fails fails the test."""
    pids: list[int] = []

    def fork(work: Callable[[], Any]) -> int:
        if not (pid := os.fork()):
            try:
                work()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
        return pid

    yield fork
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def code(pid: int) -> int:
    """Its exit code, once it has ended, without reaping it."""
    until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    return int(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status)  # type: ignore[union-attr]


def batch(number: int) -> dict[str, Any]:
    return {"x": np.full((8, 1000), number, np.float32), "y": [number, f"text {number}"]}


def check(value: dict[str, Any], number: int) -> None:
    assert value["y"] == batch(number)["y"] and np.array_equal(value["x"], batch(number)["x"])
    value["x"][0] = -1  # it is the caller's own


def joined(path: Path, lease: int, first: int = 0, members: int = 0, memory: int = MEMORY) -> BatchRing:
    ring = BatchRing(path, memory)
    ring.enter(lease, first)
    until(lambda: len(ring.members()) >= members)
    return ring


def goes_through(path: Path, lease: int, numbers: range, members: int = 0, seconds: float = 0.0, tell: Path | None = None) -> None:
    ring = joined(path, lease, numbers.start, members)

    def make(number: int) -> Any:
        time.sleep(seconds)
        return batch(number)

    for number in numbers:
        check(ring.get(number, lambda number=number: make(number)).value, number)
    if tell is not None:
        tell.write_text(" ".join(map(str, ring.member)))
    ring.leave()


def test_each_batch_is_made_once_and_the_last_one_takes_the_file_away(
    path: Path, forked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ring, "_LEAST_PATIENCE", 60.0)
    monkeypatch.setattr(batch_ring, "_BUSY", 60.0)
    pids = [forked(lambda lease=lease: goes_through(path, lease, range(80), 4, 0.002, tmp_path / f"{lease}.txt")) for lease in range(1, 5)]
    assert [code(pid) for pid in pids] == [0] * 4
    told = [batch_ring.MemberRow(*map(int, (tmp_path / f"{lease}.txt").read_text().split())) for lease in range(1, 5)]
    assert sum(member.made for member in told) == 80 and all(member.again == 0 for member in told)
    assert [member.made + member.found for member in told] == [80] * 4
    assert not path.exists()


def test_who_is_alone_keeps_nothing(path: Path) -> None:
    ring = joined(path, 1)
    for number in range(5):
        assert ring.get(number, lambda number=number: batch(number)).how == "made"
    assert path.stat().st_size < MEMORY // 10
    ring.leave()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_dies_or_stops_while_it_makes_a_batch_costs_no_other_its_own(path: Path, forked: Any, number: signal.Signals) -> None:
    def hangs() -> None:
        joined(path, 2).get(0, lambda: time.sleep(1000))

    pid = forked(hangs)
    ring = joined(path, 1, members=2)
    until(lambda: ring._being_made(0))
    os.kill(pid, number)
    begun = time.monotonic()
    found = ring.get(0, lambda: batch(0))
    assert found.how == "made" and time.monotonic() - begun < patient(10)
    check(found.value, 0)
    check(ring.get(1, lambda: batch(1)).value, 1)
    assert sorted(ring.members()) == ([1] if number == signal.SIGKILL else [1, 2])
    ring.leave()


def test_those_ahead_and_those_behind_each_share_among_themselves(path: Path, forked: Any, tmp_path: Path) -> None:
    """Two far ahead, two far behind, and a ring that holds neither way."""
    ahead = [forked(lambda lease=lease: goes_through(path, lease, range(500, 540), 4, 0.002, tmp_path / f"{lease}")) for lease in (1, 2)]
    behind = [forked(lambda lease=lease: goes_through(path, lease, range(40), 4, 0.002, tmp_path / f"{lease}")) for lease in (3, 4)]
    assert [code(pid) for pid in ahead + behind] == [0] * 4
    for pair in ((1, 2), (3, 4)):
        found = [int((tmp_path / str(lease)).read_text().split()[4]) for lease in pair]
        assert sum(found) > 0  # how many of 80 is for the scheduler of a busy host to say


def test_a_batch_that_cannot_be_made_is_everybodys_own_trouble(path: Path, forked: Any) -> None:
    def fails() -> None:
        ring = joined(path, 2, members=2)
        with pytest.raises(ValueError, match="of 2"):
            ring.get(0, lambda: (_ for _ in ()).throw(ValueError("of 2")))
        check(ring.get(1, lambda: batch(1)).value, 1)

    pid = forked(fails)
    ring = joined(path, 1)
    with pytest.raises(ValueError, match="of 1"):
        ring.get(0, lambda: (_ for _ in ()).throw(ValueError("of 1")))
    assert code(pid) == 0
    ring.leave()


def test_what_does_not_fit_is_made_by_each_and_said(path: Path, forked: Any) -> None:
    forked(lambda: (joined(path, 2), time.sleep(1000)))
    ring = joined(path, 1, members=2, memory=50_000)
    assert ring.get(0, lambda: batch(0)).how == "made"
    assert ring.trouble == "two batches of 31 KiB do not fit into 48 KiB of shared memory"
    ring.leave()


def test_one_larger_than_the_first_is_made_by_each(path: Path, forked: Any) -> None:
    forked(lambda: (joined(path, 2), time.sleep(1000)))
    ring = joined(path, 1, members=2)
    assert ring.get(0, lambda: batch(0)).how == "made"
    large = {"x": np.ones(100_000)}
    assert ring.get(1, lambda: large).value is large
    check(ring.get(2, lambda: batch(2)).value, 2)
    ring.leave()


def test_what_cannot_be_pickled_is_made_by_each_and_said(path: Path, forked: Any) -> None:
    forked(lambda: (joined(path, 2), time.sleep(1000)))
    ring = joined(path, 1, members=2)
    value = lambda: 1  # noqa: E731
    assert ring.get(0, lambda: value).value is value
    assert ring.trouble.startswith("its batches cannot be kept")
    ring.leave()


def test_there_is_no_memory(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="Not a directory"):
        BatchRing(Path("/dev/null/a.ring"), MEMORY)
    assert living(tmp_path / "absent") == []


def test_more_members_than_rows(path: Path, forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_ring, "ROWS", 2)
    for lease in (1, 2):
        forked(lambda lease=lease: (joined(path, lease), time.sleep(1000)))
    until(lambda: living(path) == [1, 2] or living(path) == [2, 1])
    ring = BatchRing(path, MEMORY)
    with pytest.raises(NoRoom, match="2 jobs use it already"):
        ring.enter(3, 0)
    ring.leave()
