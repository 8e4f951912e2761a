"""Workloads without durations: Pollux's (Qiao et al., OSDI'21) and Titan's (Gao et al., SoCC'22).

Their jobs run until a model has converged; a table of durations must say how long that takes on the requested GPUs. For Titan's jobs the
author's own tables, if they are beside the file, say it for any number of GPUs: see `titan_tables`.
"""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, Jobs, each_row, plain
from .rows import Context, DroppedRow, Row, TraceSource
from .tables import duration_of
from .titan_tables import TaskKind

_POLLUX_JOB = plain("time", "num_replicas", key="name", duration=None, model="application", batch="batch_size")
_TITAN_JOB = plain("submission_time", "num_gpus", key="name", duration=None, model="application", batch="target_batch_size")


def _pollux(row: Row) -> TraceJob:
    job = _POLLUX_JOB(row)
    job.duration = duration_of(job, row)
    return job


def _titan(row: Row) -> TraceJob:
    """Read a job: rigid if a table of durations is given; elastic from one GPU on with the author's tables."""
    job = _TITAN_JOB(row)
    job.stop = "performance" if row.text("target_metric") else None
    if row.context.durations is not None or row.context.fine_tuning is None:
        job.duration = duration_of(job, row)
        return job
    tables, kind = row.context.fine_tuning, _kind(row)
    try:
        job.duration = tables.seconds(kind)
    except KeyError as error:
        raise DroppedRow("no learning curve for its task", str(error.args[0])) from None
    job.model, job.gpus_min, job.gpus_max = tables.name_of(kind), 1, tables.most_gpus(kind)
    return job


def _kind(row: Row) -> TaskKind:
    backbone, _, task = row.key("application").partition("@")
    batch = row.count("target_batch_size")
    if not batch:
        raise DroppedRow("no target_batch_size", "target_batch_size: is empty, or no number of samples from 1 on")
    return TaskKind(backbone, task, batch, row.number("target_lr"), row.key("target_gradient_steps"), row.number("target_metric"))


def _titans(source: TraceSource, context: Context) -> Jobs:
    tables = context.fine_tuning
    yield from each_row(_titan)(source, context)
    if tables is not None and context.durations is None:
        context.recipe = tables.recipe()


_POLLUX = ("name", "time", "application", "num_replicas", "batch_size")
_TITAN = ("name", "submission_time", "application", "num_gpus")
FAMILIES = (
    Family("pollux", "Pollux's workloads, without durations", _POLLUX, each_row(_pollux), ("durations",)),
    Family("titan", "Titan's workloads, without durations", _TITAN, _titans, ("durations",)),
)
