"""Logs that lie on other hosts, fetched through the runners there: asked for in the answers of their polls, and sent by them."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .. import format as fmt
from ..errors import Conflict, LimitExceeded, NotFound
from ..home import Home
from ..identity import boot_id
from ..logfile import Piece, Place
from ..protocol import Assignments, Hello, LogPiece, LogRequest, Poll
from .board import Board
from .silence import Fleet

PATIENCE = 10.0  #: seconds that a runner gets to answer
MOST_WAITING = 100  #: requests that may wait for one runner


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where the log of a lease lies: a row of api/log_dirs."""

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
        """As its directory says: run-LEASE, or run-LEASE.RANK."""
        rank = self.run_dir.name.partition(".")[2]
        return int(rank) if rank.isdecimal() else 0

    def missing(self) -> NotFound:
        why = "logs are removed 30 days after the end, and a job that could not be started may have none"
        return NotFound(f"there is no log of job {self.job} any more: {self.path} is not on host {self.host} ({why})")


@dataclass(slots=True)
class _Asked:
    request: LogRequest
    answer: asyncio.Future[LogPiece | None]  #: None: its runner cannot send logs
    told: bool = field(default=False)


class RemoteLogs:
    """What is wanted of runners and has not been answered, by runner. On the event loop only."""

    def __init__(self, board: Board, fleet: Fleet, home: Home) -> None:
        self._board, self._fleet = board, fleet
        self._home, self._host = home, socket.gethostname()
        self._asked: dict[str, dict[int, _Asked]] = {}
        self._numbers = itertools.count(1)

    def is_here(self, source: LogSource) -> bool:
        """Whether its directory is in this very home: that a path exists here does not tell, another host has the same names."""
        if os.path.realpath(source.home) != os.path.realpath(self._home.path):
            return False
        # A host that was started again has another boot; as long as a runner of another boot serves, it is another host.
        same_boot = source.boot_id == boot_id() or source.state in ("stopped", "gone")
        return (source.host == self._host and same_boot) or self._home.is_locked_by(source.node, source.pid)

    def is_home_of(self, hello: Hello) -> bool:
        """The same of a runner that registers."""
        return self.is_here(LogSource(0, 0, Path(), False, hello.node, hello.host, hello.home, hello.boot_id, hello.pid, "up"))

    async def fetch(self, source: LogSource, at: Place | None, lines: int | None) -> Piece:
        """Some of a log that lies elsewhere; Conflict says where, when its runner does not send it."""
        if source.state in ("stopped", "gone", "suspect"):
            was = {"stopped": "has stopped", "gone": "was declared dead"}
            raise self._lies(source, was.get(source.state) or f"has been silent for {self._silent(source)}")
        asked = self._asked.setdefault(source.node, {})
        if len(asked) >= MOST_WAITING:
            raise LimitExceeded(f"{MOST_WAITING} readers of logs wait for runner {source.node} already: try again later")
        request = LogRequest(
            number=next(self._numbers), job=source.job, lease=source.lease, node_rank=source.node_rank, lines=lines,
            file=None if at is None else at.file, offset=0 if at is None else at.offset,
        )  # fmt: skip
        asked[request.number] = one = _Asked(request, asyncio.get_running_loop().create_future())
        self._board.wake(source.node)
        try:
            piece = await asyncio.wait_for(one.answer, PATIENCE)
        except TimeoutError:
            raise self._lies(source, f"does not answer, and was last heard {self._silent(source)} ago") from None
        finally:
            del asked[request.number]
        if piece is None:
            raise self._lies(source, "is of a version that sends no logs")
        if piece.missing:
            raise source.missing()
        return Piece(piece.text, Place(piece.file, piece.offset), piece.more)

    def _silent(self, source: LogSource) -> str:
        return fmt.duration(self._fleet.silence(source.node))

    def _lies(self, source: LogSource, why: str) -> Conflict:
        return Conflict(
            f"the log of job {source.job} is on host {source.host}, in {source.path}: runner {source.node} {why}; read it there"
        )

    def waiting(self, node: str) -> bool:
        """Whether there is something to tell a runner."""
        return any(not one.told for one in self._asked.get(node, {}).values())

    def hand_out(self, poll: Poll, answer: Assignments) -> Assignments:
        """The answer to a poll, with the logs that are wanted of the runner."""
        fresh = [one for one in self._asked.get(poll.node, {}).values() if not one.told]
        for one in fresh:
            one.told = True
            if not poll.sends_logs and not one.answer.done():
                one.answer.set_result(None)
        return msgspec.structs.replace(answer, logs=[one.request for one in fresh]) if fresh and poll.sends_logs else answer

    def take(self, piece: LogPiece) -> None:
        """An answer; whoever asked may have gone."""
        one = self._asked.get(piece.node, {}).get(piece.number)
        if one is not None and not one.answer.done():
            one.answer.set_result(piece)


def source_of(job: int, row: dict[str, Any]) -> LogSource:
    return LogSource(job=job, **{**row, "run_dir": Path(row["run_dir"])})
