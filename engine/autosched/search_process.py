"""Searches in one niced process of their own: bounded trials, and nothing that hangs or raises harms who asked (002 ch. 6.4.3)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ...policies import registry
from ...policies.autosched.causal_model import CausalModel, Encoder, NoModel, Samples, samples_of
from ...policies.autosched.duration_ranges import DurationRanges, NoPredictor
from ...policies.autosched.search import (
    EPSILON,
    SPREAD,
    TRIALS,
    Figures,
    Found,
    NotMeasured,
    Trial,
    as_cut_off,
    checked,
    search,
    without_idle,
)
from ...policies.autosched.search_space import Configuration, Space, space_of
from ...policies.contract import Floats
from ...policies.keys import make_config
from ..hosts.ray_runners import connected
from ..sim.simulation_error import SimulationError
from .bounded_time import Hangs, bounded
from .learning import Past, learnt_from
from .predicted_work import Untold, accuracy_words, with_predicted
from .situation import CutOff, Situation, aggregated, bound_of, features_of, measure
from .trials_on_ray import TrialsOnRay

SECONDS = 60.0  #: real time of a decision, learning included: then no other trial begins, and the one that is under way is cut off
LEARNING = 0.5  #: share of it that learning may take
CHECKING = 0.2  #: share of what is left then in which nothing of a search on grouped jobs begins: its best are tried on the jobs themselves
FIRST_SECONDS = 30.0  #: processor time that the trial of what is in force may take
TIMES_AS_LONG = 32.0  #: a trial may take so many times as long as that one, should its decisions be few and slow
LEAST_SECONDS = 2.0  #: and so long in any case
GRACE = 15.0  #: seconds beyond all that, after which the process is ended
NICE = 15
LEAST_NEW = 5  #: samples of a search that are worth fitting the model anew
_SPAWN = multiprocessing.get_context("spawn")


class SearchFailed(Exception):
    """Nothing was found out; one line says why. What is in force stays."""


class Idle(SearchFailed):
    """No job is there, and none is expected."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be searched."""

    situation: Situation
    space: Space  #: the keys that are tuned, with their ranges
    in_force: Configuration  #: the whole configuration, defaults included
    objective: str = "jct"
    trials: int = TRIALS
    seconds: float = SECONDS
    epsilon: float = EPSILON
    seed: int = 0
    spread: float = SPREAD
    first: tuple[Configuration, ...] = ()  #: those that are tried first, such as what was best before
    aggregate: bool = True
    model: CausalModel | None = None
    learn: Past | None = None  #: with no model: from which one is learnt first
    untold: Untold | None = None  #: from which the durations are predicted that nobody has told; None: they are as the situation says
    ray: str | None = None  #: head of the cluster of which trials are tasks; None: they are run where the search is

    @classmethod
    def of(
        cls, situation: Situation, config: Mapping[str, Any], *given: Any, only: Sequence[str] = (),
        ranges: Mapping[str, tuple[float, float]] | None = None, **more: Any,
    ) -> Request:  # fmt: skip
        """Of a configuration in force that may leave out defaults. Raises ValueError for a space that can't be."""
        kind = registry.load(situation.policy).Config
        in_force = dataclasses.asdict(make_config(kind, config))
        return cls(situation, space_of(kind, in_force, only=only, ranges=ranges), in_force, *given, **more)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found, with the causal model that was at work and what was measured besides."""

    found: Found
    model: CausalModel | None
    measured: Samples | None
    words: str  #: on the model; empty: none was asked for
    predictor: DurationRanges | None = None  #: of durations, that was at work
    durations: str = ""  #: on it; empty: none was asked for


def find(request: Request, told: Callable[[int, Trial], None] = lambda number, trial: None) -> Answer:
    """The search itself, in this process and thread. Raises SearchFailed where nothing can be measured."""
    with contextlib.nullcontext() if request.ray is None else connected(request.ray) as ray:
        return _find(request, told, None if ray is None else TrialsOnRay(ray, trial))


def _find(request: Request, told: Callable[[int, Trial], None], elsewhere: TrialsOnRay | None) -> Answer:
    policy, ends_at = request.situation.policy, time.monotonic() + request.seconds
    space, in_force = request.space, dict(request.in_force)
    situation, predictor, durations = _predicted(request)
    tried = aggregated(situation) if request.aggregate else situation
    if not tried.jobs:
        raise Idle("no job is there or expected, so all configurations are alike")
    if request.objective == "slo" and not tried.has_deadlines:
        raise SearchFailed("no job at hand has a deadline, so by slo all configurations are alike")
    model, unlearnt = request.model, ""
    try:
        if model is not None:
            model.fit()
        elif request.learn is not None:
            past = dataclasses.replace(request.learn, seconds=min(request.learn.seconds, LEARNING * request.seconds))
            model = learnt_from(past, policy, in_force, situation.options, request.objective, request.seed)
    except NoModel as error:
        model, unlearnt = None, str(error)
    features, encoder = features_of(tried), Encoder(space_of(registry.load(policy).Config, in_force))
    at_work = None if model is None else model.on(features, in_force)
    grouped = tried.jobs < situation.jobs
    now = time.monotonic()
    trials = Trials(policy, tried, ends_at - CHECKING * max(ends_at - now, 0.0) if grouped else ends_at, elsewhere)
    rows: list[tuple[Floats, Floats, float]] = []

    def evaluate(config: Configuration) -> Figures:
        known = trials.reference
        try:
            figures = trials.measure(config)
        except NotMeasured as error:
            if error.figures is not None and known is not None:
                rows.append(encoder.sample(config, features, request.objective, known, error.figures))
            raise
        if known is not None:
            rows.append(encoder.sample(config, features, request.objective, known, figures))
        return figures

    try:
        found = search(
            space, evaluate, in_force, request.objective, model=at_work, trials=request.trials, epsilon=request.epsilon,
            seed=request.seed, spread=request.spread, first=request.first, seconds=trials.ends_at - now, told=told,
            ahead=None if elsewhere is None else trials.ahead,
        )  # fmt: skip
    except NotMeasured as error:
        raise SearchFailed(f"the configuration in force can't be simulated: {error}") from None
    trials.ends_at = ends_at
    if grouped and found.gain > 1.0:
        trials = Trials(policy, situation, ends_at, elsewhere)
        found = _checked(found, trials, request.objective)
    if found.best != found.in_force:
        found = without_idle(found, space, trials.measure)
    return Answer(found, model, samples_of(rows) if len(rows) >= LEAST_NEW else None, str(at_work or unlearnt), predictor, durations)


class Trials:
    """Bounded simulations of one situation: first that of what is in force, and that of the default, whose cost bounds all others.

    By the cost of what is in force, one that costs much would make all that are tried after it cost as much. ``ends_at``: by the
    monotonic clock.
    """

    def __init__(self, policy: str, situation: Situation, ends_at: float = math.inf, elsewhere: TrialsOnRay | None = None) -> None:
        self.policy, self.situation, self.ends_at, self._elsewhere = policy, situation, ends_at, elsewhere
        self._begun: dict[str, Any] = {}  #: trials elsewhere that were begun before they were asked for
        self.reference: Figures | None = None
        self._usual: Figures  #: whose cost bounds a trial

    def measure(self, config: Configuration) -> Figures:
        """Raises NotMeasured."""
        if self.reference is not None:
            return self._tried(config)
        self.reference = self._usual = self._measured(config, FIRST_SECONDS, math.inf)
        default = dataclasses.asdict(registry.load(self.policy).Config())
        if config != default:
            with contextlib.suppress(NotMeasured):  # it costs still more than what is in force, or can't be simulated
                self._usual = self._tried(default)
        return self.reference

    def ahead(self, configs: Sequence[Configuration]) -> None:
        """Begin trials elsewhere that will be asked for, once what is in force has been measured."""
        assert self._elsewhere is not None
        for config in configs:
            if (name := _name(config)) not in self._begun:
                self._begun[name] = self._elsewhere.begin(self.situation, *self._bounded(config, *self._bounds()))

    def _tried(self, config: Configuration) -> Figures:
        return self._measured(config, *self._bounds())

    def _bounds(self) -> tuple[float, float]:
        return max(TIMES_AS_LONG * self._usual.seconds, LEAST_SECONDS), bound_of(self._usual)

    def _bounded(self, config: Configuration, bound: float, decisions: float) -> tuple[Any, ...]:
        left = max(self.ends_at - time.monotonic(), 0.0)
        bound = min(bound, left)
        return self.policy, config, bound, min(3.0 * bound + LEAST_SECONDS, max(left, 1e-3)), decisions, self.reference

    def _measured(self, config: Configuration, bound: float, decisions: float) -> Figures:
        if self._elsewhere is None:
            return trial(self.situation, *self._bounded(config, bound, decisions))
        begun = self._begun.pop(_name(config), None)
        if begun is None:
            begun = self._elsewhere.begin(self.situation, *self._bounded(config, bound, decisions))
        return self._elsewhere.result(begun)


def _name(config: Configuration) -> str:
    return repr(sorted(config.items()))


def trial(
    situation: Situation, policy: str, config: Configuration, bound: float, real: float, decisions: float, reference: Figures | None
) -> Figures:
    """One, bounded by processor time, real time and decisions. Raises NotMeasured."""
    began = time.thread_time()
    try:
        with bounded(real):
            figures = measure(situation, registry.create(policy, config), bound, decisions)
    except Hangs:
        raise NotMeasured(f"cut off after {real:.3g} s") from None
    except CutOff as error:
        if error.figures is None or error.figures.decisions < decisions:  # it may be as good as any: nothing is learnt from it
            raise NotMeasured(f"cut off after {bound:.3g} s of processor time") from None
        had = None if reference is None else as_cut_off(error.figures, reference)
        raise NotMeasured(f"cut off after {decisions:g} decisions", had) from None
    except (SimulationError, ValueError) as error:
        raise NotMeasured(str(error)) from None
    return dataclasses.replace(figures, seconds=time.thread_time() - began)


def _checked(found: Found, trials: Trials, objective: str) -> Found:
    began = time.monotonic()
    try:
        found = checked(found, trials.measure, objective)
        return dataclasses.replace(found, seconds=found.seconds + time.monotonic() - began)
    except NotMeasured as error:
        return dataclasses.replace(found, stopped=found.stopped or f"its best were tried on grouped jobs alone: {error}")


def _predicted(request: Request) -> tuple[Situation, DurationRanges | None, str]:
    if request.untold is None:
        return request.situation, None, ""
    try:
        situation, predictor = with_predicted(request.situation, request.untold)
        return situation, predictor, accuracy_words(predictor)
    except NoPredictor as error:
        return request.situation, None, f"durations are not predicted: {error}"


def find_apart(request: Request, told: Callable[[int, Trial], None] = lambda number, trial: None) -> Answer:
    """`find` in a niced process, which is ended if it does not answer in time. Errors are those of `find`."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_work, args=(theirs, request), daemon=True)
    process.start()
    theirs.close()
    silent = FIRST_SECONDS * 4 + GRACE
    try:
        while ours.poll(silent):
            said = ours.recv()
            if isinstance(said, Exception):
                raise said
            if isinstance(said, Answer):
                return said
            told(*said)
            silent = FIRST_SECONDS * 8 + GRACE
        raise SearchFailed("the search did not answer, and was ended")
    except (EOFError, OSError):
        process.join(1.0)
        raise SearchFailed(f"the process of the search ended (code {process.exitcode}); if memory is short, try fewer jobs") from None
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(pipe: Connection, request: Request) -> None:
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the process that people see, which ends this one
    try:
        pipe.send(find(request, lambda number, trial: pipe.send((number, trial))))
    except (ValueError, SearchFailed) as error:
        pipe.send(error)
    except Exception as error:  # a policy may be anybody's code
        pipe.send(SearchFailed(f"unexpected {type(error).__name__}: {error}"))
