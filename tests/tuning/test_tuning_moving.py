"""Threads or processes: `rate` moves a stage where the lock costs throughput, takes it back where it was of no use, and rests."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_pipeline import Consumer, Machine, SimulatedPipeline, Stage
from stoker.runners.loaders.tuning import known_controllers as registry
from stoker.runners.loaders.tuning.controller import Decision, Knob, Observation, StageReading, Unit
from stoker.runners.loaders.tuning.moving import (
    ASKING_WINDOWS,
    REST_WINDOWS,
    START_SECONDS_AT_MOST,
    STEADY_WINDOWS,
    WINDOWS_AT_MOST,
    Moving,
)

GIB = 1 << 30
UDF = Stage("udf", cpu=0.004, per_batch=16, item_bytes=1e4, locked=0.9, movable=True)
READ = Stage("read", cpu=0.0002, wait=0.02, per_batch=16, item_bytes=1e4, locked=0.2, movable=True)
TRAINING = Consumer(batches=40.0, cpu=0.025, locked=0.6)


def job(*stages: Stage, cpus: float = 8, consumer: Consumer = TRAINING, noise: float = 0.0, seed: int = 0) -> SimulatedPipeline:
    buffer = Stage("prefetch", cpu=0.0, unit=Unit.MIB, item_bytes=1e5)
    machine = Machine(cpus, 64 * GIB, switching=0.0)
    return SimulatedPipeline([*stages, buffer], machine, consumer, batch_size=16, window=1.0, noise=noise, seed=seed)


def run(pipe: SimulatedPipeline, windows: int, controller: Any = None) -> tuple[Any, list[Observation], list[Decision]]:
    """So many windows under `rate`; what was seen and wanted."""
    controller = controller or registry.create("rate")
    decision, seen, wanted = Decision(pipe.values), [], []
    for _ in range(windows):
        seen.append(pipe.step(decision.values, decision.processes))
        wanted.append(decision := controller.decide(seen[-1]))
    return controller, seen, wanted


def moves(wanted: list[Decision]) -> list[dict[str, bool]]:
    return [dict(decision.processes) for decision in wanted if decision.processes]


def said(wanted: list[Decision]) -> str:
    return "\n".join(decision.why for decision in wanted)


# -- in a closed loop, on simulated pipelines with an interpreter's lock


def test_a_stage_that_shares_the_lock_with_the_training_is_moved_and_stays() -> None:
    pipe = job(READ, UDF)
    _, seen, wanted = run(pipe, 80)
    in_threads = max(each.throughput for each in seen if not any(reading.processes for reading in each.stages))
    assert moves(wanted) == [{"udf": True}]
    assert seen[-1].throughput > 2 * in_threads
    assert "of their time for the interpreter's lock: moved to" in said(wanted)
    assert "udf stays in processes: they brought +" in said(wanted)


def test_the_tuner_takes_as_many_processes_as_the_training_leaves_cores_for() -> None:
    _, seen, _ = run(job(READ, UDF, cpus=4), 80)
    udf = next(reading for reading in seen[-1].stages if reading.name == "udf")
    assert udf.processes
    assert udf.workers <= 4


@pytest.mark.parametrize(
    "stages",
    [
        (READ, dataclasses.replace(UDF, locked=0.0)),
        (dataclasses.replace(READ, wait=0.2), dataclasses.replace(UDF, cpu=0.0001)),
        (READ, dataclasses.replace(UDF, movable=False)),
    ],
    ids=["lets go of the lock", "waits for a disk", "may not be moved"],
)
def test_what_would_gain_nothing_stays_in_threads(stages: tuple[Stage, ...]) -> None:
    _, seen, wanted = run(job(*stages, consumer=Consumer(batches=40.0)), 60)
    assert "udf" not in {stage for move in moves(wanted) for stage in move}
    assert not any(reading.processes for reading in seen[-1].stages)


def test_what_is_dearer_to_send_than_thought_is_taken_back() -> None:
    _, seen, wanted = run(job(READ, dataclasses.replace(UDF, cpu=0.0004, sending=0.002), consumer=Consumer(batches=40.0)), 100)
    assert moves(wanted) == [{"udf": True}, {"udf": False}]
    assert "udf moved back to threads: processes brought " in said(wanted)
    assert not seen[-1].stages[1].processes


def test_on_one_core_nothing_is_moved() -> None:
    _, _, wanted = run(job(READ, UDF, cpus=1), 60)
    assert moves(wanted) == []


def test_what_was_moved_stays_so_when_cores_go_and_come() -> None:
    pipe = job(READ, UDF, cpus=4)
    controller, _, first = run(pipe, 60)
    pipe.resize(cpus=1)
    _, _, second = run(pipe, 40, controller)
    pipe.resize(cpus=4)
    _, seen, third = run(pipe, 40, controller)
    assert moves(first + second + third) == [{"udf": True}]
    assert seen[-1].stages[1].processes


def test_rate_and_the_agent_move_it_too() -> None:
    pytest.importorskip("torch")
    _, seen, wanted = run(job(READ, UDF), 80, registry.create("rate+dqn"))
    assert moves(wanted) == [{"udf": True}]
    assert seen[-1].stages[1].processes


@settings(max_examples=25)
@given(
    cpu=st.floats(0.0005, 0.02), locked=st.floats(0, 1), sending=st.floats(5e-5, 0.004), cpus=st.integers(1, 16),
    consumer=st.sampled_from([TRAINING, Consumer(batches=40.0), Consumer(batches=200.0, cpu=0.004, locked=1.0)]),
    noise=st.sampled_from([0.0, 0.05]), seed=st.integers(0, 5),
)  # fmt: skip
def test_it_never_goes_to_and_fro(
    cpu: float, locked: float, sending: float, cpus: int, consumer: Consumer, noise: float, seed: int
) -> None:
    """In 200 windows a stage moves at most there, back, and there again; the throughput ends no lower than it was in threads."""
    udf = dataclasses.replace(UDF, cpu=cpu, locked=locked, sending=sending)
    _, seen, wanted = run(job(READ, udf, cpus=cpus, consumer=consumer, noise=noise, seed=seed), 200)
    for stage in ("read", "udf"):
        assert [move[stage] for move in moves(wanted) if stage in move] in ([], [True], [True, False])
    first = next((place for place, decision in enumerate(wanted) if decision.processes), len(wanted))
    before = seen[max(0, first - ASKING_WINDOWS) : first + 1]
    mean = sum(each.throughput for each in before) / len(before)
    assert sum(each.throughput for each in seen[-20:]) / 20 >= 0.85 * mean


# -- window by window


def reading(**more: Any) -> StageReading:
    given: dict[str, Any] = {
        "name": "udf", "workers": 2, "items": 100, "per_batch": 16.0, "cpu": 0.004, "wait": 0.003, "starved": 0.0, "blocked": 0.0,
        "queue": 0, "queue_bytes": 0, "item_bytes": 1e4, "lock": 0.003, "movable": True,
    }  # fmt: skip
    return StageReading(**(given | more))


def window(at: float = 0.0, **more: Any) -> Observation:
    udf = more.pop("udf", None) or reading()
    given: dict[str, Any] = {
        "at": at, "window": 1.0, "stages": (udf,), "knobs": (Knob("udf", Unit.WORKERS),), "values": (udf.workers,), "batch_size": 16.0,
        "throughput": 160.0, "demand": math.inf, "cpus": 4.0, "cpu_used": 1.0, "memory_used": GIB, "memory_total": 8 * GIB,
        "consumer_cpu": 0.3, "lock": 0.6,
    }  # fmt: skip
    return Observation(**(given | more))


def moved() -> tuple[Moving, Decision]:
    moving = Moving()
    decision = None
    for _ in range(ASKING_WINDOWS):
        assert decision is None
        decision = moving.proposed(window())
    assert decision is not None
    return moving, decision


def test_some_windows_must_ask_for_it_and_the_words_say_why() -> None:
    moving, decision = moved()
    assert decision.processes == {"udf": True}
    assert moving.trial == "udf"
    assert decision.why.startswith("udf: threads wait 43% of their time for the interpreter's lock: moved to 2 processes")


def test_where_only_the_training_waits_the_words_say_so() -> None:
    moving = Moving()
    quiet = window(udf=reading(wait=0.0, lock=0.0))
    decision = [moving.proposed(quiet) for _ in range(ASKING_WINDOWS)][-1]
    assert decision is not None
    assert "the interpreter's lock is held 60% of the time, which keeps the training waiting" in decision.why


def test_where_all_cores_are_busy_processes_would_have_none() -> None:
    moving = Moving()
    assert all(moving.proposed(window(crowded=0.9)) is None for _ in range(2 * ASKING_WINDOWS))


def test_cores_that_others_keep_busy_promise_nothing() -> None:
    """Of four cores three are used here; the fourth is free half of the time, which would not pay for the sending."""
    for crowded, moves in ((0.0, True), (0.5, False)):
        busy = window(cpu_used=2.5, consumer_cpu=0.4, throughput=620.0, crowded=crowded)
        moving = Moving()
        assert any(moving.proposed(busy) is not None for _ in range(ASKING_WINDOWS)) == moves


def test_a_change_of_workers_begins_the_count_anew() -> None:
    moving = Moving()
    for _ in range(ASKING_WINDOWS - 1):
        assert moving.proposed(window()) is None
    for _ in range(ASKING_WINDOWS - 1):
        assert moving.proposed(window(udf=reading(workers=3))) is None
    assert moving.proposed(window(udf=reading(workers=3))) is not None


def in_processes(throughput: float, **more: Any) -> Observation:
    return window(udf=reading(processes=True, workers=3, lock=0.0, wait=0.0), throughput=throughput, **more)


@pytest.mark.parametrize(("throughput", "stays"), [(150.0, False), (165.0, False), (170.0, True), (176.0, True)])
def test_what_is_not_sure_is_judged_by_the_mean_of_some_windows(throughput: float, stays: bool) -> None:
    moving, _ = moved()
    for _ in range(STEADY_WINDOWS - 1):
        assert moving.judged(in_processes(throughput)) is None
    judged = moving.judged(in_processes(throughput))
    assert judged is not None
    assert judged.processes == ({} if stays else {"udf": False})
    assert judged.values == ((3,) if stays else (2,))
    assert moving.trial == ""


@pytest.mark.parametrize(("throughput", "stays"), [(320.0, True), (80.0, False)])
def test_what_is_sure_is_judged_by_the_first_windows(throughput: float, stays: bool) -> None:
    moving, _ = moved()
    found = [moving.judged(in_processes(throughput)) for _ in range(3)]
    decision = next(each for each in found if each is not None)
    assert found[0] is None
    assert decision.processes == ({} if stays else {"udf": False})


def test_windows_that_scatter_are_no_early_proof() -> None:
    moving, _ = moved()
    assert [moving.judged(in_processes(rate)) for rate in (60.0, 420.0, 70.0, 400.0)] == [None] * 4


def test_looks_of_several_windows_count_together() -> None:
    """In one of them nobody was seen waiting: there are few looks in each."""
    moving = Moving()
    none = reading(wait=0.0, lock=0.0)
    assert moving.proposed(window(udf=none, lock=0.0)) is None
    assert (moving.likely, moving.presses) == ("", False)
    assert moving.proposed(window()) is not None


def test_the_first_window_that_asks_says_what_is_likely() -> None:
    moving = Moving()
    assert moving.proposed(window()) is None
    assert (moving.likely, moving.presses) == ("udf", True)
    assert moving.proposed(window()) is not None
    assert (moving.likely, moving.presses) == ("", True)


def test_threads_are_as_many_as_cores_before_processes_are_tried_and_no_more() -> None:
    """Else it would not be known whether the processes brought it, or that there were more of them."""
    for workers, held in ((1, False), (2, True)):
        rate = registry.create("rate")
        udf = reading(workers=workers, cpu=0.010, wait=0.010, lock=0.010)
        decision = rate.decide(window(udf=udf, cpus=2.0, cpu_used=0.8, throughput=80.0))
        assert decision.likely == "udf"
        assert (decision.values == (workers,)) == held
        assert ("another window will tell whether udf is better off in processes" in decision.why) == held


def test_values_that_keep_changing_do_not_put_it_off_for_ever() -> None:
    moving, _ = moved()
    changing = (window(udf=reading(processes=True, workers=3 + number % 2), throughput=100.0) for number in range(WINDOWS_AT_MOST))
    found = [moving.judged(seen) for seen in changing]
    assert found[:-1] == [None] * (WINDOWS_AT_MOST - 1)
    assert found[-1] is not None
    assert found[-1].processes == {"udf": False}


def failed() -> Moving:
    moving, _ = moved()
    for _ in range(STEADY_WINDOWS):
        moving.judged(in_processes(100.0))
    return moving


def rests(moving: Moving) -> int:
    """Windows until it is proposed again, and moves it back once more."""
    for count in range(1, 10 * REST_WINDOWS):
        if moving.proposed(window()) is not None:
            for _ in range(STEADY_WINDOWS):
                moving.judged(in_processes(100.0))
            return count
    raise AssertionError("it never came back")


def test_after_a_trial_that_failed_it_rests_and_then_twice_as_long() -> None:
    moving = failed()
    first, second = rests(moving), rests(moving)
    assert REST_WINDOWS <= first <= REST_WINDOWS + ASKING_WINDOWS
    assert 2 * REST_WINDOWS <= second <= 2 * REST_WINDOWS + ASKING_WINDOWS


def test_many_more_cores_are_a_reason_to_try_again() -> None:
    moving = failed()
    assert [moving.proposed(window(cpus=16.0)) for _ in range(ASKING_WINDOWS)][-1] is not None


@pytest.mark.parametrize(("throughput", "stays"), [(121.0, False), (130.0, True)])
def test_after_a_resize_it_is_judged_by_what_threads_would_have_done_on_as_many_cores(throughput: float, stays: bool) -> None:
    moving, _ = moved()  # 160 samples/s with 1.3 cores busy: 123 with one
    assert moving.judged(in_processes(320.0)) is None
    assert moving.judged(in_processes(50.0, resized=True, cpus=1.0)) is None
    found = [moving.judged(in_processes(throughput, cpus=1.0)) for _ in range(STEADY_WINDOWS)]
    assert found[:-1] == [None] * (STEADY_WINDOWS - 1)
    assert found[-1] is not None
    assert found[-1].processes == ({} if stays else {"udf": False})


def test_on_one_core_processes_that_are_not_there_yet_are_not_waited_for() -> None:
    moving, _ = moved()
    starting = reading(processes=True, starting=3)
    assert moving.judged(window(udf=starting, resized=True, cpus=2.0)) is None
    decision = moving.judged(window(udf=starting, resized=True, cpus=1.0))
    assert decision is not None
    assert decision.processes == {"udf": False}
    assert decision.why == "udf moved back to threads: one core is left, and its processes are not there yet"


def test_processes_that_do_not_come_are_given_up() -> None:
    moving, _ = moved()
    starting = reading(processes=True, starting=3)
    assert moving.overdue(window(START_SECONDS_AT_MOST - 1.0, udf=starting)) is None
    decision = moving.overdue(window(START_SECONDS_AT_MOST + 1.0, udf=starting))
    assert decision is not None
    assert decision.processes == {"udf": False}
    assert decision.why == "udf moved back to threads: its processes have not started within 90 s"


def test_processes_that_were_there_and_start_anew_have_the_same_time_again() -> None:
    """As in each pass that follows one which was left early."""
    moving, _ = moved()
    assert moving.judged(in_processes(320.0, at=START_SECONDS_AT_MOST)) is None
    starting = reading(processes=True, starting=3)
    assert moving.overdue(window(2 * START_SECONDS_AT_MOST - 1.0, udf=starting)) is None
    assert moving.overdue(window(2 * START_SECONDS_AT_MOST + 1.0, udf=starting)) is not None


def test_what_cannot_be_sent_is_said_once_and_not_tried_again() -> None:
    moving, _ = moved()
    why = "stage 'udf': its function cannot be sent to worker processes"
    held = window(udf=reading(movable=False, stays=why))
    judged = moving.judged(held)
    assert judged is not None
    assert judged.why == f"udf stays in threads: {why}"
    assert all(moving.proposed(held) is None for _ in range(2 * REST_WINDOWS))


def test_what_the_guard_refused_rests() -> None:
    moving, _ = moved()
    assert moving.judged(window()) is None
    assert all(moving.proposed(window()) is None for _ in range(REST_WINDOWS - 1))
