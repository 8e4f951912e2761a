"""The process of ad-hoc SQL, asked directly, without a daemon."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from stoker.engine.adhoc.desk import _late, _Process
from stoker.engine.adhoc.replica import head_of, log_of
from stoker.engine.adhoc.wire import (
    LARGEST_MESSAGE,
    Ask,
    Failed,
    Load,
    Ready,
    StatementEnded,
    decode_for_daemon,
    frame,
    pair,
    unpack_answer,
)
from stoker.engine.errors import LimitExceeded
from stoker.engine.store.changes import Change, encode
from waiting import patient


class Server:
    """One process; `ask` waits for each answer."""

    def __init__(self, database: Path, folder: Path) -> None:
        self.process = _Process(folder)
        self.process.desk.setblocking(True)
        self.process.desk.settimeout(patient(120))
        self.number = 0
        self.asked = 0
        with database.open("rb") as file:
            head = head_of(file.fileno())
        log = log_of(database)
        self._send(Load(str(database), head, log.stat().st_size if log.exists() else 0, str(folder), 1 << 30))
        assert isinstance(self.hear(), Ready)

    def _send(self, load: Load) -> None:
        self.process.feed.sendall(frame(0, msgspec.msgpack.encode(load)))

    def hear(self) -> Ready | StatementEnded | Failed:
        return decode_for_daemon(self.process.desk.recv(LARGEST_MESSAGE))

    def commit(self, *changes: Change) -> None:
        self.number += 1
        self.process.feed.sendall(frame(self.number, encode(changes)))

    def ask(self, text: str, format: str = "json", *, rows: int = 10_000, seconds: float = 30.0, memory: int = 1 << 30) -> bytes:
        self.asked += 1
        until = time.monotonic() + seconds
        ask = Ask(self.asked, self.number, text, format, rows, seconds, until, memory)
        ours, theirs = pair(socket.SOCK_STREAM)
        with ours:
            with theirs:
                socket.send_fds(self.process.desk, [msgspec.msgpack.encode(ask)], [theirs.fileno()])
            received = b"".join(iter(lambda: ours.recv(1 << 20), b""))
        ended = self.hear()
        assert isinstance(ended, StatementEnded) and ended.id == ask.id
        if ended.signal == signal.SIGALRM:
            raise LimitExceeded(_late(seconds))
        answer = unpack_answer(received)
        if answer is None:
            raise LimitExceeded(f"ended by signal {ended.signal}")
        return answer[1]

    def rows(self, text: str, **limits: Any) -> list[list[Any]]:
        rows: list[list[Any]] = json.loads(self.ask(text, **limits))["rows"]
        return rows


@contextlib.contextmanager
def serving(database: Path, folder: Path) -> Iterator[Server]:
    """A server of a copy of the file, which nobody may write to meanwhile."""
    server = Server(database, folder)
    try:
        yield server
    finally:
        server.process.end()


def changed(op: Any, table: str, rows: Sequence[dict[str, Any]], *keys: str) -> Change:
    columns = tuple(rows[0])
    return Change(op, table, columns, [[row[column] for row in rows] for column in columns], keys)
