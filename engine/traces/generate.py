"""Generated jobs: Poisson arrivals, log-normal durations, and a distribution of GPU requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .. import format as fmt
from .formats.rows import LATEST_SECOND, MOST_GPUS
from .sampling import MOST_JOBS
from .trace import TraceJob

#: Philly as published with Pollux (82 247 jobs): the median duration is 1 144 s and the mean 13 136 s, which is a log-normal of this sigma.
PHILLY_MEDIAN = 1144.0
PHILLY_SIGMA = 2.21
PHILLY_REQUESTS = {1: 0.932, 2: 0.022, 4: 0.023, 8: 0.020, 16: 0.003}
_SHORTEST = 1.0  #: seconds
_LONGEST_SECONDS = 10 * 365 * 86_400.0


def philly_requests(gpus: int | None) -> dict[int, float]:
    """Philly's requests up to the size of a cluster, None: all. Weights need not add to 1."""
    return {asked: weight for asked, weight in PHILLY_REQUESTS.items() if gpus is None or asked <= gpus}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of generated jobs. Exactly one of ``rate`` and ``load`` sets how often they arrive."""

    jobs: int
    rate: float | None = None  #: jobs a second
    load: float | None = None  #: mean service a second divided by ``gpus``
    gpus: int | None = None  #: GPUs of the cluster
    median: float = PHILLY_MEDIAN  #: median duration in seconds
    sigma: float = PHILLY_SIGMA  #: standard deviation of the logarithm of the duration
    requests: dict[int, float] = field(default_factory=lambda: dict(PHILLY_REQUESTS))  #: GPUs to their weight


def check(shape: Shape) -> None:
    """Raise ValueError that names the wrong field and a remedy."""
    if not 1 <= shape.jobs <= MOST_JOBS:
        raise ValueError(f"jobs: {shape.jobs} is outside 1 to {MOST_JOBS}")
    if (shape.rate is None) == (shape.load is None):
        raise ValueError("rate, load: say how often jobs arrive with exactly one of them")
    if shape.rate is not None and not (shape.rate > 0 and math.isfinite(shape.rate)):
        raise ValueError(f"rate: {shape.rate:g} must be above 0")
    if shape.load is not None and not (shape.load > 0 and math.isfinite(shape.load)):
        raise ValueError(f"load: {shape.load:g} must be above 0, such as 0.9")
    if shape.load is not None and not shape.gpus:
        raise ValueError("load: is of a cluster; give its nodes too, such as 100x8")
    if not _SHORTEST <= shape.median <= _LONGEST_SECONDS:
        raise ValueError(f"median: {fmt.duration(shape.median)} is outside 1 s to 10 years")
    if not 0 <= shape.sigma <= 5:
        raise ValueError(f"sigma: {shape.sigma:g} is outside 0 to 5")
    if not shape.requests or any(gpus < 1 or not (math.isfinite(weight) and weight > 0) for gpus, weight in shape.requests.items()):
        raise ValueError("requests: write GPUs:WEIGHT pairs, such as 1:0.7,2:0.2,8:0.1, with at least 1 GPU and weights above 0")
    if max(shape.requests) > MOST_GPUS:
        raise ValueError(f"requests: {max(shape.requests)} GPUs are more than a trace can have, {MOST_GPUS}")
    if shape.gpus and max(shape.requests) > shape.gpus:
        raise ValueError(f"requests: {max(shape.requests)} GPUs are more than the cluster's {shape.gpus}")


def generate(shape: Shape, rng: np.random.Generator) -> list[TraceJob]:
    """The jobs, the first at second 0."""
    check(shape)
    weights = np.array(list(shape.requests.values()), dtype=np.float64)
    gpus = rng.choice(np.array(list(shape.requests), dtype=np.int64), size=shape.jobs, p=weights / weights.sum())
    logs = rng.normal(math.log(shape.median), shape.sigma, size=shape.jobs)
    duration = np.round(np.clip(np.exp(logs), _SHORTEST, _LONGEST_SECONDS), 3)
    gaps = rng.exponential(1.0, size=shape.jobs)
    gaps[0] = 0.0
    arrivals = np.cumsum(gaps)
    gap = _mean_gap(shape, float((duration * gpus).sum()), float(arrivals[-1]))
    if not float(arrivals[-1]) * gap <= LATEST_SECOND:
        field = "load" if shape.rate is None else "rate"
        raise ValueError(f"{field}: is so little that the jobs would arrive over more than 3000 years; ask for more")
    submitted = np.round(arrivals * gap, 3)
    return [
        TraceJob(key=str(row), submitted=moment, duration=took, gpus_min=asked, gpus_max=asked)
        for row, (moment, took, asked) in enumerate(zip(submitted.tolist(), duration.tolist(), gpus.tolist(), strict=True))
    ]


def _mean_gap(shape: Shape, service: float, gaps: float) -> float:
    """Seconds between arrivals.

    These very jobs (``service`` GPU-seconds over ``gaps`` mean gaps) have the load, not only their expectation: durations are
    heavy-tailed, so even thousands of them can be far from their mean.
    """
    if shape.rate is not None:
        return 1.0 / shape.rate
    if not gaps:
        raise ValueError("load: one job has no rate of arrival; ask for two at least")
    return service / ((shape.load or 0.0) * (shape.gpus or 0) * gaps)
