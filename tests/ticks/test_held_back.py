"""The guard that a job waits for: which, whom it protects, and until when."""

from __future__ import annotations

import math

import pytest
from stoker.engine.scheduling.guards import Evictions, PreemptionLimits
from stoker.engine.scheduling.held_back import HeldBack, held_back
from stoker.policies import registry
from views import NOW, Job, make_view

LIMITS = PreemptionLimits(min_run_time=60, max_preemptions=3, cooldown=300)


def guard(*jobs: Job, policy: str = "priority", gave_way: dict[tuple[int, int], float] | None = None, gpus: int = 2) -> HeldBack | None:
    view = make_view([gpus], jobs)
    return held_back(jobs[-1].id, registry.create(policy, {}), view, LIMITS, Evictions(gave_way or {}))


def test_the_minimum_run_time_of_the_victim_that_may_be_stopped_last() -> None:
    jobs = [Job(1, held=(0,), lease_time=3), Job(2, held=(1,), lease_time=20), Job(3, gpus=2, priority=10)]
    assert guard(*jobs) == HeldBack("job 1 has run for less than 60 s and is not stopped before", NOW + 57)


def test_where_one_suffices_it_is_the_one_that_may_be_stopped_first() -> None:
    jobs = [Job(1, held=(0,), lease_time=20), Job(2, held=(1,), lease_time=3), Job(3, priority=10)]
    assert guard(*jobs) == HeldBack("job 1 has run for less than 60 s and is not stopped before", NOW + 40)


def test_a_budget_that_is_spent_lasts_as_long_as_its_job() -> None:
    jobs = [Job(1, held=(0,), lease_time=500, preemptions=3), Job(3, priority=10)]
    assert guard(*jobs, gpus=1) == HeldBack("job 1 has been preempted 3 times and is not preempted again", math.inf)


def test_the_cooldown_of_who_gave_way_lately() -> None:
    jobs = [Job(1, held=(0,), lease_time=100), Job(3, priority=10)]
    assert guard(*jobs, gpus=1, gave_way={(3, 1): NOW - 100}) == HeldBack(
        "gave way to job 1 less than 300 s ago and may not displace it yet", NOW + 200
    )
    held = guard(*jobs, gpus=1, gave_way={(1, 3): NOW - 50})
    assert held is not None and held.until == NOW + 250 and "job 1 gave way to it less than 300 s ago" in held.text


@pytest.mark.parametrize(
    ("jobs", "policy"),
    [
        ([Job(1, held=(0,), lease_time=500), Job(2, held=(1,), lease_time=500), Job(3, priority=10)], "priority"),  # may be stopped now
        ([Job(1, held=(0,), lease_time=3), Job(3, priority=10)], "priority"),  # one is free
        (
            [Job(1, held=(0,), lease_time=3, priority=10), Job(2, held=(1,), lease_time=3), Job(3, gpus=2, priority=10)],
            "priority",
        ),  # equals
        ([Job(1, held=(0,), lease_time=3), Job(2, held=(1,), lease_time=3), Job(3, priority=10)], "fifo"),  # displaces nobody
        ([Job(1, held=(0,), stopping=True), Job(2, held=(1,), stopping=True), Job(3, priority=10)], "priority"),
        ([Job(1, held=(0,), lease_time=3), Job(2, held=(1,), lease_time=3), Job(3, gpus=3, priority=10)], "priority"),  # impossible
    ],
)
def test_no_guard_where_none_holds_it_back(jobs: list[Job], policy: str) -> None:
    assert guard(*jobs, policy=policy) is None
