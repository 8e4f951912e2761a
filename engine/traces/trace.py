"""A workload trace in one form for all sources: that of the tables `traces` and `trace_jobs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ...policies.contract import Demand, Profile
from ..sim.workload import Workload, make_workload
from .fine_tuning import told

DEMANDS = {"best-effort": Demand.BEST_EFFORT, "soft": Demand.SOFT, "strict": Demand.STRICT}


class TraceJob(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False
):  # it is in no reference cycle, so the garbage collector need not visit a million of them
    """One job; the fields are the columns of `trace_jobs`, where they are explained. Times are seconds."""

    key: str
    submitted: float
    duration: float
    gpus_min: int
    gpus_max: int = 0  #: 0: as many as gpus_min
    user_name: str | None = None
    pool: str | None = None
    model: str | None = None
    batch_size: int | None = None
    iterations: float | None = None
    status: str | None = None
    priority: int = 0
    estimate: float | None = None
    demand: str = "best-effort"
    deadlines: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    stop: str | None = None
    scale: str | None = None
    raw: dict[str, str] | None = None


class Trace(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A trace with its jobs in the order of their submission; the other fields are the columns of `traces`."""

    name: str
    format: str
    source: str
    sha256: str
    jobs: list[TraceJob]
    starts_at: float | None = None  #: seconds since the epoch
    dropped: dict[str, int] = {}
    repaired: dict[str, int] = {}
    recipe: dict[str, Any] | None = None


def to_workload(trace: Trace, profiles: Sequence[Profile] = ()) -> Workload:
    """The trace as columns for the simulator; jobs whose model has a profile of that name get it."""
    jobs = trace.jobs
    duration = np.array([job.duration for job in jobs], dtype=np.float64)
    gpus = np.array([job.gpus_min for job in jobs], dtype=np.int64)
    estimate = np.array([math.nan if job.estimate is None else job.estimate for job in jobs], dtype=np.float64)
    stops = np.array([job.stop == "performance" for job in jobs], dtype=bool)
    # A job that stops at a metric's target is submitted with a maximum of iterations, which is its estimate (traces/attributes.py).
    bounded = stops & (estimate >= duration)
    tuned = told(trace.recipe, profiles)
    return make_workload(
        trace.name,
        [job.submitted for job in jobs],
        duration,
        gpus,
        key=[job.key for job in jobs],
        gpus_max=np.maximum([job.gpus_max for job in jobs], gpus),
        priority=[job.priority for job in jobs],
        demand=[DEMANDS[job.demand] for job in jobs],
        users=[job.user_name or "" for job in jobs],
        models=[job.model or "" for job in jobs],
        tiers=[_tiers(job) for job in jobs] if any(job.deadlines for job in jobs) else None,
        estimate=np.where(bounded, math.nan, estimate),
        iterations=[math.nan if job.iterations is None else job.iterations for job in jobs],
        batch_size=[job.batch_size or 0 for job in jobs],
        profiles=tuned.profiles,
        by_performance=stops.tolist(),
        most=np.where(bounded, estimate, duration),
        **tuned.columns([job.model or "" for job in jobs], [_asked(job) for job in jobs]),
    )


def _asked(job: TraceJob) -> int:
    """GPUs in its source; more than ``gpus_min`` if it can run on fewer."""
    try:
        return int(float((job.raw or {})["num_gpus"]))
    except (KeyError, ValueError, OverflowError):
        return job.gpus_min


def _tiers(job: TraceJob) -> list[tuple[float, float]]:
    return [(job.submitted + after, reward) for after, reward in zip(job.deadlines, job.rewards, strict=True)]
