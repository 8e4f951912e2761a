"""Bounds on the number and the duration of TCP connections. Strangers take no room from clients with a token.

A connection without a valid token so far is a stranger's. The newest strangers are kept: with many, the oldest makes way, so that a
client that speaks at once gets through among thousands of silent ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

#: most TCP connections, or half of the descriptors that this process may have, as files and the Unix socket need some too
MOST_CONNECTIONS = 4096
STRANGERS_SHARE = 1 / 4  #: the share of them that may be strangers'
OF_ONE_ADDRESS = 1 / 2  #: the share of these that may come from one address
DESCRIPTORS = 65_536  #: wanted; not more, as some programs that hooks may run check each possible one
TOKEN_WITHIN = 10.0  #: seconds in which a connection must show a valid token
HEAD_WITHIN = 10.0  #: seconds from the first byte of a request to the end of its headers
BODY_IDLE = 30.0  #: seconds between two pieces of a body
ANSWER_IDLE = 60.0  #: seconds in which a client reads nothing of an answer
LOOK_SECONDS = 1.0  #: seconds between looks at the times above
LOG_INTERVAL_SECONDS = 60.0  #: seconds between log lines about closed connections
log = logging.getLogger(__name__)


def raise_descriptors() -> int:
    """Let this process open as many files as it may; returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class Guarded(Protocol):
    """A connection's state."""

    origin: str
    transport: asyncio.Transport

    def is_overdue(self, now: float) -> bool: ...


class Connections:
    """The TCP connections of a listener, the oldest first."""

    def __init__(self, descriptors: int) -> None:
        self._most = min(MOST_CONNECTIONS, descriptors // 2)
        self._strangers_most = max(1, int(self._most * STRANGERS_SHARE))
        self._of_address_most = max(1, int(self._strangers_most * OF_ONE_ADDRESS))
        self._open: dict[Guarded, None] = {}
        self._strangers: dict[Guarded, None] = {}
        self._by_origin: dict[str, dict[Guarded, None]] = {}
        self.turned_away = 0

    def add(self, new: Guarded) -> bool:
        """Take one in, perhaps in the place of a stranger; False: there is no room."""
        beside = self._by_origin.get(new.origin, {})
        if len(beside) >= self._of_address_most:
            self._drop(next(iter(beside)))
        elif self._strangers and (len(self._strangers) >= self._strangers_most or len(self._open) >= self._most):
            self._drop(next(iter(self._strangers)))
        if len(self._open) >= self._most:
            self.turned_away += 1
            return False
        self._open[new] = self._strangers[new] = None
        self._by_origin.setdefault(new.origin, {})[new] = None
        return True

    def know(self, one: Guarded) -> None:
        """It has shown a valid token."""
        if one not in self._strangers:
            return
        del self._strangers[one]
        beside = self._by_origin[one.origin]
        del beside[one]
        if not beside:
            del self._by_origin[one.origin]

    def remove(self, one: Guarded) -> None:
        self.know(one)
        self._open.pop(one, None)

    def is_stranger(self, one: Guarded) -> bool:
        return one in self._strangers

    def _drop(self, one: Guarded) -> None:
        self.turned_away += 1
        self.remove(one)
        one.transport.abort()

    def look(self, now: float) -> None:
        """Close those whose time is over."""
        for one in list(self._open):
            if one.is_overdue(now):
                self._drop(one)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Check them during the block."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        told, told_at = 0, -LOG_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            self.look(now)
            if self.turned_away > told and now - told_at >= LOG_INTERVAL_SECONDS:
                log.warning("%d TCP connections were closed: no valid token, or they stood still", self.turned_away - told)
                told, told_at = self.turned_away, now


class Connection(H11Protocol):
    """One of them. Requests find it as ``state["connection"]`` of their scope."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = {**self.app_state, "connection": self}
        self.origin = ""
        self._connections = connections
        self._opened = self._heard = time.monotonic()
        self._head_began: float | None = None  #: time of the first byte of a request with incomplete headers
        self._unsent = 0  #: bytes of an answer that were waiting at the last look
        self._taken = 0.0  #: time of its last observed change

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.origin = _origin(self.client[0]) if self.client else ""
        if not self._connections.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        if self._head_began is None and not self._is_asked():
            self._head_began = self._heard
        super().data_received(data)
        if self._is_asked():
            self._head_began = None

    def show_token(self) -> None:
        """A request over it has shown a valid token."""
        self._connections.know(self)

    def _is_asked(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_overdue(self, now: float) -> bool:
        if self._connections.is_stranger(self):
            return now - self._opened > TOKEN_WITHIN
        if self._head_began is not None and now - self._head_began > HEAD_WITHIN:
            return True
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._taken = unsent, now
        if now - self._taken > ANSWER_IDLE:
            return True
        reading = self._is_asked() and self.cycle.more_body and not self.flow.read_paused
        return reading and now - self._heard > BODY_IDLE


class Sealed(asyncio.Protocol):
    """A connection before the end of its TLS handshake, when a `Connection` takes over. It is a stranger's from its acceptance on."""

    def __init__(self, connections: Connections, context: ssl.SSLContext, **served: Any) -> None:
        self.origin = ""
        self._connections, self._context, self._served = connections, context, served
        self._opened = time.monotonic()
        self._early = bytearray()  #: bytes that came with the last piece of the handshake
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()  # the first byte is for the handshake
        self.origin = _origin(peer[0]) if (peer := transport.get_extra_info("peername")) else ""
        if self._connections.add(self):
            self._shakes = asyncio.get_running_loop().create_task(self._shake())
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def is_overdue(self, now: float) -> bool:
        return now - self._opened > TOKEN_WITHIN

    async def _shake(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(self.transport, self, self._context, server_side=True, ssl_handshake_timeout=TOKEN_WITHIN)
        except OSError:  # it spoke no TLS, does not trust us, or has gone
            return
        finally:
            self._connections.remove(self)
        if self._lost or secured is None:
            return
        taken_on = Connection(self._connections, **self._served)
        secured.set_protocol(taken_on)
        taken_on.connection_made(secured)
        if self._early:
            taken_on.data_received(bytes(self._early))


def _origin(address: str) -> str:
    """The unit of an address: for IPv6 the network of 64 bits, all of which one host may have."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
