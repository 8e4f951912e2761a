"""SenseTime Helios (Hu et al., SC'21), and Lucid's tables made of it (Hu et al., ASPLOS'23)."""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row, plain
from .rows import DroppedRow, Row, shown

#: States of Slurm in which a job has not ended. HeliosData's README lists the five of ended jobs (COMPLETED, CANCELLED, FAILED,
#: TIMEOUT, NODE_FAIL) and leaves SUSPENDED out of its analysis.
UNENDED = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def _helios(row: Row) -> TraceJob:
    """Read a job with columns and units as in HeliosData's README: dates without a zone, durations in seconds, GPUs of the whole job."""
    span = row.span("start_time", "end_time")
    if (row.text("state") or "").upper() in UNENDED:
        raise DroppedRow("no end", f"state: {shown(row.values['state'])}: the job had not ended when the log was taken")
    return TraceJob(
        key=row.key("job_id"),
        submitted=row.moment("submit_time"),
        duration=span if row.text("duration") is None else row.number("duration"),
        gpus_min=row.gpus("gpu_num"),
        user_name=row.text("user"),
        pool=row.text("vc"),
        status=row.text("state"),
        raw=row.values,
    )


_LUCID = plain("submit_time", "gpu_num", key=None, dated=True, user="user", pool="vc", status="state", model="model", batch="batchsize")


def _lucid(row: Row) -> TraceJob:
    """Read a job of Lucid; its Philly table has job names instead of ids."""
    key = row.text("job_id") or row.key("jobname")
    job = _LUCID(row)
    job.key = key
    return job


FAMILIES = (
    Family(
        "helios",
        "Helios as published: cluster_log.csv",
        ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "start_time", "end_time", "duration", "queue"),
        each_row(_helios),
    ),
    Family(
        "lucid",
        "Lucid: cluster_full_log.csv",
        ("user", "vc", "gpu_num", "state", "submit_time", "duration"),
        each_row(_lucid),
        own=("model", "batchsize"),  # a Helios table joined with Lucid's columns has all columns of both
    ),
)
