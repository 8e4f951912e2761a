"""The HTTP application: routes to endpoints, roles, and errors as JSON. What is asked and answered: docs/api.md."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import LimitExceeded, StokerError, UsageError
from .auth import Identity, owner

if TYPE_CHECKING:
    from ..daemon import Daemon

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_BODY = 64 * 1024 * 1024  #: bytes of one request


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the daemon it is for, who asks, and what with."""

    daemon: Daemon
    who: Identity
    request: Request

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str, default: str | None = None) -> str | None:
        return self.request.query_params.get(name, default)

    def number(self, name: str) -> float | None:
        """A numeric query parameter; UsageError names it."""
        given = self.request.query_params.get(name)
        if given is None:
            return None
        try:
            return float(given)
        except ValueError:
            raise UsageError(f"{name}: {given!r} is not a number") from None

    async def body(self) -> bytes:
        chunks, size = [], 0
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise LimitExceeded(f"the request is larger than {MAX_BODY >> 20} MiB: send less at once")
            chunks.append(chunk)
        return b"".join(chunks)

    async def options(self) -> dict[str, Any]:
        """The body as an object; none at all is an empty one."""
        body = await self.body()
        return _decode(body, dict[str, Any]) if body not in (b"", b"null") else {}

    async def message(self, kind: type[T]) -> T:
        """The body as a message; UsageError names the field."""
        return _decode(await self.body(), kind)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"null", type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the request is not as it should be: {error}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"the request is not JSON: {error}") from None


Endpoint = Callable[[Call], Awaitable[Any]]


def endpoint(path: str, role: str, function: Endpoint, methods: Sequence[str] = ("GET",)) -> tuple[str, str, Endpoint, list[str]]:
    return path, role, function, list(methods)


def application(daemon: Daemon, *, tcp: bool) -> Starlette:
    """The routes for one listener: with ``tcp`` every request needs a token, without it is the socket owner's."""
    from . import jobs, operators, runner

    table = [*jobs.ENDPOINTS, *operators.ENDPOINTS, *runner.ENDPOINTS]
    return Starlette(routes=[Route(path, _serve(daemon, role, function, tcp), methods=methods) for path, role, function, methods in table],
                     exception_handlers={404: _missing, 405: _missing})  # fmt: skip


def _serve(daemon: Daemon, role: str, function: Endpoint, tcp: bool) -> Callable[[Request], Awaitable[Response]]:
    local = owner()

    async def serve(request: Request) -> Response:
        try:
            who = daemon.tokens.identify(request.headers.get("authorization")) if tcp else local
            who.require(role)
            answer = await function(Call(daemon, who, request))
        except StokerError as error:
            return failure(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path, extra={"action": "api.error"})
            return failure(StokerError("the daemon failed to serve this request: its log has the details ('stoker doctor' says where)"))
        return answer if isinstance(answer, Response) else Response(msgspec.json.encode(answer), media_type="application/json")

    return serve


def failure(error: StokerError) -> Response:
    body = msgspec.json.encode({"error": {"code": error.code, "message": str(error)}})
    return Response(body, status_code=error.http_status, media_type="application/json")


async def _missing(request: Request, _: Exception) -> Response:
    body = {"error": {"code": "not-found", "message": f"no such endpoint: {request.method} {request.url.path}; see docs/api.md"}}
    return Response(msgspec.json.encode(body), status_code=404, media_type="application/json")
