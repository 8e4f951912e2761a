"""The page's port on this host's loopback, open from the start or from the first request for a link."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable

from ..api.thread_pools import Pools
from ..errors import Conflict
from ..store.store import Store
from .sessions import PageSessions
from .stream import PageStream

PORT = 7466  #: used if it is free and no other one is requested
HOST = "127.0.0.1"
BACKLOG = 512
log = logging.getLogger(__name__)


class PageListener:
    """To be used from the event loop."""

    serve: Callable[[socket.socket], Awaitable[None]]  #: answers on a socket, until the daemon is told to end

    def __init__(self, store: Store, pools: Pools) -> None:
        self.sessions = PageSessions(store)
        self.stream = PageStream(pools)
        self._task: asyncio.Task[None] | None = None
        self.port: int | None = None  #: None: not open

    def open(self, port: int | None = None) -> int:
        """Serve the page from now on, and return its port; ``port``: it must be this one."""
        if self.port is not None:
            if port not in (None, self.port):
                raise Conflict(f"port: the page is answered on port {self.port} already, which stays until the daemon ends")
            return self.port
        sock = _listen(port)
        self.port = int(sock.getsockname()[1])
        self._task = asyncio.create_task(self._run(sock))
        log.info("the page is at http://%s:%d", HOST, self.port, extra={"action": "page.up"})
        return self.port

    def open_again(self) -> None:
        """Open the port where pages still open in browsers expect it, if there are any; if that fails the daemon starts all the same."""
        if self.sessions.port is not None and self.port is None:
            try:
                self.open(self.sessions.port)
            except Conflict as error:
                log.warning("pages that are open do not find the daemon: %s", error, extra={"action": "page.port"})

    async def _run(self, sock: socket.socket) -> None:
        try:
            await self.serve(sock)
        finally:
            sock.close()

    async def ended(self) -> None:
        """Return once the last answer is out, or was given up."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _listen(port: int | None) -> socket.socket:
    try:
        return socket.create_server((HOST, PORT if port is None else port), backlog=BACKLOG)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return socket.create_server((HOST, 0), backlog=BACKLOG)
        raise Conflict(f"the page cannot be answered on {HOST}:{port or PORT}: {error.strerror or error}; choose another port") from None
