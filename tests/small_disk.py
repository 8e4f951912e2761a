"""A disk that is full when a test says so: a small file system of its own, or, where nothing can be mounted, files that may not grow."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path


class SmallDisk:
    """A file system of 16 MiB for a home, with room for the copy that SQL is asked of: `fill` leaves nothing free, `free` gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def fill(self, _pid: int, leaving: int = 0) -> None:
        file = os.open(self.ballast, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(file, bytes(65536))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        finally:
            os.close(file)

    def free(self, _pid: int) -> None:
        self.ballast.unlink()


class Quota:
    """The files of a process, and of those that it then starts, may not grow, which the kernel refuses in the same calls.

    ``leaving``: by how many bytes the database's log still may.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, pid: int, leaving: int = 0) -> None:
        log = self.path / "stoker.duckdb.wal"
        size = log.stat().st_size if log.exists() else 0  # there is none after a checkpoint
        self.limit(pid, size + leaving if leaving else 0)

    def limit(self, pid: int, most: int) -> None:
        """No file grows beyond ``most`` bytes."""
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk | Quota]:
    """The disk below ``path``, an empty directory."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(path)]
    mounted = os.getuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield SmallDisk(path) if mounted else Quota(path)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
