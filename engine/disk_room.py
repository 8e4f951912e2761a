"""Free room on the home's disk, and the largest directories. The status, the event and its hook, and `stoker doctor` use one threshold."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from . import format as fmt

LEAST_FREE_BYTES = 10 << 30  #: with fewer bytes free the disk runs low; on a small disk with less than a twentieth
SMALL_DISK_PART = 20
BLOCK_BYTES = 256 * 1024  #: a block of the database, the least that its next checkpoint takes: with less free, commits are refused
MOST_SECONDS = 5.0  #: longest time to measure the home; the rest is left out

State = Literal["enough", "low", "full"]


class Room(NamedTuple):
    free: int  #: bytes that this user may write
    total: int

    @property
    def state(self) -> State:
        low = min(LEAST_FREE_BYTES, self.total // SMALL_DISK_PART)
        return "full" if self.free < BLOCK_BYTES else "low" if self.free < low else "enough"

    @property
    def words(self) -> str:
        return f"{fmt.size(self.free)} of {fmt.size(self.total)} are free"


def room(home: Path) -> Room:
    """The room on the disk of a home."""
    usage = shutil.disk_usage(home)
    return Room(usage.free, usage.total)


class Taker(NamedTuple):
    """A user of room under a home: the directory of a job, another directory, or the database."""

    path: str  #: relative to the home
    bytes: int  #: on the disk

    @property
    def job(self) -> int | None:
        folder, _, number = self.path.partition("/")
        return int(number) if folder == "jobs" and number.isdecimal() else None


def largest(home: Path, most: int = 3, seconds: float = MOST_SECONDS) -> list[Taker]:
    """The largest directories and files under a home, measured now; each job's directory counts alone."""
    takes: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()  # a file with several names counts once
    end = time.monotonic() + seconds
    for entry in _entries(home):
        if entry.is_dir(follow_symlinks=False):
            for part in _entries(entry.path) if entry.name == "jobs" else [entry]:
                takes[part.path] += _size(part, seen, end)
        elif entry.name != "reserve":  # the database with its log
            takes[entry.path.removesuffix(".wal")] += _size(entry, seen, end)
    return [Taker(os.path.relpath(path, home), size) for path, size in takes.most_common(most) if size]


def takes(folder: Path, seconds: float = MOST_SECONDS) -> int:
    """Bytes on the disk of all files below a directory, as far as they were measured in time; 0 where it does not exist."""
    seen: set[tuple[int, int]] = set()
    end = time.monotonic() + seconds
    return sum(_size(entry, seen, end) for entry in _entries(folder))


def _size(entry: os.DirEntry[str], seen: set[tuple[int, int]], end: float) -> int:
    """Bytes of an entry with all below it."""
    total, left = 0, [entry]
    while left and time.monotonic() < end:
        one = left.pop()
        with contextlib.suppress(OSError):  # has gone meanwhile
            if one.is_dir(follow_symlinks=False):
                left += _entries(one.path)
                continue
            found = one.stat(follow_symlinks=False)
            if (known := (found.st_dev, found.st_ino)) not in seen:
                total += found.st_blocks * 512
            if found.st_nlink > 1:
                seen.add(known)
    return total


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        yield from found


def told(takers: Sequence[Mapping[str, Any]]) -> str:
    """The largest directories, as the API lists them, in words."""
    parts = [
        f"{row['path'] if row['job'] is None else ' '.join(filter(None, ('job', str(row['job']), row['name'])))} {fmt.size(row['bytes'])}"
        for row in takers
    ]
    return f"the most below it: {', '.join(parts)}" if parts else ""
