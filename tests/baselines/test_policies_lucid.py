"""Lucid: worked examples of its profiler, order and packing, and what holds whatever the view."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.baselines.lucid import estimated_service
from stoker.policies.contract import Profile
from stoker.policies.placement.packing import JUMBO, MEDIUM, TINY, sharing_scores
from views import (
    GIB,
    NOW,
    Job,
    World,
    accounts_for_all,
    calls_impossible_what_is_too_large,
    leaves_alone,
    make_view,
    reasons,
    views,
    written_out,
)
from views import given as given_gpus

TINY_MODEL, MEDIUM_MODEL, JUMBO_MODEL, LARGE_MODEL, UNMEASURED = range(5)
PROFILES = (
    Profile("tiny", utilisation=0.2, memory=0.1),
    Profile("medium", utilisation=0.5, memory=0.3),
    Profile("jumbo", utilisation=0.9, memory=0.4),
    Profile("large", utilisation=0.2, memory=0.8),
    Profile("unmeasured"),
)
SETTINGS = [
    {},
    {"profiler_capacity": 0},
    {"pack_knob": -1},
    {"pack_knob": 0, "profiler_capacity": 2},
    {"pack_knob": 4},
    {"priority": "time"},
]
every_setting = pytest.mark.parametrize("config", SETTINGS, ids=str)
every_view = views(profiles=PROFILES)


def plan(view, **config):
    answer = registry.create("lucid", config).plan(view)
    check(answer, view)
    return written_out(answer, view)


def seen(number, **facts):
    """A job that has been profiled: it has run."""
    return Job(number, **{"run_time": 200.0, "remaining": 1000.0, **facts})


# Order


def test_least_estimated_service_first_and_nothing_is_preempted():
    # 2: 1000 s on two GPUs; 3: 1500 s on one; 4: 3000 s on one. Two GPUs are free.
    jobs = [seen(1, held=(0,), remaining=1e6), seen(2, gpus=2), seen(3, remaining=1500), seen(4, remaining=3000)]
    answer = plan(make_view([3], jobs), profiler_capacity=0)
    assert given_gpus(answer) == {1: (0,), 3: (1,), 4: (2,)}  # 3 is first and takes one, so 2 no longer fits
    assert reasons(answer) == {2: "resources"}
    jobs[1].gpus = 1
    assert given_gpus(plan(make_view([3], jobs), profiler_capacity=0)) == {1: (0,), 2: (1,), 3: (2,)}


def test_by_time_the_gang_that_ends_soonest_goes_first():
    jobs = [seen(1, held=(0,), remaining=1e6), seen(2, gpus=2), seen(3, remaining=1500), seen(4, remaining=3000)]
    answer = plan(make_view([3], jobs), profiler_capacity=0, priority="time")
    assert given_gpus(answer) == {1: (0,), 2: (1, 2)}
    assert list(answer.order) == [3, 4]


def test_an_unknown_job_is_estimated_from_the_history():
    view = make_view([4], [Job(1, gpus=2), Job(2, gpus=2, run_time=150), Job(3, run_time=900), Job(4, gpus=2, remaining=7)])
    assert estimated_service(view, 100.0).tolist() == [200, 300, 900, 14]  # at least 100 s, or as long again as it has run
    view = dataclasses.replace(view, finished_service=np.array([50.0, 100.0, 400.0, 500.0, 600.0]))
    # 1: the median, 400. 2 has had 300: the median of 400, 500 and 600, less that. 3 has had more than any.
    assert estimated_service(view, 100.0).tolist() == [400, 200, 900, 14]


# Packing


def test_sharing_scores_by_utilisation():
    utilisation = np.array([0.0, 0.3, 0.31, 0.64, 0.65, 1.0, math.nan])
    assert sharing_scores(utilisation, 0.3, 0.65).tolist() == [TINY, TINY, MEDIUM, MEDIUM, JUMBO, JUMBO, JUMBO]
    assert sharing_scores(np.array([0.4, 0.6]), 0.9, 0.5).tolist() == [TINY, JUMBO]


def packed_with(running, waiting, **config):
    """Whether the waiting job joins the running one on a full node of as many GPUs as that has."""
    running.held = tuple(range(running.gpus))
    answer = plan(make_view([running.gpus], [running, waiting], profiles=PROFILES), profiler_capacity=0, **config)
    given = given_gpus(answer)
    assert given[running.id] == running.held
    assert [(group.kind, group.jobs) for group in answer.groups] == ([("packed", (1, 2))] if 2 in given else [])
    return given.get(2) == running.held


def test_packing_worked_example():
    def pair(first, second, **config):
        return packed_with(seen(1, profile=first), seen(2, profile=second), **config)

    assert pair(MEDIUM_MODEL, MEDIUM_MODEL)  # 1 + 1
    assert pair(JUMBO_MODEL, TINY_MODEL)  # 2 + 0
    assert not pair(JUMBO_MODEL, MEDIUM_MODEL)  # 2 + 1
    assert pair(JUMBO_MODEL, MEDIUM_MODEL, pack_knob=3)
    assert not pair(MEDIUM_MODEL, MEDIUM_MODEL, pack_knob=1)
    assert pair(TINY_MODEL, TINY_MODEL, pack_knob=0)
    assert not pair(TINY_MODEL, TINY_MODEL, pack_knob=-1)
    # 0.8 + 0.3 of the memory does not fit, 0.8 + 0.1 does.
    assert not pair(LARGE_MODEL, MEDIUM_MODEL)
    assert pair(LARGE_MODEL, TINY_MODEL)
    assert not pair(LARGE_MODEL, TINY_MODEL, pack_memory=0.85)
    # Nothing is known of one of them.
    assert not pair(UNMEASURED, TINY_MODEL, pack_knob=4)
    assert not pair(TINY_MODEL, -1, pack_knob=4)


def test_what_was_measured_of_a_pair_counts_before_what_each_uses():
    def pair(first, second, slowed, **config):
        slowdowns = np.full((len(PROFILES), len(PROFILES)), math.nan)
        slowdowns[first, second], slowdowns[second, first] = slowed
        view = make_view([1], [seen(1, profile=first, held=(0,)), seen(2, profile=second)], profiles=PROFILES)
        return 2 in given_gpus(plan(dataclasses.replace(view, slowdowns=slowdowns), profiler_capacity=0, **config))

    assert not pair(TINY_MODEL, MEDIUM_MODEL, (2.0, 1.1))  # 0.5 and 0.91 of their speed: 2 + 1, not 0 + 1
    assert pair(TINY_MODEL, MEDIUM_MODEL, (2.0, 1.02))  # 2 + 0
    assert pair(TINY_MODEL, MEDIUM_MODEL, (2.0, 1.1), pack_knob=3)
    assert pair(JUMBO_MODEL, MEDIUM_MODEL, (1.1, 1.1))  # 1 + 1, not 2 + 1
    assert pair(JUMBO_MODEL, MEDIUM_MODEL, (1.0, 1.04), pack_knob=0)  # neither would have a partner by what it uses
    assert not pair(JUMBO_MODEL, MEDIUM_MODEL, (1.0, math.nan))  # half of it is not known
    assert not pair(LARGE_MODEL, MEDIUM_MODEL, (1.0, 1.0))  # the memory does not fit all the same


def test_a_job_is_not_packed_with_another_size_or_a_much_shorter_one():
    assert packed_with(seen(1, gpus=2, profile=0), seen(2, gpus=2, profile=0))
    assert not packed_with(seen(1, gpus=2, profile=0), seen(2, gpus=1, profile=0))
    assert packed_with(seen(1, profile=0, remaining=500), seen(2, profile=0, remaining=1000))
    assert not packed_with(seen(1, profile=0, remaining=499), seen(2, profile=0, remaining=1000))


def test_free_gpus_come_before_shared_ones_and_the_least_disturbing_partner_first():
    running = [seen(1, held=(0,), profile=MEDIUM_MODEL), seen(2, held=(1,), profile=TINY_MODEL), seen(3, held=(2,), profile=TINY_MODEL)]
    waiting = [seen(number, profile=TINY_MODEL, remaining=1000.0 + number) for number in (4, 5, 6, 7, 8, 9)]
    answer = plan(make_view([4], running + waiting, profiles=PROFILES), profiler_capacity=0)
    # 4 has the free GPU; 5 and 6 join the tiny jobs, 7 joins 4, which starts now, 8 the medium one; nobody is third.
    assert given_gpus(answer) == {1: (0,), 2: (1,), 3: (2,), 4: (3,), 5: (1,), 6: (2,), 7: (3,), 8: (0,)}
    assert {group.jobs for group in answer.groups} == {(2, 5), (3, 6), (4, 7), (1, 8)}
    assert reasons(answer) == {9: "resources"}


@pytest.mark.parametrize(("nodes", "packed"), [([8], True), ([4, 4], False), ([2, 6], False)])
def test_gangs_over_several_nodes_share_with_nobody(nodes, packed):
    """As in Lucid's released code, which looks for a partner only for who fits on a node."""
    jobs = [seen(1, gpus=8, held=tuple(range(8)), profile=TINY_MODEL), seen(2, gpus=8, profile=TINY_MODEL)]
    answer = plan(make_view(nodes, jobs, profiles=PROFILES), profiler_capacity=0)
    assert (2 in given_gpus(answer)) is packed


def test_nobody_joins_a_pair_a_stopping_job_or_gpus_out_of_use():
    waiting = seen(9, profile=TINY_MODEL)
    pair = [seen(1, held=(0,), profile=TINY_MODEL), seen(2, held=(0,), profile=TINY_MODEL)]
    assert 9 not in given_gpus(plan(make_view([1], [*pair, waiting], profiles=PROFILES), profiler_capacity=0))
    alone = seen(1, held=(0,), profile=TINY_MODEL)
    assert 9 not in given_gpus(plan(make_view([1], [alone, waiting], profiles=PROFILES, unusable=[0]), profiler_capacity=0))
    assert 9 in given_gpus(plan(make_view([1], [alone, waiting], profiles=PROFILES), profiler_capacity=0))


def test_bytes_of_both_must_fit_where_they_are_known():
    def fits(first, second):
        jobs = [seen(1, held=(0,), profile=0, memory=first * GIB), seen(2, profile=0, memory=second * GIB)]
        return 2 in given_gpus(plan(make_view([1], jobs, profiles=PROFILES, memory=[24 * GIB]), profiler_capacity=0))

    assert fits(12, 12)
    assert not fits(12, 13)


# Profiler


def test_profiler_worked_example():
    # Eight GPUs, two of them (6 and 7) set aside. 2 has been profiled; 3, 4 and 5 are new, the smallest first; 6 is too large for it.
    jobs = [
        seen(2),
        Job(3, gpus=2, remaining=10),
        Job(4, remaining=9000),
        Job(5, remaining=8000, submitted=1),
        Job(6, gpus=4, remaining=100),
    ]
    answer = plan(make_view([8], jobs), profiler_capacity=2, profile_time=300)
    assert given_gpus(answer) == {6: (0, 1, 2, 3), 2: (4,), 4: (6,), 5: (7,)}
    assert {job: allocation.lease_end for job, allocation in answer.allocations.items()} == {6: None, 2: None, 4: NOW + 300, 5: NOW + 300}
    assert reasons(answer) == {3: "profiler"}
    # Without a profiler the new ones start like all others.
    answer = plan(make_view([8], jobs), profiler_capacity=0)
    assert set(given_gpus(answer)) == {2, 3, 5, 6}
    assert all(allocation.lease_end is None for allocation in answer.allocations.values())


def test_the_profiler_is_a_quarter_of_the_pool_at_most():
    jobs = [Job(1), Job(2), seen(3), seen(4), seen(5), seen(6)]
    assert given_gpus(plan(make_view([4], jobs))) == {1: (3,), 3: (2,), 4: (0,), 5: (1,)}
    assert set(given_gpus(plan(make_view([3], jobs)))) == {3, 4, 5}  # no profiler at all: by service


def test_nobody_is_packed_with_a_job_in_the_profiler():
    jobs = [Job(1, held=(3,), profile=TINY_MODEL), *(seen(n, held=(n - 2,), profile=-1) for n in (2, 3, 4)), seen(9, profile=TINY_MODEL)]
    assert 9 not in given_gpus(plan(make_view([4], jobs, profiles=PROFILES)))


def test_the_profiler_makes_way_for_a_gang_that_needs_the_whole_pool():
    assert given_gpus(plan(make_view([4], [seen(1, gpus=4)]))) == {1: (0, 1, 2, 3)}
    answer = plan(make_view([4], [seen(1, gpus=4), Job(2, held=(3,))]))
    assert reasons(answer) == {1: "resources"}


# Whatever the view


@every_setting
@given(view=every_view)
@settings(max_examples=20)
def test_every_plan_is_valid_complete_deterministic_and_keeps_the_protected(config, view):
    answer = plan(view, **config)
    again = plan(view, **config)
    assert (given_gpus(answer), answer.groups, list(answer.order)) == (given_gpus(again), again.groups, list(again.order))
    accounts_for_all(answer, view)
    calls_impossible_what_is_too_large(answer, view)
    guarded = protect(view, PreemptionLimits())
    leaves_alone(plan(guarded, **config), guarded, also_unprotected=True)


full_pools = st.builds(
    lambda running, waiting: make_view(
        [len(running) * 2],
        [seen(n, gpus=2, held=(2 * n, 2 * n + 1), profile=profile, remaining=float(left)) for n, (profile, left) in enumerate(running)]
        + [seen(100 + n, gpus=gpus, profile=profile, remaining=float(left)) for n, (gpus, profile, left) in enumerate(waiting)],
        profiles=PROFILES,
    ),
    st.lists(st.tuples(st.integers(-1, 4), st.integers(1, 50)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 2), st.integers(-1, 4), st.integers(1, 50)), max_size=8),
)


@pytest.mark.parametrize("knob", [-1, 0, 1, 2, 4])
@given(view=st.one_of(every_view, full_pools))
@pytest.mark.sampled(3)
def test_at_most_two_of_one_size_share_and_their_scores_add_up_to_the_knob(knob, view):
    answer = plan(view, pack_knob=knob, profiler_capacity=0)
    jobs = view.jobs
    users = Counter(gpu for gpus in given_gpus(answer).values() for gpu in gpus)
    assert all(count <= 2 for count in users.values())
    grouped = {job for group in answer.groups for job in group.jobs}
    shared = {job for job, gpus in given_gpus(answer).items() if any(users[gpu] > 1 for gpu in gpus)}
    assert shared == grouped  # no random view has jobs that share already
    rows = {job: row for row, job in enumerate(jobs.id.tolist())}
    for group in answer.groups:
        first, second = (rows[job] for job in group.jobs)
        assert jobs.gpus_min[first] == jobs.gpus_min[second]
        models = [PROFILES[jobs.profile[row]] for row in (first, second)]
        assert -1 not in (jobs.profile[first], jobs.profile[second])
        assert sum(sharing_scores(np.array([model.utilisation for model in models]), 0.3, 0.65)) <= knob
        assert sum(model.memory for model in models) <= 0.95


@given(view=full_pools)
def test_packing_only_adds_starts(view):
    without = given_gpus(plan(view, pack_knob=-1, profiler_capacity=0))
    packed = given_gpus(plan(view, profiler_capacity=0))
    assert without.items() <= packed.items()


@pytest.mark.parametrize("config", [{"pack_knob": -1, "profiler_capacity": 0}, {"pack_knob": -1}], ids=str)
def test_everything_possible_finishes(config):
    jobs = {number: seen(number, gpus=1 + number % 4, remaining=10.0 * number) for number in range(1, 12)}
    world = World([4, 4], jobs, progress=True)
    policy = registry.create("lucid", config)
    for _ in range(300):
        world.tick(policy)
    assert world.finished == set(range(1, 12))
    assert world.stops == 0


def test_in_the_simulator_new_jobs_are_profiled_first_and_pairs_share():
    # Eight GPUs, two of them the profiler. Four jobs of three GPUs are too large for it; two need one GPU.
    workload = make_workload(
        "small",
        [0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
        [1000.0, 1000.0, 1000.0, 1000.0, 50.0, 500.0],
        [3, 3, 3, 3, 1, 1],
        models=["tiny", "tiny", "tiny", "tiny", "medium", "medium"],
        profiles=PROFILES,
    )

    def ended(**config):
        policy = registry.create("lucid", {"profiler_capacity": 2, "profile_time": 200.0, **config})
        return simulate(workload, Cluster.parse("1x8"), policy, Options()).fates

    packed = ended()
    assert packed.ended[:4].tolist() == [1000] * 4  # two and two, side by side on the six GPUs of the main part
    assert packed.ended[4] == 51  # short enough to end in the profiler
    assert packed.preemptions.tolist() == [0] * 6
    assert packed.ended[5] == 1 + 500  # nobody waits, so the other stays there
    # At 1000 s the last one has the least to do, and takes one of the six GPUs: only one gang of three starts, the other at 1300 s.
    alone = ended(pack_knob=-1)
    assert sorted(alone.ended[:4].tolist()) == [1000, 1000, 2000, 2300]
    assert alone.ended[5] == 1000 + 300
    assert alone.preemptions.tolist() == [0, 0, 0, 0, 0, 1]  # while gangs wait it is put out of the profiler after 200 s
