"""Logs on other hosts, fetched through the runners there."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import format as fmt
from ..errors import Conflict, NotFound, Unreachable
from ..home import Home
from ..identity import boot_id
from ..logfile import LogPart, Place
from ..protocol import Hello, LogRequest
from .remote_requests import LOGS, RemoteRequests
from .silence import Fleet

PATIENCE = 10.0  #: seconds for a runner's answer


@dataclass(frozen=True, slots=True)
class LogSource:
    """The place of a lease's log: a row of api/log_dirs."""

    job: int
    lease: int
    run_dir: Path
    ended: bool
    node: str
    host: str
    home: str
    boot_id: str
    pid: int  #: of the runner, as is its state
    state: str

    @property
    def path(self) -> Path:
        return self.run_dir / "output.log"

    @property
    def node_rank(self) -> int:
        """From its directory's name: run-LEASE, or run-LEASE.RANK."""
        rank = self.run_dir.name.partition(".")[2]
        return int(rank) if rank.isdecimal() else 0

    def missing(self) -> NotFound:
        why = "logs are removed 30 days after the end, and a job that could not be started may have none"
        return NotFound(f"there is no log of job {self.job} any more: {self.path} is not on host {self.host} ({why})")


class RemoteLogs:
    """Reads logs on any host."""

    def __init__(self, requests: RemoteRequests, fleet: Fleet, home: Home) -> None:
        self._requests, self._fleet = requests, fleet
        self._home, self._host = home, socket.gethostname()

    def is_here(self, source: LogSource) -> bool:
        """Whether its directory is in this very home: an existing path does not prove that, as other hosts have the same names."""
        if os.path.realpath(source.home) != os.path.realpath(self._home.path):
            return False
        # A rebooted host has another boot id; but while a runner with that id serves, it is another host.
        same_boot = source.boot_id == boot_id() or source.state in ("stopped", "gone")
        return (source.host == self._host and same_boot) or self._home.is_locked_by(source.node, source.pid)

    def is_home_of(self, hello: Hello) -> bool:
        """The same for a registering runner."""
        return self.is_here(LogSource(0, 0, Path(), False, hello.node, hello.host, hello.home, hello.boot_id, hello.pid, "up"))

    async def fetch(self, source: LogSource, at: Place | None, lines: int | None) -> LogPart:
        """A piece of a log elsewhere; Conflict with its place if its runner does not send it."""
        if source.state in ("stopped", "gone", "suspect"):
            was = {"stopped": "has stopped", "gone": "was declared dead"}
            raise self._lies(source, was.get(source.state) or f"has been silent for {self._silent(source)}")

        def request(number: int) -> LogRequest:
            return LogRequest(
                number=number, job=source.job, lease=source.lease, node_rank=source.node_rank, lines=lines,
                file=None if at is None else at.file, offset=0 if at is None else at.offset,
            )  # fmt: skip

        try:
            async with asyncio.timeout(PATIENCE):
                piece = await self._requests.ask(LOGS, source.node, request)
        except TimeoutError:
            raise self._lies(source, f"does not answer, and was last heard {self._silent(source)} ago") from None
        except Unreachable:
            raise self._lies(source, "has left") from None
        if piece is None:
            raise self._lies(source, "is of a version that sends no logs")
        if piece.missing:
            raise source.missing()
        return LogPart(piece.text, Place(piece.file, piece.offset), piece.more)

    def _silent(self, source: LogSource) -> str:
        return fmt.duration(self._fleet.silence(source.node))

    def _lies(self, source: LogSource, why: str) -> Conflict:
        return Conflict(
            f"the log of job {source.job} is on host {source.host}, in {source.path}: runner {source.node} {why}; read it there"
        )


def source_of(job: int, row: dict[str, Any]) -> LogSource:
    return LogSource(job=job, **{**row, "run_dir": Path(row["run_dir"])})
