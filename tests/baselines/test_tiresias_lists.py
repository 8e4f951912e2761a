"""Tiresias beside a plain loop that keeps lists, job by job, as the program published with it does: equal lists at every decision.

The averages that the program prints are in tests/simulation/test_simulator_peers.py.
"""

from __future__ import annotations

import dataclasses
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected import peer_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Row, run, workload
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import LARGEST_MEMORY, check
from stoker.engine.sim.workload import Workload
from stoker.policies import registry
from stoker.policies.contract import Memory, Phase, Plan, View
from stoker.policies.queues import queue_lists
from views import NOW, Job, make_view

TRACES = os.environ.get("STOKER_TRACES")
Lists = list[list[int]]
JUST_AFTER = 0.002  #: seconds; events of the traces are further apart


@dataclass
class Waits:
    """A job of the loop."""

    gpus: int
    left: float
    served: float = 0.0
    queue: int = 0


def by_lists(jobs: Sequence[Row], gpus: int, limits: Sequence[float], *, by_time: bool) -> tuple[list[tuple[float, Lists]], list[float]]:
    """The lists from each moment on, and when jobs end.

    At each moment those that have ended leave, those that come go to the end of the first list, and those that reach the limit of their
    list, in the order of their submission, to the end of the next one. Then the lists are gone through from the front: who fits runs.
    At last those that run are put before those that wait, list by list.
    """
    course: list[tuple[float, Lists]] = []
    ended = [0.0] * len(jobs)
    lists: Lists = [[] for _ in range(len(limits) + 1)]
    at_hand: dict[int, Waits] = {}
    running: set[int] = set()
    now, arrived = 0.0, 0
    while arrived < len(jobs) or at_hand:
        moments = [jobs[arrived][0]] if arrived < len(jobs) else []
        for number in running:
            job = at_hand[number]
            moments.append(now + job.left)
            if job.queue < len(limits):
                moments.append(now + (limits[job.queue] - job.served) / (1 if by_time else job.gpus))
        passed, now = min(moments) - now, min(moments)
        for number in sorted(running):
            job = at_hand[number]
            job.left -= passed
            job.served += passed * (1 if by_time else job.gpus)
            if job.left <= 1e-7:
                ended[number] = now
                lists[job.queue].remove(number)
                running.remove(number)
                del at_hand[number]
        while arrived < len(jobs) and jobs[arrived][0] <= now:
            at_hand[arrived] = Waits(jobs[arrived][2], jobs[arrived][1])
            lists[0].append(arrived)
            arrived += 1
        for number in sorted(running):
            job = at_hand[number]
            if job.queue < len(limits) and job.served >= limits[job.queue] - 1e-6:
                lists[job.queue].remove(number)
                job.queue += 1
                lists[job.queue].append(number)
        free, running = gpus, set()
        for one in lists:
            for number in one:
                if at_hand[number].gpus <= free:
                    free -= at_hand[number].gpus
                    running.add(number)
        lists = [[job for job in one if job in running] + [job for job in one if job not in running] for one in lists]
        course.append((now, [list(one) for one in lists]))
    return course, ended


def written(memory: Memory) -> Lists:
    """The lists that were kept."""
    assert memory is not None
    lists: Lists = []
    for text in memory["lists"]:
        spans = [part.split("-") for part in text.replace("|", " ").split()]
        lists.append([job for span in spans for job in range(int(span[0]), int(span[-1]) + 1)])
    return lists


def agrees(jobs: Workload, gpus: int, **config: Any) -> int:
    """The number of decisions, at all of which the lists are those of the loop, as are all ends of jobs."""
    policy = registry.create("tiresias", config)
    decided: dict[float, Lists] = {}

    def observe(view: View, plan: Plan, _: Any) -> None:
        if (view.jobs.phase == Phase.PENDING).any():
            decided[view.now] = written(plan.memory)

    result = run(jobs, policy, f"1x{gpus}", observer=observe)
    rows = list(zip(jobs.submitted.tolist(), jobs.duration.tolist(), jobs.gpus_min.tolist(), strict=True))
    course, ended = by_lists(rows, gpus, policy.config.thresholds, by_time=config.get("priority") == "time")
    moments = [moment for moment, _ in course]
    for now, lists in decided.items():
        expected = course[bisect_right(moments, now + JUST_AFTER) - 1][1]
        assert lists + [[]] * (len(expected) - len(lists)) == expected, f"at {now}"
    np.testing.assert_allclose(result.fates.ended, ended, rtol=0, atol=0.01)
    return len(decided)


def crowded(seed: int, jobs: int = 250) -> list[Row]:
    """Whole tens of seconds, so that much happens at one moment."""
    rng = np.random.default_rng(seed)
    rows = [(10.0 * rng.integers(0, 900), 10.0 * rng.integers(1, 90), int(rng.choice([1, 1, 2, 4, 8]))) for _ in range(jobs)]
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize(
    "config",
    [
        {"threshold_1": 200.0, "threshold_2": 800.0},
        {"threshold_1": 100.0, "threshold_2": 400.0, "priority": "time"},
        {"queues": 1},
        {"queues": 5, "threshold_1": 50.0, "threshold_2": 200.0, "threshold_3": 800.0, "threshold_4": 3200.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled(4)
def test_crowded(seed: int, config: dict[str, Any]) -> None:
    assert agrees(workload(crowded(seed)), 8, **config) > 200


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.sampled_from([1, 1, 2, 4])), min_size=1, max_size=12),
    queues=st.integers(1, 4),
    priority=st.sampled_from(["service", "time"]),
)
@settings(max_examples=100)
def test_a_few_jobs(rows: list[tuple[int, int, int]], queues: int, priority: str) -> None:
    jobs = workload(sorted((10.0 * at, 10.0 * long, gpus) for at, long, gpus in rows))
    agrees(jobs, 4, queues=queues, priority=priority, threshold_1=40.0, threshold_2=80.0, threshold_3=320.0)


@pytest.mark.skipif(not TRACES, reason="STOKER_TRACES does not name the directory of the traces")
@pytest.mark.parametrize(
    ("trace", "gpus", "priority"),
    [
        pytest.param("philly_11cb48_2w", 8, "service", marks=pytest.mark.slow),
        pytest.param("itp01", 64, "service", marks=pytest.mark.nightly),
        pytest.param("itp01", 64, "time", marks=pytest.mark.nightly),
        pytest.param("itp06", 128, "service", marks=pytest.mark.nightly),
    ],
)
def test_real_traces(trace: str, gpus: int, priority: str) -> None:
    assert TRACES is not None
    assert agrees(peer_workload(Path(TRACES), trace), gpus, priority=priority) > 2000


# What is kept


def kept(*of_queues: str, **config: Any) -> dict[str, Any]:
    """Lists of these jobs, by the rule of a configuration."""
    settings = registry.create("tiresias", config).config
    return {"lists": list(of_queues), "rule": [float(settings.priority == "time"), settings.starve_limit, *settings.thresholds]}


def decide(jobs: Sequence[Job], memory: Any, gpus: int = 1, **config: Any) -> Plan:
    view = dataclasses.replace(make_view([gpus], jobs), memory=memory)
    return check(registry.create("tiresias", config).plan(view), view)


def ran(number: int, seconds: float, **facts: Any) -> Job:
    """A job of one GPU that has run for so long, within one lease where it still runs."""
    return Job(number, run_time=seconds, lease_time=seconds if "held" in facts else 0.0, **facts)


def test_jobs_that_sank_while_nobody_waited_stand_in_the_order_in_which_they_did() -> None:
    """3 sank before 1, and 2 at the moment at which 1 did; nobody was asked then, as all ran."""
    jobs = [ran(1, 3300.0, held=(0,)), ran(2, 3300.0, held=(1,)), ran(3, 3400.0, held=(2,)), Job(4, gpus=2, submitted=NOW)]
    answer = decide(jobs, kept("1-3|"), gpus=3)
    assert answer.memory == kept("4|", "3|1-2")
    assert sorted(answer.preempt) == [1, 2]


def test_who_may_not_be_stopped_as_it_sinks_gives_way_once_it_may() -> None:
    """1 sinks to where 2 waits, within its first minute; 3 comes then, and 1 is not put before 2 by any of that."""
    jobs = [ran(1, 40.0, held=(0,)), ran(2, 4000.0)]
    protected = protect(
        dataclasses.replace(make_view([1], jobs), memory=kept("1|", "|2", threshold_1=30.0)), PreemptionLimits(min_run_time=60.0)
    )
    policy = registry.create("tiresias", {"threshold_1": 30.0})
    first = policy.plan(protected)
    assert (list(first.preempt), first.memory) == ([], kept("|", "|2 1", threshold_1=30.0))
    later = [ran(1, 60.0, held=(0,)), jobs[1], Job(3, gpus=2, submitted=NOW)]
    second = policy.plan(dataclasses.replace(make_view([1], later), memory=first.memory))
    assert (list(second.preempt), second.memory) == ([1], kept("|3", "2|1", threshold_1=30.0))


def test_a_job_that_starves_goes_to_the_end_of_the_highest_queue() -> None:
    """2 has waited twice as long as it has run; 3 came before that moment, 4 at it, and who comes goes first."""
    starving = ran(2, 4000.0, submitted=NOW - 12_000)
    jobs = [ran(1, 100.0, held=(0,)), starving, Job(3, submitted=NOW - 1), Job(4, submitted=NOW)]
    assert decide(jobs, kept("1|3", "|2", starve_limit=2.0), starve_limit=2.0).memory == kept("1|3-4 2", starve_limit=2.0)


def test_a_job_that_was_away_comes_to_the_end_and_one_that_has_gone_leaves_its_place() -> None:
    jobs = [ran(1, 4000.0, held=(0,)), ran(2, 4000.0), ran(4, 4000.0)]
    assert decide(jobs, kept("|", "1|4 3")).memory == kept("|", "1|4 2")


def test_other_thresholds_displace_nobody_within_a_queue() -> None:
    """1 to 4 stood in three queues and now stand in one; the one that runs goes first, the others as they stood."""
    jobs = [ran(1, 8000.0, held=(0,)), ran(2, 10.0, gpus=2), ran(3, 4000.0), ran(4, 4000.0)]
    before = decide(jobs, kept("|2", "|4 3", "1|"), queues=3)
    assert list(before.preempt) == [1]
    merged = decide(jobs, kept("|2", "|4 3", "1|"), queues=1)
    assert not merged.preempt
    assert merged.memory == kept("1|2 4 3", queues=1)
    # And the other way: what one queue held is dealt to three. 3 and 4 keep their order.
    assert decide(jobs, kept("1|2 4 3", queues=1), queues=3).memory == kept("|2", "4|3", "|1")


@pytest.mark.parametrize(
    "memory",
    [
        None,
        {"entered": {"2": [1, NOW - 900.0], "3": [1, NOW]}},  # of a version that kept moments
        {"lists": "1-9|", "rule": 3},
        {"lists": {"0": "1|"}},
        {"lists": ["1-99999999999999999999999|2"], "rule": [0.0, 0.0, 3250.0, 7200.0]},
        {"lists": ["1-40000|", "1-40000|"]},
        {"lists": [["1"], None], "rule": [0.0, 0.0, 3250.0, 7200.0]},
        {"lists": ["x-y|", "1--2|"]},
        {"lists": ["1", "|3|2|"]},
        {"lists": ["9-1|", "|-5", "1e3|"]},
        ["1"],
    ],
    ids=str,
)
def test_what_is_not_lists_is_as_nothing_at_first_who_runs_stands_before_who_waits(memory: Any) -> None:
    jobs = [ran(1, 4000.0, submitted=2), ran(2, 4000.0, held=(0,), submitted=3), ran(3, 4000.0, submitted=1), Job(5, gpus=2)]
    answer = decide(jobs, memory)
    assert not answer.preempt
    assert answer.memory == kept("|5", "2|3 1")


def test_a_job_that_stands_twice_or_in_a_queue_that_there_is_no_more_has_one_place() -> None:
    jobs = [ran(1, 4000.0, held=(0,)), ran(2, 4000.0), ran(3, 4000.0)]
    assert decide(jobs, kept("|", "1|3 1-3", "|", "|", "2|3")).memory == kept("|", "1|3 2")


def test_ten_thousand_jobs_are_kept_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.random.default_rng(0).permutation(np.arange(10_000_000, 10_010_000)).tolist()
    jobs = [ran(1, 4000.0, held=(0,)), *(ran(job, 4000.0) for job in sorted(order)), Job(10_020_000, gpus=2)]
    texts = " ".join(map(str, order))
    answer = decide(jobs, kept("|", f"1|{texts}"))
    assert answer.memory == kept("|10020000", f"1|{texts}")
    assert len(answer.memory["lists"][1]) < LARGEST_MEMORY / 10
    monkeypatch.setattr(queue_lists, "MOST_LISTED_JOBS", 3)  # and never more than a plan may keep: the last of the lowest queue come anew
    assert decide(jobs, None).memory == kept("|10020000", "1|10000000")


def test_jobs_that_came_one_after_the_other_are_one_range() -> None:
    jobs = [ran(1, 10.0, held=(0,)), *(Job(job) for job in range(2, 5000))]
    assert decide(jobs, kept("1|2-4000")).memory == kept("1|2-4999")


def test_what_has_not_changed_is_not_written_anew() -> None:
    jobs = [ran(1, 10.0, held=(0,)), Job(2)]
    view = dataclasses.replace(make_view([1], jobs), memory=kept("1|2"))
    assert registry.create("tiresias", {}).plan(view).memory is view.memory
