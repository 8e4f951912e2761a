"""The description of a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..trace import TraceJob
from .rows import Context, DroppedRow, Row, TraceSource, csv_rows

Jobs = Iterator[tuple[int, TraceJob]]  #: line and job in the file's order; submissions are seconds of the file's own clock

Reader = Callable[[TraceSource, Context], Jobs]


@dataclass(frozen=True)
class Family:
    """One format: how it is recognised, and how its jobs are read."""

    name: str
    title: str  #: its origin
    columns: tuple[str, ...]  #: columns that its header must have; without a header the names of its fields
    jobs: Reader
    options: tuple[str, ...] = ()  #: those of `throughputs`, `durations` and `join` that it uses
    own: tuple[str, ...] = ()  #: columns that only this format has: a file with all of these too is of this format
    has_jobs: bool = True  #: False: it only completes another table, and is recognised so that an error can say so


def each_row(job: Callable[[Row], TraceJob], rows: Callable[[TraceSource, Context], Iterator[Row]] = csv_rows) -> Reader:
    """A reader for formats with one job in each row."""

    def jobs(source: TraceSource, context: Context) -> Jobs:
        for row in rows(source, context):
            try:
                found = job(row)
            except DroppedRow as drop:
                context.tally.drop(row.line, drop.reason, drop.detail)
                continue
            yield row.line, found

    return jobs


def plain(
    submitted: str,
    gpus: str,
    *,
    key: str | None = "job_id",
    dated: bool = False,
    duration: str | None = "duration",
    user: str | None = None,
    pool: str | None = None,
    model: str | None = None,
    batch: str | None = None,
    iterations: str | None = None,
    status: str | None = None,
) -> Callable[[Row], TraceJob]:
    """A function that reads a job from columns of these names. ``key`` None: no ids; ``dated``: dates are allowed; ``duration`` None: 0."""

    def job(row: Row) -> TraceJob:
        return TraceJob(
            key=str(row.index) if key is None else row.key(key),
            submitted=row.moment(submitted) if dated else row.number(submitted),
            duration=0.0 if duration is None else row.number(duration),
            gpus_min=row.gpus(gpus),
            user_name=user and row.text(user),
            pool=pool and row.text(pool),
            model=model and row.text(model),
            batch_size=None if batch is None else row.count(batch),
            iterations=None if iterations is None else row.optional(iterations),
            status=status and row.text(status),
            raw=row.values,
        )

    return job


def with_deadline(job: TraceJob, row: Row, column: str) -> TraceJob:
    """Give a job the strict deadline in a column (absolute, by the clock of its submission)."""
    if row.text(column) is not None:
        after = row.number(column) - job.submitted
        if after > 0:
            job.demand, job.deadlines, job.rewards = "strict", (after,), (100.0,)
        else:
            row.repair("deadline not after the submission, left out", f"{column}: {row.values[column]}")
    return job
