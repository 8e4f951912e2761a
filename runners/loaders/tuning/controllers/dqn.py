"""The agent as a controller: alone, as in InTune (003 ch. 4), or behind the rate controller, to refine its answer.

Alone it begins with the even division of the cores and changes each knob by at most 5 a window. Behind the rate controller it is on trial:
it may try changes for some windows, and the result is kept only if it is measurably better than the rate controller's answer. Otherwise
that answer is restored, and the next trial waits twice as long. So it costs little if the rate model is right, and can win if it is not.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from ..controller import Controller, Decision, Observation, Values, reward
from ..controller_options import tunable
from ..costs import with_workers
from .fixed import even_workers
from .pilot import Pilot, in_words
from .rate import Rate, RateOptions


@dataclass(frozen=True, slots=True)
class DqnOptions:
    pretrained: bool = tunable(True, "begin with the weights that were made on simulated pipelines")
    learn: bool = tunable(True, "go on learning from this pipeline")
    table2: bool = tunable(
        False, "see exactly the paper's Table 2 instead of the stages; there are no weights for it, so pretrained: false"
    )
    rate: float = tunable(2e-5, "learning rate; 0.001 is good from scratch", low=0.0, high=0.1)
    updates: int = tunable(1, "of the network a window", low=1, high=64)
    exploration: float = tunable(0.0, "probability of a random step of a knob, once settled", low=0.0, high=1.0)
    exploring: int = tunable(0, "windows in which that falls from 1 to it; some 150 from scratch", low=0, high=100_000)
    seed: int = tunable(0, "of its random choices", low=0)


class Dqn:
    """InTune's agent: begins with the even division, then moves in steps of 1 and 5, and learns."""

    name: ClassVar[str] = "dqn"
    Options: ClassVar[type[DqnOptions]] = DqnOptions

    def __init__(self, options: DqnOptions, *, weights: Path | None = None) -> None:
        self.options = options
        self._weights = weights
        self._pilot: Pilot | None = None
        self._windows = 0

    def decide(self, seen: Observation) -> Decision:
        if self._pilot is None:
            self._pilot = _pilot(self.options, len(seen.knobs), self._weights)
            self._pilot.see(seen)
            self._pilot.forget_way()
            return Decision(with_workers(seen, even_workers(seen)), "begins with the cores divided evenly")
        rows, _ = self._pilot.see(seen)
        chosen = self._pilot.agent.choose(rows, self._exploration())
        self._windows += 1
        return Decision(self._pilot.moved(seen, chosen), in_words(seen, chosen))

    def _exploration(self) -> float:
        left = 1.0 - self._windows / self.options.exploring if self.options.exploring else 0.0
        return max(self.options.exploration, left)


def _pilot(options: DqnOptions, knobs: int, weights: Path | None) -> Pilot:
    return Pilot(
        knobs,
        pretrained=options.pretrained,
        weights=weights,
        layout="table2" if options.table2 else "stages",
        rate=options.rate,
        updates=options.updates if options.learn else 0,
        seed=options.seed,
    )


@dataclass(frozen=True, slots=True)
class RateDqnOptions:
    measured: int = tunable(6, "windows over which a reward is compared", low=2, high=1000)
    tried: int = tunable(10, "windows of a trial", low=1, high=1000)
    rest: int = tunable(20, "windows until the next trial; twice as many after each that failed", low=1, high=100_000)
    margin: float = tunable(0.01, "relative gain below which the agent's values are not kept", low=0.0, high=1.0)
    loss: float = tunable(0.15, "relative loss at which a trial ends at once", low=0.01, high=1.0)
    rate: float = tunable(2e-5, "learning rate of the agent", low=0.0, high=0.1)
    seed: int = tunable(0, "of its random choices", low=0)


LONGEST_REST = 500  #: windows
STRAYED_CHANGE = 0.25  #: relative change of the rate controller's answer that makes the agent's values out of date


class TrialPhase(Enum):
    LED = "the rate controller leads"
    TRIED = "the agent tries"
    PROVED = "the agent's values are measured"
    KEPT = "the agent's values are kept"


class RateDqn:
    """The rate controller's answer plus the agent's offset, while that is measurably better."""

    name: ClassVar[str] = "rate+dqn"
    Options: ClassVar[type[RateDqnOptions]] = RateDqnOptions

    def __init__(self, options: RateDqnOptions, *, base: Controller | None = None, weights: Path | None = None) -> None:
        self.options = options
        self._base = base or Rate(RateOptions())
        self._weights = weights
        self._pilot: Pilot | None = None
        self._phase = TrialPhase.LED
        self._rewards: list[float] = []  # of the windows of this phase under the same values
        self._rest = options.rest
        self._waited = 0
        self._good: Values = ()  # the values to return to
        self._earns = 0.0
        self._led: Values = ()  # the rate controller's answer that the offset is on top of
        self._best: tuple[float, Values] = (0.0, ())  # of the trial: reward, values
        self._astray = 0

    @property
    def offset(self) -> Values:
        """The agent's change to the answer of the rate controller."""
        return tuple(good - led for good, led in zip(self._good, self._led, strict=True)) if self._phase is TrialPhase.KEPT else ()

    def decide(self, seen: Observation) -> Decision:
        if self._pilot is None:
            self._pilot = Pilot(len(seen.knobs), weights=self._weights, rate=self.options.rate, seed=self.options.seed)
        rows, _ = self._pilot.see(seen)
        answer = self._base.decide(seen)
        if answer.processes:  # the agent's values are for other workers
            return self._lead(answer, rest=self.options.rest)
        if self._phase is not TrialPhase.LED and self._out_of_date(seen, answer):
            return self._lead(answer, rest=self.options.rest)
        if self._phase is TrialPhase.LED:
            return self._while_led(seen, answer)
        if self._phase is TrialPhase.TRIED:
            chosen = self._pilot.agent.choose(rows)
            return self._while_tried(seen, Decision(self._pilot.moved(seen, chosen), f"tries {in_words(seen, chosen)}"))
        return self._while_proved(seen) if self._phase is TrialPhase.PROVED else self._while_kept(seen)

    # -- the work of each phase

    def _while_led(self, seen: Observation, answer: Decision) -> Decision:
        self._waited += 1
        self._rewards = [*self._rewards, reward(seen)] if answer.values == seen.values else []
        if len(self._rewards) < self.options.measured or self._waited < self._rest:
            return answer
        self._led = seen.values
        return self._try(seen)

    def _try(self, seen: Observation) -> Decision:
        self._good, self._earns = seen.values, fmean(self._rewards[-self.options.measured :])
        self._best = (0.0, seen.values)
        self._phase, self._rewards = TrialPhase.TRIED, []
        return Decision(seen.values, "the agent may try to do better")

    def _while_tried(self, seen: Observation, tries: Decision) -> Decision:
        earned = reward(seen)
        self._rewards.append(earned)
        if seen.values != self._good:
            self._best = max(self._best, (earned, seen.values))
        failing = [each < self._earns * (1 - self.options.loss) for each in self._rewards[-2:]]
        if seen.throughput <= 0 or (len(failing) == 2 and all(failing)):
            return self._failed("it was worse")
        if len(self._rewards) < self.options.tried:
            return tries
        if self._best[0] <= self._earns:
            return self._failed("nothing better was found")
        self._phase, self._rewards = TrialPhase.PROVED, []
        return Decision(self._best[1], "the best of the trial is measured")

    def _while_proved(self, seen: Observation) -> Decision:
        if seen.values != self._best[1]:
            return self._failed("the guard refused the agent's values")
        self._rewards.append(reward(seen))
        if len(self._rewards) < self.options.measured:
            return Decision(seen.values, "the best of the trial is measured")
        found, error = fmean(self._rewards), _error(self._rewards)
        gain = found / self._earns - 1 if self._earns > 0 else math.inf
        if found - 2 * error <= self._earns * (1 + self.options.margin):
            return self._failed(f"{gain:+.1%} is not enough")
        self._phase, self._waited, self._rest = TrialPhase.KEPT, 0, self.options.rest
        self._good, self._earns = seen.values, found
        return Decision(seen.values, f"the agent's values are kept: {gain:+.1%} against the rate controller's")

    def _while_kept(self, seen: Observation) -> Decision:
        self._waited += 1
        self._rewards = [*self._rewards, reward(seen)][-self.options.measured :]
        if len(self._rewards) < self.options.measured or self._waited < self._rest:
            return Decision(self._good, "the agent's values are kept")
        return self._try(seen)

    def _failed(self, why: str) -> Decision:
        self._rest, self._waited, self._rewards = min(2 * self._rest, LONGEST_REST), 0, []
        self._phase = TrialPhase.LED if self._good == self._led else TrialPhase.KEPT
        return Decision(self._good, f"the agent's trial is over, {why}")

    def _lead(self, answer: Decision, rest: int) -> Decision:
        self._phase, self._rewards, self._waited, self._rest, self._astray = TrialPhase.LED, [], 0, rest, 0
        return dataclasses.replace(answer, why=f"the rate controller leads again; {answer.why}")

    def _out_of_date(self, seen: Observation, answer: Decision) -> bool:
        """Whether the machine, the costs or the reward have changed so much that the agent's values no longer hold."""
        strayed = answer.values != seen.values and any(
            abs(new - old) > max(1.0, STRAYED_CHANGE * old) for new, old in zip(answer.values, self._led, strict=True)
        )
        poor = self._phase is TrialPhase.KEPT and reward(seen) < self._earns * (1 - self.options.loss)
        self._astray = self._astray + 1 if strayed or poor else 0
        return seen.resized or self._astray >= 2


def _error(values: list[float]) -> float:
    """Of their mean: one standard deviation."""
    centre = fmean(values)
    return math.sqrt(math.fsum((each - centre) ** 2 for each in values) / (len(values) - 1) / len(values))
