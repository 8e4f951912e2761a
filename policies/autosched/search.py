"""Algorithm 3 of 002 (ch. 6.4.3.1): configuration tuning with a causal model. The simulation of a trial is handed in.

As read: the model may reject a sample with probability ``epsilon``; the other samples are simulated whatever it predicts. The reward of a
sample is the figure of the configuration in force over that of the sample: positive, and 1 for the configuration in force. A rejected
sample counts as one of T, and BlueFin gets no reward for it. No configuration is simulated twice.

The thesis leaves open which model may reject. Ours may once it has proved itself in this very search: before each of `MIN_JUDGED_TRIALS`
trials or more it predicted, and its predictions order them better than chance would (`agreement`). So a model that knows too little of the
workload at hand costs time, but hardly any gain.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .bluefin import BlueFin
from .objectives import OBJECTIVES
from .search_space import Category, Configuration, Number, Space

TRIALS = 40  #: T (002 ch. 6.5.2)
GAMMA = 0.95  #: relax factor (line 3)
EPSILON = 0.9  #: with this probability the model may reject (line 7)
EARLIER_SHARE = 0.25  #: share of the samples at most that are configurations of before: with few trials they would take all
EVEN_SHARE = 0.5  #: share of the samples, the first, that are drawn evenly from the space
MIN_JUDGED_TRIALS = 8  #: of a search, before its model may reject
AGREEMENT_Z = 1.64  #: standard deviations above chance (95 %) that the agreement of a model needs
RECHECKED_CONFIGURATIONS = 3  #: the best of a search on grouped jobs, which are re-run on the ungrouped ones
WHAT_IF_VALUES = 9  #: of a number, in the what-if analysis
SLO_SMOOTHING = 0.01  #: share of the deadlines added to both sides of a reward: else the first deadline kept would be an endless gain
REWARD_TOLERANCE = 1e-6  #: rewards that differ by no more are the same
METRICS = ("queueing", "utilisation", "preemptions", "fragmentation")


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """The result of a trial: objectives, the lower the better, and the metrics that explain them."""

    jct: float  #: mean completion time, seconds
    p99: float  #: of the completion times, seconds
    slo: float  #: share of the deadlines that were missed
    rho: float  #: mean finish-time fairness
    queueing: float  #: mean seconds that a job waits from now on
    utilisation: float  #: share of the GPU-time that is held
    preemptions: float  #: a job
    fragmentation: float  #: share of the GPU-time that is free while jobs wait
    cost: float = 0.0  #: GPU-hours held, by jobs or kept warm
    seconds: float = 0.0  #: processor time
    soon: float = 0.0  #: mean seconds of the period ahead that the jobs at hand take
    decisions: int = 0  #: that the trial took


class NotMeasured(Exception):
    """A trial failed or was cut off; the words say why. ``figures``: those that a model learns from it, see `as_cut_off`."""

    def __init__(self, words: str, figures: TrialFigures | None = None) -> None:
        super().__init__(words)
        self.figures = figures


class RewardModel(Protocol):
    """Predicts rewards (the causal model)."""

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        """Rewards, corrected by measurements near them in this search."""

    def expected(self, configs: Sequence[Configuration]) -> Sequence[float]:
        """Rewards without that correction, by which unlike configurations compare."""

    def learn(self, config: Configuration, figures: TrialFigures, reference: TrialFigures) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    config: Configuration
    outcome: str  #: simulated, rejected, known, failed
    reward: float | None
    predicted: float | None = None
    why: str = ""


@dataclass
class BestFound:
    """The result of a search. ``gain``: the reward of the best, 1: nothing is better than the configuration in force."""

    in_force: Configuration
    best: Configuration
    gain: float
    reference: TrialFigures
    figures: TrialFigures
    trials: list[Trial] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)  #: keys that the scope step has fixed
    seconds: float = 0.0
    stopped: str = ""  #: why fewer than T were tried
    agreement: float | None = None  #: of predictions with measurements; None: no model, or too few trials
    as_counts: Mapping[str, int] = field(default_factory=dict)  #: keys that count the thresholds in use, with how many have an effect

    def count(self, outcome: str) -> int:
        return sum(trial.outcome == outcome for trial in self.trials)


def reward_of(objective: str, reference: TrialFigures, figures: TrialFigures) -> float:
    """Reference over measured; for shares, which may be 0, measured over reference of their complements."""
    before, after = getattr(reference, objective), getattr(figures, objective)
    if objective == "slo":
        return float((1.0 - after + SLO_SMOOTHING) / (1.0 - before + SLO_SMOOTHING))
    return float(before / after) if after > 0 else 1.0


def as_cut_off(figures: TrialFigures, reference: TrialFigures) -> TrialFigures:
    """The figures that a model learns from a trial that was cut off: half the reward of the configuration in force by each objective, and
    the metrics so far. Else no model would ever see configurations under which jobs change places all the time, and those cost the most."""
    twice = {name: 2.0 * getattr(reference, name) for name in OBJECTIVES if name != "slo"}
    return dataclasses.replace(figures, **twice, slo=1.0 - ((1.0 - reference.slo + SLO_SMOOTHING) / 2.0 - SLO_SMOOTHING))


class _Search:
    def __init__(
        self, space: Space, evaluate: Callable[[Configuration], TrialFigures], in_force: Configuration, objective: str,
        model: RewardModel | None, gamma: float,
    ) -> None:  # fmt: skip
        self.space, self.evaluate, self.objective, self.model, self.gamma = space, evaluate, objective, model, gamma
        reference = evaluate(in_force)
        self.found = BestFound(dict(in_force), dict(in_force), 1.0, reference, reference, [Trial(dict(in_force), "simulated", 1.0)])
        self.known: dict[object, float | None] = {_key(in_force): 1.0}
        self.constraints: Configuration = {}  #: W
        self.told: list[tuple[float, float]] = []  #: rewards as predicted before a trial, and as measured by it

    def attempt(self, config: Configuration, *, may_reject: bool) -> Trial:
        """Lines 8 to 10, 12 and 13 for one sample."""
        key = _key(config)
        if key in self.known:
            return Trial(config, "known", self.known[key])
        predicted, bar = None, math.inf
        if self.model is not None:
            predicted = float(self.model.predict([config])[0])
            bar = min(float(self.model.expected([self.found.best])[0]), self.found.gain)
        if may_reject and predicted is not None and self.is_proved() and is_rejected(predicted, bar, self.gamma):
            return Trial(config, "rejected", None, predicted)
        try:
            figures = self.evaluate(config)
        except NotMeasured as error:
            self.known[key] = None
            if error.figures is not None:
                self._learn(config, predicted, error.figures)
            return Trial(config, "failed", None, predicted, str(error))
        reward = self.known[key] = reward_of(self.objective, self.found.reference, figures)
        self._learn(config, predicted, figures)
        if reward > self.found.gain:
            self.found.best, self.found.gain, self.found.figures = config, reward, figures
        return Trial(config, "simulated", reward, predicted)

    def _learn(self, config: Configuration, predicted: float | None, figures: TrialFigures) -> None:
        if self.model is None or predicted is None:
            return
        self.model.learn(config, figures, self.found.reference)
        self.told.append((predicted, reward_of(self.objective, self.found.reference, figures)))
        if len(self.told) >= MIN_JUDGED_TRIALS:
            self.found.agreement = agreement(self.told)

    def is_proved(self) -> bool:
        """The model may reject, and narrow the search."""
        n, found = len(self.told), self.found.agreement
        return found is not None and found > AGREEMENT_Z * math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))  # Kendall's variance

    def narrow(self) -> None:
        """Lines 14 to 16; one key at least stays free."""
        if self.model is None or not self.is_proved():
            return
        for name in hopeless_keys(self.space, self.model, self.found.best, self.constraints, self.gamma):
            if len(self.constraints) + 1 < len(self.space.names):
                self.constraints[name] = self.found.best[name]


def search(
    space: Space,
    evaluate: Callable[[Configuration], TrialFigures],
    in_force: Configuration,
    objective: str = "jct",
    *,
    model: RewardModel | None = None,
    trials: int = TRIALS,
    epsilon: float = EPSILON,
    gamma: float = GAMMA,
    seed: int = 0,
    spread: float = EVEN_SHARE,
    first: Sequence[Configuration] = (),
    seconds: float = math.inf,
    told: Callable[[int, Trial], None] = lambda number, trial: None,
    ahead: Callable[[Sequence[Configuration]], None] | None = None,
) -> BestFound:
    """The best configuration of at most ``trials`` samples; the first of them is the configuration in force.

    ``first``: configurations of before, the most promising first. ``seconds``: real time after which no other trial begins. ``told`` hears
    of each sample, ``ahead`` beforehand of those that do not depend on what others give. Raises NotMeasured if the configuration in force
    cannot be measured: then there is nothing to compare with.
    """
    began, rng = time.monotonic(), np.random.default_rng(seed)
    state = _Search(space, evaluate, in_force, objective, model, gamma)
    found = state.found
    bluefin = BlueFin(space, space.project(in_force, otherwise=in_force), rng)
    first = first[: max(int(EARLIER_SHARE * trials), 1)]
    if ahead is not None:
        ahead(_independent(space, in_force, first, trials, spread, copy.deepcopy(rng)))
    for number in range(1, trials):
        if time.monotonic() - began > seconds:
            found.stopped = f"its time was over after {number} of {trials} trials"
            break
        given, evenly = number <= len(first), number < spread * trials
        sample = first[number - 1] if given else space.drawn(rng) if evenly else bluefin.sample()  # line 5
        config = space.project(sample, None if given else state.constraints, otherwise=in_force)  # line 6
        before = found.gain
        trial = state.attempt(config, may_reject=rng.random() <= epsilon and not given)  # line 7
        found.trials.append(trial)
        told(number, trial)
        if not given and not evenly:
            bluefin.reward(trial.reward)  # line 11
        if found.gain > before:
            bluefin.start_from(found.best)
        if trial.outcome == "simulated":
            state.narrow()
    found.fixed, found.seconds = list(state.constraints), time.monotonic() - began
    return found


def _independent(
    space: Space, in_force: Configuration, first: Sequence[Configuration], trials: int, spread: float, rng: np.random.Generator
) -> list[Configuration]:
    """The samples of before and those drawn evenly, as `search` will take them: the rejections of a model aside they are known."""
    found = []
    for number in range(1, trials):
        given = number <= len(first)
        if not given and number >= spread * trials:
            break
        found.append(space.project(first[number - 1] if given else space.drawn(rng), None, otherwise=in_force))
        rng.random()  # of line 7
    return found


def agreement(told: Sequence[tuple[float, float]]) -> float:
    """Goodman and Kruskal's gamma, with ties of predictions counted as neither. Of all pairs with unlike measurements: the share that was
    predicted in the right order, less the share in the wrong one. 0: chance; 1: all. Rewards within a millionth are alike."""
    predicted, measured = np.array(told).T
    unlike = np.subtract.outer(measured, measured)
    order = np.sign(np.where(np.abs(unlike) > REWARD_TOLERANCE, unlike, 0.0))
    said = np.sign(np.subtract.outer(predicted, predicted))
    return float((order * said).sum() / max(np.abs(order).sum(), 1.0))


def is_rejected(predicted: float, best: float, gamma: float) -> bool:
    """Line 9: the predicted reward is no more than gamma x the best.

    As read, "the best" is the smaller of its measurement and its prediction. The best of many measurements is above anything that a mean of
    trees ever predicts, so after the first good one nearly all samples would be rejected.
    """
    return predicted <= gamma * best


def hopeless_keys(space: Space, model: RewardModel, best: Configuration, constraints: Mapping[str, Any], gamma: float = 1.0) -> list[str]:
    """Line 14, the what-if analysis: keys whose every other value would be rejected, with all other keys as in the best.

    As read, "do not exceed the best" is judged as on line 9: by gamma x the prediction for the best. Against its measurement, which is
    above all predictions, the first improvement would fix nearly all keys at once, and the search would end there.
    A key that is not in use has no effect now, but may have one when another key changes: it stays free.
    """
    asked = [best]
    spans: dict[str, slice] = {}
    for one in space.parts:
        if one.name in constraints or not space.in_use(one, best):
            continue
        values = one.choices if isinstance(one, Category) else [one.value(unit) for unit in np.linspace(0.0, 1.0, WHAT_IF_VALUES)]
        others = [space.project({**best, one.name: value}, otherwise=best) for value in values if value != best[one.name]]
        if others:
            spans[one.name] = slice(len(asked), len(asked) + len(others))
            asked += others
    expected = model.expected(asked)
    return [name for name, span in spans.items() if max(expected[span]) <= gamma * expected[0]]


def rechecked(found: BestFound, evaluate: Callable[[Configuration], TrialFigures], objective: str) -> BestFound:
    """The result of a search on grouped jobs, its best few and the configuration in force re-run on the jobs themselves (``evaluate``).

    The best for groups may be worse for the jobs than the configuration in force; the thesis (6.4.3.2) does not look. Raises NotMeasured if
    the configuration in force cannot be measured.
    """
    reference = evaluate(found.in_force)
    best, gain, figures = found.in_force, 1.0, reference
    better = [(reward, trial.config) for trial in found.trials if trial.outcome == "simulated" and (reward := trial.reward or 0.0) > 1.0]
    for _, config in sorted(better, key=lambda one: -one[0])[:RECHECKED_CONFIGURATIONS]:
        try:
            measured = evaluate(config)
        except NotMeasured:
            continue
        if (reward := reward_of(objective, reference, measured)) > gain:
            best, gain, figures = config, reward, measured
    return dataclasses.replace(found, best=best, gain=gain, reference=reference, figures=figures)


def without_idle(found: BestFound, space: Space, evaluate: Callable[[Configuration], TrialFigures]) -> BestFound:
    """The result without the thresholds of its best that hold no job: one is left out if the figures are the same without it.

    Thresholds are numbers of which another key says how many are in use. Where that key is not tuned, it stays, and `as_counts` says
    how many do something.
    """
    numbers = [one for one in (*space.numbers, *space.ends) if one.needs is not None]
    for count in dict.fromkeys(one.needs[0] for one in numbers if one.needs):
        counted, best = dict(found.best), found.best
        try:
            while same := next((one for one in _one_less(count, numbers, counted, found) if _comes_to(evaluate(one), found.figures)), None):
                counted = same
                allowed = space.project(counted, otherwise=found.in_force)
                best = allowed if count in space.names and allowed[count] == counted[count] else best
        except NotMeasured:  # its time is over: idle thresholds that are left do no harm
            pass
        if counted != found.best:
            found = dataclasses.replace(found, best=best, as_counts={**found.as_counts, count: counted[count]})
    return found


def _one_less(count: str, numbers: Sequence[Number], config: Configuration, found: BestFound) -> Iterator[Configuration]:
    """The configuration without each of the numbers in use in turn, the last one first."""
    used = sorted(
        (one for one in numbers if one.needs and one.needs[0] == count and one.needs[1] <= config[count]), key=lambda one: one.needs or ()
    )
    for left_out in reversed(range(len(used))):
        values = [config[one.name] for place, one in enumerate(used) if place != left_out] + [found.in_force[used[-1].name]]
        yield {**config, count: config[count] - 1, **dict(zip([one.name for one in used], values, strict=True))}


def _comes_to(figures: TrialFigures, known: TrialFigures) -> bool:
    pairs = ((getattr(figures, name), getattr(known, name)) for name in (*OBJECTIVES, *METRICS))
    return all(math.isclose(one, other, rel_tol=REWARD_TOLERANCE, abs_tol=REWARD_TOLERANCE) for one, other in pairs)


def _key(config: Mapping[str, Any]) -> object:
    return tuple(sorted((name, str(value)) for name, value in config.items()))
