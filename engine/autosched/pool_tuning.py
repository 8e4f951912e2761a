"""Tuning of the daemon's pools: searches that people ask for, and pools that tune themselves (002 ch. 6.5.2, 6.5.3).

One search at a time, in a thread that waits for the niced process in which it is made, so no tick waits for it. A pool that tunes itself
searches once a period, and between, a twelfth of it apart, looks whether a burst has come; then it searches anew, and applies what gains
`BURST_GAIN` at least. What was applied is measured after a period and taken back if it has harmed. All of that is read from tables, so a
restart changes nothing of it. What a person sets wins.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.arrivals_ahead import HOUR
from ...policies.autosched.causal_model import CausalModel, NoModel, require_extra
from ...policies.autosched.duration_ranges import DAY, DurationRanges
from ...policies.autosched.search import TRIALS, Trial
from ...policies.autosched.search_space import space_of
from ...policies.contract import Bools, Floats, Ints, View
from ...policies.keys import make_config
from ..errors import Conflict, NotFound, StokerError, UsageError
from ..forecast.admission import known_work
from ..forecast.work_draws import Durations, Finished, endless
from ..json_rows import objects
from ..scheduling.policy_settings import PolicySetting, set_policy
from ..scheduling.ticks import Scheduling
from ..sim.cluster import Cluster
from ..sim.run_options import Options
from ..sim.workload import make_workload
from ..store.store import Committed, Store
from ..tasks import Tasks
from .learning import SECONDS, Past
from .pool_gains import BURST_GAIN, LEAST_GAIN, TRIED_AGAIN, is_burst, newest, tried_before
from .predicted_work import Untold
from .rollback import has_harmed, measured_gain
from .search_process import Answer, Idle, Request, SearchFailed, find_apart
from .situation import LEAST_JOBS, History, Situation, look_ahead, usual_durations
from .stored_models import StoredModel, keep_model, stored_model
from .stored_tunings import Measured, NewTuning, add_tuning, measure_tuning
from .summary import summary_of

PAST = 14 * 86400.0  #: seconds of history that arrivals are copied from
NAME = "autosched"  #: who sets what it sets
KEPT = 100  #: answers of searches
MEASURED_EVERY = 60.0  #: seconds from one look for tunings whose period is over to the next
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks of a pool."""

    pool: str
    objective: str = "jct"
    dry_run: bool = False
    trials: int = TRIALS
    only: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] | None = None
    seed: int = 0
    by: str = NAME
    least_gain: float = LEAST_GAIN
    period: float = 3600.0
    why: str = "asked for"


class PoolTuning:
    def __init__(self, store: Store, scheduling: Scheduling, tasks: Tasks, clock: Callable[[], float] = time.time) -> None:
        self._store, self._scheduling, self._tasks, self._clock = store, scheduling, tasks, clock
        self._lock = threading.Lock()
        self._learning = threading.Lock()  #: held while a causal model learns
        self._busy: str | None = None  #: the pool that is searched for
        self._answers: dict[str, dict[str, Any]] = {}  #: of the last searches, by their numbers
        self._newest: dict[str, str] = {}  #: the number of each pool's newest
        self._automatic: dict[str, dict[str, Any]] = {}
        self._searched: dict[str, float] = {}  #: when a pool that tunes itself was searched for last
        self._due: dict[str, float] = {}  #: and when last as a period was over: a burst puts off none
        self._unlearnt: dict[str, str] = {}  #: of pools, why no causal model could be learnt at the last try
        self._predictors: dict[str, tuple[DurationRanges, float]] = {}  #: of durations, and when each was learnt

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds: when it searched last moves with it."""
        self._searched = {pool: at + by for pool, at in self._searched.items()}
        self._due = {pool: at + by for pool, at in self._due.items()}
        self._predictors = {pool: (predictor, at + by) for pool, (predictor, at) in self._predictors.items()}

    # Searches

    def begin(self, asked: Asked) -> dict[str, Any]:
        """Start a search; what `answer` says of it. Conflict while another is under way; UsageError for what can't be searched."""
        request, words = self._request(asked)
        with self._lock:
            if self._busy is not None:
                raise Conflict(f"pool {self._busy!r} is being tuned; try again when that has ended")
            self._busy = asked.pool
        search = secrets.token_hex(4)  # no number that counts: a daemon that was started anew would give it to another search
        self._tell(asked.pool, search, state="searching", trials=0)
        threading.Thread(target=self._run, args=(asked, search, request, words), name="tuning", daemon=True).start()
        return self.answer(asked.pool, search)

    def _tell(self, pool: str, search: str, **answer: Any) -> None:
        self._answers[search] = {"search": search, "pool": pool, **answer}
        self._newest[pool] = search
        for old in list(self._answers)[:-KEPT]:
            if old not in self._newest.values():
                self._answers.pop(old, None)

    def answer(self, pool: str, search: str | None = None) -> dict[str, Any]:
        """How a search of a pool goes, or went; by default its newest."""
        found = self._answers.get(search or self._newest.get(pool, ""))
        if found is None:
            what = f"search: {search!r} is not known" if search else f"pool {pool!r} has not been tuned"
            raise NotFound(f"{what} since the daemon started; 'stoker tune history' has what was before")
        return found

    def _request(self, asked: Asked) -> tuple[Request, str]:
        rules = self._scheduling.rules(asked.pool)
        setting = self._row_of(asked.pool)
        if rules is None or setting is None:
            raise NotFound(f"pool: there is no pool {asked.pool!r}")
        seen = self._scheduling.look(asked.pool)
        history, ids = self._jobs_of(asked.pool, seen.view.now)
        coming, words = look_ahead(history, usual_durations(history), seen.view.now, asked.period / HOUR)
        if not len(seen.view.gpus):
            raise UsageError(f"pool {asked.pool!r} has no GPUs, so there is nothing to tune")
        left, untold = self._left(asked.pool, seen.view)
        ruled = Options(limits=rules.limits), rules.evictions, rules.memory
        situation = Situation(seen.view, left, coming, rules.name, *ruled, period=asked.period)
        request = Request(situation, setting["config"], asked.objective, asked.trials, seed=asked.seed, only=asked.only)
        if untold.any():
            request = replace(request, untold=Untold(history, _rows_in(ids, seen.view), untold, self._predictor(asked.pool)))
        request = replace(request, ranges=asked.ranges or {}, first=self._tried(asked.pool, rules.name, setting["config"]))
        _check(request)
        space = space_of(registry.load(rules.name).Config, _whole(rules.name, setting["config"]))
        return replace(request, model=stored_model(self._store, asked.pool, rules.name, asked.objective, space)), words

    def _tried(self, pool: str, policy: str, in_force: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        tried: list[dict[str, Any]] = []
        keys = _whole(policy, in_force).keys()
        for (before,) in self._store.rows("policy/tried_before", pool, policy):
            config = json.loads(before)
            if config.keys() == keys:  # with other code it may have other keys
                tried = tried_before(config, tried)
        return tuple(tried)

    def _predictor(self, pool: str) -> DurationRanges | None:
        """That of the last day (002 ch. 6.5.1): older ones are learnt anew, in the process of the search."""
        newest, learnt_at = self._predictors.get(pool, (None, -math.inf))
        return newest if self._clock() < learnt_at + DAY else None

    def _left(self, pool: str, view: View) -> tuple[Floats, Bools]:
        """Seconds of work that each job is taken to have left, and of which jobs nothing is known."""
        work = {found["id"]: found for found in objects(self._store, "policy/known_work", pool)}
        rows = self._store.rows("policy/finished_times", pool, 500)
        ended = Finished(
            [model for model, _, _ in rows],
            np.array([seconds for _, seconds, _ in rows], dtype=np.float64),
            np.array([math.nan if estimate is None else estimate for _, _, estimate in rows], dtype=np.float64),
        )
        known = known_work(view.jobs.id.tolist(), work)
        untold = np.isnan(known.whole) & ~known.by_steps & np.isnan(view.jobs.remaining) & ~endless(view.jobs)
        return np.maximum(Durations(view.jobs, known, ended).middles(), 1e-3), untold

    def _history(self, pool: str, now: float) -> History:
        return self._jobs_of(pool, now)[0]

    def _jobs_of(self, pool: str, now: float) -> tuple[History, list[int]]:
        """And the ids of its rows."""
        rows = self._store.rows("policy/tuning_history", pool, now - PAST)
        numbers = np.array([[math.nan if value is None else value for value in row[:4]] for row in rows], dtype=np.float64).reshape(-1, 4)
        submitted, gpus, duration, ended = numbers.T
        history = History(submitted, gpus.astype(np.int64), duration, ended, [row[4] for row in rows], [row[5] for row in rows])
        return history, [row[6] for row in rows]

    def _run(self, asked: Asked, search: str, request: Request, words: str) -> None:
        def told(number: int, _trial: Trial) -> None:
            self._tell(asked.pool, search, state="searching", trials=number + 1)

        answer = None
        try:
            answer = find_apart(request, told)
            past = None
            if answer.model is None:
                past, unlearnt = self._to_learn(asked, request.situation.view)
                answer = replace(answer, words=answer.words or unlearnt)
            if answer.predictor is not None and (request.untold is None or request.untold.predictor is None):
                self._predictors[asked.pool] = answer.predictor, self._clock()
            summary = {**summary_of(answer, request), "arrivals": words}
            self._tell(asked.pool, search, state="done", **self._decide(asked, summary))
        except (SearchFailed, StokerError, ValueError) as error:
            log.warning("pool %s: tuning failed: %s", asked.pool, error, extra={"action": "tuning.failed"})
            self._tell(asked.pool, search, state="failed", why=f"{error}; the configuration in force stays", idle=isinstance(error, Idle))
        except Exception as error:
            log.exception("pool %s: tuning failed", asked.pool, extra={"action": "tuning.failed"})
            self._tell(asked.pool, search, state="failed", why=f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._busy = None
        if answer is not None and self._learning.acquire(
            blocking=False
        ):  # what is learnt is for the next search, which it does not hold up
            try:
                self._keep(asked, request, answer, past)
            finally:
                self._learning.release()

    def _to_learn(self, asked: Asked, view: View) -> tuple[Past | None, str]:
        """From what the causal model of the next search is to be learnt, and what is said of it in this one; None: there is nothing yet."""
        try:
            require_extra()
        except NoModel as error:
            return None, str(error)
        past = self._past(asked.pool, view, asked.period)
        if past is None:
            return None, f"it is learnt once {LEAST_JOBS} jobs have ended"
        last = self._unlearnt.get(asked.pool)
        return past, "it is learnt behind this search, for the next one" + (f"; last time: {last}" if last else "")

    def _keep(self, asked: Asked, request: Request, answer: Answer, past: Past | None) -> None:
        """The causal model of the next search: with what this one has measured, or, where there is none, learnt now."""
        policy, model = request.situation.policy, answer.model
        try:
            if model is not None:
                if answer.measured is None:
                    return
                model = model.relearnt(answer.measured)
            elif past is not None:
                model = self._learnt(asked.pool, replace(request, model=None, learn=past, trials=1, untold=None))
            if model is not None:
                self._store.write(keep_model, StoredModel(asked.pool, policy, model))
        except (SearchFailed, NoModel, StokerError, ValueError) as error:
            self._unlearnt[asked.pool] = str(error)
            log.info("pool %s: no causal model: %s", asked.pool, error)

    def _learnt(self, pool: str, request: Request) -> CausalModel | None:
        answer = find_apart(request)
        self._unlearnt[pool] = answer.words if answer.model is None else ""
        return answer.model

    def _past(self, pool: str, view: View, period: float) -> Past | None:
        """The jobs of the pool that have ended, on the GPUs that it has now."""
        history = self._history(pool, view.now)
        rows = np.flatnonzero(~np.isnan(history.duration) & (history.gpus <= len(view.gpus)))
        if len(rows) < LEAST_JOBS:
            return None
        first = float(history.submitted[rows].min())
        users, models = [history.user[row] for row in rows.tolist()], [history.model[row] for row in rows.tolist()]
        workload = make_workload(
            pool, history.submitted[rows] - first, history.duration[rows], history.gpus[rows], users=users, models=models
        )
        return Past(
            workload, Cluster(tuple(np.bincount(view.gpus.node).tolist())), float(workload.submitted[-1]), min(SECONDS, period / HOUR)
        )

    def _decide(self, asked: Asked, summary: dict[str, Any]) -> dict[str, Any]:
        """Put the best in force if it is worth it and nothing was set meanwhile, and write down what was found."""
        better = summary["gain"] >= asked.least_gain and summary["after"] != summary["before"]
        outcome, why = "kept", f"{asked.why}; it gains {summary['gain']:.3f} ×, less than {asked.least_gain:g}"
        if asked.dry_run:
            outcome, why = "dry-run", asked.why
        if better and not asked.dry_run:
            row = self._row_of(asked.pool)
            if asked.by == NAME and not self._tunes_itself(asked.pool):
                outcome, why = "kept", "somebody turned it off meanwhile"
            elif asked.by == NAME and self._has_harmed_before(asked, summary):
                why = f"{asked.why}; what gains {summary['gain']:.3f} × was taken back in the last {TRIED_AGAIN} periods"
            elif row and _set_in(row) == (summary["policy"], summary["before"]) and self._set(row, summary["after"], asked.by):
                outcome, why = "applied", asked.why
            else:
                outcome, why = "kept", "somebody set the policy meanwhile"
        self._store.write(add_tuning, NewTuning(asked.pool, summary, asked.period, outcome, why, asked.by))
        return {**summary, "applied": outcome == "applied", "outcome": outcome, "why": why}

    def _has_harmed_before(self, asked: Asked, summary: dict[str, Any]) -> bool:
        """What was predicted wrongly once is as wrong in the next hour."""
        since = self._clock() - TRIED_AGAIN * asked.period
        rows = self._store.rows("policy/taken_back", asked.pool, summary["policy"], since)
        return any(json.loads(after) == summary["after"] for (after,) in rows)

    def _row_of(self, pool: str) -> dict[str, Any] | None:
        """What is in force in a pool; None: the pool is gone."""
        return next((row for row in self._scheduling.in_force() if row["pool"] == pool), None)

    def _set(self, row: dict[str, Any], config: dict[str, Any], by: str) -> bool:
        """Set another configuration in place of a row that is in force. False: somebody has set the policy in this very moment."""
        setting = PolicySetting(row["pool"], row["policy"], row["interval"], config, by, row["code"], instead_of=row["id"])
        was_set = self._store.write(set_policy, setting) != 0
        self._scheduling.reload()
        return was_set

    # Pools that tune themselves

    def start(self) -> None:
        self.reload()
        self._tasks.every("tunings measured", MEASURED_EVERY, self.measure)
        self._store.listen(self._committed)

    def _committed(self, commit: Committed) -> None:
        if "policy" in commit.topics:
            self._tasks.wake("auto tuning")

    def reload(self) -> None:
        """Take up what was set; `look` has its turn a twelfth of a period apart."""
        self._tasks.every("auto tuning", 3600.0, self.reload)
        rows = self._settings()
        for pool, row in rows.items():
            before = self._automatic.get(pool)
            if row == before:
                continue
            if row["enabled"]:
                self._tasks.every(f"tuning {pool}", row["period"] / HOUR, lambda pool=pool: self.look(pool))  # type: ignore[misc]
            elif before and before["enabled"]:
                self._tasks.remove(f"tuning {pool}")
        self._automatic = rows

    def automatic(self) -> dict[str, dict[str, Any]]:
        """Of the pools that tune themselves: the period in seconds and the objective."""
        kept = self._settings().items()
        return {pool: {"period": row["period"], "objective": row["objective"]} for pool, row in kept if row["enabled"]}

    def standing(self) -> dict[str, dict[str, Any]]:
        """The same, with when the next search comes (s since the epoch), and why there may be none then."""
        return {pool: {**auto, **self._next(pool, auto["period"])} for pool, auto in self.automatic().items()}

    def _next(self, pool: str, period: float) -> dict[str, Any]:
        """None: one is under way, or it waits."""
        if self._busy == pool:
            return {"next": None, "why": "a search is under way"}
        if why := self.waits_for(pool):
            return {"next": None, "why": why}
        now = self._clock()
        ((last_at, _),) = self._store.rows("policy/last_tuning", pool)
        return {"next": max(newest(now, self._due.get(pool, last_at)) + period, self._tasks.next_run(f"tuning {pool}") or now), "why": ""}

    def _tunes_itself(self, pool: str) -> bool:
        return bool(self._automatic.get(pool, {}).get("enabled"))

    def _settings(self) -> dict[str, dict[str, Any]]:
        """The last of each pool, turned off or not."""
        return {row["pool"]: row for row in objects(self._store, "policy/auto_tuning")}

    def look(self, pool: str) -> None:
        """The turn of a pool that tunes itself: measure, take back, search."""
        auto, now = self._automatic[pool], self._clock()
        if not auto["enabled"] or self._busy is not None:
            return
        taken_back = [self._measure(applied) for applied in self._unmeasured() if applied["pool"] == pool]
        if any(taken_back):
            return  # the next look searches, from what is in force then
        if why := self.waits_for(pool):
            self._tell(pool, f"{pool} waits", state="failed", why=why)
            return
        searched = newest(now, self._searched.get(pool))
        ((last_at, last),) = self._store.rows("policy/last_tuning", pool)
        due = now >= newest(now, self._due.get(pool, last_at)) + auto["period"]
        burst = not due and is_burst(self._history(pool, now), now, auto["period"] / HOUR, searched)
        if not due and not burst:
            return
        self._searched[pool] = now
        if due:
            self._due[pool] = now
        least = LEAST_GAIN if due else BURST_GAIN
        why = "hourly" if due and auto["period"] == 3600.0 else "a period is over" if due else "a burst of arrivals"
        self.begin(Asked(pool, auto["objective"], least_gain=least, period=auto["period"], why=why, seed=last or 0))

    def waits_for(self, pool: str) -> str:
        """What a pool that tunes itself waits for; empty: for nothing."""
        ((jobs,),) = self._store.rows("policy/tuning_jobs", pool, self._clock() - PAST)
        return f"waits for a history of {LEAST_JOBS} jobs; it has {jobs}" if jobs < LEAST_JOBS else ""

    def measure(self) -> None:
        """The turn of tunings that people asked for; pools that tune themselves measure theirs in `look`."""
        for applied in self._unmeasured():
            if not self._tunes_itself(applied["pool"]):
                self._measure(applied)

    def _unmeasured(self) -> list[dict[str, Any]]:
        return objects(self._store, "policy/unmeasured_tunings", self._clock())

    def _measure(self, applied: dict[str, Any]) -> bool:
        """What came of a configuration that was applied a period ago. True: it has harmed, was still in force, and is taken back."""
        pool, why = applied["pool"], applied["why"]
        ((taken,),) = self._store.rows("policy/taken_of_period", pool, applied["ts"], applied["ts"] + applied["period"])
        gain = measured_gain(applied["expected"], taken)
        if gain is None:
            self._store.write(measure_tuning, Measured(applied["id"], 1.0, "measured", f"{why}; no job was at hand"))
            return False
        row = self._row_of(pool)
        # Set first: what is on record has happened, whenever the daemon is killed.
        if row and has_harmed(gain) and self._may_take_back(applied, _set_in(row)) and self._set(row, applied["before"], NAME):
            harm = f"{why}; jobs took {1 / gain:.2f} × as long as expected without it"
            self._store.write(measure_tuning, Measured(applied["id"], gain, "rolled back", harm))
            return True
        stays = "stays" if _set_in(self._row_of(pool)) == (applied["policy"], applied["after"]) else "another change followed"
        self._store.write(measure_tuning, Measured(applied["id"], gain, "measured", f"{why}; {stays}"))
        return False

    def _may_take_back(self, applied: dict[str, Any], now: tuple[str, dict[str, Any]] | None) -> bool:
        """It is the pool's own newest change, and nobody has set another. So is one that a daemon took back just before it was killed."""
        still = now in [(applied["policy"], config) for config in (applied["after"], applied["before"])]
        return bool(self._tunes_itself(applied["pool"]) and applied["newest"] and applied["asked_by"] == NAME and still)


def _set_in(row: dict[str, Any] | None) -> tuple[str, dict[str, Any]] | None:
    """The policy of a row that is in force and its configuration, defaults included."""
    return None if row is None else (row["policy"], _whole(row["policy"], row["config"]))


def _whole(policy: str, config: dict[str, Any]) -> dict[str, Any]:
    """Defaults included."""
    return asdict(make_config(registry.load(policy).Config, config))


def _rows_in(ids: list[int], view: View) -> Ints:
    """The row of each job of the view among ``ids``, -1: it is not there."""
    rows = {job: row for row, job in enumerate(ids)}
    return np.array([rows.get(job, -1) for job in view.jobs.id.tolist()], dtype=np.int64)


def _check(request: Request) -> None:
    """What is wrong with the space, before a process is started."""
    policy = request.situation.policy
    try:
        space_of(registry.load(policy).Config, _whole(policy, dict(request.in_force)), only=request.only, ranges=request.ranges)
    except ValueError as error:
        raise UsageError(str(error)) from None
