"""UniSched: which deadlines are given up, on estimates that may be wrong, and what becomes of their jobs (002 ch. 5.3.2.2 and 5.3.3.2)."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from stoker.policies import registry
from stoker.policies.contract import Plan, View
from stoker.policies.queues.laxity import next_deadline
from stoker.policies.unisched.roles import LEAST_CHANCE, profiling_reward, roles_of
from views import NOW, Job, given, make_view, reasons

EARLY = 0.17  #: standard error of the logarithm of a first estimate


def plan(view: View, **config: Any) -> Plan:
    return registry.create("unisched", config).plan(view)


def strict(job: int, remaining: float, deadline: float, **more: Any) -> Job:
    return Job(job, remaining=remaining, tiers=((NOW + deadline, 100.0),), **more)


def uncertain(view: View, *spread: float) -> View:
    return dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, uncertainty=np.array(spread)))


def chances(view: View, **config: Any) -> list[float]:
    return roles_of(view, registry.create("unisched", config).config).chance.tolist()


def test_a_first_estimate_that_says_late_does_not_give_the_deadline_up():
    view = make_view([1], [strict(1, 1100, 1000), Job(2, remaining=50.0)])
    assert given(plan(view)) == {2: (0,)}, "nothing says how wrong the estimate is"
    assert given(plan(uncertain(view, EARLY, math.nan))) == {1: (0,)}


def test_nor_does_it_where_it_is_the_maximum_that_is_asked_for():
    view = uncertain(make_view([1], [strict(1, 1100, 1000), Job(2, remaining=50.0)]), EARLY, math.nan)
    answer = plan(view, iterations="maximum")
    assert given(answer) == {2: (0,)}
    assert reasons(answer) == {1: "late"}


def test_what_is_certain_comes_before_what_may_be():
    view = make_view([1], [strict(1, 1100, 1000), strict(2, 900, 1000)])
    assert given(plan(uncertain(view, EARLY, EARLY))) == {2: (0,)}


def test_no_estimate_is_that_wrong():
    view = uncertain(make_view([1], [strict(1, 2000, 1000), Job(2, remaining=50.0)]), EARLY, math.nan)
    answer = plan(view)
    assert given(answer) == {2: (0,)}
    assert reasons(answer) == {1: "late"}


@pytest.mark.parametrize("late", [1.01, 1.1, 1.3])
def test_the_chance_is_that_of_an_error_of_that_size_up_or_down(late):
    view = uncertain(make_view([4], [strict(1, 1000 * late, 1000), strict(2, 900, 1000), Job(3, remaining=1.0)]), *[EARLY] * 3)
    doubtful, sure, best_effort = chances(view)
    assert doubtful == pytest.approx(2 * NormalDist(sigma=EARLY).cdf(-math.log(late)))
    assert doubtful > LEAST_CHANCE
    assert (sure, best_effort) == (1.0, 0.0)


def test_who_must_not_pause_any_more_still_ends_by_its_deadline():
    """Not a rounding later: this moment and the time until then add up to 2033.7000000000003."""
    now, deadline = 423.4, 2033.7
    assert now + (deadline - now) > deadline
    view = uncertain(make_view([1], [Job(1, remaining=1100.0, tiers=((deadline, 100.0),))], now=now), EARLY)
    left = roles_of(view, registry.create("unisched", {}).config).left
    assert next_deadline(view.jobs, now + left).tolist() == [deadline]


def test_less_than_nothing_is_left_by_a_rounding():
    assert given(plan(make_view([1], [strict(1, -1e-9, 1000)]))) == {1: (0,)}


def test_of_soft_deadlines_the_last_counts():
    soft = Job(1, remaining=1100.0, tiers=((NOW + 1000, 80.0), (NOW + 1200, 50.0)))
    assert chances(uncertain(make_view([1], [soft]), EARLY)) == [1.0]


def test_a_job_that_has_lost_its_deadline_comes_after_best_effort_jobs():
    view = make_view([1], [strict(1, 3000, 1000), Job(2, remaining=20_000.0)])
    assert given(plan(view)) == {2: (0,)}
    assert given(plan(view, late=1.0)) == {1: (0,)}, "or among them, if that is asked for"
    assert given(plan(make_view([2], [strict(1, 3000, 1000), Job(2, remaining=20_000.0)]))).keys() == {1, 2}


def test_it_does_not_come_after_those_that_are_far_longer():
    """What each is worth falls with its length, and ``late`` is a share of that: with 0.01 a hundredfold length is as little."""
    jobs = [strict(1, 60, 30), Job(2, remaining=400_000.0)]
    assert given(plan(make_view([1], jobs))) == {1: (0,)}
    assert given(plan(make_view([1], jobs), late=0.0)) == {2: (0,)}


def test_a_doubtful_estimate_takes_its_slack_for_its_doubt():
    """An estimate that is too short leaves a job to others until it is too late."""
    view = make_view([1], [strict(1, 1100, 2400), Job(2, remaining=50.0)])
    assert given(plan(uncertain(view, 0.0, math.nan))) == {2: (0,)}
    assert given(plan(uncertain(view, 0.6, math.nan))) == {1: (0,)}
    assert given(plan(uncertain(view, math.inf, math.nan))) == {1: (0,)}
    assert given(plan(uncertain(view, 0.6, math.nan), caution=0.0)) == {2: (0,)}


@pytest.mark.parametrize("remaining", [5000.0, math.inf])
def test_an_estimate_of_which_nothing_is_certain(remaining):
    view = uncertain(make_view([1], [strict(1, remaining, 1000)]), math.inf)
    roles = roles_of(view, registry.create("unisched", {}).config)
    assert roles.chance.tolist() == ([1.0] if math.isfinite(remaining) else [0.0])
    assert roles.left[0] < 1000 or roles.lost[0], "it is never taken to need longer than its deadline allows, and to meet it"


def test_of_lost_jobs_the_shortest_goes_first():
    view = make_view([1], [strict(1, 9000, 1000), strict(2, 3000, 1000)])
    assert given(plan(view)) == {2: (0,)}


def test_a_profiling_run_finds_its_two_gpus_on_one_node():
    """Who renews a lease stays where it is, and would leave one GPU on each node."""
    held = [Job(gpu, remaining=600.0, held=(gpu,), lease_end=NOW) for gpu in (0, 1, 3, 4)]
    answer = plan(make_view([3, 3], [*held, Job(5, gpus=3, profile_gpus=2)]))
    assert len({gpu // 3 for gpu in answer.allocations[5].gpus}) == 1
    assert set(given(answer)) == {0, 1, 3, 4, 5}, "all of them run"


@pytest.mark.parametrize(("minutes", "worth"), [(20, 100.0), (40, 100.0), (400, 10.0), (40_000, 1.0)])
def test_a_profiling_run_is_worth_what_waiting_through_a_crowd_may_lose(minutes, worth):
    view = make_view([1], [Job(1, profile_gpus=1, tiers=((NOW + 60.0 * minutes, 100.0),)), Job(2, profile_gpus=1)])
    assert profiling_reward(view, registry.create("unisched", {}).config) == pytest.approx([worth, 1.0])
    assert profiling_reward(view, registry.create("unisched", {"urgent_profiling": False}).config).tolist() == [1.0, 1.0]
