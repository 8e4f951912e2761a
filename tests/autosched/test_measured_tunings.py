"""What came of tunings: measured a period later, whoever asked, and taken back where the pool tunes itself (002 ch. 6.5.3)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from common import Runner, submission
from stoker.engine.autosched import pool_requests
from stoker.engine.autosched.pool_requests import TUNER, PoolRequest
from stoker.engine.autosched.pool_tuning import PoolTuning
from stoker.engine.autosched.stored_tunings import NewTuning, add_tuning
from stoker.engine.client import Client
from stoker.engine.config import Config, PolicyDefault
from stoker.engine.errors import NotFound
from stoker.engine.fleet.registration import hello
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.scheduling.policy_settings import Auto, PolicySetting, set_policy
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import JobSpec
from stoker.engine.store.store import Store
from stoker.engine.tasks import Tasks
from waiting import until

BEFORE, AFTER = {"backfill": False}, {"backfill": True}
PERIOD = 100.0


class Pool:
    """One GPU, and one job that waits for it: it takes all of each period."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.store.write(hello, Runner(Client(), "node", 1).greeting())
        job = JobSpec(name="waits", command=["true"], gpus_min=1, gpus_max=1)
        self.store.write(submit, SubmitRequest(submission(job), "test"))
        self.scheduling = Scheduling(self.store, Tasks(lambda *_: None), Config(policy=PolicyDefault(name="fifo")))
        self.scheduling.reload()
        self.now = time.time()
        self.tuning = PoolTuning(self.store, self.scheduling, Tasks(lambda *_: None), lambda: self.now)

    def put(self, config: dict[str, Any], auto: Auto | None = None) -> None:
        self.store.write(set_policy, PolicySetting("default", "fifo", 1.0, config, "test", auto=auto))
        self.scheduling.reload()
        self.tuning.reload()

    def applied(self, asked_by: str, expected: float) -> None:
        """A search of now that was applied; without it jobs were to take ``expected`` s of the period."""
        self.store.write(add_tuning, NewTuning("default", self.found(expected), PERIOD, "applied", "hourly", asked_by))

    def found(self, expected: float) -> dict[str, Any]:
        return {"policy": "fifo", "objective": "jct", "before": BEFORE, "after": AFTER, "gain": 1.5, "expected": expected, "trials": 2,
                "simulated_trials": 2, "rejected": 0, "failed": 0, "seconds": 1.0}  # fmt: skip

    def told(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT outcome, measured_gain, why FROM tunings ORDER BY id")

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with self.store.read() as con:
            return con.execute(query).fetchall()

    def in_force(self) -> Any:
        return next(row for row in self.scheduling.in_force() if row["pool"] == "default")["config"]


@pytest.fixture
def pool(store: Store) -> Pool:
    return Pool(store)


def test_what_a_person_applied_is_measured_too_and_stays(pool: Pool) -> None:
    pool.put(AFTER)
    pool.applied("somebody", 50.0)  # half of what they take: it has harmed
    pool.now += PERIOD / 2
    pool.tuning.measure()
    assert pool.told() == [("applied", None, "hourly")]  # its period is not over
    pool.now += PERIOD
    pool.tuning.measure()
    assert pool.told() == [("measured", pytest.approx(0.5, rel=0.05), "hourly; stays")] and pool.in_force() == AFTER


def test_what_was_replaced_and_what_was_of_a_pool_that_is_gone_is_measured(pool: Pool) -> None:
    pool.put(BEFORE)
    pool.applied("somebody", 50.0)
    pool.store.write(add_tuning, NewTuning("gone", pool.found(50.0), PERIOD, "applied", "hourly", TUNER))
    pool.now += 2 * PERIOD
    pool.tuning.measure()
    here, gone = pool.told()
    assert here[0] == "measured" and here[2] == "hourly; another change followed"
    assert gone[0] == "measured" and gone[2] == "hourly; no job was at hand"


def test_it_is_told_when_the_next_search_comes(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.tuning.standing() == {}
    pool.put(AFTER, Auto(True, PERIOD))
    assert pool.tuning.standing()["default"] == {
        "period": PERIOD, "objective": "jct", "next": None, "why": "waits for a history of 30 jobs; it has 1"}  # fmt: skip
    monkeypatch.setattr(pool_requests, "MIN_HISTORY_JOBS", 1)
    assert pool.tuning.standing()["default"]["next"] == pytest.approx(pool.now + PERIOD / 12, abs=5), "at the next look"
    pool.applied(TUNER, 50.0)
    pool.now = time.time() + PERIOD / 4
    assert pool.tuning.standing()["default"]["next"] == pytest.approx(time.time() + PERIOD, abs=10)


def test_of_two_changes_within_a_period_the_newest_alone_is_taken_back(pool: Pool) -> None:
    pool.put(AFTER, Auto(True, PERIOD))
    pool.applied(TUNER, 50.0)
    pool.applied(TUNER, 50.0)
    pool.now += 2 * PERIOD
    pool.tuning.look("default")
    first, second = pool.told()
    assert first[0] == "measured" and first[2] == "hourly; stays"  # what the second found is the same
    assert second[0] == "rolled back" and second[2] == "hourly; jobs took 2.00 × as long as expected without it"
    assert pool.in_force() == BEFORE
    assert json.loads(pool.sql("SELECT config FROM policy_history ORDER BY id DESC LIMIT 1")[0][0]) == BEFORE


def test_what_a_person_sets_in_this_very_moment_is_not_overwritten(pool: Pool) -> None:
    pool.put(AFTER, Auto(True, PERIOD))
    pool.applied(TUNER, 50.0)
    pool.now += 2 * PERIOD
    pool.store.write(set_policy, PolicySetting("default", "fifo", 7.0, AFTER, "ann"))  # committed, and no tick has taken it up yet
    pool.tuning.look("default")
    assert pool.told()[0][:2] == ("measured", pytest.approx(0.5, rel=0.05))
    assert pool.sql("SELECT set_by, interval FROM policy_history ORDER BY id DESC LIMIT 1") == [("ann", 7.0)]
    assert pool.in_force() == AFTER


def test_each_search_keeps_its_own_answer(pool: Pool) -> None:
    pool.put(BEFORE)
    mine = pool.tuning.begin(PoolRequest("default", dry_run=True, trials=2, by="ann"))
    pool.put(BEFORE, Auto(True, PERIOD))
    done = until(lambda: (found := pool.tuning.answer("default", mine["search"]))["state"] != "searching" and found, 60)
    assert done["outcome"] == "dry-run" and pool.tuning.answer("default") == done

    def waits() -> bool:
        pool.tuning.look("default")  # it has no turn until the search is wholly over
        return "waits for a history" in pool.tuning.answer("default")["why"]

    until(waits, 10)
    assert pool.tuning.answer("default", mine["search"]) == done
    with pytest.raises(NotFound, match="search: 'none such' is not known"):
        pool.tuning.answer("default", "none such")
