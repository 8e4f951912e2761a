"""One request for the endpoints: the daemon, the asker, and the arguments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..errors import LimitExceeded, UsageError
from ..fieldnames import with_meant
from ..spec.reading.tree import shown
from .answers import Encoded
from .auth import Identity
from .thread_pools import Kind

if TYPE_CHECKING:
    from ..services import Services

P = ParamSpec("P")
T = TypeVar("T")
MAX_BODY = 64 * 1024 * 1024  #: bytes of one request
LARGE_BODY = 1024 * 1024  #: bytes; reading more at once would delay all others
LARGEST_NUMBER = 1e15  #: a float counts exactly up to here, and no log or listing is longer


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request without arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the daemon, the asker, and the arguments."""

    daemon: Services
    who: Identity
    request: Request
    finish: ExitStack = field(default_factory=ExitStack)  #: resources to release after the answer

    @property
    def only(self) -> str | None:
        """The only user on whose jobs this request may act; None: on all users'."""
        return None if self.who.role == "admin" or self.daemon.config.access.team else self.who.user

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def number(self, name: str) -> float | None:
        """A query parameter that is a number; UsageError names it."""
        given = self.request.query_params.get(name)
        if given is None:
            return None
        try:
            number = float(given)
        except ValueError:
            raise UsageError(f"{name}: {shown(given)} is not a number") from None
        if not 0 <= number <= LARGEST_NUMBER:  # NaN is not either
            raise UsageError(f"{name}: {shown(given)} is not between 0 and {LARGEST_NUMBER:.0e}")
        return number

    async def run(self, kind: Kind, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on a thread of that kind: for all that takes longer than a millisecond or waits."""
        return await self.daemon.pools.run(kind, function, *args, **kwargs)

    async def control(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(Kind.CONTROL, function, *args, **kwargs)

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(Kind.READ, function, *args, **kwargs)

    async def upload(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(Kind.UPLOAD, function, *args, **kwargs)

    async def snapshot(self, kind: Kind, question: Hashable, read: Callable[[], Any]) -> Encoded:
        """The result of ``read``, shared by all requests with the same ``question``; it depends on no other part of the request."""
        return Encoded(await self.daemon.snapshots.ask(kind, question, lambda: msgspec.json.encode(read())))

    async def body(self) -> bytes:
        """The whole body. Only some large ones are in memory at a time; the others wait for their turn."""
        chunks, size, large = [], 0, False
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > LARGE_BODY and not large:
                large = True
                await self.daemon.large_bodies.acquire()
                self.finish.callback(self.daemon.large_bodies.release)
            if size > MAX_BODY:
                raise LimitExceeded(f"the request is larger than {MAX_BODY >> 20} MiB: send less at once")
            chunks.append(chunk)
        return b"".join(chunks)

    async def options(self, kind: type[T]) -> T:
        """The body as a message; no body is an empty one. UsageError names the field."""
        body = await self.body()
        return decode(body if body not in (b"", b"null") else b"{}", kind)

    async def unless_gone(self, answer: Coroutine[Any, Any, T]) -> T:
        """Await ``answer``, unless the client closes the connection. The body must have been read."""
        working = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(self.request.receive())
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            working.cancel()
            gone.cancel()

    async def message(self, kind: type[T]) -> T:
        """The body as a message; UsageError names the field."""
        body = await self.body()
        return decode(body, kind) if len(body) < LARGE_BODY else await self.upload(decode, body, kind)


def decode(body: bytes, kind: type[T]) -> T:
    """A request's JSON as a message; UsageError names the mistake."""
    try:
        return msgspec.json.decode(body or b"null", type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the request is not as it should be: {with_meant(str(error), kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}{_where(body, str(error))}") from None


def _where(body: bytes, error: str) -> str:
    """The field at which a request stops being JSON, such as one that is NaN."""
    if (at := re.search(r"\(byte (\d+)\)", error)) is None:
        return ""
    fields = re.findall(rb'"(\w{1,50})"\s*:', body[max(int(at[1]) - 500, 0) : int(at[1])])
    return f" - at `{fields[-1].decode()}`" if fields else ""


Endpoint = Callable[[Call], Awaitable[Any]]


def endpoint(path: str, role: str, function: Endpoint, methods: Sequence[str] = ("GET",)) -> tuple[str, str, Endpoint, list[str]]:
    return path, role, function, list(methods)
