"""What a plan proves of the time after it: worked by hand, and against asking the policy every time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Row, run, workload
from stoker.engine.guards import Actions, Stop
from stoker.engine.sim.errors import SimulationError
from stoker.engine.sim.foreseen import Foreseen
from stoker.engine.sim.options import Costs, Errors
from stoker.engine.sim.result import Result
from stoker.policies import registry
from stoker.policies.cells import Free
from stoker.policies.contract import Allocation, Demand, Jobs, Phase, Plan, View
from stoker.policies.fifo import Fifo
from stoker.policies.line import Line, Waiter
from stoker.policies.placement import Placement
from stoker.policies.serving import Ranking, serve
from stoker.policies.standstill import Standstill
from views import NOW, Job, make_view

NODES = ("2x4", "3x2,1x4", "1x8,2x3", "1x70", "2x5,1x9")


def plan_of(policy: str, jobs: list[Job], **config: float) -> Plan:
    """On two nodes of 4 GPUs."""
    return registry.create(policy, config).plan(make_view([4, 4], jobs))


def standstill(policy: str, jobs: list[Job], **config: float) -> Standstill:
    found = plan_of(policy, jobs, **config).standstill
    assert found is not None
    return found


#: A gang of 4 waits; the first node has a free GPU, a strong holder of two and a weak one, the second is a strong holder's.
GANG = [
    Job(1, gpus=2, remaining=5.0, held=(0, 1)),
    Job(2, remaining=1000.0, held=(2,)),
    Job(3, gpus=4, remaining=10.0, held=(4, 5, 6, 7)),
    Job(4, gpus=4, remaining=100.0),
]


def test_an_end_matters_where_all_that_is_left_is_free_or_weaker() -> None:
    assert standstill("srtf", GANG, hysteresis=1.0).frees([0, 1]) == {4}  # it may displace the weak one now
    assert standstill("srtf", GANG, hysteresis=1.0).frees([4, 5, 6, 7]) == {4}
    assert not standstill("srtf", GANG, hysteresis=20.0).frees([0, 1])  # weak, but not so weak
    assert not standstill("srtf", GANG, hysteresis=1.0).frees([0])
    assert not standstill("srtf", GANG, hysteresis=1.0).frees([])


def test_ends_add_up() -> None:
    still = standstill("srtf", GANG, hysteresis=1.0)
    assert not still.frees([0])
    assert still.frees([1]) == {4}


def test_who_started_by_the_plan_may_be_in_reach() -> None:
    jobs = [Job(1, gpus=3, remaining=1.0, held=(0, 1, 2)), Job(2, gpus=4, remaining=9.0, held=(4, 5, 6, 7)),
            Job(3, gpus=4, remaining=10.0), Job(4, remaining=50.0)]  # fmt: skip
    plan = plan_of("srtf", jobs, hysteresis=1.0)
    assert list(plan.allocations) == [4]
    assert plan.standstill is not None
    assert plan.standstill.frees([0, 1, 2]) == {4}, "the gang of 4 displaces who has just got GPU 3"


def test_gangs_over_nodes() -> None:
    jobs = [Job(1, gpus=4, remaining=1.0, held=(0, 1, 2, 3)), Job(2, gpus=2, remaining=1.0, held=(4, 5)), Job(3, gpus=6, remaining=10.0)]
    assert standstill("srtf", jobs).frees([0, 1, 2, 3]) == {6}
    assert not standstill("srtf", jobs).frees([0, 1])


#: A gang of 4 waits for the first node, and one of 2 behind it; the second node is full.
LINE = [Job(1, gpus=3, held=(0, 1, 2)), Job(2, gpus=4, held=(4, 5, 6, 7)), Job(3, gpus=4), Job(4, gpus=2)]


def test_only_the_head_matters_where_it_blocks() -> None:
    assert not standstill("fifo", LINE).frees([0, 1])
    assert standstill("fifo", LINE).frees([0, 1, 2]) == {4}
    assert standstill("fifo", LINE, backfill=True).frees([0, 1]) == {2}


def free_gpus_but(taken: list[Job]) -> Free:
    """On two nodes of 4 GPUs."""
    return Placement(make_view([4, 4], taken)).soon()


def test_who_starts_on_what_ends_leave() -> None:
    still = standstill("fifo", LINE, backfill=True)
    assert still.starts(free_gpus_but([Job(1, held=(2,)), LINE[1]]), still.frees([0, 1]), ()) == {4: (0, 1)}
    assert still.frees([2]) == set(), "they hold two of the four"
    assert still.frees([0, 1]) == {4}
    assert still.starts(free_gpus_but([LINE[1]]), {4}, ()) == {3: (0, 1, 2, 3)}


def test_who_would_displace_others_is_to_be_asked_about() -> None:
    still = standstill("srtf", GANG, hysteresis=1.0)
    assert still.starts(free_gpus_but([GANG[1], GANG[2]]), still.frees([0, 1]), ()) is None
    still = standstill("srtf", GANG, hysteresis=1.0)
    assert still.starts(free_gpus_but(GANG[:3]), (), [Waiter(20.0, 5, 2, -20.0, -20.0)]) is None, (
        "GPU 3 is free, GPU 2 held by a weaker one"
    )


def test_who_comes_stands_in_line() -> None:
    still = standstill("srtf", GANG, hysteresis=1.0)
    free = free_gpus_but(GANG[:3])
    assert still.starts(free, (), [Waiter(2000.0, 5, 2, -2000.0, -2000.0)]) == {}, "the longest displaces nobody"
    assert still.starts(free, (), [Waiter(1.0, 6, 1, -1.0, -1.0)]) == {6: (3,)}
    assert still.frees([0]) == set(), "what a shorter one holds is out of reach"
    assert still.frees([1]) == {2}


@pytest.mark.parametrize(("newcomer", "expected"), [(Waiter(5.0, 9, 1, 0.0, math.inf), {9: (3,)}), (Waiter(50.0, 2, 1, 0.0, math.inf), {})])
def test_only_who_comes_before_the_head_may_start_where_it_blocks(newcomer: Waiter, expected: dict[int, tuple[int, ...]]) -> None:
    jobs = [Job(1, gpus=3, remaining=9.0, held=(0, 1, 2)), Job(4, gpus=4, remaining=9.0, held=(4, 5, 6, 7)), Job(3, gpus=4, remaining=10.0)]
    assert standstill("sjf", jobs).starts(free_gpus_but(jobs[:2]), (), [newcomer]) == expected


@pytest.mark.parametrize(
    "jobs",
    [
        [*GANG, Job(5)],  # starts, and leaves a job of unknown length running
        [dataclasses.replace(GANG[0], stopping=True), *GANG[1:]],
        [dataclasses.replace(GANG[0], remaining=math.nan), *GANG[1:]],
        [*GANG[:3], dataclasses.replace(GANG[3], gpus=1, memory=1.0), Job(5, gpus=4, remaining=200.0)],
    ],
    ids=["an unknown length", "somebody stops", "a running one of unknown length", "memory"],
)
def test_nothing_is_proven(jobs: list[Job]) -> None:
    assert plan_of("srtf", jobs, hysteresis=1.0).standstill is None


@pytest.mark.parametrize("policy", ["tiresias,priority=gittins", "tiresias,starve_limit=2", "edf"])
def test_nothing_is_proven_where_time_changes_claims(policy: str) -> None:
    name, *config = policy.split(",")
    assert plan_of(name, GANG, **dict(setting.split("=") for setting in config)).standstill is None


def test_it_ends_before_service_changes_claims() -> None:
    plan = plan_of("tiresias", GANG, threshold_1=100.0)
    assert plan.standstill is not None
    assert plan.wake_at == NOW + 25.0, "when the gang of four has had 100 GPU-seconds"
    assert plan.standstill.lasts(NOW + 24.9)
    assert not plan.standstill.lasts(NOW + 25.0)
    free = free_gpus_but(GANG[:3])
    assert plan.standstill.starts(free, (), [Waiter(1.0, 5, 1, 0.0, 0.0)]) == {5: (3,)}, "it takes what was free and did not do"
    assert plan.standstill.starts(free, (), [Waiter(1.0, 6, 2, 0.0, 0.0)]) is None, "when its turn comes depends on it, too"


@given(
    nodes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=60)
def test_reach_is_what_would_be_found(nodes: list[int], data: st.DataObject) -> None:
    """Levels against giving up the GPUs one level after the other."""
    count = sum(nodes)
    levels = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, math.inf]), min_size=count, max_size=count))
    held = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    unusable = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    rows = [gpu for gpu in range(count) if held[gpu]]
    view = make_view(nodes, [Job(gpu + 1, held=(gpu,)) for gpu in rows], unusable=sorted(unusable))
    reach = Placement(view).reach(np.where(held, levels, math.inf))
    for below in (0.0, 1.5, 2.5, 9.0):
        gone = Placement(view)
        gone.release_soon([gpu for gpu in rows if levels[gpu] < below])
        for n in range(1, count + 2):
            assert (reach.least(n) < below) == (gone.find_soon(n) is not None)


sizes = st.sampled_from([1, 1, 1, 2, 3, 4, 6, 7, 40])
jobs_of_a_day = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), sizes), min_size=4, max_size=40)
COSTS = {"free": Costs(), "costly": Costs(suspend=2.0, resume=3.0, cold_start=1.0), "failing": Costs(failures_per_gpu_hour=30.0)}


def outcome(result: Result) -> list[list[float]]:
    fates, bars, usage = result.fates, result.bars, result.usage
    return [np.nan_to_num(column, nan=-1.0).tolist() for group in (fates, bars, usage) for column in _columns(group)]


def _columns(group: object) -> list[np.ndarray]:
    return [getattr(group, name) for name in group.__slots__]  # type: ignore[attr-defined]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(
    "policy",
    [
        "srtf,hysteresis=1",
        "srtf,measure=service",
        "sjf",
        "sjf,backfill=true",
        "fifo",
        "fifo,backfill=true",
        "hydra",
        "las,quantum=150",
        "tiresias,threshold_1=20,threshold_2=60",
    ],
)
@given(rows=jobs_of_a_day, nodes=st.sampled_from(NODES), wrong=st.sampled_from([0.0, 0.5]), unknown=st.sampled_from([0.0, 0.0, 0.3]))
@settings(max_examples=15)
def test_asking_every_time_makes_no_difference(policy: str, cost: str, rows: list[Row], nodes: str, wrong: float, unknown: float) -> None:
    """Whoever looks on sees every decision, so that none is spared."""
    jobs = workload(sorted(rows, key=lambda row: row[0]))
    errors = Errors(duration=wrong, unknown=unknown)
    spared, asked = (run(jobs, policy, nodes, COSTS[cost], look, errors=errors) for look in (None, lambda *_: None))
    assert outcome(spared) == outcome(asked)
    assert spared.decisions <= asked.decisions


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("policy", ["edf", "srtf,unknown=5,hysteresis=1", "genie,backfill=false"])
@given(rows=jobs_of_a_day, nodes=st.sampled_from(NODES), due=st.lists(st.integers(1, 90), min_size=40, max_size=40))
@settings(max_examples=15)
def test_nor_does_it_where_time_alone_makes_claims_weaker(policy: str, cost: str, rows: list[Row], nodes: str, due: list[int]) -> None:
    """Deadlines pass, of which some jobs have several, and guesses at what half of them need grow."""
    rows = sorted(rows, key=lambda row: row[0])
    steps = [[(row[0] + after, 100.0), (row[0] + 2.5 * after, 50.0)][: 1 + after % 2] for row, after in zip(rows, due, strict=False)]
    jobs = workload(rows, demand=[Demand.SOFT] * len(rows), tiers=steps)
    errors = Errors(unknown=0.5)
    spared, asked = (run(jobs, policy, nodes, COSTS[cost], look, errors=errors) for look in (None, lambda *_: None))
    assert outcome(spared) == outcome(asked)
    assert spared.decisions <= asked.decisions


def test_ends_that_help_nobody_and_who_fits_are_not_asked_about() -> None:
    rows: list[Row] = [(0, 10, 1), (0, 20, 1), (0, 100, 2), (1, 200, 4), (30, 5, 1), (50, 5, 1)]
    result = run(rows, "srtf,hysteresis=1", "1x4")
    assert result.fates.ended.tolist() == [10, 20, 100, 300, 35, 55]
    assert result.decisions == 1, "as the gang comes that has to wait"


@pytest.mark.parametrize(
    ("policy", "gpus", "decisions"),
    [("fifo", [0, 2, 1], 0), ("las,quantum=9", [0, 2, 1], 0), ("tiresias", [0, 2, 1], 0), ("srtf", [1, 2, 0], 0), ("edf", [0, 2, 1], 1)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_come_together_and_fit_start_in_the_policys_order(policy: str, gpus: list[int], decisions: int) -> None:
    """SRTF gives the shortest one the first GPU; EDF does not tell where a job will stand."""
    result = run([(0, 20, 1), (0, 10, 2), (0, 5, 1)], policy, "1x4")
    assert result.fates.started.tolist() == [0, 0, 0]
    assert dict(zip(result.bars.job.tolist(), result.bars.gpu.tolist(), strict=True)) == dict(enumerate(gpus))
    assert result.decisions == decisions


def test_who_comes_beside_a_gang_that_waits_starts_unasked_and_may_sink() -> None:
    rows: list[Row] = [(0, 100, 3), (1, 50, 4), (2, 30, 1), (40, 1, 1), (40, 2, 1)]
    result = run(rows, "tiresias,threshold_1=1e4", "1x4")
    assert result.fates.started.tolist() == [0, 100, 2, 40, 41]
    assert result.decisions == 3, "as the gang comes, as two come for one GPU, and as that is free; all is free when the gang starts"


def test_who_starts_in_the_room_of_others_is_asked_about_once() -> None:
    rows: list[Row] = [(0, 100, 1), (0, 90, 1), (0, 80, 2), (10, 20, 4), (20, 5, 2)]
    result = run(rows, "srtf,hysteresis=1", "1x4")
    assert result.fates.preemptions.tolist() == [1, 1, 2, 1, 0]
    assert result.fates.ended.tolist() == [125, 115, 100, 35, 25]
    assert result.decisions == 3, "as the gang displaces others at 10 and 25, and at 20, as two start in its room"
    costly = run(rows, "srtf,hysteresis=1", "1x4", COSTS["costly"])
    assert costly.decisions > result.decisions, "what happens while they stop is not known"


def test_who_moves_out_of_the_way_is_asked_about_once() -> None:
    """A gang takes the first node for 10 s; of the two who are there the shorter one goes on where two GPUs are free."""
    rows: list[Row] = [(0, 1000, 2), (1, 900, 2), (2, 50, 2), (10, 10, 4)]
    result = run(rows, "srtf,hysteresis=1", "2x4")
    assert result.fates.ended.tolist() == [1010, 901, 52, 20]
    assert result.bars.gpu[result.bars.job == 1].tolist() == [2, 6]
    assert result.decisions == 1


#: No GPU is free. One job wants one, and displaces who holds the first two; another wants three.
FULL = [
    Job(1, gpus=2, remaining=1000.0, held=(0, 1)),
    Job(2, gpus=2, remaining=1.0, held=(2, 3)),
    Job(3, gpus=3, remaining=900.0, held=(4, 5, 6)),
    Job(4, remaining=1.0, held=(7,)),
    Job(5, remaining=10.0),
]


@pytest.mark.parametrize(("gpus", "preempted", "known"), [(1, {1}, True), (3, {1, 3}, False)])
def test_what_follows_on_stops_is_known_unless_room_made_later_suits_better(gpus: int, preempted: set[int], known: bool) -> None:
    """The GPU beside a held one, which the gang of three makes free, is a tighter fit than one of two free ones."""
    plan = plan_of("srtf", [*FULL, Job(6, gpus=gpus, remaining=20.0)], hysteresis=1.0)
    assert list(plan.allocations) == [5, 6]
    assert set(plan.preempt or ()) == preempted
    assert (plan.standstill is not None) is known


@pytest.mark.parametrize(("stopped", "follows"), [([2, 3], True), ([3], False), ([2], False), ([], False)])
def test_what_follows_is_known_only_if_all_stop_who_are_to_go(stopped: list[int], follows: bool) -> None:
    """Job 1 starts where job 3 is, and job 2 moves; a move whose GPUs are not free yet is put off."""
    still = standstill("srtf", GANG, hysteresis=1.0)
    foreseen = Foreseen([1] * 4, free_gpus_but([]), alone=True, arrivals=None, proofs=True, stops_freely=True)
    plan = Plan({1: Allocation((0,)), 2: Allocation((1,))}, preempt=[3], standstill=still)
    foreseen.said(plan, Actions(stops=[Stop(job, "preempted", 1) for job in stopped]), {1})
    assert foreseen.follows is follows


class Looks(Fifo):
    """It may do something although nobody waits, and writes down how many run then."""

    rigid: ClassVar[bool] = False
    starts_alone: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(Fifo.Config())
        self.alone_with: list[int] = []

    def plan(self, view: View) -> Plan:
        if not (view.jobs.phase == Phase.PENDING).any():
            self.alone_with.append(len(view.jobs))
        return dataclasses.replace(super().plan(view), standstill=None)


def test_who_may_do_something_while_nobody_waits_is_asked_then() -> None:
    policy = Looks()
    run([(0, 10, 1), (0, 20, 1)], policy, "1x4")
    assert policy.alone_with == [1, 0]


class Wrong(Fifo):
    """It cannot say where jobs stand that come."""

    rigid: ClassVar[bool] = True
    starts_alone: ClassVar[bool] = True

    def __init__(self, answer: Callable[[Jobs], Any]) -> None:
        super().__init__(Fifo.Config())
        self.answer = answer

    def plan(self, view: View) -> Plan:
        return serve(view, Ranking())

    def ranking(self, jobs: Jobs) -> Any:
        return self.answer(jobs)


@pytest.mark.parametrize(
    "answer",
    [lambda jobs: 1 / 0, lambda jobs: None, lambda jobs: Ranking(key=np.zeros(len(jobs) + 1)), lambda jobs: Ranking(key=[1, 2])],
    ids=["raises", "nothing", "too many", "no array"],
)
def test_a_ranking_that_is_none_ends_the_run_in_a_line(answer: Callable[[Jobs], Any]) -> None:
    with pytest.raises(SimulationError, match=r"^policy fifo at 0 s: ranking\(\): ") as caught:
        run([(0, 10, 1), (0, 20, 1)], Wrong(answer), "1x4")
    assert "\n" not in str(caught.value)


def test_an_end_in_between_moves_the_moment_at_which_a_turn_comes() -> None:
    """The job that starts as another ends has a quantum of its own; who was to be displaced before is so no more."""
    rows: list[Row] = [(0, 2, 7), (1, 2, 7), (2, 2, 1), (2, 1, 14)]
    spared, asked = (run(rows, "las,quantum=2", "1x8,2x3", observer=look) for look in (None, lambda *_: None))
    assert outcome(spared) == outcome(asked)


def test_the_weakest_claim_of_all_suffices_for_what_is_free() -> None:
    still = Standstill(free_gpus_but([Job(1, held=(0, 1, 2))]), None, lambda: some_line(claim=-math.inf), ordered=True, blocking=False)
    assert still.frees([0]) == {2}


def some_line(claim: float) -> Line:
    """One that waits for 2 GPUs."""
    key, job, gpus = np.array([1.0]), np.array([7]), np.array([2])
    return Line(key, job, gpus, np.array([claim]), np.array([claim]))


waiters = st.tuples(st.integers(0, 9), st.integers(1, 3))  # key, GPUs


@given(first=st.lists(waiters, max_size=12), steps=st.lists(st.one_of(waiters, st.none()), max_size=12), sizes=st.sets(st.integers(1, 3)))
def test_a_line_is_a_sorted_list(first: list[tuple[int, int]], steps: list[tuple[int, int] | None], sizes: set[int]) -> None:
    """Steps: somebody joins, or (None) the first of a size leaves."""
    model = sorted(Waiter(float(key), job, gpus, -float(key), 0.0) for job, (key, gpus) in enumerate(first))
    columns = np.array(model, dtype=np.float64).reshape(-1, 5).T
    line = Line(columns[0], columns[1].astype(np.int64), columns[2].astype(np.int64), columns[3], columns[4])
    for number, step in enumerate(steps, len(first)):
        if step is None and model:
            line.leave(model.pop(0))
        elif step is not None:
            waiter = Waiter(float(step[0]), number, step[1], -float(step[0]), 0.0)
            line.join(waiter)
            model = sorted([*model, waiter])
        there = {waiter.gpus for waiter in model}
        assert set(line.sizes()) == there
        assert sorted(line.firsts()) == sorted(next(waiter for waiter in model if waiter.gpus == n) for n in there)
        assert list(line.turns(sizes & there, (), ())) == [waiter for waiter in model if waiter.gpus in sizes]
