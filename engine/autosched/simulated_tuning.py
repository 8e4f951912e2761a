"""A simulation that tunes itself (``stoker simulate TRACE -p tiresias,auto=true``): it drives the `Controller` as a daemon does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.causal_model import CausalModel
from ...policies.autosched.search import EPSILON, TRIALS
from ..sim.run_options import Options
from ..sim.simulator import Simulation
from ..sim.study import PolicyChoice
from .moment_of_trace import DailyPredictor, history_of, situation_of
from .search_process import SearchFailed, SearchRequest, SearchResult, find
from .situation import MIN_HISTORY_JOBS, Situation
from .tuning_controller import ROUNDING, Controller, Trigger, has_harmed, measured_gain, refusal, tried_before

PERIOD = 3600.0


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of one search, and whether it was applied."""

    at: float
    gain: float
    applied: bool
    simulated: int
    rejected: int
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A configuration that a search has put in force."""

    at: float
    before: dict[str, Any]
    after: dict[str, Any]
    expected: float  #: mean seconds of the following period that the jobs at hand were to take without it


@dataclass
class SimulatedTuning:
    """Searches once a period, and upon bursts between. The best is in force at once, and rolled back if it has harmed."""

    policy: str
    config: dict[str, Any]
    options: Options
    objective: str = "jct"
    period: float = PERIOD
    trials: int = TRIALS
    epsilon: float = EPSILON
    watches: bool = True  #: it looks for bursts between two periods, and rolls back changes that have harmed
    causal: bool = True
    aggregate: bool = True
    seed: int = 0  #: of its searches
    #: Benchmarks hand in another situation here. None: the one that is known.
    looks: Callable[[Simulation], Situation] | None = None
    #: Benchmarks hand in another search here.
    searches: Callable[[SearchRequest], SearchResult] = find
    turns: list[SearchOutcome] = field(default_factory=list)
    next_at: float = 0.0
    tried: list[dict[str, Any]] = field(default_factory=list)  #: the first configuration in force, and the newest of those after it
    _predictor: DailyPredictor = field(default_factory=DailyPredictor)
    _controller: Controller = field(init=False)
    _change: _Change | None = None  #: the newest, until it was measured: one that another followed is never taken back
    _rolled_back: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  #: when, and which configuration
    model: CausalModel | None = None  #: it goes on learning from each search; None: nothing was learnt before

    def __post_init__(self) -> None:
        self._controller = Controller(self.period)

    def act(self, simulation: Simulation) -> None:
        """Its turn: measure, roll back, search."""
        self.next_at = simulation.now + (self._controller.check_interval if self.watches else self.period)
        if self._has_rolled_back(simulation):
            return  # the next look searches, from what is in force then
        submitted = history_of(simulation).submitted
        if len(submitted) < MIN_HISTORY_JOBS or not len(simulation.table):
            return
        trigger = self._controller.due(simulation.now, lambda: submitted)
        if trigger is None:
            return
        try:
            answer = self.searches(self._request(simulation))
        except SearchFailed:
            return
        self._put(simulation, answer, trigger)
        self.model = answer.model

    def _request(self, simulation: Simulation) -> SearchRequest:
        # Where nothing is unknown there is nothing to predict.
        predictor = self._predictor if self.options.errors.unknown > 0 else None
        situation = situation_of(simulation, self.policy, self.options, predictor)[0] if self.looks is None else self.looks(simulation)
        request = SearchRequest.of(
            replace(situation, period=self.period), self.config, self.objective, self.trials, epsilon=self.epsilon,
            seed=1000 * self.seed + len(self.turns), first=tuple(self.tried), aggregate=self.aggregate,
        )  # fmt: skip
        return replace(request, model=self.model or CausalModel.untrained(request.space, self.objective)) if self.causal else request

    def did(self) -> dict[str, int]:
        """Searches, those that changed the configuration in force, and those of these changes that were rolled back."""
        applied = sum(turn.applied for turn in self.turns)
        return {"searches": len(self.turns), "applied": applied, "taken_back": len(self._rolled_back)}

    def _has_rolled_back(self, simulation: Simulation) -> bool:
        """Measure the newest change once its period is over; where it has harmed, the configuration before it comes back."""
        change = self._change
        if not self.watches or change is None or simulation.now < change.at + self.period - ROUNDING:
            return False
        self._change = None
        gain = measured_gain(change.expected, taken_of_period(simulation, change.at, self.period))
        if gain is None or not has_harmed(gain):
            return False
        self._rolled_back.append((simulation.now, change.after))
        self._set(simulation, change.before)
        return True

    def _set(self, simulation: Simulation, config: dict[str, Any]) -> None:
        self.config = dict(config)
        simulation.reconfigure(registry.create(self.policy, self.config, interval=self.options.interval))

    def _put(self, simulation: Simulation, answer: SearchResult, trigger: Trigger) -> None:
        found, since = answer.found, self._controller.rolled_back_since(simulation.now)
        rolled_back = [config for at, config in self._rolled_back if at >= since]
        applied = not refusal(found.in_force, found.best, found.gain, trigger.min_gain, rolled_back)
        simulated, rejected = found.count("simulated"), found.count("rejected")
        self.turns.append(SearchOutcome(simulation.now, found.gain, applied, simulated, rejected, found.seconds, trigger.why))
        if applied:
            self.tried = tried_before(found.in_force, self.tried)
            self._change = _Change(simulation.now, found.in_force, found.best, found.reference.soon)
            self._set(simulation, found.best)


def taken_of_period(simulation: Simulation, begin: float, period: float) -> float | None:
    """Mean seconds of a period that the jobs which were at hand at its beginning took of it (policy/taken_of_period)."""
    ended, submitted = simulation.recorder.ended, simulation.workload.submitted
    there = (submitted <= begin) & ~(ended <= begin)
    return float(np.fmin(ended[there] - begin, period).mean()) if there.any() else None


def make_control(choice: PolicyChoice, options: Options) -> SimulatedTuning:
    """The control of a simulation, for a choice of `stoker simulate` that tunes itself."""
    return SimulatedTuning(choice.policy, dict(choice.config), options)
