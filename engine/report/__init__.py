"""Reports: figures and one self-contained page about jobs, from SQL queries that any user could run.

The query function runs a query of sql/report/ and returns a `Table`; the command line passes one that uses `POST /v1/report`.
Times are seconds since the epoch. ``since`` leaves out jobs that ended before it, ``jobs`` all but the named ones;
utilisation is that of the GPUs by all jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .data import Query, Report, Scope, Table, collect

__all__ = ["Query", "Report", "Table", "read_report", "write_report"]


def read_report(query: Query, *, since: float | None = None, jobs: Sequence[int] | None = None, now: float | None = None) -> Report:
    """The data of a report; its ``summary`` has the numbers as plain values, None for a mean of no values."""
    return collect(query, Scope.of(since, jobs, now))


def write_report(report: Report, out: Path, *, title: str) -> Path:
    """Write the figures as PNG and ``index.html`` into the directory ``out``; the path of the page."""
    from . import page, plots, style  # matplotlib takes a second to load

    out.mkdir(parents=True, exist_ok=True)
    index = out / "index.html"
    index.write_text(page.render(report, title, style.write_figures(plots.FIGURES, report, out)), encoding="utf-8")
    return index
