"""History of a job's data pipelines and their tuners, from the tables: `stoker pipeline`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ..errors import NotFound, UsageError
from ..json_rows import objects
from ..store.store import Store
from .states import FINAL

MOST_DECISIONS = 1000
MOST_POINTS = 2000  #: of a history, more than a plot's pixels
_STAGE = (
    "stage", "position", "workers", "unit", "value", "latency", "cpu", "wait", "items", "busy", "starved", "blocked", "queue",
    "queue_bytes",
)  # fmt: skip


def describe(store: Store, job: int, *, rank: int | None, name: str | None, decisions: int, points: int) -> dict[str, Any]:
    """The answer of `GET /v1/jobs/REF/pipeline`; see docs/api.md. None: the lowest rank that has one, its first pipeline.

    Raises NotFound if the job has reported no pipeline, UsageError if it has another rank or name.
    """
    (row,) = objects(store, "api/job", job)
    found = objects(store, "api/pipeline_now", job)
    if not found:
        raise NotFound(_why_none(row))
    limit = (row["spec"].get("pipeline") or {}).get("memory")
    pipelines = [_pipeline(list(rows), limit) for _, rows in groupby(found, lambda stage: (stage["rank"], stage["pipeline"]))]
    shown = next((one for one in pipelines if rank in (None, one["rank"]) and name in (None, one["pipeline"])), None)
    if shown is None:
        known = ", ".join(f"{one['pipeline']} of rank {one['rank']}" for one in pipelines[:8])
        wanted = f"{f' {name!r}' if name else ''}{f' of rank {rank}' if rank is not None else ''}"
        raise UsageError(f"job {job} has no pipeline{wanted}; it has {known}")
    which = (job, shown["rank"], shown["pipeline"])
    return {
        "job": {"id": job, "name": row["name"], "state": row["state"]},
        "shown": {"rank": shown["rank"], "pipeline": shown["pipeline"]},
        "pipelines": pipelines,
        "decisions": objects(store, "api/pipeline_decisions", *which, min(decisions, MOST_DECISIONS)) if decisions else [],
        "history": objects(store, "api/pipeline_history", *which, min(points, MOST_POINTS)) if points else [],
    }


def _pipeline(rows: list[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    """The rows of one pipeline as one object. ``limit``: bytes that the job's spec allows."""
    whole = {name: value for name, value in rows[0].items() if name not in (*_STAGE, "bottleneck")}
    bottleneck = next((row["stage"] for row in rows if row["bottleneck"]), None)
    return {**whole, "memory_limit": limit, "bottleneck": bottleneck, "stages": [{name: row[name] for name in _STAGE} for row in rows]}


def _why_none(job: dict[str, Any]) -> str:
    first = "its tuner first steps some seconds after the training has begun"
    if job["spec"].get("pipeline") is None:
        return (
            f"job {job['id']} has told of no data pipeline that sizes itself: give it a 'pipeline:' block, or wrap its DataLoader "
            "by stoker.loaders.autotuned"
        )
    if job["state"] in FINAL:
        look = "" if job["first_start_at"] is None else f"; see 'stoker logs {job['id']}'"
        return f"job {job['id']} ({job['state']}) ended before its pipeline had told anything: {first}{look}"
    return f"the pipeline of job {job['id']}, which is {job['state']}, has told nothing yet: {first}"
