"""UniSched and Chronus while nobody waits: leases without an end, and that nobody who comes can tell the difference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from stoker.engine.scheduling.guards import Evictions as Gave
from stoker.engine.scheduling.guards import PreemptionLimits, protect, reconcile
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import NO_LIMITS, Costs, Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Policy
from stoker.policies.unisched import unisched
from views import NOW, Job, Kept, given, make_view

CYCLE = 300.0
END = 1_000_200.0  #: of the cycle that NOW is in
DAY = 86_400.0

both = pytest.mark.parametrize("name", ["unisched", "chronus"])


def make(name: str = "unisched", **config: Any) -> Policy:
    return Kept(registry.create(name, config))


def run(workload: Workload, name: str, options: Options | None = None, nodes: tuple[int, ...] = (8,), **config: Any) -> Result:
    return simulate(workload, Cluster(nodes), make(name, **config), options or Options())


def run_asking(workload: Workload, name: str, options: Options | None = None, nodes: tuple[int, ...] = (8,), **config: Any) -> Result:
    """The same when every lease has an end, so that the policy is asked in every cycle."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unisched, "is_quiet", lambda view, aside: False)
        return run(workload, name, options, nodes, **config)


def assert_alike(one: Result, other: Result) -> None:
    for column in ("started", "ended", "run_time", "lost", "preemptions"):
        assert np.allclose(getattr(one.fates, column), getattr(other.fates, column), rtol=0, atol=1e-4, equal_nan=True), column


def started(*held: Job, name: str = "unisched", **config: Any) -> Policy:
    """A policy that has renewed the leases of these jobs, which have just run out, while nobody waited."""
    policy = make(name, **config)
    policy.plan(make_view([4], [dataclasses.replace(job, lease_time=CYCLE, lease_end=END - CYCLE) for job in held], now=END - CYCLE))
    return policy


HELD = Job(1, gpus=2, remaining=50_000.0, held=(0, 1), lease_time=400.0)


# Nobody asks


@both
@pytest.mark.parametrize("profiling", [0.0, 60.0])
@pytest.mark.parametrize("tiers", [[], [(40 * DAY, 100.0)], [(10 * DAY, 100.0)]], ids=["best effort", "in time", "late"])
def test_a_long_quiet_stretch_takes_a_few_decisions(name: str, profiling: float, tiers: list[tuple[float, float]]):
    workload = make_workload("w", [0.0], [30 * DAY], [4], tiers=[tiers], demand=[2 if tiers else 0])
    result = run(workload, name, Options(costs=Costs(profiling=profiling)))
    assert result.fates.ended[0] == pytest.approx(30 * DAY + profiling, abs=CYCLE)
    assert result.decisions < 10


@both
def test_so_does_one_of_many_jobs(name: str):
    workload = make_workload("w", [0.0, 100.0, 250.0, 90_000.0], [30 * DAY, 20 * DAY, 3600.0, 60.0], [2, 2, 1, 1])
    assert run(workload, name).decisions < 20


def test_a_lease_that_runs_out_while_nobody_waits_is_renewed_without_an_end():
    answer = make().plan(make_view([4], [dataclasses.replace(HELD, lease_end=NOW)]))
    assert given(answer) == {1: (0, 1)}
    assert answer.allocations[1].lease_end is None and answer.wake_at is None


def test_nobody_is_asked_again_because_of_one_that_goes_on():
    answer = make().plan(make_view([4], [dataclasses.replace(HELD, lease_end=END)]))
    assert not answer.allocations and answer.wake_at is None


@pytest.mark.parametrize(
    "other",
    [Job(2, remaining=50.0), Job(2, held=(2,), stopping=True), Job(2, gpus=4, profile_gpus=2, held=(2, 3), lease_end=END)],
    ids=["waits", "stops", "is profiled"],
)
def test_one_who_waits_or_is_about_to_keeps_leases_short(other: Job):
    answer = make().plan(make_view([4], [dataclasses.replace(HELD, lease_end=NOW), other]))
    assert answer.allocations[1].lease_end == END and answer.wake_at == END


def test_a_lease_that_lasts_through_the_next_cycle_keeps_its_end():
    """It was renewed 5 s before the end of a cycle, as after a profiling run: without an end it would count as ending in 5 s."""
    answer = make().plan(make_view([4], [dataclasses.replace(HELD, lease_end=END - 5)], now=END - 5))
    assert answer.allocations[1].lease_end == END + CYCLE


# Somebody comes


@both
@pytest.mark.sampled(2)
def test_who_comes_then_starts_when_the_next_cycle_begins(name: str):
    workload, options = make_workload("w", [0.0, 40_000.0], [DAY, 60.0], [8, 8]), Options(costs=Costs(suspend=4.0, resume=18.0))
    result = run(workload, name, options)
    assert result.fates.started.tolist() == [0.0, 40_200.0 + 4.0]
    assert result.fates.preemptions.tolist() == [1, 0]
    assert result.decisions < 15
    assert_alike(result, run_asking(workload, name, options))


def test_a_lease_without_an_end_gets_that_of_its_cycle_when_somebody_comes():
    policy = started(HELD)
    view = make_view([4], [HELD, Job(2, gpus=4, remaining=10.0, submitted=NOW)])
    answer = policy.plan(view)
    assert given(answer) == {1: (0, 1)} and not answer.preempt, "it is not taken back within its cycle"
    assert answer.allocations[1].lease_end == END and answer.wake_at == END
    check(answer, view)
    later = make_view([4], [dataclasses.replace(HELD, lease_end=END), Job(2, gpus=4, remaining=10.0, submitted=NOW)], now=END)
    assert given(policy.plan(later)) == {2: (0, 1, 2, 3)}


def test_of_a_job_with_a_deadline_it_is_that_of_its_longer_lease():
    timed = dataclasses.replace(HELD, tiers=((NOW + 200_000, 100.0),))
    answer = started(timed, slo_leases=4).plan(make_view([4], [timed, Job(2, gpus=4, remaining=10.0, submitted=NOW)]))
    assert answer.allocations[1].lease_end == math.ceil(NOW / 1200) * 1200


def test_it_may_be_taken_back_at_the_moment_at_which_a_cycle_begins():
    """Whoever comes just then finds all leases run out."""
    policy = started(HELD)
    answer = policy.plan(make_view([4], [HELD, Job(2, gpus=4, remaining=10.0, submitted=END)], now=END))
    assert given(answer) == {2: (0, 1, 2, 3)} and list(answer.preempt or ()) == [1]


def test_and_within_a_cycle_for_a_deadline_that_cannot_wait():
    policy = started(HELD)
    urgent = Job(2, gpus=4, remaining=100.0, tiers=((NOW + 150, 100.0),), submitted=NOW)
    answer = policy.plan(make_view([4], [HELD, urgent]))
    assert given(answer) == {2: (0, 1, 2, 3)} and list(answer.preempt or ()) == [1]


def test_a_lease_without_an_end_of_another_policy_counts_like_our_own():
    """So a forecast, which has a policy of its own, says what will be."""
    answer = make().plan(make_view([4], [HELD, Job(2, gpus=4, remaining=10.0, submitted=NOW)]))
    assert given(answer) == {1: (0, 1)} and answer.allocations[1].lease_end == END


def test_a_lease_that_the_policy_found_with_an_end_is_not_taken_back_at_once():
    """A daemon that starts anew takes the ends away of leases that the first plan does not name."""
    policy = make()
    policy.plan(make_view([4], [dataclasses.replace(HELD, lease_end=END - CYCLE + 50)], now=END - CYCLE - 10))
    answer = policy.plan(make_view([4], [HELD, Job(2, gpus=4, remaining=10.0, submitted=NOW)]))
    assert given(answer) == {1: (0, 1)} and answer.allocations[1].lease_end == END


def test_a_guard_holds_longer_than_the_cycle():
    policy = started(HELD)
    view = protect(make_view([4], [HELD, Job(2, gpus=4, remaining=10.0, submitted=NOW)]), PreemptionLimits(min_run_time=900.0))
    answer = policy.plan(view)
    assert answer.allocations[1].lease_end == NOW + 500.0
    spent = protect(view, PreemptionLimits(min_run_time=900.0, max_preemptions=0))
    answer = started(HELD).plan(spent)
    assert 1 not in answer.allocations and not answer.preempt, "its lease has no end as it is"
    assert not reconcile(spent, check(answer, spent), PreemptionLimits(max_preemptions=0), Gave()).stops


def test_who_must_leave_the_gpus_of_the_profiler_leaves_them_for_somebody_only():
    """Nothing is set aside while the gang of 14 is here; when it has ended, the gang of 2 stands on GPUs that are, alone for a while."""
    workload = make_workload("w", [0.0, 1.0, 60_010.0, 60_020.0], [50_010.0, 90_000.0, 1000.0, 1000.0], [14, 2, 12, 12])
    result = run(workload, "chronus", nodes=(4, 4, 4, 4), profiler_gpus=4)
    assert result.bars.begins.tolist() == [0.0, 1.0, 60_010.0, 61_010.0, 62_010.0]
    assert result.fates.preemptions.tolist() == [0, 1, 0, 0]
    assert result.decisions < 60
    assert_alike(result, run_asking(workload, "chronus", nodes=(4, 4, 4, 4), profiler_gpus=4))


JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 400), st.integers(1, 4000), st.sampled_from([1, 1, 2, 4, 8, 12]), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)
CONFIGS = [
    ("unisched", {}), ("unisched", {"be_lease": 60.0, "slo_leases": 5}), ("unisched", {"objective": False}),
    ("unisched", {"interrupt": False}), ("chronus", {"profiler_gpus": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
@for_all(jobs=JOBS, costs=st.booleans(), guarded=st.booleans(), profiling=st.sampled_from([0.0, 60.0]), wrong=st.sampled_from([0.0, 0.8]))
@settings(max_examples=8)
@pytest.mark.sampled(2)
def test_nobody_can_tell_that_nobody_asked(
    name: str, config: dict[str, Any], jobs: list[tuple[int, ...]], costs: bool, guarded: bool, profiling: float, wrong: float
):
    """Bursts that are 3000 s apart: what is left of one runs alone until the next."""
    burst, after, duration, gpus, kind = (list(column) for column in zip(*jobs, strict=True))
    submitted = [3000 * number + seconds for number, seconds in zip(burst, after, strict=True)]
    rewards = ((), ((1.5, 100.0),), ((1.3, 100.0), (2.0, 50.0)), ((0.9, 100.0),))
    tiers = [[(s + factor * d, reward) for factor, reward in rewards[k]] for s, d, k in zip(submitted, duration, kind, strict=True)]
    workload = make_workload("w", submitted, duration, gpus, tiers=tiers, demand=[min(len(steps), 2) for steps in tiers])
    options = Options(
        costs=Costs(suspend=4.0, resume=18.0, lost_on_suspend=5.0, profiling=profiling) if costs else Costs(profiling=profiling),
        limits=PreemptionLimits(min_run_time=100.0, max_preemptions=2) if guarded else NO_LIMITS,
        errors=Errors(duration=wrong),
        seed=1,
    )
    result, asking = (with_ends(workload, name, options, (8, 8), **config) for with_ends in (run, run_asking))
    assert_alike(result, asking)
    assert result.decisions <= asking.decisions
