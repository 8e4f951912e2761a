"""`stoker report`: plots and a page about past jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import format as fmt
from ...errors import UsageError
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path
from ..output import Answer, json_option, print_facts

if TYPE_CHECKING:
    from ...report import Table

QUERY_TIMEOUT = 330.0  #: seconds; the daemon gives up before


def since_option(value: str | None, now: float) -> float | None:
    """A time, or how long ago."""
    from ...spec.reading import units

    if value is None:
        return None
    try:
        return now - units.duration(value) if units.is_relative(value) else units.clock(value)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None


@click.command(cls=Command)
@click.argument("jobs", nargs=-1, type=JOB, metavar="[JOB]...")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("report"), show_default=True, help="Directory.")
@click.option("--since", metavar="WHEN", help="Leave out what had ended before: a duration (2h: two hours ago) or a time.")
@click.option("--title", default="Stoker report", show_default=True, help="Heading of the page.")
@json_option
@pass_app
@examples("stoker report", "stoker report --since 24h --out report/", "stoker report sweep-1 sweep-2 --json")
def report(app: App, jobs: tuple[str, ...], out: Path, since: str | None, title: str) -> Answer:
    """Write plots (PNG) and one self-contained page (index.html) about the jobs.

    GPUs by time, completion times, waiting by reason, utilisation and loss curves; for all jobs, or those named.
    """
    from ...report import Table, read_report, write_report

    def query(name: str, values: Mapping[str, object]) -> Table:
        answer = app.client.post("/v1/report", {"query": name, "values": values}, timeout=QUERY_TIMEOUT)
        return Table(answer["columns"], answer["rows"], answer["truncated"])

    now = time.time()
    begin = since_option(since, now)
    answers = [app.client.get(job_path(ref)) for ref in jobs]
    ids = [job for answer in answers for job in answer["tasks"] or [answer["job"]["id"]]] if jobs else None
    found = read_report(query, since=begin, jobs=ids, now=now)
    try:
        index = write_report(found, out, title=title)
    except OSError as error:
        raise UsageError(f"--out: cannot write {out}: {error.strerror}") from None
    numbers = found.summary
    return Answer({"page": str(index), **numbers}, lambda: print_facts([("page", str(index)), *_facts(numbers)]))


def _facts(numbers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The summary for people."""
    jobs, jct, waiting, deadlines, gpus = (numbers[name] for name in ("jobs", "jct", "waiting", "deadlines", "gpus"))
    states = ", ".join(f"{count} {state}" for state, count in jobs.items() if count and state != "total")
    yield "jobs", f"{jobs['total']}: {states}" if states else "none"
    yield "makespan", fmt.duration(numbers["makespan"])
    for name, times in (("JCT", jct), ("waiting", waiting)):
        yield name, ", ".join(f"{kind} {fmt.duration(seconds)}" for kind, seconds in times.items() if seconds is not None)
    if deadlines["promised"]:
        yield "deadlines", f"{deadlines['met']} of {deadlines['due']} that were due are met, {deadlines['promised']} in all"
    yield "preemptions", f"{numbers['preemptions']}, failed attempts {numbers['failed_attempts']}"
    yield "GPUs or slots", f"{gpus['count']}, held {fmt.percent(gpus['leased'])} of the time, {fmt.duration(gpus['seconds'])} in all"
