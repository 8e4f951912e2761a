"""A causal model learnt before a search, from searches of even draws at moments of the past (002 ch. 6.6.2).

Pools and simulations that tune themselves learn from the searches that they make anyway."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from stoker.engine.autosched.bounded_time import Hangs, bounded
from stoker.engine.autosched.moment_of_trace import situation_of
from stoker.engine.autosched.search_process import SearchFailed, SearchRequest, find
from stoker.engine.autosched.situation import Situation, aggregated
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.simulator import Simulation, simulate
from stoker.engine.sim.workload import Workload
from stoker.policies import registry
from stoker.policies.autosched.causal_model import CausalModel, has_extra
from stoker.policies.autosched.search_space import space_of
from stoker.policies.keys import make_config

REPLAY_LOOKS = 96  #: moments, evenly spread, at which the replay of the past is looked at
SEARCHES = 16  #: at some of these moments, first those at which jobs wait
TRIALS_EACH = 13  #: of a search
LEARNING_SECONDS = 30.0  #: real time, half of that of a search
REPLAY_SHARE = 0.5  #: share of that time which the replay of the past may take
WARM_UP_SHARE = 0.25  #: share of the past, its beginning, in which the cluster is too empty to learn from


@dataclass(frozen=True, slots=True)
class Past:
    """A workload up to a moment, and where it ran."""

    workload: Workload
    cluster: Cluster
    until: float
    seconds: float = LEARNING_SECONDS  #: real time after which no other trial begins


def learnt_from(past: Past, policy: str, config: Mapping[str, Any], options: Options, objective: str, seed: int = 0) -> CausalModel:
    """Nothing after ``past.until`` is looked at. Where too little was to be seen the model has few samples, and says so when it is used."""
    ends_at, rng, kind = time.monotonic() + past.seconds, np.random.default_rng([seed, 5]), registry.load(policy).Config
    none = model = CausalModel.untrained(space_of(kind, asdict(make_config(kind, config))), objective)
    if not has_extra():
        return none
    first = float(past.workload.submitted[0]) if len(past.workload) else 0.0
    begin = first + WARM_UP_SHARE * (past.until - first)
    looks = _Looks(policy, options, begin, (past.until - begin) / REPLAY_LOOKS)
    # Samples from before the failure, or the end of its time, count.
    with contextlib.suppress(SimulationError, Hangs), bounded(REPLAY_SHARE * past.seconds):
        simulate(past.workload, past.cluster, registry.create(policy, config), replace(options, until=past.until), control=looks)
    learnt_at = 0
    for waits in (True, False):  # where no job waits now, later arrivals may have to
        looked = [situation for situation, so in looks.seen if so == waits]
        chosen = np.unique(np.linspace(0, len(looked) - 1, min(SEARCHES, len(looked))).round().astype(int))
        for number in rng.permutation(chosen).tolist():
            left = ends_at - time.monotonic()
            if left <= 0.0 or learnt_at == SEARCHES:
                break
            draws = int(rng.integers(2**31))
            situation = aggregated(looked[number])
            request = SearchRequest.of(situation, config, objective, TRIALS_EACH, left, seed=draws, spread=1.0, aggregate=False)
            with contextlib.suppress(SearchFailed):
                answer = find(replace(request, model=none))
                if answer.model is not None and answer.found.reference.queueing > 0.0:
                    model, learnt_at = model.relearnt(answer.model.samples), learnt_at + 1
    return model


@dataclass
class _Looks:
    """Takes situations from a simulated past, evenly spread over it."""

    policy: str
    options: Options
    next_at: float
    every: float
    seen: list[tuple[Situation, bool]] = field(default_factory=list)  #: and whether jobs waited

    def act(self, simulation: Simulation) -> None:
        self.next_at = simulation.now + max(self.every, 1.0)
        if len(simulation.table):
            self.seen.append((situation_of(simulation, self.policy, self.options)[0], bool(simulation.waiting)))
