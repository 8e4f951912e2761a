"""One look at the database for all open pages, and a stream of the changes to each of them.

A look costs the same however many pages are open. It is taken once a second at most, and less often where it takes long: all looks
together take no more than `SHARE_OF_CORE` of a core. Unchanged parts are not sent; times are sent as times, and the page counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from ..api.thread_pools import Kind, Pools
from ..errors import LimitExceeded, StokerError

LOOK_INTERVAL = 1.0  #: least seconds between looks
SHARE_OF_CORE = 1 / 30  #: share of a core that looks may take
PAUSE_BETWEEN_PAGES = 0.005  #: seconds, so that a policy's tick at the same time waits for one page at most, not for all
MOST_STREAMS = 100  #: streams at a time
LONGEST_SILENCE = 15.0  #: seconds after which an empty event is sent, by which a closed page is noticed

log = logging.getLogger(__name__)
Parts: TypeAlias = Mapping[str, str]  #: parts of a page by their names in it
Render: TypeAlias = Callable[[Any], Parts]


@dataclass(slots=True, eq=False)
class _Open:
    """One page that is open."""

    key: Hashable
    render: Render
    allowed: Callable[[], bool]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    newest: Parts = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)

    def take(self) -> dict[str, str]:
        """The parts that have changed since the last call."""
        changed = {name: part for name, part in self.newest.items() if self.sent.get(name) != part}
        self.sent |= changed
        return changed


class PageStream:
    """To be used from the event loop."""

    look: Callable[[], Awaitable[tuple[Any, float]]]  #: returns the data of all pages, and its processor time (s)

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pages: set[_Open] = set()
        self._looking: asyncio.Task[None] | None = None
        self._over = False

    def open(self, key: Hashable, render: Render, allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Events of a page while it is ``allowed``; pages with the same ``key`` are rendered once. LimitExceeded: too many are open."""
        if len(self._pages) >= MOST_STREAMS:
            raise LimitExceeded(f"{MOST_STREAMS} pages are open already: close one, and load this one again")
        self._loop = asyncio.get_running_loop()
        return self._events(_Open(key, render, allowed))

    async def _events(self, one: _Open) -> AsyncIterator[bytes]:
        self._pages.add(one)
        try:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._keep_looking())
            yield b"retry: 1000\n\n"
            while not self._over and one.allowed():
                try:
                    async with asyncio.timeout(LONGEST_SILENCE):
                        await one.news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                one.news.clear()
                if one.allowed() and (changed := one.take()):
                    yield b"data: " + msgspec.json.encode(changed) + b"\n\n"
        finally:
            self._pages.discard(one)

    def end(self) -> None:
        """End all streams now, because the daemon stops. From any thread."""
        self._over = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all streams with it
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for one in self._pages:
            one.news.set()

    async def _keep_looking(self) -> None:
        took = 0.0
        while self._pages and not self._over:
            began, before, took = time.monotonic(), took, 0.0
            try:
                look, took = await self.look()
                pages = list(self._pages)
                took += await self._pools.run(Kind.LISTING, _tell, look, pages)
                for one in pages:
                    one.news.set()
                    await asyncio.sleep(PAUSE_BETWEEN_PAGES)
            except StokerError as error:  # the daemon is too busy at the moment
                log.info("pages are not told anything new now: %s", error)
            except Exception:  # without this open pages would wait for ever
                log.exception("pages are not told anything new now")
            usual = min(took, before)  # one slow look is by chance, and should not delay the next one: half a second would cost 15 s
            await asyncio.sleep(max(LOOK_INTERVAL, usual / SHARE_OF_CORE) - (time.monotonic() - began))


def _tell(look: Any, pages: list[_Open]) -> float:
    """Give each page its parts; returns the processor time (s)."""
    began, made = time.thread_time(), dict[Hashable, Parts]()
    for one in pages:
        if one.key not in made:
            made[one.key] = {name: str(part) for name, part in one.render(look).items()}
        one.newest = made[one.key]  # replaced as a whole, as the event loop reads it at the same time
    return time.thread_time() - began
