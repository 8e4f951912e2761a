"""Sends logs of this node to the daemon, for people elsewhere: requested pieces, and the end of each log when its lease ends."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path

import msgspec

from ...engine.client import Client
from ...engine.errors import LimitExceeded, NotFound, Stale, StokerError, Unreachable, UsageError
from ...engine.logfile import Place, read_log
from ...engine.protocol import LAST_LOG, LOG, LastLog, LogPiece, LogRequest
from ..lease.rundir import RunDir
from .report_tail import Acked

log = logging.getLogger("stoker.runner")

_TIMEOUT = 10.0  #: seconds
_RETRY_SECONDS = 5.0  #: seconds until a failed request is sent again
_MOST_SENT_BYTES = 1 << 20  #: bytes of a log's end that are sent
_SENT = "log-sent"  #: file in the run directory: the daemon has the end of the log
_REFUSED = (NotFound, UsageError, LimitExceeded, Stale)  #: errors that a repetition would not mend


class LogSender(threading.Thread):
    """Answers requests one by one, in a thread of its own: a slow disk must not delay the agent's polls and reports.

    ``keep``: the daemon is elsewhere and keeps the ends of logs.
    """

    def __init__(self, client: Client, home: Path, node: str, session: int, *, keep: bool = False):
        super().__init__(name="logs", daemon=True)
        self._client, self._home, self._node, self._session = client, home, node, session
        self._keep = keep
        self._wanted: queue.SimpleQueue[LogRequest | RunDir] = queue.SimpleQueue()
        self._unsent: list[RunDir] = []
        self._open = 0  #: logs whose ends are still to be sent
        self._changed = threading.Condition()

    def want(self, request: LogRequest) -> None:
        self._wanted.put(request)

    def ended(self, directory: RunDir) -> None:
        """Send the end of a lease's log, unless it was sent. The daemon knows the lease's end already."""
        if self._keep and not (directory.path / _SENT).exists():
            with self._changed:
                self._open += 1
            self._wanted.put(directory)

    def finish(self, seconds: float) -> None:
        """Wait until all ends of logs are sent, at most for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, seconds)

    def run(self) -> None:
        again = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                wanted = self._wanted.get(timeout=_RETRY_SECONDS if self._unsent else None)
            except queue.Empty:
                wanted = None
            if isinstance(wanted, LogRequest):
                self._answer(wanted)
            elif wanted is not None:
                self._send_end(wanted)
            if self._unsent and time.monotonic() >= again:
                again, unsent, self._unsent = time.monotonic() + _RETRY_SECONDS, self._unsent, []
                for directory in unsent:
                    self._send_end(directory)

    def _answer(self, request: LogRequest) -> None:
        try:
            piece = msgspec.json.encode(self._piece(request))
            try:
                self._client.post_raw(LOG, piece, timeout=_TIMEOUT)
            except Unreachable:  # sent again, as an idle connection may have been lost; the daemon takes it once
                self._client.post_raw(LOG, piece, timeout=_TIMEOUT)
        except StokerError as error:  # the client gets no answer, is told so, and asks again
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

    def _send_end(self, directory: RunDir) -> None:
        try:
            self._client.post_raw(LAST_LOG, msgspec.json.encode(self._end(directory)), timeout=_TIMEOUT)
        except _REFUSED as error:
            log.warning("the daemon does not keep the log of lease %d: %s", directory.lease, error)
        except StokerError:
            self._unsent.append(directory)
            return
        except Exception:
            log.exception("the log of lease %d was not sent", directory.lease)
        else:
            try:
                (directory.path / _SENT).touch()
            except OSError:
                pass  # then it is sent again after a restart
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _end(self, directory: RunDir) -> LastLog:
        """The last bytes of the log, from the start of a line where there is one. A rotated log is read over both files."""
        files = [directory.log.with_name(directory.log.name + ".1"), directory.log]
        texts = [_last_bytes(path) for path in files]
        data = (texts[0] + texts[1])[-_MOST_SENT_BYTES:]
        if len(data) == _MOST_SENT_BYTES and 0 <= (cut := data.find(b"\n")) < len(data) - 1:
            data = data[cut + 1 :]
        there = directory.log.stat() if directory.log.exists() else None
        return LastLog(
            node=self._node,
            session=self._session,
            job=directory.job,
            lease=directory.lease,
            node_rank=directory.node_rank,
            data=data,
            file="" if there is None else str(there.st_ino),
            begin=0 if there is None else there.st_size - len(data),
        )


def is_owed(directory: RunDir, node: str) -> bool:
    """Whether a lease of this node, whose end the daemon knows, ended in the last day and the end of its log was not sent."""
    try:
        ended = directory.path / "acked.json"
        if (directory.path / _SENT).exists() or time.time() - ended.stat().st_mtime > 86_400 or not Acked.load(directory).closed:
            return False
        return bool((directory.read("assignment.json") or {}).get("node") == node)
    except (OSError, ValueError, AttributeError):
        return False


def _last_bytes(path: Path) -> bytes:
    """The last bytes of a plain file. The job owns its directory: anything else there is not read."""
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _MOST_SENT_BYTES, 0))
        return file.read(_MOST_SENT_BYTES)
