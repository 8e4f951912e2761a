"""Gavel (Narayanan et al., OSDI'20) and Shockwave (Zheng et al., NSDI'23): job types and steps, tab-separated, without a header.

Gavel's files have no durations: a duration is the steps divided by the throughput of the job type on that many GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..trace import TraceJob
from .family import Family, each_row
from .rows import Context, Row, TraceSource, csv_rows
from .tables import steps_per_second

TRACE = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor", "priority_weight", "slo",
    "arrival_time",
)  # fmt: skip
SHOCKWAVE = (*TRACE[:7], "mode", "priority_weight", "slo", "duration", "arrival_time")


def _tabbed(columns: tuple[str, ...]) -> Callable[[TraceSource, Context], Iterator[Row]]:
    def rows(source: TraceSource, context: Context) -> Iterator[Row]:
        return csv_rows(source, context, columns, delimiter="\t")

    return rows


def _job(row: Row, arrival: str) -> TraceJob:
    """All but the duration."""
    return TraceJob(
        key=str(row.index),  # the format has no ids
        submitted=row.number(arrival),
        duration=0.0,
        gpus_min=row.gpus("scale_factor"),
        pool=row.text("vc"),
        model=row.key("job_type"),
        iterations=row.optional("total_steps"),
        raw=row.values,
    )


def _with_slo(job: TraceJob, row: Row) -> TraceJob:
    """Add Gavel's SLO, a multiple of the duration; -1 is none."""
    slo = row.number("slo")
    if slo > 0:
        job.demand, job.deadlines, job.rewards = "strict", (slo * job.duration,), (100.0,)
    return job


def _by_steps(row: Row, arrival: str) -> TraceJob:
    job = _job(row, arrival)
    job.duration = row.number("total_steps") / steps_per_second(row, job.model or "", job.gpus_min)
    return job


def _trace(row: Row) -> TraceJob:
    return _with_slo(_by_steps(row, "arrival_time"), row)


def _shockwave(row: Row) -> TraceJob:
    job = _job(row, "arrival_time")
    job.duration = row.number("duration")
    return _with_slo(job, row)


def _flat(row: Row) -> TraceJob:
    return _by_steps(row, "arrival_s")


FAMILIES = (
    Family("gavel", "Gavel's .trace, without durations", TRACE, each_row(_trace, _tabbed(TRACE)), ("throughputs",)),
    Family("shockwave", "Shockwave's .trace", SHOCKWAVE, each_row(_shockwave, _tabbed(SHOCKWAVE))),
    Family(
        "gavel-csv",
        "Gavel's generated Philly traces as a table",
        ("vc", "job_type", "total_steps", "arrival_s", "scale_factor"),
        each_row(_flat),
        ("throughputs",),
    ),
)
