"""Visitors of the page: links that work once, and the browser sessions begun with them."""

from __future__ import annotations

import asyncio
import secrets
import time

from ..api.auth import Identity, digest
from ..store.store import Store
from ..store.stored_tokens import NewPageSession, begin_page_session, end_page_sessions

LINK_SECONDS = 300.0  #: a link must be used within so many seconds
SESSION_SECONDS = 7 * 86_400.0
MOST_LINKS = 1000  #: unused links; beyond that the oldest is dropped


class PageSessions:
    """To be used from the event loop, except for `refresh`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._links: dict[str, tuple[Identity, float]] = {}  #: by digest, with the monotonic time of their end
        self._known: dict[str, tuple[Identity, float]] = {}  #: sessions by digest, with their end in s since the epoch
        self.port: int | None = None  #: port of the newest session, where open pages expect the daemon
        self.refresh()

    def refresh(self) -> None:
        """Read the sessions in force, after one has begun or ended, or a token was revoked."""
        rows = self._store.rows("api/page_sessions")
        self._known = {row[0]: (Identity(*row[1:4]), row[5]) for row in rows}
        self.port = rows[0][4] if rows else None

    def link(self, who: Identity) -> str:
        """A secret with which one session of ``who`` can be begun."""
        now = time.monotonic()
        self._links = {key: kept for key, kept in self._links.items() if kept[1] > now}
        while len(self._links) >= MOST_LINKS:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(32)
        self._links[digest(secret)] = (who, now + LINK_SECONDS)
        return secret

    def use(self, secret: str) -> Identity | None:
        """The identity of a link, which is then used up; None: it was used, is too old, or never existed."""
        who, until = self._links.pop(digest(secret), (None, 0.0))
        return who if time.monotonic() < until else None

    async def begin(self, who: Identity, port: int) -> str:
        """A new session's cookie."""
        cookie = secrets.token_urlsafe(32)
        new = NewPageSession(digest(cookie), who.user, who.role, who.token, port, SESSION_SECONDS)
        await asyncio.wrap_future(self._store.submit(begin_page_session, new))
        return cookie

    async def end(self, cookie: str, who: Identity) -> None:
        await asyncio.wrap_future(self._store.submit(end_page_sessions, (digest(cookie), who.user), urgent=True))

    def identify(self, cookie: str | None) -> Identity | None:
        """The identity of a session, None: there is no such session."""
        if not cookie:
            return None
        who, until = self._known.get(digest(cookie), (None, 0.0))
        return who if who is not None and time.time() < until else None
