"""Reading a growing log from an offset, also over its rotations."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

TAIL = 64 * 1024  #: bytes given when no offset is asked for
CHUNK = 1024 * 1024
_LOST = "\n[stoker: output was lost here: the log was rotated faster than it was read]\n"


class Place(NamedTuple):
    """Where the next read begins: which file (its inode; it keeps that when it is rotated away), and where in it."""

    file: str
    offset: int


_NOWHERE = Place("", 0)


def read_tail(path: Path, at: Place | None) -> tuple[str, Place]:
    """Text from ``at`` (None: the last 64 KiB, from a line's start), and the place behind it.

    A log that was rotated since is read on in its former file, ``path.1``, and then from the start of the new one; from its very
    beginning it is read in the former file first.
    """
    former = path.with_name(path.name + ".1")
    if at == _NOWHERE:
        text, place = _read(former, at)
        if text:
            return text, place
    text, place = _read(path, at)
    if at is None or not at.file or place.file in ("", at.file):
        return text, place
    text, place = _read(former, at)
    if place.file != at.file:  # rotated away as well
        text, place = _read(former, Place("", 0))
        return _LOST + text, place
    return (text, place) if text else _read(path, Place("", 0))


def _read(path: Path, at: Place | None) -> tuple[str, Place]:
    """The same of one file; nothing, but its name, where ``at`` means another one."""
    try:
        # A job owns its directory: what is no plain file (a link elsewhere, a pipe that would block) is not read.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            name = str(found.st_ino)
            if not stat.S_ISREG(found.st_mode):
                return "", at or _NOWHERE
            if at is None:
                start = max(0, found.st_size - TAIL)
                file.seek(start)
                if start:
                    file.readline()
            elif at.file in ("", name):
                file.seek(at.offset if 0 <= at.offset <= found.st_size else 0)
            else:
                return "", Place(name, 0)
            data = file.read(CHUNK)
            return _whole_characters(data), Place(name, file.tell() - _cut(data))
    except OSError:
        return "", at or _NOWHERE


def _cut(data: bytes) -> int:
    """Bytes at the end that begin a UTF-8 character that is not all there yet."""
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
