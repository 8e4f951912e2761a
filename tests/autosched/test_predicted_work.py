"""A pool whose jobs tell nothing of their durations: a search predicts them, from what the same users' jobs took (002 ch. 6.4.2.2)."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from common import Runner, submission
from stoker.engine.autosched.pool_requests import PoolRequest
from stoker.engine.autosched.pool_tuning import PoolTuning
from stoker.engine.autosched.search_process import SearchRequest
from stoker.engine.autosched.stored_models import StoredModel, version_of
from stoker.engine.client import Client
from stoker.engine.config import Config, PolicyDefault
from stoker.engine.fleet.registration import hello
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import JobSpec
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction
from stoker.engine.tasks import Tasks
from stoker.policies import registry
from waiting import patient, until

SECONDS = (100.0, 900.0, 2500.0, 5000.0, 10000.0, 40000.0)  #: of each user's jobs, within a tenth


def of_user(number: int, user: int) -> JobSpec:
    return JobSpec(name=f"j{number}", command=["true"], gpus_min=1, gpus_max=1, user=f"u{user}")


def end(tx: Transaction, batch: Sequence[list[dict[str, Any]]]) -> Sequence[None]:
    """Jobs have been submitted at a moment of the past, and ended."""
    for rows in batch:
        tx.update("jobs", ["id"], rows)
    return [None] * len(batch)


@pytest.fixture
def tuning(store: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PoolTuning:
    """240 ended jobs of six users, submitted in four days until two days ago (other numbers: of the test); one of the slowest user waits
    for the only GPU."""
    count, days = getattr(request, "param", (240, 4.0))
    store.write(hello, Runner(Client(), "node", 1).greeting())
    rng = np.random.default_rng(0)
    users = rng.integers(0, len(SECONDS), count).tolist()
    accepted = store.write(submit, SubmitRequest(submission(*(of_user(n, user) for n, user in enumerate(users))), "test"))
    moments = np.sort(rng.uniform(2.0, 2.0 + days, count))[::-1] * 86400.0
    now = time.time()
    rows = []
    for job, user, ago in zip([one["id"] for one in accepted], users, moments.tolist(), strict=True):
        took = SECONDS[user] * float(rng.uniform(0.9, 1.1))
        begun = now - ago
        rows.append(
            {
                "id": job,
                "state": "completed",
                "submitted_at": begun,
                "finished_at": begun + took,
                "run_time": took,
            }
        )
    store.write(end, rows)
    store.write(submit, SubmitRequest(submission(of_user(1000, 5)), "test"))
    scheduling = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault(name="srtf")))
    scheduling.reload()
    made = PoolTuning(store, scheduling, Tasks(lambda *_: None))
    asked = made._requests.request

    def patiently(request: PoolRequest) -> tuple[SearchRequest, StoredModel, str]:
        """On a machine that may be busy: its real time has passed there before the first trial."""
        found, stored, words = asked(request)
        return dataclasses.replace(found, seconds=patient(found.seconds)), stored, words

    monkeypatch.setattr(made._requests, "request", patiently)
    return made


def answered(tuning: PoolTuning, trials: int = 2) -> dict[str, Any]:
    until(lambda: tuning.searches.busy is None, 60)
    tuning.begin(PoolRequest("default", dry_run=True, trials=trials, period=60.0, by="somebody"))
    answer: dict[str, Any] = until(lambda: (found := tuning.answer("default"))["state"] != "searching" and found, 120)
    assert answer["state"] == "done", answer
    return answer


@pytest.mark.slow
def test_durations_that_nobody_told_are_predicted_and_the_predictor_is_of_a_day(
    tuning: PoolTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    first = answered(tuning)
    assert first["durations"].startswith("durations are predicted, the range right in ") and "(last " in first["durations"]
    assert 14400.0 < first["objective_before"] < 50000.0  # drawn from the range of the user's jobs, above 4 h; the pool's median is 3 000 s
    learnt = tuning._requests._predictors["default"]
    assert answered(tuning)["durations"] == first["durations"] and tuning._requests._predictors["default"] is learnt
    day_later = time.time() + 86400.0
    monkeypatch.setattr(tuning._requests, "_clock", lambda: day_later)
    answered(tuning)
    assert tuning._requests._predictors["default"][1] == day_later


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [(60, 0.5)], indirect=True)
def test_the_causal_model_of_a_pool_learns_from_every_search(tuning: PoolTuning) -> None:
    """Until 120 configurations were simulated it only collects them: a dry run's too, and a restart loses none."""
    pytest.importorskip("causallearn")
    samples = 0
    for _ in range(2):
        words = answered(tuning, trials=8)["model"]
        assert words == f"none: it is learnt once searches have simulated 120 configurations; so far {samples}; nothing was rejected"
        ((stored,),) = tuning._store.rows("policy/causal_model", "default", "srtf", "jct", version_of(registry.loaded("srtf")))
        samples, before = len(json.loads(stored)["samples"]["target"]), samples
        assert samples > before
