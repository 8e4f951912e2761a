"""UniSched with a price of waiting: which deadlines are given up for best-effort jobs, and that the optimisation is told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.figures import jct_of, reward_of
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.contract import Plan, View
from stoker.policies.queues.laxity import has_deadline
from stoker.policies.unisched.modelling import model, standing_of
from stoker.policies.unisched.roles import Roles, roles_of
from stoker.policies.unisched.solver.problem import Problem
from stoker.policies.unisched.solver.selector import solve
from thesis_program import solve_plain
from views import NOW, Job, Kept, given, make_view, placed, reasons, views

HOUR = 3600.0
END = 1_000_200.0  #: of the cycle that NOW is in
PROOF = 240.0  #: seconds for the reference; all of these are proved in a few

costs = st.sampled_from([0.0, 1.0, 10.0, 100.0, 1000.0])


def plan(view: View, **config: Any) -> Plan:
    return registry.create("unisched", config).plan(view)


def strict(job: int, hours: float, slack: float = 100.0, **more: Any) -> Job:
    return Job(job, remaining=hours * HOUR, tiers=((NOW + hours * HOUR + slack, 100.0),), **more)


def best_effort(job: int, hours: float = 0.1, **more: Any) -> Job:
    return Job(job, remaining=hours * HOUR, **more)


def roles(view: View, cost: float) -> Roles:
    return roles_of(view, registry.create("unisched", {"waiting_cost": cost}).config)


def asked(view: View, **config: Any) -> Problem:
    made, aside = registry.create("unisched", config).config, np.zeros(len(view.gpus), dtype=bool)
    return model(view, roles_of(view, made), standing_of(view, aside), made, ~aside).problem


# Worked out by hand


def test_who_may_start_on_one_node_only_gets_it_and_others_move():
    """Its checkpoint lies there, and the solver counts GPUs of the pool: whoever else is there at the end of a lease makes room."""
    for other in ({"held": (0,), "lease_end": NOW}, {}):  # renewed, and beginning
        for hours in (0.1, 3.0):
            view = placed(make_view([1, 1], [best_effort(1, 2.0, **other), best_effort(2, hours)]), {2: [0]})
            assert given(plan(view)) == {1: (1,), 2: (0,)}, (other, hours)


def test_a_deadline_is_kept_until_others_wait_longer_for_it_than_it_is_worth():
    """Ten hours of the only GPU let one job wait ten hours longer: at 10 an hour that is what the deadline is worth."""
    view = make_view([1], [best_effort(1), strict(2, 10)])
    for cost in (0.0, 9.9):
        assert given(plan(view, waiting_cost=cost)) == {2: (0,)}
    answer = plan(view, waiting_cost=10.0)
    assert given(answer) == {1: (0,)}
    assert reasons(answer) == {2: "outweighed"}


def test_the_price_is_of_all_that_wait_and_of_its_share_of_the_pool():
    """Three jobs wait, for 10 hours of two of eight GPUs: 3 x 10 x 2 / 8 = 7.5 hours for each reward of 1 an hour."""
    jobs = [*(best_effort(job) for job in (1, 2, 3)), best_effort(4, gpus=9), strict(5, 10, gpus=2)]
    assert roles(make_view([4, 4], jobs), 1.0).toll[4] == pytest.approx(7.5), "who asks for more than there is does not wait for it"


def test_a_short_deadline_is_kept_where_a_long_one_is_given_up():
    answer = plan(make_view([1], [best_effort(1), strict(2, 10), strict(3, 1)]), waiting_cost=20.0)
    assert given(answer) == {3: (0,)}
    assert list(answer.order) == [1, 2]


def test_where_nobody_waits_no_deadline_is_given_up():
    runs = best_effort(1, 10, held=(1,), lease_end=END)
    assert given(plan(make_view([2], [runs, strict(2, 10)]), waiting_cost=1000.0)) == {2: (0,)}


def test_who_is_given_up_runs_on_what_is_left_for_a_best_effort_lease():
    """So that it gives way when the next cycle begins; a job that aims at its deadline has a lease of four."""
    jobs = [best_effort(1), best_effort(2, gpus=2), strict(3, 10)]
    answer = plan(make_view([2], jobs), waiting_cost=1000.0, slo_leases=4)
    assert given(answer) == {1: (0,), 3: (1,)}
    assert answer.allocations[3].lease_end == END
    kept = plan(make_view([2], jobs), slo_leases=4).allocations[3]
    assert kept.lease_end is not None
    assert kept.lease_end > END


def test_a_best_effort_lease_is_not_ended_early_for_a_deadline_that_is_given_up():
    policy = Kept(registry.create("unisched", {"waiting_cost": 20.0}))
    running = best_effort(1, 10, held=(0,), lease_end=END)
    policy.plan(make_view([1], [running]))
    waits = [best_effort(2), strict(3, 10, 50.0)]
    assert not policy.plan(make_view([1], [running, *waits], now=NOW + 10)).preempt
    without = Kept(registry.create("unisched", {}))
    without.plan(make_view([1], [running]))
    assert without.plan(make_view([1], [running, *waits], now=NOW + 10)).preempt == [1]


def test_the_optimisation_is_told_what_is_left_of_each_reward():
    job = Job(2, remaining=HOUR, tiers=((NOW + 1.1 * HOUR, 100.0), (NOW + 2 * HOUR, 20.0)))
    assert asked(make_view([1], [best_effort(1), job]), waiting_cost=30.0).tier_reward.tolist() == pytest.approx([70.0, 0.0])


def test_waiting_is_bought_with_a_deadline():
    """One GPU, ten hours for a deadline, and ten jobs of a tenth of an hour that come after it."""
    duration = [10 * HOUR, *[0.1 * HOUR] * 10]
    submitted = [0.0, *[60.0] * 10]
    tiers = [[(10.2 * HOUR, 100.0)], *[[]] * 10]
    jobs = make_workload("w", submitted, duration, [1] * 11, tiers=tiers, demand=[1, *[0] * 10])

    def outcome(cost: float) -> tuple[float, float]:
        result = simulate(jobs, Cluster((1,)), registry.create("unisched", {"waiting_cost": cost}), Options())
        return float(reward_of(jobs, result.fates)[0]), float(jct_of(jobs, result.fates)[1:].mean()) / HOUR

    kept, slow = outcome(0.0)
    lost, fast = outcome(2.0)
    assert (kept, lost) == (100.0, 0.0)
    assert slow > 9.0
    assert fast < 1.0


# Always


@for_all(view=views(deadlines=True), costs=st.tuples(costs, costs).map(sorted))
def test_the_dearer_waiting_is_the_more_deadlines_are_given_up(view: View, costs: list[float]):
    low, high = (roles(view, cost) for cost in costs)
    assert not (low.outweighed & ~high.outweighed).any()
    assert (low.toll <= high.toll).all()
    assert not roles(view, 0.0).outweighed.any()


@for_all(view=views(deadlines=True), cost=costs)
def test_of_equal_rewards_those_that_take_most_are_given_up(view: View, cost: float):
    found, jobs = roles(view, cost), view.jobs
    first = (np.diff(jobs.tier_start) == 1) & has_deadline(jobs) & (found.chance == 1.0)
    work = (found.left * jobs.gpus_min)[first]
    outweighed = found.outweighed[first]
    assert work[~outweighed].max(initial=0.0) <= work[outweighed].min(initial=np.inf)


@st.composite
def crowds(draw: st.DrawFn, *, waiting: bool = True) -> View:
    """Small enough to be solved by the plain program; without ``waiting`` all have deadlines."""
    jobs = []
    for number in range(1, draw(st.integers(1, 7)) + 1):
        job = Job(number, gpus=draw(st.sampled_from([1, 1, 2, 3, 4, 8])), remaining=float(draw(st.integers(60, 3000))))
        if not waiting or draw(st.booleans()):
            ends = sorted(draw(st.sets(st.integers(100, 4500), min_size=1, max_size=3)))
            job.tiers = tuple((NOW + end, reward) for end, reward in zip(ends, (100.0, 60.0, 20.0), strict=False))
        jobs.append(job)
    return make_view([8] * draw(st.integers(1, 2)), jobs)


@for_all(view=crowds(waiting=False), cost=costs)
def test_without_best_effort_jobs_waiting_costs_nothing(view: View, cost: float):
    answer, text = plan(view, waiting_cost=cost), plan(view)
    assert answer.allocations == text.allocations
    assert reasons(answer) == reasons(text)


@for_all(view=crowds(), cost=costs)
@settings(max_examples=40)
def test_at_every_price_it_is_within_one_per_cent_of_the_plain_program(view: View, cost: float):
    problem = asked(view, waiting_cost=cost)
    solution, plain = solve(problem), solve_plain(problem, PROOF)
    assert plain.optimal
    tolerance = 1e-6 * max(float(part.max(initial=0.0)) for part in (problem.tier_reward, problem.now_reward, problem.option_bonus))
    assert 0.99 * plain.objective - tolerance <= solution.objective <= plain.objective + tolerance
