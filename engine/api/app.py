"""The HTTP application: routes to endpoints, roles, and errors as JSON. docs/api.md describes requests and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import NotFound, StokerError, Unreachable
from ..spec.reading.tree import one_line
from . import openapi
from .answers import Encoded
from .auth import Identity, owner
from .call import Call, Endpoint

if TYPE_CHECKING:
    from ..services import Services

log = logging.getLogger(__name__)
LONGEST_ERROR = 1000  #: characters


def application(daemon: Services, *, tcp: bool) -> Starlette:
    """The routes for one listener: with ``tcp`` every request needs a token, without it is the socket owner's."""
    routes = [Route(path, _serve(daemon, role, function, tcp), methods=methods) for path, role, function, methods in openapi.table()]
    app = Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})
    app.router.redirect_slashes = False  # else /v1/jobs/ (an empty name) is answered with a redirection to the list
    return app


def _serve(daemon: Services, role: str, function: Endpoint, tcp: bool) -> Callable[[Request], Awaitable[Response]]:
    local = owner()

    async def serve(request: Request) -> Response:
        try:
            who = _known(daemon, request) if tcp else local
            who.require(role)
            call = Call(daemon, who, request)
            with call.finish:
                answer = await function(call)
        except StokerError as error:
            return failure(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except asyncio.CancelledError:  # too slow for the daemon's end
            return failure(Unreachable("the daemon is stopping"))
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path, extra={"action": "api.error"})
            return failure(StokerError("the daemon failed to serve this request: its log has the details ('stoker doctor' says where)"))
        return answer if isinstance(answer, Response) else Encoded(msgspec.json.encode(answer))

    return serve


def _known(daemon: Services, request: Request) -> Identity:
    """The identity of the token; from then on the connection is no stranger's."""
    who = daemon.tokens.identify(request.headers.get("authorization"))
    if who.role != "none":
        request.state.connection.show_token()
    return who


def failure(error: StokerError) -> Response:
    """The answer: one line, however long a quote of the request in it."""
    message = one_line(str(error))
    if len(message) > LONGEST_ERROR:  # its subject stands at its beginning or, after a quoted value, at its end
        message = f"{message[: LONGEST_ERROR - 201]}…{message[-200:]}"
    body = msgspec.json.encode({"error": {"code": error.code, "message": message}})
    return Response(body, status_code=error.http_status, media_type="application/json")


async def _missing(request: Request, _: Exception) -> Response:
    return failure(NotFound(f"no such endpoint: {request.method} {request.url.path[:200]}; see docs/api.md"))
