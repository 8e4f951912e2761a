"""A trace as one self-contained HTML page, beside its figures and their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import format as fmt
from ..pages.components import table, tile
from ..pages.markup import Safe, h
from ..traces.describe import REPEATED_OFTEN, Description, JobGroup, quantiles
from .html import document, figure
from .style import write_figures
from .trace_plots import FIGURES

_HOUR = 3600.0
_MOST_ROWS = 30

SECTIONS = {
    "duration": ("Duration", "Share of the jobs that run at most so long.", "There is no job to show."),
    "requests": ("GPU requests", "How many jobs ask for how many GPUs, and how much of the service they take.", "There is no job to show."),
    "service": ("Service by GPU request", "GPUs × duration of the jobs that ask for so many GPUs.", "No job has any service."),
    "arrivals": (
        "Arrivals",
        "Top: submissions, and the components of their Fourier transform that stand out of the noise. Bottom: what these leave.",
        "There is no job to show.",
    ),
    "demand": ("Load", "GPUs in use if every job started when it was submitted.", "No job has any service."),
    "recurrence": ("Recurrence", "Share of the jobs whose task has at most so many jobs.", "The trace does not tell users or models."),
    "shares": ("Users and pools", "Share of the service of all jobs.", "The trace does not tell users or pools."),
}


def write_trace_report(of: Description, out: Path) -> Path:
    """Write the figures as PNG, the numbers as ``trace.json`` and ``index.html`` into the directory ``out``; the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "trace.json").write_text(json.dumps({**of.summary(), "series": of.series()}) + "\n", encoding="utf-8")
    index = out / "index.html"
    index.write_text(render(of, write_figures(FIGURES, of, out)), encoding="utf-8")
    return index


def render(of: Description, images: dict[str, bytes]) -> str:
    """The page."""
    figures = [figure(*SECTIONS[name][:2], images.get(name), SECTIONS[name][2]) for name in SECTIONS]
    trace = of.trace
    where = f"{trace.format}, from {trace.source}, SHA-256 {trace.sha256[:12]}…; service is GPUs × duration."
    return document(f"Trace {trace.name}", where, h("dl", list(_tiles(of))), figures, list(_tables(of)))


def _tiles(of: Description) -> Iterator[Safe]:
    length, found = quantiles(of.duration), of.arrivals
    left_out = sum(of.trace.dropped.values())
    yield tile("Jobs", f"{len(of.trace.jobs):,}", f"{left_out:,} left out" if left_out else "")
    yield tile("Submitted within", fmt.duration(of.span))
    yield tile("Duration, median", fmt.duration(length["p50"]), f"mean {fmt.duration(length['mean'])}, p99 {fmt.duration(length['p99'])}")
    yield tile("GPU-hours", f"{of.service.sum() / _HOUR:,.0f}")
    load = f": {fmt.percent(of.load)} of {of.capacity:,}" if of.load is not None else ""
    why = "" if of.mean_demand is not None else "; the jobs run for longer than they arrive"
    offered = fmt.MISSING if of.mean_demand is None else fmt.number(of.mean_demand)
    yield tile("GPUs demanded", offered, f"all service over the time of arrival{load}{why}")
    mean = "" if of.demand.mean is None else f", mean {fmt.number(of.demand.mean)} until the last arrival"
    yield tile("GPUs in use, peak", fmt.number(of.demand.peak), f"if no job waited{mean}")
    period = "none" if found.period is None else f"{found.period / _HOUR:.3g} h"
    yield tile("Period of arrivals", period, f"{fmt.percent(found.share)} of the variance is periodic")
    if of.recurrence.often is not None:
        yield tile(f"Repeat > {REPEATED_OFTEN} times", fmt.percent(of.recurrence.often), "by " + ", ".join(of.recurrence.by))


def _tables(of: Description) -> Iterator[Safe]:
    if of.requests:
        columns = ("GPUs", "jobs", "share", "service", "duration, median", "p99", "GPU-hours, median", "p99")
        yield table("GPU requests", columns, (_request_row(of, row) for row in range(len(of.requests[:_MOST_ROWS]))))
    for name, groups in (("Users", of.users), ("Pools", of.pools), ("Ended as", of.statuses)):
        if groups:
            yield _groups(name, groups)
    reasons = [(f"left out: {reason}", f"{count:,}") for reason, count in of.trace.dropped.items()]
    reasons += [(f"repaired: {reason}", f"{count:,}") for reason, count in of.trace.repaired.items()]
    if reasons:
        yield table("Rows of the source", ("reason", "rows"), reasons)


def _request_row(of: Description, row: int) -> Sequence[str]:
    one = of.requests[row]
    took, service = quantiles(one.duration), quantiles(one.service / _HOUR)
    times = (fmt.duration(took["p50"]), fmt.duration(took["p99"]), fmt.number(service["p50"]), fmt.number(service["p99"]))
    return (str(one.gpus), f"{one.jobs:,}", f"{one.share:.1%}", f"{one.service_share:.1%}", *times)


def _groups(name: str, groups: Sequence[JobGroup]) -> Safe:
    heading = name if len(groups) <= _MOST_ROWS else f"{name}: the {_MOST_ROWS} with the most service, of {len(groups)}"
    rows = ((one.name, f"{one.jobs:,}", f"{one.service / _HOUR:,.1f}", f"{one.share:.1%}") for one in groups[:_MOST_ROWS])
    return table(heading, ("name", "jobs", "GPU-hours", "share of service"), rows)
