"""Workloads without durations: Pollux's (Qiao et al., OSDI'21) and Titan's (Gao et al., SoCC'22).

Their jobs run until a model has converged; how long that takes on what a job asks for must be told in a table of durations.
"""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row
from .rows import Row
from .tables import duration_of


def _pollux(row: Row) -> TraceJob:
    job = TraceJob(
        key=row.key("name"),
        submitted=row.number("time"),
        duration=0.0,
        gpus_min=row.gpus("num_replicas"),
        model=row.text("application"),
        batch_size=row.count("batch_size"),
        raw=row.values,
    )
    job.duration = duration_of(job, row)
    return job


def _titan(row: Row) -> TraceJob:
    job = TraceJob(
        key=row.key("name"),
        submitted=row.number("submission_time"),
        duration=0.0,
        gpus_min=row.gpus("num_gpus"),
        model=row.text("application"),
        batch_size=row.count("target_batch_size"),
        stop="performance" if row.text("target_metric") else None,
        raw=row.values,
    )
    job.duration = duration_of(job, row)
    return job


_POLLUX = ("name", "time", "application", "num_replicas", "batch_size")
_TITAN = ("name", "submission_time", "application", "num_gpus")
FAMILIES = (
    Family("pollux", "Pollux's workloads, without durations", _POLLUX, each_row(_pollux), ("durations",)),
    Family("titan", "Titan's workloads, without durations", _TITAN, each_row(_titan), ("durations",)),
)
