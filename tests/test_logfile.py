"""Following a log that is rotated under the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from stoker.engine.logfile import CHUNK, Place, read_tail
from stoker.runners.logs import RotatingLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def read_all(path: Path, at: Place | None) -> tuple[str, Place | None]:
    """What a follower prints until there is nothing new."""
    seen = ""
    while True:
        text, at = read_tail(path, at)
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
    text, at = read_tail(path, None)
    assert text == ""
    path.write_text("x" * (CHUNK + 10))
    assert read_all(path, at) == ("x" * (CHUNK + 10), Place(str(path.stat().st_ino), CHUNK + 10))
