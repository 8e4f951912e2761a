"""The page's application: the checks of every request, the headers of every answer, and the routes. See docs/page.md."""

from __future__ import annotations

import hmac
import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..errors import NotFound, StokerError, Unauthorized, UsageError
from . import actions, gpus_page, job_page, now_page, policies_page, simulations_page, sql_page
from .components import ASSETS, empty
from .markup import h
from .visit import CSRF, PageOf, Visit, back, document, page, root_of

if TYPE_CHECKING:
    from ..services import Services

log = logging.getLogger(__name__)
#: Only names of this host's loopback: a foreign name that leads here (DNS rebinding) is refused. An ssh tunnel has another port.
HOSTS = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::(\d{1,5}))?", re.ASCII)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # no-referrer would make the Origin of the page's own forms "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGES = (now_page, job_page, actions, gpus_page, policies_page, simulations_page, sql_page)


def site(daemon: Services) -> Starlette:
    """The routes of the page's listener."""
    table = [entry for part in PAGES for entry in part.PAGES]
    routes = [Route(path, _serve(daemon, role, function), methods=methods) for path, role, function, methods in table]
    routes += [
        Route("/leave", _serve(daemon, "none", _leave), methods=["POST"]),
        Route("/assets/{name}", _guarded(_asset)),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _serve(daemon, "none", _nowhere), 405: _serve(daemon, "none", _nowhere)})
    app.router.redirect_slashes = False
    return app


def _guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The route with the checks and headers that hold for every request."""

    async def serve(request: Request, _: Exception | None = None) -> Response:
        try:
            _require_here(request)
            response = await answer(request)
        except StokerError as error:
            response = PlainTextResponse(f"{error}\n", status_code=421 if isinstance(error, _Elsewhere) else error.http_status)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return serve


class _Elsewhere(UsageError):
    """The request was made by a name that is not this host's own."""


def _require_here(request: Request) -> None:
    host = request.headers.get("host", "")
    if HOSTS.fullmatch(host) is None:
        raise _Elsewhere(f"the page is answered at 127.0.0.1 and localhost alone, not at {host[:100]!r}")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        raise Unauthorized(f"a page of {origin[:100]!r} may not ask for this")


def _cookie_name(request: Request) -> str:
    """The cookie's name, which contains the port: browsers send cookies to all ports of a host, which may have several daemons."""
    found = HOSTS.fullmatch(request.headers.get("host", ""))
    return f"stoker-{(found[1] if found else None) or 80}"


def _serve(daemon: Services, role: str, function: PageOf) -> Callable[..., Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.method == "GET" and request.url.path == "/" and "token" in request.query_params:
            return await _begin(daemon, request)
        cookie = request.cookies.get(_cookie_name(request)) or ""
        who = daemon.page.sessions.identify(cookie)
        if who is None:
            return _stranger(request, "This browser has no session here, or it has ended.", 401)
        request.state.connection.show_token()
        visit = Visit(daemon, who, request, cookie=cookie)
        try:
            who.require(role)
            if request.method == "POST":
                given = (await _peek(visit)).get(CSRF, "")
                if not hmac.compare_digest(given.encode(), visit.csrf.encode()):
                    raise Unauthorized("the form is not of this session: open the page anew and try again")
            with visit.finish:
                found = await function(visit)
        except StokerError as error:
            return _refused(visit, error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("page %s failed", request.url.path, extra={"action": "page.error"})
            return _refused(visit, StokerError("the daemon failed to make this page: its log has the details ('stoker doctor' says where)"))
        return found if isinstance(found, Response) else Response(msgspec.json.encode(found), media_type="application/json")

    return _guarded(answer)


async def _peek(visit: Visit) -> dict[str, str]:
    """The fields of the form, kept for the page that acts on them."""
    visit.request.state.fields = fields = await visit.posted()
    return fields


def _refused(visit: Visit, error: StokerError) -> Response:
    if visit.request.headers.get("sec-fetch-dest") == "empty":  # a script asks
        return PlainTextResponse(f"{error}\n", status_code=error.http_status)
    body = [h("h1", "This cannot be shown"), [h("p", line, class_="bad") for line in error.lines]]
    return page(visit, "Error", *body, h("p", h("a", "To the first page", href=visit.root)), status=error.http_status)


def _stranger(request: Request, why: str, status: int) -> Response:
    root = root_of(request.url.path)
    body = [h("h1", "Stoker"), h("p", why), empty("On the host of the daemon, make a new link with", "stoker ui")]
    return document(root, "No session", None, body, status=status, scripts=False)


async def _begin(daemon: Services, request: Request) -> Response:
    """Exchange a link for a session. The answer is a page that leads on: after a redirection from a mail the cookie would not be sent."""
    who = daemon.page.sessions.use(request.query_params["token"])
    if who is None or daemon.page.port is None:
        return _stranger(request, "This link has been used, is older than five minutes, or is not of this daemon.", 403)
    request.state.connection.show_token()
    cookie = await daemon.page.sessions.begin(who, daemon.page.port)
    response = document("./", "Welcome", None, [h("h1", "Stoker"), h("p", h("a", "Go on to the page", href="./"))], scripts=False, to="./")
    response.set_cookie(_cookie_name(request), cookie, max_age=7 * 86_400, path="/", httponly=True, samesite="strict")
    return response


async def _leave(visit: Visit) -> Response:
    await visit.daemon.page.sessions.end(visit.cookie, visit.who)
    response = back(visit, "")
    response.delete_cookie(_cookie_name(visit.request), path="/", httponly=True, samesite="strict")
    return response


async def _nowhere(visit: Visit) -> Response:
    raise NotFound(f"there is no page {visit.request.url.path[:200]}")


async def _asset(request: Request) -> Response:
    name = str(request.path_params["name"])
    path = ASSETS / name
    if name not in {file.name for file in ASSETS.iterdir() if file.suffix in (".js", ".css")}:
        raise NotFound("there is no such file")
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})
