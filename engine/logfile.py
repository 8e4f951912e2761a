"""Reading a growing log: its last lines, and on from a place, both across rotations. Used by the daemon, and by runners for it."""

from __future__ import annotations

import bisect
import contextlib
import os
import re
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

TAIL = 64 * 1024  #: bytes returned when neither a place nor a number of lines is given
CHUNK = 1024 * 1024  #: bytes of one answer at most
_BLOCK = 64 * 1024
_LARGEST_TIMES = 8 << 20
LATEST_MOMENT = 1e11  #: a time (s since 1970) later than that of any log
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")  # ECMA-48: CSI, OSC, two-byte codes
_LOST_OUTPUT = "\n[stoker: output was lost here: the log was rotated faster than it was read]\n"


class Place(NamedTuple):
    """Where the next read begins: the file (its inode, which it keeps when it is rotated away), and the offset in it."""

    file: str
    offset: int


class LogPart(NamedTuple):
    """A part of a log, the place behind it, and whether more followed already."""

    text: str
    place: Place
    more: bool = False


_NOWHERE = Place("", 0)


class WriteTimes(NamedTuple):
    """When each part of a file was written: offsets, and the time from each of them on."""

    offsets: list[int]
    moments: list[float]

    def at(self, offset: int) -> float | None:
        index = bisect.bisect_right(self.offsets, offset) - 1
        return self.moments[index] if index >= 0 else None


def read_times(path: Path) -> WriteTimes:
    """The times kept beside a log; none where there are none."""
    found = WriteTimes([], [])
    file = _open(path.with_name(f"{path.name}.times"))
    if file is None:
        return found
    with file:
        for line in file.read(_LARGEST_TIMES).splitlines():
            with contextlib.suppress(ValueError):
                offset, moment = line.split()
                if int(offset) >= 0 and 0 <= float(moment) < LATEST_MOMENT:  # a job may write anything into its directory
                    found.offsets.append(int(offset))
                    found.moments.append(float(moment))
    return found


def since(path: Path, moment: float) -> Place | None:
    """Where the output written at ``moment`` or later begins, in the log or its former file; None: its times are not known."""
    end, known = _NOWHERE, True  # nothing has been written yet
    for log in (_former(path), path):
        times = read_times(log)
        file = _open(log)
        if file is None:
            continue
        with file:
            index = bisect.bisect_left(times.moments, moment)
            if index < len(times.moments):
                return Place(_name(file), times.offsets[index])
            end, known = Place(_name(file), _size(file)), bool(times.moments) or not _size(file)
    return end if known else None


def read_timed(path: Path, at: Place | None, lines: int | None = None) -> tuple[LogPart, list[float | None]]:
    """`read_log`, and when each line of the text was written; None where that is not known."""
    begin = at if at is not None else _tail_place(path, lines)
    piece = _read_on(path, begin)
    file = _open(path)
    name = "" if file is None else _name(file)
    if file is not None:
        file.close()
    times = read_times(path if piece.place.file == name else _former(path))
    offset = begin.offset if begin.file == piece.place.file else 0
    moments = []
    for line in piece.text.split("\n")[: piece.text.count("\n") + (not piece.text.endswith("\n"))]:
        moments.append(times.at(offset))
        offset += len(line.encode(errors="replace")) + 1
    return piece, moments


def colourless(text: str) -> str:
    """The text without the codes that colour, title or control a terminal."""
    return _COLOURS.sub("", text)


def read_log(path: Path, at: Place | None, lines: int | None = None) -> LogPart:
    """Text from ``at`` on; with None the last ``lines``, or else the last 64 KiB, from the start of a line where there is one.

    After a rotation the log is read on in its former file, ``path.1``, and then from the start of the new one; reading from the very
    beginning starts with the former file.
    """
    return _read_tail(path, lines) if at is None else _read_on(path, at)


def _former(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _read_on(path: Path, at: Place) -> LogPart:
    former = _former(path)
    if at == _NOWHERE:
        piece = _read(former, at)
        if piece.text:
            return piece._replace(more=True)
    piece = _read(path, at)
    if not at.file or piece.place.file in ("", at.file):
        return piece
    piece = _read(former, at)
    if piece.place.file != at.file:  # that file was rotated away too
        piece = _read(former, _NOWHERE)
        return piece._replace(text=_LOST_OUTPUT + piece.text, more=True)
    return piece._replace(more=True) if piece.text else _read(path, _NOWHERE)


def _open(path: Path) -> BinaryIO | None:
    """Open the file for reading. As a job owns its directory, only a plain file is read: no link elsewhere, no pipe that would block."""
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: SIM115 - closed by the caller
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None


def _name(file: BinaryIO) -> str:
    return str(os.fstat(file.fileno()).st_ino)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read(path: Path, at: Place) -> LogPart:
    """Read one file; no text, only its inode, where ``at`` is in another file."""
    file = _open(path)
    if file is None:
        return LogPart("", at)
    with file:
        name = _name(file)
        if at.file not in ("", name):
            return LogPart("", Place(name, 0))
        file.seek(at.offset if 0 <= at.offset <= _size(file) else 0)
        data = file.read(CHUNK)
        return LogPart(_whole_characters(data), Place(name, file.tell() - _cut(data)), len(data) == CHUNK)


def _read_tail(path: Path, lines: int | None) -> LogPart:
    """The last ``lines``, or else the last 64 KiB. Of overwritten lines, such as progress bars, only the last text."""
    with ExitStack() as stack:
        files = _from_tail(stack, path, lines)
        if not files:
            return LogPart("", _NOWHERE)
        data = b""
        for file in files:
            while len(data) < CHUNK and (read := file.read(CHUNK - len(data) if lines is None else CHUNK)):
                data = data + read if lines is None else _shown(data + read)
            if len(data) >= CHUNK:
                break
        return LogPart(_whole_characters(data), Place(_name(file), max(0, file.tell() - _cut(data))), len(data) >= CHUNK)


def _shown(data: bytes) -> bytes:
    return b"\n".join(line[line.rstrip(b"\r").rfind(b"\r") + 1 :] for line in data.split(b"\n"))


def _tail_place(path: Path, lines: int | None) -> Place:
    with ExitStack() as stack:
        files = _from_tail(stack, path, lines)
        return Place(_name(files[0]), files[0].tell()) if files else _NOWHERE


def _from_tail(stack: ExitStack, path: Path, lines: int | None) -> list[BinaryIO]:
    """The files that hold the last ``lines``, or else the last 64 KiB: the first one positioned there, the others at their start."""
    # In this order a rotation in between opens the same file twice, rather than leaving a gap.
    current, former = _open(path), _open(_former(path))
    for file in filter(None, (current, former)):
        stack.enter_context(file)
    if current and former and _name(current) == _name(former):
        current = None
    files = [file for file in (former, current) if file]
    if not files:
        return []
    index, offset = _last_bytes(files, TAIL) if lines is None else _last_lines(files, lines)
    files[index].seek(offset)
    for file in files[index + 1 :]:
        file.seek(0)
    return files[index:]


def _last_bytes(files: Sequence[BinaryIO], count: int) -> tuple[int, int]:
    """File and offset of the last ``count`` bytes, from the next start of a line, or of a character if all is one line."""
    for index in range(len(files) - 1, -1, -1):
        if (size := _size(files[index])) >= count:
            break
        count -= size
    else:
        return 0, 0
    start = size - count
    if start == 0:
        return index, 0
    files[index].seek(start - 1)  # from the byte before: a line may begin exactly here
    rest = files[index].read(count + 1)
    end = rest.find(b"\n")
    if 0 <= end < len(rest) - 1:
        return index, start + end
    inside = 0
    while inside < 3 and rest[1 + inside : 2 + inside] and rest[1 + inside] & 0xC0 == 0x80:
        inside += 1
    return index, start + inside


def _last_lines(files: Sequence[BinaryIO], lines: int) -> tuple[int, int]:
    """File and offset where the last ``lines`` lines begin, searched a block at a time from the end."""
    if lines <= 0:
        return len(files) - 1, _size(files[-1])
    ended = False  # whether the end of the last line, perhaps a newline, has been passed
    for index in range(len(files) - 1, -1, -1):
        end = _size(files[index])
        while end > 0:
            start = max(0, end - _BLOCK)
            files[index].seek(start)
            block = files[index].read(end - start)
            position = len(block) - (not ended and block.endswith(b"\n"))
            ended = True
            while (position := block.rfind(b"\n", 0, position)) >= 0:
                lines -= 1
                if lines == 0:
                    return index, start + position + 1
            end = start
        files[index].seek(0)
    return 0, 0


def _cut(data: bytes) -> int:
    """How many bytes at the end belong to an unfinished UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
        if byte & 0xC0 != 0x80:
            return 0
    return 0


def _whole_characters(data: bytes) -> str:
    return data[: len(data) - _cut(data)].decode(errors="replace")
