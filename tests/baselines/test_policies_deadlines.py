"""SJF, SRSF, EDF, GENIE, Hydra and 3Sigma: the worked example of each, and what holds of them whatever the view."""

from __future__ import annotations

import dataclasses
import itertools
import math

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
from stoker.policies.baselines.threesigma import GOOD_ENOUGH, Program, expected_reward, solve
from stoker.policies.contract import Demand, Phase, Profile
from stoker.policies.estimate.distributions import SAMPLES, Durations, ratios, remaining_samples
from stoker.policies.estimate.throughput import Throughput
from stoker.policies.queues.laxity import has_deadline, next_deadline, ranks, reward
from views import (
    NOW,
    Job,
    World,
    accounts_for_all,
    calls_impossible_what_is_too_large,
    leaves_alone,
    make_jobs,
    make_view,
    reasons,
    views,
    written_out,
)
from views import given as given_gpus

PROFILES = (
    Profile("resnet", throughput=Throughput([1, 2, 4, 8], [1.0, 1.9, 3.5, 6.0])),
    Profile("bert", throughput=Throughput([1, 4], [1.0, 1.1])),
    Profile("unmeasured"),
)
SETTINGS = [
    ("sjf", {}),
    ("sjf", {"measure": "service", "backfill": True}),
    ("srtf", {"measure": "service"}),
    ("edf", {}),
    ("genie", {}),
    ("genie", {"elastic": False}),
    ("genie", {"backfill": False}),
    ("hydra", {}),
    ("hydra", {"backfill": False}),
    ("threesigma", {}),
    ("threesigma", {"most": 3, "slots": 2, "spread": 0.0}),
]
NOT_PREEMPTIVE = {"sjf", "genie", "hydra"}
every_policy = pytest.mark.parametrize(("name", "config"), SETTINGS, ids=str)
every_view = views(deadlines=True, profiles=PROFILES)


def plan(name, view, **config):
    answer = registry.create(name, config).plan(view)
    check(answer, view)
    return written_out(answer, view)


def due(after, *more, reward=100.0):
    """Deadlines so many seconds from now, with falling rewards."""
    return tuple((NOW + deadline, reward - 40.0 * number) for number, deadline in enumerate((after, *more)))


# What they share


def test_next_deadline_and_reward_by_hand():
    jobs = make_jobs([Job(1, tiers=((100.0, 80.0), (200.0, 50.0), (400.0, 20.0))), Job(2), Job(3, tiers=((300.0, 100.0),))])
    assert next_deadline(jobs, 0.0).tolist() == [100, math.inf, 300]
    assert next_deadline(jobs, 100.0).tolist() == [100, math.inf, 300]
    assert next_deadline(jobs, np.array([101.0, 5.0, 301.0])).tolist() == [200, math.inf, math.inf]
    assert reward(jobs, 150.0).tolist() == [50, 0, 100]
    assert reward(jobs, 401.0).tolist() == [0, 0, 0]


def test_best_effort_jobs_have_no_deadline_whatever_tiers_they_bring():
    jobs = make_jobs([Job(1, tiers=due(10), demand=Demand.BEST_EFFORT), Job(2, tiers=due(10)), Job(3, demand=Demand.STRICT)])
    assert has_deadline(jobs).tolist() == [False, True, False]
    assert np.isinf(next_deadline(jobs, 0.0)).tolist() == [True, False, True]


@given(view=every_view, after=st.integers(-6_000, 50_000))
def test_next_deadline_is_the_first_in_the_list_that_is_not_missed(view, after):
    finish = NOW + after
    for row, found in enumerate(next_deadline(view.jobs, finish)):
        tiers = view.jobs.tier_deadline[view.jobs.tier_start[row] : view.jobs.tier_start[row + 1]]
        met = [deadline for deadline in tiers if deadline >= finish] if has_deadline(view.jobs)[row] else []
        assert found == (met[0] if met else math.inf)


def test_ranks_order_by_column_and_keep_equals_equal():
    assert ranks(np.array([1.0, 0.0, 1.0, 1.0]), np.array([2.0, 9.0, 1.0, 2.0])).tolist() == [2, 0, 1, 2]
    assert ranks(np.zeros(0)).tolist() == []


# Shortest job first, shortest remaining service first


def test_sjf_worked_example():
    # 3 has the least left, but 400 s in all; 2 has 300 s. On one GPU: 2 first, and nobody displaces 1.
    jobs = [Job(1, held=(0,), remaining=9000), Job(2, remaining=300), Job(3, run_time=350, remaining=50), Job(4, gpus=2, remaining=100)]
    assert given_gpus(plan("sjf", make_view([2], jobs))) == {1: (0,)}  # 4 is first and blocks
    answer = plan("sjf", make_view([2], jobs), backfill=True)
    assert given_gpus(answer) == {1: (0,), 2: (1,)}
    assert list(answer.order) == [4, 3]
    # By service 4 needs 200 GPU-seconds and 5 needs 150.
    jobs = [Job(4, gpus=2, remaining=100), Job(5, remaining=150)]
    assert given_gpus(plan("sjf", make_view([2], jobs))) == {4: (0, 1)}
    assert given_gpus(plan("sjf", make_view([2], jobs), measure="service")) == {5: (0,)}


def test_srsf_counts_gpus_where_srtf_counts_time():
    # 100 s on four GPUs are 400 GPU-seconds, 150 s on one are 150.
    jobs = [Job(1, gpus=4, remaining=100), Job(2, remaining=150)]
    assert given_gpus(plan("srtf", make_view([4], jobs))) == {1: (0, 1, 2, 3)}
    answer = plan("srtf", make_view([4], jobs), measure="service")
    assert given_gpus(answer) == {2: (0,)}
    # 2 x 150 < 400: it also displaces the gang, which then finds no room.
    jobs[0].held = (0, 1, 2, 3)
    assert given_gpus(plan("srtf", make_view([4], jobs), measure="service")) == {2: (0,)}
    assert given_gpus(plan("srtf", make_view([4], jobs))) == {1: (0, 1, 2, 3)}


# Earliest deadline first


def test_edf_worked_example():
    # One GPU, held by a best-effort job. 3 is due first and displaces it; 4 missed its only deadline and counts as best effort.
    jobs = [Job(1, held=(0,)), Job(2, tiers=due(500)), Job(3, tiers=due(200), submitted=9), Job(4, tiers=due(-1), submitted=10)]
    answer = plan("edf", make_view([1], jobs))
    assert given_gpus(answer) == {3: (0,)}
    assert list(answer.order) == [2, 1, 4]
    # A soft job counts by its next deadline: that of 5 at 100 s has passed.
    jobs = [Job(5, held=(0,), tiers=due(-100, 300)), Job(6, tiers=due(250, 900))]
    assert given_gpus(plan("edf", make_view([1], jobs))) == {6: (0,)}
    jobs = [Job(5, held=(0,), tiers=due(-100, 200)), Job(6, tiers=due(250, 900))]
    assert given_gpus(plan("edf", make_view([1], jobs))) == {5: (0,)}


one_machine = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 14)), min_size=1, max_size=5
)  # release, work, time allowed


@given(tasks=one_machine)
@settings(max_examples=60)
def test_edf_on_one_machine_meets_all_deadlines_when_that_can_be(tasks):
    left = {job: work for job, (_, work, _) in enumerate(tasks, start=1)}
    end, holder = {}, None
    policy = registry.create("edf", {})
    for second in range(40):
        waiting = [
            Job(job, submitted=float(release), tiers=((NOW + release + allowed, 100.0),), held=(0,) if job == holder else ())
            for job, (release, _, allowed) in enumerate(tasks, start=1)
            if release <= second and job in left
        ]
        if not waiting:
            continue
        view = make_view([1], waiting, now=NOW + second)
        (holder,) = given_gpus(written_out(check(policy.plan(view), view), view))
        left[holder] -= 1
        if not left[holder]:
            del left[holder]
            end[holder] = second + 1
    met = all(end[job] <= release + allowed for job, (release, _, allowed) in enumerate(tasks, start=1))
    assert met == feasible(tasks)


def feasible(tasks):
    """Whether one machine can do it at all: between any release and any deadline no more work falls due than there is time."""
    releases, deadlines = {release for release, _, _ in tasks}, {release + allowed for release, _, allowed in tasks}
    return all(
        sum(work for release, work, allowed in tasks if release >= begin and release + allowed <= finish) <= finish - begin
        for begin, finish in itertools.product(releases, deadlines)
        if finish > begin
    )


# Hydra


def test_hydra_worked_example():
    # Two GPUs, one free. The SLO job of 900 s goes before the best-effort job of 10 s, and the shorter SLO job before it.
    jobs = [
        Job(1, held=(0,), remaining=1e6),
        Job(2, remaining=10),
        Job(3, remaining=900, tiers=due(5000)),
        Job(4, remaining=800, tiers=due(9000)),
    ]
    answer = plan("hydra", make_view([2], jobs))
    assert given_gpus(answer) == {1: (0,), 4: (1,)}
    assert list(answer.order) == [3, 2]
    jobs.append(Job(5, gpus=2, remaining=5, tiers=due(100)))
    assert given_gpus(plan("hydra", make_view([2], jobs))) == {1: (0,), 4: (1,)}
    assert given_gpus(plan("hydra", make_view([2], jobs), backfill=False)) == {1: (0,)}


# GENIE


def test_genie_worked_example():
    # Laxity on one GPU: 2 has 1000 - 900 = 100 s, 3 has 500 - 100 = 400 s; 4 is best effort, 5 can meet no deadline any more.
    jobs = [
        Job(2, remaining=900, tiers=due(1000)),
        Job(3, remaining=100, tiers=due(500)),
        Job(4, remaining=1),
        Job(5, remaining=900, tiers=due(800)),
    ]
    answer = plan("genie", make_view([1], jobs))
    assert given_gpus(answer) == {2: (0,)}
    assert list(answer.order) == [3, 5, 4]
    # It displaces nobody.
    assert given_gpus(plan("genie", make_view([1], [Job(1, held=(0,)), *jobs]))) == {1: (0,)}


def test_genie_gives_the_fewest_gpus_that_meet_the_deadline():
    def gpus(deadline, free=8, **config):
        job = Job(1, gpus_max=8, remaining=600, profile=0, tiers=due(deadline))
        return len(given_gpus(plan("genie", make_view([8], [job, *filler(8 - free)], profiles=PROFILES), **config))[1])

    def filler(n):
        return [Job(9, gpus=n, held=tuple(range(n)))] if n else []

    # 600 s on one GPU; 600 / 1.9 = 316 s on two, 600 / 2.7 = 222 s on three, 171 s on four, 100 s on eight.
    assert [gpus(deadline) for deadline in (600, 599, 316, 315, 200, 100)] == [1, 2, 2, 3, 4, 8]
    assert gpus(99) == 1  # lost anyway
    assert gpus(100, free=4) == 4  # none of those that meet it are free: the fastest
    assert gpus(100, elastic=False) == 1


def test_genie_counts_several_nodes_as_slow_as_they_are():
    """1000 s on 2 GPUs: 4 end it in 500 s on one node, and in 2000 s over two; there it is as well on the 2 that it needs."""
    profiles = [Profile("slower over nodes", throughput=Throughput([2, 4], [2.0, 4.0], [0.5, 1.0]))]
    job = Job(1, gpus=2, gpus_max=4, remaining=1000, profile=0, tiers=due(600, 1500))
    assert len(given_gpus(plan("genie", make_view([4], [job], profiles=profiles)))[1]) == 4
    assert len(given_gpus(plan("genie", make_view([2, 2], [job], profiles=profiles)))[1]) == 2


def test_genie_without_backfilling_lets_nobody_pass_but_whom_no_pool_could_hold():
    """Job 1 has the least laxity, and waits for 4 of which 2 are free; nothing could ever hold job 4."""
    first = Job(1, gpus=4, remaining=100.0, tiers=((NOW + 200, 100.0),))
    jobs = [Job(9, held=(0, 1)), first, Job(2, remaining=10.0), Job(3, remaining=10.0)]
    assert given_gpus(plan("genie", make_view([4], jobs))).keys() >= {2, 3}
    assert given_gpus(plan("genie", make_view([4], jobs), backfill=False)).keys() <= {9}
    too_large = [Job(4, gpus=8, remaining=1.0, tiers=((NOW + 10, 100.0),)), Job(2, remaining=10.0)]
    assert given_gpus(plan("genie", make_view([4], too_large), backfill=False)).keys() == {2}


def test_genie_counts_laxity_on_the_best_number_of_gpus():
    # 1 needs 600 s on one GPU, but 100 s on eight: it can wait 800 s. 2 does not scale, and can wait 364 s.
    jobs = [
        Job(1, gpus_max=8, remaining=600, profile=0, tiers=due(900)),
        Job(2, gpus_max=4, remaining=590, profile=1, tiers=due(900)),
        Job(9, gpus=7, held=tuple(range(7))),
    ]
    assert given_gpus(plan("genie", make_view([8], jobs, profiles=PROFILES))) == {9: tuple(range(7)), 2: (7,)}
    # Where neither may have more than one, 1 is the more urgent.
    assert 1 in given_gpus(plan("genie", make_view([8], jobs, profiles=PROFILES), elastic=False))


# 3Sigma


def test_3sigma_worked_example():
    # Two GPUs; 1 holds one for a long time. 2 has to start now to meet its deadline, 3 has time: 2 gets the free one.
    jobs = [
        Job(1, held=(0,), remaining=50_000, tiers=due(90_000)),
        Job(2, remaining=1000, tiers=due(1100)),
        Job(3, remaining=1000, tiers=due(3000)),
    ]
    answer = plan("threesigma", make_view([2], jobs), spread=0.0)
    assert given_gpus(answer) == {1: (0,), 2: (1,)}
    assert reasons(answer) == {3: "planned"}
    assert (answer.status, answer.gap) == ("optimal", pytest.approx(0.0, abs=0.01))
    # A job of 1100 s before it would let 3 miss; of both only one can be met, and it is the one with the greater reward.
    jobs[2].tiers = due(1500, reward=60.0)
    assert given_gpus(plan("threesigma", make_view([2], jobs), spread=0.0)) == {1: (0,), 2: (1,)}
    jobs[1].tiers, jobs[2].tiers = due(1500, reward=60.0), due(1500)
    assert given_gpus(plan("threesigma", make_view([2], jobs), spread=0.0)) == {1: (0,), 3: (1,)}


def test_3sigma_keeps_gpus_for_a_gang_that_is_worth_waiting_for():
    # 1 ends in 500 s. If the best-effort job 3 (2 h) took the free GPU, the pair 2 could not start in time.
    jobs = [Job(1, held=(0,), remaining=500), Job(2, gpus=2, remaining=1000, tiers=due(1700)), Job(3, remaining=7200)]
    view = protect(make_view([2], jobs), PreemptionLimits(min_run_time=60))  # 1 has just started: not to be preempted
    answer = plan("threesigma", view, spread=0.0)
    assert given_gpus(answer) == {1: (0,)}
    assert reasons(answer) == {2: "planned", 3: "planned"}
    # The shorter job 4 is done by then.
    assert given_gpus(plan("threesigma", protect(make_view([2], [*jobs, Job(4, remaining=400)]), PreemptionLimits()), spread=0.0)) == {
        1: (0,),
        4: (1,),
    }


def test_3sigma_preempts_best_effort_jobs_for_slo_jobs_only():
    running = [Job(1, held=(0,), remaining=9000), Job(2, held=(1,), remaining=9000, tiers=due(20_000))]
    view = make_view([2], [*running, Job(3, remaining=100, tiers=due(200))])
    answer = plan("threesigma", view)
    assert given_gpus(answer) == {2: (1,), 3: (0,)}
    # Nobody gives way to a best-effort job, however short, or to one that is lost.
    for other in (Job(3, remaining=1), Job(3, remaining=100, tiers=due(-500))):
        assert given_gpus(plan("threesigma", make_view([2], [*running, other]), spread=0.0)) == {1: (0,), 2: (1,)}


def test_3sigma_weighs_a_deadline_against_what_it_displaces():
    running = [Job(number, held=(number - 1,), remaining=60) for number in (1, 2, 3, 4)]
    view = make_view([4], [*running, Job(9, gpus=4, remaining=100, tiers=due(130))])
    assert given_gpus(plan("threesigma", view, spread=0.0)) == {9: (0, 1, 2, 3)}
    assert given_gpus(plan("threesigma", view, spread=0.0, slo_weight=1.0)) == {1: (0,), 2: (1,), 3: (2,), 4: (3,)}


def test_3sigma_without_a_solution_in_time_serves_in_order(monkeypatch):
    monkeypatch.setattr("stoker.policies.baselines.threesigma.solve", lambda *_: None)
    jobs = [Job(1, remaining=7200), Job(2, gpus=2, remaining=100, tiers=due(500)), Job(3, remaining=100)]
    answer = plan("threesigma", make_view([2], jobs))
    assert answer.status == "fallback"
    assert given_gpus(answer) == {2: (0, 1)}
    assert reasons(answer) == {1: "resources", 3: "resources"}


def test_3sigma_does_not_wait_for_a_gang_that_no_node_can_hold_now():
    # Two GPUs of node 0 are out of use: the gang of 4 fits nowhere, though 4 GPUs are free. 2 does not wait for it.
    jobs = [Job(1, gpus=4, remaining=100, tiers=due(150)), Job(2, remaining=7200), Job(3, remaining=7200), Job(4, gpus=3, remaining=7200)]
    answer = plan("threesigma", make_view([4, 2], jobs, unusable=(0, 1)))
    assert {2, 3} <= set(given_gpus(answer))
    assert reasons(answer)[1] == "resources"


def test_durations_are_conditional_on_what_has_run():
    history = np.array([100.0, 200.0, 400.0, 800.0])
    durations = Durations(np.ones(3), history, np.array([0.0, 150.0, 800.0]))
    left = durations.left(60.0)
    assert sorted(set(left[0])) == [100, 200, 400, 800]
    assert sorted(set(left[1])) == [50, 250, 650]
    # Outlived: taken to end one cycle later, then 2 more, then 4 more (section 4.2.1).
    outlived = Durations(np.ones(4), history, np.array([801.0, 860.0, 979.0, 980.0])).left(60.0)[:, 0]
    assert outlived.tolist() == [59, 120, 1, 240]
    assert durations.exceed(np.array([99.0, 400.0, math.inf])).tolist() == [1.0, 0.25, 0.0]


@given(spread=st.sampled_from([0.0, 0.3, 1.0]), run=st.floats(0, 1e6), scale=st.floats(1e-9, 1e6), cycle=st.sampled_from([1.0, 60.0]))
def test_what_is_left_is_never_negative_and_never_nothing_at_all(spread, run, scale, cycle):
    left = Durations(np.array([scale]), ratios(spread), np.array([run])).left(cycle)
    assert left.shape == (1, SAMPLES)
    assert np.isfinite(left).all()
    assert (left >= 0).all()
    assert left.max() > 0


def test_an_unknown_job_is_as_long_as_finished_jobs_were():
    view = make_view([4], [Job(1, gpus=2), Job(2, remaining=300.0)])
    left, _ = remaining_samples(view, np.array([0, 1]), 0.0, 3600.0, 60.0)
    assert set(left[0]) == {3600}
    assert set(left[1]) == {300}
    view = dataclasses.replace(view, finished_service=np.array([100.0, 1000.0]))
    left, _ = remaining_samples(view, np.array([0, 1]), 0.0, 3600.0, 60.0)
    assert set(left[0]) == {50, 500}
    assert set(left[1]) == {300}


def test_expected_reward_by_hand():
    jobs = make_jobs(
        [
            Job(1, tiers=((NOW + 100, 80.0), (NOW + 200, 50.0)), submitted=NOW),
            Job(2, submitted=NOW),
            Job(3, tiers=((NOW + 100, 100.0),), submitted=NOW),
        ]
    )
    rows, plain = np.arange(3), np.zeros(3, dtype=bool)
    finish = NOW + np.broadcast_to([90.0, 150.0, 160.0, 260.0], (3, 1, 4))
    # 1 earns 0.8, 0.5, 0.5, 0; 3 earns 1, 0, 0, 0.
    assert expected_reward(jobs, rows, finish, plain)[:, 0].tolist() == pytest.approx([0.45, 0.0, 0.25])
    # After the last deadline of 1 (200 s after its submission) its 0.5 falls to 0 within 200 s: 0.35 at 260 s. 3: 1, 0.5, 0.4, 0.
    assert expected_reward(jobs, rows, finish, ~plain)[:, 0].tolist() == pytest.approx([(0.8 + 0.5 + 0.5 + 0.35) / 4, 0.0, 1.9 / 4])


@given(view=every_view, after=st.lists(st.integers(-6_000, 50_000), min_size=1, max_size=4))
def test_expected_reward_is_the_average_of_what_each_end_earns(view, after):
    rows = np.arange(len(view.jobs))
    finish = np.broadcast_to(NOW + np.array(after, dtype=float), (len(rows), 1, len(after)))
    expected = expected_reward(view.jobs, rows, finish, np.zeros(len(rows), dtype=bool))[:, 0]
    assert expected.tolist() == pytest.approx(np.mean([reward(view.jobs, NOW + seconds) for seconds in after], axis=0) / 100)


small_programs = st.builds(
    lambda jobs, capacity: Program(
        need=np.array([need for need, _, _, _ in jobs]),
        slo=np.array([slo for _, slo, _, _ in jobs]),
        utility=np.array([[float(worth), worth * fall] for _, _, worth, fall in jobs]),
        running=np.array([[1.0, 0.5]] * len(jobs)),
        victim_need=np.zeros(0, dtype=np.int64),
        victim_running=np.zeros((0, 2)),
        loss=np.zeros(0),
        capacity=np.array([float(capacity), capacity + 1.0]),
        free=capacity,
    ),
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(1, 20), st.sampled_from([0.2, 0.5, 0.9])), min_size=1, max_size=5),
    st.integers(1, 6),
)


@given(program=small_programs)
def test_the_program_finds_what_trying_all_starts_finds(program):
    jobs, slots = program.utility.shape

    def worth(starts):
        return sum(program.utility[job, slot] for job, slot in enumerate(starts) if slot < slots)

    def fits(starts):
        return all(
            sum(program.need[job] * program.running[job, slot - begin] for job, begin in enumerate(starts) if begin <= slot)
            <= program.capacity[slot] + 1e-9
            for slot in range(slots)
        )

    best = max(worth(starts) for starts in itertools.product(range(slots + 1), repeat=jobs) if fits(starts))
    found = solve(program, 5.0)
    assert found.status == "optimal"
    assert fits(found.slot.tolist())
    assert worth(found.slot.tolist()) >= best * (1 - GOOD_ENOUGH) - 1e-6
    assert best <= worth(found.slot.tolist()) * (1 + found.gap) + 1e-6  # the gap is certified


# All of them


@every_policy
@given(view=every_view)
@settings(max_examples=20)
@pytest.mark.sampled(4)
def test_every_plan_is_valid_complete_deterministic_and_keeps_the_protected(name, config, view):
    answer = plan(name, view, **config)
    again = plan(name, view, **config)
    assert given_gpus(answer) == given_gpus(again)
    assert list(answer.order) == list(again.order)
    accounts_for_all(answer, view)
    calls_impossible_what_is_too_large(answer, view)
    guarded = protect(view, PreemptionLimits(min_run_time=50, max_preemptions=3))
    leaves_alone(plan(name, guarded, **config), guarded, also_unprotected=name in NOT_PREEMPTIVE)


@pytest.mark.parametrize("name", ["edf", "genie", "hydra", "threesigma"])
@given(view=every_view)
def test_best_effort_takes_no_gpus_from_a_job_with_a_deadline(name, view):
    jobs = view.jobs
    demand = np.where(jobs.phase == Phase.PENDING, Demand.BEST_EFFORT, jobs.demand)
    view = dataclasses.replace(view, jobs=dataclasses.replace(jobs, demand=demand))
    answer = given_gpus(plan(name, view))
    for row in np.flatnonzero((jobs.phase == Phase.ACTIVE) & (next_deadline(view.jobs, view.now) < math.inf)):
        assert answer[int(jobs.id[row])] == tuple(jobs.allocation(row))


worlds = st.builds(
    lambda nodes, jobs: World(nodes, {number: job_of(number, *facts) for number, facts in enumerate(jobs, start=1)}),
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([1, 1, 2, 3, 4, 8]), st.integers(1, 80), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=8
    ),
)


def job_of(number, gpus, length, submitted, slack):
    tiers = due(10 * length * (1 + slack), 30 * length * (1 + slack)) if slack else ()
    return Job(number, gpus=gpus, remaining=10.0 * length, submitted=float(submitted), tiers=tiers)


@every_policy
@given(world=worlds)
@settings(max_examples=10)
@pytest.mark.sampled(4)
def test_everything_possible_finishes(name, config, world):
    policy = registry.create(name, config)
    world.progress = True
    possible = {job.id for job in world.jobs.values() if job.gpus <= sum(world.nodes)}
    work = sum(job.remaining for job in world.jobs.values())
    ticks = int(work / world.seconds) + 100 * (len(world.jobs) + 1)
    while world.jobs.keys() & possible and ticks:
        world.tick(policy)
        ticks -= 1
    assert world.finished == possible
    if name in NOT_PREEMPTIVE:
        assert world.stops == 0


@every_policy
def test_the_simulator_runs_it_to_the_end(name, config):
    count = 24
    workload = make_workload(
        "small",
        [20.0 * number for number in range(count)],
        [60.0 + 37.0 * (number % 7) for number in range(count)],
        [(1, 1, 2, 4)[number % 4] for number in range(count)],
        demand=[(Demand.BEST_EFFORT, Demand.STRICT, Demand.SOFT)[number % 3] for number in range(count)],
        tiers=[[], [(900.0, 100.0)], [(400.0, 100.0), (800.0, 50.0)]] * (count // 3),
        models=[PROFILES[number % 3].name for number in range(count)],
        profiles=PROFILES,
    )
    fates = simulate(workload, Cluster.parse("1x4"), registry.create(name, config), Options()).fates
    assert np.isfinite(fates.ended).all()
    assert (fates.run_time >= workload.duration - 1e-6).all()
    if name in NOT_PREEMPTIVE:
        assert not fates.preemptions.any()
