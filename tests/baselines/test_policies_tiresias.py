"""Attained service: LAS and Tiresias, and their queues; test_tiresias_lists.py has their lists."""

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
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.baselines.tiresias import Tiresias, gittins_index
from stoker.policies.contract import Phase, Profile
from stoker.policies.placement.consolidated import Placement
from stoker.policies.queues.levels import Queues
from views import NOW, Job, World, accounts_for_all, leaves_alone, make_view, reasons, views, written_out
from views import given as given_gpus

SETTINGS = [
    ("las", {}),
    ("las", {"quantum": 1.0}),
    ("tiresias", {}),
    ("tiresias", {"priority": "time", "queues": 5}),
    ("tiresias", {"priority": "gittins"}),
    ("tiresias", {"starve_limit": 2.0, "queues": 2, "threshold_1": 500.0}),
]
every_policy = pytest.mark.parametrize(("name", "config"), SETTINGS, ids=str)


def raw(name, view, **config):
    return registry.create(name, config).plan(view)


def plan(name, view, **config):
    answer = raw(name, view, **config)
    check(answer, view)
    return written_out(answer, view)


def waiting_since(seconds, **facts):
    """A job that has waited for ``seconds`` in all."""
    return Job(submitted=NOW - facts.get("run_time", 0.0) - seconds, **facts)


def completion_times(policy, jobs, gpus=1, **config):
    """Simulated on one node: jobs are (submitted, duration, GPUs)."""
    workload = make_workload("by hand", *zip(*jobs, strict=True))
    result = simulate(workload, Cluster((gpus,)), registry.create(policy, config), Options())
    return (result.fates.ended - workload.submitted).tolist()


# LAS


def test_las_worked_example():
    # Two GPUs. 1 has had 5000 GPU-seconds, 2 has had 2000. 3 has had 1000: with a quantum of 3600 it displaces 1 only.
    running = [Job(1, run_time=5000, held=(0,)), Job(2, run_time=2000, held=(1,))]
    answer = plan("las", make_view([2], [*running, Job(3, run_time=1000)]))
    assert given_gpus(answer) == {2: (1,), 3: (0,)}
    assert reasons(answer) == {1: "resources"}
    # 4 would displace nobody with 1500; 1 has had a quantum more than it in 100 s.
    answer = raw("las", make_view([2], [*running, Job(4, run_time=1500)]))
    assert not answer.allocations
    assert answer.wake_at == NOW + 100
    # A gang of two is served as fast as it has GPUs: 2 is passed by 600 s of it.
    pair = Job(1, gpus=2, run_time=2200, held=(0, 1))
    assert raw("las", make_view([2], [pair, Job(2, run_time=2000)])).wake_at == NOW + (2000 + 3600 - 4400) / 2


def test_las_by_hand():
    # Quantum 100: A runs 0 to 100, B 100 to 300 (a quantum more than A), A 300 to 350, then B.
    assert completion_times("las", [(0, 150, 1), (0, 250, 1)], quantum=100.0) == [350, 400]


# Tiresias


def test_tiresias_worked_example():
    # Four GPUs; queues end at 3250 and 7200 GPU-seconds. 1 stands in the first (2 GPUs x 1000 s), 2 in the second, 3 in the third.
    running = [
        Job(1, gpus=2, run_time=1000, held=(0, 1)),
        Job(2, run_time=5000, lease_time=500, held=(2,)),
        Job(3, run_time=8000, lease_time=900, held=(3,)),
    ]
    # 4 is new. It displaces the one in the lowest queue; 5, of the second queue, displaces nobody of its own.
    view = make_view([4], [*running, Job(4, submitted=1), Job(5, run_time=4000)])
    answer = plan("tiresias", view)
    assert given_gpus(answer) == {1: (0, 1), 2: (2,), 4: (3,)}
    assert list(answer.order) == [5, 3]
    assert [waiting.reason.text for waiting in answer.waiting] == [
        "needs 1 GPU; too few are free, and jobs of lower queues cannot give way now"
    ]
    # 1 sinks first: it has 1250 GPU-seconds to go, on two GPUs.
    assert answer.wake_at == NOW + 625
    # By time 1 has had 1000 s and not 2000: it sinks 2250 s from now, 2 before that.
    assert raw("tiresias", view, priority="time").wake_at == NOW + 2200
    # With one queue it is first come, first served.
    assert not raw("tiresias", view, queues=1).preempt


def test_tiresias_by_hand():
    # A runs 0 to 100 and sinks, B 100 to 150, A 150 to 300.
    assert completion_times("tiresias", [(0, 250, 1), (20, 50, 1)], queues=2, threshold_1=100.0) == [300, 130]
    # A sinks at 100 into the queue where C waits since it sank itself at 50 and B came: A came first, so it goes on.
    jobs = [(0, 160, 1), (20, 150, 1)]
    assert completion_times("tiresias", jobs, queues=2, threshold_1=100.0) == [260, 290]


def test_thresholds_in_use_are_sorted_and_as_many_as_the_queues_need():
    config = Tiresias.Config(queues=4, threshold_1=900.0, threshold_2=100.0, threshold_3=500.0, threshold_4=1.0)
    assert Tiresias(config).queues.thresholds.tolist() == [100, 500, 900]
    assert Tiresias.Config(queues=1).thresholds == ()


def lists(*of_queues, **config):
    """What Tiresias keeps under a configuration, its lists written as ``"3-5|1"``: those that run, then those that wait."""
    settings = Tiresias.Config(**config)
    return {"lists": list(of_queues), "rule": [float(settings.priority == "time"), settings.starve_limit, *settings.thresholds]}


@pytest.mark.parametrize(
    ("before", "displaced"),
    [
        (lists("1|", "|2"), True),  # it has just sunk
        (lists("|", "1|2"), False),
        (lists("|", "2 1|"), False),  # 2 was to run, or has failed
        (lists("|", "|2 1"), True),  # it was to give way, but a guard kept it
    ],
)
def test_only_who_has_sunk_gives_way_within_its_queue(before, displaced):
    """1 runs in the second queue, where 2 waits: has it sunk since the decision before, it stands behind 2."""
    jobs = [Job(1, run_time=3300, lease_time=3300, held=(0,)), Job(2, run_time=4000, submitted=5)]
    view = dataclasses.replace(make_view([1], jobs), memory=before)
    answer = plan("tiresias", view)
    assert given_gpus(answer) == ({2: (0,)} if displaced else {1: (0,)})
    assert answer.memory == lists("|", "2|1" if displaced else "1|2")
    if displaced:  # and once it has stopped, the GPU still goes to 2
        jobs[0] = dataclasses.replace(jobs[0], held=(), lease_time=0.0)
        stopped = dataclasses.replace(make_view([1], jobs), memory=answer.memory)
        assert given_gpus(plan("tiresias", stopped)) == {2: (0,)}


def test_who_was_displaced_goes_before_all_that_wait_in_its_queue():
    """1 and 2 run in the second queue, 2 before 1, and 4 waits there; all give way to 5, and then 2 goes on first, then 1."""
    ran = {"run_time": 4000.0, "lease_time": 4000.0}
    jobs = [Job(1, held=(0,), **ran), Job(2, submitted=1, held=(1,), **ran), Job(4, submitted=2, run_time=4000.0)]
    view = make_view([2], [*jobs, Job(5, gpus=2, submitted=3)])
    answer = plan("tiresias", dataclasses.replace(view, memory=lists("|", "2 1|4")))
    assert sorted(answer.preempt) == [1, 2]
    assert list(answer.order) == [2, 1, 4]
    assert answer.memory == lists("5|", "|2 1 4")
    waits = make_view([2], [dataclasses.replace(job, held=(), lease_time=0.0) for job in jobs])
    assert given_gpus(plan("tiresias", dataclasses.replace(waits, memory=answer.memory))) == {2: (0,), 1: (1,)}


def test_of_the_lowest_queue_who_came_last_goes_first():
    jobs = [Job(1, run_time=7300, held=(0,), submitted=1), Job(2, run_time=9000, held=(1,), submitted=2), Job(3, submitted=3)]
    assert given_gpus(plan("tiresias", make_view([2], jobs))) == {1: (0,), 3: (1,)}


def test_a_job_is_woken_for_when_it_sinks_below_one_that_waits_two_queues_down():
    running = Job(1, run_time=100, lease_time=100, held=(0,), submitted=10)
    assert raw("tiresias", make_view([1], [running, Job(2, run_time=9000)])).wake_at == NOW + 7100


def test_a_starving_job_is_lifted_and_served_anew():
    other = Job(1, run_time=3500, lease_time=3500, held=(0,), submitted=NOW - 3500)
    starving, patient = waiting_since(8000, id=2, run_time=4000), waiting_since(7990, id=2, run_time=4000)
    assert given_gpus(plan("tiresias", make_view([1], [other, starving]), starve_limit=2)) == {2: (0,)}
    assert given_gpus(plan("tiresias", make_view([1], [other, starving]))) == {1: (0,)}
    answer = raw("tiresias", make_view([1], [other, patient]), starve_limit=2)
    assert not answer.allocations
    assert answer.wake_at == pytest.approx(NOW + 10, abs=0.01)
    # Lifted it holds its place against a new job, though it has had more than any threshold, until it has had 3250 s anew.
    lifted = waiting_since(8000, id=2, run_time=4500, lease_time=500, held=(0,))
    answer = raw("tiresias", make_view([1], [lifted, Job(3, submitted=NOW)]), starve_limit=2)
    assert not answer.preempt
    assert answer.wake_at == NOW + 2750
    sunk = waiting_since(8000, id=2, run_time=7300, lease_time=3300, held=(0,))
    assert list(raw("tiresias", make_view([1], [sunk, Job(3, submitted=NOW)]), starve_limit=2).preempt) == [2]


def test_nobody_goes_round_in_circles_while_starving():
    jobs = [(float(start), 400.0 + 130 * (start % 7), 1 + start % 3) for start in range(0, 600, 20)]
    times = completion_times("tiresias", jobs, gpus=4, starve_limit=1.0, threshold_1=200.0, threshold_2=600.0)
    assert all(math.isfinite(time) for time in times)


def test_pack_limit_lets_jobs_of_small_skew_spread():
    held = [Job(1, held=(0,)), Job(2, held=(2,))]
    view = make_view([2, 2], [*held, Job(3, gpus=2, submitted=1)])

    def with_skew(*skews, profile=0):
        jobs = dataclasses.replace(view.jobs, profile=np.array([-1, -1, profile]))
        return dataclasses.replace(view, jobs=jobs, profiles=[Profile("model", skew=skew) for skew in skews])

    assert given_gpus(plan("tiresias", with_skew(0.2)))[3] == (1, 3)
    for consolidated in (with_skew(0.6), with_skew(math.nan), with_skew(0.2, profile=-1), view):
        assert 3 not in given_gpus(plan("tiresias", consolidated))
    assert 3 in given_gpus(plan("tiresias", with_skew(0.6), pack_limit=0.6))


@pytest.mark.parametrize("policy", ["tiresias", "themis"])
def test_who_may_not_be_spread_holds_up_nobody_who_may(policy):
    """3 (large skew) and 4 (small) want two GPUs each, and each node has one; 5 wants them too, and may as well, but they are taken."""
    held = [Job(1, held=(0,)), Job(2, held=(2,))]
    profiles = [Profile("skewed", skew=0.9), Profile("flat", skew=0.1)]
    waits = [Job(number, gpus=2, submitted=number, profile=profile) for number, profile in ((3, 0), (4, 1), (5, 1), (6, 0))]
    answer = plan(policy, make_view([2, 2], [*held, *waits], profiles=profiles))
    assert given_gpus(answer) == {1: (0,), 2: (2,), 4: (1, 3)}
    assert set(reasons(answer)) == {3, 5, 6}


def test_who_is_displaced_and_may_be_spread_goes_on_where_an_equal_before_it_could_not():
    """3 displaces 2, which is of small skew and goes on over two nodes; 1, of its size, comes before it in their queue, but may not."""
    sunk = {"gpus": 2, "run_time": 5000.0}
    jobs = [
        Job(1, submitted=1, profile=0, **sunk),
        Job(2, submitted=2, profile=1, held=(0, 1), lease_time=5000.0, **sunk),
        Job(3, gpus=2, submitted=3, profile=0),
        Job(4, submitted=4, held=(2,)),
        Job(5, submitted=5, held=(4,)),
    ]
    view = make_view([2, 2, 2], jobs, profiles=[Profile("skewed", skew=0.9), Profile("flat", skew=0.1)])
    assert given_gpus(plan("tiresias", view)) == {2: (3, 5), 3: (0, 1), 4: (2,), 5: (4,)}


def test_gittins_index_worked_example():
    # Of three jobs that took 10, 20 and 100: of the next 20 seconds of a new one, two thirds end, after 10, 20 and 20 of them.
    finished = np.array([10.0, 20.0, 100.0])
    index = gittins_index(finished, np.array([0.0, 20.0, 100.0]), np.array([20.0, math.inf, 5.0]))
    assert index.tolist() == pytest.approx([2 / 50, 1 / 80, 0.0])


@given(
    st.lists(st.integers(1, 50).map(float), min_size=1, max_size=12),
    st.integers(0, 50),
    st.one_of(st.integers(1, 60).map(float), st.just(math.inf)),
)
def test_gittins_index_is_its_definition(finished, attained, quantum):
    left = [service - attained for service in finished if service > attained]
    expected = 0.0
    if left:
        expected = (sum(one <= quantum for one in left) / len(left)) / (sum(min(one, quantum) for one in left) / len(left))
    assert gittins_index(np.sort(finished), np.array([float(attained)]), np.array([quantum]))[0] == pytest.approx(expected)


def test_gittins_orders_a_queue_by_index():
    # Jobs end after 100 or 3000 seconds; 1 has had 90, so it is likely to end soon; 2 came first, and has had 500.
    view = make_view([1], [Job(2, run_time=500), Job(1, run_time=90, submitted=1)])
    view = dataclasses.replace(view, finished_service=np.array([100.0] * 5 + [3000.0] * 5))
    assert given_gpus(plan("tiresias", view, priority="gittins")) == {1: (0,)}
    assert given_gpus(plan("tiresias", view)) == {2: (0,)}
    nothing_known = dataclasses.replace(view, finished_service=None)
    assert given_gpus(plan("tiresias", nothing_known, priority="gittins")) == {2: (0,)}


@pytest.mark.parametrize("priority", ["gittins", "service"])
def test_only_gittins_is_given_the_service_of_finished_jobs(priority):
    seen = []

    class Watched(Tiresias):
        def plan(self, view):
            seen.append(view.finished_service)
            return super().plan(view)

    workload = make_workload("by hand", [0.0, 1.0, 2.0], [20.0, 10.0, 30.0], [1, 1, 1])
    simulate(workload, Cluster((1,)), Watched(Tiresias.Config(priority=priority)), Options())
    assert [history is None for history in seen] == [priority != "gittins"] * len(seen)
    if priority == "gittins":
        assert seen[-1].tolist() == [10.0, 20.0]  # when the third job starts


# All of them


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
@given(view=views())
def test_work_conserving(name, config, view):
    answer = plan(name, view, **config)
    free = Placement(view)
    for row in np.flatnonzero(view.jobs.phase == Phase.ACTIVE):
        free.release(view.jobs.allocation(row).tolist())
    for gpus in given_gpus(answer).values():
        free.take(gpus)
    rows = {job: row for row, job in enumerate(view.jobs.id.tolist())}
    for job in reasons(answer):
        assert free.find(int(view.jobs.gpus_min[rows[job]]), memory=float(view.jobs.gpu_memory[rows[job]])) is None


@given(view=views())
def test_no_job_waits_for_a_lower_queue(view):
    """No waiting job could start on the GPUs that jobs of lower queues are given."""
    answer, jobs = plan("tiresias", view), view.jobs
    queue = Queues(Tiresias.Config().thresholds).standing(jobs, view.now, by_service=True).queue
    rows = {job: row for row, job in enumerate(jobs.id.tolist())}
    for job in reasons(answer):
        row = rows[job]
        free = Placement(view)
        for other in np.flatnonzero(jobs.phase == Phase.ACTIVE):
            free.release(jobs.allocation(other).tolist())
        for other, gpus in given_gpus(answer).items():
            if queue[rows[other]] <= queue[row]:
                free.take(gpus)
        assert free.find_soon(int(jobs.gpus_min[row]), memory=float(jobs.gpu_memory[row])) is None


@every_policy
@given(lengths=st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 4]), st.integers(1, 80)), min_size=1, max_size=8))
@settings(max_examples=10)
@pytest.mark.sampled(3)
def test_everything_finishes(name, config, lengths):
    jobs = {number: Job(number, gpus=gpus, remaining=10.0 * length, submitted=NOW) for number, (gpus, length) in enumerate(lengths, 1)}
    world, policy = World([2, 2], jobs, progress=True), registry.create(name, config)
    ticks = sum(length for _, length in lengths) + 100 * (len(lengths) + 1)
    while world.jobs and ticks:
        world.tick(policy)
        ticks -= 1
    assert world.finished == set(range(1, len(lengths) + 1))
