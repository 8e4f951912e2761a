"""The Unix socket of a server: a line of a client in, a line out, each client apart from the others. Standard library only.

It lies in the run directory, which only its user may enter. It is bound through a descriptor of that directory, as the address of a
Unix socket has 107 bytes at most, too few for a deep home.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...engine.errors import StokerError
from ...engine.protocol import LONGEST_REQUEST, SERVER_SOCKET

MOST_CLIENTS = 256  #: at once
_UNREAD = 1 << 20  #: bytes of unread answers beyond which no more requests of a client are read
_CHUNK = 1 << 16


class Caller:
    """A client at the socket."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.lock = threading.Lock()
        self.coming, self.going = bytearray(), bytearray()
        self.too_long = False  #: the rest of its line is dropped
        self.said_all = False  #: it sends no more
        self.gone = False


class RequestSocket:
    """``take(caller, line)`` is called on the socket's thread, and must not wait; any thread may call `send`."""

    def __init__(self, directory: Path, take: Callable[[Caller, bytes], None], too_long: bytes, too_many: bytes) -> None:
        self._take, self._too_long, self._too_many = take, too_long, too_many
        self._callers: dict[int, Caller] = {}
        self._closing = False
        self._listener = _listening(directory)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self.thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self.thread.start()

    def send(self, caller: Caller, line: bytes) -> None:
        """Send as much as the socket takes now, the rest later; nothing to a client that has left."""
        with caller.lock:
            if caller.gone:
                return
            if not caller.going:
                try:
                    line = line[caller.channel.send(line, socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    pass
                except OSError:  # it has left, which the thread sees
                    return
            caller.going += line
            if caller.going:
                self._watch(caller)

    def close(self, patience: float) -> None:
        """Accept no more clients; the present ones may take finished answers for so many seconds."""
        self._closing = True
        until = time.monotonic() + patience
        while any(caller.going and not caller.gone for caller in list(self._callers.values())) and time.monotonic() < until:
            time.sleep(0.01)
        self._listener.close()
        for caller in list(self._callers.values()):
            with caller.lock:
                caller.gone = True
                caller.channel.close()

    # ---- the thread ----

    def _run(self) -> None:
        listener = self._listener.fileno()
        while True:
            for number, event in self._epoll.poll():
                if number == listener:
                    self._accept()
                elif (caller := self._callers.get(number)) is not None:
                    self._serve(number, caller, event)

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # others may leave
                time.sleep(0.1)
            return
        channel.setblocking(False)
        if self._closing or len(self._callers) >= MOST_CLIENTS:
            if not self._closing:
                try:
                    channel.send(self._too_many, socket.MSG_NOSIGNAL)
                except OSError:
                    pass
            channel.close()
            return
        caller = Caller(channel)
        self._callers[channel.fileno()] = caller
        self._epoll.register(channel, select.EPOLLIN)

    def _serve(self, number: int, caller: Caller, event: int) -> None:
        if event & (select.EPOLLHUP | select.EPOLLERR):  # both directions closed: it has left
            self._leave(number, caller)
            return
        if event & select.EPOLLOUT:
            self._flush(caller)
        if event & select.EPOLLIN:
            try:
                data = caller.channel.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                self._leave(number, caller)
                return
            if data:
                self._feed(caller, data)
            else:  # it may read on
                caller.said_all = True
                with caller.lock:
                    self._watch(caller)

    def _feed(self, caller: Caller, data: bytes) -> None:
        caller.coming += data
        while (end := caller.coming.find(b"\n")) >= 0:
            line = bytes(caller.coming[:end])
            del caller.coming[: end + 1]
            if caller.too_long:  # it has got the error
                caller.too_long = False
            elif len(line) > LONGEST_REQUEST:
                self.send(caller, self._too_long)
            elif line.strip():
                self._take(caller, line)
        if len(caller.coming) > LONGEST_REQUEST and not caller.too_long:
            caller.too_long = True
            self.send(caller, self._too_long)
        if caller.too_long:
            caller.coming.clear()

    def _flush(self, caller: Caller) -> None:
        with caller.lock:
            try:
                del caller.going[: caller.channel.send(caller.going, socket.MSG_NOSIGNAL)]
            except OSError:  # full again, or it has left
                return
            self._watch(caller)

    def _watch(self, caller: Caller) -> None:
        """Set the events to watch for; its lock is held."""
        if caller.gone:
            return
        events = select.EPOLLOUT if caller.going else 0
        if not caller.said_all and len(caller.going) < _UNREAD:
            events |= select.EPOLLIN
        self._epoll.modify(caller.channel, events)

    def _leave(self, number: int, caller: Caller) -> None:
        with caller.lock:
            caller.gone = True
            del self._callers[number]
            caller.channel.close()  # and out of the epoll


def _listening(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        there = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            address = f"/proc/self/fd/{there}/{SERVER_SOCKET}"
            listener.bind(address)
            Path(address).chmod(0o600)
        finally:
            os.close(there)
        listener.listen(MOST_CLIENTS)
    except OSError as error:
        listener.close()
        raise StokerError(f"no socket in {directory}: {error.strerror}; the home must be on a file system that has Unix sockets") from None
    return listener
