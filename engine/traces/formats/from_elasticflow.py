"""Microsoft ITP, published with ElasticFlow (Gu et al., ASPLOS'23), and the tables of ElasticFlow's simulator."""

from __future__ import annotations

from ..trace import TraceJob
from .family import Family, each_row, plain, with_deadline
from .rows import Row

#: model, iterations and deadline are only in the variant that was made for ElasticFlow
_ITP = plain("submission_time", "num_gpu", pool="cluster", model="model_name", batch="batch_size", iterations="num_iteration")
_ELASTICFLOW = plain("submit_time", "num_gpu", model="model_name", batch="batch_size", iterations="iteration")


def _itp(row: Row) -> TraceJob:
    return with_deadline(_ITP(row), row, "deadline")


def _elasticflow(row: Row) -> TraceJob:
    job = _ELASTICFLOW(row)
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
