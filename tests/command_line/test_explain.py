"""What `explain` says of deadlines, of who holds the GPUs, and of jobs that stop at a metric: from the tables, and in words."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from stoker.engine.cli.jobs.job import _frees, deadline_line
from stoker.engine.forecast.explain import explain
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction

NOW = 1_700_000_000.0


def put(tx: Transaction, batch: Sequence[Mapping[str, Sequence[dict[str, Any]]]]) -> list[None]:
    for rows in batch:
        for table, given in rows.items():
            for row in given:
                tx.insert(table, [row])
    return [None] * len(batch)


def job(number: int, state: str, **values: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "id": number, "name": f"job{number}", "kind": "train", "pool": "default", "owner": "ann", "state": state, "state_since": now - 50,
        "state_reason": "so", "priority": 0, "held": False, "gpus_min": 1, "gpus_max": 1, "gpu_memory": 0, "demand": "best-effort",
        "model": "m", "submitted_at": now - 100, "attempts": 0, "failures": 0, "preemptions": 0, "cancel_requested": False, "run_time": 0.0,
        "attained": 0.0, "labels": "{}", "spec": "{}", **values,
    }  # fmt: skip


def lease(number: int, of: int, **values: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "id": number, "job_id": of, "attempt": 1, "gpu_count": 1, "state": "running", "granted_at": now - 10, "started_at": now - 10,
        "policy": "fifo", **values,
    }  # fmt: skip


def waits(of: int, est_start: float | None) -> dict[str, Any]:
    return {"job_id": of, "code": "resources", "reason": "waits", "position": 1, "est_start": est_start, "updated_at": time.time()}


def test_of_a_deadline_it_says_which_is_not_known(store: Store) -> None:
    now = time.time()
    timed = {"demand": "strict", "deadline": now + 100}
    rows = {
        "jobs": [
            job(1, "pending", est_duration=60.0, **timed),
            job(2, "pending", **timed),
            job(3, "pending", est_duration=60.0, **timed),
            job(4, "pending", est_duration=60.0, **timed),
            job(5, "running", est_duration=60.0, lease_id=1, **{**timed, "deadline": now - 33}),
        ],
        "leases": [lease(1, 5)],
        "waiting": [waits(1, None), waits(2, now + 10), waits(3, now + 10), waits(4, now + 50)],
    }
    store.write(put, rows)
    verdicts = [explain(store, number)["deadline"]["verdict"] for number in range(1, 6)]
    assert verdicts[0] == "not known: nothing tells yet when it starts"
    assert verdicts[1] == "not known: nothing tells yet how long it takes (give 'estimate', or let it report steps)"
    assert verdicts[2:] == ["on time", "at risk", "missed"]
    assert explain(store, 5)["deadline"]["estimate"] == pytest.approx(now + 50, abs=20)


def test_who_holds_the_gpus_is_told_by_who_gives_them_up_first(store: Store) -> None:
    now = time.time()
    holders = {1: (900.0, None), 2: (None, now + 20), 3: (600.0, now + 40), 4: (35.0, now + 40), 5: (None, None)}
    rows = {
        "jobs": [job(6, "pending"), *(job(n, "running", lease_id=n, est_duration=end) for n, (end, _) in holders.items())],
        "leases": [lease(n, n, expires_at=end) for n, (_, end) in holders.items()],
    }
    store.write(put, rows)
    blockers = explain(store, 6)["blockers"]
    assert [row["id"] for row in blockers] == [2, 4, 3, 1, 5]  # job 4 has run for 10 s of its 35
    said = {row["id"]: _frees(row, now) for row in blockers}
    assert said[2] == "lease ends in 20s" and said[3] == "lease ends in 40s"
    assert said[1].startswith("in 14m") and said[4].startswith("in 2") and said[5] == "–"


@pytest.mark.parametrize(
    ("state", "estimate", "verdict", "words"),
    [
        ("completed", -12, "met", ": met 12s before"),
        ("completed", 40, "missed", ": missed by 40s"),
        ("cancelled", 40, "missed", ": missed by 40s"),
        ("cancelled", -40, "missed", ": missed: it was cancelled 40s before"),
        ("failed", -40, "missed", ": missed: it failed 40s before"),
        ("running", 56 + 33, "missed", " (33s ago): missed; it should be done in 56s"),
        ("pending", None, "missed", " (33s ago): missed"),
    ],
    ids=["met", "late", "cancelled-late", "cancelled-early", "failed-early", "overdue", "overdue-unknown"],
)
def test_what_became_of_a_deadline(state: str, estimate: float | None, verdict: str, words: str) -> None:
    at = NOW - 33
    line = deadline_line({"at": at, "estimate": None if estimate is None else at + estimate, "verdict": verdict}, state, NOW)
    assert line.startswith("deadline ") and line.endswith(words)
    assert "should" not in line or state == "running"


def test_a_deadline_ahead_is_told_with_the_expected_end() -> None:
    deadline = {"at": NOW + 60, "estimate": NOW + 90, "verdict": "at risk"}
    assert deadline_line(deadline, "pending", NOW).endswith(" (in 1m), it should be done in 1m: at risk")
    assert deadline_line({**deadline, "estimate": None, "verdict": "not known: x"}, "pending", NOW).endswith(" (in 1m): not known: x")


@pytest.mark.parametrize(("step", "told"), [(400, (450, 400, 1450)), (533, (533, 533, 1450)), (1600, (1600, 1600, 1600))])
def test_a_metric_is_not_expected_at_a_step_that_has_passed(store: Store, step: int, told: tuple[int, int, int]) -> None:
    now = time.time()
    spec = '{"stop": {"metric": "accuracy", "target": 0.9}}'
    fitted = {"at_step": 300, "iterations": 450, "low": 350, "high": 1450, "probability": 0.8, "points": 9, "seconds": 0.1}
    rows = {
        "jobs": [job(1, "running", spec=spec, total_steps=5000, lease_id=1)],
        "leases": [lease(1, 1)],
        "progress": [{"job_id": 1, "step": step, "seconds_per_step": 1.0, "updated_at": now}],
        "iteration_estimates": [{"job_id": 1, "updated_at": now, **fitted}],
    }
    store.write(put, rows)
    found = explain(store, 1)["expected"]
    assert (found["iterations"], found["low"], found["high"]) == told
    (outlook,) = store.objects("api/outlook", 1)
    assert math.isclose(outlook["remaining"], told[0] - step), "what is left is not less than nothing"


def test_one_that_has_been_given_gpus_is_not_said_to_back_off(store: Store) -> None:
    """What is read after the job's state may be of its next attempt."""
    late = {**waits(1, None), "code": "backoff", "reason": "backs off after a failed attempt until 10:00:00 UTC"}
    store.write(put, {"jobs": [job(1, "assigned", lease_id=1, attempts=2)], "leases": [lease(1, 1, state="granted")], "waiting": [late]})
    told = explain(store, 1)
    assert told["waiting"] is None and told["summary"] == "assigned so, attempt 2"
