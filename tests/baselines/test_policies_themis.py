"""Finish-time fairness, Themis' auctions of leases, and time slicing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.contract import Profile
from stoker.policies.estimate.lengths import remaining_time
from stoker.policies.queues.fairness import finish_time_fairness
from views import NOW, Job, World, accounts_for_all, leaves_alone, make_jobs, make_view, reasons, views, written_out
from views import given as given_gpus

SETTINGS = [
    ("gandiva", {}),
    ("themis", {}),
    ("themis", {"fraction": 0.0, "priority": "service"}),
    ("themis", {"fraction": 1.0, "lease_term": 60.0}),
]
every_policy = pytest.mark.parametrize(("name", "config"), SETTINGS, ids=str)


def raw(name, view, **config):
    return registry.create(name, config).plan(view)


def plan(name, view, **config):
    answer = raw(name, view, **config)
    check(answer, view)
    return written_out(answer, view)


def completion_times(policy, jobs, gpus=1, **config):
    """Simulated on one node: jobs are (submitted, duration, GPUs)."""
    workload = make_workload("by hand", *zip(*jobs, strict=True))
    result = simulate(workload, Cluster((gpus,)), registry.create(policy, config), Options())
    return (result.fates.ended - workload.submitted).tolist()


# Finish-time fairness


def test_rho_worked_example():
    # Two jobs share four GPUs, so two are a fair share. 1 came 300 s ago, ran 100 and has 200 to go: alone it takes 300.
    # 2 needs four GPUs, so alone on two it takes twice its 100 s.
    jobs = make_jobs([Job(1, gpus=2, submitted=NOW - 300, run_time=100, remaining=200), Job(2, gpus=4, submitted=NOW - 50, remaining=100)])
    rho = finish_time_fairness(jobs, NOW, 4, remaining_time(jobs, 3600))
    assert rho.tolist() == pytest.approx([500 / 300, 150 / 200])


def test_what_is_not_known_is_taken_to_last_as_long_again():
    jobs = make_jobs([Job(1), Job(2, run_time=5000), Job(3, remaining=7)])
    assert remaining_time(jobs, 3600).tolist() == [3600, 5000, 7]


# Themis


def test_themis_worked_example():
    # One GPU. The lease of 1 (600 s) ends now; all came 600 s ago, so with three jobs rho is as below.
    def job(number, remaining, **facts):
        return Job(number, submitted=NOW - 600, remaining=remaining, **facts)

    holder = job(1, 300, run_time=600, lease_time=600, held=(0,))  # (600 + 300) / (3 x 900) = 0.33
    jobs = [holder, job(2, 3000), job(3, 100)]  # 3600 / 9000 = 0.4, and 700 / 300 = 2.33
    answer = raw("themis", make_view([1], jobs), fraction=1.0)
    assert list(answer.allocations) == [3]
    assert answer.allocations[3].lease_end == NOW + 600
    assert list(answer.preempt) == [1]
    assert list(answer.order) == [2, 1]
    assert answer.wake_at == NOW + 600
    # A job that came just now, short as it is, is better off than 2 and 1 with a large fraction, and goes first with a small one.
    newcomer = Job(4, submitted=NOW, remaining=100)
    jobs = [holder, job(2, 3000), newcomer]
    assert list(raw("themis", make_view([1], jobs), fraction=1.0).allocations) == [2]
    assert list(raw("themis", make_view([1], jobs), fraction=0.0).allocations) == [4]


def test_themis_by_hand():
    # Leases of 100 s. A runs first; B, worse off at 100, runs to 200; then both have 50 s left, and A came first.
    assert completion_times("themis", [(0, 150, 1), (0, 150, 1)], lease_term=100.0) == [250, 300]


@pytest.mark.parametrize(
    ("lease_time", "config", "left"),
    [
        (599, {}, 1),
        (601.5, {}, 598.5),  # renewed at 600
        (100, {"priority": "service"}, 200),  # two GPUs use up 600 GPU-seconds in 300
    ],
)
def test_a_running_lease_is_not_interrupted(lease_time, config, left):
    holder = Job(1, gpus=2, run_time=lease_time, lease_time=lease_time, remaining=9000, held=(0, 1), submitted=NOW - lease_time)
    answer = raw("themis", make_view([2], [holder, Job(2, remaining=10)]), **config)
    assert not answer.allocations
    assert not answer.preempt
    assert answer.wake_at == pytest.approx(NOW + left, abs=0.01)


def test_a_lease_is_renewed_by_who_wins_it_again():
    holder = Job(1, run_time=600, lease_time=1200, remaining=10, held=(0,))
    answer = raw("themis", make_view([1], [holder, Job(2, submitted=NOW, remaining=90_000)]), fraction=1.0)
    assert answer.allocations[1].gpus == (0,)
    assert answer.allocations[1].lease_end == NOW + 600
    # Without other bidders the lease has no end until somebody comes.
    answer = raw("themis", make_view([1], [holder]))
    assert answer.allocations[1].lease_end is None
    assert answer.wake_at is None


@pytest.mark.parametrize(
    ("fraction", "bidders", "expected"), [(0.7, 10, 3), (0.71, 10, 3), (0.69, 10, 4), (0.8, 5, 1), (0.9, 70, 7), (1.0, 9, 1)]
)
def test_the_auction_takes_the_share_that_was_asked_for(fraction, bidders, expected):
    """1 - 0.7 is a last digit more than 0.3, which lets nobody else in. All ask alike; of who takes part the shortest goes first."""
    jobs = [Job(number + 1, submitted=NOW - 10_000 - (bidders - number), remaining=1000.0) for number in range(bidders)]
    # Each at its turn is made the one that would win, at about the same rho: only who takes part does.
    winners = set()
    for number in range(bidders):
        short = dataclasses.replace(jobs[number], submitted=NOW - (NOW - jobs[number].submitted) / 2, remaining=500.0)
        view = make_view([1], [*jobs[:number], short, *jobs[number + 1 :]])
        winners.update(raw("themis", view, fraction=fraction).allocations)
    assert winners == set(range(1, expected + 1))


@pytest.mark.parametrize(("nodes", "gpus"), [("1x8", 8), ("4x8", 32), ("8x8", 64)])
def test_large_gangs_that_take_turns_get_done_what_their_resumptions_leave(nodes, gpus):
    """With leases of 600 GPU-seconds those of 32 GPUs were 18.75 s, and their resumption takes 29 s (002 ch. 5.3.2.3)."""
    costs = Costs(suspend=4.0, resume=18.0, resume_per_gpu=5 / 14)
    workload = make_workload("gangs", [0.0, 0.0], [600.0, 600.0], [gpus, gpus])
    policy = registry.create("themis", {"priority": "service"})
    result = simulate(workload, Cluster.parse(nodes), policy, Options(costs=costs, until=20_000.0))
    assert np.isfinite(result.fates.ended).all()


def test_slices_and_lease_terms_hold_more_than_a_resumption():
    for name, key, least in (("themis", "lease_term", 60.0), ("gandiva", "slice", 30.0)):
        registry.create(name, {key: least})
        with pytest.raises(ValueError, match=key):
            registry.create(name, {key: least - 1.0})
    ended = [
        simulate(make_workload("two", [0.0, 0.0], [300.0, 300.0], [1, 1]), Cluster.parse("1x1"), registry.create(name, config),
                 Options(costs=Costs(suspend=4.0, resume=18.0), until=20_000.0)).fates.ended
        for name, config in (("themis", {"lease_term": 60.0}), ("gandiva", {"slice": 30.0}))
    ]  # fmt: skip
    assert np.isfinite(ended).all()


def test_themis_spreads_only_jobs_of_small_skew():
    view = make_view([2, 2], [Job(1, held=(0,)), Job(2, held=(2,)), Job(3, gpus=2, submitted=1)])
    assert 3 not in given_gpus(plan("themis", view))
    jobs = dataclasses.replace(view.jobs, profile=np.array([-1, -1, 0]))
    assert given_gpus(plan("themis", dataclasses.replace(view, jobs=jobs, profiles=[Profile("flat", skew=0.1)])))[3] == (1, 3)


def test_themis_gives_more_jobs_a_fair_finish_than_first_come_first_served():
    # A long job of four GPUs, then twenty short ones that it would hold up.
    jobs = [(0, 5000, 4), *((100 + number, 200, 1) for number in range(20))]
    assert sum(completion_times("themis", jobs, gpus=4, lease_term=100.0)[1:]) < sum(completion_times("fifo", jobs, gpus=4)[1:]) / 2


# Gandiva


def test_gandiva_worked_example():
    # Slices of 60 s. 1 has run all its life, 2 for half of it, and the slice of 3 is not over.
    running = [
        Job(1, submitted=NOW - 100, run_time=100, lease_time=100, held=(0,)),
        Job(2, submitted=NOW - 200, run_time=100, lease_time=80, held=(1,)),
        Job(3, submitted=NOW - 40, run_time=40, lease_time=40, held=(2,)),
    ]
    view = make_view([3], [*running, Job(4, submitted=NOW - 100, run_time=60), Job(5, submitted=NOW - 100, run_time=40)])
    answer = plan("gandiva", view)
    # 5 (share 0.4) takes the turn of 1 (share 1); 4 (0.6) has had more than 2 (0.5).
    assert given_gpus(answer) == {2: (1,), 3: (2,), 5: (0,)}
    assert reasons(answer) == {4: "resources", 1: "turn"}
    assert raw("gandiva", view).wake_at == pytest.approx(NOW + 20, abs=0.01)


def test_gandiva_by_hand():
    # Two and three jobs on one GPU go round robin.
    assert completion_times("gandiva", [(0, 100, 1), (0, 100, 1)]) == [160, 200]
    assert completion_times("gandiva", [(0, 120, 1), (0, 120, 1), (0, 60, 1)]) == pytest.approx([240, 300, 180], abs=0.1)


def test_gandiva_takes_turns_within_a_size_and_lets_every_size_in():
    pair = Job(1, gpus=2, run_time=500, lease_time=500, held=(0, 1), submitted=NOW - 500)
    single = Job(2, run_time=500, lease_time=500, held=(2,), submitted=NOW - 500)
    # Another single takes the turn of the single, not half of the pair's.
    assert given_gpus(plan("gandiva", make_view([3], [pair, single, Job(3, submitted=NOW)]))) == {1: (0, 1), 3: (2,)}
    # A gang of three has no peers: it may displace both.
    assert given_gpus(plan("gandiva", make_view([3], [pair, single, Job(4, gpus=3, submitted=NOW)]))) == {4: (0, 1, 2)}


# Both


@every_policy
@given(view=views())
def test_every_plan_is_valid_complete_deterministic_and_keeps_the_protected(name, config, view):
    answer = plan(name, view, **config)
    assert given_gpus(answer) == given_gpus(plan(name, view, **config))
    accounts_for_all(answer, view)
    assert answer.wake_at is None or view.now < answer.wake_at < math.inf
    guarded = protect(view, PreemptionLimits(min_run_time=50, max_preemptions=3))
    leaves_alone(plan(name, guarded, **config), guarded)


@every_policy
@given(lengths=st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 4]), st.integers(1, 80)), min_size=1, max_size=8))
@settings(max_examples=10)
@pytest.mark.sampled(2)
def test_everything_finishes(name, config, lengths):
    jobs = {number: Job(number, gpus=gpus, remaining=10.0 * length, submitted=NOW) for number, (gpus, length) in enumerate(lengths, 1)}
    world, policy = World([2, 2], jobs, progress=True), registry.create(name, config)
    ticks = sum(length for _, length in lengths) + 100 * (len(lengths) + 1)
    while world.jobs and ticks:
        world.tick(policy)
        ticks -= 1
    assert world.finished == set(range(1, len(lengths) + 1))


@every_policy
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 500).map(float), st.integers(1, 900).map(float), st.sampled_from([1, 1, 2, 3, 4])), min_size=1, max_size=12
    )
)
@settings(max_examples=15)
def test_a_simulation_ends_whatever_the_jobs(name, config, jobs):
    times = completion_times(name, jobs, gpus=4, **config)
    durations = [duration for _, duration, _ in sorted(jobs, key=lambda job: job[0])]
    assert all(time >= duration - 1e-6 for time, duration in zip(times, durations, strict=True))
