"""Who waits for the interpreter's lock, and who for something else, as threads of this process are seen to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pipeline_work import burns, nothing_left, same
from stoker.runners.loaders.autotuned import autotuned
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.readings import contention
from stoker.runners.loaders.readings.contention import Contention, Looks, waits_in
from stoker.runners.loaders.stages import Map, Source
from stoker.runners.loaders.workers.passes import Pass
from waiting import patient

LONG = patient(60.0)
SEEN = pytest.mark.skipif(not contention._FUTEX or not waits_in(threading.get_native_id()), reason="system calls are not to be seen")


@contextmanager
def thread(work: Callable[[], Any]) -> Iterator[int]:
    """The kernel's number of a thread that does the work."""
    begun = threading.Event()
    numbers: list[int] = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        begun.set()
        work()

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    assert begun.wait(LONG)
    yield numbers[0]
    worker.join(LONG)


def looking(at_work: dict[int, list[int]], until: Callable[[Looks], bool]) -> Looks:
    looks = Contention(lambda: at_work)
    looks.start()
    end = time.monotonic() + LONG
    while not until(looks.seen) and time.monotonic() < end:
        time.sleep(0.01)
    looks.end()
    assert until(looks.seen), looks.seen
    return looks.seen


@SEEN
def test_who_waits_for_a_lock_and_who_sleeps_are_told_apart() -> None:
    gate = threading.Lock()
    gate.acquire()
    leave = threading.Event()

    def sleeps() -> None:
        while not leave.is_set():
            time.sleep(0.2)

    with thread(lambda: gate.acquire(timeout=LONG)) as waiting, thread(sleeps) as sleeping:
        seen = looking({0: [waiting], 1: [sleeping]}, lambda seen: min(seen.waiting.get(stage, 0) for stage in (0, 1)) > 10)
        leave.set()
        gate.release()
    assert seen.locked_share(0) > 0.9
    assert seen.locked_share(1) < 0.5
    assert seen.locked_share(2) == 0.0


def test_a_lock_that_is_held_is_found_so() -> None:
    """By a thread that computes in Python: the interpreter takes the lock from it every 5 ms at the soonest."""
    leave = threading.Event()

    def computes() -> None:
        while not leave.is_set():
            burns(0.01)

    with thread(computes):
        seen = looking({}, lambda seen: seen.held >= 5)
        leave.set()
    assert 0 < seen.share(seen.held) <= 1


def test_where_no_thread_can_be_started_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        looks = Contention(dict)
        looks.start()
    looks.end()
    assert looks.seen == Looks()


def test_only_what_came_since_counts() -> None:
    before, after = Looks(10, 4, 1, {0: 3}, {0: 5}, 0.25), Looks(30, 6, 2, {0: 4, 1: 1}, {0: 9, 1: 2}, 1.0)
    since = after.since(before)
    assert since == Looks(20, 2, 1, {0: 1, 1: 1}, {0: 4, 1: 2}, 0.75)
    assert since.share(since.held) == 0.1
    assert (since.locked_share(0), since.locked_share(1)) == (0.25, 0.5)
    assert Looks().share(0) == 0.0


def test_a_thread_that_is_not_there_waits_for_nothing() -> None:
    assert waits_in(2**22 + 1) == ""


def test_the_trainings_cpu_time_is_not_the_pipelines() -> None:
    with nothing_left(), Pipeline([Source(range(40)), Map(same, name="udf")]) as pipeline:
        pipeline.observe()
        for _ in pipeline:
            burns(0.005)
        seen = pipeline.observe()
    assert seen.consumer_cpu * seen.window > 0.9 * 40 * 0.005
    assert seen.cpu_used * seen.window < 0.5 * 40 * 0.005


def test_what_looking_costs_is_the_tuners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pass, "looks", property(lambda running: Looks(1, cpu=1e6)))
    with autotuned(Pipeline([Source(range(40)), Map(same, name="udf")]), controller="fixed") as tuned:
        list(tuned)
        assert tuned.pipeline.watching == 1e6
        assert tuned.overhead > 1.0


def test_looking_takes_time() -> None:
    assert looking({}, lambda seen: seen.looks >= 3).cpu > 0.0


@pytest.mark.parametrize(("processes", "looked"), [(None, True), (True, False), (False, False)], ids=["either", "processes", "threads"])
def test_it_is_looked_at_only_where_something_may_be_moved(processes: bool | None, looked: bool) -> None:
    stages = [Source(lambda: iter(range(10**9))), Map(same, name="udf", processes=processes)]
    with nothing_left(), Pipeline(stages) as pipeline:
        items = iter(pipeline)
        next(items)
        pipeline.observe()
        assert any(each.name == "stoker-lock" for each in threading.enumerate()) == looked
