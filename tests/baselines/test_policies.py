"""Policies: the worked example of each, and what holds of all of them whatever the view."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import PreemptionLimits, protect
from stoker.engine.scheduling.plan_check import check
from stoker.policies import registry
from stoker.policies.contract import Phase
from stoker.policies.keys import make_config
from stoker.policies.placement.consolidated import Placement
from views import (
    GIB,
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

SETTINGS = [
    ("fifo", {}),
    ("fifo", {"backfill": True}),
    ("priority", {}),
    ("priority", {"backfill": True}),
    ("srtf", {}),
    ("srtf", {"hysteresis": 1.0}),
]
every_policy = pytest.mark.parametrize(("name", "config"), SETTINGS, ids=str)


def plan(name, view, **config):
    answer = registry.create(name, config).plan(view)
    check(answer, view)
    return written_out(answer, view)


# FIFO


def test_fifo_worked_example():
    # Four GPUs. 1 runs on two of them; 2 wants four and is first in line, so 3 and 4 wait behind it.
    jobs = [Job(1, gpus=2, held=(0, 1)), Job(4, submitted=30), Job(3, submitted=20), Job(2, gpus=4, submitted=10)]
    answer = plan("fifo", make_view([4], jobs))
    assert given_gpus(answer) == {1: (0, 1)}
    assert reasons(answer) == {2: "resources", 3: "behind", 4: "behind"}
    assert list(answer.order) == [2, 3, 4]
    assert {w.reason.text for w in answer.waiting} == {
        "needs 4 GPUs on one node; too few are free",
        "waits its turn: a job before it waits for GPUs",
    }
    # With backfill 3 and 4 take the free pair.
    assert given_gpus(plan("fifo", make_view([4], jobs), backfill=True)) == {1: (0, 1), 3: (2,), 4: (3,)}


def test_fifo_orders_by_submission_then_id():
    jobs = [Job(9, submitted=5), Job(3, submitted=7), Job(2, submitted=7)]
    assert given_gpus(plan("fifo", make_view([2], jobs))) == {9: (0,), 2: (1,)}


def test_an_impossible_job_blocks_nobody():
    jobs = [Job(1, gpus=5), Job(2, gpus=1, memory=100 * GIB), Job(3)]
    answer = plan("fifo", make_view([4], jobs, memory=[80 * GIB] * 4))
    assert given_gpus(answer) == {3: (0,)}
    assert {w.reason.text for w in answer.waiting} == {
        "needs 5 GPUs; the pool has only 4, so it can never start here",
        "needs 1 GPU of 100 GiB; the pool has only 0, so it can never start here; 'memory: {cap: SIZE}', or a smaller cap, trains in less",
    }
    assert set(reasons(answer).values()) == {"impossible"}


@pytest.mark.parametrize(
    ("unusable", "needs", "usable"), [([0, 1, 2, 3], 1, 0), ([0, 3], 2, 2), ([1], 4, 3)], ids=["none", "none whole", "too few"]
)
@pytest.mark.parametrize("policy", ["priority", "fifo", "unisched", "genie"])
def test_gpus_that_may_not_be_given_are_named_as_what_is_lacking(policy, unusable, needs, usable):
    (entry,) = plan(policy, make_view([2, 2], [Job(1, gpus=needs)], unusable=unusable)).waiting
    place = {1: "needs 1 GPU", 2: "needs 2 GPUs on one node", 4: "needs 4 GPUs on 2 nodes"}[needs]
    said = f"{place}; {usable} of the pool's 4 GPUs may be given now, the others are drained, silent or dirty: 'stoker status' shows them"
    assert (entry.reason.code, entry.reason.text) == ("resources", said)


def test_gpus_that_are_held_are_not_said_to_be_kept_back():
    (entry,) = plan("priority", make_view([2, 2], [Job(1, held=(1,)), Job(2, gpus=2)], unusable=[2])).waiting
    assert entry.reason.text == "needs 2 GPUs on one node; too few are free, and jobs of lower priority cannot give way now"


def test_a_displaced_job_that_outgrew_the_pool_is_told_so():
    # 1 began on four GPUs before it was known to need 48 GiB on each; displaced by 2, it can start nowhere any more.
    jobs = [Job(1, gpus=4, held=(0, 1, 2, 3), memory=48 * GIB, remaining=9000), Job(2, remaining=10)]
    answer = plan("srtf", make_view([4], jobs, memory=[24 * GIB] * 4))
    assert given_gpus(answer) == {2: (0,)}
    assert reasons(answer) == {1: "impossible"}


def test_without_a_runner_the_reason_says_so():
    assert reasons(plan("fifo", make_view([], [Job(1), Job(2, gpus=4)]))) == {1: "no-gpus", 2: "no-gpus"}


@pytest.mark.parametrize("policy", ["fifo", "srtf", "priority", "las", "tiresias"])
def test_the_only_job_of_a_pool_without_gpus_waits(policy):
    answer = plan(policy, make_view([], [Job(1)]))
    assert given_gpus(answer) == {}
    assert reasons(answer).keys() == {1}


def test_what_stops_is_reserved_for_the_first_in_line():
    # 1 gives its two GPUs up; 2 (first in line) is planned on them, so that 3 does not take the free one.
    jobs = [Job(1, gpus=2, held=(0, 1), stopping=True), Job(2, gpus=3, submitted=1), Job(3, submitted=2)]
    answer = plan("fifo", make_view([3], jobs), backfill=True)
    assert given_gpus(answer) == {2: (0, 1, 2)}
    assert reasons(answer) == {3: "resources"}


# Preemptive priority


def test_priority_worked_example():
    # Four GPUs, held by two jobs of priority 0 (2 is the newer), one of priority 1 and one of priority 5.
    running = [
        Job(1, held=(0,), lease_time=900),
        Job(2, held=(1,), lease_time=100),
        Job(3, priority=1, held=(2,), lease_time=10),
        Job(4, priority=5, held=(3,), lease_time=900),
    ]
    # One GPU of priority 2: the lowest priority loses, and of those the most recently started.
    answer = plan("priority", make_view([4], [*running, Job(5, priority=2)]))
    assert given_gpus(answer) == {1: (0,), 3: (2,), 4: (3,), 5: (1,)}
    assert reasons(answer) == {2: "resources"}
    # Three GPUs of priority 2 displace all that is lower, and never the 5.
    assert given_gpus(plan("priority", make_view([4], [*running, Job(5, gpus=3, priority=2)]))) == {4: (3,), 5: (0, 1, 2)}
    # Four cannot be had: nobody is displaced in vain (ROCm/spur #888).
    assert given_gpus(plan("priority", make_view([4], [*running, Job(5, gpus=4, priority=2)]))) == {1: (0,), 2: (1,), 3: (2,), 4: (3,)}
    # Equals are not displaced.
    assert 5 not in given_gpus(plan("priority", make_view([4], [*running, Job(5, priority=0)])))


def test_priority_displaces_the_smallest_set_that_helps():
    # On one node of 4: the pair job alone makes room for a pair, though the single jobs started later.
    running = [Job(1, gpus=2, held=(0, 1), lease_time=500), Job(2, held=(2,), lease_time=20), Job(3, priority=9, held=(3,))]
    answer = plan("priority", make_view([4], [*running, Job(4, gpus=2, priority=1)]))
    assert given_gpus(answer) == {2: (2,), 3: (3,), 4: (0, 1)}


def test_priority_spares_whom_it_need_not_displace():
    # The newest alone does not make room for a pair; once the pair job goes too, the newest can stay.
    running = [Job(1, gpus=2, held=(1, 2), lease_time=500), Job(2, held=(0,), lease_time=20)]
    assert given_gpus(plan("priority", make_view([3], [*running, Job(3, gpus=2, priority=1)]))) == {2: (0,), 3: (1, 2)}


def test_a_displaced_job_goes_on_elsewhere_when_it_can():
    # 1 alone stands in the way of a whole node; it fits the other node, so it moves.
    jobs = [Job(1, held=(0,)), Job(2, priority=1, gpus=1, held=(2,)), Job(3, priority=1, gpus=2)]
    assert given_gpus(plan("priority", make_view([2, 2], jobs))) == {1: (3,), 2: (2,), 3: (0, 1)}


def test_priority_blocks_its_own_class_and_leaves_the_rest_to_lower_ones():
    jobs = [
        Job(1, priority=5, gpus=2, held=(0, 1)),
        Job(2, priority=5, gpus=4, submitted=1),
        Job(3, priority=5, submitted=2),
        Job(4, priority=0, submitted=3),
    ]
    answer = plan("priority", make_view([4], jobs))
    assert given_gpus(answer) == {1: (0, 1), 4: (2,)}
    assert reasons(answer) == {2: "resources", 3: "behind"}
    assert given_gpus(plan("priority", make_view([4], jobs), backfill=True)) == {1: (0, 1), 3: (2,), 4: (3,)}


def test_protected_jobs_are_spared_and_others_taken():
    running = [Job(1, held=(0,), lease_time=900), Job(2, held=(1,), lease_time=5)]
    view = protect(make_view([2], [*running, Job(3, priority=1)]), PreemptionLimits(min_run_time=60))
    assert given_gpus(plan("priority", view)) == {2: (1,), 3: (0,)}


def test_a_gang_is_not_starved_by_short_jobs_that_are_each_protected():
    # 1-GPU jobs of 50 s come without end; each is protected for as long as it runs, so no two are ever displaceable at once.
    world = World([2], {1000: Job(1000, remaining=20)}, limits=PreemptionLimits(min_run_time=60), progress=True)  # out of step
    policy = registry.create("priority", {})
    start = world.now
    for number in range(1, 61):
        world.jobs[1000 + number] = Job(1000 + number, remaining=50, submitted=world.now)
        if world.now == start + 100:
            world.jobs[1] = Job(1, gpus=2, priority=100, remaining=1000, submitted=world.now)
        world.tick(policy)
    assert world.jobs[1].phase == Phase.ACTIVE
    assert world.now - world.jobs[1].lease_time <= start + 100 + world.limits.min_run_time + 2 * world.seconds
    assert world.stops == 0


def test_gpus_are_kept_only_while_protected_jobs_stand_in_the_way_of_a_gang():
    # 9 may have GPUs 0 and 1 in 20 s, GPUs 2 and 3 in 50 s: only what is free of the first pair is kept for it.
    running = [Job(1, held=(0,), lease_time=40), Job(2, held=(2,), lease_time=10)]
    jobs = [*running, Job(9, gpus=2, priority=5), Job(4), Job(5)]
    limits = PreemptionLimits(min_run_time=60)
    answer = plan("priority", protect(make_view([2, 2], jobs), limits))
    assert given_gpus(answer) == {1: (0,), 2: (2,), 4: (3,)}
    assert reasons(answer) == {9: "resources", 5: "resources"}
    running[0].lease_time = 60
    assert given_gpus(plan("priority", protect(make_view([2, 2], jobs), limits))) == {1: (3,), 2: (2,), 9: (0, 1)}
    # Stronger jobs stand in the way whether they are protected or not: nothing is kept.
    running[0].priority = running[1].priority = 7
    assert given_gpus(plan("priority", protect(make_view([2, 2], jobs), limits))) == {1: (0,), 2: (2,), 4: (1,), 5: (3,)}


def test_nobody_between_takes_what_drains_to_a_gang():
    # 3 could displace 1, and would then itself be protected from the gang, which needs the GPU of 2 as well.
    jobs = [Job(1, held=(0,), lease_time=90), Job(2, held=(1,), lease_time=30), Job(9, gpus=2, priority=9), Job(3, priority=5)]
    limits = PreemptionLimits(min_run_time=60)
    assert given_gpus(plan("priority", protect(make_view([2], jobs), limits))) == {1: (0,), 2: (1,)}


def test_a_gang_drains_what_may_be_stopped_before_what_never_may():
    # The budget of 1 is spent, so its GPU comes only when it ends; those of 2 and 3 in a minute.
    running = [Job(1, held=(1,), lease_time=900, preemptions=3), Job(2, held=(2,), lease_time=5), Job(3, held=(3,), lease_time=5)]
    view = protect(make_view([2, 2], [*running, Job(9, gpus=2, priority=5), Job(4)]), PreemptionLimits(min_run_time=60, max_preemptions=3))
    assert given_gpus(plan("priority", view)) == {1: (1,), 2: (2,), 3: (3,), 4: (0,)}


# Shortest remaining time first


def test_srtf_worked_example():
    # One GPU, 1000 s left on it. 600 s is not short enough to displace it, 400 s is (hysteresis 2).
    running = Job(1, held=(0,), remaining=1000)
    assert given_gpus(plan("srtf", make_view([1], [running, Job(2, remaining=600)]))) == {1: (0,)}
    answer = plan("srtf", make_view([1], [running, Job(2, remaining=600), Job(3, remaining=400)]))
    assert given_gpus(answer) == {3: (0,)}
    assert list(answer.order) == [2, 1]
    assert given_gpus(plan("srtf", make_view([1], [running, Job(2, remaining=600)]), hysteresis=1)) == {2: (0,)}


def test_srtf_serves_the_shortest_first_and_the_longest_gives_way():
    jobs = [Job(1, held=(0,), remaining=5000), Job(2, held=(1,), remaining=9000), Job(3, remaining=100), Job(4, remaining=50)]
    assert given_gpus(plan("srtf", make_view([3], jobs))) == {1: (0,), 3: (1,), 4: (2,)}


def test_srtf_takes_an_unknown_job_to_last_as_long_as_it_has_run():
    old, young = Job(1, held=(0,), run_time=8000), Job(2)
    assert given_gpus(plan("srtf", make_view([1], [old, young]))) == {2: (0,)}
    old.run_time = 7000
    assert given_gpus(plan("srtf", make_view([1], [old, young]))) == {1: (0,)}
    # Among waiting unknown jobs: least attained service first.
    waiting = [Job(3, run_time=9000), Job(4, run_time=5000)]
    assert given_gpus(plan("srtf", make_view([1], waiting))) == {4: (0,)}


# All of them


@every_policy
@given(view=views())
def test_every_plan_is_valid_complete_deterministic_and_keeps_the_protected(name, config, view):
    answer = plan(name, view, **config)
    assert given_gpus(answer) == given_gpus(plan(name, view, **config))
    accounts_for_all(answer, view)
    calls_impossible_what_is_too_large(answer, view)
    guarded = protect(view, PreemptionLimits(min_run_time=50, max_preemptions=3))
    leaves_alone(plan(name, guarded, **config), guarded, also_unprotected=name == "fifo")


def left_over(view, answer):
    """The placement that remains when the plan is carried out."""
    free = Placement(view)
    for row in np.flatnonzero(view.jobs.phase == Phase.ACTIVE):
        free.release(view.jobs.allocation(row).tolist())
    for gpus in answer.values():
        free.take(gpus)
    return free


@pytest.mark.parametrize(("name", "config"), [("fifo", {"backfill": True}), ("priority", {"backfill": True}), ("srtf", {})])
@given(view=views())
def test_work_conserving(name, config, view):
    """While nobody is protected; what is kept for a gang until the end of a protection is tested with priorities."""
    answer = plan(name, view, **config)
    free = left_over(view, given_gpus(answer))
    rows = {job: row for row, job in enumerate(view.jobs.id.tolist())}
    for job in reasons(answer):
        row = rows[job]
        assert free.find(int(view.jobs.gpus_min[row]), memory=float(view.jobs.gpu_memory[row])) is None


@given(view=views())
def test_strict_fifo_starts_a_prefix_of_the_queue(view):
    why = reasons(answer := plan("fifo", view))
    jobs = view.jobs
    rows = [row for row in np.lexsort((jobs.id, jobs.submitted_at)) if jobs.phase[row] == Phase.PENDING]
    possible = [int(jobs.id[row]) for row in rows if why.get(int(jobs.id[row])) != "impossible" and why.get(int(jobs.id[row])) != "no-gpus"]
    starts = [job in answer.allocations for job in possible]
    assert starts == sorted(starts, reverse=True)
    waiting = [why[job] for job, starts_now in zip(possible, starts, strict=True) if not starts_now]
    assert waiting == ["resources", "behind", "behind"][:1] + ["behind"] * (len(waiting) - 1) if waiting else True


@pytest.mark.parametrize("backfill", [False, True])
@given(view=views())
def test_priority_leaves_no_inversion(backfill, view):
    """No job waits for GPUs that jobs of lower priority are given, if having those would let it start."""
    answer = plan("priority", view, backfill=backfill)
    jobs, allocations, why = view.jobs, given_gpus(answer), reasons(answer)
    rows = {job: row for row, job in enumerate(jobs.id.tolist())}
    for job, code in why.items():
        if code != "resources":
            continue
        lower = [gpus for other, gpus in allocations.items() if jobs.priority[rows[other]] < jobs.priority[rows[job]]]
        free = left_over(view, allocations)
        for gpus in lower:
            free.release(gpus)
        assert free.find_soon(int(jobs.gpus_min[rows[job]]), memory=float(jobs.gpu_memory[rows[job]])) is None


worlds = st.builds(
    lambda nodes, jobs: World(nodes, {number: job_of(number, *facts) for number, facts in enumerate(jobs, start=1)}),
    st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([1, 1, 2, 3, 4, 8]), st.integers(0, 3), st.integers(1, 80), st.integers(0, 5)), min_size=1, max_size=10
    ),
)


def job_of(number, gpus, priority, length, submitted):
    return Job(number, gpus=gpus, priority=priority, remaining=10.0 * length, submitted=float(submitted))


@every_policy
@given(world=worlds, late=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 5), st.integers(1, 400)), max_size=4))
@settings(max_examples=15)
@pytest.mark.sampled(3)
def test_a_fixed_set_of_jobs_comes_to_rest(name, config, world, late):
    policy = registry.create(name, config)
    for _ in range(8):
        world.tick(policy)
    for number, (gpus, priority, length) in enumerate(late, start=100):
        world.jobs[number] = Job(number, gpus=gpus, priority=priority, remaining=10.0 * length, submitted=50.0)
    for _ in range(80):
        world.tick(policy)
    at_rest = world.placements()
    before = world.stops
    for _ in range(40):  # longer than the cooldown and the minimum run time
        actions = world.tick(policy)
        assert not actions.starts
    assert world.stops == before
    assert world.placements() == at_rest


@every_policy
@given(world=worlds)
@settings(max_examples=15)
@pytest.mark.sampled(3)
def test_everything_possible_finishes_and_preemptions_are_bounded(name, config, world):
    policy = registry.create(name, config)
    world.progress = True
    possible = {job.id for job in world.jobs.values() if job.gpus <= sum(world.nodes)}
    work = sum(job.remaining for job in world.jobs.values())
    ticks = int(work / world.seconds) + 100 * (len(world.jobs) + 1)
    while world.jobs.keys() & possible and ticks:
        world.tick(policy)
        ticks -= 1
    assert world.finished == possible
    # A running job is displaced only by one that outranks it, and each outranks it once.
    assert world.stops <= len(world.nodes) * len(possible) ** 2
    if name == "fifo":
        assert world.stops == 0


@given(world=worlds)
@settings(max_examples=15)
def test_an_urgent_job_does_not_wait_for_lower_ones(world):
    assume(sum(job.gpus for job in world.jobs.values()) > 1)
    policy = registry.create("priority", {})
    for _ in range(10):
        world.tick(policy)
    world.jobs[999] = Job(999, priority=9, gpus=min(2, max(world.nodes)), submitted=math.inf)
    world.jobs[999].submitted = 1e9
    ticks = int(world.limits.min_run_time / world.seconds) + 3
    for _ in range(ticks):
        world.tick(policy)
    assert world.jobs[999].phase == Phase.ACTIVE


# Registry


def test_registry_describes_every_policy():
    described = {entry["name"]: entry for entry in registry.describe()}
    assert set(described) == set(registry.POLICIES)
    assert described["srtf"]["config"][0] | {"doc": ""} == {
        "name": "hysteresis",
        "type": "float",
        "default": 2.0,
        "low": 1.0,
        "high": 100.0,
        "choices": [],
        "doc": "",
    }
    for entry in described.values():
        assert entry["doc"]
        assert all(field["doc"] for field in entry["config"])


def test_names_of_the_registry_are_those_of_the_classes():
    assert all(registry.load(name).name == name for name in registry.POLICIES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fiffo", "did you mean 'fifo'"),
        ("zzz", f"known policies: {', '.join(sorted(registry.POLICIES))}"),
        ("no_such_module:X", "cannot import 'no_such_module'"),
        ("math:Nothing", "has no 'Nothing'"),
        ("math:pi", "it lacks Config, name, plan"),
    ],
)
def test_unknown_policies_name_the_remedy(name, message):
    with pytest.raises(ValueError, match=message):
        registry.load(name)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("fifo", {"backfil": True}, "did you mean 'backfill'"),
        ("srtf", {"hysteresis": 0.5}, "outside its range"),
        ("srtf", {"unknown": "long"}, "unknown: 'long' is not a number"),
        ("srtf", {"unknown": True}, "unknown: True is not a number"),
        ("srtf", {"unknown": "nan"}, "unknown: nan is outside its range"),
        ("srtf", {"unknown": 10**400}, "unknown: 10+ is not a number"),
        ("fifo", {"backfill": "perhaps"}, "backfill: 'perhaps' is not true or false"),
        ("unisched", {"slo_leases": 1.5}, "slo_leases: 1.5 is not a whole number"),
        ("unisched", {"slo_leases": "1.5"}, "slo_leases: '1.5' is not a whole number"),
        ("unisched", {"profiler_gpus": 1.2}, "profiler_gpus: 1.2 is not a whole number"),
        ("unisched", {"slo_leases": math.nan}, "slo_leases: nan is not a whole number"),
        ("unisched", {"slo_leases": math.inf}, "slo_leases: inf is not a whole number"),
        ("unisched", {"slo_leases": True}, "slo_leases: True is not a whole number"),
    ],
)
def test_a_bad_configuration_names_the_key(name, values, message):
    with pytest.raises(ValueError, match=message):
        registry.create(name, values)


@pytest.mark.parametrize("written", [10, 10.0, "10", "1e1", "10.0"])
def test_a_whole_number_may_be_written_like_any_other(written):
    found = make_config(registry.load("unisched").Config, {"slo_leases": written}).slo_leases
    assert (found, type(found)) == (10, int)
