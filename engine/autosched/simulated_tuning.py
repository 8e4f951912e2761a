"""A simulation that tunes itself (``stoker simulate TRACE -p tiresias,auto=true``): it drives the `Controller` as a daemon does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.causal_model import CausalModel, NoModel, Samples
from ...policies.autosched.search import EPSILON, TRIALS
from ...policies.autosched.search_space import space_of
from ..sim.run_options import Options
from ..sim.simulator import Simulation
from ..sim.study import Choice
from .moment_of_trace import DailyPredictor, history_of, situation_of
from .search_process import Answer, Request, SearchFailed, find
from .situation import LEAST_JOBS, Situation
from .tuning_controller import ROUNDING, Controller, Trigger, has_harmed, measured_gain, refusal, tried_before

PERIOD = 3600.0
LEARNT_FROM = 120  #: samples of searches from which the causal model is learnt


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one search."""

    at: float
    gain: float
    applied: bool
    simulated: int
    rejected: int
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class _Change:
    """What a search has put in force."""

    at: float
    before: dict[str, Any]
    after: dict[str, Any]
    expected: float  #: mean seconds of the period that follows which the jobs at hand were to take without it


@dataclass
class SimulatedTuning:
    """Searches once a period, and upon bursts between; what is found is in force at once, and taken back where it has harmed."""

    policy: str
    config: dict[str, Any]
    options: Options
    objective: str = "jct"
    period: float = PERIOD
    trials: int = TRIALS
    epsilon: float = EPSILON
    watches: bool = True  #: between two periods it looks for bursts, and takes back what has harmed
    causal: bool = True
    aggregate: bool = True
    seed: int = 0  #: of its searches
    #: In the place of what is known and expected: what benchmarks compare with. None: the situation as it is known.
    looks: Callable[[Simulation], Situation] | None = None
    #: In the place of the search.
    searches: Callable[[Request], Answer] = find
    turns: list[Turn] = field(default_factory=list)
    next_at: float = 0.0
    tried: list[dict[str, Any]] = field(default_factory=list)  #: what was in force at first, and the newest of what came after it
    _predictor: DailyPredictor = field(default_factory=DailyPredictor)
    _controller: Controller = field(init=False)
    _change: _Change | None = None  #: the newest, until it was measured: one that another followed is never taken back
    _rolled_back: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  #: when, and which configuration
    _samples: Samples | None = None
    model: CausalModel | None = None  #: one that was learnt before; None: it is learnt from what searches measure

    def __post_init__(self) -> None:
        self._controller = Controller(self.period)

    def act(self, simulation: Simulation) -> None:
        """Its turn: measure, roll back, search."""
        self.next_at = simulation.now + (self._controller.check_interval if self.watches else self.period)
        if self._has_rolled_back(simulation):
            return  # the next look searches, from what is in force then
        submitted = history_of(simulation).submitted
        if len(submitted) < LEAST_JOBS or not len(simulation.table):
            return
        trigger = self._controller.due(simulation.now, lambda: submitted)
        if trigger is None:
            return
        try:
            answer = self.searches(self._request(simulation))
        except SearchFailed:
            return
        self._put(simulation, answer, trigger)
        if self.causal:
            self._learn(answer)

    def _request(self, simulation: Simulation) -> Request:
        # Where nothing is unknown there is nothing to predict.
        predictor = self._predictor if self.options.errors.unknown > 0 else None
        situation = situation_of(simulation, self.policy, self.options, predictor)[0] if self.looks is None else self.looks(simulation)
        return Request.of(
            replace(situation, period=self.period), self.config, self.objective, self.trials, epsilon=self.epsilon,
            seed=1000 * self.seed + len(self.turns), first=tuple(self.tried), aggregate=self.aggregate,
            model=self.model if self.causal else None,
        )  # fmt: skip

    def did(self) -> dict[str, int]:
        """Searches, how many of them changed what was in force, and how many of these changes were taken back."""
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

    def _put(self, simulation: Simulation, answer: Answer, trigger: Trigger) -> None:
        found, since = answer.found, self._controller.rolled_back_since(simulation.now)
        rolled_back = [config for at, config in self._rolled_back if at >= since]
        applied = not refusal(found.in_force, found.best, found.gain, trigger.min_gain, rolled_back)
        simulated, rejected = found.count("simulated"), found.count("rejected")
        self.turns.append(Turn(simulation.now, found.gain, applied, simulated, rejected, found.seconds, trigger.why))
        if applied:
            self.tried = tried_before(found.in_force, self.tried)
            self._change = _Change(simulation.now, found.in_force, found.best, found.reference.soon)
            self._set(simulation, found.best)

    def _learn(self, answer: Answer) -> None:
        """The causal model from what searches have measured: until there is enough nothing is rejected."""
        if answer.measured is None:
            return
        self._samples = answer.measured if self._samples is None else self._samples.plus(answer.measured)
        try:
            if self.model is not None:
                self.model = self.model.relearnt(answer.measured)
            elif len(self._samples) >= LEARNT_FROM:
                space = space_of(registry.load(self.policy).Config, self.config)
                self.model = CausalModel.learnt(space, self.objective, self._samples)
        except NoModel:
            self.model = None


def taken_of_period(simulation: Simulation, begin: float, period: float) -> float | None:
    """Mean seconds of a period that the jobs which were at hand at its beginning took of it (sql/policy/taken_of_period.sql)."""
    ended, submitted = simulation.recorder.ended, simulation.workload.submitted
    there = (submitted <= begin) & ~(ended <= begin)
    return float(np.fmin(ended[there] - begin, period).mean()) if there.any() else None


def make_control(choice: Choice, options: Options) -> SimulatedTuning:
    """Of a choice of `stoker simulate` that tunes itself."""
    return SimulatedTuning(choice.policy, dict(choice.config), options)
