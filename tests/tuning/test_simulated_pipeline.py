"""The simulated pipeline against what can be computed by hand, its limits, and the oracle against trying everything."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from named_pipelines import PRESETS, case_study, custom, of_length, random_pipeline
from pipeline_oracle import oracle
from simulated_pipeline import MIB, Consumer, Machine, SimulatedPipeline, Stage, kept, stocked
from stoker.engine.errors import UsageError
from stoker.runners.loaders.tuning.controller import Observation, Unit, reward

GIB = 2**30


def pipeline(
    *stages: Stage, cpus: float = 16, memory: int = 64 * GIB, consumer: Consumer | None = None, **options: float
) -> SimulatedPipeline:
    machine = Machine(cpus, memory, bandwidth=options.pop("bandwidth", 0.0), switching=options.pop("switching", 0.0), process_bytes=0.0)
    return SimulatedPipeline(stages, machine, consumer, batch_size=10, noise=options.pop("noise", 0.0), window=1.0)


def settled(pipe: SimulatedPipeline, values: tuple[int, ...], windows: int = 30) -> Observation:
    for _ in range(windows):
        seen = pipe.step(values)
    return seen


# -- closed forms


def test_the_slowest_stage_sets_the_pace() -> None:
    pipe = pipeline(Stage("read", cpu=0.01, wait=0.19), Stage("work", cpu=0.05), cpus=100)
    assert settled(pipe, (2, 1)).throughput == pytest.approx(10 * 2 / 0.2)
    assert settled(pipe, (8, 1)).throughput == pytest.approx(10 * 1 / 0.05)


def test_items_of_a_stage_that_make_a_batch_count() -> None:
    pipe = pipeline(Stage("read", cpu=0.001, per_batch=50), Stage("batch", cpu=0.02))
    assert settled(pipe, (1, 1)).throughput == pytest.approx(10 / 0.05)


def test_cores_that_are_fully_used_bound_the_rate_however_many_workers_there_are() -> None:
    pipe = pipeline(Stage("a", cpu=0.1), Stage("b", cpu=0.3), cpus=4)
    seen = settled(pipe, (16, 48))
    assert seen.throughput == pytest.approx(10 * 4 / 0.4, rel=1e-4)
    assert seen.cpu_used == pytest.approx(4, rel=1e-4)


def test_waiting_takes_no_core() -> None:
    pipe = pipeline(Stage("read", cpu=0.001, wait=0.999), cpus=1)
    assert settled(pipe, (100,)).throughput == pytest.approx(10 * 100 / 1.0)


def test_more_threads_than_cores_lose_at_most_what_switching_costs() -> None:
    lossless = pipeline(Stage("a", cpu=0.1), cpus=4)
    lossy = pipeline(Stage("a", cpu=0.1), cpus=4, switching=0.15)
    ratio = settled(lossy, (1000,)).throughput / settled(lossless, (1000,)).throughput
    assert 1 / 1.15 - 1e-6 <= ratio < 1 / 1.14


def test_threads_share_one_interpreter_lock_and_processes_do_not() -> None:
    threads = Stage("udf", cpu=0.1, locked=0.5)
    seen = settled(pipeline(threads), (16,))
    assert seen.throughput == pytest.approx(10 / 0.05, rel=1e-4)
    assert seen.stages[0].cpu == pytest.approx(0.1)
    assert seen.stages[0].wait == pytest.approx(16 / 20 - 0.1, rel=1e-4)  # 16 workers finish 20 items a second
    assert settled(pipeline(dataclasses.replace(threads, processes=True)), (16,)).throughput == pytest.approx(10 * 16 / 0.1, rel=1e-4)


def test_the_memory_bus_bounds_the_rate_and_its_stalls_show_as_cpu_time() -> None:
    pipe = pipeline(Stage("copy", cpu=0.1, moved=20e6), bandwidth=1000)
    seen = settled(pipe, (16,))
    assert seen.throughput == pytest.approx(10 * 1000 / 20, rel=1e-4)
    assert seen.stages[0].cpu == pytest.approx(0.1 * 160 / 50, rel=1e-4)


def test_workers_that_slow_one_another_follow_the_universal_scalability_law() -> None:
    pipe = pipeline(Stage("udf", cpu=0.1, contention=0.1, coherency=0.01), cpus=100)
    assert settled(pipe, (4,)).throughput == pytest.approx(10 * 4 / (0.1 * (1 + 0.1 * 3 + 0.01 * 12)))
    assert oracle(pipe).values == (round(math.sqrt((1 - 0.1) / 0.01)),)  # where the law has its maximum


def test_the_consumer_sets_the_pace_of_a_pipeline_that_is_faster() -> None:
    pipe = pipeline(Stage("a", cpu=0.01), consumer=Consumer(batches=20))
    seen = settled(pipe, (4,))
    assert seen.throughput == pytest.approx(200)
    assert seen.stages[0].blocked == pytest.approx(1 - 20 / 400)


@given(st.floats(0.05, 20), st.integers(0, 30))
def test_what_an_uneven_consumer_gets_is_the_throughput_of_its_queue(load: float, buffered: int) -> None:
    """M/M/1/K by its definition: the states' probabilities, summed."""
    states = [load**n for n in range(buffered + 2)]
    carried = load * (1 - states[-1] / sum(states))
    assert kept(load, 1.0, buffered, 1.0) * min(load, 1.0) == pytest.approx(carried, rel=1e-6)
    mean = sum(n * p for n, p in enumerate(states)) / sum(states)
    assert stocked(load, 1.0, buffered, 1.0) == pytest.approx(min(mean, buffered), rel=1e-4, abs=1e-9)


def test_a_larger_buffer_helps_an_uneven_consumer_and_takes_memory() -> None:
    stages = (Stage("work", cpu=0.05), Stage("prefetch", cpu=1e-6, item_bytes=8 * MIB, unit=Unit.MIB, high=10_000))
    pipe = pipeline(*stages, consumer=Consumer(batches=20, unevenness=1.0))
    small, large = settled(pipe, (1, 8)), settled(pipe, (1, 800))
    assert small.throughput == pytest.approx(200 * 2 / 3)
    assert large.throughput == pytest.approx(200 * 101 / 102)
    assert large.memory_used > small.memory_used + 300 * MIB


def test_memory_is_workers_items_queues_consumer_and_process() -> None:
    stages = (Stage("a", cpu=0.01, item_bytes=100, worker_bytes=1000), Stage("b", cpu=0.1, item_bytes=10))
    machine = Machine(16, GIB, process_bytes=5000)
    pipe = SimulatedPipeline(stages, machine, Consumer(bytes=7000), batch_size=1, noise=0.0, window=1.0)
    seen = settled(pipe, (3, 2))
    queued = 2 * 3 * 100  # behind a: full, since b is slower; behind b: nothing
    assert seen.memory_used == 5000 + 7000 + 3 * 1100 + 2 * 10 + queued
    assert [reading.queue_bytes for reading in seen.stages] == [queued, 0]
    assert [reading.queue_limit for reading in seen.stages] == [6, 4]


# -- what goes on in time


def test_a_change_reaches_the_consumer_when_what_was_queued_is_gone() -> None:
    stages = (Stage("work", cpu=0.05), Stage("prefetch", cpu=1e-6, item_bytes=MIB, unit=Unit.MIB, high=1000))
    pipe = pipeline(*stages, consumer=Consumer(batches=20))
    settled(pipe, (2, 60))
    after = [pipe.step((1, 60)).throughput for _ in range(3)]
    pipe.recost("work", 2.0)
    after += [pipe.step((1, 60)).throughput for _ in range(12)]
    assert after[:5] == [pytest.approx(200)] * 5  # 60 batches cover for the missing 10 a window
    assert after[-1] == pytest.approx(100)


def test_batches_are_neither_lost_nor_made_between_stages() -> None:
    pipe = random_pipeline(3, noise=0.0)
    made = delivered = 0.0
    for window in range(40):
        values = tuple(1 + (window * 7 + place) % 9 for place in range(len(pipe.knobs)))
        seen = pipe.step(values)
        made += seen.stages[0].items / seen.stages[0].per_batch
        delivered += seen.throughput * seen.window / seen.batch_size
    queued = sum(reading.queue / reading.per_batch for reading in seen.stages)
    assert made == pytest.approx(delivered + queued, abs=41 / seen.stages[0].per_batch + len(seen.stages))


def test_above_the_memory_the_pipeline_is_killed_and_comes_back_as_it_began() -> None:
    pipe = pipeline(Stage("a", cpu=0.01, worker_bytes=100 * MIB), memory=GIB)
    assert settled(pipe, (10,)).throughput > 0
    killed = [pipe.step((11,)) for _ in range(4)]
    assert pipe.ooms == 1
    assert [seen.throughput for seen in killed] == [0.0] * 4
    assert all(reward(seen) == 0 and math.isnan(seen.stages[0].cpu) for seen in killed)
    back = pipe.step(pipe.values)
    assert back.values == pipe.start == (1,)
    assert back.throughput == pytest.approx(1000)


def test_a_resize_shows_once_and_a_higher_cost_lowers_the_rate() -> None:
    pipe = pipeline(Stage("a", cpu=0.1), cpus=8)
    assert settled(pipe, (8,)).throughput == pytest.approx(800)
    pipe.resize(cpus=4)
    first, second = pipe.step((8,)), pipe.step((8,))
    assert (first.resized, second.resized) == (True, False)
    assert (second.cpus, second.throughput) == (4, pytest.approx(400, rel=1e-4))
    pipe.recost("a", 2.0)
    assert settled(pipe, (8,)).throughput == pytest.approx(200, rel=1e-4)
    with pytest.raises(KeyError):
        pipe.recost("b", 2.0)


def test_noise_is_the_same_for_the_same_seed_and_unbiased() -> None:
    first, again, other = (custom(seed=seed, noise=0.05) for seed in (1, 1, 2))
    values = (8, 2, 16, 2, 32)
    runs = [[pipe.step(values).throughput for _ in range(200)] for pipe in (first, again, other)]
    assert runs[0] == runs[1] != runs[2]
    exact = settled(custom(noise=0.0), values).throughput
    assert sum(runs[0][20:]) / 180 == pytest.approx(exact, rel=0.02)


def test_values_are_clipped_and_their_number_is_checked() -> None:
    pipe = pipeline(Stage("a", cpu=0.1, high=4), Stage("shuffle", cpu=0.001, parallel=False))
    assert [knob.stage for knob in pipe.knobs] == ["a"]
    assert pipe.step((99,)).values == (4,)
    with pytest.raises(ValueError, match="2 were given for 1 knobs"):
        pipe.step((1, 1))
    with pytest.raises(UsageError, match="at least one that is parallel"):
        pipeline(Stage("shuffle", cpu=1, parallel=False))


# -- the oracle and the presets


@given(st.integers(0, 10_000))
def test_the_oracle_finds_what_trying_everything_finds(seed: int) -> None:
    drawn = random_pipeline(seed, stages=3, noise=0.0)
    drawn.resize(cpus=4.0)
    stages = [dataclasses.replace(stage, high=8 if stage.unit is Unit.WORKERS else 40) for stage in drawn.stages]
    pipe = SimulatedPipeline(stages, drawn.machine, drawn.consumer, batch_size=drawn.batch_size, noise=0.0)
    everything = itertools.product(*(range(1, knob.high + 1, 1 if knob.unit is Unit.WORKERS else 3) for knob in pipe.knobs))
    assert oracle(pipe).reward >= max(map(pipe.steady_reward, everything)) * (1 - 1e-3)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_keeps_at_the_best_what_its_steady_state_promises(name: str) -> None:
    pipe = PRESETS[name](noise=0.0)
    best = oracle(pipe)
    assert reward(settled(pipe, best.values, windows=60)) == pytest.approx(best.reward, rel=0.02)
    assert best.reward > 1.02 * pipe.steady_reward(pipe.start)


def test_the_case_study_has_the_figures_of_the_paper() -> None:
    pipe = case_study(128, noise=0.0)
    target = pipe.consumer.batches * pipe.batch_size
    assert pipe.step(pipe.start).throughput / target == pytest.approx(0.11, rel=0.15)
    assert oracle(pipe).throughput / target == pytest.approx(0.41, rel=0.1)


@pytest.mark.parametrize("count", range(2, 7))
def test_pipelines_of_each_length_run(count: int) -> None:
    pipe = of_length(count)
    assert len(pipe.stages) == count
    assert pipe.step(pipe.start).throughput > 0
    with pytest.raises(ValueError, match="2 to 6"):
        of_length(count + 5)


@given(st.integers(0, 100_000))
def test_a_random_pipeline_can_run_from_its_start(seed: int) -> None:
    pipe = random_pipeline(seed)
    seen = settled(pipe, pipe.start, windows=3)
    assert seen.throughput > 0
    assert pipe.ooms == 0
    assert all(0 <= reading.starved <= 1 and 0 <= reading.blocked <= 1 for reading in seen.stages)
