"""The causal model, learnt from simulations of what has been (002 ch. 6.6.2): moments of the past, and at each some configurations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.causal_model import CausalModel, Encoder, NoModel, random_configuration, samples_of
from ...policies.autosched.search_space import Configuration, Space, space_of
from ...policies.contract import Floats
from ..forecast.ongoing import OutOfTime
from ..sim.cluster import Cluster
from ..sim.run_options import Options
from ..sim.simulation_error import SimulationError
from ..sim.workload import Workload
from .moment_of_trace import situation_of, stand_at
from .situation import Situation, aggregated, bound_of, features_of, measure

MOMENTS = 10
CONFIGURATIONS = 16  #: at each
SECONDS = 40.0
FIRST_SECONDS = 4.0  #: processor time of the simulation of what is in force
TIMES_AS_LONG = 32.0  #: others may take so many times as long, and `LEAST_SECONDS` in any case
LEAST_SECONDS = 1.0
EARLIEST = 0.25  #: share of the past before which the cluster is too empty to learn from


@dataclass(frozen=True, slots=True)
class Past:
    """A workload up to a moment, and where it ran."""

    workload: Workload
    cluster: Cluster
    until: float
    seconds: float = SECONDS  #: real time after which no other simulation begins


def learnt_from(past: Past, policy: str, in_force: Configuration, options: Options, objective: str, seed: int = 0) -> CausalModel:
    """Nothing after ``past.until`` is looked at. Raises NoModel where too little was to be seen."""
    began, rng = time.monotonic(), np.random.default_rng([seed, 5])
    space = space_of(registry.load(policy).Config, in_force)
    rows: list[tuple[Floats, Floats, float]] = []
    first = float(past.workload.submitted[0]) if len(past.workload) else 0.0
    for share in rng.permutation(np.linspace(EARLIEST, 1.0, MOMENTS)).tolist():
        if time.monotonic() - began > past.seconds:
            break
        try:
            simulation = stand_at(past.workload, past.cluster, policy, in_force, options, first + share * (past.until - first))
            situation = aggregated(situation_of(simulation, policy, options)[0])
            rows += _measured_at(situation, policy, space, in_force, objective, rng, began + past.seconds)
        except (SimulationError, OutOfTime):
            continue
    samples = samples_of(rows)
    if samples is None:
        raise NoModel("no job waited at the moments that were simulated, so all configurations are alike")
    return CausalModel.learnt(space, objective, samples)


def _measured_at(
    situation: Situation,
    policy: str,
    space: Space,
    in_force: Mapping[str, Any],
    objective: str,
    rng: np.random.Generator,
    ends_at: float,
) -> list[tuple[Floats, Floats, float]]:
    rows: list[tuple[Floats, Floats, float]] = []
    if not situation.jobs:
        return rows
    began = time.thread_time()
    reference = measure(situation, registry.create(policy, in_force), FIRST_SECONDS)
    bound = max(TIMES_AS_LONG * (time.thread_time() - began), LEAST_SECONDS), bound_of(reference)
    if reference.queueing <= 0.0:
        return rows
    encoder, features = Encoder(space), features_of(situation)
    for _ in range(CONFIGURATIONS):
        if time.monotonic() > ends_at:
            break
        config = random_configuration(space, dict(in_force), rng)
        try:
            figures = measure(situation, registry.create(policy, config), *bound)
        except (OutOfTime, SimulationError):
            continue
        rows.append(encoder.sample(config, features, objective, reference, figures))
    return rows
