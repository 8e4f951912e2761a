"""Attributes added to a trace's jobs for evaluations: models, demands with deadlines, stopping rules, elastic ranges (002 ch. 5.4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from ...policies.contract import Floats
from .formats.from_stoker import SCALES
from .models import CATALOGUES, TraceModel
from .sampling import scale_rows
from .trace import DEMANDS, TraceJob

KEEP = "keep"
FIRST_DEADLINE = (1.1, 2.0)  #: range, in durations
#: A strict deadline is worth the whole reward. A soft one is worth it until the first deadline, and 002 ch. 5.4.2 adds the other three:
#: Figure 5.5a steps down from 100, and "additional" deadlines with rewards of 80, 50 and 20 leave the first one at 100.
STRICT_TIERS = ((1.0, 100.0),)
SOFT_TIERS = ((1.0, 100.0), (1.1, 80.0), (1.2, 50.0), (1.5, 20.0))
TIERS: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType({"strict": STRICT_TIERS, "soft": SOFT_TIERS, "best-effort": ()})

#: 002 ch. 5.4.2 names the demands of each mix, but not their numbers: these are the counts of the traces that Chronus published.
MIXES: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "slo": {"strict": 1.0},
    "mix1": {"strict": 21_724 / 30_940, "best-effort": 9_216 / 30_940},
    "mix2": {"soft": 18_525 / 30_940, "strict": 9_276 / 30_940, "best-effort": 3_139 / 30_940},
    "best-effort": {"best-effort": 1.0},
})  # fmt: skip

PERFORMANCE = 0.2  #: share of the jobs that stop at a metric's target (002 ch. 5.4.2)
KEYWORDS = ("detection", "cifar10", "imagenet", "face")  #: parts of the names of models that may stop so (the same chapter)
#: 002 Figure 5.1: the largest share of iterations saved by training only to the best metric, or to 99 % of it.
SPARED = (0.22, 0.31)


@dataclass(frozen=True, slots=True)
class Attributes:
    models: str = KEEP  #: a catalogue of `models`, or keep
    models_by: str = "scale"  #: scale: by the GPU-time of the job (002 ch. 3.5.1); even: any, each as likely (ch. 5.5.1)
    mix: str = KEEP  #: one of MIXES, or keep
    shares: dict[str, float] | None = None  #: of the demands, instead of the mix's own
    performance: float | None = None  #: share of jobs that stop at a metric's target; None: PERFORMANCE with a mix, else as in the source
    elastic: float = 1.0  #: GPUs that a job can use, divided by those that it asks for
    gpus: int | None = None  #: GPUs of the cluster: no job can use more
    per_node: int = 8  #: GPUs of a node: jobs that ask for more train over several

    def demands(self) -> dict[str, float] | None:
        """Shares of the demands, None: as in the source."""
        return self.shares if self.shares is not None else None if self.mix == KEEP else dict(MIXES[self.mix])

    def performance_share(self) -> float | None:
        return PERFORMANCE if self.performance is None and self.demands() is not None else self.performance


def check(wanted: Attributes) -> None:
    """Raise ValueError that names the wrong field and a remedy."""
    _one_of("models", wanted.models, [KEEP, *CATALOGUES])
    _one_of("models_by", wanted.models_by, ["scale", "even"])
    _one_of("mix", wanted.mix, [KEEP, *MIXES])
    if wanted.shares is not None:
        for demand in wanted.shares:
            _one_of("shares", demand, list(DEMANDS))
        values = wanted.shares.values()
        if not all(0 <= share <= 1 for share in values) or not math.isclose(sum(values), 1.0, abs_tol=1e-6):
            given = ", ".join(f"{demand}={share:g}" for demand, share in wanted.shares.items())
            raise ValueError(f"shares: {given} must be probabilities that add to 1")
    if wanted.performance is not None and not 0 <= wanted.performance <= 1:
        raise ValueError(f"performance: {wanted.performance:g} is outside 0 to 1")
    if not (1 <= wanted.elastic <= 1024):
        raise ValueError(f"elastic: {wanted.elastic:g} is outside 1 to 1024")
    if wanted.per_node < 1:
        raise ValueError(f"per_node: {wanted.per_node} must be at least 1")


def _one_of(field: str, value: str, known: Sequence[str]) -> None:
    import difflib

    if value not in known:
        near = difflib.get_close_matches(value, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"{field}: {value!r} is unknown; {hint}")


def assign(jobs: Sequence[TraceJob], wanted: Attributes, rngs: Mapping[str, np.random.Generator]) -> list[TraceJob]:
    """The jobs with the wanted attributes. Each kind has its own generator (`RNGS`): so one kind does not change the others."""
    check(wanted)
    service = np.array([job.duration * job.gpus_min for job in jobs], dtype=np.float64)
    made = [replace(job, scale=SCALES[row]) for job, row in zip(jobs, scale_rows(service).tolist(), strict=True)]
    if wanted.models != KEEP:
        made = _with_models(made, CATALOGUES[wanted.models], wanted, rngs["models"])
    if (demands := wanted.demands()) is not None:
        made = _with_demands(made, demands, rngs["demands"])
    if (share := wanted.performance_share()) is not None:
        made = _with_stops(made, share, rngs["stops"])
    if wanted.elastic > 1:
        made = [replace(job, gpus_max=_most(job, wanted)) for job in made]
    return made


RNGS = ("choice", "models", "demands", "stops")


def _most(job: TraceJob, wanted: Attributes) -> int:
    most = math.floor(job.gpus_min * wanted.elastic)
    return max(job.gpus_min, min(most, wanted.gpus) if wanted.gpus else most)


def _with_models(jobs: list[TraceJob], catalogue: Sequence[TraceModel], wanted: Attributes, rng: np.random.Generator) -> list[TraceJob]:
    even = _Wheel(catalogue, [1.0] * len(catalogue))
    of_scale = {scale: [model for model in catalogue if model.scale == scale] for scale in SCALES}
    wheels = {
        scale: even if wanted.models_by == "even" else _Wheel(models, [model.share for model in models])
        for scale, models in of_scale.items()
    }
    draws = rng.random(len(jobs)).tolist()
    return [_trains(job, wheels[str(job.scale)].at(draw), wanted.per_node) for job, draw in zip(jobs, draws, strict=True)]


class _Wheel:
    """Draws models, each in proportion to its weight."""

    def __init__(self, models: Sequence[TraceModel], weights: Sequence[float]) -> None:
        self.models = models
        self.edges: Floats = np.cumsum(weights) / sum(weights)

    def at(self, draw: float) -> TraceModel:
        return self.models[min(int(np.searchsorted(self.edges, draw, side="right")), len(self.models) - 1)]


def _trains(job: TraceJob, model: TraceModel, per_node: int) -> TraceJob:
    """The job with a model; its iterations follow from the duration and the model's speed (002 ch. 5.4.2)."""
    step = model.iteration(job.gpus_min, spread=job.gpus_min > per_node)
    iterations = None if step is None else max(1.0, float(round(job.duration / step)))
    return replace(job, model=model.name, batch_size=model.batch_on(job.gpus_min), iterations=iterations)


def _with_demands(jobs: list[TraceJob], shares: Mapping[str, float], rng: np.random.Generator) -> list[TraceJob]:
    names = sorted(shares)
    weights = np.array([shares[name] for name in names])
    drawn = rng.choice(len(names), size=len(jobs), p=weights / weights.sum()).tolist()
    factors = rng.uniform(*FIRST_DEADLINE, size=len(jobs)).tolist()
    made = []
    for job, row, factor in zip(jobs, drawn, factors, strict=True):
        tiers, first = TIERS[names[row]], job.duration * factor
        deadlines, rewards = tuple(first * times for times, _ in tiers), tuple(reward for _, reward in tiers)
        made.append(replace(job, demand=names[row], deadlines=deadlines, rewards=rewards))
    return made


def _with_stops(jobs: list[TraceJob], share: float, rng: np.random.Generator) -> list[TraceJob]:
    """Let ``share`` of all jobs stop at a metric's target: jobs whose model's name has one of KEYWORDS, or any if there are none.

    Such a job is submitted with a maximum of iterations, and its duration is that of the trace (002 ch. 5.4.2), so that its submitter
    expects it to take longer: its target is the best metric or 99 % of that, at even odds, and the saved share is uniform up to SPARED.
    """
    hinted = np.array([any(word in (job.model or "").lower() for word in KEYWORDS) for job in jobs], dtype=bool)
    may = hinted if hinted.any() else np.ones(len(jobs), dtype=bool)
    stops = (rng.random(len(jobs)) < share * len(jobs) / max(int(may.sum()), 1)) & may
    most = rng.choice(np.array(SPARED), size=len(jobs))
    spared = rng.random(len(jobs)) * most
    return [
        replace(job, stop="performance", estimate=job.duration / (1 - less)) if stop else replace(job, stop="iterations")
        for job, stop, less in zip(jobs, stops.tolist(), spared.tolist(), strict=True)
    ]
