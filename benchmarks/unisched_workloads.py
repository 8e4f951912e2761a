"""Workloads of the evaluation of UniSched (002 ch. 5.4.2): real jobs with demands, deadlines, models and stopping rules.

Philly: the two weeks that Chronus publishes (`chronus/`), with its models. ITP: Microsoft's ten clusters (`itp/`), in place of Helios, of
which no job times are to be had; each job gets one of the same models. Without traces jobs are made up, and so are the models.
Demands and deadlines are drawn as the thesis draws them; `published` keeps the deadlines that Chronus' authors gave to their jobs.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from stoker.engine.sim.workload import Workload
from stoker.engine.traces.attributes import KEEP, Attributes
from stoker.engine.traces.generate import Shape
from stoker.engine.traces.read import read
from stoker.engine.traces.sampling import DAY, HOUR, Choice
from stoker.engine.traces.synth import from_nothing, sample
from stoker.engine.traces.trace import Trace, TraceJob, to_workload
from stoker.policies.contract import Profile
from stoker.policies.estimate.throughput import Throughput

PHILLY, ITP, MADE_UP = "philly", "itp", "made-up"
SLO, MIX1, MIX2, PUBLISHED = "slo", "mix1", "mix2", "published"
LOAD = 1.15  #: GPU-time of the jobs over what the cluster has while they arrive: the published traces ask 960 GPUs for 1 097 to 1 128
PER_NODE = 8
#: Day at which a window of several days begins: the load of the days after it is near the trace's average.
FIRST_DAY = {PHILLY: 4.0, ITP: 42.0, MADE_UP: 0.0}
WHOLE = 14.0  #: days of the whole workload
SHORTEST = 20 * 60.0  #: seconds of a job, as in the traces that Chronus publishes
#: Of a window of few days, the longest job. With jobs of three days most work would come after it, and a load of 1.15 mean little.
LONGEST = 1 / 3
LARGEST = 0.25  #: of the cluster that one job asks for
MINUTE = 60.0

#: 002 ch. 5.6.2 changes what some jobs request to make them hostile to consolidation: not 1, 2, 4 or a multiple of 8 GPUs.
HOSTILE = {1: 3, 2: 3, 4: 5, 8: 6, 16: 12, 32: 28, 64: 60}

#: Communication of another GPU of the same node, as a share of the computation (resnet18 of Pollux' profiles: 1.4 %).
INTRA = 0.01
#: Five models for machines without the traces: the same share between nodes, from hardly any to a lot.
MADE_UP_MODELS = {"made-up-a": 0.012, "made-up-b": 0.015, "made-up-c": 0.02, "made-up-d": 0.15, "made-up-e": 0.4}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One workload. The same recipe gives the same jobs."""

    source: str
    mix: str
    nodes: int
    days: float
    density: float = 1.0  #: GPU-time that is asked for, over LOAD
    hostile: float | None = None  #: share of the jobs that are hostile to consolidation; None: as in the trace
    seed: int = 0

    def __str__(self) -> str:
        more = "" if self.density == 1 else f", density {self.density:.0%}"
        more += "" if self.hostile is None else f", {self.hostile:.0%} hostile"
        return f"{self.source} {self.mix}{more}, seed {self.seed}"


@lru_cache(maxsize=4)
def workload(recipe: Recipe, traces: Path | None) -> Workload:
    """Raises OSError and ValueError when the traces are not as they are described in their README."""
    gpus = recipe.nodes * PER_NODE
    wanted = Attributes(mix=KEEP if recipe.mix == PUBLISHED else recipe.mix, performance=0.2, gpus=gpus, per_node=PER_NODE)
    source = _source(recipe, traces)
    if recipe.hostile is not None:
        source = _with_hostile(source, recipe.hostile, recipe.seed)
    first = FIRST_DAY[recipe.source] if recipe.days < WHOLE or recipe.source == ITP else 0.0
    choice = Choice(
        window=(first * DAY, (first + recipe.days) * DAY),
        min_duration=SHORTEST,
        max_duration=None if recipe.days >= WHOLE else recipe.days * LONGEST * DAY,
        max_gpus=max(int(gpus * LARGEST), PER_NODE),
        load=LOAD * recipe.density,
        gpus=gpus,
        replace=recipe.days <= 1 or LOAD * recipe.density * gpus > 0.9 * 960,  # there are no more jobs than these in the traces
    )
    return to_workload(sample(source, recipe.source, choice=choice, wanted=wanted, seed=recipe.seed), _profiles(traces))


def _source(recipe: Recipe, traces: Path | None) -> Trace:
    if traces is None:
        return _made_up(recipe)
    return _philly(traces) if recipe.source == PHILLY else _itp(traces, recipe.seed)


@lru_cache(maxsize=1)
def _philly(traces: Path) -> Trace:
    path = traces / "chronus" / "trace_job_Philly_MIX1.csv.gz"
    with gzip.open(path, "rt") as file:
        jobs = [_of_chronus(row) for row in csv.DictReader(file) if int(row["num_gpu"]) > 0]  # its simulator leaves them out too
    return Trace(name=PHILLY, format="chronus", source=path.name, sha256="", jobs=sorted(jobs, key=lambda job: job.submitted))


def _of_chronus(row: Mapping[str, str]) -> TraceJob:
    """Times in the file are minutes, and deadlines are relative; a best-effort job's mean nothing."""
    strict = row["job_type"] == "strict"
    return TraceJob(
        key=row["job_id"],
        submitted=float(row["submit_time"]) * MINUTE,
        duration=float(row["duration"]) * MINUTE,
        gpus_min=int(row["num_gpu"]),
        user_name=row["user"],
        model=row["model_name"],
        demand="strict" if strict else "best-effort",
        deadlines=(float(row["expect_time_list"].split("-")[0]) * MINUTE,) if strict else (),
        rewards=(100.0,) if strict else (),
    )


@lru_cache(maxsize=1)
def _itp(traces: Path, seed: int) -> Trace:
    trace = read(traces / "itp" / "itp_raw_69351.csv.gz", "itp")
    return replace(trace, jobs=_with_models(trace.jobs, sorted(_between_nodes(traces)), seed))


def _made_up(recipe: Recipe) -> Trace:
    """More jobs than any density needs; half of them take an hour, as in Chronus' traces."""
    count = int(200 * recipe.nodes * recipe.days)
    shape = Shape(jobs=count, rate=count / (recipe.days * DAY), median=HOUR, sigma=1.3, requests={1: 0.90, 2: 0.01, 4: 0.05, 8: 0.04})
    made = from_nothing(MADE_UP, shape, seed=recipe.seed)
    return replace(made, jobs=_with_models(made.jobs, sorted(MADE_UP_MODELS), recipe.seed))


def _with_models(jobs: Sequence[TraceJob], names: Sequence[str], seed: int) -> list[TraceJob]:
    """Any model is as likely as any other (002 ch. 5.5.1)."""
    drawn = np.random.default_rng([seed, 17]).integers(len(names), size=len(jobs)).tolist()
    return [replace(job, model=names[row], raw=None) for job, row in zip(jobs, drawn, strict=True)]


def _with_hostile(trace: Trace, share: float, seed: int) -> Trace:
    """The same jobs for every share, with that share of them changed: who is hostile at 20 % is so at 40 % too."""
    draws = np.random.default_rng([seed, 18]).random(len(trace.jobs)).tolist()
    jobs = [
        replace(job, gpus_min=HOSTILE.get(job.gpus_min, job.gpus_min)) if draw < share else job
        for job, draw in zip(trace.jobs, draws, strict=True)
    ]
    return replace(trace, jobs=jobs)


def _profiles(traces: Path | None) -> tuple[Profile, ...]:
    """Eqn 5.2, in units of a model's computation on one GPU."""
    models = MADE_UP_MODELS if traces is None else _between_nodes(traces)
    return tuple(Profile(name, Throughput.of_iteration(1.0, INTRA, inter)) for name, inter in models.items())


def _between_nodes(traces: Path) -> dict[str, float]:
    """Communication of another GPU where a gang is spread over two nodes, as a share of the computation on one GPU.

    Chronus measured the speed of n GPUs on two nodes relative to one; solved for Eqn 5.2's T^2 it is one number for each n,
    of which the mean is taken.
    """
    measured = json.loads((traces / "chronus" / "placement_slowdown_model_info.json").read_text())
    return {
        model: float(np.mean([((1 + (n - 1) * INTRA) / by_nodes["2"] - 1) / (n - 1) for n, by_nodes in _by_gpus(sizes)]))
        for model, sizes in measured.items()
    }


def _by_gpus(sizes: Mapping[str, Mapping[str, float]]) -> list[tuple[int, Mapping[str, float]]]:
    return [(int(gpus), by_nodes) for gpus, by_nodes in sizes.items()]
