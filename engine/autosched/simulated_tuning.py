"""The controller of AutoSched inside a simulation: ``stoker simulate TRACE -p tiresias,auto=true``. It does what a daemon's does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.arrivals_ahead import HOUR
from ...policies.autosched.causal_model import CausalModel, NoModel, Samples
from ...policies.autosched.search import EPSILON, TRIALS
from ...policies.autosched.search_space import space_of
from ..sim.run_options import Options
from ..sim.simulator import Simulation
from ..sim.study import Choice
from .moment_of_trace import DailyPredictor, history_of, situation_of
from .pool_gains import BURST_GAIN, LEAST_GAIN, TRIED_AGAIN, is_burst, tried_before
from .rollback import has_harmed, measured_gain
from .search_process import Answer, Request, SearchFailed, find
from .situation import LEAST_JOBS, Situation

PERIOD = 3600.0
ROUNDING = 1e-6  #: seconds by which a look may come before the end of a period
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
    _searched: float = -math.inf
    _due: float = -math.inf  #: the last search of a period: a burst puts off none
    _change: _Change | None = None  #: the newest, until it was measured: one that another followed is never taken back
    _taken_back: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  #: when, and what
    _samples: Samples | None = None
    model: CausalModel | None = None  #: one that was learnt before; None: it is learnt from what searches measure

    def act(self, simulation: Simulation) -> None:
        """Its turn: take back what has harmed, or search if a period is over or a burst has come."""
        self.next_at = simulation.now + (self.period / HOUR if self.watches else self.period)
        if self._has_taken_back(simulation):
            return  # the next look searches, from what is in force then
        history = history_of(simulation)
        if len(history) < LEAST_JOBS or not len(simulation.table):
            return
        due = simulation.now >= self._due + self.period - ROUNDING
        if not due and not is_burst(history, simulation.now, self.period / HOUR, self._searched):
            return
        self._searched = simulation.now
        if due:
            self._due = simulation.now
        # Where nothing is unknown there is nothing to predict.
        predictor = self._predictor if self.options.errors.unknown > 0 else None
        situation = situation_of(simulation, self.policy, self.options, predictor)[0] if self.looks is None else self.looks(simulation)
        request = Request(
            replace(situation, period=self.period), self.config, self.objective, self.trials, epsilon=self.epsilon,
            seed=1000 * self.seed + len(self.turns), first=tuple(self.tried), aggregate=self.aggregate,
            model=self.model if self.causal else None,
        )  # fmt: skip
        try:
            answer = self.searches(request)
        except SearchFailed:
            return
        self._put(simulation, answer, LEAST_GAIN if due else BURST_GAIN, "a period" if due else "a burst")
        if self.causal:
            self._learn(answer)

    def did(self) -> dict[str, int]:
        """Searches, how many of them changed what was in force, and how many of these changes were taken back."""
        applied = sum(turn.applied for turn in self.turns)
        return {"searches": len(self.turns), "applied": applied, "taken_back": len(self._taken_back)}

    def _has_taken_back(self, simulation: Simulation) -> bool:
        """Measure the newest change once its period is over; where it has harmed, what was in force before it comes back."""
        change = self._change
        if not self.watches or change is None or simulation.now < change.at + self.period - ROUNDING:
            return False
        self._change = None
        gain = measured_gain(change.expected, taken_of_period(simulation, change.at, self.period))
        if gain is None or not has_harmed(gain):
            return False
        self._taken_back.append((simulation.now, change.after))
        self._set(simulation, change.before)
        return True

    def _set(self, simulation: Simulation, config: dict[str, Any]) -> None:
        self.config = dict(config)
        simulation.reconfigure(registry.create(self.policy, self.config, interval=self.options.interval))

    def _put(self, simulation: Simulation, answer: Answer, least: float, why: str) -> None:
        found, since = answer.found, simulation.now - TRIED_AGAIN * self.period
        harmed = any(at >= since and after == found.best for at, after in self._taken_back)
        applied = found.gain >= least and found.best != found.in_force and not harmed
        self.turns.append(Turn(simulation.now, found.gain, applied, found.count("simulated"), found.count("rejected"), found.seconds, why))
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
