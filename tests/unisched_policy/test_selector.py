"""UniSched's optimisation beside the thesis's own program, on real buddy cells, and lease by lease."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.policies.unisched.solver.choices import make_columns
from stoker.policies.unisched.solver.dual import evaluate
from stoker.policies.unisched.solver.patterns import patterns
from stoker.policies.unisched.solver.problem import FEASIBLE, OPTIMAL, TIMEOUT, Problem, Solution, SolverLimits, from_level
from stoker.policies.unisched.solver.selector import solve
from stoker.policies.unisched.solver.timetable import Schedule
from stoker.policies.unisched.solver.twins import find_twins
from thesis_program import solve_plain

NODE = 8
PROOF = 240.0  #: seconds for the reference; all of these are proved in a few


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclasses.dataclass
class Job:
    """One job of a problem; ``options`` are (GPUs, cells, leases, bonus), ``tiers`` (leases, reward)."""

    options: list[tuple[int, tuple[int, ...], int, float]]
    tiers: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    now: float = 0.0
    lease: int = 1
    first: int = 0


def make_problem(jobs: list[Job], capacity: int, cells: tuple[int, ...] | None = None, busy: tuple[int, ...] = ()) -> Problem:
    options = [option for job in jobs for option in job.options]
    tiers = [tier for job in jobs for tier in job.tiers]
    return Problem(
        capacity=capacity,
        busy=ints(*busy),
        cells=ints(*(cells or (0, 0, 0, capacity // NODE)))[None],
        lease=ints(*(job.lease for job in jobs)),
        may_start=np.array([job.first == 0 for job in jobs], dtype=bool),
        option_start=np.cumsum([0, *(len(job.options) for job in jobs)]),
        option_gpus=ints(*(option[0] for option in options)),
        option_cells=np.array([option[1] for option in options], dtype=np.int64).reshape(-1, 4),
        option_leases=ints(*(option[2] for option in options)),
        option_bonus=np.array([option[3] for option in options], dtype=float),
        tier_start=np.cumsum([0, *(len(job.tiers) for job in jobs)]),
        tier_leases=ints(*(tier[0] for tier in tiers)),
        tier_reward=np.array([tier[1] for tier in tiers], dtype=float),
        now_reward=np.array([job.now for job in jobs], dtype=float),
        first=ints(*(job.first for job in jobs)),
    )


def whole(gpus: int, leases: int, bonus: float = 0.0) -> tuple[int, tuple[int, ...], int, float]:
    return gpus, patterns(gpus)[0].cells, leases, bonus


@st.composite
def some_jobs(draw: st.DrawFn, most: int = 8, horizon: int = 8) -> Job:
    gpus = draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 16]))
    leases = draw(st.integers(1, 5))
    options = [
        (size, pattern.cells, leases * gpus // size + (not pattern.compact) or 1, draw(st.sampled_from([0.0, 0.0, 0.01])))
        for size in sorted({gpus, max(1, gpus // 2)})
        for pattern in patterns(size)
    ]
    if draw(st.booleans()):
        return Job(options, now=draw(st.sampled_from([0.05, 0.2, 1.0])))
    lease = draw(st.sampled_from([1, 2]))
    deadlines = sorted(draw(st.sets(st.integers(1, horizon // lease), min_size=1, max_size=3)))
    rewards = sorted(draw(st.lists(st.integers(5, 100), min_size=len(deadlines), max_size=len(deadlines))), reverse=True)
    first = draw(st.sampled_from([0, 0, 0, 1]))
    return Job(options, [(end, float(reward)) for end, reward in zip(deadlines, rewards, strict=True)], lease=lease, first=first)


@st.composite
def small_problems(draw: st.DrawFn, most: int = 8) -> Problem:
    jobs = draw(st.lists(some_jobs(), min_size=0, max_size=most))
    nodes = draw(st.integers(1, 3))
    busy_now = draw(st.integers(0, NODE))
    cells = draw(st.sampled_from([0, 1])) if busy_now == 0 else 0
    # What leases hold of the first node; the rest of it is free in the largest aligned cells.
    rest = NODE - busy_now
    free = tuple(rest >> level & 1 for level in range(3))
    top = nodes - 1 + (busy_now == 0)
    busy = (busy_now,) * draw(st.integers(1, 4)) if busy_now else ()
    return make_problem(jobs, nodes * NODE, (*(free if busy_now else (0, 0, 0)), top if cells or busy_now else nodes), busy)


@st.composite
def mixed_problems(draw: st.DrawFn, most: int = 8) -> Problem:
    """On some of the whole nodes GPUs have much memory, which some of the jobs ask for."""
    problem = draw(small_problems(most) | arrays(most))
    large = draw(st.integers(0, int(problem.cells[0, -1])))
    memory = draw(st.lists(st.integers(0, 1), min_size=len(problem), max_size=len(problem)))
    return dataclasses.replace(problem, cells=np.vstack([problem.cells, ints(0, 0, 0, large)]), memory=ints(*memory))


@st.composite
def arrays(draw: st.DrawFn, most: int = 8) -> Problem:
    """Jobs that are alike, or nearly, among each other."""
    kinds = draw(st.lists(some_jobs(), min_size=1, max_size=2))
    jobs = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(2, most)))]
    return make_problem([draw(st.sampled_from([job, nearly(job)])) for job in jobs], NODE * draw(st.integers(1, 3)))


def nearly(job: Job) -> Job:
    """The same job with rewards that are 0.05 % larger."""
    tiers = [(end, 1.0005 * reward) for end, reward in job.tiers]
    return dataclasses.replace(job, tiers=tiers, now=1.0005 * job.now)


problems = small_problems() | mixed_problems() | arrays()
larger_problems = small_problems(most=14) | mixed_problems(most=14) | arrays(most=14)


def slots_used(problem: Problem, solution: Solution) -> np.ndarray:
    """GPUs in each slot by the leases of the schedule, recounted from the answer alone."""
    horizon = 64
    used = np.zeros(horizon, dtype=np.int64)
    used[: len(problem.busy)] += problem.busy
    for job, leases in enumerate(solution.leases):
        if solution.option[job] < 0:
            assert not len(leases)
            continue
        gpus = problem.option_gpus[solution.option[job]]
        length, first = problem.lease[job], problem.first_slot[job]
        for number in leases:
            used[first + number * length : first + (number + 1) * length] += gpus
    return used


def worth(problem: Problem, solution: Solution) -> float:
    total = problem.tier_reward[solution.tier[solution.tier >= 0]].sum()
    running = solution.now
    return float(total + problem.now_reward[running].sum() + problem.option_bonus[solution.option[running]].sum())


def assert_true(problem: Problem, solution: Solution) -> None:
    """All that an answer claims, from the answer alone."""
    assert (slots_used(problem, solution)[1:] <= problem.capacity).all()
    running = np.flatnonzero(solution.now)
    assert problem.may_start[running].all()
    memory = np.zeros(len(problem), dtype=np.int64) if problem.memory is None else problem.memory
    for least, cells in enumerate(problem.cells):
        taken = problem.option_cells[solution.option[solution.now & (memory >= least)]].sum(axis=0)
        assert (from_level(taken) <= from_level(cells)).all()
    for job in range(len(problem)):
        option, tier, leases = int(solution.option[job]), int(solution.tier[job]), solution.leases[job]
        assert (np.diff(leases) > 0).all()
        assert (0 in leases and problem.first_slot[job] == 0) == bool(solution.now[job])
        if option >= 0:
            assert problem.option_start[job] <= option < problem.option_start[job + 1]
        if tier >= 0:
            assert problem.tier_start[job] <= tier < problem.tier_start[job + 1]
            assert (leases < problem.tier_leases[tier]).sum() >= problem.option_leases[option]
    assert solution.objective == pytest.approx(worth(problem, solution), abs=1e-9)
    assert solution.bound >= solution.objective
    assert 0.0 <= solution.gap <= 1.0


def largest_reward(problem: Problem) -> float:
    return max(float(part.max(initial=0.0)) for part in (problem.tier_reward, problem.now_reward, problem.option_bonus))


@given(problems)
def test_it_is_within_one_per_cent_of_the_plain_program_and_its_bound_is_above_it(problem: Problem) -> None:
    solution, plain = solve(problem), solve_plain(problem, PROOF)
    assert plain.optimal
    tolerance = 1e-6 * largest_reward(problem)  # CP-SAT's integers
    assert 0.99 * plain.objective - tolerance <= solution.objective <= plain.objective + tolerance
    assert solution.bound >= plain.objective - tolerance
    assert solution.status == OPTIMAL


@given(larger_problems)
def test_an_answer_is_what_it_says(problem: Problem) -> None:
    assert_true(problem, solve(problem))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [(60, 24), (300, 64)], ids=["60 jobs", "300 jobs"])
def test_a_larger_answer_is_what_it_says(size: tuple[int, int], seed: int) -> None:
    problem = random_problem(*size, seed)
    assert_true(problem, solve(problem, SolverLimits(exact=0, cores=((200, 1.0),), nodes=20)))


@given(larger_problems)
def test_without_time_there_is_an_answer(problem: Problem) -> None:
    clock = itertools.count()
    solution = solve(problem, SolverLimits(seconds=0.0, clock=lambda: float(next(clock))))
    assert_true(problem, solution)
    assert solution.status in (OPTIMAL, TIMEOUT)
    assert solution.status == OPTIMAL or solution.gap > 0.01


@pytest.mark.parametrize("ticks", [1, 5, 20, 100])
def test_a_limit_ends_the_search_wherever_it_is(ticks: int) -> None:
    clock = itertools.count()
    problem = random_problem(300, 64, 1)
    limits = SolverLimits(gap=0.0, seconds=float(ticks), clock=lambda: float(next(clock)), cores=((200, 1.0),), nodes=5)
    solution = solve(problem, limits)
    assert_true(problem, solution)
    assert solution.status == TIMEOUT
    assert solution.seconds >= ticks


def test_iterations_that_are_used_up_are_no_timeout() -> None:
    solution = solve(random_problem(300, 64, 1), SolverLimits(gap=0.0, iterations=3, cores=(), exact=0))
    assert solution.status == FEASIBLE
    assert solution.seconds == 0.0


@given(small_problems(most=10))
def test_the_same_problem_has_the_same_answer(problem: Problem) -> None:
    first, second = solve(problem), solve(problem)
    for field in dataclasses.fields(Solution):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "leases":
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        else:
            assert np.array_equal(one, other)


@given(small_problems(most=10), st.lists(st.floats(0, 5), min_size=64, max_size=64))
def test_any_prices_bound_every_schedule(problem: Problem, numbers: list[float]) -> None:
    columns = make_columns(problem, spans=5)
    bound, _, _ = evaluate(columns, np.array(numbers[: len(columns.room)]))
    assert bound >= solve(problem).objective - 1e-6


@given(small_problems(most=14) | arrays(most=14))
def test_what_runs_fits_on_real_cells(problem: Problem) -> None:
    """Each node's positions are given out cell by cell, largest first, as the pieces of the chosen options."""
    solution = solve(problem)
    free = free_positions(problem)
    pieces = [piece for option in solution.option[solution.now] for piece in pieces_of(problem.option_cells[option])]
    for level, gpus in sorted(pieces, reverse=True):
        cell = next(cell for cell in cells_of(level) if cell <= free)
        free -= set(sorted(cell)[:gpus])


def free_positions(problem: Problem) -> set[int]:
    """Positions of free GPUs, node by node, from the free cells."""
    free, at = set[int](), 0
    for level in reversed(range(4)):
        for _ in range(int(problem.cells[0, level])):
            free |= set(range(at, at + (1 << level)))
            at += 1 << level
    return free


def cells_of(level: int) -> list[set[int]]:
    return [set(range(start, start + (1 << level))) for start in range(0, 64, 1 << level)]


def pieces_of(cells: np.ndarray) -> list[tuple[int, int]]:
    """(level, GPUs) of the cells of an option; the one that gives a rest back is the smallest that can."""
    pieces = [(level, 1 << level) for level in range(4) for _ in range(max(0, int(cells[level])))]
    back = sum((1 << level) * -int(count) for level, count in enumerate(cells) if count < 0)
    if back:
        level = min(level for level, size in pieces if size > back)
        pieces.remove((level, 1 << level))
        pieces.append((level, (1 << level) - back))
    return pieces


def random_problem(jobs: int, gpus: int, seed: int) -> Problem:
    rng = np.random.default_rng([seed, jobs, gpus])
    made = []
    for _ in range(jobs):
        size, leases = int(rng.choice([1, 2, 4, 8])), int(rng.integers(1, 10))
        options = [(size, pattern.cells, leases + (not pattern.compact), 0.0) for pattern in patterns(size)]
        if rng.random() < 0.7:
            ends = sorted(rng.choice(np.arange(1, 13), int(rng.integers(1, 4)), replace=False).tolist())
            rewards = sorted(rng.uniform(10, 100, len(ends)).tolist(), reverse=True)
            made.append(Job(options, list(zip(ends, rewards, strict=True)), lease=int(rng.choice([1, 2]))))
        else:
            made.append(Job(options, now=1.0 / leases))
    return make_problem(made, gpus)


def test_a_deadline_comes_before_best_effort_and_the_rest_of_slot_0_is_filled() -> None:
    urgent = Job([whole(8, 3)], [(3, 100.0)])
    patient = Job([whole(4, 2)], [(8, 100.0)])
    short, long = Job([whole(4, 1)], now=1.0), Job([whole(4, 9)], now=0.1)
    solution = solve(make_problem([urgent, patient, short, long], 16))
    assert solution.now.tolist() == [True, False, True, True]  # who can wait lets both be paid
    assert solution.tier.tolist() == [0, 1, -1, -1]
    assert solution.gap < 1e-6


def test_who_can_wait_runs_ahead_where_nobody_is_paid_for_running() -> None:
    solution = solve(make_problem([Job([whole(8, 2)], [(9, 50.0)]), Job([whole(8, 2)])], 8))
    assert solution.now.tolist() == [True, False]
    assert 0 in solution.leases[0]


def test_gpus_that_no_plan_needs_go_to_jobs_that_cannot_be_in_time() -> None:
    late = Job([whole(4, 5)], [(2, 100.0)])
    solution = solve(make_problem([late], 8))
    assert solution.now.tolist() == [True]
    assert solution.tier.tolist() == [-1]
    assert solution.objective == 0.0


def test_filling_never_takes_what_a_plan_needs() -> None:
    """A job with leases of two slots would hold the GPUs that another must have in slot 1."""
    must = Job([whole(8, 1)], [(1, 100.0)], first=1)
    idle = Job([whole(8, 4)], lease=2)
    solution = solve(make_problem([must, idle], 8))
    assert solution.tier.tolist() == [0, -1]
    assert solution.now.tolist() == [False, False]


def test_the_fastest_of_equal_options_is_taken_where_there_is_room() -> None:
    apart, together = (4, (4, 0, 0, 0), 6, 0.0), (4, (0, 0, 1, 0), 4, 0.0)
    solution = solve(make_problem([Job([apart, together], now=1.0)], 8))
    assert solution.option.tolist() == [1]


def test_cells_that_are_not_whole_take_no_whole_gang() -> None:
    scattered = (0, 4, 0, 0)
    together, apart = (8, (0, 0, 0, 1), 2, 0.0), (8, (8, 0, 0, 0), 3, 0.0)
    assert solve(make_problem([Job([together], now=1.0)], 8, scattered)).now.tolist() == [False]
    assert solve(make_problem([Job([together, apart], now=1.0)], 8, scattered)).option.tolist() == [1]


def test_leases_that_go_on_are_not_counted_on() -> None:
    job = Job([whole(8, 2)], [(3, 100.0)])
    busy = make_problem([job], 8, (0, 0, 0, 0), (8, 8))
    assert solve(busy).tier.tolist() == [-1]
    longer = dataclasses.replace(busy, tier_leases=ints(4))
    assert solve(longer).leases[0].tolist() == [2, 3]


def test_leases_of_a_job_that_may_not_start_begin_at_its_first_slot() -> None:
    job = Job([whole(8, 2)], [(2, 100.0)], lease=2, first=1)
    solution = solve(make_problem([job], 8))
    assert solution.leases[0].tolist() == [0, 1]
    assert slots_used(make_problem([job], 8), solution)[:6].tolist() == [0, 8, 8, 8, 8, 0]


def test_no_jobs_and_no_gpus() -> None:
    assert solve(make_problem([], 8)).status == OPTIMAL
    nothing = solve(make_problem([Job([whole(1, 1)], [(2, 5.0)], now=1.0)], 0, (0, 0, 0, 0)))
    assert (nothing.objective, nothing.bound, nothing.status) == (0.0, 0.0, OPTIMAL)


def test_far_deadlines_share_rows_and_the_answer_still_exists() -> None:
    rng = np.random.default_rng(5)
    jobs = [
        Job([whole(int(rng.choice([1, 2, 4, 8])), leases)], [(int(leases * rng.uniform(1, 4)), 100.0)], lease=2)
        for leases in rng.integers(1, 400, 60).tolist()
    ]
    problem = make_problem(jobs, 24)
    solution = solve(problem, SolverLimits(rows=24, cores=((200, 1.0),), nodes=20, exact=0))
    assert solution.counts["rows"] <= 24 + 4
    used = np.zeros(4000, dtype=np.int64)
    for job, leases in enumerate(solution.leases):
        if solution.tier[job] >= 0:
            assert (leases < problem.tier_leases[solution.tier[job]]).sum() >= problem.option_leases[solution.option[job]]
            used[(leases[:, None] * 2 + np.arange(2)).ravel()] += problem.option_gpus[solution.option[job]]
    assert (used <= 24).all()
    assert solution.gap < 0.05


def test_tasks_of_an_array_are_one_row_each_with_its_own_answer() -> None:
    """Ten of four GPUs and two leases until slot 4 in a node of 8, where 2 run at once: four are in time, the first of them now."""
    array, other = Job([whole(4, 2)], [(4, 100.0)]), Job([whole(8, 9)], [(2, 100.0)])
    problem = make_problem([array] * 5 + [other] + [array] * 5, 8)
    together, apart = solve(problem), solve(problem, SolverLimits(alike=None))
    assert together.counts["alike"] == 9 and apart.counts["alike"] == 0
    assert together.counts["columns"] * 10 == apart.counts["columns"]
    assert together.objective == apart.objective == 400.0
    assert_true(problem, together)
    assert together.tier.tolist() == [0, 1, 2, 3] + [-1] * 7
    assert together.now.tolist() == [True, True] + [False] * 9


def test_what_makes_jobs_unlike() -> None:
    job = Job([whole(2, 2, 0.5)], [(4, 100.0)], now=0.5)
    others = [
        dataclasses.replace(job, options=[whole(2, 3, 0.5)]),
        dataclasses.replace(job, options=[whole(4, 2, 0.5)]),
        dataclasses.replace(job, options=[(2, (2, 0, 0, 0), 2, 0.5)]),
        dataclasses.replace(job, options=[whole(2, 2)]),
        dataclasses.replace(job, options=[whole(2, 2, 0.5), whole(4, 1)]),
        dataclasses.replace(job, tiers=[(5, 100.0)]),
        dataclasses.replace(job, tiers=[(4, 101.0)]),
        dataclasses.replace(job, tiers=[]),
        dataclasses.replace(job, now=0.6),
        dataclasses.replace(job, now=0.0),
        dataclasses.replace(job, lease=2),
        dataclasses.replace(job, first=1),
    ]
    for other in others:
        assert len(find_twins(make_problem([job, other, job], 8), 1e-3).problem) == 2
    large = dataclasses.replace(make_problem([job, job], 8), cells=ints(0, 0, 0, 1, 0, 0, 0, 1).reshape(2, 4), memory=ints(0, 1))
    assert len(find_twins(large, 1e-3).problem) == 2
    everyone = find_twins(make_problem([*others, job, *others], 8), 1e-3)
    assert len(everyone.problem) == len(others) + 1


def test_alike_jobs_keep_the_slot_of_their_first_lease() -> None:
    problem = make_problem([Job([whole(4, 1)], [(1, 5.0)], first=2)] * 2, 8)
    assert find_twins(problem, 0.0).problem.first_slot.tolist() == [2]
    assert slots_used(problem, solve(problem))[:4].tolist() == [0, 0, 8, 0]


def test_rewards_within_the_tolerance_are_taken_for_the_largest_but_paid_as_they_are() -> None:
    rewards = [100.0, 100.02, 100.05]
    problem = make_problem([Job([whole(8, 1)], [(1, reward)]) for reward in rewards], 24)
    twins = find_twins(problem, 1e-3)
    assert len(twins.problem) == 1
    assert twins.problem.tier_reward.tolist() == [100.05]
    assert twins.excess == pytest.approx(5e-4)
    assert len(find_twins(problem, 1e-4).problem) > 1
    assert len(find_twins(problem, 0.0).problem) == 3
    solution = solve(problem)
    assert solution.objective == pytest.approx(300.07)
    assert solution.bound == pytest.approx(300.15)


def test_a_schedule_gives_back_what_is_dropped() -> None:
    problem = make_problem([Job([whole(8, 3, 0.5)], [(4, 9.0)], lease=2), Job([whole(2, 1)], now=1.0)], 16)
    columns = make_columns(problem, 10)
    schedule = Schedule(problem, columns)
    cells, free = schedule.cells.copy(), schedule.free.copy()
    taken = [column for column in range(len(columns)) if schedule.take(column)]
    assert len(taken) == 2
    assert (schedule.free != free).any()
    for column in taken:
        assert schedule.drop(int(columns.job[column])) == column
    assert np.array_equal(schedule.cells, cells) and np.array_equal(schedule.free, free)
    assert schedule.value == pytest.approx(0.0)


BROKEN: dict[str, Callable[[Problem], Problem]] = {
    "option_leases": lambda p: dataclasses.replace(p, option_leases=p.option_leases * 0),
    "tier_reward": lambda p: dataclasses.replace(p, tier_reward=p.tier_reward * math.nan),
    "busy": lambda p: dataclasses.replace(p, busy=ints(99)),
    "tier_start": lambda p: dataclasses.replace(p, tier_start=ints(0, 2)),
    "cells": lambda p: dataclasses.replace(p, cells=p.cells[0]),
    "memory": lambda p: dataclasses.replace(p, memory=ints(*[0] * (len(p) + 1))),
    "option_cells": lambda p: dataclasses.replace(p, option_cells=p.option_cells[:, :3]),
    "first": lambda p: dataclasses.replace(p, first=ints(1)),
    "now_reward": lambda p: dataclasses.replace(p, now_reward=np.zeros(3)),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_problem_that_makes_no_sense_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        BROKEN[name](make_problem([Job([whole(1, 1)], [(2, 5.0)])], 8))


@pytest.mark.parametrize("gap", [-0.1, 1.0, math.nan])
def test_a_gap_is_a_share_below_one(gap: float):
    with pytest.raises(ValueError, match=r"gap: \S+ is no relative gap; give a share of the optimum, from 0 to less than 1"):
        SolverLimits(gap=gap)
