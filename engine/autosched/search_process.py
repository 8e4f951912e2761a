"""Searches with bounded trials, each in a niced process of its own: a policy that hangs or raises harms nobody else (002 ch. 6.4.3)."""

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
from ...policies.autosched.causal_model import CausalModel, NoModel, OnWorkload, samples_of
from ...policies.autosched.duration_ranges import DurationRanges, NoPredictor
from ...policies.autosched.search import (
    EPSILON,
    EVEN_SHARE,
    TRIALS,
    BestFound,
    NotMeasured,
    Trial,
    TrialFigures,
    as_cut_off,
    rechecked,
    search,
    without_idle,
)
from ...policies.autosched.search_space import Configuration, Space, space_of
from ...policies.contract import Floats
from ...policies.keys import make_config
from ...policies.own import prints_aside
from ..hosts.ray_runners import connected
from ..sim.simulation_error import SimulationError
from .bounded_time import Hangs, bounded
from .predicted_work import Untold, accuracy_words, with_predicted
from .situation import CutOff, Situation, aggregated, bound_of, features_of, measure
from .trials_on_ray import TrialsOnRay

SEARCH_SECONDS = 60.0  #: real time of a search: then no other trial begins, and the current one is cut off
RECHECK_SHARE = 0.2  #: share of the remaining time kept for re-running the best configurations on ungrouped jobs
REFERENCE_CPU_SECONDS = 30.0  #: processor time at most of the trial of the configuration in force
TRIAL_CPU_FACTOR = 32.0  #: processor time at most of other trials, as a multiple of the default's: for few and slow decisions
MIN_TRIAL_CPU_SECONDS = 2.0  #: that each trial may take
GRACE_SECONDS = 15.0  #: beyond all that, after which the process is killed
NICENESS = 15
_SPAWN = multiprocessing.get_context("spawn")


class SearchFailed(Exception):
    """The search has no result; one line says why. The configuration in force stays."""


class Idle(SearchFailed):
    """No job is at hand, and none is expected."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search: where it starts, what may change, and how long it may take."""

    situation: Situation
    space: Space  #: the keys that are tuned, with their ranges
    in_force: Configuration  #: the whole configuration, defaults included
    objective: str = "jct"
    trials: int = TRIALS
    seconds: float = SEARCH_SECONDS
    epsilon: float = EPSILON
    seed: int = 0
    spread: float = EVEN_SHARE
    first: tuple[Configuration, ...] = ()  #: tried first, such as those that were best before
    aggregate: bool = True
    model: CausalModel | None = None  #: with too few samples it rejects nothing, but still collects them
    untold: Untold | None = None  #: jobs whose durations are predicted first; None: durations are those of the situation
    ray: str | None = None  #: head of the cluster of which trials are tasks; None: they are run where the search is

    @classmethod
    def of(
        cls, situation: Situation, config: Mapping[str, Any], *given: Any, only: Sequence[str] = (),
        ranges: Mapping[str, tuple[float, float]] | None = None, **more: Any,
    ) -> SearchRequest:  # fmt: skip
        """``config``: in force, with or without defaults. Raises ValueError for an impossible space."""
        kind = registry.load(situation.policy).Config
        in_force = dataclasses.asdict(make_config(kind, config))
        return cls(situation, space_of(kind, in_force, only=only, ranges=ranges), in_force, *given, **more)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best that a search found, with the causal model and the predictor of durations that were at work."""

    found: BestFound
    model: CausalModel | None = None  #: of the request, with the samples of this search
    at_work: bool = False  #: whether it predicted rewards in this search
    words: str = ""  #: on the model, or why it was not at work; empty: none was asked for
    predictor: DurationRanges | None = None  #: of durations, that was at work
    durations: str = ""  #: on it; empty: none was asked for


def find(request: SearchRequest, told: Callable[[int, Trial], None] = lambda number, trial: None) -> SearchResult:
    """The search itself, in this process and thread. Raises SearchFailed where nothing can be measured."""
    with contextlib.nullcontext() if request.ray is None else connected(request.ray) as ray:
        return _find(request, told, None if ray is None else TrialsOnRay(ray, trial))


def _find(request: SearchRequest, told: Callable[[int, Trial], None], elsewhere: TrialsOnRay | None) -> SearchResult:
    ends_at = time.monotonic() + request.seconds
    situation, predictor, durations = _predicted(request)
    tried = aggregated(situation) if request.aggregate else situation
    _require_jobs(tried, request.objective)
    grouped = tried.jobs < situation.jobs
    learning = _Learning(request, tried)
    now = time.monotonic()
    ends_grouped = ends_at - RECHECK_SHARE * max(ends_at - now, 0.0) if grouped else ends_at
    trials = Trials(request.situation.policy, tried, ends_grouped, elsewhere)
    try:
        found = search(
            request.space, lambda config: learning.measure(trials, config), dict(request.in_force), request.objective,
            model=learning.at_work, trials=request.trials, epsilon=request.epsilon, seed=request.seed, spread=request.spread,
            first=request.first, seconds=trials.ends_at - now, told=told, ahead=None if elsewhere is None else trials.ahead,
        )  # fmt: skip
    except NotMeasured as error:
        raise SearchFailed(f"the configuration in force can't be simulated: {error}") from None
    trials.ends_at = ends_at
    if grouped and found.gain > 1.0:
        trials = Trials(request.situation.policy, situation, ends_at, elsewhere)
        found = _checked(found, trials, request.objective)
    if found.best != found.in_force:
        found = without_idle(found, request.space, trials.measure)
    return SearchResult(found, learning.relearnt(), learning.at_work is not None, learning.words, predictor, durations)


def _require_jobs(situation: Situation, objective: str) -> None:
    """Raises SearchFailed where every configuration would measure the same."""
    if not situation.jobs:
        raise Idle("no job is there or expected, so all configurations are alike")
    if objective == "slo" and not situation.has_deadlines:
        raise SearchFailed("no job at hand has a deadline, so by slo all configurations are alike")


class _Learning:
    """The causal model in one search: it predicts rewards if it can, and learns from each measurement."""

    def __init__(self, request: SearchRequest, situation: Situation) -> None:
        self._model, self._objective, self._features = request.model, request.objective, features_of(situation)
        self._rows: list[tuple[Floats, Floats, float]] = []
        self.at_work: OnWorkload | None = None
        self.words = ""  #: on the model, or why it is not at work
        if self._model is not None:
            try:
                self.at_work = self._model.on(self._features, dict(request.in_force))
                self.words = str(self.at_work)
            except NoModel as error:
                self.words = str(error)

    def measure(self, trials: Trials, config: Configuration) -> TrialFigures:
        """Raises NotMeasured, and learns from a trial that was cut off too."""
        reference = trials.reference
        try:
            figures = trials.measure(config)
        except NotMeasured as error:
            self._keep(config, reference, error.figures)
            raise
        self._keep(config, reference, figures)
        return figures

    def _keep(self, config: Configuration, reference: TrialFigures | None, figures: TrialFigures | None) -> None:
        if self._model is not None and reference is not None and figures is not None:
            self._rows.append(self._model.encoder.sample(config, self._features, self._objective, reference, figures))

    def relearnt(self) -> CausalModel | None:
        return self._model.relearnt(samples_of(self._rows)) if self._model is not None and self._rows else self._model


class Trials:
    """Bounded simulations of one situation. The first is of the configuration in force; the default's cost bounds all others.

    If the cost of the configuration in force were the bound, one costly configuration would make all later searches costly. ``ends_at``: by
    the monotonic clock.
    """

    def __init__(self, policy: str, situation: Situation, ends_at: float = math.inf, elsewhere: TrialsOnRay | None = None) -> None:
        self.policy, self.situation, self.ends_at, self._elsewhere = policy, situation, ends_at, elsewhere
        self._begun: dict[str, Any] = {}  #: trials elsewhere that were begun before they were asked for
        self.reference: TrialFigures | None = None
        self._usual: TrialFigures  #: whose cost bounds a trial

    def measure(self, config: Configuration) -> TrialFigures:
        """Raises NotMeasured."""
        if self.reference is not None:
            return self._tried(config)
        self.reference = self._usual = self._measured(config, REFERENCE_CPU_SECONDS, math.inf)
        default = dataclasses.asdict(registry.load(self.policy).Config())
        if config != default:
            with contextlib.suppress(NotMeasured):  # it costs more than the configuration in force, or can't be simulated
                self._usual = self._tried(default)
        return self.reference

    def ahead(self, configs: Sequence[Configuration]) -> None:
        """Begin trials elsewhere that will be asked for, once the configuration in force has been measured."""
        assert self._elsewhere is not None
        for config in configs:
            if (name := _name(config)) not in self._begun:
                self._begun[name] = self._elsewhere.begin(self.situation, *self._bounded(config, *self._bounds()))

    def _tried(self, config: Configuration) -> TrialFigures:
        return self._measured(config, *self._bounds())

    def _bounds(self) -> tuple[float, float]:
        return max(TRIAL_CPU_FACTOR * self._usual.seconds, MIN_TRIAL_CPU_SECONDS), bound_of(self._usual)

    def _bounded(self, config: Configuration, bound: float, decisions: float) -> tuple[Any, ...]:
        left = max(self.ends_at - time.monotonic(), 0.0)
        bound = min(bound, left)
        return self.policy, config, bound, min(3.0 * bound + MIN_TRIAL_CPU_SECONDS, max(left, 1e-3)), decisions, self.reference

    def _measured(self, config: Configuration, bound: float, decisions: float) -> TrialFigures:
        if self._elsewhere is None:
            return trial(self.situation, *self._bounded(config, bound, decisions))
        begun = self._begun.pop(_name(config), None)
        if begun is None:
            begun = self._elsewhere.begin(self.situation, *self._bounded(config, bound, decisions))
        return self._elsewhere.result(begun)


def _name(config: Configuration) -> str:
    return repr(sorted(config.items()))


def trial(
    situation: Situation, policy: str, config: Configuration, bound: float, real: float, decisions: float, reference: TrialFigures | None
) -> TrialFigures:
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


def _checked(found: BestFound, trials: Trials, objective: str) -> BestFound:
    began = time.monotonic()
    try:
        found = rechecked(found, trials.measure, objective)
        return dataclasses.replace(found, seconds=found.seconds + time.monotonic() - began)
    except NotMeasured as error:
        return dataclasses.replace(found, stopped=found.stopped or f"its best were tried on grouped jobs alone: {error}")


def _predicted(request: SearchRequest) -> tuple[Situation, DurationRanges | None, str]:
    if request.untold is None:
        return request.situation, None, ""
    try:
        situation, predictor = with_predicted(request.situation, request.untold)
        return situation, predictor, accuracy_words(predictor)
    except NoPredictor as error:
        return request.situation, None, f"durations are not predicted: {error}"


def find_apart(request: SearchRequest, told: Callable[[int, Trial], None] = lambda number, trial: None) -> SearchResult:
    """`find` in a niced process, which is killed if it does not answer in time. Errors are those of `find`."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_work, args=(theirs, request), daemon=True)
    process.start()
    theirs.close()
    silent = REFERENCE_CPU_SECONDS * 4 + GRACE_SECONDS
    try:
        while ours.poll(silent):
            said = ours.recv()
            if isinstance(said, Exception):
                raise said
            if isinstance(said, SearchResult):
                return said
            told(*said)
            silent = REFERENCE_CPU_SECONDS * 8 + GRACE_SECONDS
        raise SearchFailed("the search did not answer, and was ended")
    except (EOFError, OSError):
        process.join(1.0)
        raise SearchFailed(f"the process of the search ended (code {process.exitcode}); if memory is short, try fewer jobs") from None
    finally:
        process.kill()
        process.join()
        ours.close()


@prints_aside()
def _work(pipe: Connection, request: SearchRequest) -> None:
    step_aside()
    try:
        pipe.send(find(request, lambda number, trial: pipe.send((number, trial))))
    except (ValueError, SearchFailed) as error:
        pipe.send(error)
    except Exception as error:  # a policy may be anybody's code
        pipe.send(SearchFailed(f"unexpected {type(error).__name__}: {error}"))


def step_aside() -> None:
    """Lower this process's priority, and ignore Ctrl-C: the command that a person interrupts ends its child processes itself."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
