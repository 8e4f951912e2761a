"""Reading a growing log from an offset."""

from __future__ import annotations

import os
import stat
from pathlib import Path

TAIL = 64 * 1024  #: bytes given when no offset is asked for
CHUNK = 1024 * 1024


def read_tail(path: Path, offset: int | None) -> tuple[str, int]:
    """Text from ``offset`` (None: the last 64 KiB, from a line's start) and the next offset. A log that was rotated starts anew."""
    try:
        # A job owns its directory: what is no plain file (a link elsewhere, a pipe that would block) is not read.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "", offset or 0
            size = file.seek(0, 2)
            if offset is None:
                start = max(0, size - TAIL)
                file.seek(start)
                if start:
                    file.readline()
            else:
                file.seek(offset if 0 <= offset <= size else 0)
            data = file.read(CHUNK)
            return _whole_characters(data), file.tell() - _cut(data)
    except OSError:
        return "", offset or 0


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
