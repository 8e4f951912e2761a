"""Elastic policies: the worked example of each, what its paper promises, and what holds of all of them whatever the view."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import run, workload
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.contract import Demand, Phase
from stoker.policies.estimate.goodput import Goodput, StepTime
from stoker.policies.estimate.throughput import Profile, Throughput
from stoker.policies.queues.elastic import Pool, SpeedCurve, pack, water_fill
from stoker.policies.queues.exchange import exchange
from stoker.policies.queues.timeline import Timeline, fill, follow
from views import GIB, NOW, Job, Kept, World, complete, make_view, reasons, views, written_out
from views import given as given_gpus

#: 1, 1.8, 2.4, 2.8, … times as fast on 1, 2, 3, 4, … GPUs: every further GPU helps less.
CONCAVE = Profile("concave", Throughput([1, 2, 3, 4, 8], [1.0, 1.8, 2.4, 2.8, 3.6]))
LINEAR = Profile("linear", Throughput([1, 64], [1.0, 64.0]))
GOODPUT = Profile(
    "tuned",
    Throughput([1, 16], [1.0, 12.0]),
    Goodput(StepTime(0.1, 0.01, 0.02, 0.001, 0.1, 0.01, 2.0), 32, 512, (4, 128), ((0.0, 100.0), (1.0, 1000.0))),
)
PROFILES = (CONCAVE, LINEAR, GOODPUT)
SETTINGS = [
    ("optimus", {}),
    ("optimus", {"look_ahead": 8, "migrate": False}),
    ("pollux", {}),
    ("pollux", {"adapt_batch_size": False, "fairness": 0.5}),
    ("elasticflow", {}),
    ("infless", {}),
]
every_policy = pytest.mark.parametrize(("name", "config"), SETTINGS, ids=str)


def elastic_view(nodes, jobs, *, profile=(), deadlines=(), progress=None, **more):
    """A view whose jobs (submitted in this order) have profiles, all the concave one unless said, and deadlines in seconds from now."""
    view = make_view(nodes, [dataclasses.replace(job, submitted=job.submitted or float(place)) for place, job in enumerate(jobs)], **more)
    deadline = np.array([NOW + seconds for seconds in deadlines] or [np.inf] * len(jobs), dtype=np.float64)
    return dataclasses.replace(
        view,
        profiles=PROFILES,
        jobs=dataclasses.replace(
            view.jobs,
            profile=np.array(profile or [0] * len(jobs), dtype=np.int64),
            deadline=deadline,
            demand=np.where(np.isfinite(deadline), Demand.STRICT, Demand.BEST_EFFORT).astype(np.int64),
            progress=None if progress is None else np.full(len(jobs), progress),
        ),
    )


def plan(name, view, **config):
    answer = registry.create(name, config).plan(view)
    check(answer, view)
    return written_out(answer, view)


def counts(answer):
    """Number of GPUs of each job."""
    return {job: len(gpus) for job, gpus in given_gpus(answer).items()}


def speed(n):
    return CONCAVE.throughput.rate(n)


# Optimus


def test_optimus_worked_example():
    # 8 GPUs. Each job gets one. The gain of a second is remaining * (1 - 1/1.8) = 0.444, of a third (1/1.8 - 1/2.4) = 0.139,
    # of a fourth (1/2.4 - 1/2.8) = 0.060 of it. Job 1 (1000 s): 444, 139, 60; job 2 (300 s): 133, 42, 18; job 3 (100 s): 44, 14, 6.
    # The five that are left go to 444 (1), 139 (1), 133 (2), 60 (1) and 44 (3).
    jobs = [Job(1, gpus_max=4, remaining=1000), Job(2, gpus_max=4, remaining=300), Job(3, gpus_max=4, remaining=100)]
    assert counts(plan("optimus", elastic_view([8], jobs))) == {1: 4, 2: 2, 3: 2}
    # A job that has hardly begun counts less: at a tenth, job 1 has 44 and 14 to offer against the veterans' 133, 42 and 44.
    veterans = [jobs[0], dataclasses.replace(jobs[1], run_time=9000), dataclasses.replace(jobs[2], run_time=9000)]
    assert counts(plan("optimus", elastic_view([6], veterans), young_factor=0.1)) == {1: 1, 2: 2, 3: 2} | {1: 2}


def test_optimus_starts_the_smallest_gangs_first():
    jobs = [Job(1, gpus=4, remaining=10), Job(2, gpus=1, remaining=1000), Job(3, gpus=2, remaining=1000)]
    answer = plan("optimus", elastic_view([4], jobs, profile=[-1, -1, -1]))
    assert counts(answer) == {2: 1, 3: 2}
    assert reasons(answer) == {1: "resources"}


def test_optimus_leaves_gpus_idle_that_help_nobody():
    assert counts(plan("optimus", elastic_view([8], [Job(1, gpus_max=8, remaining=100)], profile=[-1]))) == {1: 1}


@settings(max_examples=60)
@given(st.lists(st.integers(10, 10_000), min_size=2, max_size=6), st.integers(6, 16))
def test_no_transfer_of_a_gpu_improves_optimus_objective(remaining, gpus):
    jobs = [Job(number, gpus_max=8, remaining=float(seconds)) for number, seconds in enumerate(remaining, 1)]
    answer = counts(plan("optimus", elastic_view([gpus], jobs), young_factor=1.0))
    for taker, giver in itertools.permutations(range(1, len(jobs) + 1), 2):
        if answer[giver] > 1 and answer[taker] < 8:
            before = remaining[taker - 1] / speed(answer[taker]) + remaining[giver - 1] / speed(answer[giver])
            after = remaining[taker - 1] / speed(answer[taker] + 1) + remaining[giver - 1] / speed(answer[giver] - 1)
            assert after >= before - 1e-9
    assert sum(answer.values()) == min(gpus, 8 * len(jobs))


# Pollux


def test_pollux_worked_example():
    # Two equal jobs on 4 GPUs. The fair share is 2, where the speedup is 1; on 1 GPU it is 1/1.8 = 0.556, on 3 2.4/1.8 = 1.333.
    # Means with p = -1: 2 and 2 give 1, 1 and 3 give 2 / (1.8 + 0.75) = 0.784.
    jobs = [Job(1, gpus_max=4, submitted=NOW - 600), Job(2, gpus_max=4, submitted=NOW - 600)]
    assert counts(plan("pollux", elastic_view([4], jobs))) == {1: 2, 2: 2}
    # Three of them on 4 GPUs: the fourth goes to the first job, though it is worth as much to each.
    third = Job(3, gpus_max=4, submitted=NOW - 600)
    assert counts(plan("pollux", elastic_view([4], [*jobs, third]))) == {1: 2, 2: 1, 3: 1}


def test_pollux_resizes_only_for_more_than_a_restart_costs():
    # Job 1 runs on 3 of 4 GPUs, 2 on one: mean of speedups 2 / (1/1.333 + 1/0.556) = 0.784. Even shares would give 1, times
    # the factor (T - 0) / (T + 30) of both. After 60 s that is 2/3: not worth it; after 600 s it is 0.952.
    def running(age):
        return [Job(1, gpus_max=4, held=(0, 1, 2), submitted=NOW - age), Job(2, gpus_max=4, held=(3,), submitted=NOW - age)]

    assert counts(plan("pollux", elastic_view([4], running(60)))) == {1: 3, 2: 1}
    assert counts(plan("pollux", elastic_view([4], running(600)))) == {1: 2, 2: 2}
    assert counts(plan("pollux", elastic_view([4], running(60)), restart=0.0)) == {1: 2, 2: 2}
    # Who was changed often is left alone: R = 19 of 600 s leaves (600 - 570) / 630 = 0.048.
    often = [dataclasses.replace(job, preemptions=19) for job in running(600)]
    assert counts(plan("pollux", elastic_view([4], often))) == {1: 3, 2: 1}


def test_pollux_chooses_batch_sizes_only_where_it_may():
    jobs = [Job(1, gpus_max=8), Job(2, gpus_max=8)]
    view = elastic_view([8], jobs, profile=[2, 0], progress=0.5)
    answer = check(registry.create("pollux", {}).plan(view), view)
    n = len(answer.allocations[1].gpus)
    assert answer.allocations[1].batch_size == GOODPUT.goodput.best(np.array([1]), np.array([n]), 0.5)[1][0] > 32
    assert answer.allocations[2].batch_size is None
    assert answer.wake_at == NOW + 60.0  # the noise scale grows whether or not anything happens
    fixed = registry.create("pollux", {"adapt_batch_size": False}).plan(view)
    assert {allocation.batch_size for allocation in fixed.allocations.values()} == {None}
    assert fixed.wake_at is None


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from([-2.0, -1.0, 0.0, 0.5]))
def test_equal_jobs_get_equal_shares_of_pollux(jobs, share, fairness):
    view = elastic_view([jobs * share], [Job(number, gpus_max=8) for number in range(1, jobs + 1)])
    assert set(counts(plan("pollux", view, fairness=fairness)).values()) == {min(share, 8)}


# ElasticFlow


def test_elasticflow_worked_example():
    # Speeds 1, 1.8, 2.8, 3.6 on 1, 2, 4, 8 GPUs. Job 1 (1000 s of work, due in 600) needs 2 GPUs: 556 s. Job 2 (1000 s, due in
    # 400) needs 4: 357 s. Job 3 (1000 s, due in 250) could not do it on 8 (278 s). Job 4 has no deadline and takes one GPU of
    # the 2 that are left of 8. The last: raising job 4 from 1 to 2 saves 1 * 0.8 / 1 of GPU time; of job 1, from 2 to 4 costs 2 GPUs.
    jobs = [Job(1, gpus_max=8, remaining=1000), Job(2, gpus_max=8, remaining=1000), Job(3, gpus_max=8, remaining=1000), Job(4, gpus_max=8)]
    answer = plan("elasticflow", elastic_view([8], jobs, deadlines=[600, 400, 250, math.inf]))
    assert counts(answer) == {1: 2, 2: 4, 4: 2}
    assert list(answer.rejected) == [3]
    assert reasons(answer) == {3: "rejected"}


def test_elasticflow_admits_nobody_at_the_cost_of_a_promise():
    # Job 1 runs, and needs both GPUs until its deadline; job 2 would meet its own on one of them.
    jobs = [Job(1, gpus_max=2, remaining=1000, held=(0, 1), run_time=10), Job(2, remaining=100)]
    assert list(plan("elasticflow", elastic_view([2], jobs, deadlines=[560, 200])).rejected) == [2]
    assert list(plan("elasticflow", elastic_view([2], jobs, deadlines=[800, 200])).rejected) == []


def test_elasticflow_lets_a_later_deadline_wait():
    # One GPU, two jobs of 100 s: the one that is due in 100 s goes first, and has the GPU until the round in which it ends is over
    # at 120 s. So the other can be promised 220 s, and not 210.
    jobs = [Job(1, remaining=100), Job(2, remaining=100)]
    answer = plan("elasticflow", elastic_view([1], jobs, deadlines=[220, 100]))
    assert counts(answer) == {2: 1}
    assert reasons(answer) == {1: "resources"}
    assert list(plan("elasticflow", elastic_view([1], jobs, deadlines=[210, 100])).rejected) == [2]


def test_elasticflow_judges_no_more_new_jobs_than_it_is_told():
    jobs = [Job(number, remaining=100) for number in (1, 2, 3)]
    answer = plan("elasticflow", elastic_view([4], jobs, deadlines=[50, 200, 50]), judged=2)
    assert list(answer.rejected) == [1]
    assert reasons(answer) == {1: "rejected", 3: "round"}


requests = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(1, 8000), st.sampled_from([1, 1, 2, 4]), st.integers(0, 1)), min_size=1, max_size=8
)


@settings(max_examples=60)
@given(requests, st.integers(1, 12))
def test_promised_shares_meet_their_deadlines_and_fit(requests, gpus):
    """Filling by deadline: nobody has more than is free, and each is done at its deadline at the latest, whatever came before it."""
    timeline = Timeline.of(gpus, [(500.0, 2), (math.inf, 9)])
    for work, deadline, least, profile in sorted(requests, key=lambda request: request[1]):
        options = least * 2 ** np.arange(3)
        pace = np.array([PROFILES[profile].throughput.rate(n) / PROFILES[profile].throughput.rate(least) for n in options.tolist()])
        filling = fill(timeline, options, pace, float(work), float(deadline))
        if filling is None:
            most = pace[np.clip(np.searchsorted(options, timeline.free.max(), side="right") - 1, 0, 2)]
            assert most * deadline < work or timeline.free.min() < options[-1]
            continue
        left = filling.left
        assert (left.free >= 0).all()
        # What it takes at each time, and the work that this does by the deadline.
        edges = np.append(left.times, np.inf)
        taken = [
            int(timeline.free[np.searchsorted(timeline.times, at, side="right") - 1]) - int(n)
            for at, n in zip(left.times, left.free, strict=True)
        ]
        done = sum(
            float(pace[np.searchsorted(options, n)]) * (min(edges[part + 1], deadline) - edges[part]) for part, n in enumerate(taken) if n
        )
        assert done == pytest.approx(work)
        assert filling.end <= deadline * (1 + 1e-9)
        assert max(taken) <= filling.share
        timeline = left


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whoever_elasticflow_admits_meets_its_deadline_in_the_end(seed):
    rng = np.random.default_rng(seed)
    submitted, work = np.sort(rng.integers(0, 1500, 40)).astype(float), rng.integers(200, 3000, 40).astype(float)
    due = submitted + work * rng.uniform(0.4, 2.0, 40)
    workload = make_workload(
        "deadlines", submitted, work, np.ones(40), gpus_max=np.full(40, 8), models=["concave"] * 40, profiles=[CONCAVE],
        demand=np.full(40, int(Demand.STRICT)), tiers=[[(float(moment), 100.0)] for moment in due],
    )  # fmt: skip
    fates = simulate(workload, Cluster((8,)), registry.create("elasticflow", {}), Options()).fates
    assert (fates.ended[~fates.rejected] <= due[~fates.rejected] + 1e-6).all()
    assert 5 <= fates.rejected.sum() <= 35


def strict(due):
    """Columns of a workload whose jobs have strict deadlines, NaN: none."""
    return {
        "demand": [Demand.BEST_EFFORT if math.isnan(moment) else Demand.STRICT for moment in due],
        "tiers": [[] if math.isnan(moment) else [(float(moment), 100.0)] for moment in due],
    }


def random_deadlines(seed, elastic):
    """Twenty jobs on gangs of 1, 2 and 4 GPUs, four in five with deadlines, of which some can be met; and the deadlines."""
    rng = np.random.default_rng(seed)
    submitted, work = np.sort(rng.integers(0, 2000, 20)).astype(float), rng.integers(100, 3000, 20).astype(float)
    gpus = rng.choice([1, 1, 2, 4], 20)
    due = np.where(rng.random(20) < 0.8, submitted + work * rng.uniform(0.5, 3.0, 20) + 60.0, np.nan)
    models = np.where(rng.random(20) < 0.5, "linear", "concave") if elastic else ["rigid"] * 20
    most = gpus * rng.choice([1, 2, 4], 20) if elastic else gpus
    rows = list(zip(submitted.tolist(), work.tolist(), gpus.tolist(), strict=True))
    return workload(rows, gpus_max=most, models=models, profiles=[LINEAR, CONCAVE], **strict(due)), due


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "elastic"), [("1x4", True), ("1x8", False), ("2x4", False), ("2x8", True)])
@pytest.mark.sampled(2)
def test_no_promised_deadline_is_missed(nodes, elastic):
    """With right estimates, no costs, and gangs and nodes of powers of two: who is admitted is in time, and is not rejected later."""
    missed, rejected, met = [], 0, 0
    for seed in range(6):
        jobs, due = random_deadlines(seed, elastic)
        judged = {}

        def observe(view, plan, actions, judged=judged):
            new = [job for group in plan.waiting if group.reason.code == "round" for job in map(int, group.jobs)]
            for job in view.jobs.id[np.isfinite(view.jobs.deadline)].tolist():
                if job not in new:
                    judged.setdefault(job, job not in plan.rejected)

        fates = run(jobs, "elasticflow", nodes, observer=observe).fates
        for job, promised in judged.items():
            if promised and (fates.rejected[job] or not fates.ended[job] <= due[job] + 1e-6):
                missed.append((seed, job))
            rejected, met = rejected + (not promised), met + promised
    assert not missed
    assert rejected > 10
    assert met > 10


def test_elasticflow_keeps_a_promise_to_a_job_that_still_waits():
    # Job 0 has both GPUs, and is done at 350; so job 1, which needs both for 300 s, is promised 720. At 60 s one GPU would do for job 0,
    # which has 580 s of work and 600 s: with that, job 1 would find no room. It has its promise.
    due = [660.0, 720.0]
    jobs = workload([(0, 700, 1), (0, 300, 2)], gpus_max=[2, 2], models=["linear", "rigid"], profiles=[LINEAR], **strict(due))
    fates = run(jobs, "elasticflow", "1x2").fates
    assert fates.ended.tolist() == [350.0, 660.0]
    # Of a job that has run and of which it knows nothing else, as after a restart, a policy takes what it holds for its plan.
    view = elastic_view([2], [Job(1, gpus_max=2, remaining=580, held=(0, 1), run_time=60), Job(2, gpus=2, remaining=300)],
                        profile=[1, -1], deadlines=[600, 660])  # fmt: skip
    promised = {"round": {"began": NOW - 60}, "promises": [[2, [[0.0, 360.0, 660.0], [0, 2, 0]]]]}
    assert list(registry.create("elasticflow", {}).plan(dataclasses.replace(view, memory=promised)).rejected) == []


def test_elasticflow_stops_whom_it_preempts_for_a_job_that_grows():
    # At 300 s it is found that job 0 has 700 s of work left, and 550 s: it needs the GPU of job 1, which has no deadline.
    due = [850.0, math.nan, math.nan]
    jobs = workload([(0, 1000, 1), (0, 10_000, 1), (1, 10_000, 1)], gpus_max=[2, 1, 1], models=["linear", "rigid", "rigid"],
                    profiles=[LINEAR], **strict(due))  # fmt: skip
    fates = run(jobs, "elasticflow", "1x2", errors=Errors(bias=-0.5, corrected=300.0)).fates
    assert fates.ended[0] == 820.0
    assert fates.preemptions[1] == 1


def test_elasticflow_leaves_no_gpu_idle_for_a_gang_that_does_not_fit():
    # Three gangs of two on two nodes of three GPUs: six GPUs, but the third gang finds no two on one node. Job 3 has one of them meanwhile,
    # and the third gang, which was admitted by the number of GPUs, starts when the others are done, late as it is.
    due = [1500.0] * 3 + [math.nan]
    fates = run(workload([(0, 1000, 2)] * 3 + [(0, 100, 1)], **strict(due)), "elasticflow", "2x3").fates
    assert fates.started.tolist() == [0.0, 0.0, 1020.0, 0.0]
    assert not fates.rejected.any()


def test_elasticflow_places_a_gang_where_jobs_shrink():
    # Two GPUs each will do for jobs 1 and 2, which hold a node each; so job 3 has four, and these are to be on one node.
    running = [Job(job, gpus=2, gpus_max=4, remaining=1000, held=held, run_time=60) for job, held in ((1, (0, 1, 2, 3)), (2, (4, 5, 6, 7)))]
    answer = plan(
        "elasticflow", elastic_view([4, 4], [*running, Job(3, gpus=4, remaining=500)], profile=[1, 1, -1], deadlines=[1100, 1100, 550])
    )
    assert counts(answer) == {1: 2, 2: 2, 3: 4}
    assert set(given_gpus(answer)[3]) in ({0, 1, 2, 3}, {4, 5, 6, 7})


def test_elasticflow_goes_on_as_planned_only_as_far_as_it_can():
    free, gpus, speed = Timeline(np.array([0.0, 100.0]), np.array([1, 4])), np.array([1, 2, 4]), np.array([1.0, 2.0, 4.0])
    planned = Timeline(np.array([0.0, 60.0, 160.0, 260.0]), np.array([0, 1, 4, 0])).after(60.0)
    assert planned.times.tolist() == [0.0, 100.0, 200.0]
    filling = follow(free, planned, gpus, speed, 400.0, 180.0, 60.0)
    assert (filling.share, filling.now, filling.end) == (4, 1, 175.0)
    assert filling.left.times.tolist() == [0.0, 100.0, 180.0, 200.0]  # it holds its GPUs to the end of its slot
    assert filling.left.free.tolist() == [0, 0, 4, 4]
    assert filling.held.free.tolist() == [1, 4, 0, 0]
    assert follow(free, planned, gpus, speed, 400.0, 174.0) is None  # late
    assert follow(free, planned, gpus, speed, 501.0, 1000.0) is None  # more work than was planned for
    assert follow(free, planned, gpus[:2], speed[:2], 400.0, 200.0) is None  # it can no longer use four
    assert follow(Timeline(np.zeros(1), np.array([3])), planned, gpus, speed, 400.0, 200.0) is None  # there are no four


# INFless


def test_infless_worked_example():
    # With a tenth of headroom and 30 s to start: job 1 has 1100 s to do in 700 - 30, so 1.8 on 2 GPUs will do (611 s). Job 2 has
    # 1100 s to do in 390 - 30: 3.06 times, so 6 GPUs (3.2); 5 are left (of 7), so it waits. Job 3 cannot meet 40 s: one GPU.
    jobs = [Job(1, gpus_max=8, remaining=1000), Job(2, gpus_max=8, remaining=1000), Job(3, gpus_max=8, remaining=1000), Job(4, gpus_max=8)]
    answer = plan("infless", elastic_view([7], jobs, deadlines=[700, 390, 40, math.inf]))
    assert counts(answer) == {1: 2, 3: 1, 4: 1}
    assert reasons(answer) == {2: "resources"}
    assert counts(plan("infless", elastic_view([8], jobs[:2], deadlines=[700, 390]))) == {1: 2, 2: 6}


def test_infless_gives_a_late_job_more_and_takes_nothing_back():
    late, early = (
        Job(1, gpus_max=4, held=(0,), remaining=1000, run_time=50),
        Job(2, gpus_max=4, held=(1, 2, 3, 4), remaining=10, run_time=50),
    )
    assert counts(plan("infless", elastic_view([8], [late, early], deadlines=[700, 9000]))) == {1: 2, 2: 4}
    # Nobody gives way to it when GPUs are short.
    assert counts(plan("infless", elastic_view([5], [late, early], deadlines=[700, 9000]))) == {1: 1, 2: 4}


# Dividing and packing


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 10))
def test_water_filling_concave_worths_is_optimal(gains, budget):
    worth = [np.concatenate([[0.0], np.cumsum(sorted(steps, reverse=True))]) for steps in gains]
    options = [np.arange(len(one)) for one in worth]
    ends = water_fill(options, worth, [0] * len(worth), budget)
    best = max(
        sum(one[n] for one, n in zip(worth, division, strict=True)) for division in itertools.product(*options) if sum(division) <= budget
    )
    assert sum(ends) <= budget
    assert sum(one[n] for one, n in zip(worth, ends, strict=True)) == pytest.approx(best)


def test_looking_ahead_gets_over_a_number_that_gains_nothing():
    gpus, worth = [np.array([4, 5, 8])], [np.array([1.0, 0.9, 1.9])]
    assert water_fill(gpus, worth, [0], 4) == [0]
    assert water_fill(gpus, worth, [0], 4, look_ahead=2) == [2]
    assert water_fill(gpus, worth, [0], 3, look_ahead=2) == [0]


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 8), st.randoms(use_true_random=False))
def test_no_exchange_between_two_improves_what_exchange_leaves(jobs, columns, budget, random):
    worth = np.array([[0.0, *(random.choice([-np.inf, random.uniform(-1, 9)]) for _ in range(columns))] for _ in range(jobs)])
    division = exchange(worth, np.zeros(jobs, dtype=np.int64), budget)
    assert division.sum() <= budget
    rows = np.arange(jobs)
    total = worth[rows, division].sum()
    for other in itertools.product(range(columns + 1), repeat=jobs):
        changed = np.flatnonzero(np.array(other) != division)
        if len(changed) <= 1 and sum(other) <= budget:
            assert worth[rows, list(other)].sum() <= total + 1e-9


def test_who_keeps_its_number_stays_and_who_shrinks_keeps_its_own():
    jobs = [Job(1, gpus_max=8, held=(0, 1)), Job(2, gpus_max=8, held=(2, 3, 8)), Job(3, gpus_max=8, held=(9,)), Job(4, gpus_max=8)]
    given = pack(Pool(elastic_view([8, 8], jobs)), {0: 2, 1: 2, 2: 4, 3: 4}, lambda row, n: n - 1)
    assert given[0] == (0, 1)
    assert given[1] == (2, 3)
    assert len(given[2]) == len(given[3]) == 4
    held = [gpu for gpus in given.values() for gpu in gpus]
    assert len(set(held)) == len(held)


def test_small_jobs_make_room_for_a_gang():
    # 4 wants a node; each has a small job. One of them moves, if it may.
    jobs = [Job(1, held=(0,)), Job(2, held=(4,)), Job(4, gpus=4)]
    assert pack(Pool(elastic_view([4, 4], jobs)), {0: 1, 1: 1, 2: 4}, lambda row, n: 0) == {0: (5,), 1: (4,), 2: (0, 1, 2, 3)}
    assert 2 not in pack(Pool(elastic_view([4, 4], jobs)), {0: 1, 1: 1, 2: 4}, lambda row, n: 0, migrate=False)


def test_nobody_moves_for_a_gang_that_can_do_with_less():
    # Job 3 would like 3 GPUs of one node, but 1 could then not go on with 2.
    jobs = [Job(1, gpus_max=2, held=(0, 1)), Job(2, gpus_max=3, held=(4, 5, 6)), Job(3, gpus_max=3)]
    assert pack(Pool(elastic_view([4, 4], jobs)), {0: 2, 1: 3, 2: 3}, lambda row, n: n - 1) == {0: (0, 1), 1: (4, 5, 6), 2: (2, 3)}


# Over several nodes

#: A quarter as fast over several nodes as on one: 8 GPUs are no faster than 2 of one node.
SLOWER = Profile("slower over nodes", Throughput([1, 2, 8], [1.0, 2.0, 8.0], [0.25, 0.5, 2.0]))


def over_nodes(nodes, *jobs, **facts):
    view = elastic_view(nodes, list(jobs), **facts)
    return dataclasses.replace(view, profiles=(SLOWER,))


@every_policy
def test_nobody_grows_beyond_a_node_where_that_is_slower(name, config):
    """A job that may have two nodes, and is fastest on the whole of one."""
    view = over_nodes([4, 4], Job(1, gpus=2, gpus_max=8, remaining=4000, submitted=NOW - 600), deadlines=[2100])
    assert len(given_gpus(plan(name, view, **config))[1]) <= 4
    view = over_nodes([4, 4], Job(1, gpus=2, gpus_max=8, remaining=4000, held=(0, 1, 2, 3), submitted=NOW - 600), deadlines=[2100])
    assert given_gpus(plan(name, view, **config)) == {1: (0, 1, 2, 3)}


def test_shares_beyond_a_node_count_their_speed_over_several():
    """1000 s on 2 GPUs of a node are 500 on 4. Over nodes of 2, not even 8 GPUs would be faster: a deadline in 900 s is out of reach."""
    job = Job(1, gpus=2, gpus_max=8, remaining=1000)
    assert counts(plan("elasticflow", over_nodes([8], job, deadlines=[600]))) == {1: 8}  # 4 would do; nobody wants the others
    assert reasons(plan("elasticflow", over_nodes([2, 2, 2, 2], job, deadlines=[900]))) == {1: "rejected"}
    assert counts(plan("infless", over_nodes([8], job, deadlines=[600]), headroom=0.0)) == {1: 4}
    assert counts(plan("infless", over_nodes([2, 2, 2, 2], job, deadlines=[900]), headroom=0.0)) == {1: 2}


def test_a_gang_that_needs_several_nodes_is_measured_by_their_speed():
    """The more GPUs over several nodes, the faster, and its length is meant on 4 of them: 500 s on 8."""
    job = Job(1, gpus=4, gpus_max=8, remaining=1000)
    assert counts(plan("elasticflow", over_nodes([2, 2, 2, 2], job, deadlines=[510]))) == {1: 8}
    assert counts(plan("optimus", over_nodes([2, 2, 2, 2], job))) == {1: 8}


def test_gpus_that_are_too_small_for_a_job_make_no_node_for_it():
    """A node of 4 large GPUs and one of 2 large and 4 small ones: a gang of large ones that is on one node has 4, any other 6."""
    memory = [4 * GIB] * 4 + [4 * GIB, 4 * GIB, GIB, GIB, GIB, GIB]
    pool = Pool(over_nodes([4, 6], Job(1, gpus=2, memory=4 * GIB), Job(2, gpus=2), memory=memory))
    assert (pool.node.tolist(), pool.most.tolist()) == ([4, 6], [2, 2])


def test_fewer_gpus_are_the_fastest_of_them():
    curve = SpeedCurve(np.array([2, 3, 4, 5, 6, 7, 8]), np.array([1.0, 1.5, 2.0, 1.0, 1.5, 2.0, 2.5]))
    assert [curve.fewer(n) for n in (8, 7, 5, 4, 3, 2)] == [7, 4, 4, 3, 2, 0]


# All of them


@st.composite
def elastic_views(draw):
    view = draw(views())
    n = len(view.jobs)

    def column(values, dtype):
        return np.array([draw(values) for _ in range(n)], dtype=dtype)

    return dataclasses.replace(
        view,
        profiles=PROFILES,
        jobs=dataclasses.replace(
            view.jobs,
            gpus_max=view.jobs.gpus_min + column(st.integers(0, 12), np.int64),
            profile=column(st.integers(-1, 2), np.int64),
            demand=column(st.integers(0, 2), np.int64),
            deadline=column(st.sampled_from([np.inf, NOW - 5, NOW + 100, NOW + 3000, NOW + 20_000]), np.float64),
            progress=column(st.sampled_from([0.0, 0.5, math.nan]), np.float64),
        ),
    )


@every_policy
@given(view=elastic_views())
def test_every_plan_is_valid_complete_and_deterministic(name, config, view):
    for seen in (view, protect(view, PreemptionLimits(min_run_time=50, max_preemptions=3))):
        answer = registry.create(name, config).plan(seen)
        given = given_gpus(written_out(check(answer, seen), seen))
        assert answer.allocations == registry.create(name, config).plan(seen).allocations
        why, jobs = reasons(answer), seen.jobs
        schedulable = {job for job, phase in zip(jobs.id.tolist(), jobs.phase, strict=True) if phase != Phase.STOPPING}
        assert set(why) | set(given) == schedulable
        assert set(why).isdisjoint(given)
        assert sorted(answer.order) == sorted(why)
        if jobs.protected is not None:
            for row in np.flatnonzero((jobs.phase == Phase.ACTIVE) & jobs.protected):
                assert given[int(jobs.id[row])] == tuple(jobs.allocation(row))
    if name == "infless":
        assert not answer.preempt


@pytest.mark.parametrize("name", ["optimus", "pollux", "elasticflow"])
def test_a_round_stands_until_the_next(name):
    policy = Kept(registry.create(name, {}))
    jobs = [Job(1, gpus_max=4, remaining=9000), Job(2, gpus_max=4, remaining=5000)]
    first = given_gpus(policy.plan(elastic_view([8], jobs)))
    # A job that comes between rounds waits, and who had to stop for the division starts where it was meant to.
    between = elastic_view([8], [*jobs, Job(3)], now=NOW + 1)
    answer = policy.plan(between)
    assert given_gpus(written_out(check(answer, between), between)) == first
    assert reasons(answer) == {3: "round"}
    after = elastic_view([8], [*jobs, Job(3)], now=NOW + policy.interval)
    assert 3 in given_gpus(policy.plan(after))


@pytest.mark.parametrize("name", ["optimus", "pollux", "elasticflow"])
def test_a_round_lives_with_what_has_gone_out_of_use(name):
    policy = Kept(registry.create(name, {}))
    jobs = [Job(1, gpus_max=4, remaining=9000), Job(2, gpus_max=4, remaining=5000)]
    lost = given_gpus(policy.plan(elastic_view([8], jobs)))[1][0]
    view = elastic_view([8], jobs, now=NOW + 1, unusable=[lost])
    answer = policy.plan(view)
    assert 1 not in given_gpus(written_out(check(answer, view), view))
    assert reasons(answer)[1] == "resources"


@every_policy
def test_a_fixed_set_of_jobs_comes_to_rest(name, config):
    rng = np.random.default_rng(7)
    jobs = {}
    for number in range(1, 15):
        gpus = int(rng.choice([1, 1, 2, 4]))
        jobs[number] = Job(number, gpus=gpus, gpus_max=4 * gpus, remaining=float(rng.integers(500, 9000)), submitted=NOW - 1000 - number)
    world = World([4, 4, 3], jobs, limits=PreemptionLimits(min_run_time=0.0), seconds=600.0)
    policy = registry.create(name, config)
    view = world.view
    world.view = lambda: dataclasses.replace(  # type: ignore[method-assign]
        seen := view(), profiles=PROFILES, jobs=dataclasses.replace(seen.jobs, profile=seen.jobs.id % 2)
    )
    for _ in range(40):
        world.tick(policy)
    stops = world.stops
    for _ in range(10):
        world.tick(policy)
    assert world.stops == stops


def test_a_plan_names_only_what_changes():
    jobs = [Job(1, gpus_max=1, held=(0,), remaining=100), Job(2, gpus_max=1, remaining=100)]
    view = elastic_view([4], jobs)
    answer = registry.create("optimus", {}).plan(view)
    assert set(answer.allocations) == {2}
    assert set(complete(answer, view)) == {1, 2}


def test_a_timeline_is_brief_without_the_times_at_which_nothing_changes() -> None:
    brief = Timeline(np.array([0.0, 10.0, 20.0, 30.0]), np.array([2, 2, 4, 4])).brief()
    assert (brief.times.tolist(), brief.free.tolist()) == ([0.0, 20.0], [2, 4])


@pytest.mark.parametrize("policy", ["elasticflow", "optimus", "pollux", "infless"])
def test_a_running_job_may_hold_gpus_of_which_nobody_knows_whether_they_suit_it(policy: str) -> None:
    """It needs 48 GB on each of its GPUs, of whose memory nothing is known, and may not be resized yet."""
    view = make_view((4,), [Job(1, gpus=4, gpus_max=8, held=(0, 1, 2, 3), memory=48e9), Job(2)])
    profiled = dataclasses.replace(view.jobs, profile=np.array([0, 0]))
    view = protect(dataclasses.replace(view, profiles=PROFILES, jobs=profiled), PreemptionLimits(min_run_time=50))
    memory = np.array([0.0, 0.0, 0.0, 24e9])
    view = dataclasses.replace(view, gpus=dataclasses.replace(view.gpus, memory=memory))
    assert registry.create(policy, {}).plan(view) is not None
