"""The client for asyncio: ``job = await aio.submit(…)``, ``await job.wait()``, ``async for line in job.logs(follow=True)``.

Requests are made on threads, but waits are awaited here, so that a cancelled one ends at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from ..engine.errors import Unreachable
from . import submitting
from .following import FIRST_POLL, POLL
from .job_handle import Job
from .row_tables import Table


class AsyncJob:
    """A `Job` with awaitable methods; ``job`` is the plain one."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def name(self) -> str:
        return self.job.name

    async def rows(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.job.rows)

    async def state(self) -> str:
        return await asyncio.to_thread(lambda: self.job.state)

    async def reason(self) -> str | None:
        return await asyncio.to_thread(lambda: self.job.reason)

    async def expected_start(self) -> datetime | None:
        return await asyncio.to_thread(lambda: self.job.expected_start)

    async def wait(self, timeout: float | None = None, *, check: bool = True) -> AsyncJob:
        """As `Job.wait`."""
        end = None if timeout is None else time.monotonic() + timeout
        pause, rows, away = FIRST_POLL, await self.rows(), 0.0
        while not self.job._over(rows, check):
            if end is not None and time.monotonic() >= end:
                raise self.job.late(rows, timeout)
            await asyncio.sleep(pause if end is None else min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, POLL)
            try:
                rows, away = await self.rows(), 0.0
            except Unreachable:
                away += pause
                if away > self.job._client.patience:
                    raise
        return self

    async def logs(self, follow: bool = False, **options: Any) -> AsyncIterator[str]:
        """As `Job.logs`."""
        lines = self.job.logs(follow, **options)
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            yield line

    async def metrics(self, *names: str) -> Any:
        return await asyncio.to_thread(self.job.metrics, *names)

    async def cancel(self) -> AsyncJob:
        await asyncio.to_thread(self.job.cancel)
        return self

    async def hold(self) -> AsyncJob:
        await asyncio.to_thread(self.job.hold)
        return self

    async def release(self) -> AsyncJob:
        await asyncio.to_thread(self.job.release)
        return self

    async def retry(self) -> AsyncJob:
        return AsyncJob(await asyncio.to_thread(self.job.retry))

    def __repr__(self) -> str:
        return repr(self.job)


def _client() -> submitting.Client:
    from . import _default

    return _default


async def submit(*function: Any, client: submitting.Client | None = None, **options: Any) -> AsyncJob:
    """Like `client.submit`; ``client``: another `Client` than the default one."""
    return AsyncJob(await asyncio.to_thread((client or _client()).submit, *function, **options))


async def job(ref: int | str, *, client: submitting.Client | None = None) -> AsyncJob:
    return AsyncJob(await asyncio.to_thread((client or _client()).job, ref))


async def jobs(*, client: submitting.Client | None = None, **options: Any) -> list[AsyncJob]:
    return [AsyncJob(one) for one in await asyncio.to_thread((client or _client()).jobs, **options)]


async def sql(query: str, *, client: submitting.Client | None = None, **options: Any) -> Table:
    return await asyncio.to_thread((client or _client()).sql, query, **options)


async def top(*, client: submitting.Client | None = None) -> submitting.Top:
    return await asyncio.to_thread((client or _client()).top)
