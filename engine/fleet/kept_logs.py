"""The ends of logs of other hosts: sent by their runners when a lease ends, for the time when the runner is gone.

HOME/kept-logs/<job>/<lease>.<node_rank>/output.log     the newest 1 MiB at most
                                         place.json     its file on its host, and its offset there
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import LimitExceeded, NotFound
from ..home import Home
from ..logfile import LogPart, Place, read_log
from ..protocol import LastLog
from ..store.store import Store

MOST_KEPT_BYTES = 1 << 20  #: bytes kept of one
KEPT_FOR = 30 * 86_400.0  #: seconds, as on runners


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """On the disk of the daemon."""

    home: Home
    store: Store

    def directory(self, job: int, lease: int, node_rank: int) -> Path:
        return self.home.path / "kept-logs" / str(job) / f"{lease}.{node_rank}"

    def take(self, sent: LastLog) -> None:
        """Keep one; NotFound if its runner had no part of that lease."""
        if len(sent.data) > MOST_KEPT_BYTES:
            raise LimitExceeded(f"data: a log of {len(sent.data)} bytes; the last {MOST_KEPT_BYTES} are kept")
        if not self.store.rows("store/part_of_lease", sent.lease, sent.node, sent.job):
            raise NotFound(f"lease {sent.lease} of job {sent.job} had no part on runner {sent.node}")
        target = self.directory(sent.job, sent.lease, sent.node_rank)
        made = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
        made.mkdir(parents=True, mode=0o700)
        (made / "output.log").write_bytes(sent.data)
        (made / "place.json").write_text(json.dumps({"file": sent.file, "begin": sent.begin}))
        shutil.rmtree(target, ignore_errors=True)  # sent again after a lost answer
        made.replace(target)

    def read(self, job: int, lease: int, node_rank: int, at: Place | None, lines: int | None) -> LogPart | None:
        """A piece of one, with its offsets on its host, so that a reader that began there may continue here; None: it is not kept."""
        directory = self.directory(job, lease, node_rank)
        try:
            place = json.loads((directory / "place.json").read_text())
        except (OSError, ValueError):
            return None
        begin = int(place["begin"])
        here = None if at is None else Place("", max(at.offset - begin, 0) if at.file == place["file"] else 0)
        piece = read_log(directory / "output.log", here, lines)
        return piece._replace(place=Place(place["file"], piece.place.offset + begin))

    def clean(self) -> None:
        """Remove old ones, and half-made ones of a crash."""
        for directory in (self.home.path / "kept-logs").glob("*/*"):
            try:
                if time.time() - directory.stat().st_mtime > (3600.0 if directory.name.startswith(".") else KEPT_FOR):
                    shutil.rmtree(directory, ignore_errors=True)
                    directory.parent.rmdir()  # of a job that has no more of them
            except OSError:
                continue
