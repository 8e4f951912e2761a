"""Microsoft ITP, published with ElasticFlow (Gu et al., ASPLOS'23), and the tables of ElasticFlow's simulator."""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row, with_deadline
from .rows import Row


def _itp(row: Row) -> TraceJob:
    """Model, iterations and deadline are there only in the variant that was made for ElasticFlow."""
    job = TraceJob(
        key=row.key("job_id"),
        submitted=row.number("submission_time"),
        duration=row.number("duration"),
        gpus_min=row.gpus("num_gpu"),
        pool=row.text("cluster"),
        model=row.text("model_name"),
        batch_size=row.count("batch_size"),
        iterations=row.optional("num_iteration"),
        raw=row.values,
    )
    return with_deadline(job, row, "deadline")


def _elasticflow(row: Row) -> TraceJob:
    job = TraceJob(
        key=row.key("job_id"),
        submitted=row.number("submit_time"),
        duration=row.number("duration"),
        gpus_min=row.gpus("num_gpu"),
        model=row.text("model_name"),
        batch_size=row.count("batch_size"),
        iterations=row.optional("iteration"),
        raw=row.values,
    )
    return job if row.optional("best_effort") else with_deadline(job, row, "ddl")


FAMILIES = (
    Family(
        "itp", "Microsoft ITP, with or without ElasticFlow's models", ("job_id", "submission_time", "duration", "num_gpu"), each_row(_itp)
    ),
    Family(
        "elasticflow",
        "ElasticFlow's simulator",
        ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration"),
        each_row(_elasticflow),
    ),
)
