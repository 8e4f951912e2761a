"""How members of a group ask each other, beside torchft's lighthouse: which lighthouse is in use, how far they are, and for their state.

One line of JSON each way on a connection of its own; the bytes of a state follow theirs. A member answers while it computes.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from .membership import Member

_LONGEST = 1 << 20  #: bytes of a line
_POLL = 0.05


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a member answers to whoever asks."""

    member: Member
    lighthouse: str = ""  #: that it uses, empty: none yet
    finished: bool = False  #: it has done all steps
    trained: int = 0  #: bytes of the state that follow, where one was asked for


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    group: int
    state_at: int | None = None  #: the state after so many steps is wanted
    history: str = ""
    patience: float = 0.0  #: seconds that it waits for that


# Made here, as msgspec crashes where several threads are the first to decode a type.
_STATUS, _ASKED = msgspec.json.Decoder(Status), msgspec.json.Decoder(_Ask)


class MemberServer:
    """Answers the others. ``status`` tells how things are now."""

    def __init__(self, host: str, port: int, group: int, status: Callable[[], Status]) -> None:
        self._group, self._status = group, status
        self._state: tuple[int, str, bytes] | None = None
        self._lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = 10.0

            def handle(self) -> None:
                try:
                    outer._answer(self)
                except (OSError, msgspec.DecodeError):  # it has gone, or is no member
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address = True, True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="members", daemon=True).start()

    def publish(self, step: int, history: str, state: bytes) -> None:
        """Keep a state for those who want it, in place of the former."""
        with self._lock:
            self._state = (step, history, state)

    def forget(self) -> None:
        with self._lock:
            self._state = None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: socketserver.StreamRequestHandler) -> None:
        asked = _ASKED.decode(handler.rfile.readline(_LONGEST))
        if asked.group != self._group:  # of a group whose member had this port before
            return
        state = None
        until = time.monotonic() + min(asked.patience, 600.0)
        while asked.state_at is not None and (state := self._kept(asked)) is None and time.monotonic() < until:
            time.sleep(_POLL)
        status = msgspec.structs.replace(self._status(), trained=len(state or b""))
        handler.wfile.write(msgspec.json.encode(status) + b"\n")
        if state is not None:
            handler.connection.settimeout(600.0)
            handler.wfile.write(state)

    def _kept(self, asked: _Ask) -> bytes | None:
        with self._lock:
            if self._state is None or self._state[:2] != (asked.state_at, asked.history):
                return None
            return self._state[2]


def ask(address: str, group: int, patience: float) -> Status | None:
    """How a member is; None: it does not answer."""
    found = _asked(address, _Ask(group=group), patience)
    return None if found is None else found[0]


def ask_all(addresses: Sequence[str], group: int, patience: float) -> list[Status]:
    """The same of several at once; those that answer."""
    if not addresses:
        return []
    with ThreadPoolExecutor(len(addresses)) as pool:
        return [status for status in pool.map(lambda address: ask(address, group, patience), addresses) if status is not None]


def fetch(address: str, group: int, step: int, history: str, patience: float, silence: float) -> bytes | None:
    """A member's state after a step; None: it does not give it in time, or has been silent for so many seconds."""
    until = time.monotonic() + patience
    while found := _asked(address, _Ask(group=group, state_at=step, history=history, patience=silence / 2), silence):
        status, state = found
        if status.trained or time.monotonic() > until:
            return state if status.trained and len(state) == status.trained else None
    return None


def _asked(address: str, asked: _Ask, patience: float) -> tuple[Status, bytes] | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), patience) as connection, connection.makefile("rwb") as file:
            file.write(msgspec.json.encode(asked) + b"\n")
            file.flush()
            status = _STATUS.decode(file.readline(_LONGEST))
            return status, file.read(status.trained) if status.trained else b""
    except (OSError, ValueError, msgspec.DecodeError):
        return None
