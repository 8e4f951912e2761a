"""Waiting for a growing log, for the end of jobs, for a daemon that is away. Used by the command line and the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from ..engine.client import Client
from ..engine.errors import JobFailed, LimitExceeded, Unreachable, UsageError

T = TypeVar("T")
LONG_POLL = 20.0  #: seconds that a request waits for more
POLL = 1.0  #: seconds between looks at awaited jobs, and at a daemon that does not answer
FIRST_POLL = 0.05  #: seconds before the second look; then the pause doubles up to `POLL`
PATIENCE = 60.0  #: seconds that a daemon may be away, once it has answered
FINAL = ("completed", "failed", "cancelled")


class Written(NamedTuple):
    """A part of a log, and when each of its lines was written, if requested and known."""

    text: str
    times: list[float | None]


def job_path(ref: str | int, *rest: str) -> str:
    if not str(ref).strip():
        raise UsageError("a job is named by its number or its name, and this one is empty; 'stoker ps' shows them")
    return "/".join(["/v1/jobs", quote(str(ref), safe=""), *rest])


def patiently(ask: Callable[[], T], seconds: float = PATIENCE) -> T:
    """The result of ``ask``; while no daemon answers, it is called again for ``seconds``. Only for requests that may be repeated."""
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() + POLL > end:
                raise
            time.sleep(POLL)


def follow(
    client: Client,
    ref: str,
    lease: int | None = None,
    lines: int | None = None,
    node: str | None = None,
    *,
    since: float | None = None,
    times: bool = False,
    whole: bool = False,
    patience: float = 0.0,
) -> Iterator[Written]:
    """A job's growing log from its last ``lines`` or 64 KiB on, from ``since``, or ``whole``, until the job or the lease has ended.

    One lease is read to its end before the next one, so that no line between them is lost. The daemon may be away for
    ``patience`` seconds, once it has answered.
    """
    reading, last, file, offset = lease, lease, None, 0 if whole else None
    patience_now = 0.0
    while True:
        place: dict[str, Any] = {"lines": lines, "since": since} if offset is None else {"file": file, "offset": offset}
        query = {"lease": reading, "wait": LONG_POLL, "node": node, "times": int(times) or None, **place}

        def ask(query: dict[str, Any] = query) -> Any:
            return client.get(job_path(ref, "logs"), timeout=LONG_POLL + 30, **query)

        answer = patiently(ask, patience_now)
        patience_now = patience
        found = answer["lease"]
        if reading is None and last is not None and found != last:
            reading = last = found
            file, offset = None, 0
            continue
        file, offset = (answer["file"], answer["offset"]) if found is not None else (None, 0 if whole else None)
        if answer["text"]:
            reading = last = found
            yield Written(answer["text"], answer.get("times") or [])
        elif answer["done"]:
            if lease is not None or reading is None:
                return
            reading = None


def read(
    client: Client, ref: str, lease: int | None = None, lines: int | None = None, node: str | None = None, *,
    since: float | None = None, times: bool = False, whole: bool = False,
) -> Iterator[Written]:  # fmt: skip
    """The present log of a job, from where `follow` would begin."""
    place: dict[str, Any] = {"file": "", "offset": 0} if whole else {"lines": lines, "since": since}
    while True:
        answer = client.get(job_path(ref, "logs"), lease=lease, node=node, times=int(times) or None, **place)
        if answer["text"]:
            yield Written(answer["text"], answer.get("times") or [])
        if not answer["text"] or not answer["more"]:
            return
        lease, place = answer["lease"], {"file": answer["file"], "offset": answer["offset"]}


def until_ended(
    client: Client, refs: Sequence[str | int], timeout: float | None = None, patience: float = PATIENCE
) -> Iterator[dict[str, Any]]:
    """Wait for the jobs; their final rows in this order. LimitExceeded if one has not ended within ``timeout`` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    pause, patience_now = FIRST_POLL, 0.0
    for ref in refs:
        while True:
            for_now = patience_now if end is None else min(patience_now, end - time.monotonic())
            row = patiently(lambda ref=ref: client.get(job_path(ref))["job"], for_now)  # type: ignore[misc]
            patience_now = patience
            if row["state"] in FINAL:
                yield row
                break
            if end is not None and time.monotonic() >= end:
                raise LimitExceeded(f"job {row['id']} {row['name']} is {row['state']} after {timeout:g} s: it goes on, wait again")
            time.sleep(min(pause, max(0.0, (end or float("inf")) - time.monotonic())))
            pause = min(2 * pause, POLL)


def where_to_look(job: Mapping[str, Any]) -> str:
    """Names the log of a job; empty where it has never begun, and so has written nothing."""
    return f"; see 'stoker logs {job['id']}'" if job["first_start_at"] is not None or job["exit_code"] is not None else ""


def failure(ended: Sequence[dict[str, Any]]) -> JobFailed | None:
    """The error for awaited jobs, if one of them failed or was cancelled."""
    bad = [row for row in ended if row["state"] != "completed"]
    if not bad:
        return None
    first = bad[0]
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    reason = first["state_reason"] if "state_reason" in first else first["reason"]  # a row of the table jobs, or of the view jobs_now
    cause = (reason or "").removesuffix("; see 'stoker logs'")  # which is said with the number, below
    return JobFailed(f"job {first['id']} {first['name']} {first['state']}: {cause}{more}{where_to_look(first)}")


def post_once(client: Client, path: str, body: Any, patience: float = PATIENCE, timeout: float | None = None) -> Any:
    """The answer to a request with a key, which is sent again when it is unknown whether it was taken."""
    try:
        return client.post(path, body, timeout=timeout)
    except Unreachable as error:
        if not error.sent:
            raise
    try:
        return patiently(lambda: client.post(path, body, timeout=timeout), patience)
    except Unreachable as error:
        raise Unreachable(f"{error}; whether the request was taken is not known: the same with the same key is taken once") from None
