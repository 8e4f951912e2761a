"""Plain tables without a system behind them: submission, duration, GPUs."""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row
from .rows import Row


def _side_by_side(row: Row) -> TraceJob:
    return TraceJob(
        key=row.key("job_key"),
        submitted=row.moment("submit"),
        duration=row.number("duration"),
        gpus_min=row.gpus("num_gpu"),
        pool=row.text("vc"),
        raw=row.values,
    )


FAMILIES = (
    Family(
        "side-by-side",
        "Neutral table for comparing simulators",
        ("job_id", "job_key", "submit", "duration", "num_gpu", "vc"),
        each_row(_side_by_side),
    ),
)
