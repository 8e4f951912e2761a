"""Room on the disk that is kept for writes which free some: a job that fills the disk can still be stopped, durably.

The reserve is a file beside the database with allocated blocks. A commit that must not be refused is tried again with some of them: they
are allocated to the database's log at once, beyond its end, as the job that fills the disk could take them first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from io import FileIO
from pathlib import Path

LARGEST_RESERVE = 32 << 20  #: bytes; the log of a database, which a start writes into it, grows to half of that
PARTS_OF_SMALL_DISK = 16  #: on a small disk the reserve is at most one part in so many
STEP = 64 << 10  #: bytes that are given up first; if they are not enough, twice as many follow
KEEP_SIZE = 1  #: FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)


class Reserve:
    """`give` is called by the writer of the database, `make` by the disk watch."""

    def __init__(self, home: Path) -> None:
        self.path = home / "reserve"
        self._lock = threading.Lock()
        self._step = STEP

    @property
    def size(self) -> int:
        """Bytes that are kept now."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def wanted(self) -> int:
        return min(LARGEST_RESERVE, shutil.disk_usage(self.path.parent).total // PARTS_OF_SMALL_DISK)

    @property
    def whole(self) -> bool:
        return self.size >= self.wanted

    def make(self) -> None:
        """Refill the reserve if there is room for twice the missing bytes; else leave it as it is."""
        with self._lock:
            size, wanted = self.size, self.wanted
            if size >= wanted or shutil.disk_usage(self.path.parent).free < 2 * (wanted - size):
                return
            with contextlib.suppress(OSError), self._open() as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, wanted)
                except OSError:  # another process was faster, or files may not grow
                    os.ftruncate(file.fileno(), size)
                    raise

    def give(self, log: Path, least: int = 0) -> bool:
        """Give up some of the reserve, for ``log`` if that exists; twice as much each time, until `enough`. False: it is used up."""
        with self._lock:
            size, step = self.size, max(self._step, least)
            if not size:
                return False
            self._step *= 2
            try:
                with self._open() as file:
                    os.ftruncate(file.fileno(), max(size - step, 0))
                    os.fsync(file.fileno())  # some file systems free the blocks only then
                    _lengthen(log, min(step, size))
            except OSError:
                return False
            return True

    def enough(self) -> None:
        """A commit went through."""
        self._step = STEP

    def _open(self) -> FileIO:
        return FileIO(self.path, "r+" if self.path.exists() else "x+")


def _lengthen(log: Path, count: int) -> None:
    """Allocate blocks beyond the end of ``log``, whose size stays. Where the file system can't, another process may take them."""
    with contextlib.suppress(OSError), open(log, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        _libc.fallocate(file.fileno(), KEEP_SIZE, ctypes.c_longlong(size), ctypes.c_longlong(count))
