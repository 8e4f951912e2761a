"""The reports of a job as they come, for exports to other tools."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .connection import Connection
from .following import FINAL, job_path, patiently

LOOK_INTERVAL = 2.0  #: seconds between requests for new reports


class Value(NamedTuple):
    """One value of a record."""

    step: int
    name: str
    value: float
    moment: float  #: seconds since 1970


class Batch(NamedTuple):
    """Some values, and the place after them, from which a reader can go on."""

    values: list[Value]
    after: str


def reported(client: Connection, job: int, after: str | None = None, *, follow: bool = False) -> Iterator[Batch]:
    """All values that a job has reported after a place; with ``follow`` also new ones until it has ended."""
    while True:
        over = not follow or patiently(lambda: client.get(job_path(job))["job"]["state"]) in FINAL  # first, so that no report is missed
        while True:
            answer = patiently(lambda after=after: client.get(job_path(job, "metrics"), after=after))  # type: ignore[misc]
            after = answer["after"]
            if answer["rows"]:
                yield Batch([Value(row[2], row[3], row[4], row[5]) for row in answer["rows"] if row[4] is not None], answer["after"])
            if not answer["more"]:
                break
        if over:
            return
        time.sleep(LOOK_INTERVAL)


def facts(client: Connection, ref: int | str) -> list[dict[str, Any]]:
    """Rows of the jobs that a word names."""
    answer = client.get(job_path(ref))
    numbers = answer["tasks"] or [answer["job"]["id"]]
    return [answer["job"] if number == answer["job"]["id"] else client.get(job_path(number))["job"] for number in numbers]
