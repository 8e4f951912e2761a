"""Answers that many clients ask for at once, made once for all: the status, the listings of jobs and runners, `top`.

One query is under way for a question at a time; requests that come meanwhile share its answer, or that of the next one. An answer is
shared for `MAX_AGE`, unless something in it was changed by a commit since it was begun: so a client sees its own writes. Commits
without an event or a topic change no answer at once: they record only progress, such as a sample of a GPU.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

from ..store.store import Committed
from .thread_pools import Kind, Pools

MAX_AGE = 1.0  #: seconds; times in an answer move on though nothing is committed
MAX_REST = 0.25  #: seconds at most between an answer and the next query
MAX_QUESTIONS = 64
MAX_BYTES = 32 << 20  #: bytes of all answers that are kept
ANY_TOPIC = "anything"  #: the topic of each commit that has events or topics


@dataclass(slots=True, eq=False)
class _Question:
    """The newest answer to a question, and how new it is."""

    answer: Any = None
    version: int = -1  #: version of its topics when it was begun: it holds at least that
    began: float = -math.inf
    ended: float = -math.inf
    renewal: asyncio.Task[None] | None = None

    def serves(self, version: int, asked: float) -> bool:
        return self.version >= version and self.began >= asked - MAX_AGE

    def rest(self) -> float:
        """Seconds until the next answer may be begun: as long as the last one took, so that a question occupies a thread half the time."""
        return self.ended + min(self.ended - self.began, MAX_REST) - time.monotonic() if self.version >= 0 else 0.0


class Snapshots:
    """To be used from the event loop, except for `committed`."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._commits: Counter[str] = Counter()  #: by topic
        self._known: dict[Hashable, _Question] = {}  #: in the order in which they were last asked

    def committed(self, commit: Committed) -> None:
        """Called after a commit, before its answers go out, on the writer's thread."""
        self._commits.update(commit.topics)
        self._commits[ANY_TOPIC] += bool(commit.topics or commit.events)

    async def ask(self, kind: Kind, question: Hashable, read: Callable[[], Any], topics: Collection[str] = (ANY_TOPIC,)) -> Any:
        """The result of ``read`` on a thread of this kind, or a shared one; it holds all commits on ``topics`` so far."""
        asked, version = time.monotonic(), self._version(topics)
        known = self._known.pop(question, None) or _Question()
        self._known[question] = known
        while not known.serves(version, asked):
            if known.renewal is None:
                known.renewal = asyncio.create_task(self._renew(known, kind, read, topics))
            await asyncio.shield(known.renewal)  # other requests wait for it too
        return known.answer

    def _version(self, topics: Collection[str]) -> int:
        return sum(self._commits[topic] for topic in topics)

    async def _renew(self, known: _Question, kind: Kind, read: Callable[[], Any], topics: Collection[str]) -> None:
        try:
            if (rest := known.rest()) > 0:
                await asyncio.sleep(rest)
            began, version = time.monotonic(), self._version(topics)  # before reading: later commits may be missing
            known.answer = await self._pools.run(kind, read)
            known.version, known.began, known.ended = version, began, time.monotonic()
        finally:
            known.renewal = None
            self._forget()

    def _forget(self) -> None:
        """Drop the answers that were asked for longest ago until the rest has room."""
        size = 0
        for number, (question, known) in enumerate(reversed(list(self._known.items()))):
            size += len(known.answer) if isinstance(known.answer, bytes) else 0
            if known.renewal is None and (number >= MAX_QUESTIONS or size > MAX_BYTES):
                del self._known[question]
