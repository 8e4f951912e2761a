"""Room on the disk that is kept for what frees some: a job that fills the disk can still be stopped, and that is durable as ever.

A file beside the database with real blocks. A commit that must not be refused is tried again with some of them: they are given to the
database's log at once, beyond its end, as the job that fills the disk writes too and would have them first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from io import FileIO
from pathlib import Path

LARGEST_RESERVE = 32 << 20  #: bytes; the log of a database, which a start folds into it, grows to half of that
PARTS_OF_SMALL_DISK = 16  #: of a small disk no more than this part
STEP = 64 << 10  #: bytes that are given up at first; what is not enough is followed by twice as much
KEEP_SIZE = 1  #: FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)


class Reserve:
    """`give` is called by the writer of the database, `make` by whoever looks at the disk."""

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
        """Make it whole if there is room for twice what it lacks; else it stays as it is."""
        with self._lock:
            size, wanted = self.size, self.wanted
            if size >= wanted or shutil.disk_usage(self.path.parent).free < 2 * (wanted - size):
                return
            with contextlib.suppress(OSError), self._open() as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, wanted)
                except OSError:  # somebody was faster, or files may not grow
                    os.ftruncate(file.fileno(), size)
                    raise

    def give(self, log: Path, least: int = 0) -> bool:
        """Give some of it up, for ``log`` if that is there; twice as much each time, until it was `enough`. False: nothing is left."""
        with self._lock:
            size, step = self.size, max(self._step, least)
            if not size:
                return False
            self._step *= 2
            try:
                with self._open() as file:
                    os.ftruncate(file.fileno(), max(size - step, 0))
                    os.fsync(file.fileno())  # some file systems have the blocks free only then
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
    """Keep blocks for what is appended to ``log``, whose size stays. Where the file system can't, whoever writes first has them."""
    with contextlib.suppress(OSError), open(log, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        _libc.fallocate(file.fileno(), KEEP_SIZE, ctypes.c_longlong(size), ctypes.c_longlong(count))
