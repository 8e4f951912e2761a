"""One look at the database for all open pages: the queue, the jobs on each GPU, and the newest events."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ..api.thread_pools import Kind
from ..json_rows import objects

if TYPE_CHECKING:
    from ..services import Services

MOST_JOBS = 10_000  #: jobs that have not ended


@dataclass(frozen=True)
class Look:
    now: float
    jobs: list[dict[str, Any]]
    gpus: list[dict[str, Any]]
    shares: list[dict[str, Any]]
    warm: list[dict[str, Any]]
    notices: list[dict[str, Any]]
    counts: dict[str, int]
    seconds: float  #: processor time of the look

    @cached_property
    def by_id(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in self.jobs}

    @cached_property
    def running(self) -> list[dict[str, Any]]:
        return [row for row in self.jobs if row["lease_id"] is not None]

    @cached_property
    def queue(self) -> list[dict[str, Any]]:
        return [row for row in self.jobs if row["lease_id"] is None]

    @cached_property
    def on_gpu(self) -> dict[str, list[dict[str, Any]]]:
        """The shares of jobs on each GPU."""
        found: dict[str, list[dict[str, Any]]] = {}
        for share in self.shares:
            found.setdefault(share["gpu_id"], []).append(share)
        return found

    @cached_property
    def gpus_of(self) -> dict[int, list[str]]:
        """The GPUs of each job."""
        found: dict[int, list[str]] = {}
        for share in self.shares:
            found.setdefault(share["job_id"], []).append(share["gpu_id"])
        return found


async def look(daemon: Services) -> Look:
    """The newest look, shared by simultaneous requests."""
    found: Look = await daemon.snapshots.ask(Kind.LISTING, "page", partial(_read, daemon))
    return found


async def timed_look(daemon: Services) -> tuple[Look, float]:
    """The newest look, and its processor time (s)."""
    found = await look(daemon)
    return found, found.seconds


def _read(daemon: Services) -> Look:
    began, store = time.thread_time(), daemon.store
    jobs = objects(store, "pages/now_jobs", MOST_JOBS)
    for row in jobs:
        row["labels"] = json.loads(row["labels"] or "{}")
    return Look(
        daemon.clock(),
        jobs,
        objects(store, "pages/now_gpus"),
        objects(store, "pages/now_shares"),
        objects(store, "pages/now_warm"),
        objects(store, "api/notices"),
        daemon.counts.by_state(),
        time.thread_time() - began,
    )
