"""`stoker trace describe`: a trace in tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import format as fmt
from ...errors import UsageError
from ..command import App, Command, examples, pass_app, unless_ended
from ..output import Answer, Column, Row, json_option, print_facts, print_table, section, write

if TYPE_CHECKING:
    from ...traces.describe import Description

HOUR = 3600.0
MOST_ROWS = 12


def _time(part: str, quantile: str) -> Callable[[Row], str]:
    return lambda row: fmt.duration(row[part][quantile])


def _hours(quantile: str) -> Callable[[Row], str]:
    return lambda row: fmt.three_digits(row["service"][quantile] / HOUR)


def _share(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.1%}"


_REQUESTS = [
    Column("GPUS", "gpus", right=True),
    Column("JOBS", "jobs", right=True),
    Column("OF JOBS", _share("share"), right=True, rank=3),
    Column("OF SERVICE", _share("service_share"), right=True),
    Column("MEDIAN", _time("duration", "p50"), right=True),
    Column("P99", _time("duration", "p99"), right=True, rank=2),
    Column("GPU-HOURS, MEDIAN", _hours("p50"), right=True, rank=1),
    Column("P99", _hours("p99"), right=True, rank=4),
]


def _groups(header: str) -> list[Column]:
    return [
        Column(header, "name", flexible=True),
        Column("JOBS", "jobs", right=True),
        Column("GPU-HOURS", lambda row: f"{row['gpu_hours']:,.1f}", right=True),
        Column("OF SERVICE", _share("share"), right=True, share=lambda row: float(row["share"])),
    ]


@click.command("describe", cls=Command)
@click.argument("trace", metavar="TRACE")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write figures (PNG), trace.json and index.html."
)
@click.option("--nodes", metavar="NODESxGPUS", help="Cluster that the load is told against, such as 100x8.")
@click.option(
    "--task", metavar="COLUMNS", help="What jobs of one task share: some of user, model, gpus, pool (default: what the trace tells)."
)
@json_option
@pass_app
@examples(
    "stoker trace describe philly",
    "stoker trace describe philly.csv --nodes 100x8 --out philly/",
    "stoker trace describe philly --task user,gpus --json",
)
@unless_ended("the trace was not described")
def describe(app: App, trace: str, out: Path | None, nodes: str | None, task: str | None) -> Answer:
    """Describe a trace: a file, or one that was imported.

    Durations, GPU requests and their service, arrivals per hour with their period, recurrence, load, users and pools.
    """
    from ...sim.cluster import Cluster
    from ...traces.describe import Description
    from .trace_source import as_options, load_trace

    by = tuple(column.strip() for column in task.split(",")) if task else ()
    try:
        capacity = Cluster.parse(nodes).total if nodes else None
        described = Description(load_trace(trace, lambda: app.client), by, capacity)
        summary = described.summary()
    except ValueError as error:
        raise UsageError(as_options(str(error), ("nodes", "task"))) from None
    page = _write(described, out) if out else None
    return Answer({**summary, "page": page}, lambda: _show(summary, page))


def _write(described: Description, out: Path) -> str:
    from ...report.trace_page import write_trace_report

    try:
        return str(write_trace_report(described, out))
    except OSError as error:
        raise UsageError(f"--out: cannot write {out}: {error.strerror}") from None


def _show(summary: dict[str, Any], page: str | None) -> None:
    print_facts([("page", page or ""), *_facts(summary)])
    section("GPU requests")
    _top(summary["requests"], _REQUESTS, "no jobs")
    for title, key, header in (("Users", "users", "USER"), ("Pools", "pools", "POOL"), ("Ended as", "statuses", "STATUS")):
        if summary[key]:
            section(title)
            _top(summary[key], _groups(header), "none")


def _top(rows: Sequence[Row], columns: list[Column], empty: str) -> None:
    print_table(rows[:MOST_ROWS], columns, empty)
    if len(rows) > MOST_ROWS:
        write(f"and {len(rows) - MOST_ROWS} more; --json has them all\n")


def _facts(of: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "trace", f"{of['name']}: {of['format']}, from {of['source']}"
    yield "jobs", f"{of['jobs']:,}, submitted within {fmt.duration(of['span'])}"
    yield "left out", ", ".join(f"{count:,} {reason}" for reason, count in of["dropped"].items())
    length = of["duration"]
    yield "duration", ", ".join(f"{name} {fmt.duration(length[key])}" for name, key in _LENGTHS) if of["jobs"] else ""
    yield "service", f"{of['gpu_hours']:,.0f} GPU-hours"
    demand = of["demand"]
    load = f"; a load of {demand['load']:.2f} for {demand['capacity']:,} GPUs" if demand["load"] is not None else ""
    why = "unknown, as the jobs run for longer than they arrive"
    offered = f"{fmt.number(demand['offered'])}: all service over the time of arrival{load}" if demand["offered"] is not None else why
    yield "GPUs demanded", offered if of["jobs"] else ""
    mean = f"mean {fmt.number(demand['mean'])} until the last arrival, " if demand["mean"] is not None else ""
    yield "GPUs in use", f"if no job waited: {mean}peak {fmt.number(demand['peak'])}" if of["jobs"] else ""
    yield "arrivals", _arrivals(of["arrivals"]) if of["jobs"] else ""
    yield "recurrence", _recurrence(of["recurrence"])
    for key, name in (("demands", "deadlines"), ("stops", "stop at"), ("scales", "scales")):
        yield name, ", ".join(f"{count:,} {word}" for word, count in of[key].items())


_LENGTHS = (("median", "p50"), ("mean", "mean"), ("p90", "p90"), ("p99", "p99"), ("longest", "max"))


def _arrivals(found: dict[str, Any]) -> str:
    each = "an hour" if found["bucket"] == HOUR else f"in {found['bucket'] / HOUR:g} hours"
    if found["period"] is None:
        period = "no period stands out"
    else:
        period = (
            f"the dominating period is {found['period'] / HOUR:.1f} h, {fmt.percent(found['periodic_share'])} of the variance is periodic"
        )
    return f"mean {fmt.number(found['mean'])} {each}, peak {fmt.number(found['peak'])}; {period}"


def _recurrence(found: dict[str, Any]) -> str:
    if not found["jobs"]:
        return "unknown: the trace does not tell users or models" if not found["by"] else f"no job has {', '.join(found['by'])}"
    often = fmt.percent(found["more_than_ten"])
    return f"{found['tasks']:,} tasks by {', '.join(found['by'])}; {often} of the jobs repeat more than ten times"
