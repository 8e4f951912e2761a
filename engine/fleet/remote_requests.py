"""Requests to servers on other hosts, handed on by the runners there: told in the answers of their polls, and answered by them."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import LimitExceeded, StokerError, Unreachable, UsageError
from ..protocol import Asked, AskRequest, Assignments, Poll
from .board import Board

MOST_UNDER_WAY = 64  #: messages that may be under way to the servers of one runner
_FAILED: dict[str, type[StokerError]] = {"busy": LimitExceeded, "unreachable": Unreachable, "refused": UsageError}


@dataclass(slots=True)
class _Open:
    request: AskRequest
    answer: asyncio.Future[Asked | None]  #: None: its runner is of a version that hands nothing on
    told: int | None = None  #: the session of its runner that was told of it


class RemoteRequests:
    """What is asked of servers and has not been answered, by runner. On the event loop only."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._open: dict[str, dict[int, _Open]] = {}
        self._numbers = itertools.count(1)

    async def ask(self, node: str, job: int, name: str, lease: int, requests: list[Any], timeout: float) -> list[Any]:
        """The answers of a server. Whoever calls sees to it that it does not wait for ever."""
        under_way = self._open.setdefault(node, {})
        if len(under_way) >= MOST_UNDER_WAY:
            raise LimitExceeded(f"{MOST_UNDER_WAY} messages wait for servers of runner {node} already: ask again later")
        request = AskRequest(number=next(self._numbers), job=job, name=name, lease=lease, requests=requests, timeout=timeout)
        under_way[request.number] = one = _Open(request, asyncio.get_running_loop().create_future())
        self._board.wake(node)
        try:
            found = await one.answer
        finally:
            del under_way[request.number]
        if found is None:
            raise Unreachable(f"{name} runs on another host, and its runner {node} is of a version that hands on no requests: update it")
        if found.failed:
            raise _FAILED[found.failed](found.error)
        return found.answers

    def waiting(self, node: str) -> bool:
        """Whether there is something to tell a runner."""
        return any(one.told is None for one in self._open.get(node, {}).values())

    def hand_out(self, poll: Poll, answer: Assignments) -> Assignments:
        """The answer to a poll, with what is asked of the runner's servers."""
        fresh = [one for one in self._open.get(poll.node, {}).values() if one.told is None]
        for one in self._open.get(poll.node, {}).values():
            if one.told not in (None, poll.session) and not one.answer.done():
                words = f"runner {poll.node} was started again before {one.request.name} answered: ask again"
                one.answer.set_result(
                    Asked(node=poll.node, session=poll.session, number=one.request.number, failed="unreachable", error=words)
                )
        for one in fresh:
            one.told = poll.session
            if not poll.hands_on and not one.answer.done():
                one.answer.set_result(None)
        return msgspec.structs.replace(answer, asks=[one.request for one in fresh]) if fresh and poll.hands_on else answer

    def take(self, asked: Asked) -> None:
        """An answer; whoever asked may have gone."""
        one = self._open.get(asked.node, {}).get(asked.number)
        if one is not None and not one.answer.done():
            one.answer.set_result(asked)
