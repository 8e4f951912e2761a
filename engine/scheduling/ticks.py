"""The policies at work: a task for each pool builds a View, asks for a Plan, checks it, and carries it out.

Events (a submission, an end, a runner) and its interval wake it. A policy that raises, or returns an impossible plan,
changes nothing: the error is recorded and current allocations stay.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...policies import registry
from ...policies.contract import Memory as PolicyMemory
from ...policies.contract import Phase, Plan, Policy, Reason, View, Waiting
from ...policies.own import Loaded
from ..config import Config
from ..errors import StokerError
from ..forecast.expected_starts import estimate_starts
from ..forecast.foretelling import LOOK_INTERVAL, Foretelling
from ..forecast.trial import with_job
from ..jobs.begin_from import not_together, planned
from ..jobs.leases import Grant, Join, LeaseStop
from ..json_rows import objects
from ..spec.model import JobSpec
from ..store.store import Committed, Store
from ..tasks import Tasks
from . import policy_errors
from .enact import Decision, Enactment, enact
from .guards import Actions, Evictions, PreemptionLimits, in_vain, next_look, protect, reconcile
from .held_back import HeldBack, held_back
from .lease_ends import lapsed, next_end, put_off
from .overheads import Overheads
from .plan_check import PlanError, check, check_enacted
from .policy_settings import PolicySetting, set_policy
from .view import Snapshot, snapshot, without
from .warm_gpus import changed_pools

log = logging.getLogger(__name__)

LONGEST_ANSWER = 60.0  #: seconds that a policy of a user's own may take for a plan, or its interval where that is longer
FOLD_SECONDS = 60.0  #: longest time in seconds for which identical decisions are counted before they are written
#: Settings on which the starts of waiting jobs depend, besides the policy.
FORETOLD_BY = frozenset({"queue", "leases", "policy", "nodes", "estimates"})


@dataclass(frozen=True, slots=True)
class Setting:
    """The policy in force in a pool."""

    pool: str
    policy: str
    interval: float
    config: dict[str, Any]
    config_id: int
    set_by: str
    ts: float | None
    loaded: Loaded | None  #: None: it cannot be loaded

    @property
    def code(self) -> str:
        return self.loaded.code if self.loaded else ""


@dataclass(frozen=True, slots=True)
class InheritedMemory:
    """The memory that a setting inherits: successive settings of the same policy and code share one."""

    broken: int  #: config_id of the newest earlier setting of another policy or other code, -1: none
    memory: PolicyMemory


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool decides, as a simulation of it needs to know."""

    name: str  #: of the policy
    policy: Callable[[], Policy]  #: makes a new instance, as the pool's own is in use
    limits: PreemptionLimits
    evictions: Evictions
    memory: PolicyMemory = None
    config: Mapping[str, Any] = field(default_factory=dict)  #: keys that were given
    loaded: Loaded | None = None  #: the policy's code; None: it cannot be loaded


@dataclass(frozen=True, slots=True)
class Failing:
    """A policy that fails, tick after tick."""

    since: float  #: s since the epoch
    reason: Reason  #: why jobs wait, as worded when the failures began


@dataclass(slots=True)
class _Pool:
    """State of one pool between ticks: caches and counters, no facts."""

    setting: Setting
    policy: Policy
    evictions: Evictions
    memory: PolicyMemory  #: the policy's memory, as the newest decision has it
    foretelling: Foretelling
    waiting: dict[int, tuple[str, str]] = field(default_factory=dict)  #: rows of the table `waiting`
    order: list[int] = field(default_factory=list)  #: waiting jobs in the policy's order
    failing: Failing | None = None  #: None: its last answer was a plan
    folded: Decision | None = None  #: the newest row of `decisions`, including ticks that are not written yet
    written: float = 0.0  #: when that row was last written
    owed: bool = False  #: some of its ticks are not written yet
    coming: Setting | None = None  #: a setting that the next tick takes up
    inherited: bool = False  #: jobs may hold leases that another policy granted
    asked_at: float = -math.inf  #: time of the last view to which the policy answered or failed
    questions: policy_errors.Questions = field(default_factory=policy_errors.Questions)  #: to a policy of a user's own
    spared: frozenset[int] = frozenset()  #: expired leases that continue, as no job waited at the last plan


class Scheduling:
    """All pools. `tick` may be called from any thread; ticks of one pool never overlap."""

    def __init__(self, store: Store, tasks: Tasks, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._config = config
        self._limits = PreemptionLimits(config.guards.min_run_time, config.guards.max_preemptions, config.guards.cooldown)
        self._pools: dict[str, _Pool] = {}
        self._overheads = Overheads()
        self._set = 0  #: how often the clock was set
        self._lock = threading.Lock()

    def start(self) -> None:
        self.reload()
        self._tasks.every("forecast", LOOK_INTERVAL, self.forecast)
        self._store.listen(self._committed)

    def _committed(self, commit: Committed) -> None:
        if "policy" in commit.topics or "nodes" in commit.topics:
            self._tasks.wake("policies")
        if commit.topics & {"queue", "leases", "policy", "nodes"}:
            for pool in list(self._pools):
                self._tasks.wake(f"policy {pool}")
        if commit.topics & FORETOLD_BY:
            for state in list(self._pools.values()):
                state.foretelling.news()

    def reload(self) -> None:
        """Take up new settings and new pools. A setting takes effect at the next tick."""
        known = {row["pool"]: row for row in objects(self._store, "api/policies")}
        pools = {"default", *known, *(row[0] for row in self._store.rows("policy/pools"))}
        for pool in sorted(pools):
            row, state = known.get(pool), self._pools.get(pool)
            if state is None:
                self._adopt(self._first(pool, row))
            elif row and row["id"] != (state.coming or state.setting).config_id:  # else its code stays as it was loaded
                self._adopt(self._setting(pool, row))

    def _first(self, pool: str, row: dict[str, Any] | None) -> Setting:
        """The setting of a new pool. Code that has changed since it was set becomes a version of its own."""
        setting = self._setting(pool, row)
        if row is None or setting.code == (row["code"] or "") or not setting.loaded:
            return setting
        again = PolicySetting(pool, setting.policy, setting.interval, setting.config, "daemon", setting.code)
        return replace(setting, config_id=self._store.write(set_policy, again), set_by=again.set_by, ts=self._clock())

    def _setting(self, pool: str, row: dict[str, Any] | None) -> Setting:
        if row is None:
            default = self._config.policy
            return Setting(pool, default.name, default.interval, {}, 0, "default", None, _load(pool, default.name))
        return Setting(pool, row["policy"], row["interval"], row["config"], row["id"], row["set_by"], row["ts"], _load(pool, row["policy"]))

    def _adopt(self, setting: Setting) -> None:
        """Hand a setting to its pool, whose next tick takes it up: only ticks change a pool's state."""
        with self._lock:
            state = self._pools.get(setting.pool)
            if state is None:
                pool = setting.pool
                waiting = {row[0]: (row[1], row[2]) for row in self._store.rows("policy/waiting", pool)}
                foretells = Foretelling(self._store, pool, partial(self._protected, pool), self._clock, self._guarded)
                self._pools[pool] = _Pool(setting, _create(setting), self._evictions(pool), self._kept(setting).memory, foretells, waiting)
            else:
                state.coming = setting
        self._tasks.every(f"policy {setting.pool}", setting.interval, lambda: self.tick(setting.pool), soon=True)
        if state is not None:  # a tick that is under way would make the scheduler skip this one
            self._tasks.wake(f"policy {setting.pool}")

    def _take_up(self, state: _Pool) -> None:
        """Put the coming setting in force. Until then requests already see it, so that none is answered with the one before."""
        if (coming := state.coming) is None:
            return
        self._flush(state)
        policy, kept = _create(coming), self._kept(coming)
        with self._lock:
            before = state.setting
            state.inherited = state.inherited or before.policy != coming.policy or before.config_id <= kept.broken
            state.setting, state.policy, state.folded, state.questions = coming, policy, None, policy_errors.Questions()
            state.memory, state.failing = kept.memory, None
            if state.coming is coming:  # else a newer one has come since
                state.coming = None

    def in_force(self) -> list[dict[str, Any]]:
        """Settings of all pools, for `GET /v1/policy`; ``id``: the version of the configuration, 0: none was set."""
        fields = ("pool", "policy", "interval", "config", "code", "set_by", "ts")
        settings = [(state.coming or state.setting, self._trouble(state)) for _, state in sorted(self._pools.items())]
        return [{name: getattr(setting, name) for name in fields} | {"id": setting.config_id} | trouble for setting, trouble in settings]

    @staticmethod
    def _trouble(state: _Pool) -> dict[str, Any]:
        failing, last = state.failing, state.folded
        if failing is None or last is None or state.coming is not None:
            return {"error": None, "failing_since": None, "remedy": None}
        return {"error": last.error, "failing_since": failing.since, "remedy": policy_errors.remedy(last.policy, last.pool)}

    def would_fail(self, pool: str, policy: Policy, name: str, code: str = "") -> str | None:
        """Why a policy would fail if it were set in the pool now; None: it would not. ``code``: digest of a user's own policy."""
        memory = self._kept_by(pool, name, code, sys.maxsize).memory
        return policy_errors.would_fail(policy, protect(replace(self.look(pool).view, memory=memory), self._limits))

    def know_overheads(self, overheads: Overheads) -> None:
        """Use newly measured costs of suspensions, from the next view on."""
        self._overheads = overheads

    def asked_at(self, pool: str) -> float:
        """When the last answer of a pool's policy was carried out (s since the epoch), -inf: not yet."""
        state = self._pools.get(pool)
        return -math.inf if state is None else state.asked_at

    def deadlines_first(self, pool: str) -> bool:
        """Whether the policy of a pool serves jobs with deadlines before those without."""
        state = self._pools.get(pool)
        return state is not None and getattr(state.policy, "deadlines_first", False)

    def spared(self, pool: str) -> Collection[int]:
        """Expired leases of a pool that continue until a job waits."""
        state = self._pools.get(pool)
        return () if state is None else state.spared

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds. The tables have been moved by as much, and so are the times kept here."""
        self._set += 1
        for state in list(self._pools.values()):
            state.asked_at += by
            state.written += by
            state.evictions = Evictions({pair: ts + by for pair, ts in state.evictions.gave_way.items()})
            if state.failing is not None:
                state.failing = replace(state.failing, since=state.failing.since + by)
            state.foretelling.clock_set()

    def tick(self, pool: str) -> None:
        """One decision of a pool."""
        state, times_set = self._pools[pool], self._set
        self._take_up(state)
        start = time.perf_counter()
        seen = self.look(pool)
        now = seen.view.now
        seen = replace(seen, view=protect(seen.view, self._limits))
        viewed = time.perf_counter()
        blank = Decision(pool, state.setting.policy, state.setting.config_id, now, now, 1, len(seen.view.jobs), "ok", None, viewed - start,
                         0.0, 0.0, "unchanged")  # fmt: skip
        try:
            seen, plan = self._planned(state, seen)
            planned = time.perf_counter()
            actions = reconcile(seen.view, plan, self._limits, state.evictions)
            enactment = self._enactment(state, seen, plan, actions)
        except BaseException as error:  # a policy may be any code
            self._refused(state, seen, blank, error)
            state.asked_at = now
            return
        decision = replace(
            blank,
            status=plan.status,
            gap=plan.gap,
            plan_seconds=planned - viewed,
            apply_seconds=time.perf_counter() - planned,
            deferred=dict(actions.deferred),
            event="" if state.failing is None else "policy.recovered",
        )
        if plan.memory != state.memory:
            decision = replace(decision, memory=json.dumps(plan.memory))
        if times_set != self._set:  # meanwhile: the plan's ends of leases are by the old clock
            self._tasks.wake(f"policy {pool}")
            return
        self._carry_out(state, replace(enactment, decision=decision))
        state.memory, state.failing = plan.memory, None
        state.order = _order(plan)  # not before: a forecast in this order needs the ends of leases that came with it
        state.inherited, state.asked_at = False, now
        state.evictions = state.evictions.after(actions.stops, now, self._limits)
        again = min(
            next_look(seen.view, plan, actions, self._limits, state.evictions),
            next_end(seen, enactment.renewals, enactment.stops, enactment.grants),
        )
        if math.isfinite(again):
            self._tasks.wake_at(f"policy {pool}", again)

    def _planned(self, state: _Pool, seen: Snapshot) -> tuple[Snapshot, Plan]:
        """The plan, and what it is a plan for: replicas that would only take the place of another of their group are left out, as other
        jobs may wait behind them."""
        within = max(LONGEST_ANSWER, state.setting.interval)
        while True:
            plan = policy_errors.ask(state.policy, seen.view, state.questions, within)
            plan = check_enacted(check(plan, seen.view, objections=self._objections, apart=self._apart))
            if not (waits := in_vain(seen.view, plan, seen.replicas)):
                return seen, plan
            reasons = [(job, "deferred", words) for job, words in waits.items()]
            rows = np.flatnonzero(np.isin(seen.view.jobs.id, list(waits))).tolist()
            seen = without(replace(seen, ineligible=[*seen.ineligible, *reasons]), rows)

    def _kept(self, setting: Setting) -> InheritedMemory:
        return self._kept_by(setting.pool, setting.policy, setting.code, setting.config_id)

    def _kept_by(self, pool: str, policy: str, code: str, config_id: int) -> InheritedMemory:
        """The memory that a policy of some code inherits under a version of its configuration. Read from the tables, so that a
        setting which was replaced before its first tick counts too."""
        ((broken, memory),) = self._store.rows("policy/memory", pool, policy, code or None, config_id)
        return InheritedMemory(broken, json.loads(memory) if memory else None)

    def _objections(self, wanted: Mapping[int, int]) -> Mapping[int, str]:
        return planned(lambda jobs: self._store.rows("store/weight_sources", jobs), wanted)

    def _apart(self, wanted: Mapping[int, int]) -> Mapping[int, str]:
        return not_together(
            lambda jobs: self._store.rows("store/weight_sources", jobs),
            lambda owner, one, two: self._store.rows("store/joint_gains", owner, one, two)[0][0],
            wanted,
        )

    def _evictions(self, pool: str) -> Evictions:
        rows = self._store.rows("policy/recent_preemptions", pool, self._clock() - self._limits.cooldown)
        return Evictions({(victim, winner): ts for victim, winner, ts in rows})

    def _enactment(self, state: _Pool, seen: Snapshot, plan: Plan, actions: Actions) -> Enactment:
        """The actions in terms of the tables: rows of the view become ids and names."""
        view = seen.view
        gpus, nodes = view.gpus, view.nodes
        row_of = {int(job): row for row, job in enumerate(view.jobs.id)}
        grants = [
            Grant(
                start.job,
                tuple((str(gpus.id[gpu]), str(nodes.id[gpus.node[gpu]])) for gpu in start.gpus),
                start.lease_end,
                start.profile,
                start.lasts,
                start.share,
                int(start.memory),
                start.begin_from,
                start.joint,
            )
            for start in actions.starts
        ]
        actor = f"policy:{state.setting.policy}"
        stops = [LeaseStop(int(seen.lease_id[row_of[job]]), reason, actor, for_job) for job, reason, for_job in actions.stops]
        renewals = put_off(seen)
        renewals.update(
            (int(seen.lease_id[row_of[job]]), lease_end)
            for job, lease_end in actions.renewals
            if (math.inf if lease_end is None else lease_end) != seen.expires_at[row_of[job]]
        )
        if state.inherited:  # another policy has set these ends of leases
            # Except for profiling runs: without an end they would never stop measuring.
            leased = np.flatnonzero(np.isfinite(seen.expires_at) & (view.jobs.phase == Phase.ACTIVE) & ~seen.profiling)
            stay = [
                row
                for row in leased.tolist()
                if int(view.jobs.id[row]) not in plan.allocations and int(view.jobs.id[row]) not in plan.preempt
            ]
            renewals.update({int(seen.lease_id[row]): None for row in stay})
        over = lapsed(seen, renewals, stops, grants)
        stops += over.stops
        state.spared = over.spared
        joined = {int(seen.lease_id[row_of[job]]): Join(share, int(memory)) for job, (share, memory) in actions.joined.items()}
        warm = changed_pools({} if plan.warm is None and state.inherited else plan.warm, view.gpus)
        return Enactment(_NOTHING, grants, stops, renewals, self._changed_reasons(state, seen, plan, actions), joined, warm)

    @staticmethod
    def _changed_reasons(state: _Pool, seen: Snapshot, plan: Plan, actions: Actions) -> list[tuple[int, str, str, bool]]:
        # A plan lists its victims as waiting too; they get no reason to wait before they have stopped.
        pending = set(seen.view.jobs.id[seen.view.jobs.phase == Phase.PENDING].tolist())
        now: dict[int, tuple[str, str]] = {job: (code, reason) for job, code, reason in seen.ineligible}
        for group in plan.waiting:
            now.update(dict.fromkeys(pending.intersection(group.jobs), (group.reason.code, group.reason.text)))
        unnamed = pending.difference(now, plan.allocations)
        now.update(dict.fromkeys(unnamed, ("unexplained", f"policy {state.setting.policy} gives no reason")))
        now.update((job, ("deferred", text)) for job, text in actions.deferred if job in pending)
        before = state.waiting
        changed = [(job, *why, before.get(job, ("",))[0] != why[0]) for job, why in now.items() if before.get(job) != why]
        if changed or len(now) != len(state.waiting):
            state.foretelling.news()
        state.waiting = now
        return changed

    def _carry_out(self, state: _Pool, enactment: Enactment) -> None:
        decision = enactment.decision
        acted = bool(enactment.grants or enactment.stops or enactment.renewals or enactment.warm)
        if acted or enactment.waiting:
            if decision.error is None:
                decision = replace(decision, outcome="applied" if acted else "unchanged")
            try:
                if state.folded is not None and state.owed:  # into the same transaction, if that has not begun; only a count
                    self._store.submit(enact, Enactment(state.folded))
                enacted = self._store.write(enact, replace(enactment, decision=decision))
            except StokerError:
                state.waiting = {}  # no new reason was written: the next tick writes all of them
                raise
            for job in enacted.skipped:
                state.waiting.pop(job, None)
            state.folded, state.written, state.owed = replace(decision, number=enacted.decision), decision.last_ts, False
            state.foretelling.news()
            return
        self._fold(state, decision)

    def _refused(self, state: _Pool, seen: Snapshot, decision: Decision, error: BaseException) -> None:
        """The policy raised, or its plan is impossible: record that once, however often it repeats, and why jobs wait."""
        outcome = "invalid" if isinstance(error, PlanError) else "error"
        words = policy_errors.words(error)
        if outcome == "error" and (state.folded is None or state.folded.error != words):
            log.error("policy %s raised", state.setting.policy, exc_info=error, extra={"action": "policy.error"})
        state.spared = frozenset()  # a failing policy keeps no expired lease
        state.order = []  # the policy's order is not known
        begins = state.failing is None
        failing = state.failing or Failing(
            decision.ts, Reason(policy_errors.POLICY_ERROR, policy_errors.told(decision.policy, decision.pool, words))
        )
        nothing = Plan({}, [Waiting(failing.reason, seen.view.jobs.id.tolist())])
        reasons = self._changed_reasons(state, seen, nothing, Actions())
        decision = replace(decision, outcome=outcome, error=words, event="policy.error" if begins else "")
        self._carry_out(state, Enactment(decision, waiting=reasons))
        state.failing = failing

    def _fold(self, state: _Pool, decision: Decision) -> None:
        """Count a tick that changed nothing in the row of the tick before, if that decided the same."""
        last = state.folded
        same = last is not None and decision.memory is None and _gist(last) == _gist(decision)
        if last is None or not same:
            self._flush(state)
            number = self._store.write(enact, Enactment(decision)).decision
            state.folded, state.written = replace(decision, number=number), decision.last_ts
            return
        state.folded, state.owed = replace(last, ticks=last.ticks + 1, last_ts=decision.last_ts), True
        if decision.last_ts - state.written > FOLD_SECONDS:
            self._flush(state)

    def _flush(self, state: _Pool) -> None:
        if state.folded is not None and state.owed:
            self._store.write(enact, Enactment(state.folded))
            state.written, state.owed = state.folded.last_ts, False

    def flush(self) -> None:
        """Write the ticks that were only counted: the daemon is stopping."""
        for state in self._pools.values():
            self._flush(state)

    def forecast(self) -> None:
        """Update places in the queue and estimated starts where they may be out of date."""
        for state in list(self._pools.values()):
            if state.asked_at > -math.inf:  # else the forecasts of the last daemon stand
                state.foretelling.refresh(state.order)

    def look(self, pool: str) -> Snapshot:
        """A pool as its policy would see it now, without the guards' protection."""
        with self._store.read() as con:
            seen = snapshot(con, pool, self._clock(), self._overheads)
        state = self._pools.get(pool)
        return seen if state is None else replace(seen, view=replace(seen.view, memory=state.memory))

    def _protected(self, pool: str) -> View:
        """The view behind expected starts: no lease ends before its protection does."""
        return protect(self.look(pool).view, self._limits)

    def _guarded(self, view: View, job: int) -> float:
        """When a guard lets a job start, inf: not known. The policy is asked only where a guard may hold the job back."""
        state = self._pools[view.pool]
        protected = view.jobs.protected
        if not state.evictions.gave_way and (protected is None or not protected.any()):
            return math.inf
        held = self._held_back(state, job, view)
        return math.inf if held is None else held.until

    def rules(self, pool: str) -> Rules | None:
        """How a pool decides now, for a forecast of its decisions; None: no runner offers this pool."""
        state = self._pools.get(pool)
        if state is None:
            return None
        with self._lock:
            coming, setting, memory = state.coming, state.coming or state.setting, state.memory
        memory = self._kept(coming).memory if coming else memory
        return Rules(setting.policy, lambda: _create(setting), self._limits, state.evictions, memory, setting.config, setting.loaded)

    def held_back(self, pool: str, job: int) -> HeldBack | None:
        """The guard that holds a waiting job back, its victim, and the end of its protection; None: no guard does, or the policy fails."""
        state = self._pools.get(pool)
        return None if state is None else self._held_back(state, job, self.look(pool).view)

    def _held_back(self, state: _Pool, job: int, view: View) -> HeldBack | None:
        if state.failing is not None:
            return None
        try:
            return held_back(job, _create(state.setting), view, self._limits, state.evictions)
        except BaseException:  # a policy may be any code; its failure is reported elsewhere
            return None

    def foresee(self, jobs: Sequence[JobSpec]) -> list[tuple[float | None, str]]:
        """For a dry run: when jobs would start if they were submitted now, and why not at once."""
        return [self._foresee(spec) for spec in jobs]

    def _foresee(self, spec: JobSpec) -> tuple[float | None, str]:
        if spec.hold or spec.waits_for:
            return None, "held" if spec.hold else f"waits for {', '.join(spec.waits_for)}"
        state = self._pools.get(spec.pool)
        if state is None:
            return None, f"no runner offers pool {spec.pool!r} yet"
        if state.failing is not None:  # it is not asked again: it may hang
            return None, state.failing.reason.text
        view = self.look(spec.pool).view
        trial = protect(with_job(view, spec), self._limits)
        new = int(trial.jobs.id[-1])
        # An instance of its own: a policy may keep caches, and the pool's own runs in another thread.
        try:
            plan = check_enacted(check(policy_errors.ask(_create(state.setting), trial), trial))
            actions = reconcile(trial, plan, self._limits, state.evictions)
        except BaseException as error:  # a policy may be any code
            return None, f"policy {state.setting.policy} cannot say: {policy_errors.words(error)}"
        if new in plan.allocations:
            put_off = dict(actions.deferred)
            return (None, put_off[new]) if new in put_off else (view.now, "starts at once")
        order = _order(plan)
        start = float(estimate_starts(trial, order)[order.index(new)]) if new in order else math.nan
        why = next((group.reason.text for group in plan.waiting if new in group.jobs), "the policy gives no reason")
        return (None if math.isnan(start) else start), why


def _load(pool: str, policy: str) -> Loaded | None:
    """The code of a policy. A policy that can no longer be loaded (its module is gone) must not keep the daemon from starting."""
    try:
        return registry.loaded(policy)
    except ValueError as error:
        log.error("pool %s: %s", pool, error, extra={"action": "policy.error"})
        return None


def _create(setting: Setting) -> Policy:
    """An instance of a setting's policy, made from the code that was loaded for it."""
    try:
        return registry.create(setting.policy, setting.config, setting.loaded.policy if setting.loaded else None)
    except (ValueError, KeyError) as error:
        log.error("pool %s: %s", setting.pool, error, extra={"action": "policy.error"})
        return _Missing(str(error.args[0]))


class _Missing:
    """Stands in for a policy that cannot be loaded: every tick is recorded as an error, and running jobs go on."""

    Config: ClassVar[type] = type(None)
    name: ClassVar[str] = "missing"

    def __init__(self, why: str) -> None:
        self._why = why

    def plan(self, view: View) -> Plan:
        raise RuntimeError(self._why)


def _order(plan: Plan) -> list[int]:
    """Waiting jobs in the order in which the policy would serve them."""
    return list(plan.order) or [job for group in plan.waiting for job in group.jobs]


_NOTHING = Decision("", "", 0, 0.0, 0.0, 0, 0, "", None, 0.0, 0.0, 0.0, "")


def _gist(decision: Decision) -> tuple[object, ...]:
    """The part of a decision in which repeated ticks agree; a tick that changed nothing repeats the one that was applied."""
    outcome = "unchanged" if decision.outcome == "applied" else decision.outcome
    return outcome, decision.error, decision.deferred, decision.policy, decision.config_id
