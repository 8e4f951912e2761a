"""One step of a tuner: the controller proposes, the guard disposes, and nothing that either does reaches the training."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.errors import UsageError
from stoker.runners.loaders.tuner import Step, Tuner
from stoker.runners.loaders.tuning.controller import Decision, Knob, Observation, StageReading, Unit, Values

KNOBS = (Knob("read", Unit.WORKERS, 1, 64), Knob("udf", Unit.WORKERS, 1, 64), Knob("prefetch", Unit.MIB, 1, 512))


def reading(name: str, workers: int = 1, queue: int = 0) -> StageReading:
    return StageReading(name, workers, 100, 1.0, 0.001, 0.002, 0.0, 0.0, queue, 0, 1e3)


def observation(values: Values, queue: int = 0, throughput: float = 320.0, resized: bool = False) -> Observation:
    stages = tuple(reading(knob.stage, queue=queue) for knob in KNOBS)
    return Observation(
        at=1.0, window=1.0, stages=stages, knobs=KNOBS, values=values, batch_size=32.0, throughput=throughput, demand=math.inf,
        cpus=4.0, cpu_used=1.0, memory_used=1 << 28, memory_total=1 << 30, resized=resized,
    )  # fmt: skip


class Rig:
    """A pipeline that remembers what it was told."""

    def __init__(self, values: Values = (1, 1, 64)) -> None:
        self.knobs, self.values = KNOBS, values
        self.discarded = 0
        self.shown: dict[str, object] = {}
        self.sizes = (0, 0)
        self.prepared: list[tuple[str, float]] = []
        self.forgotten: list[str] = []
        self.made_ready: list[str] = []

    def set(self, values: Values, processes: Mapping[str, bool] | None = None) -> None:
        self.values = values

    def observe(self) -> Observation:
        return dataclasses.replace(observation(self.values), **self.shown)  # type: ignore[arg-type]

    def discard_window(self) -> None:
        self.discarded += 1

    def prepare(self, stage: str, limit: float) -> tuple[int, int]:
        self.prepared.append((stage, limit))
        if self.sizes[1] > limit:
            raise UsageError("too much to copy")
        return self.sizes

    def forget(self, stage: str) -> None:
        self.forgotten.append(stage)

    def make_ready(self, stage: str) -> None:
        self.made_ready.append(stage)


class Wants:
    """A controller that says what it is told to say."""

    name: ClassVar[str] = "wants"

    def __init__(self, answer: Callable[[Observation], Values], **more: Any) -> None:
        self.answer, self.more = answer, more
        self.asked: list[Observation] = []

    def decide(self, seen: Observation) -> Decision:
        self.asked.append(seen)
        return Decision(self.answer(seen), "because", **self.more)


class Allows:
    """A guard with a most for each worker knob."""

    def __init__(self, most: int = 1 << 20) -> None:
        self.most = most

    def allow(self, seen: Observation, wanted: Values) -> tuple[Values, str]:
        allowed = tuple(min(value, self.most) for value in wanted)
        return allowed, "" if allowed == wanted else f"at most {self.most}"

    def allow_processes(self, seen: Observation, stage: str, wanted: int, sizes: tuple[int, int]) -> tuple[int, str]:
        count = min(wanted, self.most - sum(sizes))
        return count, "" if count == wanted else f"{count} processes"

    def room(self, seen: Observation) -> float:
        return 5.0


Told = list[tuple[str, Decision, Values, str]]


def tuner(
    rig: Rig, answer: Callable[[Observation], Values], most: int = 1 << 20, free: tuple[Knob, ...] = KNOBS, told: Told | None = None
) -> Tuner:
    def report(seen: Observation, controller: str, wanted: Decision, given: Values, refused: str) -> None:
        if told is not None:
            told.append((controller, wanted, given, refused))

    return Tuner(rig, Wants(answer), Allows(most), free=free, interval=2.0, report=report)


def test_a_step_sets_what_the_controller_wants_and_tells_it() -> None:
    rig, told = Rig(), Told()
    tuned = tuner(rig, lambda seen: (2, 5, 64), told=told)
    tuned.step()
    assert rig.values == (2, 5, 64)
    assert told == [("wants", Decision((2, 5, 64), "because"), (2, 5, 64), "")]
    (step,) = tuned.history
    assert step == (observation((1, 1, 64)), Decision((2, 5, 64), "because"), (2, 5, 64), "", {})


@pytest.mark.parametrize(("most", "free", "made_ready"), [(8, KNOBS, ["udf"]), (0, KNOBS, []), (8, KNOBS[:1], [])])
def test_what_processes_take_long_to_start_from_is_made_ready(most: int, free: tuple[Knob, ...], made_ready: list[str]) -> None:
    rig = Rig()
    controller = Wants(lambda seen: seen.values, likely="udf")
    Tuner(rig, controller, Allows(most), free=free, interval=2.0, report=lambda *_: None).step()
    assert rig.made_ready == made_ready


def test_steps_stay_short_while_something_is_to_be_found_out_soon() -> None:
    gaps = {}
    for soon in (False, True):
        tuned = Tuner(Rig(), Wants(lambda seen: seen.values, soon=soon), Allows(), free=KNOBS, interval=2.0, report=lambda *_: None)
        for _ in range(8):
            tuned.step()
        gaps[soon] = tuned.gap
        for _ in range(40):  # it never settles: that must not cost a core
            tuned.step()
        assert tuned.gap == 2.0
    assert gaps == {False: 2.0, True: 0.25}


def test_the_guard_has_the_last_word() -> None:
    rig, told = Rig((1, 1, 4)), Told()
    tuner(rig, lambda seen: (2, 50, 4), most=8, told=told).step()
    assert rig.values == (2, 8, 4)
    assert told[0][1].values == (2, 50, 4)
    assert told[0][2:] == ((2, 8, 4), "at most 8")


def test_the_values_to_begin_with_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig((32, 32, 2))
    tuner(rig, lambda seen: seen.values, most=4).begin()
    assert rig.values == (4, 4, 2)
    assert "at most 4" in caplog.text


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda seen: 1 / 0, "ZeroDivisionError"),
        (lambda seen: (1, 2), "ValueError"),
        (lambda seen: (1, float("nan"), 3), "ValueError"),
        (lambda seen: None, "TypeError"),
        (lambda seen: ("a", "b", "c"), "TypeError"),
    ],
    ids=["raises", "too-few", "nan", "nothing", "words"],
)
def test_a_controller_that_fails_is_replaced_by_the_values_that_are_set(
    answer: Callable[[Observation], Values], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig, told = Rig((3, 4, 5)), Told()
    tuned = tuner(rig, answer, told=told)
    with caplog.at_level(logging.ERROR):
        tuned.step()
        tuned.step()
    assert rig.values == (3, 4, 5)
    assert said in tuned.failed
    assert [(name, given) for name, _, given, _ in told] == [("fixed", (3, 4, 5))] * 2
    assert all(said in step.wanted.why for step in tuned.history)
    assert len([record for record in caplog.records if record.exc_info]) == 1, "it is asked no more"


@given(wanted=st.tuples(*[st.integers(-1000, 10_000)] * 3), start=st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 512)))
def test_only_the_chosen_knobs_are_turned_and_within_their_bounds(wanted: Values, start: Values) -> None:
    rig = Rig(start)
    tuner(rig, lambda seen: wanted, free=(KNOBS[1],)).step()
    assert rig.values == (start[0], KNOBS[1].clip(wanted[1]), start[2])


def test_the_controller_sees_which_knobs_are_not_its_own() -> None:
    rig = Rig((2, 3, 64))
    wants = Wants(lambda seen: seen.values)
    Tuner(rig, wants, Allows(), free=(KNOBS[1],), interval=1.0, report=lambda *_: None).step()
    assert [(knob.low, knob.high) for knob in wants.asked[0].knobs] == [(2, 2), (1, 64), (64, 64)]


def test_steps_are_short_at_first_and_grow_to_the_interval_while_nothing_changes() -> None:
    rig = Rig()
    tuned = tuner(rig, lambda seen: seen.values)
    gaps = [tuned.gap]
    for _ in range(10):
        tuned.step()
        gaps.append(tuned.gap)
    assert gaps[0] == 0.25
    assert gaps == sorted(gaps)
    assert gaps[-1] == 2.0


def test_a_change_and_a_resize_make_them_short_again() -> None:
    rig = Rig()
    want = [(1, 1, 64)]
    tuned = tuner(rig, lambda seen: want[0])
    for _ in range(10):
        tuned.step()
    want[0] = (1, 2, 64)
    tuned.step()
    assert tuned.gap == 0.25
    for _ in range(10):
        tuned.step()
    rig.shown = {"resized": True}
    tuned.step()
    assert tuned.gap == 0.25


def test_a_controller_that_never_settles_is_asked_ever_less() -> None:
    rig = Rig()
    tuned = tuner(rig, lambda seen: (1, 3 - seen.values[1], 64))
    for _ in range(60):
        tuned.step()
    assert tuned.gap == 2.0


@pytest.mark.parametrize(
    ("queue", "throughput", "transition"),
    [(0, 320.0, 0.3), (2, 320.0, 0.9), (1000, 320.0, 2.0), (2, 0.0, 2.0)],
    ids=["empty", "some", "long", "nothing-comes"],
)
def test_the_transition_lasts_until_the_queues_are_drained(queue: int, throughput: float, transition: float) -> None:
    rig = Rig()
    rig.shown = {"stages": observation((1, 1, 64), queue).stages, "throughput": throughput}
    assert tuner(rig, lambda seen: (2, 2, 64)).step() == pytest.approx(transition)


def test_nothing_is_left_out_when_nothing_changed() -> None:
    rig = Rig()
    rig.shown = {"stages": observation((1, 1, 64), 100).stages}
    assert tuner(rig, lambda seen: seen.values).step() == 0.0


@pytest.mark.parametrize(
    ("sizes", "most", "moved", "refused", "prepared", "forgotten"),
    [
        ((1, 1), 9, {"udf": True}, "", True, []),
        ((9, 0), 9, {}, "0 processes", True, ["udf"]),
        ((0, 6), 9, {}, "too much to copy", True, []),
        ((0, 0), 0, {}, "0 processes", False, []),
    ],
    ids=["fits", "shares too much", "copies too much", "no room at all"],
)
def test_what_processes_are_sent_is_copied_only_as_far_as_there_is_room(
    sizes: tuple[int, int], most: int, moved: dict[str, bool], refused: str, prepared: bool, forgotten: list[str]
) -> None:
    rig, wants = Rig(), Wants(lambda seen: seen.values)
    rig.sizes = sizes
    wants.decide = lambda seen: Decision(seen.values, "", {"udf": True})  # type: ignore[method-assign]
    tuned = Tuner(rig, wants, Allows(most), free=KNOBS, interval=1.0, report=lambda *_: None)
    tuned.step()
    step = tuned.history[0]
    assert (step.moved, refused in step.refused, rig.forgotten) == (moved, True, forgotten)
    assert rig.prepared == ([("udf", 5.0)] if prepared else [])


def test_a_report_that_fails_is_not_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    rig, calls = Rig(), []

    def report(*step: object) -> None:
        calls.append(step)
        raise OSError("disk full")

    tuned = Tuner(rig, Wants(lambda seen: (2, 2, 64)), Allows(), free=KNOBS, interval=1.0, report=report)
    tuned.step()
    tuned.step()
    assert rig.values == (2, 2, 64)
    assert len(tuned.history) == 2
    assert len(calls) == 1
    assert "disk full" in caplog.text


def test_a_step_is_a_line_for_people() -> None:
    step = Step(observation((1, 2, 64)), Decision((1, 9, 64), "to reach 400/s"), (1, 4, 64), "refused udf 9 (given 4)")
    assert str(step) == "read 1, udf 2 → 4, prefetch 64 MiB; 320 samples/s; to reach 400/s; refused udf 9 (given 4)"
    assert str(Step(observation((1, 2, 64)), Decision(()), (1, 2, 64), "")) == "read 1, udf 2, prefetch 64 MiB; 320 samples/s"
