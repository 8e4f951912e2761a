"""Who decides: allocations beside brute force and an LP solver, each controller's rule, the registry and its options."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import baseline_controllers
import pytest
from climb import modelled_latency, wait_of_consumer
from hypothesis import given, settings
from hypothesis import strategies as st
from plumber import slowest_first, solve
from stoker.engine.errors import UsageError
from stoker.runners.loaders.tuning import known_controllers as registry
from stoker.runners.loaders.tuning.allocation import Load, attainable, fewest, throughput
from stoker.runners.loaders.tuning.controller import Decision, Knob, Observation, StageReading, Unit
from stoker.runners.loaders.tuning.controllers.rate import lost
from stoker.runners.loaders.tuning.costs import MIB, Costs, Smoothed

STEADY = settings(max_examples=60)
COST = st.floats(0.001, 2.0)
CLOSED_FORMS = [name for name in baseline_controllers.NAMES if "dqn" not in name]


def stage(name: str, cpu: float, wait: float = 0.0, *, workers: int = 1, items: int = 100, **more: Any) -> StageReading:
    return StageReading(name, workers, items, 1.0, cpu, wait, 0.0, 0.0, 0, 0, more.pop("item_bytes", float(MIB)), **more)


def observation(*stages: StageReading, values: tuple[int, ...] | None = None, prefetch: int = 4, **more: Any) -> Observation:
    """Stages with a worker's knob each, and a buffer of so many MiB behind the last."""
    knobs = (*(Knob(s.name, Unit.WORKERS, 1, 256) for s in stages), Knob(stages[-1].name, Unit.MIB, 1, 65_536))
    if values is not None:
        stages = tuple(dataclasses.replace(s, workers=n) for s, n in zip(stages, values, strict=False))
    else:
        values = (*(s.workers for s in stages), prefetch)
    given: dict[str, Any] = {
        "at": 5.0, "window": 5.0, "batch_size": 1.0, "throughput": 1.0, "demand": math.inf, "cpus": 16.0, "cpu_used": 16.0,
        "memory_used": 1 << 30, "memory_total": 16 << 30,
    }  # fmt: skip
    return Observation(stages=stages, knobs=knobs, values=values, **(given | more))


def flow(seen: Observation, cores: float | None = None) -> float:
    """Batches a second of a pipeline of independent workers on some cores."""
    return min(
        seen.demand / seen.batch_size,
        (cores or seen.cpus) / sum(s.cpu * s.per_batch for s in seen.stages),
        *(s.workers / ((s.cpu + s.wait) * s.per_batch) for s in seen.stages),
    )


def run(controller: Any, seen: Observation, windows: int, **changes: Any) -> tuple[Observation, Decision]:
    """So many windows of a pipeline without noise that does as it is told."""
    decision = Decision(seen.values)
    seen = dataclasses.replace(seen, **changes)
    for _ in range(windows):
        decision = controller.decide(seen)
        stages = tuple(dataclasses.replace(s, workers=n) for s, n in zip(seen.stages, decision.values, strict=False))
        seen = dataclasses.replace(seen, at=seen.at + seen.window, stages=stages, values=decision.values, resized=False)
        rate = flow(seen)
        computing = rate * sum(s.cpu * s.per_batch for s in stages)
        seen = dataclasses.replace(seen, throughput=rate * seen.batch_size, cpu_used=computing)
    return seen, decision


# -- exact allocations


@st.composite
def loads(draw: st.DrawFn, crowded: bool = True) -> list[Load]:
    def one() -> Load:
        high = draw(st.sampled_from([1, 2, 5]))
        contention = draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.2])) if crowded else 0.0
        coherency = draw(st.sampled_from([0.0, 0.0, 0.02, 0.2])) if crowded else 0.0
        knee = draw(st.sampled_from([math.inf, 1.0, 2.5])) if crowded and contention == coherency == 0 else math.inf
        return Load(draw(COST), draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])), 1, high, contention, coherency, knee)

    return [one() for _ in range(draw(st.integers(1, 4)))]


@STEADY
@given(loads(), st.floats(0.5, 12.0), st.sampled_from([math.inf, 0.4, 2.0]))
def test_the_fewest_workers_reach_the_best_rate_of_all_allocations(stages: list[Load], cores: float, demand: float) -> None:
    every = list(itertools.product(*(range(load.low, load.high + 1) for load in stages)))
    best = max(throughput(stages, workers, cores, demand) for workers in every)
    rate = attainable(stages, cores, demand)
    found = fewest(stages, rate)
    # Whole workers crowd at their own number, not between: the search is within one rounding of the cores' limit, never above the best.
    assert throughput(stages, found, cores, demand) == pytest.approx(best, rel=1e-6)
    assert rate == pytest.approx(best, rel=1e-6)
    as_good = [workers for workers in every if throughput(stages, workers, cores, demand) >= best * (1 - 1e-9)]
    assert sum(found) == min(map(sum, as_good))


@STEADY
@given(loads(), st.integers(0, 14))
def test_slowest_first_has_the_best_bottleneck_of_so_many_workers(stages: list[Load], workers: int) -> None:
    def bottleneck(counts: tuple[int, ...]) -> float:
        return min(load.capacity(count) for load, count in zip(stages, counts, strict=True))

    found = slowest_first(stages, workers)
    assert sum(found) <= max(workers, len(stages))
    every = itertools.product(*(range(load.low, load.high + 1) for load in stages))
    assert bottleneck(found) == pytest.approx(max(bottleneck(c) for c in every if sum(c) <= max(workers, len(stages))))


@STEADY
@given(st.lists(st.tuples(st.floats(0.05, 50.0), st.booleans()), min_size=1, max_size=6), st.floats(1.0, 128.0))
def test_plumber_is_the_optimum_of_its_linear_programme(stages: list[tuple[float, bool]], cores: float) -> None:
    from ortools.linear_solver import pywraplp

    rates, sequential = [rate for rate, _ in stages], [one for _, one in stages]
    solver = pywraplp.Solver.CreateSolver("GLOP")
    target = solver.NumVar(0, solver.infinity(), "X")
    thetas = [solver.NumVar(0, 1 if one else solver.infinity(), f"theta{n}") for n, one in enumerate(sequential)]
    solver.Add(sum(thetas) <= cores)
    for rate, theta in zip(rates, thetas, strict=True):
        solver.Add(target <= rate * theta)
    solver.Maximize(target)
    assert solver.Solve() == solver.OPTIMAL
    found = solve(rates, sequential, cores)
    assert found.rate == pytest.approx(solver.Objective().Value(), rel=1e-6)
    assert sum(found.cores) <= cores * (1 + 1e-9)
    assert all(theta <= 1 + 1e-9 for theta, one in zip(found.cores, sequential, strict=True) if one)


# -- what is learned


def test_one_window_out_of_line_is_left_out_and_two_are_a_new_value() -> None:
    cost = Smoothed(0.3, 0.25)
    assert [cost.see(value) for value in (1.0, 1.02, 3.0, 0.99)] == [False] * 4
    assert cost.mean == pytest.approx(1.0, abs=0.03)
    assert [cost.see(value) for value in (3.0, 3.1)] == [False, True]
    assert cost.mean == pytest.approx(3.05)


@pytest.mark.parametrize(("contention", "coherency"), [(0.0, 0.0), (0.1, 0.0), (0.02, 0.005)])
def test_crowding_is_learned_from_what_was_tried(contention: float, coherency: float) -> None:
    costs = Costs()
    for workers in (1, 8, 30, 16):
        time = 0.1 * (1 + contention * (workers - 1) + coherency * workers * (workers - 1))
        for _ in range(4):
            assert costs.see(observation(stage("udf", time * 0.75, time * 0.25, workers=workers))) == []
    load = costs.of["udf"].load(1, 1024)
    truth = Load(0.075, 0.025, 1, 1024, contention, coherency)
    assert [load.capacity(n) for n in (1, 4, 12, 24)] == pytest.approx([truth.capacity(n) for n in (1, 4, 12, 24)], rel=0.12)
    assert load.high == (1024 if contention == coherency == 0 else 60)  # beyond twice what was tried, crowding is unknown


def test_what_workers_share_is_learned_as_a_knee() -> None:
    costs = Costs()
    for workers in (1, 27, 14):
        for factor in (1.0, 1.03, 0.98):
            costs.see(observation(stage("udf", 0.1, 0.1 * (max(1.0, workers / 6.5) * factor - 1) if workers > 6 else 0.0, workers=workers)))
    load = costs.of["udf"].load(1, 1024)
    assert load.knee == pytest.approx(6.5, rel=0.05)
    assert load.most == 7


def test_a_new_number_of_workers_is_no_new_cost_but_a_new_cost_is() -> None:
    costs = Costs()
    assert [costs.see(observation(stage("udf", cpu, workers=n))) for n, cpu in ((1, 1.0), (8, 2.0), (8, 2.0))] == [[], [], []]
    assert [costs.see(observation(stage("udf", 4.0, workers=8))) for _ in range(2)] == [[], ["udf"]]
    assert costs.of["udf"].load(1, 64).capacity(8) == pytest.approx(2.0, rel=0.01)


# -- the rules


def test_unoptimised_uniform_and_fixed() -> None:
    seen = observation(stage("read", 0.1), stage("shuffle", 0.1, parallel=False), stage("udf", 0.1), values=(3, 1, 3, 9), cpus=15.7)
    assert registry.create("unoptimised").decide(seen).values == (1, 1, 1, 9)
    assert registry.create("uniform").decide(seen).values == (7, 1, 7, 9)  # the shuffle cannot use its 5
    assert registry.create("uniform").decide(dataclasses.replace(seen, cpus=2.0)).values == (1, 1, 1, 9)
    assert registry.create("fixed").decide(seen).values == seen.values
    assert registry.create("fixed", values=[4, 1, 5, 99]).decide(seen).values == (4, 1, 5, 99)
    with pytest.raises(UsageError, match=r"values has 2 numbers, but the pipeline has 4 knobs: read \(workers\)"):
        registry.create("fixed", values=[4, 1]).decide(seen)


def test_wait_of_the_consumer_is_that_of_the_queue() -> None:
    """Against the stationary distribution of the birth-death chain, computed state by state."""
    for producer, consumer, buffer in itertools.product((0.5, 1.0, 3.0), (0.5, 1.0, 2.0), (1, 4)):
        weights = [(consumer / producer) ** state for state in range(buffer + 1)]  # births at 1/producer, deaths at 1/consumer
        assert wait_of_consumer(producer, consumer, buffer) == pytest.approx(producer * weights[0] / sum(weights))
    assert wait_of_consumer(0.0, 1.0, 3) == 0.0


def test_autotune_climbs_on_the_model_and_keeps_to_the_cores_of_its_start() -> None:
    seen = observation(stage("read", 0.1, 0.3), stage("udf", 0.5), cpus=8.0)
    autotune = baseline_controllers.create("autotune")
    assert autotune.decide(seen).values[:2] == (8, 8)  # 16 to begin with, or the cores
    _, decision = run(autotune, seen, 4)
    workers = decision.values[:2]
    assert modelled_latency([0.4, 0.5], workers, 0.0) < 0.9 / 8
    for place in range(2):  # the last step was needed
        fewer = [n - (k == place) for k, n in enumerate(workers)]
        assert min(fewer) < 1 or modelled_latency([0.4, 0.5], fewer, 0.0) >= 0.9 / 8
    for name, reacts in (("autotune", False), ("autotune-adaptive", True)):
        tuner = baseline_controllers.create(name)
        before, first = run(tuner, seen, 20)
        _, second = run(tuner, before, 20, cpus=32.0, resized=True)
        assert (sum(second.values[:2]) > 2 * sum(first.values[:2])) is reacts


def test_autotune_doubles_buffers_up_to_its_budget_whatever_workers_hold() -> None:
    seen = observation(stage("read", 0.1), memory_used=1 << 30, memory_total=5 << 30)
    _, decision = run(baseline_controllers.create("autotune"), seen, 30)
    assert 512 < decision.values[-1] <= 2048  # half of the 4 GiB that were free


def test_plumber_keeps_to_its_programme_until_somebody_launches_it_again() -> None:
    seen = observation(stage("read", 0.1, 0.3), stage("shuffle", 0.01, parallel=False), stage("udf", 0.5), cpus=19.0)
    for name, workers in (("plumber", (8, 1, 10)), ("plumber-adaptive", (17, 1, 20))):
        tuner = baseline_controllers.create(name)
        before, first = run(tuner, seen, 5)
        assert first.values[:3] == (8, 1, 10)
        _, second = run(tuner, before, 5, cpus=38.0, resized=True)
        assert second.values[:3] == workers


def test_rate_gives_waiting_stages_workers_without_cores() -> None:
    seen = observation(stage("read", 0.01, 0.99), stage("udf", 0.24), cpus=4.0)
    after, decision = run(registry.create("rate", headroom=0.0), seen, 2)
    assert decision.values[:2] == (16, 4)  # 16 batches a second are all that 4 cores compute
    assert after.throughput == pytest.approx(16.0)


def test_rate_takes_no_more_than_its_consumer_needs() -> None:
    seen = observation(stage("read", 0.1), stage("udf", 0.5), cpus=64.0, demand=6.0)
    _, decision = run(registry.create("rate", lead=0.0), seen, 3)
    assert decision.values[:2] == (1, 3)
    assert "all that the consumer takes" in decision.why


def test_rate_is_held_by_a_stage_with_one_order() -> None:
    seen = observation(stage("shuffle", 0.5, parallel=False), stage("udf", 1.0), cpus=64.0)
    _, decision = run(registry.create("rate"), seen, 2)
    assert decision.values[:2] == (1, 2)
    assert "shuffle has one order" in decision.why


def test_rate_answers_a_resize_in_one_window_and_a_new_cost_in_two() -> None:
    rate = registry.create("rate")
    before, first = run(rate, observation(stage("read", 0.1), stage("udf", 0.3), cpus=8.0), 5)
    after, second = run(rate, before, 1, cpus=32.0, resized=True)
    assert sum(second.values[:2]) == pytest.approx(4 * sum(first.values[:2]), rel=0.15)
    assert "resized" in second.why
    after, _ = run(rate, after, 1)
    costly = tuple(dataclasses.replace(s, cpu=s.cpu * (3.0 if s.name == "udf" else 1.0)) for s in after.stages)
    _, third = run(rate, after, 1, stages=costly)
    assert third.values == second.values
    _, fourth = run(rate, dataclasses.replace(after, stages=costly), 1)
    assert fourth.values[0] < second.values[0] and "cost of udf changed" in fourth.why


def test_rate_is_at_rest_while_costs_only_scatter() -> None:
    rate, seen = registry.create("rate"), observation(stage("read", 0.1), stage("udf", 0.3), cpus=8.0)
    seen, _ = run(rate, seen, 4)
    chosen = seen.values
    for place, factor in enumerate((1.05, 0.95, 0.97, 1.04, 1.02, 0.96) * 4):
        noisy = [dataclasses.replace(s, cpu=s.cpu * (factor if s.name == "udf" else 2.0 - factor)) for s in seen.stages]
        assert rate.decide(dataclasses.replace(seen, stages=tuple(noisy))).values[:2] == chosen[:2], place


def test_rate_notices_the_interpreters_lock_and_says_so() -> None:
    """One thread computes at a time: each waits for all the others, and a batch takes a tenth of a second whatever is done."""
    rate, seen = registry.create("rate"), observation(stage("udf", 0.1), cpus=8.0, throughput=10.0, cpu_used=1.0)
    tried = []
    for _ in range(12):
        decision = rate.decide(seen)
        tried.append(decision.values[0])
        udf = dataclasses.replace(seen.stages[0], workers=tried[-1], wait=0.1 * (tried[-1] - 1))
        seen = dataclasses.replace(seen, stages=(udf,), values=decision.values)
    assert max(tried) == 9
    assert tried[-1] <= 4
    assert "udf hardly gains from more than" in decision.why
    assert "threads: they share the interpreter's lock" in decision.why


def test_rate_does_not_take_cores_that_others_use_for_a_lock() -> None:
    rate, seen = registry.create("rate"), observation(stage("udf", 0.1), cpus=8.0)
    seen, first = run(rate, seen, 2)
    for _ in range(10):
        decision = rate.decide(dataclasses.replace(seen, throughput=8.0, cpu_used=0.8))  # a tenth of what was predicted
        assert decision.values[0] == first.values[0]


def decoding(workers: int, throughput: float, demand: float = 1000.0, *, starting: int = 0, cpu: float = 0.01) -> Observation:
    """A window of a stage of processes that wait, as it was read while they shared two cores with the training."""
    decode = stage("decode", cpu, 0.15, workers=workers - starting, processes=True, starting=starting)
    return observation(decode, values=None, cpus=2.0, throughput=throughput, demand=demand, prefetch=5)


def with_values(seen: Observation, workers: int) -> Observation:
    return dataclasses.replace(seen, values=(workers, *seen.values[1:]))


def test_rate_starts_processes_in_steps_and_waits_for_them() -> None:
    rate = registry.create("rate")
    assert rate.decide(decoding(1, 6.0)).values[0] == 2
    assert rate.decide(decoding(2, 12.0)).values[0] == 4
    starved = with_values(decoding(4, 1.0, demand=3.0, starting=2), 4)  # of cores, by those that start
    for _ in range(9):
        decision = rate.decide(starved)
        assert (decision.values, decision.why) == (starved.values, "no change: 2 of decode still starting")
    assert rate.decide(dataclasses.replace(starved, resized=True)).values[0] == 4
    assert rate.decide(decoding(4, 2.0, demand=3.0)).values[0] == 4, "a window in which they have just started shows nothing"
    assert rate.decide(decoding(4, 24.0)).values[0] == 8, "what the training took meanwhile is not what it takes"


def test_rate_starts_threads_at_once_as_far_as_a_window_can_tell() -> None:
    seen = observation(stage("read", 0.001, 1.0), cpus=2.0, demand=100.0)
    _, first = run(registry.create("rate"), seen, 1)
    _, later = run(registry.create("rate"), seen, 3)
    assert (first.values[0], later.values[0]) == (16, 111)


def test_rate_takes_back_a_growth_after_which_it_was_slower() -> None:
    rate = registry.create("rate")
    given = [
        rate.decide(decoding(workers, speed)).values[0] for workers, speed in ((4, 24.0), (8, 48.0), (16, 60.0), (25, 30.0), (25, 31.0))
    ]
    assert given == [8, 16, 32, 25, 16]  # one slow window may be out of line
    for _ in range(20):
        decision = rate.decide(decoding(16, 60.0))
        assert decision.values[0] == 16, "what was of no use is not tried again at once"
        assert "it was slower with more than 16 workers of decode" in decision.why
    assert rate.decide(dataclasses.replace(decoding(16, 60.0), demand=10.0, throughput=10.0)).values[0] == 16


def test_rate_gives_a_growth_no_blame_for_cores_that_others_take() -> None:
    """Half of the throughput, with half of the CPU time; on a machine that nobody else uses that is a fault of the growth."""
    for crowded, blamed in ((0.9, False), (0.0, True)):
        rate = registry.create("rate")
        before = dataclasses.replace(decoding(4, 24.0), cpu_used=1.2)
        assert rate.decide(before).values[0] == 8
        after = dataclasses.replace(decoding(8, 12.0), cpu_used=0.6, crowded=crowded)
        assert any("taken back" in rate.decide(after).why for _ in range(3)) == blamed


def test_rate_gives_a_growth_no_blame_for_a_consumer_that_takes_less() -> None:
    rate = registry.create("rate")
    assert rate.decide(decoding(4, 24.0)).values[0] == 8
    decisions = [rate.decide(decoding(8, 20.0, demand=20.0)) for _ in range(4)]
    assert not any("taken back" in decision.why or "slower" in decision.why for decision in decisions)


@pytest.mark.parametrize("cores", [1.0, 2.0, 4.0])
def test_processes_that_compute_are_about_as_many_as_cores(cores: float) -> None:
    seen = observation(stage("decode", 0.05, 0.001, processes=True), cpus=cores)
    for _ in range(3):
        _, decision = run(registry.create("rate"), seen, 12)
        assert cores <= decision.values[0] <= cores + 1
    assert f"all that {cores:g} core" in decision.why


def test_what_is_done_is_not_called_left_as_it_is() -> None:
    rate, seen = registry.create("rate"), observation(stage("udf", 0.5), cpus=2.0, demand=2.0, prefetch=64)
    for _ in range(6):
        seen, decision = run(rate, seen, 1)
    far = dataclasses.replace(seen, values=(*seen.values[:-1], 4096))
    decision = rate.decide(far)
    assert decision.values != far.values
    assert "as it is" not in decision.why


def test_rate_starts_a_pipeline_of_which_nothing_finishes() -> None:
    nothing = stage("read", math.nan, math.nan, items=0, item_bytes=math.nan)
    _, decision = run(registry.create("rate"), observation(nothing, cpus=8.0), 6, throughput=0.0)
    assert decision.values[0] == 8


def test_the_share_that_a_buffer_loses_is_that_of_the_queue() -> None:
    for load, buffer in itertools.product((0.3, 1.0, 1.6), (1, 5)):
        weights = [load**state for state in range(buffer + 2)]
        full, empty = weights[-1] / sum(weights), weights[0] / sum(weights)
        assert lost(load, buffer) == pytest.approx(min(full, empty) if load != 1.0 else full)


def test_rate_buffers_more_where_batches_come_unevenly() -> None:
    def buffer(scatter: float) -> int:
        rate, seen = registry.create("rate"), observation(stage("read", 0.1), cpus=64.0, demand=9.0, cpu_used=1.0, throughput=9.0)
        for number in range(12):
            seen = dataclasses.replace(seen, throughput=9.0 * (1 + scatter * (-1) ** number))
            decision = rate.decide(seen)
        return decision.values[-1]

    assert buffer(0.0) < buffer(0.3) <= 64


# -- the registry


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_every_controller_answers_within_the_bounds_of_the_knobs(name: str) -> None:
    nothing = stage("udf", math.nan, math.nan, items=0, item_bytes=math.nan)
    controller = baseline_controllers.create(name)
    seen = observation(stage("read", 0.0), nothing, cpus=0.5, throughput=0.0, demand=math.inf)
    for cpus in (0.5, 0.5, 200.0, 200.0, 1.5):
        later, decision = run(controller, seen, 3, cpus=cpus, resized=True) if cpus > 1 else (seen, controller.decide(seen))
        assert len(decision.values) == len(seen.knobs)
        assert all(knob.low <= value <= knob.high for knob, value in zip(seen.knobs, decision.values, strict=True))
        assert decision.why
        seen = dataclasses.replace(later, stages=(stage("read", 0.1), stage("udf", 0.2)), values=later.values)


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_every_controller_takes_a_stage_that_only_holds_data(name: str) -> None:
    """As a running pipeline reads its prefetch: no workers, no cost."""
    prefetch = stage("prefetch", 0.0, workers=0, parallel=False, item_bytes=4.0 * MIB)
    seen = observation(stage("read", 0.1), stage("udf", 0.2), prefetch)
    knobs = (*seen.knobs[:2], seen.knobs[-1])
    controller, seen = baseline_controllers.create(name), dataclasses.replace(seen, knobs=knobs, values=(1, 1, 8))
    for number in range(6):
        decision = controller.decide(dataclasses.replace(seen, at=5.0 * number, resized=number == 4))
        assert len(decision.values) == 3
        assert all(knob.low <= value <= knob.high for knob, value in zip(knobs, decision.values, strict=True))
        workers = (*decision.values[:2], 0)
        stages = tuple(dataclasses.replace(s, workers=n) for s, n in zip(seen.stages, workers, strict=True))
        seen = dataclasses.replace(seen, stages=stages, values=decision.values)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("rates", {}, "did you mean 'rate'?"),
        ("zzz", {}, "there are unoptimised, fixed"),
        ("rate", {"headrom": 0.1}, "rate: unknown option 'headrom' (did you mean 'headroom'?)"),
        ("rate", {"headroom": 3.0}, "rate: headroom must be within 0.0 and 1.0, not 3.0"),
        ("rate", {"patience": 2.5}, "rate: patience is a whole number, not 2.5"),
        ("rate", {"gain": "much"}, "rate: gain is a number, not 'much'"),
        ("fixed", {"values": 3}, "fixed: values is a list of whole numbers, not 3"),
        ("uniform", {"x": 1}, "uniform: unknown option 'x'; it takes no options"),
    ],
)
def test_errors_name_the_field_and_the_remedy(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        registry.create(name, **options)
    assert words in str(error.value)


@pytest.mark.parametrize("name", [name for name in registry.NAMES if "dqn" not in name])
def test_every_option_has_a_meaning_and_a_default_within_its_range(name: str) -> None:
    kind = registry.load(name)
    assert kind.name == name
    assert registry.CONTROLLERS[name].doc
    defaults = {field.name: field.default for field in dataclasses.fields(kind.Options)}
    registry.create(name, **defaults)
    assert all(field.metadata["doc"] for field in dataclasses.fields(kind.Options))
