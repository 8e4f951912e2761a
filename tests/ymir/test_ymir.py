"""The policy: numbers of GPUs, who is merged with whom and what becomes of that, rounds, and a daemon that knows of no transfers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from scripted import run
from stoker.engine.scheduling.plan_check import check
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Costs
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput
from stoker.policies.estimate.transfers import Joint, Transfers
from views import Job, Kept, accounts_for_all, given, make_view, reasons, written_out

TABLE = Throughput([1, 2, 3, 4, 8], [1.0, 1.9, 2.6, 3.2, 4.0])
PROFILES = (Profile("a", TABLE), Profile("b", TABLE), Profile("c", TABLE))
#: From an a, b has a tenth of its work; nothing else helps.
BEGIN = np.full((3, 3), np.nan)
BEGIN[0, 1] = 0.1
TRANSFERS = Transfers(BEGIN)
#: a and c at a third of their work each, together.
TOGETHER = Transfers(np.full((3, 3), np.nan), {(0, 2): Joint(1 / 3, TABLE), (2, 0): Joint(1 / 3, TABLE)})


def ymir(**config: Any) -> Kept:
    return Kept(registry.create("ymir", config))


def job(number: int, profile: int, remaining: float = 1000.0, **more: Any) -> Job:
    return Job(number, gpus_max=8, remaining=remaining, profile=profile, **more)


def view_of(*jobs: Job, nodes: tuple[int, ...] = (2,), ended: dict[int, int] | None = None, transfers: Transfers = TRANSFERS) -> View:
    left = {one: kind for kind, one in (ended or {}).items()}
    return dataclasses.replace(make_view(nodes, jobs, profiles=PROFILES), transfers=transfers, left=left)


CLOCK = itertools.count(10, 10)


def decided(policy: Kept, view: View) -> Plan:
    """What it decides some seconds after it was last asked."""
    view = dataclasses.replace(view, now=view.now + next(CLOCK))
    plan = check(policy.plan(view), view)
    accounts_for_all(written_out(plan, view), view)
    return plan


def test_without_transfers_it_divides_gpus_and_nothing_more() -> None:
    view = dataclasses.replace(view_of(job(1, 0), job(2, 1), job(3, 2, 5000.0), nodes=(4, 4)), transfers=None)
    plan = decided(ymir(), view)
    assert sorted(map(len, given(plan).values())) and sum(map(len, given(plan).values())) <= 8
    assert all(len(gpus) in (1, 2, 3, 4) for gpus in given(plan).values())
    assert not plan.waiting and all(one.begin_from is None and one.joint is None for one in plan.allocations.values())
    assert (plan.status, plan.gap) == ("optimal", pytest.approx(0.0, abs=2e-3))


def test_the_second_waits_for_the_first_and_begins_with_its_weights() -> None:
    policy = ymir()
    first = decided(policy, view_of(job(1, 0), job(2, 1), nodes=(1,)))
    assert list(given(first)) == [1] and reasons(first) == {2: "merged"}
    assert "weights of job 1 once that has ended" in first.waiting[0].reason.text
    # A third that comes changes nothing of that; another that would be there before is no reason to break it.
    busy = [job(1, 0, 500.0, held=(0,), run_time=500.0), job(2, 1)]
    assert reasons(decided(policy, view_of(*busy, job(3, 2), nodes=(1,))))[2] == "merged"
    after = decided(policy, view_of(job(2, 1), job(3, 2, 5000.0), nodes=(1,), ended={0: 1}))
    assert after.allocations[2].begin_from == 1 and after.allocations[2].gpus == (0,)


def test_the_first_is_cancelled_and_the_second_trains_by_itself() -> None:
    policy = ymir()
    decided(policy, view_of(job(1, 0), job(2, 1), nodes=(1,)))
    alone = decided(policy, view_of(job(2, 1), nodes=(1,)))
    assert alone.allocations[2].begin_from is None


def test_a_job_begins_with_the_weights_of_one_that_has_ended_unless_told_otherwise() -> None:
    view = view_of(job(7, 1), nodes=(1,), ended={0: 3, 2: 4})
    assert decided(ymir(), view).allocations[7].begin_from == 3
    assert decided(ymir(ended=False), view).allocations[7].begin_from is None
    trained = view_of(job(7, 1, run_time=60.0), nodes=(1,), ended={0: 3})
    assert decided(ymir(), trained).allocations[7].begin_from is None  # its own checkpoint would win
    assert decided(ymir(), view_of(job(7, 0), nodes=(1,), ended={0: 3})).allocations[7].begin_from is None


def test_jobs_of_the_same_data_are_counted_only_when_asked_for() -> None:
    begin = BEGIN.copy()
    np.fill_diagonal(begin, 0.0)
    view = view_of(job(7, 0), nodes=(1,), ended={0: 3}, transfers=Transfers(begin))
    assert decided(ymir(), view).allocations[7].begin_from is None
    assert decided(ymir(recurring=True), view).allocations[7].begin_from == 3
    two = view_of(job(7, 0), job(8, 0), nodes=(1,), transfers=Transfers(begin))
    assert "merged" not in reasons(decided(ymir(recurring=True), two)).values()


def test_two_train_together_on_the_gpus_of_one() -> None:
    policy = ymir()
    plan = decided(policy, view_of(job(1, 0, 1200.0), job(2, 2, 1000.0), nodes=(2,), transfers=TOGETHER))
    assert list(given(plan)) == [1] and plan.allocations[1].joint == 2  # who ends last holds the GPUs
    assert reasons(plan) == {2: "merged"} and "together with job 1" in plan.waiting[0].reason.text
    assert decided(ymir(spatial=False), view_of(job(1, 0), job(2, 2), transfers=TOGETHER)).allocations.keys() == {1, 2}
    # Merged jobs are only resized: four GPUs more, and both go on.
    held = view_of(job(1, 0, 900.0, held=(0, 1), run_time=300.0), job(2, 2, 700.0), nodes=(4, 4), transfers=TOGETHER)
    assert reasons(decided(policy, held)) == {2: "merged"}


def test_a_gang_of_four_gets_multiples_of_four_on_as_few_nodes_as_can_be() -> None:
    jobs = [Job(1, 4, gpus_max=16, remaining=9000.0, profile=0), Job(2, 1, gpus_max=8, remaining=100.0, profile=1)]
    plan = decided(ymir(), view_of(*jobs, nodes=(4, 4, 4), transfers=Transfers(np.full((3, 3), np.nan))))
    assert len(given(plan)[1]) % 4 == 0 and len({gpu // 4 for gpu in given(plan)[1]}) == len(given(plan)[1]) // 4


def test_a_small_gain_resizes_nobody() -> None:
    runs = view_of(job(1, 0, 130.0, held=(0,), run_time=900.0, lease_time=900.0), nodes=(2,))
    assert not ymir().plan(runs).allocations  # 120 s saved by a second GPU would be lost in the switch
    longer = view_of(job(1, 0, 9000.0, held=(0,), run_time=900.0, lease_time=900.0), nodes=(2,))
    assert len(given(ymir().plan(longer))[1]) == 2


def test_who_finds_no_solution_in_time_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.policies.ymir.ymir.solve", lambda *_, **__: None)
    plan = decided(ymir(), view_of(job(1, 0, held=(0,), run_time=50.0), job(2, 1), job(3, 1), nodes=(2,)))
    assert plan.status == "fallback" and list(given(plan)) == [2] and not plan.preempt


def workload(*rows: tuple[str, float, float], transfers: Transfers = TRANSFERS) -> Workload:
    models, submitted, duration = zip(*rows, strict=True)
    many = len(rows)
    return make_workload(
        "test", submitted, duration, [1] * many, gpus_max=[4] * many, models=models,
        profiles=PROFILES, transfers=transfers, asked=[1] * many,
    )  # fmt: skip


def simulated(work: Workload, policy: str = "ymir", nodes: str = "1x1", **costs: float) -> Result:
    return run(work, policy, nodes, Costs(**{"warm_start": costs.get("cold_start", 0.0), **costs}))


def test_a_pair_in_a_simulation_by_hand() -> None:
    """One GPU, 20 s a start. a trains until 120; b, of 200 s, goes on there after 5 s with a tenth of its work, until 145."""
    pair = simulated(workload(("a", 0, 100), ("b", 0, 200)), cold_start=20.0)
    assert pair.fates.ended.tolist() == [120, 145]
    alone = simulated(workload(("a", 0, 100), ("b", 0, 200)), "ymir,temporal=false,ended=false", cold_start=20.0)
    assert alone.fates.ended.tolist() == [120, 340]
    later = simulated(workload(("a", 0, 100), ("b", 500, 200)), "ymir,temporal=false", cold_start=20.0)
    assert later.fates.ended.tolist() == [120, 540]  # from the bank, without a pair


def test_firsts_that_end_together_are_followed_each_by_its_second() -> None:
    """Two GPUs; both pairs are as the one above, and the bank has only the newest of a kind beside it."""
    work = workload(("a", 0, 100), ("b", 0, 200), ("a", 0, 100), ("b", 0, 200))
    both = simulated(work, "ymir,ended=false", "1x2", cold_start=20.0)
    assert both.fates.ended.tolist() == [120, 145, 120, 145]


def test_rounds_leave_arrivals_waiting_and_merged_jobs_going_on() -> None:
    work = workload(("a", 10, 100), ("b", 20, 200), ("c", 130, 50))
    rounds = simulated(work, "ymir,round=60", cold_start=5.0)
    # a and b are seen at 60; a ends at 160 and b goes on at once, until 185; c, which came at 130, is served at the round after that.
    assert rounds.fates.ended.tolist() == [165, 190, 295]
    assert rounds.fates.started.tolist() == [60, 165, 240]


@pytest.mark.parametrize("name", ["ymir", "optimus", "pollux"])
def test_rounds_that_would_never_end_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="round: 1e-06 s is too short"):
        registry.create(name, {"round": 1e-6})
    assert registry.create(name, {"round": 0}).interval is None


@pytest.mark.parametrize("config", ["ymir", "ymir,round=60", "ymir,recurring=true", "ymir,ended=false"])
@pytest.mark.sampled(2)
def test_random_workloads_end_whole(config: str) -> None:
    rng = np.random.default_rng(5)
    begin = np.where(rng.random((3, 3)) < 0.6, rng.uniform(0.1, 1.4, (3, 3)), math.nan)
    np.fill_diagonal(begin, 0.0)
    joint = {pair: Joint(float(rng.uniform(0.3, 1.5)), TABLE) for a in range(3) for b in range(a) for pair in ((a, b), (b, a))}
    rows = [("abc"[rng.integers(3)], float(rng.uniform(0, 4000)), float(rng.lognormal(6, 1))) for _ in range(40)]
    result = simulated(workload(*rows, transfers=Transfers(begin, joint)), config, "2x4", cold_start=30.0, resume=30.0, suspend=3.0)
    assert np.isfinite(result.fates.ended).all()
    again = simulated(workload(*rows, transfers=Transfers(begin, joint)), config, "2x4", cold_start=30.0, resume=30.0, suspend=3.0)
    assert again.fates.ended.tolist() == result.fates.ended.tolist()
    assert result.usage.busy.max() <= 8 and result.usage.busy[-1] == 0
