"""The process of ad-hoc SQL: keeps a copy of the database, and forks for each statement.

    python -m stoker.engine.adhoc.server FEED DESK       (the numbers of two inherited sockets: `wire.py`)

A fork sees the copy as of that moment, shares its memory, can be killed at any time, and can harm only itself. For
that, this process has one thread. It ends with its daemon.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .allowed import guard
from .answering import answer_and_exit
from .replica import Moved, Replica, copy_of, log_of
from .wire import LARGEST_MESSAGE, Ask, Drop, Failed, Load, Ready, StatementEnded, ToDaemon, decode_for_server, frames

COMMIT_LAG_SECONDS = 0.9  #: seconds after which a commit is applied even without a question
SETTLE_BYTES = 16 << 20  #: bytes of changes in memory that are written to the file when no statement runs
MUST_SETTLE = 256 << 20  #: bytes from which on statements wait until they are written


@dataclass(frozen=True, slots=True)
class _Running:
    ask: Ask
    pid: int
    end: int  #: descriptor that becomes readable when the process ends
    folder: Path


class Server:
    def __init__(self, feed: socket.socket, desk: socket.socket) -> None:
        self._feed = feed
        self._desk = desk
        self._received = bytearray()
        self._waiting: deque[tuple[Ask, socket.socket]] = deque()
        self._running: dict[int, _Running] = {}
        self._replica: Replica | None = None
        self._folder = Path()
        self._heard = 0.0  #: arrival of the oldest commit that is not applied
        self._selector = selectors.DefaultSelector()
        self._selector.register(feed, selectors.EVENT_READ, self._read_feed)
        self._selector.register(desk, selectors.EVENT_READ, self._read_desk)

    def run(self) -> None:
        """Serve until the daemon is gone."""
        while True:
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._work()

    def _pause(self) -> float | None:
        """Seconds until the next work without a question; None: there is none."""
        if self._replica is None or not self._replica.behind:
            return None
        return max(0.0, self._heard + COMMIT_LAG_SECONDS - time.monotonic())

    def _read_feed(self) -> None:
        received = self._feed.recv(1 << 20)
        if not received:
            sys.exit(0)  # the daemon has ended, and running statements end with this process
        self._received += received
        for number, body in frames(self._received):
            if self._replica is None:
                self._replica = self._load(msgspec.msgpack.decode(body, type=Load), number)
                continue
            if not self._replica.behind:
                self._heard = time.monotonic()
            self._replica.take(number, body)

    def _load(self, load: Load, number: int) -> Replica:
        self._folder = Path(load.folder)
        copy = self._folder / "copy.duckdb"
        if load.head:
            copy_of(Path(load.database), load.head, load.logged, copy)
        else:
            Path(load.database).replace(copy)
            if load.logged:
                log_of(Path(load.database)).replace(log_of(copy))
        replica = Replica(copy, number, load.memory)
        self._tell(Ready())
        return replica

    def _read_desk(self) -> None:
        body, descriptors, _, _ = socket.recv_fds(self._desk, LARGEST_MESSAGE, 1)
        if not body:
            sys.exit(0)
        message = decode_for_server(body)
        if isinstance(message, Drop):
            self._drop(message.id)
        else:
            self._waiting.append((message, socket.socket(fileno=descriptors[0])))

    def _drop(self, number: int) -> None:
        for running in self._running.values():
            if running.ask.id == number:
                os.kill(running.pid, signal.SIGKILL)
        for entry in [entry for entry in self._waiting if entry[0].id == number]:
            self._waiting.remove(entry)
            entry[1].close()
            self._tell(StatementEnded(number, signal.SIGKILL))  # the end of each question is reported

    def _work(self) -> None:
        replica = self._replica
        if replica is None:
            return
        if replica.behind and (self._waiting or time.monotonic() >= self._heard + COMMIT_LAG_SECONDS):
            replica.catch_up()
        if replica.unsettled > SETTLE_BYTES and not self._running:
            replica.settle()
        while self._waiting and self._waiting[0][0].after <= replica.number and replica.unsettled <= MUST_SETTLE:
            self._start(replica, *self._waiting.popleft())

    def _start(self, replica: Replica, ask: Ask, out: socket.socket) -> None:
        folder = self._folder / f"ask-{ask.id}"
        pid = os.fork()
        if not pid:
            self._let_go()
            answer_and_exit(replica, ask, out, folder)
        out.close()
        running = _Running(ask, pid, os.pidfd_open(pid), folder)
        self._running[pid] = running
        self._selector.register(running.end, selectors.EVENT_READ, lambda: self._ended(running))

    def _let_go(self) -> None:
        """In a new process: close descriptors of the parent only, so that no one waits for this process by mistake."""
        self._selector.close()
        for held in (self._feed, self._desk, *(out for _, out in self._waiting)):
            held.close()
        for running in self._running.values():
            os.close(running.end)

    def _ended(self, running: _Running) -> None:
        self._selector.unregister(running.end)
        os.close(running.end)
        del self._running[running.pid]
        _, status = os.waitpid(running.pid, 0)
        self._tell(StatementEnded(running.ask.id, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
        shutil.rmtree(running.folder, ignore_errors=True)

    def _tell(self, message: ToDaemon) -> None:
        self._desk.send(msgspec.msgpack.encode(message))


def main() -> None:
    """Serve on the two sockets named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides when this ends
    feed, desk = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    try:
        guard("SELECT 1", ())  # its one-time work is done before the forks
        Server(feed, desk).run()
    except Moved:
        desk.send(msgspec.msgpack.encode(Failed("the database was written to while it was copied", moved=True)))
    except Exception as error:
        told = (
            f"no copy of the database can be made: {error.strerror}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        )
        words = " ".join(told.split())
        sys.stderr.write(f"the process of ad-hoc SQL ends: {words}\n")
        desk.send(msgspec.msgpack.encode(Failed(words[:500])))
        sys.exit(1)


if __name__ == "__main__":
    main()
