"""SwitchFlow: worked examples of who takes turns where, and what holds whatever comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import FREE, run, workload
from stoker.engine.scheduling.guards import Evictions, reconcile
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.run_options import NO_LIMITS, Costs
from stoker.policies import registry
from stoker.policies.contract import Plan, Profile, View, precedence
from stoker.policies.placement.consolidated import Placement
from views import GIB, Job, make_view, placed, reasons
from views import given as given_gpus


def plan(view: View, most: int = 8) -> Plan:
    answer = registry.create("switchflow", {"most": most}).plan(view)
    return check(answer, view)


def turns(number: int, memory: float = 0.0, **facts: object) -> Job:
    return Job(number, memory=memory * GIB, share="switched", **facts)  # type: ignore[arg-type]


def groups(answer: Plan) -> list[tuple[str, tuple[int, ...]]]:
    return [(group.kind, group.jobs) for group in answer.groups]


def test_who_takes_turns_joins_and_all_others_have_their_gpus_alone() -> None:
    jobs = [turns(1, held=(0,)), Job(2, held=(1,)), turns(3), Job(4), Job(5, share="packed"), Job(6, gpus=2, share="switched")]
    answer = plan(make_view([2], jobs))
    assert given_gpus(answer) == {1: (0,), 3: (0,)} and groups(answer) == [("switched", (1, 3))]
    assert reasons(answer) == {4: "resources", 5: "resources", 6: "resources"}
    alone = plan(make_view([3], jobs))  # 4 has the free one
    assert given_gpus(alone) == {1: (0,), 3: (0,), 4: (2,)}


def test_a_gpu_that_is_left_goes_to_who_would_take_turns() -> None:
    assert given_gpus(plan(make_view([2], [turns(1, held=(0,)), turns(2)]))) == {2: (1,)}
    answer = plan(make_view([2], [turns(1), turns(2), turns(3, priority=1)]))
    assert sorted(given_gpus(answer).values()) == [(0,), (0,), (1,)] and groups(answer) == [("switched", (1, 2))]


def test_inference_goes_before_training_and_then_the_higher_priority() -> None:
    assert [precedence("infer", 0) > precedence("train", 10**9), precedence("train", 1) > precedence("train", 0)] == [True, True]
    jobs = [Job(1, priority=9), Job(2, kind="infer"), Job(3, priority=10), Job(4, kind="infer", priority=1)]
    answer = plan(make_view([2], jobs))
    assert sorted(given_gpus(answer)) == [2, 4] and list(answer.order) == [3, 1]


def test_the_needs_of_all_fit_and_each_goes_where_least_is_left() -> None:
    jobs = [turns(1, 2, held=(0,)), turns(2, 5, held=(1,)), turns(3, 3), turns(4, 4), turns(5, 1), turns(6, 9)]
    answer = plan(make_view([2], jobs, memory=[8 * GIB, 8 * GIB]))
    # 3 fills GPU 1, 4 fits beside 1 only, 5 too; nobody has 9.
    assert given_gpus(answer) == {1: (0,), 2: (1,), 3: (1,), 4: (0,), 5: (0,)}
    assert reasons(answer) == {6: "impossible"}
    later = plan(make_view([1], [turns(1, 5, held=(0,)), turns(2, 4)], memory=[8 * GIB]))
    assert [(one.reason.code, one.reason.text) for one in later.waiting] == [
        ("memory", "needs 4 GiB of a GPU; the jobs that take turns on one leave less, and none is free")
    ]


def test_a_job_that_only_one_node_can_continue_waits_for_that_node() -> None:
    jobs = [Job(1, held=(0,)), turns(2, 5, held=(1,)), turns(3, 4)]
    elsewhere = plan(placed(make_view([1, 1], jobs, memory=[8 * GIB, 8 * GIB]), {3: [0]}))
    full = plan(placed(make_view([1, 1], jobs, memory=[8 * GIB, 8 * GIB]), {3: [1]}))
    assert [(one.reason.code, one.reason.text) for answer in (elsewhere, full) for one in answer.waiting] == [
        ("resources", "needs 1 GPU of 4 GiB on n0, the only place for it; too few are free"),
        ("memory", "needs 4 GiB of a GPU on n1, the only place for it; the jobs that take turns on one leave less, and none is free"),
    ]


def test_no_more_than_so_many_take_turns() -> None:
    jobs = [turns(number) for number in range(1, 5)]
    answer = plan(make_view([1], jobs), most=3)
    assert sorted(given_gpus(answer)) == [1, 2, 3] and reasons(answer) == {4: "resources"}
    assert given_gpus(plan(make_view([1], [turns(1, held=(0,)), turns(2)]), most=1)) == {}


def test_who_stops_is_joined_by_nobody() -> None:
    jobs = [turns(1, held=(0,), stopping=True), turns(2, held=(1,)), turns(3)]
    assert given_gpus(plan(make_view([2], jobs))) == {2: (1,), 3: (1,)}


NEEDS = st.sampled_from([0, 1, 2, 3, 5, 9])
NEW = st.tuples(
    st.sampled_from(["switched", "switched", "switched", "", "exclusive", "packed"]), NEEDS, st.sampled_from([1, 1, 1, 2]),
    st.integers(0, 2), st.sampled_from(["train", "train", "infer"]),
)  # fmt: skip
ROUNDS = st.lists(st.tuples(st.lists(NEW, max_size=5), st.lists(st.integers(0, 30), max_size=3)), min_size=1, max_size=5)


NODES, SIZES = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2), st.lists(st.sampled_from([0, 4, 8]), min_size=6)


@given(NODES, SIZES, ROUNDS, st.integers(1, 4))
@settings(max_examples=150)
def test_whatever_comes_and_goes(nodes: list[int], sizes: list[int], rounds: list[tuple[list, list]], most: int) -> None:
    jobs: dict[int, Job] = {}
    memory = [size * GIB for size in sizes[: sum(nodes)]]
    number = 0
    for arrivals, ends in rounds:
        for share, need, gpus, priority, kind in arrivals:
            number += 1
            jobs[number] = Job(number, gpus=gpus, memory=need * GIB, priority=priority, share=share, kind=kind)
        for end in ends:
            jobs.pop(end, None)
        view = make_view(nodes, list(jobs.values()), memory=memory)
        actions = reconcile(view, plan(view, most), NO_LIMITS, Evictions())
        assert not actions.stops and not actions.deferred
        for start in actions.starts:
            jobs[start.job].held = start.gpus
        holds(nodes, jobs, memory, most, [start.job for start in actions.starts])


def holds(nodes: Sequence[int], jobs: dict[int, Job], memory: Sequence[float], most: int, started: Sequence[int]) -> None:
    on: dict[int, list[Job]] = {gpu: [] for gpu in range(sum(nodes))}
    for job in jobs.values():
        for gpu in job.held:
            on[gpu].append(job)
    for gpu, residents in on.items():
        if len(residents) > 1:
            assert all(job.share == "switched" for job in residents) and len(residents) <= most
            assert memory[gpu] == 0 or sum(job.memory for job in residents) <= memory[gpu]
    placement = Placement(make_view(nodes, list(jobs.values()), memory=memory))
    waiting = [job for job in jobs.values() if not job.held]
    for job in waiting:
        assert placement.find(job.gpus, memory=job.memory) is None, "a job waits beside free GPUs"
        for gpu, residents in on.items() if job.share == "switched" and job.gpus == 1 else ():
            able = residents and all(one.share == "switched" and one.gpus == 1 for one in residents) and len(residents) < most
            full = memory[gpu] and sum(one.memory for one in (*residents, job)) > memory[gpu]
            assert not able or full, "a job waits that could take turns"
    for job in waiting:
        for other in (jobs[one] for one in started):
            before = precedence(job.kind, job.priority) > precedence(other.kind, other.priority)
            assert not (before and job.share == other.share == "switched" and job.gpus == other.gpus and job.memory <= other.memory)


# In the simulator


def ends(rows: list[tuple[float, float, int]], costs: Costs = FREE, **columns: object) -> list[float]:
    jobs = workload(rows, share=["switched"] * len(rows), **columns)
    return run(jobs, registry.create("switchflow", {}), "1x1", costs).fates.ended.tolist()  # type: ignore[no-any-return]


def test_one_that_goes_before_leaves_the_time_in_which_it_does_not_compute() -> None:
    """A server is busy a quarter of its 40 s; beside it the training does 30 s of work, and the last 10 alone."""
    profiles = [Profile("server", utilisation=0.25), Profile("training", utilisation=1.0)]
    two = {"models": ["training", "server"], "profiles": profiles, "kind": ["train", "infer"], "priority": [5, 0]}
    assert ends([(0.0, 40.0, 1), (0.0, 40.0, 1)], **two) == pytest.approx([50.0, 40.0])
    unknown = {**two, "profiles": [Profile("server"), profiles[1]]}
    assert ends([(0.0, 40.0, 1), (0.0, 40.0, 1)], **unknown) == pytest.approx([80.0, 40.0])


def test_equals_divide_the_time_as_far_as_they_can_use_it() -> None:
    """0.2 and 1.0: the first is not slowed, the other has 0.8 of the time. Three that are busy have a third each."""
    profiles = [Profile("waits", utilisation=0.2), Profile("computes", utilisation=1.0)]
    two = {"models": ["waits", "computes"], "profiles": profiles}
    assert ends([(0.0, 50.0, 1), (0.0, 80.0, 1)], **two) == pytest.approx([50.0, 90.0])
    assert ends([(0.0, 10.0, 1)] * 3) == pytest.approx([30.0] * 3)


def test_what_was_measured_of_two_equals_counts_before_and_a_turn_costs() -> None:
    slowed = np.array([[2.5]])
    one = {"models": ["a", "a"], "profiles": [Profile("a", utilisation=1.0)]}
    assert ends([(0.0, 10.0, 1)] * 2, switched_slowdowns=slowed, **one) == pytest.approx([25.0] * 2)
    assert ends([(0.0, 10.0, 1)] * 2, slowdowns=slowed, **one) == pytest.approx([20.0] * 2), "that is of packed ones"
    # Steps of 10 ms, of which a turn takes one more: 22 ms for a step of each.
    assert ends([(0.0, 10.0, 1)] * 2, Costs(turn=0.001), iterations=[1000.0] * 2, **one) == pytest.approx([22.0] * 2)
    apart = ends([(0.0, 10.0, 1)] * 2, Costs(turn=0.001), iterations=[1000.0] * 2, priority=[1, 0], **one)
    assert apart == pytest.approx([10.0, 20.0]), "one after the other"


def test_equals_have_a_step_each_however_long_it_is() -> None:
    """Steps of 1 s and of 3 s: ten rounds of 4 s, after which the first has 20 of its 30 left."""
    assert ends([(0.0, 30.0, 1), (0.0, 30.0, 1)], iterations=[30, 10]) == pytest.approx([60.0, 40.0])
    unknown = [30, np.nan]
    assert ends([(0.0, 30.0, 1), (0.0, 30.0, 1)], iterations=unknown) == pytest.approx([60.0, 60.0])


def test_one_that_waits_for_its_data_comes_in_the_middle_of_anothers_step() -> None:
    """Its step of 4 s takes 4.5; the other one has 3.5 s of these and ends at 38.6. The first has 1.43 steps left then."""
    two = {"models": ["waits", "computes"], "profiles": [Profile("waits", utilisation=0.25), Profile("computes", utilisation=1.0)]}
    assert ends([(0.0, 40.0, 1), (0.0, 30.0, 1)], iterations=[10, 30], **two) == pytest.approx([44.286, 38.571], abs=1e-3)


def test_each_step_of_one_that_goes_before_waits_until_the_other_has_paused() -> None:
    """Ten steps of 1 s take 1.5 s each; in the half second the other goes on."""
    found = ends([(0.0, 20.0, 1), (0.0, 10.0, 1)], Costs(pause=0.5), priority=[0, 1], iterations=[20, 10])
    assert found == pytest.approx([30.0, 15.0])


def test_who_starts_takes_no_turns_yet_whoever_comes_meanwhile() -> None:
    """The first trains from 5 on, alone until 15, at half until 17, and at a third until 23, when the third has done its 2 s of work."""
    found = ends([(0.0, 20.0, 1), (10.0, 20.0, 1), (12.0, 2.0, 1)], Costs(cold_start=5.0, warm_start=5.0))
    assert found == pytest.approx([37.0, 47.0, 23.0])


def test_more_equals_than_are_looked_at_in_groups_divide_the_gpu() -> None:
    many = {"models": ["waits"] * 8, "profiles": [Profile("waits", utilisation=0.25)], "iterations": [10] * 8}
    assert ends([(0.0, 40.0, 1)] * 8, **many) == pytest.approx([80.0] * 8)
