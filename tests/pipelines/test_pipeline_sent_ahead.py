"""Worker processes are sent their next item while they are at one: none is lost, done twice, blamed, or waited for by nobody."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_work import Broken, DiesOnce, FailsAt, has_one_process, naps, nothing_left, own_process, same, sleeps_at_19_in_a_process
from stoker.runners.loaders.feeds import Passing
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Batch, Map, Source
from stoker.runners.loaders.workers import worker_processes as module
from stoker.runners.loaders.workers.chains import Chain, Group
from stoker.runners.loaders.workers.channel import Bound, Channel, Item
from stoker.runners.loaders.workers.faults import Misplaced, StageError
from stoker.runners.loaders.workers.threads import Crew, _Worker
from stoker.runners.loaders.workers.worker_processes import ProcessHand, ProcessPool, WorkerProcess
from waiting import patient, until

LONG = patient(60.0)
SAMPLES = 240


@pytest.fixture(autouse=True)
def every_item_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(module, "_SHORT", LONG)


def none() -> None:
    """Nothing is there to follow."""


def one(value: Any) -> Item:
    return Item((value if isinstance(value, int) else 0,), value, 1)


@contextmanager
def hand_for(function: Any, *, attempts: int = 3, batch: bool = False) -> Iterator[tuple[ProcessHand, ProcessPool]]:
    """One that has done item 0, so that it knows that items are short."""
    chain = Chain((function, list), ("udf", "batch"), batch=1, size=2) if batch else Chain((function,), ("udf",))
    with nothing_left():
        pool = ProcessPool(chain, attempts=attempts)
        hand = ProcessHand(pool)
        try:
            hand.call(one(0), none)
            yield hand, pool
        finally:
            hand.let_go(drained=False)
            pool.end()


class Following:
    """Gives one item, and counts how often it was asked for."""

    def __init__(self, item: Item) -> None:
        self.item, self.asked = item, 0

    def __call__(self) -> Item:
        self.asked += 1
        return self.item


def pending(hand: ProcessHand) -> int:
    process = hand._process
    assert process is not None
    return process.pending


def test_the_next_item_is_at_the_process_when_the_answer_comes() -> None:
    with hand_for(same) as (hand, _):
        for value in range(1, 5):
            assert hand.call(one(value), Following(one(value + 1))).payload == value
            assert pending(hand) == 1
        assert hand.call(one(5), none).payload == 5
        assert pending(hand) == 0


def test_an_error_is_that_of_the_item_whose_turn_it_is() -> None:
    with hand_for(FailsAt(1, Broken("bad"))) as (hand, _), pytest.raises(Misplaced, match="bad") as raised:
        hand.call(one(1), Following(one(2)))
    assert raised.value.at.positions == (1,)
    with hand_for(FailsAt(2, Broken("bad"))) as (hand, _):
        assert hand.call(one(1), Following(one(2))).payload == 1
        with pytest.raises(Misplaced, match="bad") as raised:
            hand.call(one(2), Following(one(3)))
    assert raised.value.at.positions == (2,)


def test_an_error_within_a_batch_is_that_of_its_sample_though_the_process_is_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has finished the next batch before anybody asks where the first one failed."""
    first, second = (Group.item(tuple(one(value) for value in values)) for values in ((1, 2), (3, 4)))
    answer = WorkerProcess._answer

    def late(process: WorkerProcess, **options: Any) -> Any:
        if process.pending == 2:
            until(lambda: process.whereabouts.read()[:2] == (3, 1), LONG, pause=0.001)
        return answer(process, **options)

    monkeypatch.setattr(WorkerProcess, "_answer", late)
    with hand_for(FailsAt(2, Broken("bad")), batch=True) as (hand, _), pytest.raises(Misplaced, match="bad") as raised:
        hand.call(first, Following(second))
    assert (raised.value.at.stage, raised.value.at.positions) == ("udf", (2,))


def test_an_item_that_waited_for_its_turn_is_not_charged_with_the_death(tmp_path: Path) -> None:
    """Each of them dies once by itself; with two attempts neither may be charged with the other's death."""
    with hand_for(DiesOnce((1, 2), tmp_path), attempts=2) as (hand, _):
        assert hand.call(one(1), Following(one(2))).payload == 1
        assert hand.call(one(2), none).payload == 2
    assert {file.name for file in tmp_path.iterdir()} == {"1", "2"}


def test_a_process_that_was_killed_while_idle_costs_no_attempt() -> None:
    with hand_for(own_process, attempts=1) as (hand, _):
        (_, before) = hand.call(one(1), none).payload
        os.kill(before, signal.SIGKILL)
        value, after = hand.call(one(2), none).payload
    assert (value, after != before) == (2, True)


def test_what_is_large_both_ways_is_sent_at_its_turn() -> None:
    """Ahead, each side would wait for the other to receive."""
    values = [bytes([value]) * (4 << 20) for value in range(3)]
    with hand_for(same) as (hand, _):
        following = Following(one(values[1]))
        assert hand.call(one(values[0]), following).payload == values[0]
        assert (following.asked, pending(hand)) == (1, 0)
        assert hand.call(one(values[1]), following).payload == values[1]
        assert following.asked == 1  # no other is kept from an idle worker in vain


def test_an_item_that_cannot_be_sent_fails_at_its_turn() -> None:
    lock = one(threading.Lock())
    with hand_for(same) as (hand, _):
        assert hand.call(one(1), Following(lock)).payload == 1
        with pytest.raises(Misplaced, match="an item cannot be sent to a worker process"):
            hand.call(lock, Following(one(2)))
        assert pending(hand) == 0


def test_behind_a_long_item_none_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORT", 0.1)
    with hand_for(naps_long) as (hand, _):
        following = Following(one(2))
        hand.call(one(1), none)
        hand.call(one(0), following)
        assert following.asked == 0


def naps_long(value: int) -> int:
    time.sleep(0.15 * value)
    return value


def test_the_clock_of_an_item_starts_at_its_turn() -> None:
    with hand_for(ends) as (hand, _):
        second = one(2)
        ended = hand.call(one(1), Following(second)).payload
        at = hand.at(second)
        assert (at.stage, at.positions) == ("udf", (2,))
        assert at.since >= ended  # and not when it was sent
        hand.call(second, none)


def ends(value: int) -> float:
    naps(value)
    return time.perf_counter()


def test_a_process_that_has_an_item_ahead_is_not_kept() -> None:
    with hand_for(naps) as (hand, pool):
        hand.call(one(1), Following(one(2)))
        hand.let_go(drained=True)
        assert pool.pids() == []
        hand._process = None


def test_none_is_taken_ahead_where_none_waits_another_worker_does_or_the_queue_behind_is_full() -> None:
    source, output = Channel(Bound(9, 1 << 20), ordered=True), Channel(Bound(1, 1 << 20), ordered=True)
    crew = Crew("udf", Passing(source), source, output, None, pytest.fail, processes=True)
    crew.wanted = 1
    worker = _Worker(None, True)
    assert crew._take_ahead(worker) is None
    for number in range(3):
        source.put(number, one(number))
    with crew._turn:  # as an idle worker holds it
        assert crew._take_ahead(worker) is None
    output.put(0, one(0))
    assert crew._take_ahead(worker) is None
    output.get()
    assert crew._take_ahead(worker) == one(0)
    assert crew._take_ahead(worker) is None  # one is enough
    assert (list(worker.ahead), source.held[0], crew.at_work) == ([(0, one(0))], 2, True)


def test_none_is_taken_ahead_by_one_who_is_to_leave() -> None:
    source, output = (Channel(Bound(9, 1 << 20), ordered=True) for _ in range(2))
    crew = Crew("udf", Passing(source), source, output, None, pytest.fail, processes=True)
    crew._alive[True] = 1
    source.put(0, one(0))
    assert crew._take_ahead(_Worker(None, True)) is None
    assert source.held[0] == 1


def processed(function: Any, *, ordered: bool = True, workers: int = 2, **options: Any) -> Pipeline:
    return Pipeline([Source(range(SAMPLES)), Map(function, name="udf", processes=True, workers=workers, **options)], ordered=ordered)


def test_a_worker_that_leaves_does_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = counted(monkeypatch)
    with nothing_left(), processed(naps) as pipeline:
        seen = []
        for value in pipeline:
            seen.append(value)
            if value % 12 == 0:
                pipeline.set((1, 1 + value // 12 % 3))
    assert seen == list(range(SAMPLES))
    assert max(ahead) == 2


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each call, how many were pending when its answer was waited for."""
    call, seen = ProcessHand._send_ahead, []

    def counts(hand: ProcessHand, process: Any, following: Any) -> None:
        call(hand, process, following)
        seen.append(process.pending)

    monkeypatch.setattr(ProcessHand, "_send_ahead", counts)
    return seen


@settings(max_examples=6)
@given(
    changes=st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), min_size=4, max_size=10),
    ordered=st.booleans(),
    size=st.sampled_from([0, 3, 7]),
)
def test_each_once_through_resizes_moves_and_kills(changes: list[tuple[int, bool, bool]], ordered: bool, size: int) -> None:
    batches = [Batch(size, collate=list, drop_last=False)] if size else []
    stages = [Source(range(SAMPLES)), Map(own_process, name="udf", workers=2), *batches]
    with nothing_left(), Pipeline(stages, ordered=ordered) as pipeline:
        pipeline.set((2,) * len(pipeline.knobs), {"udf": True})
        seen: list[int] = []
        every, steps = max(1, SAMPLES // max(size, 1) // len(changes)), iter(changes)
        for count, item in enumerate(pipeline):
            samples = item if size else [item]
            seen += [value for value, _ in samples]
            if count % every == 0 and (change := next(steps, None)) is not None:
                workers, processes, kills = change
                pipeline.set((workers,) * len(pipeline.knobs), {"udf": processes})
                if kills and samples[-1][1] != os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(samples[-1][1], signal.SIGKILL)
    assert (seen if ordered else sorted(seen)) == list(range(SAMPLES))


def test_left_with_items_ahead_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = counted(monkeypatch)
    with nothing_left(), processed(naps) as first, processed(naps) as second:
        begun = list(itertools.islice(first, 50))
        second.load_state_dict(first.state_dict())
        assert begun + list(second) == list(range(SAMPLES))
    assert max(ahead) == 2


def test_closed_while_one_hangs_and_the_next_waits_behind_it() -> None:
    pipeline = processed(sleeps_at_19_in_a_process, workers=1)
    with nothing_left():
        items = iter(pipeline)
        assert list(itertools.islice(items, 19)) == list(range(19))
        pipeline.close()


@pytest.mark.slow
def test_the_item_that_hangs_is_named_and_not_the_one_behind_it() -> None:
    with nothing_left(), pytest.raises(StageError, match=r"stage 'udf', item 19: its function has not returned within the limit of 2 s"):
        list(processed(sleeps_at_19_in_a_process, workers=1, limit=2.0))


def test_a_worker_whose_process_cannot_be_replaced_does_both_items_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_one_process(monkeypatch)
    ahead = counted(monkeypatch)
    stages = [Source(range(SAMPLES)), Map(DiesOnce((100,), tmp_path), name="udf"), Batch(3, collate=list)]
    with nothing_left(), Pipeline(stages) as pipeline:
        pipeline.set((1,) * len(pipeline.knobs), {"udf": True})
        assert [value for batch in pipeline for value in batch] == list(range(SAMPLES))
    assert max(ahead, default=0) == 2
