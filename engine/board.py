"""The assignments of every runner, in memory with a version: long polls are answered from here, not by a query each."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from .protocol import Assignment, Assignments
from .store.store import Store

RENDEZVOUS_BASE = 29500


class Board:
    """Written after commits that touch leases (any thread), read by polls (the event loop)."""

    def __init__(self, store: Store, shutdown: Callable[[str], str | None]) -> None:
        self._store = store
        self._shutdown = shutdown
        self._lock = threading.Lock()
        self._base = time.time_ns() // 1_000_000  # so that no version of an earlier daemon comes again with other contents
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._answers: dict[str, Assignments] = {}
        self._specs: dict[int, dict[str, Any]] = {}  # lease to its job's spec: read once, it never changes

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def detach(self) -> None:
        """The loop is about to be closed: commits that come later wake nobody."""
        with self._lock:
            self._loop = None

    def refresh(self) -> None:
        """Read the live leases; wake the polls of runners whose assignments have changed."""
        with self._lock:
            wanted = self._read()
            changed = []
            for node in wanted.keys() | self._answers.keys():
                now = Assignments(version=0, leases=wanted.get(node, []), shutdown=self._shutdown(node))
                before = self._answers.get(node)
                if before is None or msgspec.structs.replace(before, version=0) != now:
                    version = (before.version if before else self._base) + 1
                    self._answers[node] = msgspec.structs.replace(now, version=version)
                    changed.append(node)
            if self._loop is not None and changed:
                self._loop.call_soon_threadsafe(self._wake, changed)

    def _read(self) -> dict[str, list[Assignment]]:
        rows = self._store.objects("policy/assignments")
        live = {row["lease"] for row in rows}
        fresh = sorted(live - self._specs.keys())
        self._specs = {lease: spec for lease, spec in self._specs.items() if lease in live}
        if fresh:
            self._specs |= {lease: json.loads(spec) for lease, spec in self._store.rows("policy/lease_specs", fresh)}
        wanted: dict[str, list[Assignment]] = defaultdict(list)
        for row in rows:
            node = row.pop("node")
            if row["rendezvous"]:
                row["rendezvous"] += f":{RENDEZVOUS_BASE + row['lease'] % 1000}"
            wanted[node].append(Assignment(**row, spec=self._specs[row["lease"]]))
        return wanted

    def _wake(self, nodes: list[str]) -> None:
        for node in nodes:
            for waiter in self._waiters[node]:
                waiter.set()

    async def poll(self, node: str, version: int, wait: float) -> Assignments:
        """The assignments of a node as soon as their version is another one than ``version``, at the latest after ``wait`` s."""
        waiter = asyncio.Event()
        self._waiters[node].add(waiter)
        try:
            answer = self._answers.get(node)
            if (answer is None or answer.version == version) and not self._closing:
                try:
                    await asyncio.wait_for(waiter.wait(), wait)
                except TimeoutError:
                    pass
            return self._answers.get(node) or Assignments(version=0, leases=[], shutdown=self._shutdown(node))
        finally:
            self._waiters[node].discard(waiter)

    def close(self) -> None:
        """Answer every poll at once from now on: the daemon is stopping."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._wake(list(self._waiters)))
