"""What a plan proves of the time after it: worked by hand, and against asking the policy every time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Row, run, workload
from stoker.engine.sim.options import Costs, Errors
from stoker.engine.sim.result import Result
from stoker.policies import registry
from stoker.policies.contract import Plan
from stoker.policies.placement import Placement
from stoker.policies.standstill import Newcomer, Standstill
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
    assert not standstill("srtf", GANG, hysteresis=1.0).outlives(0.0, [0, 1])  # it may displace the weak one now
    assert not standstill("srtf", GANG, hysteresis=1.0).outlives(0.0, [4, 5, 6, 7])
    assert standstill("srtf", GANG, hysteresis=20.0).outlives(0.0, [0, 1])  # weak, but not so weak
    assert standstill("srtf", GANG, hysteresis=1.0).outlives(0.0, [0])
    assert standstill("srtf", GANG, hysteresis=1.0).outlives(0.0, [])


def test_ends_add_up() -> None:
    still = standstill("srtf", GANG, hysteresis=1.0)
    assert still.outlives(0.0, [0])
    assert not still.outlives(0.0, [1])


def test_who_started_by_the_plan_may_be_in_reach() -> None:
    jobs = [Job(1, gpus=3, remaining=1.0, held=(0, 1, 2)), Job(2, gpus=4, remaining=9.0, held=(4, 5, 6, 7)),
            Job(3, gpus=4, remaining=10.0), Job(4, remaining=50.0)]  # fmt: skip
    plan = plan_of("srtf", jobs, hysteresis=1.0)
    assert list(plan.allocations) == [4]
    assert plan.standstill is not None
    assert not plan.standstill.outlives(0.0, [0, 1, 2])  # the gang of 4 displaces who has just got GPU 3


def test_gangs_over_nodes() -> None:
    jobs = [Job(1, gpus=4, remaining=1.0, held=(0, 1, 2, 3)), Job(2, gpus=2, remaining=1.0, held=(4, 5)), Job(3, gpus=6, remaining=10.0)]
    assert not standstill("srtf", jobs).outlives(0.0, [0, 1, 2, 3])
    assert standstill("srtf", jobs).outlives(0.0, [0, 1])


def test_only_the_head_matters_where_it_blocks() -> None:
    jobs = [Job(1, gpus=3, held=(0, 1, 2)), Job(2, gpus=4, held=(4, 5, 6, 7)), Job(3, gpus=4), Job(4, gpus=2)]
    assert standstill("fifo", jobs).outlives(0.0, [0, 1])
    assert not standstill("fifo", jobs).outlives(0.0, [0, 1, 2])
    assert not standstill("fifo", jobs, backfill=True).outlives(0.0, [0, 1])
    assert standstill("fifo", jobs).newcomers == Newcomer.WAIT
    assert standstill("fifo", jobs, backfill=True).newcomers == Newcomer.START
    assert standstill("sjf", jobs, backfill=False).newcomers == Newcomer.ASK, "it may be shorter than the head"


@pytest.mark.parametrize(
    "jobs",
    [
        [*GANG, Job(5)],  # starts, and leaves a job of unknown length running
        [dataclasses.replace(GANG[0], stopping=True), *GANG[1:]],
        [*(Job(gpu + 1, remaining=1000.0, held=(gpu,)) for gpu in range(8)), Job(9, remaining=10.0), Job(10, remaining=20.0)],
        [dataclasses.replace(GANG[0], remaining=math.nan), *GANG[1:]],
        [*GANG[:3], dataclasses.replace(GANG[3], gpus=1, memory=1.0), Job(5, gpus=4, remaining=200.0)],
    ],
    ids=["an unknown length", "somebody stops", "two displace others", "a running one of unknown length", "memory"],
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
    assert plan.standstill.outlives(NOW + 24.9, [])
    assert not plan.standstill.outlives(NOW + 25.0, [])
    assert plan.standstill.newcomers == Newcomer.START, "one that sinks holds what was free and did not suffice"


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
    reach = Placement(view).reach(np.array(rows, dtype=np.int64), np.array([levels[gpu] for gpu in rows]))
    for below in (0.0, 1.5, 2.5, 9.0):
        gone = Placement(view)
        gone.release_soon([gpu for gpu in rows if levels[gpu] < below])
        for n in range(1, count + 2):
            assert reach.fits(n, below) == (gone.find_soon(n) is not None)


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
    ["srtf,hysteresis=1", "srtf,measure=service", "sjf,backfill=true", "fifo", "las,quantum=150", "tiresias,threshold_1=20,threshold_2=60"],
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


def test_ends_that_help_nobody_and_who_fits_are_not_asked_about() -> None:
    rows: list[Row] = [(0, 10, 1), (0, 20, 1), (0, 100, 2), (1, 200, 4), (30, 5, 1), (50, 5, 1)]
    result = run(rows, "srtf,hysteresis=1", "1x4")
    assert result.fates.ended.tolist() == [10, 20, 100, 300, 35, 55]
    assert result.decisions == 2, "as three come at once, and as the gang comes that has to wait; it starts alone when all have ended"


@pytest.mark.parametrize(("policy", "decisions"), [("fifo", 0), ("las,quantum=9", 0), ("tiresias", 0), ("srtf", 1)])
def test_who_come_together_and_fit_start_in_turn(policy: str, decisions: int) -> None:
    """SRTF looks at the shorter one first, which makes a difference to where they go."""
    result = run([(0, 20, 1), (0, 10, 2), (0, 5, 1)], policy, "1x4")
    assert result.fates.started.tolist() == [0, 0, 0]
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
    assert result.decisions == 6, "at 0 and 35, as the gang displaces others at 10 and 25, and twice at 20, as two start in its room"
    costly = run(rows, "srtf,hysteresis=1", "1x4", COSTS["costly"])
    assert costly.decisions > result.decisions, "what happens while they stop is not known"
