"""Requests for searches of the daemon's pools, read from its tables: a pool's present state, its history, earlier configurations."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.arrivals_ahead import HORIZON_BINS
from ...policies.autosched.duration_ranges import DAY, DurationRanges
from ...policies.autosched.search import TRIALS
from ...policies.autosched.search_space import space_of
from ...policies.contract import Bools, Floats, Ints, View
from ...policies.keys import make_config
from ..errors import NotFound, UsageError
from ..forecast.admission import known_work
from ..forecast.work_draws import DurationDraws, Finished, endless
from ..json_rows import objects
from ..scheduling.ticks import Scheduling
from ..sim.run_options import Options
from ..store.store import Store
from .predicted_work import Untold
from .search_process import SearchRequest
from .situation import MIN_HISTORY_JOBS, JobHistory, Situation, look_ahead, usual_durations
from .stored_models import StoredModel, stored_model
from .tuning_controller import MIN_GAIN_PERIODIC, tried_before

HISTORY_SECONDS = 14 * 86400.0  #: of the arrivals that are copied
FINISHED_JOBS = 500  #: newest completed jobs that durations are estimated from
TUNER = "autosched"  #: who asks for the searches of a pool that tunes itself


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A search of one pool, as a person or the pool itself asks for it."""

    pool: str
    objective: str = "jct"
    dry_run: bool = False
    trials: int = TRIALS
    only: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] | None = None
    seed: int = 0
    by: str = TUNER
    min_gain: float = MIN_GAIN_PERIODIC
    period: float = 3600.0
    why: str = "asked for"


class PoolRequests:
    def __init__(self, store: Store, scheduling: Scheduling, clock: Callable[[], float] = time.time) -> None:
        self._store, self._scheduling, self._clock = store, scheduling, clock
        self._predictors: dict[str, tuple[DurationRanges, float]] = {}  #: of durations, and when each was learnt

    def clock_set(self, by: float) -> None:
        self._predictors = {pool: (predictor, at + by) for pool, (predictor, at) in self._predictors.items()}

    def setting(self, pool: str) -> dict[str, Any] | None:
        """The policy in force in a pool, with its configuration; None: the pool is gone."""
        return next((row for row in self._scheduling.in_force() if row["pool"] == pool), None)

    def request(self, asked: PoolRequest) -> tuple[SearchRequest, StoredModel, str]:
        """The search, the model that learns from it, and the words on the arrivals that are expected.

        UsageError for a pool or a space that can't be searched.
        """
        rules = self._scheduling.rules(asked.pool)
        setting = self.setting(asked.pool)
        if rules is None or setting is None:
            raise NotFound(f"pool: there is no pool {asked.pool!r}")
        view = self._scheduling.look(asked.pool).view
        history, ids = self._jobs(asked.pool, view.now)
        coming, words = look_ahead(history, usual_durations(history), view.now, asked.period / HORIZON_BINS)
        if not len(view.gpus):
            raise UsageError(f"pool {asked.pool!r} has no GPUs, so there is nothing to tune")
        left, untold = self._left(asked.pool, view)
        ruled = Options(limits=rules.limits), rules.evictions, rules.memory
        situation = Situation(view, left, coming, rules.name, *ruled, period=asked.period)
        unknown = Untold(history, _rows_in(ids, view), untold, self._predictor(asked.pool)) if untold.any() else None
        try:
            request = SearchRequest.of(
                situation, setting["config"], asked.objective, asked.trials, only=asked.only, ranges=asked.ranges, seed=asked.seed,
                untold=unknown,
            )  # fmt: skip
        except ValueError as error:
            raise UsageError(str(error)) from None
        if rules.loaded is None:  # it could not be loaded when it was set, and can be now
            raise UsageError(f"pool {asked.pool!r} has no policy at work: set {rules.name!r} again with 'stoker policy set'")
        space = space_of(rules.loaded.policy.Config, request.in_force)
        stored = stored_model(self._store, asked.pool, rules.name, rules.loaded, asked.objective, space)
        first = self._tried(asked.pool, rules.name, request.in_force)
        return replace(request, first=first, model=stored.model), stored, words

    def submitted(self, pool: str, now: float) -> Floats:
        """The arrivals of its history."""
        return self._jobs(pool, now)[0].submitted

    def waits_for(self, pool: str) -> str:
        """Why a pool that tunes itself cannot be searched yet; empty: it can."""
        ((jobs,),) = self._store.rows("policy/tuning_jobs", pool, self._clock() - HISTORY_SECONDS)
        return f"waits for a history of {MIN_HISTORY_JOBS} jobs; it has {jobs}" if jobs < MIN_HISTORY_JOBS else ""

    def keep_predictor(self, pool: str, predictor: DurationRanges) -> None:
        self._predictors[pool] = predictor, self._clock()

    def _tried(self, pool: str, policy: str, config: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        tried: list[dict[str, Any]] = []
        for (before,) in self._store.rows("policy/tried_before", pool, policy):
            earlier = json.loads(before)
            if earlier.keys() == config.keys():  # with other code it may have other keys
                tried = tried_before(earlier, tried)
        return tuple(tried)

    def _predictor(self, pool: str) -> DurationRanges | None:
        """The pool's predictor, if it is younger than a day (002 ch. 6.5.1); an older one is learnt anew in the process of the search."""
        predictor, learnt_at = self._predictors.get(pool, (None, -math.inf))
        return predictor if self._clock() < learnt_at + DAY else None

    def _left(self, pool: str, view: View) -> tuple[Floats, Bools]:
        """The seconds of work that each job is taken to have left, and whether its duration is unknown."""
        work = {found["id"]: found for found in objects(self._store, "policy/known_work", pool)}
        rows = self._store.rows("policy/finished_times", pool, FINISHED_JOBS)
        ended = Finished(
            [model for model, _, _ in rows],
            np.array([seconds for _, seconds, _ in rows], dtype=np.float64),
            np.array([math.nan if estimate is None else estimate for _, _, estimate in rows], dtype=np.float64),
        )
        known = known_work(view.jobs.id.tolist(), work)
        untold = np.isnan(known.whole) & ~known.by_steps & np.isnan(view.jobs.remaining) & ~endless(view.jobs)
        return np.maximum(DurationDraws(view.jobs, known, ended).middles(), 1e-3), untold

    def _jobs(self, pool: str, now: float) -> tuple[JobHistory, list[int]]:
        """The history of a pool, and the ids of its rows."""
        rows = self._store.rows("policy/tuning_history", pool, now - HISTORY_SECONDS)
        numbers = np.array([[math.nan if value is None else value for value in row[:4]] for row in rows], dtype=np.float64).reshape(-1, 4)
        submitted, gpus, duration, ended = numbers.T
        history = JobHistory(submitted, gpus.astype(np.int64), duration, ended, [row[4] for row in rows], [row[5] for row in rows])
        return history, [row[6] for row in rows]


def whole(policy: str, config: dict[str, Any]) -> dict[str, Any]:
    """A configuration, defaults included."""
    return asdict(make_config(registry.load(policy).Config, config))


def _rows_in(ids: list[int], view: View) -> Ints:
    """The row of each job of the view among ``ids``, -1: it is not there."""
    rows = {job: row for row, job in enumerate(ids)}
    return np.array([rows.get(job, -1) for job in view.jobs.id.tolist()], dtype=np.int64)
