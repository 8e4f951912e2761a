"""UniSched and Chronus: what a cycle decides, worked out by hand, and what holds for every view (002 ch. 5)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.contract import Phase, Plan, Policy, Profile, View
from stoker.policies.estimate.throughput import Throughput
from stoker.policies.unisched.modelling import model, standing_of
from stoker.policies.unisched.roles import roles_of
from stoker.policies.unisched.room import movers, shares
from stoker.policies.unisched.solver.problem import Problem
from views import GIB, NOW, Job, Kept, complete, given, make_view, reasons, views

BOUNDARY = 999_900.0  #: the cycle that NOW is in began here and lasts 300 s
END = BOUNDARY + 300.0

#: 1 s of computation; a gang of 6 takes 1.05 s within a node and 1.5 s over several.
VGG = Profile("vgg", Throughput.of_iteration(1.0, 0.01, 0.1))

NAMES = [
    ("unisched", {}),
    ("unisched", {"placement": "consolidated"}),
    ("unisched", {"profiler": "static"}),
    ("unisched", {"objective": False}),
    ("unisched", {"waiting_cost": 50.0}),
    ("chronus", {}),
    ("chronus", {"iterations": "estimated", "resumption_aware": True}),
    ("chronus", {"placement": "joint", "best_effort": "joint", "profiler": "unified"}),
]
every_policy = pytest.mark.parametrize(("name", "config"), NAMES, ids=lambda value: value if isinstance(value, str) else "-".join(value))


def make(name: str = "unisched", **config: Any) -> Policy:
    return Kept(registry.create(name, config))


def plan(name: str, view: View, **config: Any) -> Plan:
    return make(name, **config).plan(view)


def all_given(answer: Plan, view: View) -> dict[int, tuple[int, ...]]:
    return {job: allocation.gpus for job, allocation in complete(answer, view).items()}


def strict(job: int, gpus: int, remaining: float, deadline: float, **more: Any) -> Job:
    return Job(job, gpus=gpus, remaining=remaining, tiers=((NOW + deadline, 100.0),), **more)


# What a cycle decides


def test_a_deadline_that_allows_no_delay_comes_before_best_effort():
    view = make_view([2], [Job(1, gpus=2, remaining=60.0), strict(2, 2, 3000, 3100)])
    answer = plan("unisched", view)
    assert given(answer) == {2: (0, 1)}
    assert reasons(answer) == {1: "resources"}


def test_a_deadline_that_allows_some_delay_lets_best_effort_go_first():
    view = make_view([2], [Job(1, gpus=2, remaining=60.0), strict(2, 2, 3000, 9000)])
    answer = plan("unisched", view)
    assert given(answer) == {1: (0, 1)}
    assert reasons(answer) == {2: "planned"}


def test_the_shortest_best_effort_job_comes_first():
    view = make_view([1], [Job(1, remaining=5000.0), Job(2, remaining=50.0), Job(3, remaining=500.0)])
    answer = plan("unisched", view)
    assert given(answer) == {2: (0,)}
    assert list(answer.order) == [3, 1]


def test_of_two_deadlines_that_exclude_each_other_the_larger_reward_is_met():
    soft = Job(2, gpus=2, remaining=3000, tiers=((NOW + 3100, 80.0),))
    answer = plan("unisched", make_view([2], [soft, strict(3, 2, 3000, 3100)]))
    assert given(answer) == {3: (0, 1)}
    assert reasons(answer) == {2: "crowded"}


def test_a_job_aims_at_a_later_step_when_the_first_cannot_be_had():
    """Both cannot end by their first deadline; the one whose later step is worth more waits for it."""
    first = Job(1, gpus=2, remaining=1200, tiers=((NOW + 1300, 100.0), (NOW + 2600, 80.0)))
    second = Job(2, gpus=2, remaining=1200, tiers=((NOW + 1300, 100.0), (NOW + 2600, 20.0)))
    answer = plan("unisched", make_view([2], [first, second]), resumption_aware=False)
    assert given(answer) == {2: (0, 1)}
    assert reasons(answer) == {1: "planned"}


def test_four_gangs_of_six_on_three_nodes_of_eight():
    """002 ch. 5.2.2: Chronus can serve three of them, joint optimisation all four, one of them apart and still in time."""
    jobs = [strict(n, 6, 1000, 1500, profile=0) for n in (1, 2, 3, 4)]
    view = make_view([8, 8, 8], jobs, profiles=[VGG])
    answer = plan("unisched", view)
    assert sorted(given(answer)) == [1, 2, 3, 4]
    nodes = sorted(len({gpu // 8 for gpu in gpus}) for gpus in given(answer).values())
    assert nodes == [1, 1, 1, 3]
    assert len(given(plan("unisched", view, placement="consolidated"))) == 3
    assert len(given(plan("chronus", view, profiler="unified"))) == 3


def test_nobody_is_spread_who_would_be_late_by_it():
    """On several nodes it takes 1.5 / 1.05 times longer, 1429 s: too long for a deadline in 1200 s. One comes late, the others do not."""
    jobs = [strict(n, 6, 1000, 1200, profile=0) for n in (1, 2, 3, 4)]
    answer = plan("unisched", make_view([8, 8, 8], jobs, profiles=[VGG]))
    assert sorted(len({gpu // 8 for gpu in gpus}) for gpus in given(answer).values())[:3] == [1, 1, 1]


def test_a_lost_deadline_is_told_and_the_job_served_as_best_effort():
    view = make_view([1], [strict(1, 1, 5000, 1000), Job(2, remaining=50.0)])
    answer = plan("unisched", view)
    assert given(answer) == {2: (0,)}
    assert reasons(answer) == {1: "late"}
    assert given(plan("unisched", make_view([1], [strict(1, 1, 5000, 1000)]))) == {1: (0,)}


# Profiling


def test_a_new_gang_is_profiled_on_two_gpus_before_any_best_effort_job():
    view = make_view([4], [Job(1, gpus=3, remaining=10.0), Job(2, gpus=4, profile_gpus=2)])
    answer = plan("unisched", view)
    assert answer.allocations[2].profile and len(answer.allocations[2].gpus) == 2
    assert answer.allocations[2].lease_end == NOW + 300.0 + 25.0
    assert reasons(answer) == {1: "resources"}
    check(answer, view)


def test_a_gang_for_several_nodes_is_profiled_on_two():
    view = make_view([8, 8], [Job(1, gpus=16, profile_gpus=2)])
    assert {gpu // 8 for gpu in plan("unisched", view).allocations[1].gpus} == {0, 1}


def test_a_new_single_gpu_job_is_profiled_while_it_trains():
    allocation = plan("unisched", make_view([2], [Job(1, profile_gpus=1)])).allocations[1]
    assert not allocation.profile and allocation.lease_end == NOW + 325.0


def test_deadlines_come_before_profiling():
    view = make_view([2], [strict(1, 2, 3000, 3100), Job(2, gpus=4, profile_gpus=2)])
    assert given(plan("unisched", view)) == {1: (0, 1)}


def test_a_static_profiler_has_gpus_of_its_own():
    jobs = [Job(1, gpus=1, profile_gpus=1), Job(2, gpus=1, profile_gpus=1), *[Job(n, remaining=100.0) for n in range(3, 13)]]
    answer = plan("chronus", make_view([8], jobs), profiler_gpus=2)
    assert {answer.allocations[1].gpus, answer.allocations[2].gpus} == {(6,), (7,)}
    assert sorted(gpu for job, gpus in given(answer).items() for gpu in gpus if job > 2) == [0, 1, 2, 3, 4, 5]
    # A quarter of the pool at most.
    assert reasons(plan("chronus", make_view([4], jobs[:2]), profiler_gpus=16)) == {2: "profiling"}


# Leases


def test_leases_end_with_cycles_and_those_of_deadlines_later():
    answer = plan("unisched", make_view([2], [Job(1, remaining=50.0), strict(2, 1, 3000, 3100)]), slo_leases=3)
    assert answer.allocations[1].lease_end == END
    assert answer.allocations[2].lease_end == END + 600.0
    assert answer.wake_at == END


def test_who_is_chosen_again_keeps_its_gpus():
    running = Job(1, remaining=50.0, held=(1,), lease_time=300.0, lease_end=NOW)
    answer = plan("unisched", make_view([2], [running, Job(2, remaining=5000.0)]))
    assert given(answer) == {1: (1,), 2: (0,)}
    assert answer.allocations[1].lease_end == END


def test_a_lease_that_goes_on_is_not_touched():
    running = Job(1, gpus=2, remaining=50_000.0, held=(0, 1), lease_time=100.0, lease_end=NOW + 200)
    answer = plan("unisched", make_view([2], [running, strict(2, 2, 3000, 3200)]))
    assert not answer.preempt and 2 not in answer.allocations


def test_a_lease_that_has_run_out_gives_way_to_a_deadline():
    running = Job(1, gpus=2, remaining=50_000.0, held=(0, 1), lease_time=300.0, lease_end=NOW)
    view = make_view([2], [running, strict(2, 2, 3000, 3200)])
    answer = plan("unisched", view)
    assert given(answer) == {2: (0, 1)} and list(answer.preempt or ()) == [1]
    check(answer, view)


def test_who_is_not_chosen_goes_on_where_nobody_gets_its_gpus():
    """Without an estimate of its speed the gang of 4 waits; the job that runs on one of its GPUs is not stopped for nothing."""
    running = Job(1, remaining=50_000.0, held=(0,), lease_time=300.0, lease_end=NOW)
    assert given(plan("unisched", make_view([4], [running, Job(2, gpus=8, remaining=5.0)]))) == {1: (0,)}


def test_between_cycles_gpus_are_filled_and_nobody_is_stopped():
    policy = make()
    long = Job(1, remaining=50_000.0, lease_end=math.inf)
    policy.plan(make_view([2], [long]))
    running = dataclasses.replace(long, held=(0,), lease_time=10.0, lease_end=END)
    later = make_view([2], [running, Job(2, remaining=5.0, submitted=NOW), Job(3, remaining=6.0, submitted=NOW)], now=NOW + 10)
    answer = policy.plan(later)
    assert given(answer) == {2: (1,)} and not answer.preempt
    assert answer.allocations[2].lease_end == END


def test_a_start_that_waits_for_gpus_to_be_freed_is_planned_again():
    policy = make()
    running = Job(1, gpus=2, remaining=50_000.0, held=(0, 1), lease_time=300.0, lease_end=NOW)
    urgent = strict(2, 2, 3000, 3200)
    policy.plan(make_view([2], [running, urgent]))
    stopping = dataclasses.replace(running, stopping=True)
    answer = policy.plan(make_view([2], [stopping, urgent, Job(3, remaining=1.0, submitted=NOW + 1)], now=NOW + 2))
    assert given(answer) == {2: (0, 1)}


def test_a_deadline_that_cannot_wait_for_the_next_cycle_ends_best_effort_leases_early():
    """At 10 s into a cycle of 300 s comes a job of 100 s that must end within 200 s."""
    running = Job(1, gpus=2, remaining=50_000.0, held=(0, 1), lease_time=10.0, lease_end=END)
    urgent = strict(2, 2, 100, 200, submitted=NOW)
    policy = make()
    policy.plan(make_view([2], [dataclasses.replace(running, held=(), lease_end=math.inf)], now=NOW - 10))
    view = make_view([2], [running, urgent])
    answer = policy.plan(view)
    assert given(answer) == {2: (0, 1)} and list(answer.preempt or ()) == [1]
    check(answer, view)
    calm = make(interrupt=False)
    calm.plan(make_view([2], [dataclasses.replace(running, held=(), lease_end=math.inf)], now=NOW - 10))
    assert reasons(calm.plan(view)) == {2: "next-cycle"}


@pytest.mark.parametrize(
    ("minutes", "config", "ended"),
    [(30, {}, [1]), (300, {}, []), (30, {"urgent_profiling": False}, []), (30, {"profiler": "static"}, [])],
    ids=["short", "long", "not urgent", "apart"],
)
def test_a_profiling_run_does_not_wait_for_the_next_cycle_where_that_may_lose_the_deadline(
    minutes: int, config: dict[str, Any], ended: list[int]
):
    """Of a job that must end within half an hour nobody knows whether it needs 15 minutes or 29."""
    policy = make(**config)
    running = Job(1, gpus=4, remaining=50_000.0)
    policy.plan(make_view([4], [running], now=NOW - 10))
    held = dataclasses.replace(running, held=(0, 1, 2, 3), lease_time=10.0, lease_end=END)
    answer = policy.plan(make_view([4], [held, Job(2, profile_gpus=1, tiers=((NOW + 60.0 * minutes, 100.0),), submitted=NOW)]))
    assert list(answer.preempt or ()) == ended
    assert (answer.gap is None) == (not ended), "nothing is decided anew but for it"


def test_a_deadline_that_would_be_lost_is_not_interrupted():
    policy = make()
    first = strict(1, 2, 1000, 1300)
    policy.plan(make_view([2], [first], now=NOW))
    running = dataclasses.replace(first, held=(0, 1), lease_time=10.0, lease_end=END + 300)
    answer = policy.plan(make_view([2], [running, strict(2, 2, 100, 150, submitted=NOW)], now=NOW + 10))
    assert not answer.preempt and reasons(answer) == {2: "crowded"}


@pytest.mark.parametrize("deadline", [1800, 90_000])
def test_a_job_that_came_in_the_middle_of_a_cycle_waits_for_the_next(deadline: float):
    policy = make()
    running = Job(1, remaining=50_000.0)
    policy.plan(make_view([1], [running]))
    held = dataclasses.replace(running, held=(0,), lease_time=10.0, lease_end=END)
    late = strict(2, 1, 100, deadline, submitted=NOW)
    assert reasons(policy.plan(make_view([1], [held, late], now=NOW + 10))) == {2: "next-cycle"}


def test_a_lease_is_longer_than_a_start():
    """5 s before the end of a cycle a best-effort job is let in for the next one too."""
    policy = make()
    policy.plan(make_view([2], [Job(1, remaining=50_000.0)]))
    held = Job(1, remaining=50_000.0, held=(0,), lease_time=10.0, lease_end=END)
    answer = policy.plan(make_view([2], [held, Job(2, remaining=500.0, submitted=NOW)], now=END - 5))
    assert answer.allocations[2].lease_end == END + 300


# Estimates


def test_a_deadline_of_a_job_of_unknown_length_is_not_given_up():
    """By itself it would be taken to need an hour."""
    view = make_view([1], [Job(1, remaining=5.0), Job(2, tiers=((NOW + 400, 100.0),))])
    assert given(plan("unisched", view)) == {2: (0,)}


def test_suspensions_are_counted_in():
    """600 s of work in leases of 60 s until 1200 s: 10 of 20 terms, so 9 x 10/20 = 4.5 suspensions of 30 s are expected."""
    job = Job(1, remaining=600.0, tiers=((NOW + 620, 80.0), (NOW + 1300, 20.0)), overhead=30.0)
    rival = strict(2, 1, 600, 640)
    view = make_view([1], [job, rival])
    answer = plan("unisched", view, be_lease=60.0, slo_leases=1)
    assert given(answer) == {2: (0,)}


def test_the_maximum_of_iterations_is_what_chronus_believes():
    job = Job(1, remaining=1000.0, remaining_most=5000.0, tiers=((NOW + 1500, 100.0),))
    rival = Job(2, remaining=10.0)
    view = make_view([1], [job, rival])
    assert given(plan("unisched", view)) == {1: (0,)}
    assert reasons(plan("chronus", view, profiler="unified")) == {1: "late"}


# The solver


def test_no_time_at_all_still_gives_a_plan_and_says_so():
    jobs = [strict(n, 1 + n % 4, 1000 + 10 * n, 2000 + 13 * n) for n in range(1, 40)]
    policy = make(time_limit=0.0, gap=0.0)
    view = make_view([8, 8], jobs)
    answer = policy.plan(view)
    assert answer.status == "timeout" and answer.allocations
    check(answer, view)
    again = policy.plan(dataclasses.replace(view, now=END))
    assert again.status == "fallback"
    assert given(answer).keys() <= given(again).keys(), "the cycle before is kept"


def test_a_pool_without_gpus():
    answer = plan("unisched", make_view([], [strict(1, 1, 10, 100), Job(2), Job(3, gpus=4, profile_gpus=2)]))
    assert not answer.allocations and reasons(answer).keys() == {1, 2, 3}
    assert set(reasons(answer).values()) == {"no-gpus"}


# Making room


def test_a_gang_takes_whole_nodes_and_a_part():
    assert shares(12, np.array([8, 4, 4])) == [8, 4]
    assert shares(8, np.array([6, 6, 6])) == [6, 2]
    assert shares(3, np.array([8, 8])) == [3]


def test_the_fewest_gpus_move():
    free = np.array([3, 2, 0])
    movable = {0: [(1, 5)], 1: [(2, 2), (3, 4)], 2: [(4, 8)]}
    assert movers([4], free, movable) == [2]
    assert movers([8], free, movable) == [1]
    assert movers([8, 2], free, movable) == [1]
    assert movers([9], free, movable) is None
    assert movers([2], free, movable) == []


def test_a_gang_that_has_cells_enough_but_no_whole_node_moves_who_renews():
    """One GPU is held on each node of four: six are free, and a strict gang of four fits nowhere."""
    one = Job(1, remaining=900.0, held=(0,), lease_time=300.0, lease_end=NOW)
    two = Job(2, remaining=900.0, held=(4,), lease_time=300.0, lease_end=NOW)
    view = make_view([4, 4], [one, two, strict(3, 4, 1000, 1300)])
    answer = plan("unisched", view)
    check(answer, view)
    assert len({gpu // 4 for gpu in answer.allocations[3].gpus}) == 1
    assert len({*answer.allocations[1].gpus, *answer.allocations[2].gpus, *answer.allocations[3].gpus}) == 6


def test_it_moves_who_renews_beside_a_static_profiler_too():
    """The last node is set aside; nine of the others' GPUs are free, and none of them is whole."""
    held = [Job(number, remaining=900.0, held=(4 * number,), lease_time=300.0, lease_end=NOW) for number in range(3)]
    view = make_view([4, 4, 4, 4], [*held, strict(3, 4, 1000, 1300)])
    answer = plan("unisched", view, profiler="static", profiler_gpus=4)
    check(answer, view)
    assert answer.allocations[3].gpus in {tuple(range(first, first + 4)) for first in (0, 4, 8)}
    assert len({gpu for gpus in given(answer).values() for gpu in gpus}) == 7, "all of them run"


def test_gpus_with_much_memory_are_for_who_needs_them():
    """Both strict jobs need the node with 80 GiB, where there is room for one. The best-effort jobs could run anywhere, and came first."""
    memory = [24 * GIB] * 4 + [80 * GIB] * 4
    jobs = [Job(n, remaining=100.0, submitted=0.0) for n in range(1, 5)]
    picky = [dataclasses.replace(strict(n, 4, 1000, 1300), memory=48 * GIB, submitted=9.0) for n in (5, 6)]
    view = make_view([4, 4], [*jobs, *picky], memory=memory)
    answer = plan("unisched", view)
    runs = all_given(answer, view)
    (started,) = runs.keys() & {5, 6}
    assert set(runs[started]) == {4, 5, 6, 7}
    assert {gpu for job in range(1, 5) for gpu in runs[job]} == {0, 1, 2, 3}
    (waits,) = {5, 6} - {started}
    assert reasons(answer) == {waits: "crowded"}, "it is not promised GPUs that are too small for it"


def test_who_renews_makes_room_on_large_gpus():
    memory = [24 * GIB] * 4 + [80 * GIB] * 4
    small = Job(1, remaining=900.0, held=(4,), lease_time=300.0, lease_end=NOW)
    view = make_view([4, 4], [small, dataclasses.replace(strict(2, 4, 1000, 1300), memory=48 * GIB)], memory=memory)
    answer = plan("unisched", view)
    check(answer, view)
    assert set(answer.allocations[2].gpus) == {4, 5, 6, 7}
    assert set(answer.allocations[1].gpus) <= {0, 1, 2, 3}


def test_more_memory_than_any_gpu_has_is_impossible():
    view = make_view([2], [Job(1, memory=48 * GIB), Job(2, remaining=60.0)], memory=[24 * GIB, 0.0])
    assert given(plan("unisched", view)).keys() == {1, 2}, "a GPU whose memory is not known may do"
    view = make_view([2], [Job(1, memory=48 * GIB), Job(2, remaining=60.0)], memory=[24 * GIB] * 2)
    answer = plan("unisched", view)
    assert given(answer).keys() == {2} and reasons(answer) == {1: "impossible"}


def test_a_profiling_run_is_not_renewed_and_a_job_on_other_than_its_gang_gives_way():
    run = Job(1, gpus=4, remaining=900.0, held=(0, 1), lease_time=325.0, lease_end=NOW)
    answer = plan("unisched", make_view([4], [run]))
    assert not answer.allocations and list(answer.preempt or ()) == [1]
    grown = Job(1, gpus=1, gpus_max=8, remaining=9000.0, held=tuple(range(8)), lease_time=500.0)
    answer = plan("unisched", make_view([8], [grown, strict(2, 2, 1000, 1300)]))
    assert given(answer).keys() == {2} and list(answer.preempt or ()) == [1]


def test_a_gang_for_two_nodes_is_profiled_on_one_where_there_is_no_other():
    held = Job(1, gpus=4, remaining=9000.0, held=(0, 1, 2, 3), lease_time=300.0, lease_end=END)
    answer = plan("unisched", make_view([4, 4], [held, Job(2, gpus=8, profile_gpus=2)]))
    assert {gpu // 4 for gpu in answer.allocations[2].gpus} == {1}


# What the optimisation is asked


def asked(view: View, **config: Any) -> Problem:
    made, aside = make(**config).config, np.zeros(len(view.gpus), dtype=bool)
    return model(view, roles_of(view, made), standing_of(view, aside), made, ~aside).problem


def test_a_deadline_in_a_hundred_years_costs_nothing():
    jobs = [strict(n, 1, 1000, 3.2e9, submitted=float(n)) for n in range(1, 30)]
    assert asked(make_view([8], jobs)).tier_leases.max() < 100


@pytest.mark.parametrize(
    ("first", "leases"), [(720.0, 11), (300.0, 17)], ids=["until the first deadline", "until the next one if the work does not fit"]
)
def test_suspensions_are_those_until_the_first_deadline_that_can_be_met(first: float, leases: int):
    """600 s of work within 12 terms of 60 s are expected to take 625 s; within 100 terms they take 998 s, more suspensions among them."""
    job = Job(1, remaining=600.0, tiers=((NOW + first, 100.0), (NOW + 6000, 20.0)), overhead=30.0)
    assert asked(make_view([1], [job]), be_lease=60.0, slo_leases=1).option_leases.tolist() == [leases]


def test_on_more_nodes_than_needed_it_takes_as_many_times_longer():
    """1000 s take 1.5 / 1.05 times as long: 5 leases of 300 s, not 4."""
    problem = asked(make_view([8, 8, 8], [strict(1, 6, 1000, 9000, profile=0)], profiles=[VGG]), slo_leases=1, resumption_aware=False)
    assert problem.option_cells.tolist() == [[0, -1, 0, 1], [6, 0, 0, 0]]
    assert problem.option_leases.tolist() == [4, 5]


def test_who_renews_on_more_nodes_than_needed_stays_there_at_that_speed():
    held = {"held": (0, 1, 2, 8, 9, 10), "lease_time": 300.0, "lease_end": NOW}
    known, unknown = (strict(1, 6, 1000, 9000, profile=profile, **held) for profile in (0, -1))
    for job, leases in ((known, 5), (unknown, 4)):
        problem = asked(make_view([8, 8], [job], profiles=[VGG]), slo_leases=1, resumption_aware=False)
        assert problem.option_cells.tolist() == [[6, 0, 0, 0]]
        assert problem.option_leases.tolist() == [leases]


def test_a_gang_that_takes_the_whole_pool_takes_it_in_one_piece():
    assert asked(make_view([8], [Job(1, gpus=8, remaining=100.0)])).option_cells.tolist() == [[0, 0, 0, 1]]


def test_a_deadline_whose_lease_goes_on_has_its_later_leases_planned():
    """Its lease has 200 s to go of the 900 that it needs; one that needs no more than its lease is no part of it."""
    held = {"held": (0,), "lease_time": 100.0, "lease_end": NOW + 200}
    problem = asked(make_view([2], [strict(1, 1, 900, 3000, **held)]), slo_leases=1, resumption_aware=False)
    assert problem.may_start.tolist() == [False]
    assert problem.first_slot.tolist() == [1]
    assert problem.option_leases.tolist() == [3]
    assert problem.busy.tolist() == [1]
    assert len(asked(make_view([2], [strict(1, 1, 150, 3000, **held)]))) == 0


def test_a_job_that_should_have_ended_holds_its_gpus_now():
    """Its estimate is used up. Until it ends nobody else can have them."""
    held = {"held": (0, 1), "lease_time": 100.0, "lease_end": NOW + 900}
    assert asked(make_view([4], [Job(1, gpus=2, remaining=0.0, **held), Job(2, remaining=50.0)])).busy.tolist() == [2]


@pytest.mark.parametrize("apart", [{}, {"best_effort": "srtf"}, {"profiler": "static"}], ids=["nobody", "best effort", "profiling"])
def test_who_is_served_apart_is_not_asked_for(apart: dict[str, str]):
    view = make_view([8], [Job(1, remaining=50.0), Job(2, profile_gpus=1), strict(3, 1, 100, 900)])
    assert len(asked(view, **apart)) == 3 - len(apart)


def test_without_maxima_of_iterations_the_estimates_are_what_is_believed():
    view = make_view([1], [strict(1, 1, 1000, 1500), Job(2, remaining=10.0)])
    view = dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, remaining_most=None))
    assert given(plan("chronus", view, profiler="unified")) == {1: (0,)}


def test_nothing_is_decided_anew_for_a_deadline_that_runs():
    """Job 2 came within the cycle and has to end before the next one; it runs already."""
    policy = make()
    policy.plan(make_view([3], [Job(1, remaining=900.0)]))
    first = Job(1, remaining=900.0, held=(0,), lease_time=10.0, lease_end=END)
    second = strict(2, 1, 100, 150, held=(1,), lease_time=5.0, lease_end=END)
    later = policy.plan(make_view([3], [first, second, Job(3, remaining=500.0, submitted=NOW)], now=NOW + 10))
    assert (later.gap, later.wake_at) == (None, END)
    assert given(later) == {3: (2,)}


def test_who_needs_much_memory_is_placed_before_larger_gangs_that_do_not():
    memory = [80 * GIB] * 4 + [24 * GIB] * 4
    jobs = [strict(1, 4, 1000, 1300), dataclasses.replace(strict(2, 2, 1000, 1300), memory=48 * GIB)]
    runs = given(plan("unisched", make_view([4, 4], jobs, memory=memory)))
    assert set(runs[1]) == {4, 5, 6, 7}
    assert set(runs[2]) < {0, 1, 2, 3}


def test_a_cycle_begins_at_its_time_but_for_the_rounding():
    policy = make()
    policy.plan(make_view([2], [Job(1, remaining=900.0)]))
    assert policy.plan(make_view([2], [Job(1, remaining=900.0)], now=END - 1e-3)).wake_at == END
    assert policy.plan(make_view([2], [Job(1, remaining=900.0)], now=END - 5e-7)).wake_at == END + 300


# Every view


@every_policy
@for_all(view=views(deadlines=True, profiles=[VGG]))
@pytest.mark.sampled(2)
def test_every_plan_is_valid_complete_and_deterministic(name: str, config: dict[str, Any], view: View):
    answer = plan(name, view, **config)
    check(answer, view)
    runs = all_given(answer, view)
    assert runs == all_given(plan(name, view, **config), view)
    why = reasons(answer)
    schedulable = {job for job, phase in zip(view.jobs.id.tolist(), view.jobs.phase, strict=True) if phase != Phase.STOPPING}
    assert set(why) | set(runs) == schedulable
    assert set(why).isdisjoint(runs)
    assert sorted(answer.order) == sorted(why)


@every_policy
@for_all(view=views(deadlines=True))
@pytest.mark.sampled(2)
def test_protected_jobs_stay(name: str, config: dict[str, Any], view: View):
    view = protect(view, PreemptionLimits(min_run_time=50, max_preemptions=3))
    runs = all_given(plan(name, view, **config), view)
    assert view.jobs.protected is not None
    for row in np.flatnonzero((view.jobs.phase == Phase.ACTIVE) & view.jobs.protected):
        assert runs[int(view.jobs.id[row])] == tuple(view.jobs.allocation(row))


JOBS = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 4000), st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12]), st.integers(0, 3)),
    min_size=1,
    max_size=10,
)


@every_policy
@for_all(jobs=JOBS, costs=st.booleans(), wrong=st.sampled_from([0.0, 0.8]))
@settings(max_examples=8)
@pytest.mark.sampled(2)
def test_everything_finishes(name: str, config: dict[str, Any], jobs: list[tuple[int, int, int, int]], costs: bool, wrong: float):
    submitted, duration, gpus, kind = (list(column) for column in zip(*jobs, strict=True))
    rewards = ((), ((1.5, 100.0),), ((1.3, 100.0), (2.0, 50.0)), ((0.5, 100.0),))
    tiers = [[(s + factor * d, reward) for factor, reward in rewards[k]] for s, d, k in zip(submitted, duration, kind, strict=True)]
    workload = make_workload("w", submitted, duration, gpus, tiers=tiers, demand=[min(len(steps), 2) for steps in tiers])
    options = Options(costs=Costs(suspend=4.0, resume=18.0, profiling=300.0) if costs else Costs(), errors=Errors(duration=wrong), seed=1)
    result = simulate(workload, Cluster((8, 8)), make(name, **config), options)
    assert np.isfinite(result.fates.ended).all()
