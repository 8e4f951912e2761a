"""Directories on their way between hosts, on the daemon's disk: HOME/bundles/<digest>, and <digest>.part while one arrives."""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import Conflict, LimitExceeded, NotFound, StokerError
from ..home import Home
from ..hosts.bundles import digest_of_file, read_piece
from ..protocol import BundleKept

FREE_BYTES = 256 << 20  #: bytes of the disk reserved for the database
UNUSED_FOR = 3600.0  #: seconds for which an unnamed one is kept, as a message that names it may be on its way


@dataclass(frozen=True, slots=True)
class KeptBundles:
    """Several may be in transfer at a time, each by one thread at a time."""

    home: Home
    _locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    @property
    def folder(self) -> Path:
        return self.home.path / "bundles"

    def take(self, digest: str, offset: int, data: bytes, *, last: bool, at_most: int, what: str) -> BundleKept:
        """Keep a piece of one, unless it is there already; answers with the bytes present, where the next piece must begin.

        ``what``: its kind, for an error if it is too large.
        """
        whole, part = self.folder / digest, self.folder / f"{digest}.part"
        with self._locks[digest]:
            if whole.exists():
                whole.touch()
                return BundleKept(bytes=whole.stat().st_size, whole=True)
            there = part.stat().st_size if part.exists() else 0
            if offset == there and data:
                if there + len(data) > at_most:
                    part.unlink(missing_ok=True)
                    raise LimitExceeded(f"{what}: it is larger than {at_most / 2**20:.0f} MiB, the most that goes to another host")
                self._append(part, data)
                there += len(data)
            if last and offset + len(data) == there:
                self._finish(part, whole, digest)
                return BundleKept(bytes=there, whole=True)
            return BundleKept(bytes=there, whole=False)

    def _append(self, part: Path, data: bytes) -> None:
        try:
            self.folder.mkdir(exist_ok=True, mode=0o700)
            if shutil.disk_usage(self.folder).free < FREE_BYTES + len(data):
                raise LimitExceeded(f"the daemon's disk has less than {FREE_BYTES >> 20} MiB left: free some space in {self.home.path}")
            with part.open("ab") as file:
                file.write(data)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StokerError(f"the daemon cannot write {part}: {error.strerror}") from None

    @staticmethod
    def _finish(part: Path, whole: Path, digest: str) -> None:
        if not part.exists() or digest_of_file(part) != digest:
            part.unlink(missing_ok=True)
            raise Conflict("what has come is not what its digest says: it was changed, or damaged on its way; send it again")
        part.rename(whole)

    def read(self, digest: str, offset: int) -> bytes:
        """A piece of one. It is checked before its first piece: NotFound if it is damaged or missing."""
        whole = self.folder / digest
        with self._locks[digest]:
            try:
                if offset == 0 and digest_of_file(whole) != digest:
                    whole.unlink()
                return read_piece(whole, offset)
            except FileNotFoundError:
                raise NotFound(f"the daemon has no bundle {digest[:12]} any more, or its disk has damaged it") from None

    def clean(self, named: Collection[str]) -> None:
        """Remove those that are no longer named."""
        for path in self.folder.glob("*"):
            try:
                if path.name.removesuffix(".part") not in named and time.time() - path.stat().st_mtime > UNUSED_FOR:
                    path.unlink()
            except OSError:
                continue
