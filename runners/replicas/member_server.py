"""Requests between members of a group, beside torchft's lighthouse: for the lighthouse in use, their progress, and their state.

One line of JSON each way on a connection for each request; the bytes of a state follow the answer. A member answers while it computes.
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

_MOST_LINE_BYTES = 1 << 20  #: bytes of a line
_POLL_INTERVAL = 0.05


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a member to a request."""

    member: Member
    lighthouse: str = ""  #: the lighthouse that it uses, empty: none yet
    finished: bool = False  #: it has done all steps
    trained: int = 0  #: bytes of the state that follow, if one was requested


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    group: int
    state_at: int | None = None  #: the state after so many steps is requested
    history: str = ""
    patience: float = 0.0  #: seconds that the sender waits for it


# Made here, as msgspec crashes when several threads are the first to decode a type.
_STATUS, _ASKED = msgspec.json.Decoder(Status), msgspec.json.Decoder(_Ask)


class MemberServer:
    """Answers the other members. ``status`` returns the present state."""

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
                except (OSError, msgspec.DecodeError):  # the client has gone, or is no member
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address = True, True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="members", daemon=True).start()

    def publish(self, step: int, history: str, state: bytes) -> None:
        """Keep a state for members that request it, instead of the former one."""
        with self._lock:
            self._state = (step, history, state)

    def forget(self) -> None:
        with self._lock:
            self._state = None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: socketserver.StreamRequestHandler) -> None:
        asked = _ASKED.decode(handler.rfile.readline(_MOST_LINE_BYTES))
        if asked.group != self._group:  # meant for a member of another group that had this port before
            return
        state = None
        until = time.monotonic() + min(asked.patience, 600.0)
        while asked.state_at is not None and (state := self._kept(asked)) is None and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL)
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
    """The status of a member; None: it does not answer."""
    found = _asked(address, _Ask(group=group), patience)
    return None if found is None else found[0]


def ask_all(addresses: Sequence[str], group: int, patience: float) -> list[Status]:
    """The status of several members at once; only those that answer."""
    if not addresses:
        return []
    with ThreadPoolExecutor(len(addresses)) as pool:
        return [status for status in pool.map(lambda address: ask(address, group, patience), addresses) if status is not None]


def fetch(address: str, group: int, step: int, history: str, patience: float, silence: float) -> bytes | None:
    """A member's state after a step; None: it does not send it in time, has gone on, or was silent for ``silence`` seconds."""
    until = time.monotonic() + patience
    while found := _asked(address, _Ask(group=group, state_at=step, history=history, patience=silence / 2), silence):
        status, state = found
        if status.trained or status.member.step > step or time.monotonic() > until:
            return state if status.trained and len(state) == status.trained else None
    return None


def _asked(address: str, asked: _Ask, patience: float) -> tuple[Status, bytes] | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), patience) as connection, connection.makefile("rwb") as file:
            file.write(msgspec.json.encode(asked) + b"\n")
            file.flush()
            status = _STATUS.decode(file.readline(_MOST_LINE_BYTES))
            return status, file.read(status.trained) if status.trained else b""
    except (OSError, ValueError, msgspec.DecodeError):
        return None
