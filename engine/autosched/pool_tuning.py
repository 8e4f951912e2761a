"""Tuning of the daemon's pools: searches that people ask for, and pools that tune themselves (002 ch. 6.5.2, 6.5.3).

A `Controller` for each pool that tunes itself decides; this drives it by the daemon's clock and tables, so a restart changes no decision. A
configuration that a person sets wins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..json_rows import objects
from ..scheduling.policy_settings import PolicySetting, set_policy
from ..scheduling.ticks import Scheduling
from ..store.store import Committed, Store
from ..tasks import Tasks
from .pool_requests import TUNER, PoolRequest, PoolRequests, whole
from .pool_searches import PoolSearches
from .stored_tunings import MeasuredGain, NewTuning, add_tuning, measure_tuning
from .tuning_controller import Controller, has_harmed, measured_gain, refusal

MEASURE_EVERY = 60.0  #: seconds between two looks for changes whose period is over
RELOAD_EVERY = 3600.0  #: seconds after which the settings are read again in any case


class PoolTuning:
    def __init__(self, store: Store, scheduling: Scheduling, tasks: Tasks, clock: Callable[[], float] = time.time) -> None:
        self._store, self._scheduling, self._tasks, self._clock = store, scheduling, tasks, clock
        self._requests = PoolRequests(store, scheduling, clock)
        self.searches = PoolSearches(store, self._requests, self._decide)
        self.begin, self.answer, self.waits_for = self.searches.begin, self.searches.answer, self._requests.waits_for
        self._settings: dict[str, dict[str, Any]] = {}  #: the last of each pool, turned off or not
        self._controllers: dict[str, Controller] = {}

    def start(self) -> None:
        self.reload()
        self._tasks.every("tunings measured", MEASURE_EVERY, self.measure)
        self._store.listen(self._committed)

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds."""
        self._requests.clock_set(by)
        for controller in self._controllers.values():
            controller.clock_set(by)

    # Settings

    def _committed(self, commit: Committed) -> None:
        if "policy" in commit.topics:
            self._tasks.wake("auto tuning")

    def reload(self) -> None:
        """Take up what was set."""
        self._tasks.every("auto tuning", RELOAD_EVERY, self.reload)
        rows = self._stored_settings()
        for pool, row in rows.items():
            before = self._settings.get(pool)
            if row == before:
                continue
            controller = self._controllers.setdefault(pool, Controller(row["period"]))
            controller.period = row["period"]
            if row["enabled"]:
                self._tasks.every(f"tuning {pool}", controller.check_interval, lambda pool=pool: self.look(pool))  # type: ignore[misc]
            elif before and before["enabled"]:
                self._tasks.remove(f"tuning {pool}")
        self._settings = rows

    def _stored_settings(self) -> dict[str, dict[str, Any]]:
        return {row["pool"]: row for row in objects(self._store, "policy/auto_tuning")}

    def automatic(self) -> dict[str, dict[str, Any]]:
        """The period in seconds and the objective of each pool that tunes itself."""
        rows = self._stored_settings().items()
        return {pool: {"period": row["period"], "objective": row["objective"]} for pool, row in rows if row["enabled"]}

    def standing(self) -> dict[str, dict[str, Any]]:
        """As `automatic`, with the time of the next search (s since the epoch), and why where there is none."""
        return {pool: {**auto, **self._next(pool, auto["period"])} for pool, auto in self.automatic().items()}

    def _next(self, pool: str, period: float) -> dict[str, Any]:
        """When the next search comes, and why it is not known: one is under way, or the pool waits."""
        if self.searches.busy == pool:
            return {"next": None, "why": "a search is under way"}
        if why := self.waits_for(pool):
            return {"next": None, "why": why}
        now = self._clock()
        ((last_at, _),) = self._store.rows("policy/last_tuning", pool)
        ends = self._controllers.get(pool, Controller(period)).period_ends(now, last_at)
        return {"next": max(ends, self._tasks.next_run(f"tuning {pool}") or now), "why": ""}

    def _tunes_itself(self, pool: str) -> bool:
        return bool(self._settings.get(pool, {}).get("enabled"))

    # Turns

    def look(self, pool: str) -> None:
        """The turn of a pool that tunes itself: measure, roll back, search."""
        auto, controller, now = self._settings[pool], self._controllers[pool], self._clock()
        if not auto["enabled"] or self.searches.busy is not None:
            return
        rolled_back = [self._measure(change) for change in self._unmeasured() if change["pool"] == pool]
        if any(rolled_back):
            return  # the next look searches, from what is in force then
        if why := self.waits_for(pool):
            self.searches.tell(pool, f"{pool} waits", state="failed", why=why)
            return
        ((last_at, last),) = self._store.rows("policy/last_tuning", pool)
        trigger = controller.due(now, lambda: self._requests.submitted(pool, now), last_at)
        if trigger is not None:
            asked = PoolRequest(pool, auto["objective"], min_gain=trigger.min_gain, period=auto["period"], why=trigger.why, seed=last or 0)
            self.begin(asked)

    def measure(self) -> None:
        """The turn of changes that people asked for; pools that tune themselves measure theirs in `look`."""
        for change in self._unmeasured():
            if not self._tunes_itself(change["pool"]):
                self._measure(change)

    # Changes

    def _decide(self, asked: PoolRequest, summary: dict[str, Any]) -> dict[str, Any]:
        """Put the best in force if it is worth it and nothing was set meanwhile, and write down what was found."""
        outcome, why = "kept", asked.why
        refused = refusal(summary["before"], summary["after"], summary["gain"], asked.min_gain, self._rolled_back(asked, summary["policy"]))
        row = self._requests.setting(asked.pool)
        if asked.dry_run:
            outcome = "dry-run"
        elif refused:
            why = f"{asked.why}; {refused}"
        elif asked.by == TUNER and not self._tunes_itself(asked.pool):
            why = "somebody turned it off meanwhile"
        elif row and _set_in(row) == (summary["policy"], summary["before"]) and self._set(row, summary["after"], asked.by):
            outcome = "applied"
        else:
            why = "somebody set the policy meanwhile"
        self._store.write(add_tuning, NewTuning(asked.pool, summary, asked.period, outcome, why, asked.by))
        return {**summary, "applied": outcome == "applied", "outcome": outcome, "why": why}

    def _rolled_back(self, asked: PoolRequest, policy: str) -> list[Any]:
        """Configurations that the pool itself does not apply again; a person may."""
        since = Controller(asked.period).rolled_back_since(self._clock())
        return [json.loads(after) for (after,) in self._store.rows("policy/taken_back", asked.pool, policy, since) if asked.by == TUNER]

    def _set(self, row: dict[str, Any], config: dict[str, Any], by: str) -> bool:
        """Set another configuration in place of a row that is in force. False: somebody has set the policy in this very moment."""
        setting = PolicySetting(row["pool"], row["policy"], row["interval"], config, by, row["code"], instead_of=row["id"])
        was_set = self._store.write(set_policy, setting) != 0
        self._scheduling.reload()
        return was_set

    def _unmeasured(self) -> list[dict[str, Any]]:
        return objects(self._store, "policy/unmeasured_tunings", self._clock())

    def _measure(self, change: dict[str, Any]) -> bool:
        """Measure a configuration that was applied a period ago. True: it has harmed, was still in force, and is rolled back."""
        pool, why = change["pool"], change["why"]
        ((taken,),) = self._store.rows("policy/taken_of_period", pool, change["ts"], change["ts"] + change["period"])
        gain = measured_gain(change["expected"], taken)
        if gain is None:
            self._store.write(measure_tuning, MeasuredGain(change["id"], 1.0, "measured", f"{why}; no job was at hand"))
            return False
        row = self._requests.setting(pool)
        # Set first, recorded second: so each record is true, whenever the daemon is killed.
        if row and has_harmed(gain) and self._may_roll_back(change, _set_in(row)) and self._set(row, change["before"], TUNER):
            harm = f"{why}; jobs took {1 / gain:.2f} × as long as expected without it"
            self._store.write(measure_tuning, MeasuredGain(change["id"], gain, "rolled back", harm))
            return True
        stays = "stays" if _set_in(self._requests.setting(pool)) == (change["policy"], change["after"]) else "another change followed"
        self._store.write(measure_tuning, MeasuredGain(change["id"], gain, "measured", f"{why}; {stays}"))
        return False

    def _may_roll_back(self, change: dict[str, Any], now: tuple[str, dict[str, Any]] | None) -> bool:
        """Only the pool's own newest change may, while no other is set. It may again if the daemon was killed after the roll-back."""
        still = now in [(change["policy"], config) for config in (change["after"], change["before"])]
        return bool(self._tunes_itself(change["pool"]) and change["newest"] and change["asked_by"] == TUNER and still)


def _set_in(row: dict[str, Any] | None) -> tuple[str, dict[str, Any]] | None:
    """The policy of a row that is in force and its configuration, defaults included."""
    return None if row is None else (row["policy"], whole(row["policy"], row["config"]))
