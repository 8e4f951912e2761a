"""Answers that many ask for at once, made once for all of them: the status, the listings of jobs and runners, `top`.

One query is under way for a question at a time; who comes meanwhile shares its answer, or that of the next one. An answer is shared
with whoever asks within `MAX_AGE`, unless something that it tells of was committed since it was begun: who has written and then asks
sees what it wrote. Commits without an event or a topic only say how work goes on: the pace of a job, a sample of a GPU.
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

MAX_AGE = 1.0  #: seconds: times in an answer go on though nothing is committed
MAX_REST = 0.25  #: seconds of rest after an answer at most
MAX_QUESTIONS = 64
MAX_BYTES = 32 << 20  #: of the answers that are kept
ANY_TOPIC = "anything"  #: the topic of each commit that has events or topics


@dataclass(slots=True, eq=False)
class _Question:
    """The newest answer, and what it can serve for."""

    answer: Any = None
    version: int = -1  #: of what it tells of, when it was begun: it surely holds that
    began: float = -math.inf
    ended: float = -math.inf
    renewal: asyncio.Task[None] | None = None

    def serves(self, version: int, asked: float) -> bool:
        return self.version >= version and self.began >= asked - MAX_AGE

    def rest(self) -> float:
        """Seconds until the next answer may be begun: as long as the last one took, so that a question takes half a thread at most."""
        return self.ended + min(self.ended - self.began, MAX_REST) - time.monotonic() if self.version >= 0 else 0.0


class Snapshots:
    """Used from the event loop, but for `committed`."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._commits: Counter[str] = Counter()  #: by topic
        self._known: dict[Hashable, _Question] = {}  #: those asked last come last

    def committed(self, commit: Committed) -> None:
        """After a commit, before its answers go out, on the writer's thread."""
        self._commits.update(commit.topics)
        self._commits[ANY_TOPIC] += bool(commit.topics or commit.events)

    async def ask(self, kind: Kind, question: Hashable, read: Callable[[], Any], topics: Collection[str] = (ANY_TOPIC,)) -> Any:
        """What ``read`` gives, on a thread of that kind; it holds all that was committed of ``topics`` when it is asked for."""
        asked, version = time.monotonic(), self._version(topics)
        known = self._known.pop(question, None) or _Question()
        self._known[question] = known
        while not known.serves(version, asked):
            if known.renewal is None:
                known.renewal = asyncio.create_task(self._renew(known, kind, read, topics))
            await asyncio.shield(known.renewal)  # others wait for it too
        return known.answer

    def _version(self, topics: Collection[str]) -> int:
        return sum(self._commits[topic] for topic in topics)

    async def _renew(self, known: _Question, kind: Kind, read: Callable[[], Any], topics: Collection[str]) -> None:
        try:
            if (rest := known.rest()) > 0:
                await asyncio.sleep(rest)
            began, version = time.monotonic(), self._version(topics)  # before it is read: what is committed later may be missing
            known.answer = await self._pools.run(kind, read)
            known.version, known.began, known.ended = version, began, time.monotonic()
        finally:
            known.renewal = None
            self._forget()

    def _forget(self) -> None:
        """Keep what was asked for last, as far as there is room."""
        size = 0
        for number, (question, known) in enumerate(reversed(list(self._known.items()))):
            size += len(known.answer) if isinstance(known.answer, bytes) else 0
            if known.renewal is None and (number >= MAX_QUESTIONS or size > MAX_BYTES):
                del self._known[question]
