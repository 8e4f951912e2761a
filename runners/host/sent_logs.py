"""Sends pieces of logs of this node to the daemon, for people on other hosts."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

import msgspec

from ...engine.client import Client
from ...engine.errors import StokerError
from ...engine.logfile import Place, read_log
from ...engine.protocol import LOG, LogPiece, LogRequest
from .rundir import RunDir

log = logging.getLogger("stoker.runner")

_TIMEOUT = 10.0  #: seconds


class LogSender(threading.Thread):
    """Answers requests one after the other. A thread of its own: a slow disk must not keep the agent from its polls and reports."""

    def __init__(self, client: Client, home: Path, node: str, session: int):
        super().__init__(name="logs", daemon=True)
        self._client, self._home, self._node, self._session = client, home, node, session
        self._wanted: queue.SimpleQueue[LogRequest] = queue.SimpleQueue()

    def want(self, request: LogRequest) -> None:
        self._wanted.put(request)

    def run(self) -> None:
        while True:
            request = self._wanted.get()
            try:
                self._client.post_raw(LOG, msgspec.json.encode(self._piece(request)), timeout=_TIMEOUT)
            except StokerError as error:  # who asked is told that nobody answers, and asks again
                log.warning("a piece of the log of job %d was not sent: %s", request.job, error)
            except Exception:
                log.exception("a piece of the log of job %d was not sent", request.job)

    def _piece(self, request: LogRequest) -> LogPiece:
        directory = RunDir(self._home, request.job, request.lease, request.node_rank)
        at = None if request.file is None else Place(request.file, request.offset)
        found = read_log(directory.log, at, request.lines)
        return LogPiece(
            node=self._node,
            session=self._session,
            number=request.number,
            text=found.text,
            file=found.place.file,
            offset=found.place.offset,
            more=found.more,
            missing=not found.text and not directory.path.is_dir(),
        )
