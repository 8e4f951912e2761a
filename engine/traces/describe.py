"""Description of a trace (002 ch. 6.2.1, Figure 6.1): durations, GPU requests, arrivals, service, recurrence, load, users and pools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...policies.contract import Floats, Ints
from .periods import HOUR, MOST_BUCKETS, Arrivals, arrivals
from .trace import Trace, TraceJob

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
REPEATED_OFTEN = 10  #: 002 ch. 6.2.1 counts the jobs that repeat more often than this
UNNAMED = "(none)"
_CDF_POINTS = 200


def quantiles(values: Floats) -> dict[str, float | None]:
    """Minimum, mean, maximum and percentiles in the unit of the values; None without values."""
    names = [f"p{round(share * 100)}" for share in QUANTILES]
    if not len(values):
        return dict.fromkeys(("min", "mean", "max", *names))
    at = np.quantile(values, QUANTILES).tolist()
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max()), **dict(zip(names, at, strict=True))}


def cdf(values: Floats, most: int = _CDF_POINTS) -> tuple[Floats, Floats]:
    """Ascending values, and for each the share of all values up to it; thinned to ``most`` points with the first and last."""
    ordered = np.sort(values)
    rows = np.unique(np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(np.int64))
    return ordered[rows], (rows + 1) / max(len(ordered), 1)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The jobs that ask for one number of GPUs."""

    gpus: int
    jobs: int
    share: float  #: of all jobs
    service_share: float  #: of the service of all jobs
    duration: Floats  #: seconds, of each job
    service: Floats  #: GPU-seconds, of each job


def by_request(gpus: Ints, duration: Floats) -> list[GpuRequest]:
    """The jobs by GPU request, ascending. ``duration`` in seconds."""
    total = float((gpus * duration).sum())
    found = []
    for count in np.unique(gpus).tolist():
        took = duration[gpus == count]
        service = took * count
        share = float(service.sum()) / total if total else 0.0
        found.append(GpuRequest(count, len(took), len(took) / len(gpus), share, took, service))
    return found


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How often the same task is submitted again: jobs of equal keys are one task."""

    by: tuple[str, ...]  #: columns that are equal for jobs of one task; (): the trace has neither users nor models
    jobs: int  #: jobs with values in all of these
    tasks: int
    sizes: Ints  #: for each of these jobs the number of jobs of its task, ascending

    @property
    def often(self) -> float | None:
        """Share of jobs whose task has more than REPEATED_OFTEN jobs."""
        return float((self.sizes > REPEATED_OFTEN).mean()) if self.jobs else None


#: Columns that two jobs of the same task share; the first that the trace has count (002 ch. 6.2.1: "training for the same model").
_KEYS: tuple[tuple[str, ...], ...] = (("user", "model"), ("model", "gpus"), ("user", "gpus"))
_READ: dict[str, Callable[[TraceJob], str | int | None]] = {
    "user": lambda job: job.user_name,
    "model": lambda job: job.model,
    "gpus": lambda job: job.gpus_min,
    "pool": lambda job: job.pool,
}


def recurrence(jobs: Sequence[TraceJob], by: Sequence[str] = ()) -> Recurrence:
    """A task is the jobs with equal ``by`` (of _READ); (): by the first of _KEYS that the trace has."""
    for column in by:
        if column not in _READ:
            raise ValueError(f"task: {column!r} is no column of a task; known are {', '.join(_READ)}")
    told = {column for column, read in _READ.items() if any(read(job) is not None for job in jobs)}
    chosen = tuple(by) or next((keys for keys in _KEYS if told.issuperset(keys)), ())
    keys = [tuple(_READ[column](job) for column in chosen) for job in jobs] if chosen else []
    complete = [key for key in keys if None not in key]
    tasks = Counter(complete)
    return Recurrence(chosen, len(complete), len(tasks), np.sort(np.array([tasks[key] for key in complete], dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """Mean of the GPUs in use in each bucket of ``bucket`` seconds, if every job started at once and ran its duration."""

    start: float  #: start of the first bucket, seconds
    bucket: float
    gpus: Floats
    mean: float | None = None  #: from the first submission to the last; None: these are the same time
    peak: float = 0.0  #: the most at any time; means of buckets are far below it if jobs are shorter than a bucket


def demand(submitted: Floats, duration: Floats, gpus: Ints) -> GpuDemand:
    """Times in seconds. Buckets run from the first submission to the last end."""
    first, end = (float(submitted.min()), float((submitted + duration).max())) if len(submitted) else (0.0, 0.0)
    bucket = HOUR * max(1, math.ceil((end - first) / HOUR / MOST_BUCKETS))
    start = first // bucket * bucket
    edges = start + np.arange(math.ceil((end - start) / bucket) + 1) * bucket
    if len(edges) < 2:
        return GpuDemand(start, bucket, np.zeros(0))
    moments = np.concatenate([submitted, submitted + duration])
    order = np.argsort(moments, kind="stable")
    moments, in_use = moments[order], np.cumsum(np.concatenate([gpus, -gpus])[order]).astype(np.float64)
    served = np.concatenate([[0.0], np.cumsum(in_use[:-1] * np.diff(moments))])
    lasts = np.diff(moments) > 0  # when one job ends and another starts at the same time, only the sum counts
    peak = float(in_use[:-1][lasts].max()) if lasts.any() else 0.0
    return GpuDemand(start, bucket, np.diff(np.interp(edges, moments, served)) / bucket, _mean(moments, served, submitted, peak), peak)


def _mean(moments: Floats, served: Floats, submitted: Floats, peak: float) -> float | None:
    first, last = float(submitted.min()), float(submitted.max())
    if first == last:
        return None
    return min(float(np.interp(last, moments, served)) / (last - first), peak)  # a constant demand may be rounded above its peak


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs of one user, pool or status."""

    name: str
    jobs: int
    service: float  #: GPU-seconds
    share: float  #: of the service of all jobs


def by_name(names: Sequence[str | None], service: Floats) -> list[JobGroup]:
    """Groups of equal names, the greatest service first; () without names."""
    if not any(name is not None for name in names):
        return []
    known, codes = np.unique(np.array([UNNAMED if name is None else name for name in names], dtype=str), return_inverse=True)
    counts, sums = np.bincount(codes, minlength=len(known)), np.bincount(codes, weights=service, minlength=len(known))
    total = float(service.sum())
    groups = [
        JobGroup(str(name), count, used, used / total if total else 0.0)
        for name, count, used in zip(known, counts.tolist(), sums.tolist(), strict=True)
    ]
    return sorted(groups, key=lambda group: (-group.service, -group.jobs, group.name))


@dataclass(frozen=True)
class Description:
    """The description of a trace. Times are seconds, service is GPU-seconds."""

    trace: Trace
    by: tuple[str, ...] = ()  #: see `recurrence`
    capacity: int | None = None  #: GPUs of the cluster, by which loads are divided

    @cached_property
    def submitted(self) -> Floats:
        return np.array([job.submitted for job in self.trace.jobs], dtype=np.float64)

    @cached_property
    def duration(self) -> Floats:
        return np.array([job.duration for job in self.trace.jobs], dtype=np.float64)

    @cached_property
    def gpus(self) -> Ints:
        return np.array([job.gpus_min for job in self.trace.jobs], dtype=np.int64)

    @cached_property
    def service(self) -> Floats:
        return self.duration * self.gpus

    @cached_property
    def requests(self) -> list[GpuRequest]:
        return by_request(self.gpus, self.duration)

    @cached_property
    def arrivals(self) -> Arrivals:
        return arrivals(self.submitted)

    @cached_property
    def recurrence(self) -> Recurrence:
        return recurrence(self.trace.jobs, self.by)

    @cached_property
    def demand(self) -> GpuDemand:
        return demand(self.submitted, self.duration, self.gpus)

    @cached_property
    def users(self) -> list[JobGroup]:
        return by_name([job.user_name for job in self.trace.jobs], self.service)

    @cached_property
    def pools(self) -> list[JobGroup]:
        return by_name([job.pool for job in self.trace.jobs], self.service)

    @cached_property
    def statuses(self) -> list[JobGroup]:
        return by_name([job.status for job in self.trace.jobs], self.service)

    @property
    def span(self) -> float:
        """Seconds from the first submission to the last."""
        return float(self.submitted[-1] - self.submitted[0]) if len(self.submitted) else 0.0

    @property
    def mean_demand(self) -> float | None:
        """GPUs that would do all the service of the jobs in the time of their arrivals; None if that time is too short.

        It is not the mean of the GPUs in use, as jobs run on after the last arrival. It is unknown if the mean duration, weighted by GPUs,
        is longer than the time of arrivals: the quotient would be more GPUs than all jobs ask for together.
        """
        service = float(self.service.sum())
        return service / self.span if self.span and service <= float(self.gpus.sum()) * self.span else None

    @property
    def load(self) -> float | None:
        """`mean_demand` divided by the GPUs of the cluster."""
        return self.mean_demand / self.capacity if self.capacity and self.mean_demand is not None else None

    def summary(self) -> dict[str, Any]:
        """The description as plain values, without the series."""
        return {
            "name": self.trace.name,
            "format": self.trace.format,
            "source": self.trace.source,
            "sha256": self.trace.sha256,
            "starts_at": self.trace.starts_at,
            "jobs": len(self.trace.jobs),
            "dropped": dict(self.trace.dropped),
            "repaired": dict(self.trace.repaired),
            "span": self.span,
            "duration": quantiles(self.duration),
            "service": quantiles(self.service),
            "gpu_hours": float(self.service.sum()) / HOUR,
            "requests": [_request(one) for one in self.requests],
            "arrivals": _arrivals(self.arrivals),
            "recurrence": _recurrence(self.recurrence),
            "demand": _demand(self),
            "users": [_group(one) for one in self.users],
            "pools": [_group(one) for one in self.pools],
            "statuses": [_group(one) for one in self.statuses],
            "demands": _counts(job.demand for job in self.trace.jobs),
            "stops": _counts(job.stop for job in self.trace.jobs),
            "scales": _counts(job.scale for job in self.trace.jobs),
        }

    def series(self) -> dict[str, Any]:
        """The series of the figures, as plain values."""
        seconds, share = cdf(self.duration)
        sizes, jobs = cdf(self.recurrence.sizes.astype(np.float64))
        return {
            "duration_cdf": {"seconds": seconds.tolist(), "share": share.tolist()},
            "recurrence_cdf": {"jobs_of_the_task": sizes.tolist(), "share": jobs.tolist()},
            "arrivals": {
                "start": self.arrivals.start,
                "bucket": self.arrivals.bucket,
                "counts": self.arrivals.counts.tolist(),
                "periodic": self.arrivals.periodic.tolist(),
                "bursty": self.arrivals.bursty.tolist(),
            },
            "demand": {"start": self.demand.start, "bucket": self.demand.bucket, "gpus": self.demand.gpus.tolist()},
        }


def _counts(words: Iterable[str | None]) -> dict[str, int]:
    """How often each word occurs, the most frequent first."""
    return dict(Counter(word for word in words if word is not None).most_common())


def _request(one: GpuRequest) -> dict[str, Any]:
    return {
        "gpus": one.gpus,
        "jobs": one.jobs,
        "share": one.share,
        "service_share": one.service_share,
        "duration": quantiles(one.duration),
        "service": quantiles(one.service),
    }


def _arrivals(found: Arrivals) -> dict[str, Any]:
    return {
        "bucket": found.bucket,
        "mean": float(found.counts.mean()) if len(found.counts) else 0.0,
        "peak": float(found.counts.max()) if len(found.counts) else 0.0,
        "period": found.period,
        "periodic_share": found.share,
        "components": list(found.components),
        "highest_burst": float(found.bursty.max()) if len(found.bursty) else 0.0,
    }


def _demand(of: Description) -> dict[str, Any]:
    found = of.demand
    return {"offered": of.mean_demand, "mean": found.mean, "peak": found.peak, "capacity": of.capacity, "load": of.load}


def _recurrence(found: Recurrence) -> dict[str, Any]:
    return {"by": list(found.by), "jobs": found.jobs, "tasks": found.tasks, "more_than_ten": found.often}


def _group(one: JobGroup) -> dict[str, Any]:
    return {"name": one.name, "jobs": one.jobs, "gpu_hours": one.service / HOUR, "share": one.share}
