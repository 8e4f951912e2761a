"""Algorithm 3 of 002 (ch. 6.4.3.1): configuration tuning with a causal model. What simulates is handed in.

As read: the model may reject a sample with probability ``epsilon``, so ``1 - epsilon`` is the share of the samples that explores whatever
it predicts. The reward is that of the configuration in force over that of the sample, so it is positive and
1 for what is in force. A rejected sample counts as one of T, and BlueFin gets no reward for it. What was measured before is not again.

Which model may reject, the thesis leaves open. Ours may once it has proved itself in this very search: of `LEAST_PROOF` trials at least it
said beforehand, better than chance, which of two comes out better (`agreement`). So one that knows too little of the workload at hand costs
time, and little of what is found.
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
FIRST = 0.25  #: share of the samples at most that are configurations of before: with few trials they would leave none for others
SPREAD = 0.5  #: share of the samples, the first, that is drawn evenly from the space
LEAST_PROOF = 8  #: trials of a search by which a model is judged before it may reject
PROOF = 1.64  #: standard deviations above chance (95 %) that it has to agree with them
CHECKED = 3  #: of the best of a search on grouped jobs, on the jobs themselves
WHAT_IF = 9  #: values of a number that the what-if analysis looks at
LATE = 0.01  #: share of the deadlines by which rewards are smoothed: where all are missed, one that is kept is no gain without end
ALIKE = 1e-6  #: rewards that differ by no more are the same
METRICS = ("queueing", "utilisation", "preemptions", "fragmentation")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a trial gives: objectives, all the better the lower, and the metrics that explain them."""

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
    """A trial came to no end; the words say why: it failed, or was cut off. ``figures``: what is taken of it, see `as_cut_off`."""

    def __init__(self, words: str, figures: Figures | None = None) -> None:
        super().__init__(words)
        self.figures = figures


class Model(Protocol):
    """What predicts rewards (the causal model)."""

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        """With what was measured near in this search."""
        ...

    def expected(self, configs: Sequence[Configuration]) -> Sequence[float]:
        """Without: unlike configurations compare by what the model alone says of them."""
        ...

    def learn(self, config: Configuration, figures: Figures, reference: Figures) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    config: Configuration
    outcome: str  #: simulated, rejected, known, failed
    reward: float | None
    predicted: float | None = None
    why: str = ""


@dataclass
class Found:
    """What a search found. ``gain``: the reward of the best, 1: nothing better than what is in force."""

    in_force: Configuration
    best: Configuration
    gain: float
    reference: Figures
    figures: Figures
    trials: list[Trial] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)  #: keys that the scope step has fixed
    seconds: float = 0.0
    stopped: str = ""  #: why fewer than T were tried
    agreement: float | None = None  #: of what the model said with what was measured; None: no model, or too few trials
    as_counts: Mapping[str, int] = field(default_factory=dict)  #: keys that say how many thresholds are in use: what they come to

    def count(self, outcome: str) -> int:
        return sum(trial.outcome == outcome for trial in self.trials)


def reward_of(objective: str, reference: Figures, figures: Figures) -> float:
    """Reference over measured; of shares, which may be 0, of their complements."""
    before, after = getattr(reference, objective), getattr(figures, objective)
    if objective == "slo":
        return float((1.0 - after + LATE) / (1.0 - before + LATE))
    return float(before / after) if after > 0 else 1.0


def as_cut_off(figures: Figures, reference: Figures) -> Figures:
    """What a model learns from a trial that was cut off: half the reward of what is in force by each objective, with the metrics that it
    had come to. Jobs that change places all the time would else be what no model has ever seen, and they cost the most."""
    twice = {name: 2.0 * getattr(reference, name) for name in OBJECTIVES if name != "slo"}
    return dataclasses.replace(figures, **twice, slo=1.0 - ((1.0 - reference.slo + LATE) / 2.0 - LATE))


class _Search:
    def __init__(
        self, space: Space, evaluate: Callable[[Configuration], Figures], in_force: Configuration, objective: str, model: Model | None,
        gamma: float,
    ) -> None:  # fmt: skip
        self.space, self.evaluate, self.objective, self.model, self.gamma = space, evaluate, objective, model, gamma
        reference = evaluate(in_force)
        self.found = Found(dict(in_force), dict(in_force), 1.0, reference, reference, [Trial(dict(in_force), "simulated", 1.0)])
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

    def _learn(self, config: Configuration, predicted: float | None, figures: Figures) -> None:
        if self.model is None or predicted is None:
            return
        self.model.learn(config, figures, self.found.reference)
        self.told.append((predicted, reward_of(self.objective, self.found.reference, figures)))
        if len(self.told) >= LEAST_PROOF:
            self.found.agreement = agreement(self.told)

    def is_proved(self) -> bool:
        """The model may reject, and narrow the search."""
        n, found = len(self.told), self.found.agreement
        return found is not None and found > PROOF * math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))  # Kendall's variance

    def narrow(self) -> None:
        """Lines 14 to 16; one key at least stays free."""
        if self.model is None or not self.is_proved():
            return
        for name in hopeless(self.space, self.model, self.found.best, self.constraints, self.gamma):
            if len(self.constraints) + 1 < len(self.space.names):
                self.constraints[name] = self.found.best[name]


def search(
    space: Space,
    evaluate: Callable[[Configuration], Figures],
    in_force: Configuration,
    objective: str = "jct",
    *,
    model: Model | None = None,
    trials: int = TRIALS,
    epsilon: float = EPSILON,
    gamma: float = GAMMA,
    seed: int = 0,
    spread: float = SPREAD,
    first: Sequence[Configuration] = (),
    seconds: float = math.inf,
    told: Callable[[int, Trial], None] = lambda number, trial: None,
    ahead: Callable[[Sequence[Configuration]], None] | None = None,
) -> Found:
    """The best configuration of at most ``trials`` samples, of which what is in force is the first.

    ``first``: configurations of before, the most promising first. ``seconds``: real time after which no other trial begins. ``told`` hears
    of each sample, ``ahead`` beforehand of those that do not depend on what others give. Raises NotMeasured when
    what is in force cannot be measured: then there is nothing to compare with.
    """
    began, rng = time.monotonic(), np.random.default_rng(seed)
    state = _Search(space, evaluate, in_force, objective, model, gamma)
    found = state.found
    bluefin = BlueFin(space, space.project(in_force, otherwise=in_force), rng)
    first = first[: max(int(FIRST * trials), 1)]
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
    """Of all pairs that were measured unlike: the share that was predicted in that order, less the share in the other (Goodman and
    Kruskal's gamma, ties of predictions counted as neither). 0: chance; 1: all. Rewards within a millionth are alike."""
    predicted, measured = np.array(told).T
    unlike = np.subtract.outer(measured, measured)
    order = np.sign(np.where(np.abs(unlike) > ALIKE, unlike, 0.0))
    said = np.sign(np.subtract.outer(predicted, predicted))
    return float((order * said).sum() / max(np.abs(order).sum(), 1.0))


def is_rejected(predicted: float, best: float, gamma: float) -> bool:
    """Line 9: the predicted reward is no more than gamma x the best.

    As read: what the model alone expects of the best, where that is less than what was measured of it. The best of many measured ones
    stands above all that a mean of trees ever predicts, so after the first good one nearly all samples would be rejected.
    """
    return predicted <= gamma * best


def hopeless(space: Space, model: Model, best: Configuration, constraints: Mapping[str, Any], gamma: float = 1.0) -> list[str]:
    """Line 14, the what-if analysis: keys of which every other value is predicted to be rejected, all other keys as in the best.

    As read: "do not exceed the best" is judged as on line 9, by gamma x what the model expects of the best. Beside what was measured of it,
    which stands above all that is predicted only, the first improvement would fix nearly all keys at once, and the search would end there.
    A key that is not in use changes nothing now, and may be when another one changes: it stays free.
    """
    asked = [best]
    spans: dict[str, slice] = {}
    for one in space.parts:
        if one.name in constraints or not space.in_use(one, best):
            continue
        values = one.choices if isinstance(one, Category) else [one.value(unit) for unit in np.linspace(0.0, 1.0, WHAT_IF)]
        others = [space.project({**best, one.name: value}, otherwise=best) for value in values if value != best[one.name]]
        if others:
            spans[one.name] = slice(len(asked), len(asked) + len(others))
            asked += others
    expected = model.expected(asked)
    return [name for name, span in spans.items() if max(expected[span]) <= gamma * expected[0]]


def checked(found: Found, evaluate: Callable[[Configuration], Figures], objective: str) -> Found:
    """``found``, a search on grouped jobs, by what ``evaluate`` says of its best few and of what is in force on the jobs themselves.

    What is best for groups may be worse for the jobs than what is in force; the thesis (6.4.3.2) does not look. Raises NotMeasured when
    what is in force cannot be measured.
    """
    reference = evaluate(found.in_force)
    best, gain, figures = found.in_force, 1.0, reference
    better = [(reward, trial.config) for trial in found.trials if trial.outcome == "simulated" and (reward := trial.reward or 0.0) > 1.0]
    for _, config in sorted(better, key=lambda one: -one[0])[:CHECKED]:
        try:
            measured = evaluate(config)
        except NotMeasured:
            continue
        if (reward := reward_of(objective, reference, measured)) > gain:
            best, gain, figures = config, reward, measured
    return dataclasses.replace(found, best=best, gain=gain, reference=reference, figures=figures)


def without_idle(found: Found, space: Space, evaluate: Callable[[Configuration], Figures]) -> Found:
    """``found`` without the thresholds of its best that hold nobody: where leaving one out comes to the same figures, it is left out.

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
        except NotMeasured:  # its time is over: what is left does no harm
            pass
        if counted != found.best:
            found = dataclasses.replace(found, best=best, as_counts={**found.as_counts, count: counted[count]})
    return found


def _one_less(count: str, numbers: Sequence[Number], config: Configuration, found: Found) -> Iterator[Configuration]:
    """The configuration without each of the numbers in use in turn, the last one first."""
    used = sorted(
        (one for one in numbers if one.needs and one.needs[0] == count and one.needs[1] <= config[count]), key=lambda one: one.needs or ()
    )
    for left_out in reversed(range(len(used))):
        values = [config[one.name] for place, one in enumerate(used) if place != left_out] + [found.in_force[used[-1].name]]
        yield {**config, count: config[count] - 1, **dict(zip([one.name for one in used], values, strict=True))}


def _comes_to(figures: Figures, known: Figures) -> bool:
    told = (*OBJECTIVES, *METRICS)
    return all(math.isclose(getattr(figures, name), getattr(known, name), rel_tol=ALIKE, abs_tol=ALIKE) for name in told)


def _key(config: Mapping[str, Any]) -> object:
    return tuple(sorted((name, str(value)) for name, value in config.items()))
