"""Tiresias' table and two derived ones: Muri's in milliseconds, Chronus' in minutes."""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row, plain
from .rows import SMALL, DroppedRow, Row, shown

MINUTE = 60.0
MILLISECOND = 1e-3


_tiresias = plain("submit_time", "num_gpu", model="model_name", iterations="iterations")


def _scaled(row: Row, unit: float) -> TraceJob:
    job = _tiresias(row)
    job.submitted *= unit
    job.duration *= unit
    return job


def _muri(row: Row) -> TraceJob:
    """Read a job of Muri, whose times are integers in ms: 1534000 is 1534 s."""
    job = _scaled(row, MILLISECOND)
    job.batch_size = row.count("batch_size")
    job.priority = row.count("priority", SMALL) or 0
    return job


def _chronus(row: Row) -> TraceJob:
    """Read a job of Chronus (Gao et al., SoCC'21): all times are in minutes; the user is the virtual cluster."""
    job = _scaled(row, MINUTE)
    job.user_name = job.pool = row.text("user")
    kind = row.text("job_type") or ("best" if row.text("best_effort") == "1" else "strict")
    if kind == "best":  # its expected time repeats the submission and means nothing
        return job
    if kind not in ("strict", "soft"):
        raise DroppedRow("unknown job_type", f"job_type: {shown(kind)} is not strict, soft or best")
    steps = _steps(row)
    job.demand = kind
    job.deadlines = tuple(after for after, _ in steps)
    job.rewards = tuple(reward for _, reward in steps) if kind == "soft" else (100.0,) * len(steps)
    return job


def _steps(row: Row) -> list[tuple[float, float]]:
    """Deadlines (s from the submission) and rewards: values are scaled so that the largest is 100, as in Stoker."""
    after = _list(row, "expect_time_list")
    values = _list(row, "expect_value_list")
    if len(after) != len(values):
        raise DroppedRow("deadlines and values differ in number", f"expect_time_list has {len(after)}, expect_value_list {len(values)}")
    if not after or min(after) <= 0 or max(values) <= 0:
        raise DroppedRow("deadlines or values are not positive", f"expect_time_list: {shown(row.values['expect_time_list'])}")
    most = max(values)
    return sorted((minutes * MINUTE, 100.0 * value / most) for minutes, value in zip(after, values, strict=True))


def _list(row: Row, column: str) -> list[float]:
    """Numbers from 0 on with '-' between them."""
    try:
        return [float(int(part)) for part in (row.text(column) or "").split("-")]
    except (ValueError, OverflowError):
        raise DroppedRow(f"{column} is not a list of numbers", f"{column}: {shown(row.values[column])} is not like 60-90-120") from None


_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")
FAMILIES = (
    Family("tiresias", "Tiresias (NSDI'19), in seconds", _COLUMNS, each_row(_tiresias)),
    Family("muri", "Muri (SIGCOMM'22), in milliseconds", (*_COLUMNS, "batch_size", "iteration_time", "priority"), each_row(_muri)),
    Family(
        "chronus",
        "Chronus (SoCC'21), in minutes, with deadlines",
        (*_COLUMNS, "user", "expect_time_list", "expect_value_list", "job_type"),
        each_row(_chronus),
    ),
)
