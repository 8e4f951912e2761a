"""Stoker from Python: submit jobs, wait for them, read their logs and metrics, ask the database.

    from stoker import client

    job = client.submit(command="python train.py --lr {lr}", array={"lr": [0.1, 0.01]}, gpus=1)
    job.wait(timeout=3600)
    print(job.state, job.reason)

Requests go to the daemon that the command line uses: ``STOKER_URL`` with ``STOKER_TOKEN``, or the socket of ``STOKER_HOME``. Errors
are exceptions with the sentences of the command line; their classes are named like its exit codes (docs/python.md).
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from ..engine.errors import (
    Conflict,
    JobFailed,
    LimitExceeded,
    NotFound,
    Stale,
    StokerError,
    StoreError,
    Unauthorized,
    Unreachable,
    UsageError,
)
from .job_handle import Job
from .row_tables import Table
from .submitting import Client

if TYPE_CHECKING:
    from . import aio

__all__ = [
    "Client",
    "Conflict",
    "Job",
    "JobFailed",
    "LimitExceeded",
    "NotFound",
    "Stale",
    "StokerError",
    "StoreError",
    "Table",
    "Unauthorized",
    "Unreachable",
    "UsageError",
    "aio",
    "dry_run",
    "job",
    "jobs",
    "sql",
    "submit",
    "top",
]

_default = Client()  #: it connects at its first request, and looks up the daemon's address at each

atexit.register(_default.close)

submit = _default.submit
dry_run = _default.dry_run
job = _default.job
jobs = _default.jobs
sql = _default.sql
top = _default.top


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext stoker.client`` gives a notebook ``%%stoker sql``."""
    from .magic import register

    register(shell)


def __getattr__(name: str) -> Any:
    if name == "aio":  # importing asyncio takes longer than all the rest
        from importlib import import_module

        return import_module(f"{__name__}.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
