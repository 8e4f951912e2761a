"""A job, or several that were submitted together, as an object that asks the daemon for its state at each use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ..engine.errors import LimitExceeded, NotFound, StokerError, UsageError
from .connection import Connection
from .following import FINAL, FIRST_POLL, POLL, failure, follow, job_path, patiently, read
from .row_tables import Table, moment

_LISTED = 500  #: jobs in one request
SHOWN = ("id", "name", "state", "progress", "gpus_min", "reason", "est_start", "eta_at")
MOMENTS = ("est_start", "eta_at", "submitted_at", "first_start_at", "finished_at", "deadline", "state_since")


class Job:
    """The result of `submit`: a job, an array, or the jobs of a file. For several jobs, values of a single job are those of the first."""

    def __init__(self, client: Connection, ids: Sequence[int], name: str, existing: bool = False, schedule: int | None = None) -> None:
        self._client = client
        self.ids = list(ids)  #: numbers of all its jobs
        self.name = name  #: for an array the array's name
        self.existing = existing  #: it was submitted before with the same idempotency key
        self.schedule = schedule  #: number of a recurring job, whose runs are jobs of this name

    @property
    def id(self) -> int:
        """Its number; for several jobs that of the first."""
        if not self.ids:
            raise UsageError(f"schedule {self.schedule} is a recurring job: its runs are client.jobs(name={self.name!r}, all=True)")
        return self.ids[0]

    @property
    def tasks(self) -> list[Job]:
        """A list of its jobs; a single job gives a list of one."""
        return [self] if len(self.ids) == 1 else [Job(self._client, [row["id"]], row["name"]) for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the view jobs_now for its jobs, in the order of their numbers."""
        assert self.id
        found: list[dict[str, Any]] = []
        for begin in range(0, len(self.ids), _LISTED):
            ids = ",".join(map(str, self.ids[begin : begin + _LISTED]))
            found += self._client.get("/v1/jobs", id=ids, all=1, arrays=1, limit=_LISTED)["jobs"]
        if not found:
            raise NotFound(f"there is no job {self.id}; 'stoker ps --all' shows them")
        return sorted(found, key=lambda row: row["id"])

    @property
    def row(self) -> dict[str, Any]:
        """The row of its first job."""
        return self.rows()[0]

    @property
    def state(self) -> str:
        """submitted, pending, running, completed, failed or cancelled; for several running while one is, at the end failed if one is."""
        return _together([row["state"] for row in self.rows()])

    @property
    def done(self) -> bool:
        """Whether it has ended in any way."""
        return all(row["state"] in FINAL for row in self.rows())

    @property
    def reason(self) -> str | None:
        """Why it waits, or why it is in its state."""
        rows = self.rows()
        bad = [row for row in rows if row["state"] in ("failed", "cancelled")]
        reason = (bad or rows)[0]["reason"]
        return None if reason is None else str(reason)

    @property
    def expected_start(self) -> datetime | None:
        """When it should start, while it waits; for several jobs the first start."""
        return moment(min((row["est_start"] for row in self.rows() if row["est_start"] is not None), default=None))

    @property
    def expected_end(self) -> datetime | None:
        """When it should end, or ended; for several jobs the last end; None: not known."""
        ends = [row["eta_at"] for row in self.rows()]
        return None if None in ends else moment(max(ends))

    @property
    def progress(self) -> float | None:
        """Share of its steps that are done, from 0 to 1; None: not known."""
        shares = [row["progress"] for row in self.rows()]
        return None if None in shares else sum(shares) / len(shares) / 100.0

    @property
    def exit_code(self) -> int | None:
        """The exit code of its last attempt, negative for a signal; for several jobs the first that is not 0."""
        codes = [row["exit_code"] for row in self.rows()]
        found: int | None = next((code for code in codes if code), codes[0])
        return found

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Job:
        """Wait until it has ended; returns itself. JobFailed if it failed or was cancelled, unless ``check`` is False; or LimitExceeded.

        The wait goes on if the daemon is restarted meanwhile.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_POLL
        rows = self.rows()
        while not self._over(rows, check):
            if end is not None and time.monotonic() >= end:
                raise self.late(rows, timeout)
            time.sleep(pause if end is None else min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, POLL)
            patience = self._client.patience
            rows = patiently(self.rows, patience if end is None else min(patience, end - time.monotonic()))
        return self

    @staticmethod
    def _over(rows: list[dict[str, Any]], check: bool) -> bool:
        if any(row["kind"] == "infer" and row["state"] not in FINAL for row in rows):
            raise UsageError(f"{rows[0]['name']} serves until it is cancelled: it is not waited for")
        if not all(row["state"] in FINAL for row in rows):
            return False
        if check and (failed := failure(rows)) is not None:
            raise failed
        return True

    @staticmethod
    def late(rows: list[dict[str, Any]], timeout: float | None) -> LimitExceeded:
        row = next(row for row in rows if row["state"] not in FINAL)
        return LimitExceeded(f"job {row['id']} {row['name']} is {row['state']} after {timeout:g} s: it goes on, wait again")

    def logs(
        self, follow: bool = False, *, lines: int | None = None, lease: int | None = None, since: datetime | float | None = None
    ) -> Iterator[str]:
        """Lines of its output, from the beginning, or the last ``lines``, or from ``since``; with ``follow`` until it has ended."""
        begin = since.timestamp() if isinstance(since, datetime) else since
        return _lines(self._pieces(follow, lines, lease, begin))

    def _pieces(self, following: bool, lines: int | None, lease: int | None, since: float | None) -> Iterator[str]:
        whole = lines is None and since is None
        with self._client.apart() as connection:
            if following:
                found = follow(connection, str(self.id), lease, lines, since=since, whole=whole, patience=self._client.patience)
            else:
                found = read(connection, str(self.id), lease, lines, since=since, whole=whole)
            for written in found:
                yield written.text

    def metrics(self, *names: str) -> Any:
        """Its reported metrics (of rank 0), oldest first, as a frame of pandas or polars if installed, else a `Table`.

        For one name: job, step, time and that name; for several, or all: job, step, time, name and value. Steps that a later attempt
        has trained again are shown only from that attempt.
        """
        found: list[list[Any]] = []
        for job in self.ids or [self.id]:
            found += [[job, step, moment(at), name, value] for _, _, step, name, value, at in newest(self._client.metrics(job, names))]
        if len(names) == 1:
            return Table(["job", "step", "time", names[0]], [[job, step, at, value] for job, step, at, _, value in found]).frame()
        return Table(["job", "step", "time", "name", "value"], found).frame()

    def explain(self) -> str:
        """Why it waits, or how it came to its state, in a sentence."""
        return str(self._client.get(job_path(self.id, "explain"))["summary"])

    def cancel(self) -> Job:
        """End it: a running job is asked to stop, and may save within its grace period."""
        return self._act("cancel")

    def hold(self) -> Job:
        """Keep it from being scheduled until it is released; a running job is stopped."""
        return self._act("hold")

    def release(self) -> Job:
        """Let it be scheduled again."""
        return self._act("release")

    def set_priority(self, number: int) -> Job:
        """Change its priority; larger is more urgent."""
        return self._act("priority", priority=number)

    def retry(self) -> Job:
        """Submit it again, as a new job, if it failed or was cancelled; for several jobs those that did."""
        made: list[dict[str, Any]] = []
        for job in [row["id"] for row in self.rows() if row["state"] in ("failed", "cancelled")] or [self.id]:
            made += self._client.post_once(job_path(job, "retry"), {"key": self._client.new_key()})["jobs"]
        return Job(self._client, [row["id"] for row in made], self.name)

    def _act(self, action: str, **body: Any) -> Job:
        for job in self.ids or [self.id]:
            self._client.post(job_path(job, action), body)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(tuple(self.ids))

    def __repr__(self) -> str:
        if not self.ids:
            return f"<schedule {self.schedule} {self.name}>"
        several = f"jobs {self.ids[0]} to {self.ids[-1]}" if len(self.ids) > 1 else f"job {self.id}"
        try:
            rows = self.rows()
        except StokerError as error:
            return f"<{several} {self.name}: {error}>"
        reason = f": {rows[0]['reason']}" if rows[0]["reason"] else ""
        counts = ", ".join(f"{n} {state}" for state, n in _counts(rows).items()) if len(rows) > 1 else f"{rows[0]['state']}{reason}"
        return f"<{several} {self.name}, {counts}>"

    def _repr_html_(self) -> str:
        import html

        if not self.ids:
            return f"<p>{html.escape(repr(self))}</p>"
        try:
            return listed(self.rows())._repr_html_()
        except StokerError as error:
            return f"<p>{html.escape(str(error))}</p>"


def listed(rows: Sequence[dict[str, Any]]) -> Table:
    """Rows of jobs_now for people: the important columns, times as dates."""
    shown = [{name: moment(row[name]) if name in MOMENTS else row[name] for name in SHOWN} for row in rows]
    return Table.of(shown, SHOWN)


def newest(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Metrics (lease, seq, step, name, value, time) with each step once: as reported by the last attempt that trained it."""
    first: dict[tuple[int, str], int] = {}
    for lease, _, step, name, *_ in rows:
        first[lease, name] = min(step, first.get((lease, name), step))
    later: dict[str, list[tuple[int, int]]] = {}
    for (lease, name), step in first.items():
        later.setdefault(name, []).append((lease, step))
    return [row for row in rows if not any(lease > row[0] and step <= row[2] for lease, step in later[row[3]])]


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    return counts


def _together(states: Sequence[str]) -> str:
    """The state of several jobs: that of one that is active, else of one that waits, and at the end the worst."""
    order = ("running", "suspending", "starting", "assigned", "profiling", "pending", "submitted", "failed", "cancelled", "completed")
    return min(states, key=lambda state: order.index(state) if state in order else -1)


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole
    if rest:
        yield rest
