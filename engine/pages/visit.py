"""One request of a browser, and the page around an answer."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..api.auth import GRANTS, digest
from ..api.call import Call
from ..errors import UsageError
from .markup import Inside, Safe, h, join

PAGES = {"": "Now", "gpus": "GPUs", "policies": "Policies", "simulations": "Simulations", "sql": "SQL"}
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M2 13V7l4-4 4 4 4-4v10z' fill='%230072b2'/%3E%3C/svg%3E"
)
MOST_FORM = 64 * 1024  #: bytes
CSRF = "csrf"


@dataclass(frozen=True, slots=True)
class Visit(Call):
    """A request with a session: a `Call` as for the API's endpoints, with additions for the pages."""

    cookie: str = ""

    @property
    def csrf(self) -> str:
        """The secret in each form of this session, which other sites cannot know."""
        return digest(f"{CSRF} {self.cookie}")

    @property
    def root(self) -> str:
        """The relative path from here to the first page: all addresses are relative, so that the page works below any path."""
        return root_of(self.request.url.path)

    def may(self, role: str) -> bool:
        return role in GRANTS[self.who.role]

    def asked(self, name: str) -> str:
        return (self.request.query_params.get(name) or "").strip()

    def form(self, to: str, *inside: Inside) -> Safe:
        """A form that changes something."""
        return h("form", h("input", type="hidden", name=CSRF, value=self.csrf), *inside, method="post", action=to)

    async def posted(self) -> dict[str, str]:
        """The fields of a form."""
        body = await self.body()
        if len(body) > MOST_FORM:
            raise UsageError("the form is larger than 64 KiB")
        try:
            fields = urllib.parse.parse_qs(body.decode(), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise UsageError("the form is not as a browser sends it") from None
        return {name: values[-1] for name, values in fields.items()}


PageOf: TypeAlias = Callable[[Visit], Awaitable[Any]]


def at(path: str, role: str, function: PageOf, *methods: str) -> tuple[str, str, PageOf, list[str]]:
    """The route of a page, and the role that may see it."""
    return path, role, function, list(methods) or ["GET"]


def root_of(path: str) -> str:
    return "../" * (path.count("/") - 1) or "./"


def back(visit: Visit, to: str) -> Response:
    """Redirect to another page; ``to`` is relative to the first one."""
    return RedirectResponse(visit.root + to, status_code=303)


def page(visit: Visit, title: str, *body: Inside, stream: str = "", status: int = 200, scripts: bool = True) -> Response:
    """A whole page; ``stream``: address of its changes, relative to the first page."""
    here = visit.request.url.path.strip("/").split("/")[0]
    here = "" if here == "jobs" else here
    links = [
        h("a", name, href=visit.root + place, aria_current="page" if place == here and title == name else None)
        for place, name in PAGES.items()
    ]
    who = h(
        "div",
        f"{visit.who.user} ({visit.who.role}) ",
        visit.form(f"{visit.root}leave", h("button", "sign out", class_="plain")),
        class_="who",
    )
    top = h("header", h("nav", h("a", "Stoker", href=visit.root, class_="brand"), links, who, aria_label="Pages"))
    return document(visit.root, title, join(top, h("div", id="news", role="status")), body, stream=stream, status=status, scripts=scripts)


def document(
    root: str, title: str, top: Inside, body: Inside, *, stream: str = "", status: int = 200, scripts: bool = True, to: str = ""
) -> Response:
    """The frame of every page, with a session or without; ``to``: the address to which it leads at once."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", http_equiv="refresh", content=f"0;url={to}") if to else None,
        h("title", f"{title} - Stoker"),
        h("link", rel="icon", href=ICON),
        [h("link", rel="stylesheet", href=f"{root}assets/{name}") for name in ("page.css", "live.css", "uPlot.min.css")],
        [h("script", src=f"{root}assets/{name}", defer=True) for name in ("uPlot.iife.min.js", "live.js")] if scripts else None,
    )
    main = h("main", body, id="main", data_stream=root + stream if stream else None, data_now=round(time.time(), 1))
    whole = h("html", head, h("body", h("a", "To the content", href="#main", class_="skip"), top, main), lang="en")
    return HTMLResponse(f"<!DOCTYPE html>\n{whole}\n", status_code=status)
