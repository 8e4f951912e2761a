"""The causal model, learnt from simulations of what has been (002 ch. 6.6.2): moments of the past, and at each some configurations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.causal_model import CausalModel, Encoder, NoModel, random_configuration, require_extra, samples_of
from ...policies.autosched.search import as_cut_off
from ...policies.autosched.search_space import Configuration, Space, space_of
from ...policies.contract import Floats
from ..sim.cluster import Cluster
from ..sim.run_options import Options
from ..sim.simulation_error import SimulationError
from ..sim.simulator import Simulation, simulate
from ..sim.workload import Workload
from .bounded_time import Hangs, bounded
from .moment_of_trace import situation_of
from .situation import CutOff, Situation, aggregated, bound_of, features_of, measure

LOOKS = 96  #: over the past
MOMENTS = 16  #: of these, at which it is learnt: those at which jobs wait, as far as there are such
CONFIGURATIONS = 12  #: at each
SECONDS = 40.0
FIRST_SECONDS = 4.0  #: processor time of the simulation of what is in force
TIMES_AS_LONG = 32.0  #: others may take so many times as long, and `LEAST_SECONDS` in any case
LEAST_SECONDS = 1.0
REPLAYING = 0.5  #: share of the time that the replay of the past may take
HANGING = 2.0  #: seconds beyond its time after which the configurations of a moment are cut off
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
    require_extra()
    began, rng = time.monotonic(), np.random.default_rng([seed, 5])
    space = space_of(registry.load(policy).Config, in_force)
    rows: list[tuple[Floats, Floats, float]] = []
    first = float(past.workload.submitted[0]) if len(past.workload) else 0.0
    looks = _Looks(policy, options, first + EARLIEST * (past.until - first), (1.0 - EARLIEST) * (past.until - first) / LOOKS)
    # What was seen before it failed, or its time was over, counts.
    with contextlib.suppress(SimulationError, Hangs), bounded(REPLAYING * past.seconds):
        simulate(past.workload, past.cluster, registry.create(policy, in_force), replace(options, until=past.until), control=looks)
    learnt_at = 0
    for waits in (True, False):  # where nobody waits, those who come may have to
        looked = [situation for situation, so in looks.seen if so == waits]
        chosen = np.unique(np.linspace(0, len(looked) - 1, min(MOMENTS, len(looked))).round().astype(int))
        for number in rng.permutation(chosen).tolist():
            if time.monotonic() - began > past.seconds or learnt_at == MOMENTS:
                break
            with (
                contextlib.suppress(SimulationError, CutOff, Hangs),
                bounded(began + past.seconds + HANGING - time.monotonic()),
            ):
                found = _measured_at(aggregated(looked[number]), policy, space, in_force, objective, rng, began + past.seconds)
                rows, learnt_at = rows + found, learnt_at + bool(found)
    samples = samples_of(rows)
    if samples is None:
        raise NoModel("no job waited at the moments that were simulated, so all configurations are alike")
    return CausalModel.learnt(space, objective, samples)


@dataclass
class _Looks:
    """What a simulated past looked like."""

    policy: str
    options: Options
    next_at: float
    every: float
    seen: list[tuple[Situation, bool]] = field(default_factory=list)  #: and whether jobs waited

    def act(self, simulation: Simulation) -> None:
        self.next_at = simulation.now + max(self.every, 1.0)
        if len(simulation.table):
            self.seen.append((situation_of(simulation, self.policy, self.options)[0], bool(simulation.waiting)))


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
        except CutOff as error:
            if error.figures is None:
                continue
            figures = as_cut_off(error.figures, reference)
        except SimulationError:
            continue
        rows.append(encoder.sample(config, features, objective, reference, figures))
    return rows
