"""At most so many at a time, and users in turn: who asks a hundred questions keeps nobody else waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from ..errors import LimitExceeded

MOST_WAITING = 200  #: of one user


class Turns:
    """For one event loop."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  #: the user whose turn is next comes first

    @contextlib.asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of ``user``. Raises LimitExceeded when too many wait already."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(user)
        try:
            yield
        finally:
            self._give_on()

    async def _wait(self, user: str) -> None:
        queue = self._queues.setdefault(user, deque())
        if len(queue) >= MOST_WAITING:
            raise LimitExceeded(f"query: {MOST_WAITING} of yours wait already; wait for their answers")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                self._give_on()
            raise

    def _give_on(self) -> None:
        while self._queues:
            user, queue = self._queues.popitem(last=False)
            waiting = [turn for turn in queue if not turn.done()]
            if not waiting:
                continue
            if waiting[1:]:
                self._queues[user] = deque(waiting[1:])  # at the end: others come first
            waiting[0].set_result(None)
            return
        self._free += 1
