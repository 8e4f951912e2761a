"""The threads on which endpoints work, in one pool for each kind of request: when one kind is full, the others go on.

Requests that must never wait need no thread: `/healthz` and the polls of runners are answered on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import ParamSpec, TypeVar

from ..errors import LimitExceeded

P = ParamSpec("P")
T = TypeVar("T")
MOST_LARGE = 8  #: requests with a large body in memory at a time
MOST_WAITING = 500  #: calls that wait for threads of one kind; more are refused, for they take memory and would wait too long


class Kind(StrEnum):
    """The kinds of requests, each with its own threads."""

    CONTROL = "control"  #: changes, and the reads and checks for them
    STATUS = "status"  #: the status alone, which takes milliseconds
    LISTING = "listing"  #: answers that many clients watch: the usual listings of jobs and runners, `top`
    READ = "read"  #: all other reads
    UPLOAD = "upload"  #: large bodies
    REPORT = "report"  #: requests that may take long: the reads of a report, and dry runs


#: Few: a query takes a whole core while it runs, and the host's cores are for the jobs.
THREADS = {Kind.CONTROL: 4, Kind.STATUS: 1, Kind.LISTING: 2, Kind.READ: 4, Kind.UPLOAD: 2, Kind.REPORT: 2}


class Pools:
    """One pool of threads for each kind; threads start when needed. To be used from the event loop."""

    def __init__(self) -> None:
        self._pools = {kind: ThreadPoolExecutor(threads, thread_name_prefix=f"api-{kind}") for kind, threads in THREADS.items()}
        self._asked: Counter[Kind] = Counter()

    async def run(self, kind: Kind, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on a thread of this kind; LimitExceeded when too many calls wait for one."""
        if self._asked[kind] >= MOST_WAITING + THREADS[kind]:
            raise LimitExceeded(f"the daemon is busy: {MOST_WAITING} requests like this one wait already; try again later")
        self._asked[kind] += 1
        try:
            return await asyncio.wrap_future(self._pools[kind].submit(partial(function, *args, **kwargs)))
        finally:
            self._asked[kind] -= 1

    def close(self) -> None:
        """Start no more calls; those that run are not waited for."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
