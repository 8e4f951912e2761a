"""From view to plan: what is done now, and the evictions that no policy gets."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import (
    Actions,
    Evictions,
    Joined,
    PlannedStop,
    PreemptionLimits,
    Start,
    in_vain,
    next_look,
    protect,
    reconcile,
)
from stoker.engine.scheduling.plan_check import PlanError, check
from stoker.policies.contract import Allocation, Group, Phase, Plan, plan_of
from views import NOW, Job, World, make_view, views

FREE = PreemptionLimits(min_run_time=0, cooldown=300)


def act(jobs, allocations, *, nodes=(4,), limits=FREE, evictions=None, unusable=(), groups=(), preempt=None):
    view = make_view(nodes, jobs, unusable=unusable)
    given = {job: Allocation(tuple(gpus)) for job, gpus in allocations.items()}
    plan = plan_of(view, given, groups=groups) if preempt is None else Plan(given, groups=groups, preempt=preempt)
    if not unusable:
        plan = check(plan, view)
    return reconcile(view, plan, limits, evictions or Evictions())


def test_starts_on_free_gpus_and_renewals():
    actions = act([Job(1, held=(0,)), Job(2)], {1: (0,), 2: (1,)})
    assert actions == Actions(starts=[Start(2, (1,), None)], renewals=[(1, None)])


def test_an_eviction_stops_now_and_starts_later():
    jobs = [Job(1, held=(0,)), Job(2, held=(1,)), Job(3, gpus=2)]
    assert act(jobs, {3: (0, 1)}) == Actions(
        stops=[(1, "preempted", 3), (2, "preempted", 3)], deferred=[(3, "waits for jobs 1, 2 to stop")]
    )
    # Once told to stop they are not told again, and nothing starts while one of them holds on.
    jobs[0].held, jobs[1].stopping = (), True
    assert act(jobs, {3: (0, 1)}) == Actions(deferred=[(3, "waits for job 2 to stop")])


def test_a_replica_does_not_give_way_to_another_of_its_group():
    view = make_view((3,), [Job(1, held=(0,)), Job(2, held=(1,)), Job(3), Job(4), Job(5), Job(6)])
    group = {1: 1, 3: 1, 5: 1, 6: 1, 4: 4}
    plan = plan_of(view, {3: Allocation((0,)), 4: Allocation((1,)), 6: Allocation((2,))})
    why = "job 1 is a replica of the same group and goes on"
    assert in_vain(view, plan, group) == {3: why, 5: why}, "another place is as good for one of them, and others give way"
    assert in_vain(view, plan_of(view, {4: Allocation((0,)), 3: Allocation((1,))}), group) == {}
    assert in_vain(view, plan_of(view, {1: Allocation((2,)), 3: Allocation((0,))}), group) == {}, "the one that moves goes on too"


def test_a_job_left_out_goes_on_while_nobody_wants_its_gpus():
    jobs = [Job(1, held=(0,)), Job(2), Job(3, gpus_max=2, held=(2,))]
    assert act(jobs, {2: (1,)}) == Actions(starts=[Start(2, (1,), None)])
    assert act(jobs, {2: (1,)}, preempt=[1]) == Actions(starts=[Start(2, (1,), None)])
    assert act(jobs, {3: (2, 3)}, preempt=[1]).stops == [(3, "preempted", None)]


def test_what_a_guard_defers_is_looked_at_again_when_it_ends():
    """Nobody waits: 1 is to grow onto the GPU of 2, which has run for 59 of its 60 s."""
    limits = PreemptionLimits(min_run_time=60)
    view = make_view((4,), [Job(1, gpus_max=2, held=(0,), lease_time=500), Job(2, held=(1,), lease_time=59)])
    plan = check(Plan({1: Allocation((0, 1))}, preempt=[2]), view)
    actions = reconcile(view, plan, limits, Evictions())
    assert actions.deferred and next_look(view, plan, actions, limits, Evictions()) == NOW + 1


def test_all_victims_or_none():
    # 1 could be stopped, 2 not yet: 1 would lose its work for nothing.
    jobs = [Job(1, held=(0,), lease_time=500), Job(2, held=(1,), lease_time=59), Job(3, gpus=2)]
    actions = act(jobs, {3: (0, 1)}, limits=PreemptionLimits(min_run_time=60))
    assert actions == Actions(deferred=[(3, "job 2 has run for less than 60 s and is not stopped before")])


def test_no_eviction_for_a_gang_with_an_unusable_gpu():
    actions = act([Job(1, held=(0,)), Job(2, gpus=2)], {2: (0, 1)}, unusable=[1])
    assert actions == Actions(deferred=[(2, "GPU n0/g1 is not usable now")])


def test_the_budget_of_preemptions():
    jobs = [Job(1, held=(0,), preemptions=3), Job(2)]
    actions = act(jobs, {2: (0,)}, limits=PreemptionLimits(0, max_preemptions=3))
    assert actions == Actions(deferred=[(2, "job 1 has been preempted 3 times and is not preempted again")])
    assert act(jobs, {2: (0,)}, limits=PreemptionLimits(0, max_preemptions=4)).stops == [(1, "preempted", 2)]


def test_who_gave_way_may_have_the_place_that_the_other_leaves():
    """2 was stopped so that 1 could move to its GPU, and is to have the one that 1 moves from: 1 must not be kept from that."""
    evictions = Evictions().after([PlannedStop(2, "preempted", 1)], NOW - 5, FREE)
    actions = act([Job(1, gpus_max=2, held=(0,)), Job(2)], {1: (1, 2), 2: (0,)}, evictions=evictions)
    assert actions.stops == [(1, "preempted", None)]
    assert actions.deferred == [(2, "gave way to job 1 less than 300 s ago and may not displace it yet")]


def test_who_gave_way_does_not_take_it_back_within_the_cooldown():
    evictions = Evictions().after([PlannedStop(1, "preempted", 2)], NOW - 299, FREE)
    jobs = [Job(1), Job(2, held=(0,))]
    assert act(jobs, {1: (0,)}, evictions=evictions) == Actions(
        deferred=[(1, "gave way to job 2 less than 300 s ago and may not displace it yet")]
    )
    late = Evictions().after([PlannedStop(1, "preempted", 2)], NOW - 300, FREE)
    assert act(jobs, {1: (0,)}, evictions=late).stops == [(2, "preempted", 1)]


def test_no_cycle_over_several_jobs():
    # 1 gave way to 2, and 2 to 3; so 1 may not displace 3, while 4 may.
    evictions = Evictions().after([PlannedStop(1, "preempted", 2), PlannedStop(2, "preempted", 3)], NOW - 10, FREE)
    jobs = [Job(1), Job(3, held=(0,)), Job(4)]
    assert act(jobs, {1: (0,)}, evictions=evictions).stops == []
    assert act(jobs, {4: (0,)}, evictions=evictions).stops == [(3, "preempted", 4)]


def test_nobody_gives_way_to_the_same_job_twice():
    # Job 2 was not started in the room that 1 made for it; so 1, which runs again, does not make room again.
    evictions = Evictions().after([PlannedStop(1, "preempted", 2)], NOW - 10, FREE)
    actions = act([Job(1, held=(0,)), Job(2)], {2: (0,)}, evictions=evictions)
    assert actions == Actions(deferred=[(2, "job 1 gave way to it less than 300 s ago and does not do so again yet")])


def test_evictions_are_forgotten():
    evictions = Evictions().after([PlannedStop(1, "preempted", 2), PlannedStop(5, "preempted", None)], 0, FREE)
    assert evictions.gave_way == {(1, 2): 0}
    assert evictions.after([], 300, FREE).gave_way == {}


def test_a_move_waits_for_free_gpus():
    assert act([Job(1, held=(0,))], {1: (1,)}).stops == [(1, "preempted", None)]
    growing = [Job(1, gpus_max=2, held=(0,)), Job(2, held=(1,), stopping=True)]
    assert act(growing, {1: (0, 1)}) == Actions(deferred=[(1, "is moved when job 2 has left the GPUs that it moves to")])
    young = act([Job(1, held=(0,), lease_time=5)], {1: (1,)}, limits=PreemptionLimits(min_run_time=60))
    assert young == Actions(deferred=[(1, "job 1 has run for less than 60 s and is not stopped before")])


@pytest.mark.parametrize("preempt", [None, [2, 3]])
@pytest.mark.parametrize("wanted", [(0, 1, 2), (1, 2), (1, 2, 3)])
def test_who_is_preempted_makes_way_for_growth_and_moves(wanted, preempt):
    jobs = [Job(1, gpus_max=3, held=(0,)), Job(2, held=(1,)), Job(3, held=(2,))]
    assert act(jobs, {1: wanted}, preempt=preempt) == Actions(
        stops=[(2, "preempted", 1), (3, "preempted", 1)],
        deferred=[(1, "is moved when jobs 2, 3 have left the GPUs that it moves to")],
    )
    # It goes on until both have left, and is stopped then.
    jobs[1].held, jobs[2].stopping = (), True
    assert act(jobs, {1: wanted}, preempt=[]).stops == []
    jobs[2].held, jobs[2].stopping = (), False
    assert act(jobs, {1: wanted}, preempt=[]).stops == [(1, "preempted", None)]


def test_nobody_makes_way_for_a_move_that_is_not_done():
    def stops(jobs, wanted=None, **more):
        actions = act(jobs, {1: (0, 1, 2)} if wanted is None else wanted, **more)
        assert not actions.stops
        return [text for _, text in actions.deferred]

    one, two, three = Job(1, gpus_max=3, held=(0,), lease_time=500), Job(2, held=(1,), lease_time=500), Job(3, held=(2,), lease_time=500)
    young, limits = {"lease_time": 59}, PreemptionLimits(min_run_time=60)
    too_soon = "has run for less than 60 s and is not stopped before"
    # All victims or none, and none for a job that may not be moved itself.
    assert stops([one, two, dataclasses.replace(three, **young)], limits=limits) == [f"job 3 {too_soon}"]
    assert stops([dataclasses.replace(one, **young), two, three], limits=limits) == [f"job 1 {too_soon}"]
    assert stops([one, two, three], unusable=[2]) == ["GPU n0/g2 is not usable now"]
    spent = dataclasses.replace(three, preemptions=3)
    assert stops([one, two, spent], limits=PreemptionLimits(0, 3)) == ["job 3 has been preempted 3 times and is not preempted again"]
    # Nor for one that gave way to a victim, or for whom a victim made way before.
    for stop, said in (
        (PlannedStop(1, "preempted", 3), "gave way to job 3 less than 300 s ago and may not displace it yet"),
        (PlannedStop(3, "preempted", 1), "job 3 gave way to it less than 300 s ago and does not do so again yet"),
    ):
        assert stops([one, two, three], evictions=Evictions().after([stop], NOW - 10, FREE)) == [said]


def test_a_chain_of_moves_is_done_from_its_end():
    chain = [Job(1, held=(0,)), Job(2, held=(1,)), Job(3, held=(2,)), Job(4, held=(3,))]
    actions = act(chain, {1: (1,), 2: (2,), 3: (3,)})
    assert actions.stops == [(4, "preempted", 3)]  # it is left out; the others go on meanwhile
    assert sorted(job for job, _ in actions.deferred) == [1, 2, 3]
    chain[3].held = ()
    assert act(chain, {1: (1,), 2: (2,), 3: (3,)}).stops == [(3, "preempted", None)]


def test_jobs_that_move_onto_each_others_gpus_are_moved_at_once():
    # 1 grows to GPUs 1 and 3, which 2 and 4 hold, 2 goes where 3 is, and 3 where 1 is; 4 is left out.
    jobs = [Job(job, gpus_max=2, held=(job - 1,), lease_time=500) for job in (1, 2, 3)] + [Job(4, held=(3,), lease_time=500)]
    circle = {1: (1, 3), 2: (2,), 3: (0,)}
    assert act(jobs, circle) == Actions(stops=[*((job, "preempted", None) for job in (1, 2, 3)), (4, "preempted", 1)])
    # All of them or none.
    for young in range(4):
        one_is_young = [dataclasses.replace(job, lease_time=59.0 if place == young else 500.0) for place, job in enumerate(jobs)]
        assert act(one_is_young, circle, limits=PreemptionLimits(min_run_time=60)).stops == []
    # Who waits for somebody else is not hurried.
    behind = [*jobs[:3], Job(4, held=(3,)), Job(5, held=(4,), lease_time=500)]
    actions = act(behind, {1: (1,), 2: (2,), 3: (0,), 4: (4,)}, nodes=(5,))
    assert [stop.job for stop in actions.stops] == [5, 1, 2, 3]
    assert actions.deferred == [(4, "is moved when job 5 has left the GPUs that it moves to")]


def test_nobody_moves_for_a_start_that_is_refused():
    # 3 wants the node; 2 is too young to stop, so 1 need not go to GPU 2 either.
    jobs = [Job(1, held=(0,), lease_time=500), Job(2, held=(1,), lease_time=1), Job(3, gpus=2)]
    actions = act(jobs, {1: (2,), 3: (0, 1)}, nodes=(2, 2), limits=PreemptionLimits(min_run_time=60))
    assert actions.stops == []
    assert actions.deferred[1] == (1, "is not moved: the job that wants its GPUs cannot start yet")


def test_partners_of_a_group_share_without_eviction():
    actions = act([Job(1, held=(0,)), Job(2)], {1: (0,), 2: (0,)}, groups=[Group("packed", (1, 2))])
    assert actions == Actions(starts=[Start(2, (0,), None, share="packed")], renewals=[(1, None)], joined={1: Joined("packed", 0.0)})


def test_a_lease_does_not_end_before_the_protection_does():
    jobs = [Job(1, held=(0,), lease_time=40), Job(2, held=(1,), lease_time=400), Job(3)]
    view = make_view((3,), jobs)
    limits = PreemptionLimits(min_run_time=60, max_preemptions=3)

    def ends(lease_end):
        plan = check(Plan({job: Allocation((gpu,), lease_end) for gpu, job in enumerate((1, 2, 3))}), view)
        actions = reconcile(view, plan, limits, Evictions())
        return {done.job: done.lease_end for done in (*actions.starts, *actions.renewals)}

    assert ends(NOW + 1) == {1: NOW + 20, 2: NOW + 1, 3: NOW + 60}
    assert ends(NOW + 90) == dict.fromkeys((1, 2, 3), NOW + 90)
    assert ends(None) == dict.fromkeys((1, 2, 3))


def test_a_lease_does_not_end_once_the_budget_is_spent():
    jobs = [Job(1, held=(0,), lease_time=400, preemptions=3), Job(2, preemptions=3)]
    view = make_view((2,), jobs)
    plan = check(Plan({1: Allocation((0,), NOW + 90), 2: Allocation((1,), NOW + 90)}), view)
    actions = reconcile(view, plan, PreemptionLimits(max_preemptions=3), Evictions())
    assert actions == Actions(starts=[Start(2, (1,), None)], renewals=[(1, None)])


@given(view=views())
def test_what_a_policy_is_told_is_protected_is_what_is_not_stopped(view):
    limits = PreemptionLimits(min_run_time=50, max_preemptions=2)
    told = protect(view, limits).jobs
    active = np.flatnonzero(view.jobs.phase == Phase.ACTIVE)
    assert not told.protected[view.jobs.phase != Phase.ACTIVE].any()
    free = np.flatnonzero(view.gpus.usable & ~np.isin(np.arange(len(view.gpus)), view.jobs.alloc_gpus)).tolist()
    for row in active:
        n = len(view.jobs.allocation(row))
        if len(free) >= n:
            move = Plan({int(view.jobs.id[row]): Allocation(tuple(free[:n]))})
            assert bool(reconcile(view, move, limits, Evictions()).stops) != bool(told.protected[row])


@pytest.mark.parametrize("limits", [FREE, PreemptionLimits(min_run_time=50, max_preemptions=2)])
@given(view=views(), data=st.data())
@settings(max_examples=150)
def test_what_any_valid_plan_can_bring_about(limits, view, data):
    """The guards hold for plans that no sane policy would make."""
    plan = data.draw(plans(view))
    try:
        check(plan, view)
    except PlanError:
        return
    actions = reconcile(view, plan, limits, Evictions())
    jobs = view.jobs
    row = {job: number for number, job in enumerate(jobs.id.tolist())}
    held = {gpu: int(job) for job, gpus in zip(jobs.id, map(jobs.allocation, range(len(jobs))), strict=True) for gpu in gpus.tolist()}
    for start in actions.starts:
        assert jobs.phase[row[start.job]] == Phase.PENDING
        assert not held.keys() & set(start.gpus)
        assert view.gpus.usable[list(start.gpus)].all()
    stopped = {stop.job for stop in actions.stops}
    assert len(stopped) == len(actions.stops)
    for stop in actions.stops:
        assert jobs.phase[row[stop.job]] == Phase.ACTIVE
        assert jobs.lease_time[row[stop.job]] >= limits.min_run_time
        assert limits.max_preemptions is None or jobs.preemptions[row[stop.job]] < limits.max_preemptions
        if stop.for_job is not None:
            wanted = set(plan.allocations[stop.for_job].gpus)
            assert wanted & set(jobs.allocation(row[stop.job]).tolist()), "an eviction that frees nothing that is wanted"
            in_the_way = {held[gpu] for gpu in wanted if gpu in held} - {stop.for_job}
            leaving = stopped | {job for job in in_the_way if jobs.phase[row[job]] == Phase.STOPPING}
            assert in_the_way <= leaving, "an eviction that does not let the start or move happen"
            assert view.gpus.usable[list(wanted)].all()
    outcome = [start.job for start in actions.starts] + [d.job for d in actions.deferred] + [r.job for r in actions.renewals]
    assert len(outcome) == len(set(outcome))
    moved = {stop.job for stop in actions.stops} - set(outcome)
    assert set(outcome) | moved >= set(plan.allocations)
    for job, text in actions.deferred:  # nobody is waited for who could be stopped, and is not
        others = {held[gpu] for gpu in plan.allocations[job].gpus if gpu in held} - {job} - stopped
        if jobs.phase[row[job]] == Phase.ACTIVE and text.startswith("is moved when") and not others & plan.allocations.keys():
            assert all(jobs.phase[row[other]] == Phase.STOPPING for other in others)


@st.composite
def plans(draw, view):
    """Any sharing-free assignment of usable GPUs to some of the jobs, and some running jobs left as they are."""
    free = draw(st.permutations(range(len(view.gpus))))
    allocations = {}
    for row in draw(st.permutations(range(len(view.jobs)))):
        if view.jobs.phase[row] == Phase.STOPPING or draw(st.booleans()):
            continue
        kept = view.jobs.allocation(row).tolist()
        n = int(view.jobs.gpus_min[row])
        if kept and draw(st.booleans()) and set(kept) <= set(free):
            chosen = kept
        else:
            fits = [g for g in free if view.gpus.usable[g] and not 0 < view.gpus.memory[g] < view.jobs.gpu_memory[row]]
            if len(fits) < n:
                continue
            chosen = fits[:n]
        free = [g for g in free if g not in chosen]
        allocations[int(view.jobs.id[row])] = Allocation(tuple(chosen))
    return plan_of(view, allocations)


class Spiteful:
    """Shuffles the jobs over the GPUs anew at each tick: the worst policy that passes the check."""

    Config: ClassVar[type] = object
    name: ClassVar[str] = "spiteful"

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def plan(self, view):
        jobs = view.jobs
        free = self.random.permutation(np.flatnonzero(view.gpus.usable)).tolist()
        allocations = {}
        for row in self.random.permutation(np.flatnonzero(jobs.phase != Phase.STOPPING)):
            n = int(jobs.gpus_min[row])
            if len(free) >= n:
                allocations[int(jobs.id[row])] = Allocation(tuple(free[:n]))
                free = free[n:]
        return plan_of(view, allocations)


@given(st.integers(0, 1000))
@settings(max_examples=15)
def test_a_spiteful_policy_comes_to_rest_within_the_budget(seed):
    jobs = {number: Job(number, gpus=1 + number % 3) for number in range(1, 8)}
    world = World([4, 2], jobs, limits=PreemptionLimits(min_run_time=20, max_preemptions=2, cooldown=60))
    policy = Spiteful(seed)
    for _ in range(400):
        world.tick(policy)
    assert 0 < world.stops <= 2 * len(jobs)
    before = (world.stops, world.placements())
    for _ in range(30):
        world.tick(policy)
    assert (world.stops, world.placements()) == before


class TakingTurns:
    """Always wants the job that is waiting to have the only GPU: two jobs that preempt each other for ever."""

    Config: ClassVar[type] = object
    name: ClassVar[str] = "taking-turns"

    def plan(self, view):
        waiting = np.flatnonzero(view.jobs.phase == Phase.PENDING)
        return plan_of(view, {int(view.jobs.id[waiting[0]]): Allocation((0,))} if len(waiting) else {})


def test_two_jobs_cannot_take_turns_faster_than_the_cooldown():
    world = World([1], {1: Job(1, held=(0,)), 2: Job(2)}, limits=PreemptionLimits(min_run_time=0, cooldown=300), seconds=10)
    times = []
    for _ in range(100):
        if world.tick(TakingTurns()).stops:
            times.append(world.now)
    assert len(times) == 4  # 1000 s, one eviction each 300 s and the first at once
    assert all(later - earlier >= 300 for earlier, later in itertools.pairwise(times))
