"""The memory guard: on simulated pipelines nobody ever gets too much; it refuses in words, and no more than it must."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import named_pipelines as presets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.runners.loaders.tuning import known_controllers as registry
from stoker.runners.loaders.tuning.controller import Knob, Observation, StageReading, Unit
from stoker.runners.loaders.tuning.guard import Guard, GuardOptions

MIB, GIB = 1 << 20, 1 << 30
STEADY = settings(max_examples=60)

ASKS = st.tuples(st.sampled_from(["any", "step", "double", "same"]), st.randoms())


def observation(workers: int = 2, buffer: int = 64, *, used: int = 1 * GIB, items: int = 50, **more: Any) -> Observation:
    size = float(MIB) if items else math.nan
    cost = 0.1 if items else math.nan
    stages = (
        StageReading("udf", workers, items, 1.0, cost, 0.0 * cost, 0.0, 0.0, 0, 0, size, queue_limit=2 * workers),
        StageReading("prefetch", 1, items, 1.0, cost, 0.0 * cost, 0.0, 0.0, 0, 0, size),
    )
    given: dict[str, Any] = {"memory_total": 8 * GIB, "cpus": 16.0, "cpu_used": 2.0, "demand": math.inf, "throughput": 20.0} | more
    return Observation(
        at=5.0,
        window=5.0,
        stages=stages,
        knobs=(Knob("udf", Unit.WORKERS, 1, 256), Knob("prefetch", Unit.MIB, 1, 65_536)),
        values=(workers, buffer),
        batch_size=1.0,
        memory_used=used,
        **given,
    )


@STEADY
@given(
    st.integers(0, 10_000), st.lists(st.tuples(st.sampled_from(["any", "step", "double", "same"]), st.randoms()), min_size=10, max_size=25)
)
def test_whatever_a_controller_asks_the_memory_is_never_exceeded(seed: int, asks: list[tuple[str, Any]]) -> None:
    pipeline, guard = presets.random_pipeline(seed), Guard()
    seen = pipeline.step(pipeline.values)
    for kind, random in asks:
        wanted = {
            "any": lambda r=random: tuple(r.randint(1, knob.high) for knob in pipeline.knobs),
            "step": lambda r=random: tuple(value + r.choice((-5, -1, 0, 1, 5)) for value in pipeline.values),
            "double": lambda r=random: tuple(value * r.choice((1, 2, 4)) for value in pipeline.values),
            "same": lambda: pipeline.values,
        }[kind]()
        values, _ = guard.allow(seen, wanted)
        assert all(knob.low <= value <= knob.high for knob, value in zip(seen.knobs, values, strict=True))
        seen = pipeline.step(values)
        assert pipeline.ooms == 0
        assert seen.memory_used <= seen.memory_total


def test_without_it_the_same_requests_end_in_out_of_memory() -> None:
    pipeline = presets.custom()
    seen = pipeline.step(pipeline.values)
    for _ in range(3):
        seen = pipeline.step(tuple(knob.high for knob in seen.knobs))
    assert pipeline.ooms > 0


@pytest.mark.parametrize("preset", ["custom", "criteo", "images"])
def test_it_does_not_slow_down_who_asks_for_little(preset: str) -> None:
    pipeline, guard, rate = presets.PRESETS[preset](), Guard(), registry.create("rate")
    seen = pipeline.step(pipeline.values)
    for _ in range(8):
        wanted = rate.decide(seen).values
        given, refused = guard.allow(seen, wanted)
        seen = pipeline.step(given)
    assert given == wanted
    assert refused == ""


def test_buffers_give_way_before_workers() -> None:
    guard = Guard(GuardOptions(worker=100 * MIB))
    given, refused = guard.allow(observation(), (8, 30_000))
    assert given[0] == 8
    assert 64 < given[1] < 7 * 1024
    assert refused.startswith(f"refused prefetch 30000 MiB (given {given[1]}): might take ")
    assert refused.endswith("MiB of 6,963 MiB allowed")


def test_a_step_from_the_unknown_is_bounded_and_the_next_is_as_large_as_was_learned() -> None:
    guard = Guard(GuardOptions(worker=2 * GIB))
    first, refused = guard.allow(observation(), (100, 64))
    assert 2 < first[0] < 20
    assert "udf 100 workers" in refused
    # Each worker took 10 MiB, as it turns out.
    second, refused = guard.allow(observation(first[0], used=1 * GIB + (first[0] - 2) * 10 * MIB), (100, 64))
    assert (second[0], refused) == (100, "")


def test_growth_by_itself_is_answered_with_less() -> None:
    guard = Guard()
    assert guard.allow(observation(8, 1024, used=2 * GIB), (8, 1024)) == ((8, 1024), "")
    given, refused = guard.allow(observation(8, 1024, used=6 * GIB), (8, 1024))
    assert given[1] < 1024
    assert "refused prefetch 1024 MiB" in refused


def test_before_anything_is_measured_little_is_given() -> None:
    given, refused = Guard().allow(observation(1, 16, items=0), (32, 4096))
    assert given == (2, 16)
    assert refused == "refused udf 32 workers (given 2), prefetch 4096 MiB (given 16): how much memory an item takes is not known yet"


def test_its_own_limit_counts_where_it_is_the_lower_one() -> None:
    seen = observation(used=1 * GIB)
    assert Guard().allow(seen, (2, 2048))[0] == (2, 2048)
    assert Guard(memory=2 * GIB).allow(seen, (2, 2048))[0][1] < 1024
    assert Guard(memory=64 * GIB).allow(seen, (2, 60_000))[0] == Guard().allow(seen, (2, 60_000))[0]


def test_a_queue_counts_as_full_though_it_is_empty() -> None:
    guard, seen = Guard(GuardOptions(worker=0)), observation(used=1 * GIB)
    heavy = dataclasses.replace(seen.stages[0], item_bytes=256.0 * MIB)
    given, _ = guard.allow(dataclasses.replace(seen, stages=(heavy, seen.stages[1])), (40, 64))
    assert given[0] < 12  # 24 items of 256 MiB behind 12 workers would be 6 GiB


def test_values_that_fit_no_knob_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="1 values for 2 knobs"):
        Guard().allow(observation(), (1,))


def test_what_does_not_fit_even_at_the_least_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(memory=1)
    given, refused = guard.allow(observation(4, 64), (8, 128))
    assert given == (1, 1)
    assert refused.endswith("; the least does not fit either")
    assert guard.allow(observation(1, 1), (1, 1)) == ((1, 1), "")
    assert len(caplog.records) == 1
    assert "of 0 MiB allowed; the least that works is used, and it does not fit" in caplog.text


def test_that_the_least_does_not_fit_is_said_before_the_first_item(caplog: pytest.LogCaptureFixture) -> None:
    assert Guard(memory=1).allow(observation(1, 1, items=0), (1, 1)) == ((1, 1), "")
    assert "it does not fit" in caplog.text
