"""Synthetic workloads for evaluations: jobs of a trace, or generated ones, with models, deadlines and stopping rules.

The same recipe gives the same trace, byte for byte, with the same version of NumPy (whose streams may change between versions).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np
from msgspec.structs import replace

from . import attributes, sampling
from .attributes import RNGS, Attributes
from .generate import Shape, generate
from .sampling import Choice, Chosen, choose, offered_load
from .trace import Trace, TraceJob

ARRIVALS = ("keep", "poisson")
FORMAT = "synth"


def _generators(seed: int) -> dict[str, np.random.Generator]:
    if seed < 0:
        raise ValueError(f"seed: {seed} must be 0 or above")
    return {name: np.random.default_rng([seed, row]) for row, name in enumerate(RNGS)}


def sample(
    source: Trace,
    name: str,
    *,
    choice: Choice | None = None,
    wanted: Attributes | None = None,
    arrivals: str = "keep",
    seed: int = 0,
    version: str = "",
) -> Trace:
    """A workload of jobs of ``source``. ``arrivals``: ``keep`` the times of submission, or ``poisson``: at random times in the window.

    Raises ValueError that names the wrong field and a remedy. ``version`` of Stoker goes into the recipe.
    """
    choice, wanted = choice or Choice(), wanted or Attributes()
    if arrivals not in ARRIVALS:
        raise ValueError(f"arrivals: {arrivals!r} is unknown; known are {', '.join(ARRIVALS)}")
    attributes.check(wanted)
    rngs = _generators(seed)
    chosen = choose(source, choice, rngs["choice"])
    jobs = _scattered(chosen.jobs, chosen.span, rngs["choice"]) if arrivals == "poisson" else chosen.jobs
    jobs = attributes.assign(jobs, wanted, rngs)
    recipe = {
        "generator": "sample",
        "source": _source(source),
        "choice": {**dataclasses.asdict(choice), **_plain(choice, chosen)},
        "arrivals": arrivals,
        **_common(wanted, seed, version),
        "made": _made(jobs, choice.gpus, chosen.span),
    }
    return Trace(
        name=name,
        format=FORMAT,
        source=source.name,
        sha256=source.sha256,
        jobs=jobs,
        starts_at=None if source.starts_at is None else source.starts_at + chosen.start,
        dropped=chosen.dropped,
        recipe=recipe,
    )


def _plain(choice: Choice, chosen: Chosen) -> dict[str, Any]:
    """Values in a form that JSON can hold: without tuples, and windows without end as null."""
    return {
        "window": [chosen.start, chosen.start + chosen.span] if choice.window else None,
        "scales": list(choice.scales) if choice.scales else None,
    }


def _source(source: Trace) -> dict[str, Any]:
    """The source of a workload with its own recipe, so that a chain of recipes is complete."""
    return {"name": source.name, "format": source.format, "sha256": source.sha256, "jobs": len(source.jobs), "recipe": source.recipe}


def from_nothing(name: str, shape: Shape, *, wanted: Attributes | None = None, seed: int = 0, version: str = "") -> Trace:
    """A workload of a given shape; its digest is that of its recipe. Raises ValueError like `sample`."""
    wanted = wanted or Attributes()
    attributes.check(wanted)
    rngs = _generators(seed)
    jobs = attributes.assign(generate(shape, rngs["choice"]), wanted, rngs)
    plain = {**dataclasses.asdict(shape), "requests": {str(gpus): weight for gpus, weight in shape.requests.items()}}
    recipe = {"generator": "from nothing", "shape": plain, **_common(wanted, seed, version)}
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    recipe["made"] = _made(jobs, shape.gpus, jobs[-1].submitted)
    return Trace(name=name, format=FORMAT, source="nothing", sha256=digest, jobs=jobs, recipe=recipe)


def _scattered(jobs: list[TraceJob], span: float, rng: np.random.Generator) -> list[TraceJob]:
    """Poisson arrivals for a given number of jobs: each is submitted at a random time of the span, independently of the others."""
    moments = np.floor(rng.random(len(jobs)) * span * 1000) / 1000
    moved = [replace(job, submitted=moment) for job, moment in zip(jobs, moments.tolist(), strict=True)]
    return sorted(moved, key=lambda job: job.submitted)


def _common(wanted: Attributes, seed: int, version: str) -> dict[str, Any]:
    resolved = {"shares": wanted.demands(), "performance": wanted.performance_share()}
    return {"attributes": {**dataclasses.asdict(wanted), **resolved}, "seed": seed, "version": version, "numpy": np.__version__}


def _made(jobs: list[TraceJob], gpus: int | None, span: float) -> dict[str, Any]:
    """The properties of the result, for the recipe."""
    service = np.array([job.duration * job.gpus_min for job in jobs], dtype=np.float64)
    load = offered_load(service, gpus, span) if gpus and span > 0 else None
    return {"jobs": len(jobs), "gpu_hours": float(service.sum()) / sampling.HOUR, "span_seconds": span, "load": load}
