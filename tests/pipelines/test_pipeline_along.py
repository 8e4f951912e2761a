"""A Batch done in the processes of the stage before it: the same batches, faults and limits in their place, each stage's cost apart."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_work import (
    Broken,
    FailsAt,
    KillsItself,
    burns,
    consumed,
    double,
    nothing_left,
    own_process,
    same,
    sleeps_at_19_in_a_process,
    sleeps_in_a_process,
    uneven,
    with_process,
)
from stoker.engine.errors import StokerError
from stoker.runners.loaders.feeds import Dealing
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source, Stage
from stoker.runners.loaders.tuning.controller import with_along
from stoker.runners.loaders.workers.chains import Group
from stoker.runners.loaders.workers.channel import SKIP, Item
from stoker.runners.loaders.workers.faults import Drained, StageError
from stoker.runners.loaders.workers.worker_processes import ProcessPool, WorkerProcess

SAMPLES = 61


def batched(function: Any, *, batch: int = 4, collate: Any = list, limit: float | None = None) -> Pipeline:
    udf = Map(function, name="udf", processes=True, limit=limit)
    return Pipeline([Source(range(SAMPLES)), udf, Batch(batch, collate=collate, drop_last=False)])


def test_a_process_takes_a_batch_and_collates_it() -> None:
    with nothing_left(), batched(own_process, collate=with_process) as pipeline:
        seen = list(pipeline)
    whole, (last, by) = seen[:-1], seen[-1]
    assert [value for items, _ in seen for value, _ in items] == list(range(SAMPLES))
    assert all({pid for _, pid in items} == {by} != {os.getpid()} for items, by in whole)
    assert (len(last), by) == (1, os.getpid())  # it is not whole: its items come one by one


# -- whatever is moved and resized: each sample once, in the batches and the order of one worker


changes = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=20)
shapes = st.fixed_dictionaries({"size": st.integers(1, 9), "drop_last": st.booleans()})


def stages_of(shape: dict[str, Any], buffer: int, *, along: bool) -> list[Stage]:
    middle = [Map(same, name="more", along=True)] if along else []
    return [Source(range(SAMPLES)), Shuffle(buffer), Map(uneven, name="udf"), *middle, Batch(collate=list, **shape)]


@settings(max_examples=5)
@given(moves=changes, shape=shapes, buffer=st.integers(1, 70), along=st.booleans(), ordered=st.booleans())
def test_any_sequence_of_sizes_and_moves(
    moves: list[tuple[int, bool]], shape: dict[str, Any], buffer: int, along: bool, ordered: bool
) -> None:
    stages = stages_of(shape, buffer, along=along)
    with nothing_left(), Pipeline(stages, ordered=ordered, queue_items=5) as pipeline:
        passes = [consumed(pipeline, moves), consumed(pipeline, moves[::-1])]
    with Pipeline(stages) as plain:
        expected = [list(plain), list(plain)]
    for seen, right in zip(passes, expected, strict=True):
        assert [len(batch) for batch in seen] == [len(batch) for batch in right]
        if ordered:
            assert seen == right
        flat = [value for batch in seen for value in batch]
        assert len(set(flat)) == len(flat) == (SAMPLES // shape["size"] * shape["size"] if shape["drop_last"] else SAMPLES)


@settings(max_examples=4)
@given(moves=changes, more=changes, size=st.integers(1, 9), buffer=st.integers(1, 70), after=st.integers(1, 12), ordered=st.booleans())
def test_left_and_resumed_in_processes(
    moves: list[tuple[int, bool]], more: list[tuple[int, bool]], size: int, buffer: int, after: int, ordered: bool
) -> None:
    stages = stages_of({"size": size, "drop_last": False}, buffer, along=False)
    with nothing_left(), Pipeline(stages, ordered=ordered) as first, Pipeline(stages, ordered=ordered) as second:
        first.set((1,) * len(first.knobs), {"udf": True})
        begun = consumed(first, moves, after)
        state = first.state_dict()
        second.load_state_dict(state)
        second.set((2,) * len(second.knobs), {"udf": True})
        seen = [*(begun if state["pass"] == 0 else []), *consumed(second, more)]
    assert sorted(value for batch in seen for value in batch) == list(range(SAMPLES))
    if ordered:
        with Pipeline(stages) as plain:
            assert seen == list(plain) if state["pass"] == 0 else seen == [list(plain), list(plain)][state["pass"]]


@given(
    asks=st.lists(st.booleans(), min_size=120, max_size=120),
    size=st.integers(1, 9),
    delivered=st.integers(0, 12),
    count=st.integers(0, 40),
)
def test_dealing_gives_whole_batches_where_they_begin(asks: list[bool], size: int, delivered: int, count: int) -> None:
    items = iter([Item((number,), SKIP if number < delivered * size else number, 1) for number in range(count)])

    class Feed:
        kept = (0, 0)

        def take(self, _: Any) -> Item:
            for item in items:
                return item
            raise Drained

        def let_go(self) -> None:
            """It holds nothing."""

    dealing, seen = Dealing(Feed(), size, lambda: True), []
    for whole in asks:
        try:
            item = (dealing.take_batch if whole else dealing.take)(lambda: False)
        except Drained:
            break
        if isinstance(item.payload, Group):
            assert whole and item.positions[0] % size == 0 and len(item.positions) == size
            assert all(each.payload is not SKIP for each in item.payload.items)
        else:
            assert item.positions[0] < delivered * size or not (whole and item.positions[0] % size == 0) or item.positions[0] + size > count
        seen += item.positions
    assert seen == list(range(count))
    assert dealing.kept == (0, 0)


# -- what each stage did


def test_the_cost_of_each_stage_is_told_apart() -> None:
    with (
        nothing_left(),
        Pipeline([Source([0.001] * 64), Map(burns, name="udf", processes=True), Batch(16, collate=collates_slowly)]) as pipeline,
    ):
        assert list(pipeline) == [0.02] * 4
        _, udf, batch = seen = pipeline.observe().stages
    assert (udf.items, udf.together, udf.in_hand, udf.along, udf.processes) == (64, 16, 16, False, True)
    assert (batch.items, batch.together, batch.along, batch.processes) == (4, 1, True, True)
    assert udf.cpu >= 0.001 and batch.cpu >= 0.02
    assert udf.per_batch == 16.0
    assert len(seen) == 3


def collates_slowly(samples: list[float]) -> float:
    return burns(20 * samples[0])


def test_controllers_see_the_cost_where_the_workers_are_that_it_needs() -> None:
    with nothing_left(), batched(double) as pipeline:
        list(pipeline)
        seen = pipeline.observe()
    read, udf, batch = with_along(seen).stages
    assert (read, batch.cpu, batch.wait) == (seen.stages[0], 0.0, 0.0)
    for name in ("cpu", "wait"):
        total = sum(getattr(reading, name) * reading.per_batch for reading in seen.stages[1:])
        assert getattr(udf, name) * udf.per_batch == pytest.approx(total)


def test_the_queue_is_bounded_in_batches() -> None:
    with nothing_left(), Pipeline([Source(range(10**6)), Map(same, name="udf", processes=True), Batch(16, collate=list)]) as pipeline:
        next(iter(pipeline))
        assert pipeline.observe().stages[1].queue_limit == 32  # of the 32 items of a queue, two batches


# -- what goes wrong


def test_a_fault_is_that_of_its_item() -> None:
    with nothing_left(), pytest.raises(Broken) as raised:
        list(batched(FailsAt(14, Broken("bad"))))
    assert raised.value.__notes__[-1] == "in stage 'udf' of the pipeline, item 14"


def test_a_fault_of_the_collate_is_that_of_its_stage() -> None:
    with nothing_left(), pytest.raises(Broken) as raised:
        list(batched(same, collate=FailsAt([4, 5, 6, 7], Broken("bad"))))
    assert raised.value.__notes__[-1] == "in stage 'batch' of the pipeline, items 4 to 7"


def test_ragged_samples_are_named() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'batch', item 6: cannot be batched: it has shape \(7,\)"):
        list(Pipeline([Source([4] * 6 + [7, 4]), Map(torch.zeros, name="udf", processes=True), Batch(4)]))


def test_an_item_that_cannot_be_sent_is_one_of_its_batch() -> None:
    with nothing_left(), pytest.raises(TypeError, match="an item cannot be sent to a worker process") as raised:
        list(Pipeline([Source([1, 2, lambda: 3, 4]), Map(same, name="udf", processes=True), Batch(4, collate=list)]))
    assert raised.value.__notes__[-1] == "in stage 'udf' of the pipeline, items 0 to 3"


def test_the_item_that_kills_each_worker_is_named() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'udf', item 14: 3 worker processes that worked on it have died"):
        list(batched(KillsItself(14)))


def test_a_batch_whose_process_was_killed_is_done_again(tmp_path: Path) -> None:
    with nothing_left(), batched(KillsItself(14, once=tmp_path / "died")) as pipeline:
        assert [value for batch in pipeline for value in batch] == list(range(SAMPLES))
    assert (tmp_path / "died").exists()


def test_a_limit_is_for_one_item_of_a_batch() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'udf', item 19: its function has not returned within the limit of 2 s$"):
        list(batched(sleeps_at_19_in_a_process, batch=8, limit=2.0))


@pytest.mark.slow
def test_a_batch_may_take_longer_than_the_limit_of_an_item() -> None:
    stages = [Source([0.2] * 12), Map(time.sleep, name="udf", processes=True, limit=2.0), Batch(12, collate=len)]
    with nothing_left(), Pipeline(stages) as pipeline:
        assert list(pipeline) == [12]


def test_a_limit_of_the_collate_is_kept() -> None:
    stages = [Source(range(8)), Map(same, name="udf", processes=True), Batch(4, collate=sleeps_in_a_process, limit=0.3)]
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'batch', items 0 to 3: its function has not returned within"):
        list(Pipeline(stages))


def test_a_collate_that_cannot_be_sent_is_done_here(caplog: pytest.LogCaptureFixture) -> None:
    with nothing_left(), batched(own_process, collate=lambda samples: (samples, os.getpid())) as pipeline:
        seen = list(pipeline)
        assert not pipeline.observe().stages[2].along
    assert [value for items, _ in seen for value, _ in items] == list(range(SAMPLES))
    assert {by for _, by in seen} == {os.getpid()}
    assert "stage 'batch': its function cannot be sent to the processes of the stage before" in caplog.text


@pytest.mark.parametrize("option", ["processes", "along"])
def test_a_batch_that_is_not_to_go_along_does_not(option: str) -> None:
    stage = Batch(4, collate=list, **{option: False})
    with nothing_left(), Pipeline([Source(range(8)), Map(same, name="udf", processes=True), stage]) as pipeline:
        assert list(pipeline) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [reading.together for reading in pipeline.observe().stages] == [1, 1, 1]


def test_a_killed_process_that_cannot_be_replaced_has_its_batch_done_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(pool: ProcessPool) -> WorkerProcess:
        raise StokerError("no more processes")

    stages = [Source(range(10**9)), Map(own_process, name="udf"), Batch(4, collate=list), Prefetch(1)]
    with nothing_left(), Pipeline(stages) as pipeline:
        items, numbers = itertools.chain.from_iterable(iter(pipeline)), itertools.count()

        def until(here: bool) -> None:
            for _ in range(10**6):
                value, pid = next(items)
                assert value == next(numbers)
                if (pid == os.getpid()) == here:
                    return
            raise AssertionError("nobody came")

        pipeline.set((1, 1, 1, 1), {"udf": True})
        until(here=False)
        monkeypatch.setattr(ProcessPool, "acquire", refuses)
        for pid in pipeline._kinds.pool(1).pids():
            os.kill(pid, signal.SIGKILL)
        until(here=True)
        for _ in range(400):
            assert next(items)[0] == next(numbers)
        assert pipeline.observe().stages[1].stays == "no more processes"
