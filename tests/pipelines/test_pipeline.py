"""Pipelines of threads: order, resizing, bounds, faults, ends, and what they measure."""

from __future__ import annotations

import _thread
import gc
import hashlib
import io
import itertools
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_work import Broken, FailsAt, burns, double, nothing_left, same, uneven
from stoker.engine.errors import StokerError, UsageError
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.readings import machine
from stoker.runners.loaders.readings import window as readings
from stoker.runners.loaders.readings.meters import Stopwatch
from stoker.runners.loaders.readings.sizes import QUEUED_ITEM_BYTES, nbytes
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source
from stoker.runners.loaders.tuning.controller import Knob, Unit
from stoker.runners.loaders.workers.faults import Ended, StageError
from waiting import patient, until

LONG = patient(60.0)  #: seconds; nothing here takes so long unless it hangs


def paper(size: int = 100, **options: Any) -> Pipeline:
    """Read, shuffle, UDF, batch, prefetch."""
    return Pipeline(
        [
            Source(range(size), workers=2),
            Shuffle(16, seed=3),
            Map(uneven, name="udf", workers=3),
            Batch(8, collate=list, drop_last=False, workers=2),
            Prefetch(mib=1),
        ],
        **options,
    )


def flat(batches: Iterator[list[Any]] | Pipeline) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def test_the_stages_of_the_paper() -> None:
    with nothing_left(), paper() as pipeline:
        batches = list(pipeline)
    assert [len(batch) for batch in batches] == [8] * 12 + [4]
    assert sorted(flat(iter(batches))) == list(range(100))
    assert flat(iter(batches)) != list(range(100))


def test_without_a_shuffle_the_order_is_that_of_the_source() -> None:
    with nothing_left():
        assert list(Pipeline([Source(range(300), workers=3), Map(uneven, workers=6)])) == list(range(300))


def test_unordered_gives_what_is_ready_first() -> None:
    slow = threading.Event()

    def waits(value: int) -> int:
        assert value != 0 or slow.wait(LONG)
        return value

    with nothing_left():
        iterator = iter(Pipeline([Source(range(20)), Map(waits, workers=2)], ordered=False))
        first = [next(iterator) for _ in range(19)]
        slow.set()
        assert (sorted(first), list(iterator)) == (list(range(1, 20)), [0])


def test_a_slow_item_holds_the_others_back_when_ordered() -> None:
    """Workers go no further ahead of it than the queue is long, each with one item in hand."""
    slow, begun = threading.Event(), []

    def waits(value: int) -> int:
        begun.append(value)
        assert value != 0 or slow.wait(LONG)
        return value

    pipeline = Pipeline([Source(itertools.count()), Map(waits, workers=3)], queue_items=6)
    with nothing_left(), pipeline:
        iterator = iter(pipeline)
        taken = threading.Thread(target=next, args=(iterator,))
        taken.start()
        until(lambda: pipeline.observe().stages[1].blocked > 0.5 and len(begun) >= 8, LONG, pause=0.001)
        assert max(begun) <= 6 + 3
        slow.set()
        taken.join(LONG)
        assert next(iterator) == 1


def test_a_pass_after_another_shuffled_anew_and_repeatably() -> None:
    with paper() as pipeline, paper() as same_again:
        first, second = flat(pipeline), flat(pipeline)
        assert first != second
        assert sorted(first) == sorted(second)
        assert [flat(same_again), flat(same_again)] == [first, second]


def test_resizing_loses_doubles_and_reorders_nothing() -> None:
    chosen = random.Random(1)
    pipeline = Pipeline([Source(range(400), workers=2), Map(uneven, workers=2), Batch(4, collate=list), Prefetch(mib=1)])
    with nothing_left():
        seen = []
        for batch in pipeline:
            seen += batch
            pipeline.set((chosen.randint(1, 5), chosen.randint(1, 9), chosen.randint(1, 4), chosen.randint(1, 3)))
        assert seen == list(range(400))


def test_growing_and_shrinking_changes_the_number_of_threads() -> None:
    release, begun = threading.Event(), []

    def waits(value: int) -> int:
        begun.append(value)
        assert release.wait(LONG)
        return value

    pipeline = Pipeline([Source(range(8)), Map(waits, name="udf")])

    def at_work() -> int:
        return sum(thread.name.startswith("udf-") for thread in threading.enumerate())

    with nothing_left(), pipeline:
        taken = threading.Thread(target=list, args=(pipeline,))
        taken.start()
        until(lambda: at_work() == len(begun) == 1, LONG, pause=0.001)
        pipeline.set((1, 5))
        until(lambda: at_work() == len(begun) == 5, LONG, pause=0.001)
        pipeline.set((1, 1))
        assert at_work() == 5  # all are in the middle of an item
        release.set()
        taken.join(LONG)


def test_workers_that_could_not_be_started_are_not_shown_and_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name in {"udf-2", "udf-3"}:
            raise RuntimeError("can't start new thread")
        start(thread)

    pipeline = Pipeline([Source(itertools.count()), Map(same, name="udf")])
    with nothing_left(), pipeline:
        iterator = iter(pipeline)
        next(iterator)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", limited)
            pipeline.set((5,))
        assert (pipeline.values, pipeline.observe().values, pipeline.observe().stages[1].workers) == ((2,), (2,), 2)
        pipeline.set((5,))
        assert (pipeline.values, pipeline.observe().stages[1].workers) == ((5,), 5)


def test_those_who_wait_for_input_leave_without_it() -> None:
    more = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        assert more.wait(LONG)
        yield 1

    pipeline = Pipeline([Source(source), Map(same, name="udf", workers=6)])
    with nothing_left():
        iterator = iter(pipeline)
        assert next(iterator) == 0
        pipeline.set((2,))
        until(lambda: sum(thread.name.startswith("udf-") for thread in threading.enumerate()) == 2, LONG, pause=0.001)
        more.set()
        assert list(iterator) == [1]


def test_set_before_and_between_passes() -> None:
    pipeline = Pipeline([Source(range(10)), Map(double), Prefetch(mib=2)])
    pipeline.set((3, 4, 5))
    assert list(pipeline) == list(range(0, 20, 2))
    pipeline.set((1, 1, 1))
    assert (pipeline.values, list(pipeline)) == ((1, 1, 1), list(range(0, 20, 2)))


def test_knobs() -> None:
    pipeline = paper()
    assert pipeline.knobs == (
        Knob("read", Unit.WORKERS, 1, 1024),
        Knob("udf", Unit.WORKERS, 1, 1024),
        Knob("batch", Unit.WORKERS, 1, 1024),
        Knob("prefetch", Unit.MIB, 1, 1 << 20),
    )
    assert pipeline.values == (2, 3, 2, 1)
    assert pipeline["udf"].knob == pipeline.knobs[1]
    with pytest.raises(KeyError, match="no stage 'shuffle' with a knob; there are read, udf, batch, prefetch"):
        pipeline["shuffle"]
    with pytest.raises(UsageError, match="pipeline: 0 workers for stage 'udf': give 1 to 1024"):
        pipeline.set((1, 0, 1, 1))
    with pytest.raises(UsageError, match="2 values for 4 knobs"):
        pipeline.set((1, 1))
    assert pipeline.values == (2, 3, 2, 1)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "the first stage must be a Source"),
        ([Map(same)], "the first stage must be a Source"),
        ([Source([1]), Source([2], name="other")], "only the first stage may be a Source"),
        ([Source([1]), Map(same), Map(double)], "two stages are called 'map'"),
        ([Source([1]), Prefetch(), Prefetch(name="again")], "'prefetch' and 'again' follow one another"),
        ([Source([1]), same], "is not a stage"),
        ([Source(Pipeline([Source([1])]))], "its source is a Pipeline; make one of the stages of both"),
    ],
)
def test_stages_that_do_not_fit(stages: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pipeline(stages)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Source(7), "stage 'read': int can be neither indexed, nor iterated, nor called"),
        (lambda: Source(iter([1]), workers=2), "stage 'read': workers needs a data set with __getitem__ and __len__"),
        (lambda: Source(iter([1]), sampler=[0]), "stage 'read': sampler needs a data set"),
        (lambda: Map(7), "stage 'map': 7 cannot be called"),
        (lambda: Map(same, workers=0), "stage 'map': workers=0: give 1 to 1024"),
        (lambda: Map(same, limit=0.0), "stage 'map': limit=0.0: give seconds above 0"),
        (lambda: Shuffle(0), "stage 'shuffle': buffer=0: give 1 or more items"),
        (lambda: Batch(0), "stage 'batch': size=0: give 1 or more items"),
        (lambda: Prefetch(0), "stage 'prefetch': mib=0: give 1 to"),
        (lambda: Pipeline([Source([1])], queue_items=0), "queue_items=0: give 1 or more"),
    ],
)
def test_options_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_sources() -> None:
    assert list(Pipeline([Source("abc", workers=2)])) == ["a", "b", "c"]
    assert list(Pipeline([Source("abc", sampler=[2, 0, 0], workers=2)])) == ["c", "a", "a"]
    assert list(Pipeline([Source({"key": 1})])) == ["key"]
    assert list(Pipeline([Source([])])) == []
    assert list(Pipeline([Source(iter([]), name="none"), Shuffle(4), Batch(2)])) == []
    anew = Pipeline([Source(lambda: iter(range(3)))])
    assert [list(anew), list(anew)] == [[0, 1, 2], [0, 1, 2]]


def test_a_sampler_is_begun_by_the_thread_that_iterates() -> None:
    """It may draw from a global generator, which the training draws from as well."""
    begun = []

    def source() -> Iterator[int]:
        begun.append(threading.current_thread())
        return iter([1])

    iterator = iter(Pipeline([Source(source)]))
    assert begun == [threading.main_thread()]
    assert list(iterator) == [1]


def test_lengths() -> None:
    assert len(paper(100)) == len(list(paper(100))) == 13
    assert len(Pipeline([Source(range(10)), Batch(4)])) == 2
    with pytest.raises(TypeError, match="its source has no length"):
        len(Pipeline([Source(itertools.count())]))


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_data_set_shorter_than_buffer_and_batch(drop_last: bool, caplog: pytest.LogCaptureFixture) -> None:
    with nothing_left():
        batches = list(Pipeline([Source(range(3)), Shuffle(1000), Batch(8, collate=sorted, drop_last=drop_last), Prefetch()]))
    assert batches == ([] if drop_last else [[0, 1, 2]])
    assert ("3 items are fewer than a batch of 8" in caplog.text) == drop_last


def test_an_infinite_source_and_a_consumer_that_has_enough() -> None:
    with nothing_left():
        pipeline = Pipeline([Source(itertools.count()), Shuffle(10), Map(same, workers=3), Batch(4, collate=list)])
        for number, _ in enumerate(pipeline):
            if number == 5:
                break


def test_an_abandoned_pass_is_not_continued() -> None:
    pipeline = Pipeline([Source(range(50)), Map(same)])
    for value in pipeline:
        if value == 3:
            break
    assert list(pipeline) == list(range(50))


def test_a_second_iteration_ends_the_first() -> None:
    with nothing_left():
        pipeline = Pipeline([Source(range(50)), Map(same)])
        first = iter(pipeline)
        assert next(first) == 0
        second = iter(pipeline)
        assert next(second) == 0
        with pytest.raises(Ended, match="ended by close\\(\\), or by another iteration"):
            next(first)
        assert list(second) == list(range(1, 50))


def test_close_ends_a_consumer_that_waits_in_another_thread() -> None:
    never, seen = threading.Event(), []

    def consume(pipeline: Pipeline) -> None:
        try:
            list(pipeline)
        except Ended as error:
            seen.append(error)

    def source() -> Iterator[int]:
        never.wait(LONG)
        yield 1

    pipeline = Pipeline([Source(source), Map(same)])
    with nothing_left():
        thread = threading.Thread(target=consume, args=(pipeline,))
        thread.start()
        until(lambda: any(thread.name.startswith("map-") for thread in threading.enumerate()), LONG, pause=0.001)
        pipeline.close()
        thread.join(LONG)
        never.set()
        assert len(seen) == 1


def test_an_iteration_from_before_close_starts_nothing() -> None:
    pipeline = Pipeline([Source(range(5))])
    iterator = iter(pipeline)
    pipeline.close()
    with nothing_left(), pytest.raises(Ended):
        next(iterator)


def test_a_dropped_iterator_ends_its_threads() -> None:
    with nothing_left():
        iterator = iter(Pipeline([Source(itertools.count()), Map(same, workers=4)]))
        assert next(iterator) == 0
        del iterator
        gc.collect()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("position", [0, 37, 99])
def test_a_function_that_raises(position: int, ordered: bool) -> None:
    error = Broken("bad sample")
    with nothing_left():
        pipeline = Pipeline(
            [Source(range(100)), Map(FailsAt(position, error), name="udf", workers=3), Batch(4, collate=list)], ordered=ordered
        )
        with pytest.raises(Broken, match="bad sample") as raised:
            list(pipeline)
        assert raised.value is error
        assert error.__notes__ == [f"in stage 'udf' of the pipeline, item {position}"]
        del raised


def test_a_batch_that_cannot_be_collated_names_its_items() -> None:
    def refuses(samples: list[int]) -> int:
        if 9 in samples:
            raise ValueError("nine")
        return 0

    with nothing_left(), pytest.raises(ValueError, match="nine") as raised:
        list(Pipeline([Source(range(20)), Batch(4, collate=refuses)]))
    assert raised.value.__notes__ == ["in stage 'batch' of the pipeline, items 8 to 11"]


def test_a_function_that_raises_stop_iteration_does_not_end_the_pass_quietly() -> None:
    with nothing_left(), pytest.raises(StageError, match="stage 'map', item 3: the function raised StopIteration"):
        list(Pipeline([Source(range(10)), Map(FailsAt(3, StopIteration()))]))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_what_is_no_exception_arrives_too(error: BaseException) -> None:
    with nothing_left(), pytest.raises(type(error)):
        list(Pipeline([Source(range(10)), Map(FailsAt(3, error))]))


def test_an_iterable_that_raises() -> None:
    def source() -> Iterator[int]:
        yield from range(5)
        raise OSError("disk gone")

    with nothing_left(), pytest.raises(OSError, match="disk gone") as raised:
        list(Pipeline([Source(source), Map(same)]))
    assert raised.value.__notes__ == ["in stage 'read' of the pipeline, item 5"]


def test_a_sampler_that_raises() -> None:
    def indices() -> Iterator[int]:
        yield 0
        raise ValueError("no more indices")

    with nothing_left(), pytest.raises(ValueError, match="no more indices") as raised:
        list(Pipeline([Source("abc", sampler=indices()), Map(same)]))
    assert raised.value.__notes__ == ["in stage 'read' of the pipeline, item 1"]


def test_a_source_that_cannot_begin() -> None:
    def source() -> Iterator[int]:
        raise OSError("no such bucket")

    with nothing_left(), pytest.raises(OSError, match="no such bucket") as raised:
        iter(Pipeline([Source(source)]))
    assert raised.value.__notes__ == ["in stage 'read' of the pipeline, before its first item"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.zeros(2, 3), r"it has shape \(2, 3\), the first of its batch shape \(2, 2\)"),
        ({"image": torch.zeros(2, 2)}, r"it has nothing, the first of its batch shape \(2, 2\)"),
    ],
    ids=["shape", "field"],
)
def test_ragged_batches(wrong: Any, words: str) -> None:
    def sample(value: int) -> Any:
        return wrong if value == 13 else torch.zeros(2, 2)

    with nothing_left(), pytest.raises(StageError, match=f"stage 'batch', item 13: cannot be batched: .*{words}"):
        list(Pipeline([Source(range(32)), Map(sample), Batch(8)]))


def test_default_collate_is_that_of_torch() -> None:
    samples = [{"x": np.full((2, 3), i, dtype=np.float32), "y": i} for i in range(6)]
    (first, second) = Pipeline([Source(samples), Batch(3)])
    wanted = torch.utils.data.default_collate(samples[3:])
    assert torch.equal(second["x"], wanted["x"])
    assert torch.equal(second["y"], wanted["y"])
    assert torch.equal(first["y"], torch.tensor([0, 1, 2]))


def test_close_does_not_wait_for_a_function_that_hangs() -> None:
    release = threading.Event()

    def hangs(value: int) -> int:
        assert value != 2 or release.wait(LONG)
        return value

    with nothing_left():
        pipeline = Pipeline([Source(range(10)), Map(hangs)])
        iterator = iter(pipeline)
        assert [next(iterator), next(iterator)] == [0, 1]
        before = time.monotonic()
        pipeline.close()
        assert time.monotonic() - before < LONG / 2
        assert not release.is_set()
        release.set()


@pytest.mark.slow
def test_an_item_over_its_time_limit() -> None:
    release = threading.Event()

    def hangs(value: int) -> int:
        assert value != 2 or release.wait(LONG)
        return value

    with nothing_left():
        with pytest.raises(StageError, match=r"stage 'udf', item 2: its function has not returned within the limit of 2 s"):
            list(Pipeline([Source(range(10)), Map(hangs, name="udf", limit=2.0)]))
        release.set()


def test_an_interrupt_in_the_consumer_ends_everything() -> None:
    def interrupts(value: int) -> int:
        if value == 20:
            _thread.interrupt_main()
            time.sleep(0.2)
        return value

    with nothing_left(), pytest.raises(KeyboardInterrupt):
        list(Pipeline([Source(itertools.count()), Map(interrupts)]))


def test_used_after_a_fork() -> None:
    pipeline = Pipeline([Source([1])])
    pipeline._process = os.getpid() + 1
    with pytest.raises(UsageError, match="threads do not survive a fork; make it here"):
        iter(pipeline)


# Memory


def test_a_queue_holds_no_more_bytes_than_it_may() -> None:
    """The consumer takes nothing: what waits is bounded by bytes, however many items there are."""
    load = (1 << 18) - QUEUED_ITEM_BYTES - nbytes(b"")
    pipeline = Pipeline([Source(itertools.count()), Map(lambda _: bytes(load), name="load", workers=2), Prefetch(mib=2)])
    with nothing_left(), pipeline:
        iterator = iter(pipeline)
        next(iterator)
        until(lambda: pipeline.observe().stages[1].blocked == 1.0, LONG, pause=0.001)
        held = pipeline.observe().stages[2]
        assert (held.queue, held.queue_bytes) == (8, 2 << 20)
        pipeline.set((2, 4))
        until(lambda: pipeline.observe().stages[2].queue_bytes == 4 << 20, LONG, pause=0.001)
        pipeline.set((2, 1))
        for _ in range(20):  # more than was held: a lower bound drops nothing
            next(iterator)
        until(lambda: pipeline.observe().stages[1].blocked == 1.0, LONG, pause=0.001)
        assert pipeline.observe().stages[2].queue_bytes == 1 << 20


@pytest.mark.parametrize("ordered", [True, False])
def test_an_item_larger_than_the_bound_passes_alone(ordered: bool) -> None:
    with nothing_left():
        pipeline = Pipeline([Source(range(12)), Map(lambda _: bytes(3 << 20), workers=3), Prefetch(mib=1)], ordered=ordered, queue_mib=1)
        assert [len(item) for item in pipeline] == [3 << 20] * 12


@pytest.mark.parametrize("ordered", [True, False])
def test_items_of_no_bytes_are_bounded_by_their_number(ordered: bool) -> None:
    """Nothing but bytes bounds a Prefetch, and what a queue holds of an item is several hundred."""
    pipeline = Pipeline([Source(lambda: itertools.repeat(b"")), Prefetch(mib=1)], ordered=ordered)
    with nothing_left(), pipeline:
        iterator = iter(pipeline)
        next(iterator)
        until(lambda: pipeline.observe().stages[0].blocked == 1.0, LONG, pause=0.001)
        assert 1000 < pipeline.observe().stages[1].queue < (1 << 20) // QUEUED_ITEM_BYTES


def test_what_was_delivered_is_the_consumers_alone() -> None:
    class Sample:
        pass

    gone, more = threading.Semaphore(0), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        more.wait(2 * LONG)

    def sample(_: int) -> Sample:
        made = Sample()
        weakref.finalize(made, gone.release)
        return made

    iterator = iter(Pipeline([Source(source), Map(sample)]))
    held = next(iterator)
    assert not gone.acquire(blocking=False)
    del held
    try:
        until(
            lambda: gone.acquire(blocking=False), LONG, pause=0.001
        )  # the worker, which waits for its next item, may just be leaving the queue
    finally:
        more.set()
        iterator.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("close", [True, False], ids=["close", "break"])
def test_a_pass_that_was_ended_holds_neither_items_nor_source(close: bool) -> None:
    class Sample:
        pass

    alive: weakref.WeakSet[Sample] = weakref.WeakSet()
    left = []

    def source() -> Iterator[Sample]:
        try:
            while True:
                alive.add(made := Sample())
                yield made
        finally:
            left.append(True)

    pipeline = Pipeline([Source(source), Shuffle(50), Batch(4, collate=list)])
    iterator = iter(pipeline)
    next(iterator)
    if close:
        pipeline.close()
    else:
        iterator.close()  # type: ignore[attr-defined]
    until(lambda: gc.collect() >= 0 and (len(alive), left) == (0, [True]), LONG, pause=0.001)


# What is measured


@pytest.mark.usefixtures("roomy")
def test_readings_of_a_pass() -> None:
    pipeline = paper(100)
    list(pipeline)
    seen = pipeline.observe()
    assert [stage.name for stage in seen.stages] == ["read", "shuffle", "udf", "batch", "prefetch"]
    assert [stage.items for stage in seen.stages] == [100, 100, 100, 13, 13]
    assert [stage.per_batch for stage in seen.stages] == [8, 8, 8, 1, 1]
    assert [stage.workers for stage in seen.stages] == [2, 1, 3, 2, 0]
    assert [stage.parallel for stage in seen.stages] == [True, False, True, True, False]
    assert (seen.knobs, seen.values, seen.batch_size) == (pipeline.knobs, (2, 3, 2, 1), 8.0)
    assert seen.throughput == pytest.approx(100 / seen.window)
    assert 0 < seen.memory_used < seen.memory_total
    assert seen.cpus > 0
    again = pipeline.observe()
    assert [stage.items for stage in again.stages] == [0] * 5
    assert again.throughput == 0
    assert again.stages[2].cpu == seen.stages[2].cpu  # the last that is known


def test_before_anything_ran() -> None:
    seen = paper().observe()
    assert all(math.isnan(stage.cpu) and math.isnan(stage.wait) for stage in seen.stages[:4])
    assert (seen.throughput, seen.demand, seen.resized) == (0.0, math.inf, False)


def test_cpu_time_and_waiting_are_told_apart() -> None:
    spent = []

    def works(_: int) -> None:
        began = time.thread_time()
        burns(0.004)
        spent.append(time.thread_time() - began)

    def waits(_: int) -> None:
        time.sleep(0.02)

    pipeline = Pipeline([Source(range(30)), Map(works, name="works"), Map(waits, name="waits", workers=4)])
    list(pipeline)
    _, working, waiting = pipeline.observe().stages
    mean = sum(spent) / len(spent)
    assert mean <= working.cpu < 2 * mean
    assert waiting.wait > 0.01
    assert waiting.cpu < working.cpu / 2


def test_waiting_for_a_core_is_no_wait_of_the_function() -> None:
    """Three threads' worth of work on one core: its wall time is several times its CPU time, its wait is not."""
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("this kernel does not tell the run delay")
    watch, over, short, long = Stopwatch(), threading.Event(), bytes(8 << 20), bytes(64 << 20)

    # hashing a large buffer releases the interpreter's lock, so these threads contend for the core and for nothing else
    def contends() -> None:
        while not over.is_set():
            hashlib.sha256(short).digest()

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        others = [threading.Thread(target=contends) for _ in range(2)]
        for other in others:
            other.start()
        began = time.perf_counter()
        _, spent = watch.call(lambda content: hashlib.sha256(content).digest(), long)
        wall = time.perf_counter() - began
    finally:
        over.set()
        os.sched_setaffinity(0, allowed)
    for other in others:
        other.join(LONG)
    watch.close()
    assert wall > 1.3 * spent.cpu, "nothing contended"
    assert spent.wait < 0.7 * (wall - spent.cpu)


def test_the_consumers_demand_is_its_own_time() -> None:
    pipeline = Pipeline([Source(range(40)), Map(lambda value: time.sleep(0.003) or value), Batch(4, collate=list)])
    for _ in pipeline:
        time.sleep(0.002)
    seen = pipeline.observe()
    assert seen.throughput < seen.demand <= 4 / 0.002  # 4 samples each 2 ms at least, whatever the pipeline takes


def test_a_window_that_is_discarded() -> None:
    pipeline = Pipeline([Source(range(10)), Map(same)])
    list(pipeline)
    pipeline.discard_window()
    assert pipeline.observe().stages[0].items == 0


def test_the_time_between_passes_is_in_no_window() -> None:
    pipeline = Pipeline([Source(range(10)), Map(same)])
    list(pipeline)
    pipeline.observe()
    time.sleep(0.3)
    began = time.perf_counter()
    list(pipeline)
    took = time.perf_counter() - began
    assert pipeline.observe().window <= took


def test_observed_and_resized_by_another_thread_while_passes_begin_and_end() -> None:
    over, wrong = threading.Event(), []
    pipeline = paper(64)

    def tunes() -> None:
        chosen = random.Random(2)
        while not over.is_set():
            pipeline.set((chosen.randint(1, 3), chosen.randint(1, 4), chosen.randint(1, 3), chosen.randint(1, 2)))
            seen = pipeline.observe()
            wrong.extend(stage for stage in seen.stages if stage.items < 0 or not 0 <= stage.starved <= 1.0 + 1e-9)

    tuner = threading.Thread(target=tunes)
    with nothing_left():
        tuner.start()
        passes = [sorted(flat(pipeline)) for _ in range(6)]
        over.set()
        tuner.join(LONG)
    assert passes == [list(range(64))] * 6
    assert wrong == []


# Going on where it was


def resumed(make: Any, after: int) -> tuple[list[Any], list[Any]]:
    """What a pipeline gives in all, and what it gives when it is made anew after some items."""
    whole = list(make())
    first = make()
    iterator = iter(first)
    begun = [next(iterator) for _ in range(after)]
    state = first.state_dict()
    first.close()
    second = make()
    second.load_state_dict(state)
    return whole, begun + list(second)


@pytest.mark.parametrize("after", [0, 1, 5, 12])
def test_resumed_exactly(after: int) -> None:
    with nothing_left():
        whole, again = resumed(paper, after)
    assert again == whole


def test_what_was_delivered_is_not_worked_on_again() -> None:
    worked: list[int] = []

    def works(value: int) -> int:
        worked.append(value)
        return value

    def make() -> Pipeline:
        return Pipeline([Source(range(60)), Shuffle(8), Map(works), Batch(5, collate=list)])

    first = make()
    iterator = iter(first)
    delivered = flat(iter([next(iterator) for _ in range(6)]))
    first.close()
    state = first.state_dict()
    worked.clear()
    second = make()
    second.load_state_dict(state)
    list(second)
    assert sorted(worked) == sorted(set(range(60)) - set(delivered))


def test_an_unordered_pass_resumed_gives_each_sample_once() -> None:
    with nothing_left():
        whole, again = resumed(lambda: Pipeline([Source(range(80), workers=3), Shuffle(9), Map(uneven, workers=5)], ordered=False), 33)
    assert sorted(again) == sorted(whole) == list(range(80))


def test_the_pass_after_a_resumed_one_is_that_of_the_whole_run() -> None:
    whole, state = paper(), paper()
    passes = [list(whole), list(whole), list(whole)]
    list(state)
    iterator = iter(state)
    begun = [next(iterator) for _ in range(3)]
    saved = state.state_dict()
    state.close()
    second = paper()
    second.load_state_dict(saved)
    assert [begun + list(second), list(second)] == passes[1:]


def test_a_state_after_the_last_item_begins_the_next_pass() -> None:
    whole, first, second = paper(), paper(), paper()
    passes = [list(whole), list(whole)]
    list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == passes[1]


def test_a_state_of_an_iterable_source() -> None:
    whole, again = resumed(lambda: Pipeline([Source(lambda: iter(range(40))), Shuffle(7), Batch(4, collate=list)]), 5)
    assert again == whole


def test_a_state_of_other_stages() -> None:
    state = paper().state_dict()
    with pytest.raises(UsageError, match="the state is of other stages"):
        Pipeline([Source(range(100)), Batch(4)]).load_state_dict(state)


def test_the_state_is_small_and_plain() -> None:
    pipeline = Pipeline([Source(range(5000)), Shuffle(50), Batch(10, collate=list)])
    iterator = iter(pipeline)
    for _ in range(300):
        next(iterator)
    state = pipeline.state_dict()
    pipeline.close()
    assert len(state["pending"]) <= 50 + 10
    torch.save(state, buffer := io.BytesIO())
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == state


def test_faults_are_errors_of_ours() -> None:
    assert issubclass(StageError, StokerError)
    assert issubclass(Ended, StokerError)


class Lists:
    """Items that are lists of samples."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[int]:
        return [index] * 8


def test_samples_are_counted_where_items_are_lists_of_them() -> None:
    def observed(samples: int) -> tuple[float, float]:
        with Pipeline([Source(Lists()), Prefetch()], samples_per_item=samples) as pipeline:
            list(pipeline)
            seen = pipeline.observe()
        assert math.isfinite(seen.demand)
        assert seen.throughput * seen.window == pytest.approx(40 * samples)
        return seen.batch_size, seen.stages[0].per_batch

    assert observed(1) == (1.0, 1.0)
    assert observed(8) == (8.0, 1.0)
    with pytest.raises(UsageError, match="samples_per_item=0"):
        Pipeline([Source(Lists())], samples_per_item=0)


NAN = math.nan


@pytest.mark.parametrize(
    ("cpus", "ours", "idle", "taken"),
    [
        (4.0, 1.0, 3.0, 0.0),
        (4.0, 1.0, 1.5, 0.5),
        (4.0, 1.0, 0.0, 1.0),
        (4.0, 3.8, 0.0, 0.0),
        (2.0, 1.0, 9.0, 0.0),
        (4.0, 1.0, math.nan, 0.0),
    ],
)
def test_what_others_take_of_the_cores_that_we_leave(cpus: float, ours: float, idle: float, taken: float) -> None:
    assert readings._taken(cpus, ours, idle) == pytest.approx(taken)


def test_idle_time_of_our_cores_is_known() -> None:
    assert machine.idle() >= 0.0


def test_without_proc_stat_idle_time_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    assert math.isnan(machine.idle())


def test_who_has_left_is_waited_for() -> None:
    """What a thread frees at its very end is freed before the pass is over: were the interpreter gone by then, it would abort."""
    end, local = threading.Event(), threading.local()
    workers: set[threading.Thread] = set()

    class Lingers:
        def __del__(self) -> None:
            assert end.wait(patient(10))

    def work(index: int) -> int:
        local.lingers = Lingers()
        workers.add(threading.current_thread())
        return index

    ended = threading.Timer(0.3, end.set)
    ended.start()
    assert list(Pipeline([Source(lambda: iter([7])), Map(work, workers=1)])) == [7]
    (worker,) = workers
    assert not worker.is_alive()
    ended.join()
