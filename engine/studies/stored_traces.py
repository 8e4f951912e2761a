"""Adding workload traces to the tables and dropping them, each whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Conflict, NotFound, StokerError, nearest
from ..jobs.owners import require_own
from ..store.transaction import Transaction
from ..traces.trace import Trace


@dataclass(frozen=True, slots=True)
class NewTrace:
    """A trace to be added.

    ``slices`` returns an iterator over the rows of `trace_jobs` in order, some thousand at a time, so that the
    writer never holds all of them; it may be called again.
    """

    about: Trace  #: without its jobs
    jobs: int
    user: str
    slices: Callable[[], Iterable[list[dict[str, Any]]]]

    def is_like(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of `traces` has the same content: the same file, read in the same way."""
        known = [json.loads(row[column] or "null") for column in ("dropped", "repaired", "recipe")]
        about = self.about
        told = [about.dropped, about.repaired, about.recipe]
        return (row["sha256"], row["format"], row["jobs"]) == (about.sha256, about.format, self.jobs) and known == told


def known_trace(request: NewTrace, rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Number of the stored trace with this name and content, None when the name is free; else Conflict."""
    for row in rows:
        if row["name"] == request.about.name:
            if request.is_like(row):
                return int(row["id"])
            raise Conflict(
                f"trace {request.about.name!r} is there already with other content, from {row['source']}: "
                f"give another name with --name, or 'stoker trace drop {request.about.name}' first"
            )
    return None


def add_trace(tx: Transaction, batch: Sequence[NewTrace]) -> Sequence[dict[str, Any] | StokerError]:
    """Add traces; returns ``{id, name, jobs, existing}`` for each. The same content under the same name is not stored again."""
    rows = tx.objects("traces")
    answers: list[dict[str, Any] | StokerError] = []
    for request in batch:
        try:
            number = known_trace(request, rows)
        except Conflict as conflict:
            answers.append(conflict)
            continue
        existing = number is not None
        if number is None:
            row = _insert(tx, request)
            rows.append(row)
            number = row["id"]
        answers.append({"id": number, "name": request.about.name, "jobs": request.jobs, "existing": existing})
    return answers


def _insert(tx: Transaction, request: NewTrace) -> dict[str, Any]:
    number, position = tx.number("traces"), 0
    for rows in request.slices():
        for job in rows:
            job["trace_id"], job["job"] = number, position
            position += 1
        tx.insert("trace_jobs", rows)
    about = request.about
    row = {
        "id": number, "name": about.name, "format": about.format, "source": about.source, "sha256": about.sha256,
        "added_at": tx.now, "added_by": request.user, "starts_at": about.starts_at, "jobs": position,
        "dropped": json.dumps(about.dropped), "repaired": json.dumps(about.repaired),
        "recipe": None if about.recipe is None else json.dumps(about.recipe),
    }  # fmt: skip
    tx.insert("traces", [row])
    tx.event("trace.added", request.user, reason=f"{position} jobs", detail={"id": number, "name": about.name, "source": about.source})
    tx.touch("traces")
    return row


def drop_trace(tx: Transaction, batch: Sequence[tuple[str, str, str | None]]) -> Sequence[dict[str, Any] | StokerError]:
    """``(name, actor, only)``: remove the trace and its jobs; simulations of it stay. ``only``: only if it is this user's."""
    known = {row["name"]: row for row in tx.objects("traces")}
    answers: list[dict[str, Any] | StokerError] = []
    for name, actor, only in batch:
        row = known.get(name)
        try:
            if row is None:
                raise no_trace(name, known)
            require_own(f"trace {name}", row["added_by"], only)
        except StokerError as error:
            answers.append(error)
            continue
        del known[name]
        tx.delete("trace_jobs", "trace_id", [row["id"]])
        tx.delete("traces", "id", [row["id"]])
        tx.event("trace.dropped", actor, reason=f"{row['jobs']} jobs", detail={"id": row["id"], "name": name})
        tx.touch("traces")
        answers.append({"id": row["id"], "name": name, "jobs": row["jobs"]})
    return answers


def no_trace(name: str, known: Iterable[str]) -> NotFound:
    return NotFound(f"there is no trace {name[:100]!r}{nearest(name, list(known))}; 'stoker trace list' shows them")
