"""The log of a lease: all output of all ranks, within a size limit."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import BinaryIO

LOG_LIMIT = 64 << 20  #: bytes of one file; one rotated file is kept beside it
TIMES_EACH = 1.0  #: seconds between two entries of the file of times, at first
MOST_TIMES = 10_000  #: entries after which times are written less often: the longer a lease, the coarser its times


def times_of(log: Path) -> Path:
    """The file of times beside a log; `engine.logfile` reads it by the same name."""
    return log.with_name(f"{log.name}.times")


class RotatingLog:
    """Appends to ``path``; at the limit it becomes ``path.1`` (in place of the former one) and a new file begins.

    A full disk must not end a training run: output that cannot be written is dropped, and a line says so once writing works again.
    The file ``path`` with the suffix .times has lines of an offset, and the time at which the output behind it was written.
    """

    def __init__(self, path: Path, limit: int = LOG_LIMIT, keep: int = 64 << 10):
        self.path, self.limit = path, limit
        self._keep = keep
        self._last = b""
        self._dropped = 0
        self._file: BinaryIO | None = None
        self._size = 0
        self._began = self._timed = float("-inf")  #: monotonic times of the first and the last entry

    def write(self, data: bytes) -> None:
        self._last = (self._last + data)[-self._keep :]
        if self._dropped:
            data = f"\n[stoker: {self._dropped} bytes of output were lost here: the disk was full]\n".encode() + data
        try:
            while data:
                data = data[self._append(data) :]
        except OSError:
            self._dropped += len(data)
        else:
            self._dropped = 0

    def _append(self, data: bytes) -> int:
        """Write what fits before the next rotation; returns the number of bytes written."""
        if self._file is None:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._size = self._file.tell()
            self._timed = float("-inf")  # a file begins with an entry
        elif self._size >= self.limit:
            self._file.close()
            self._file = None
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            with contextlib.suppress(OSError):
                times_of(self.path).replace(times_of(self.path.with_name(self.path.name + ".1")))
            return 0
        self._note_time()
        written = self._file.write(data[: max(1, self.limit - self._size)])
        self._size += written
        return written

    def _note_time(self) -> None:
        """Note when the following output is written. A failure to do so must not lose output."""
        now = time.monotonic()
        self._began = now if self._began == float("-inf") else self._began
        if now - self._timed < max(TIMES_EACH, (now - self._began) / MOST_TIMES):
            return
        with contextlib.suppress(OSError), open(times_of(self.path), "a") as file:
            file.write(f"{self._size} {time.time():.2f}\n")
            self._timed = now

    def tail(self) -> bytes:
        """The last output, including output that could not be written."""
        return self._last

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
