"""Requests to runners on other hosts: sent in the answers to their polls until they have taken them, and answered by them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import LimitExceeded, Unreachable
from ..protocol import Asked, AskRequest, Assignments, LogPiece, LogRequest, Poll
from ..store.store import Committed
from .board import Board


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A kind of request, logs or messages."""

    field: str  #: of `Assignments` that carries it
    flag: str  #: of `Poll` by which a runner says that it answers them
    answer: type
    most: int  #: that may wait for one runner
    waiters: str  #: their name, for an error
    again: bool  #: it is sent again to a runner that restarts meanwhile, as doing it twice is harmless


LOGS = RequestKind("logs", "sends_logs", LogPiece, 100, "readers of logs wait for", again=True)
MESSAGES = RequestKind("asks", "hands_on", Asked, 64, "messages wait for servers of", again=False)


@dataclass(slots=True)
class _Open:
    kind: RequestKind
    request: LogRequest | AskRequest
    answer: asyncio.Future[Any]
    told: int | None = None  #: the session of its runner to which it was sent


class RemoteRequests:
    """Open requests, by runner. On the event loop only, except `committed`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._left: set[str] = set()  #: runners that have left or were declared dead, and have not come back
        self._open: dict[str, dict[int, _Open]] = defaultdict(dict)
        self._newest = time.time_ns() // 1_000_000  # so that a runner has taken none of these numbers from an earlier daemon

    async def ask(self, kind: RequestKind, node: str, make: Callable[[int], LogRequest | AskRequest]) -> Any:
        """The answer of a runner; None: its version answers no such requests. ``make`` gets the number of the request.

        Unreachable: it has left, or leaves before it has answered. The caller must bound the wait.
        """
        if node in self._left:
            raise _left(node)
        under_way = self._open[node]
        if sum(one.kind is kind for one in under_way.values()) >= kind.most:
            raise LimitExceeded(f"{kind.most} {kind.waiters} runner {node} already: try again later")
        self._newest = number = self._newest + 1
        under_way[number] = one = _Open(kind, make(number), asyncio.get_running_loop().create_future())
        self._board.wake(node)
        try:
            return await one.answer
        finally:
            del under_way[number]

    def waiting(self, poll: Poll) -> bool:
        """Whether there are requests for a runner."""
        return bool(self._untold(poll))

    def _untold(self, poll: Poll) -> list[_Open]:
        """Requests that a runner has not taken; one of an earlier version, which does not report that, has all that were sent."""
        waiting = [(number, one) for number, one in self._open[poll.node].items() if not one.answer.done()]
        if poll.taken is None:
            return [one for _, one in waiting if one.told != poll.session]
        taken = poll.taken if poll.taken <= self._newest else 0  # else of an earlier daemon, and the clock was set back since
        return [one for number, one in waiting if number > taken]

    def hand_out(self, poll: Poll, answer: Assignments) -> Assignments:
        """The answer to a poll, with the runner's requests."""
        told = defaultdict[str, list[LogRequest | AskRequest]](list)
        for one in self._untold(poll):
            if one.told not in (None, poll.session) and not one.kind.again:
                one.answer.set_exception(Unreachable(f"runner {poll.node} was started again before it had answered: ask again"))
            elif getattr(poll, one.kind.flag):
                told[one.kind.field].append(one.request)
            else:
                one.answer.set_result(None)
            one.told = poll.session
        return msgspec.structs.replace(answer, **told) if told else answer

    def take(self, answer: LogPiece | Asked) -> None:
        """Take an answer; the asker may have gone."""
        one = self._open[answer.node].get(answer.number)
        if one is not None and not one.answer.done() and isinstance(answer, one.kind.answer):
            one.answer.set_result(answer)

    def committed(self, commit: Committed) -> None:
        """After a commit, on the writer's thread: requests that wait for a runner that has left get an error."""
        for event in commit.events:
            node = event["node_id"]
            if event["kind"] == "node.up":
                self._left.discard(node)
            elif event["kind"] in ("node.stopped", "node.state") and event["after"] in ("stopped", "gone"):
                self._left.add(node)
                for one in list(self._open.get(node, {}).values()):
                    one.answer.get_loop().call_soon_threadsafe(_give_up, one.answer, node)


def _give_up(answer: asyncio.Future[Any], node: str) -> None:
    if not answer.done():
        answer.set_exception(_left(node))


def _left(node: str) -> Unreachable:
    return Unreachable(f"runner {node} has left: ask again when the job runs on another one")
