"""Reading left to the processes that work on what is read: the same samples, faults and limits in their place, and back where it waits."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_work import (
    Broken,
    FailsAt,
    KillsItself,
    Reads,
    consumed,
    first,
    nothing_left,
    same,
    sleeps_at_19_in_a_process,
    with_own,
)
from stoker.engine.errors import UsageError
from stoker.runners.loaders.feeds import Carrying, Passing
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source, Stage
from stoker.runners.loaders.tuning.controller import with_along
from stoker.runners.loaders.workers.chains import Carried, Chain, Unread
from stoker.runners.loaders.workers.channel import SKIP, Bound, Channel, Item
from stoker.runners.loaders.workers.faults import Drained, Leave, Misplaced, StageError
from stoker.runners.loaders.workers.threads import ChainHand, ThreadHand

SAMPLES = 61


def made(data: Any, *, along: bool | None = True, shuffle: bool = True, size: int = 4, limit: float | None = None) -> list[Stage]:
    middle = [Shuffle(9)] if shuffle else []
    udf = Map(with_own, name="udf", processes=True, workers=2)
    return [Source(data, along=along, limit=limit), *middle, udf, Batch(size, collate=list, drop_last=False)]


def flat(batches: Any) -> list[tuple[int, int, int]]:
    return [sample for batch in batches for sample in batch]


def test_processes_read_what_they_work_on() -> None:
    with nothing_left(), Pipeline(made(Reads(SAMPLES))) as pipeline:
        seen = flat(pipeline)
        read, shuffle, udf, batch = pipeline.observe().stages
    assert sorted(index for index, *_ in seen) == list(range(SAMPLES))
    assert all(reader == worker != os.getpid() for _, reader, worker in seen)
    assert [read.items, shuffle.items, udf.items, batch.items] == [SAMPLES, SAMPLES, SAMPLES, 16]
    assert (read.along, read.processes, udf.along, read.lock) == (True, True, False, 0.0)
    assert 0.0 < read.cpu < 0.1 and read.item_bytes < 1000


def test_a_map_without_a_batch_reads_too() -> None:
    with nothing_left(), Pipeline(made(Reads(SAMPLES))[:3]) as pipeline:
        seen = list(pipeline)
    assert len(seen) == SAMPLES
    assert all(reader == worker != os.getpid() for _, reader, worker in seen)


def test_workers_are_counted_for_what_they_read() -> None:
    with nothing_left(), Pipeline(made(Reads(SAMPLES))) as pipeline:
        list(pipeline)
        seen = pipeline.observe()
    read, _, udf, _ = with_along(seen).stages
    assert (read.cpu, read.wait) == (0.0, 0.0)
    for name in ("cpu", "wait"):
        costs = [getattr(reading, name) * reading.per_batch for reading in seen.stages if reading.name != "shuffle"]
        assert getattr(udf, name) * udf.per_batch == pytest.approx(sum(costs))


def test_nobody_looks_at_the_interpreters_lock_where_nothing_is_left_to_move() -> None:
    for along, looked in ((True, False), (False, True)):
        with nothing_left(), Pipeline(made(Reads(SAMPLES), along=along)) as pipeline:
            pipeline.observe()
            next(batches := iter(pipeline))
            assert any(thread.name == "stoker-lock" for thread in threading.enumerate()) == looked
            del batches


def test_what_a_batch_has_gathered_is_no_queue_of_batches() -> None:
    blocks = threading.Event()

    def indices() -> Iterator[int]:
        yield from range(16 + 15)
        blocks.wait(60)

    with nothing_left(), Pipeline([Source(Reads(SAMPLES), sampler=indices()), Batch(16, collate=list)]) as pipeline:
        next(iter(pipeline))
        try:
            assert pipeline.observe().stages[1].queue == 0
        finally:
            blocks.set()


# -- who reads


@pytest.mark.parametrize("along", [None, False])
def test_this_process_reads_unless_it_is_asked_for(along: bool | None) -> None:
    with nothing_left(), Pipeline(made(Reads(SAMPLES), along=along)) as pipeline:
        seen = flat(pipeline)
        assert not pipeline.observe().stages[0].along
    assert all(reader == os.getpid() != worker for _, reader, worker in seen)


def test_threads_read_where_the_map_is_in_threads() -> None:
    stages = [Source(Reads(SAMPLES), along=True), Map(with_own, name="udf"), Batch(4, collate=list)]
    with nothing_left(), Pipeline(stages) as pipeline:
        assert all(reader == worker == os.getpid() for _, reader, worker in flat(pipeline))


@pytest.mark.parametrize(
    "stages",
    [
        [Source(range(9), along=True), Batch(3)],
        [Source(range(9), along=True)],
        [Source(range(9), along=True), Prefetch(), Map(same)],
        [Source(range(9), along=True), Map(same, processes=False)],
        [Source(range(9), along=True, processes=True), Map(same)],
    ],
    ids=["a batch", "nothing", "a queue between", "threads for good", "processes of its own"],
)
def test_who_could_not_read_ahead_is_told_so(stages: list[Stage]) -> None:
    with pytest.raises(UsageError, match=r"^stage 'read': along=True leaves reading to the processes of the next Map"):
        Pipeline(stages)


def test_what_is_only_iterated_cannot_be_read_ahead() -> None:
    with pytest.raises(UsageError, match=r"^stage 'read': along needs a data set"):
        Source(iter(range(9)), along=True)


def test_a_data_set_that_cannot_be_sent_is_said_to_be_so() -> None:
    with pytest.raises(UsageError, match=r"^stage 'udf': its function, or the data that it reads, cannot be sent to worker processes"):
        Pipeline(made(Reads(SAMPLES, lambda index: index)))


# -- whoever reads: each sample once, in the batches and the order of one worker


flips = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=16)
shapes = st.fixed_dictionaries({"size": st.integers(1, 9), "drop_last": st.booleans()})


def stages_of(shape: dict[str, Any], buffer: int, batches: bool) -> list[Stage]:
    stages: list[Stage] = [Source(Reads(SAMPLES), along=True), Shuffle(buffer), Map(first, name="udf"), Batch(collate=list, **shape)]
    return stages if batches else stages[:3]


@pytest.mark.slow
@settings(max_examples=12)
@given(moves=flips, shape=shapes, buffer=st.integers(1, 70), batches=st.booleans(), ordered=st.booleans())
def test_any_sequence_of_sizes_moves_and_readers(
    moves: list[tuple[int, bool]], shape: dict[str, Any], buffer: int, batches: bool, ordered: bool
) -> None:
    stages = stages_of(shape, buffer, batches)
    with nothing_left(), Pipeline(stages, ordered=ordered, queue_items=5) as pipeline:
        pipeline.set((2,) * len(pipeline.knobs), {"udf": True})
        passes = [consumed(pipeline, moves), consumed(pipeline, moves[::-1])]
    with Pipeline(stages) as plain:
        expected = [list(plain), list(plain)]
    for seen, right in zip(passes, expected, strict=True):
        if ordered:
            assert seen == right
        if batches:
            assert [len(batch) for batch in seen] == [len(batch) for batch in right]
        values = [value for batch in seen for value in batch] if batches else seen
        assert len(set(values)) == len(values) == (SAMPLES // shape["size"] * shape["size"] if batches and shape["drop_last"] else SAMPLES)


@settings(max_examples=10)
@given(moves=flips, more=flips, size=st.integers(1, 9), buffer=st.integers(1, 70), after=st.integers(1, 12), ordered=st.booleans())
def test_left_and_resumed(
    moves: list[tuple[int, bool]], more: list[tuple[int, bool]], size: int, buffer: int, after: int, ordered: bool
) -> None:
    stages = stages_of({"size": size, "drop_last": False}, buffer, batches=True)
    with nothing_left(), Pipeline(stages, ordered=ordered) as one, Pipeline(stages, ordered=ordered) as other:
        one.set((1,) * len(one.knobs), {"udf": True})
        begun = consumed(one, moves, after)
        state = one.state_dict()
        other.load_state_dict(state)
        other.set((2,) * len(other.knobs), {"udf": True})
        seen = [*(begun if state["pass"] == 0 else []), *consumed(other, more)]
    assert sorted(value for batch in seen for value in batch) == list(range(SAMPLES))
    if ordered and state["pass"] == 0:
        with Pipeline(stages) as plain:
            assert seen == list(plain)


def test_no_more_is_ahead_than_queues_and_shuffle_hold() -> None:
    drawn = 0

    def indices() -> Iterator[int]:
        nonlocal drawn
        for index in itertools.count():
            drawn += 1
            yield index % SAMPLES

    stages = [
        Source(Reads(SAMPLES), sampler=indices(), along=True),
        Shuffle(9),
        Map(with_own, name="udf", processes=True),
        Batch(16, collate=list),
    ]
    with nothing_left(), Pipeline(stages, queue_mib=1) as pipeline:
        for _ in itertools.islice(pipeline, 3):
            assert drawn < 1000


# -- what is given to whom


class Given:
    """A feed of these: an exception is raised."""

    kept = (0, 0)

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def take(self, _: Any) -> Item:
        for number, item in enumerate(self.items):
            if isinstance(item, Exception):
                raise item
            return Item((number,), item, 1)
        raise Drained

    def let_go(self) -> None:
        """It holds nothing."""


def taken(feed: Carrying) -> list[Any]:
    """Payloads of an item, as they are or together."""
    payload = feed.take(lambda: False).payload
    return [each.payload for each in payload.items] if isinstance(payload, Carried) else payload


def test_what_goes_together_is_unread_but_for_what_was_delivered() -> None:
    feed = Carrying(Given([0, SKIP, 2, 3]), lambda: 3, marked=True)
    assert taken(feed) == [Unread(0), SKIP, Unread(2)]
    assert taken(feed) == [Unread(3)]
    with pytest.raises(Drained):
        feed.take(lambda: False)


def test_a_fault_of_the_sampler_comes_behind_what_came_before_it() -> None:
    feed = Carrying(Given([0, 1, Broken("bad")]), lambda: 4, marked=True)
    assert taken(feed) == [Unread(0), Unread(1)]
    with pytest.raises(Broken):
        feed.take(lambda: False)


def test_a_worker_that_leaves_loses_nothing() -> None:
    together = 4
    feed = Carrying(Given([0, 1, Leave(), 2, 3]), lambda: together, marked=True)
    with pytest.raises(Leave):
        feed.take(lambda: False)
    assert feed.kept == (2, 2)
    together = 0
    assert taken(feed) == [Unread(0), Unread(1)]
    assert taken(feed) == 2


def test_singles_are_given_in_their_order() -> None:
    channel = Channel(Bound(10, 1000), ordered=True)
    single = [Item((number,), number, 1) for number in range(5)]
    channel.put(0, single[0])
    channel.put(1, Item((), Carried(single[1:4]), 3))
    channel.put(2, single[4])
    singles = Passing(channel)
    assert [singles.take(lambda: False).payload for _ in range(5)] == list(range(5))
    assert singles.kept == (0, 0)


# -- what goes wrong


def test_a_fault_of_reading_is_that_of_its_item() -> None:
    with nothing_left(), pytest.raises(Broken) as raised:
        list(Pipeline(made(Reads(SAMPLES, FailsAt(14, Broken("bad"))), shuffle=False)))
    assert raised.value.__notes__[-1] == "in stage 'read' of the pipeline, item 14"


def test_a_fault_of_the_sampler_names_the_item() -> None:
    def indices() -> Iterator[int]:
        yield from range(14)
        raise Broken("bad")

    stages = [Source(Reads(SAMPLES), sampler=indices(), along=True), *made(Reads(SAMPLES), shuffle=False)[1:]]
    with nothing_left(), pytest.raises(Broken) as raised:
        list(Pipeline(stages))
    assert raised.value.__notes__[-1] == "in stage 'read' of the pipeline, item 14"


def test_the_item_whose_reading_kills_each_worker_is_named() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'read', item 14: 3 worker processes that worked on it have died"):
        list(Pipeline(made(Reads(SAMPLES, KillsItself(14)), shuffle=False)))


def test_a_batch_whose_process_was_killed_as_it_read_is_done_again(tmp_path: Path) -> None:
    with nothing_left(), Pipeline(made(Reads(SAMPLES, KillsItself(14, once=tmp_path / "died")), shuffle=False)) as pipeline:
        assert [index for index, *_ in flat(pipeline)] == list(range(SAMPLES))
    assert (tmp_path / "died").exists()


def test_a_limit_is_for_one_item_that_is_read() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'read', item 19: its function has not returned within the limit of 2 s$"):
        list(Pipeline(made(Reads(SAMPLES, sleeps_at_19_in_a_process), shuffle=False, size=8, limit=2.0)))


@pytest.mark.slow
def test_a_limit_of_the_map_is_not_that_of_reading() -> None:
    stages = [Source(range(SAMPLES), along=True), Map(sleeps_at_19_in_a_process, name="udf", processes=True, limit=2.0)]
    with nothing_left(), pytest.raises(StageError, match=r"^stage 'udf', item 19: its function has not returned within the limit of 2 s$"):
        list(Pipeline(stages))


def test_a_thread_that_reads_what_was_left_tells_reading_apart() -> None:
    """As the Map is moved to threads while unread items are on their way."""
    broken = FailsAt(14, Broken("bad"))
    for read, function, stage in ((broken, same, "read"), (same, broken, "udf")):
        hand = ThreadHand(function, ChainHand(Chain((read, function), ("read", "udf"), reads=True)))
        assert hand.call(Item((13,), Unread(13), 1), lambda: None).payload == 13
        with pytest.raises(Misplaced) as raised:
            hand.call(Item((7,), Unread(14), 1), lambda: None)
        assert (raised.value.at.stage, raised.value.at.positions) == (stage, (7,))
        assert hand.at(Item((7,), 0, 1)) is None
        hand.let_go(drained=True)
