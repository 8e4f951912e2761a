"""A limit of questions at a time, and users in turn: a user with a hundred questions does not delay others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator

from ..errors import LimitExceeded

MOST_WAITING = 200  #: of one user


class Turns:
    """For one event loop. One user has at most all turns except one, so that another soon gets a turn."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._most = max(1, at_once - 1)  #: of one user
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  #: the user whose turn is next comes first

    @contextlib.asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of ``user``. Raises LimitExceeded if too many wait already."""
        if self._free and self._held[user] < self._most:
            self._free -= 1
            self._held[user] += 1
        else:
            await self._wait(user)
        try:
            yield
        finally:
            self._give_back(user)

    async def _wait(self, user: str) -> None:
        queue = self._queues.setdefault(user, deque())
        if sum(not waiting.done() for waiting in queue) >= MOST_WAITING:
            raise LimitExceeded(f"query: {MOST_WAITING} of yours wait already; wait for their answers")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                self._give_back(user)
            raise

    def _give_back(self, user: str) -> None:
        self._held[user] -= 1
        self._held += Counter()  # forgets users without turns
        self._free += 1
        self._give_on()

    def _give_on(self) -> None:
        """Give free turns to waiting users, the one first whose last turn was longest ago."""
        while self._free and (user := self._next()) is not None:
            self._free -= 1
            self._held[user] += 1
            self._queues[user].popleft().set_result(None)
            self._queues.move_to_end(user)

    def _next(self) -> str | None:
        for user, queue in list(self._queues.items()):
            while queue and queue[0].done():  # just given up
                queue.popleft()
            if not queue:
                del self._queues[user]
            elif self._held[user] < self._most:
                return user
        return None
