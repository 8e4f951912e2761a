"""Following a log that is rotated under the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.logfile import CHUNK, TAIL, LogPart, Place, read_log, read_timed, read_times, since
from stoker.runners.lease import lease_log
from stoker.runners.lease.lease_log import RotatingLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def read_all(path: Path, at: Place | None) -> tuple[str, Place | None]:
    """What a follower prints until there is nothing new."""
    seen = ""
    while True:
        text, at, _ = read_log(path, at)
        if not text:
            return seen, at
        seen += text


@pytest.mark.parametrize("first", [3, 10, 17])
def test_a_follower_misses_nothing_when_the_log_is_rotated(path: Path, first: int) -> None:
    """It used to go on in the new file, at the offset that it had in the old one, or at its start."""
    lines = "".join(f"line {number}\n" for number in range(40))
    log = RotatingLog(path, limit=200)
    log.write(lines[:first].encode())
    seen, at = read_all(path, None)
    log.write(lines[first:].encode())
    assert path.with_name("output.log.1").stat().st_size == 200
    rest, _ = read_all(path, at)
    assert seen + rest == lines
    log.close()


def test_what_was_rotated_away_before_it_was_read_is_said_to_be_lost(path: Path) -> None:
    log = RotatingLog(path, limit=20)
    log.write(b"begin\n")
    seen, at = read_all(path, None)
    held = path.open()  # so that no later file is given its inode
    log.write("".join(f"{number:04}\n" for number in range(20)).encode())
    rest, _ = read_all(path, at)
    assert seen == "begin\n" and rest.startswith("\n[stoker: output was lost here") and rest.endswith("0018\n0019\n")
    held.close()
    log.close()


def test_a_log_that_was_rotated_before_it_was_first_read_is_read_from_its_beginning(path: Path) -> None:
    """As that of a later lease of a job, which a follower comes to when the earlier one has been read to its end."""
    lines = "".join(f"line {number}\n" for number in range(40))
    log = RotatingLog(path, limit=200)
    log.write(lines.encode())
    assert read_all(path, Place("", 0))[0] == lines
    log.close()


def test_a_log_is_followed_from_before_its_first_line(path: Path) -> None:
    text, at, _ = read_log(path, None)
    assert text == ""
    path.write_text("x" * (CHUNK + 10))
    assert read_all(path, at) == ("x" * (CHUNK + 10), Place(str(path.stat().st_ino), CHUNK + 10))


def last(path: Path, lines: int | None = None) -> str:
    """What `stoker logs` prints: on from the first piece as long as there is more already."""
    piece = read_log(path, None, lines)
    text = piece.text
    while piece.more:
        piece = read_log(path, piece.place)
        text += piece.text
    return text


def test_the_end_of_a_log_is_put_together_over_a_rotation(path: Path) -> None:
    """It used to be what stood in the new file, be it 4 bytes."""
    text = "".join(f"line {number}\n" for number in range(20_000))
    log = RotatingLog(path, limit=len(text) - 4)
    log.write(text.encode())
    log.close()
    assert path.stat().st_size == 4
    assert last(path).endswith("line 19998\nline 19999\n") and TAIL - 20 < len(last(path)) <= TAIL
    assert last(path, 3) == "line 19997\nline 19998\nline 19999\n"
    assert last(path, 19_999) == text.removeprefix("line 0\n")


def test_a_last_line_without_an_end_is_shown(path: Path) -> None:
    """Of a line longer than the tail nothing was shown."""
    path.write_bytes(b"first\n" + "é".encode() * (3 * CHUNK))
    assert last(path) == "é" * (TAIL // 2)
    assert last(path, 1) == "é" * (3 * CHUNK)
    path.write_bytes(b"x" * (TAIL + 5) + b"\n")
    assert last(path) == "x" * (TAIL - 1) + "\n"


@pytest.mark.parametrize("gone", ["output.log", "output.log.1"])
def test_one_of_the_two_files_is_enough(path: Path, gone: str) -> None:
    """As in the moment between a rotation and the next line."""
    log = RotatingLog(path, limit=10)
    log.write(b"one\ntwo\n3\nfour\n")
    log.close()
    path.with_name(gone).unlink()
    assert last(path, 2) == ("two\n3\n" if gone == "output.log" else "four\n")


@given(text=st.text("ab\né", max_size=60), limit=st.integers(1, 40), lines=st.integers(0, 9))
def test_the_last_lines_are_those_that_were_written(tmp_path_factory: pytest.TempPathFactory, text: str, limit: int, lines: int) -> None:
    path = tmp_path_factory.mktemp("log") / "output.log"
    log = RotatingLog(path, limit=limit)
    log.write(text.encode())
    log.close()
    former = path.with_name("output.log.1")
    kept = (former.read_bytes() if former.exists() else b"") + (path.read_bytes() if path.exists() else b"")
    wanted = b"".join(kept.splitlines(keepends=True)[-lines:]) if lines else b""
    found = read_log(path, None, lines)
    assert found.text == wanted[: len(wanted) - _unfinished(wanted)].decode(errors="replace")
    if wanted and not _unfinished(wanted):
        assert read_log(path, found.place) == LogPart("", found.place)


def _unfinished(data: bytes) -> int:
    return int(data.endswith("é".encode()[:1]))


def test_the_last_lines_show_what_a_progress_bar_wrote_last(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    bar = b"".join(b"\r%6d of 200000 \xe2\x96\x88" % step for step in range(200_000))
    path.write_bytes(b"one\ntwo\r\n" + bar + b"\nlast\n")
    piece = read_log(path, None, lines=3)
    assert piece.text == "two\r\n199999 of 200000 █\nlast\n"
    assert (piece.more, piece.place.offset) == (False, path.stat().st_size)
    path.write_bytes(bar + b"\r")
    assert read_log(path, None, lines=1).text == "199999 of 200000 █\r"


def test_times_of_lines_are_kept_over_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(lease_log.time, "time", lambda: clock[0])
    monkeypatch.setattr(lease_log.time, "monotonic", lambda: clock[0])
    path = tmp_path / "output.log"
    log = lease_log.RotatingLog(path, limit=20)
    for number in range(4):  # seven bytes each: the third goes over the limit
        log.write(f"line {number}\n".encode())
        clock[0] += 10
    log.close()
    piece, times = read_timed(path, Place("", 0))
    rest, later = read_timed(path, piece.place)
    assert (piece.text + rest.text, piece.more) == ("line 0\nline 1\nline 2\nline 3\n", True)
    assert times[:2] == [1000.0, 1010.0] and later[-1] == 1030.0 and None not in times + later
    assert piece.text.endswith(read_log(path, since(path, 1010.0)).text) and read_log(path, since(path, 1010.0)).text.startswith("line 1")
    assert read_log(path, since(path, 1025.0)).text == "line 3\n"
    assert since(path, 2000.0) == Place(rest.place.file, path.stat().st_size)
    assert since(tmp_path / "none", 5.0) == Place("", 0)
    (tmp_path / "old.log").write_text("of before times were kept\n")
    assert since(tmp_path / "old.log", 5.0) is None and read_timed(tmp_path / "old.log", None)[1] == [None]


def test_times_that_a_job_has_written_itself_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("one\ntwo\n")
    (tmp_path / "output.log.times").write_text("-5 1.0\n0 nan\n0 inf\n0 1e300\n0 -1\n0 7.0\nx\n4 8.0 9\n4 8.0\n")
    assert read_times(tmp_path / "output.log") == ([0, 4], [7.0, 8.0])


def test_the_older_a_log_the_more_rarely_its_times_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(lease_log.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(lease_log, "MOST_TIMES", 10)
    log = lease_log.RotatingLog(tmp_path / "output.log")
    for _ in range(2000):
        log.write(b"x\n")
        clock[0] += 1
    log.close()
    assert 20 < len(read_times(tmp_path / "output.log").offsets) < 100
