"""A stage whose work goes from threads to processes and back while it runs: nothing is lost, whatever happens meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_work import (
    Broken,
    CannotBeLoaded,
    FailsAt,
    KillsItself,
    Weighty,
    is_left_there,
    link,
    nothing_left,
    own_process,
    returns_a_generator,
    returns_a_lambda,
    returns_a_lock,
    returns_a_nested_tensor,
    same,
    sleeps_in_a_process,
    uneven,
)
from stoker.engine.errors import StokerError, UsageError
from stoker.runners.loaders.kinds import Kinds
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.staged import staged
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source
from stoker.runners.loaders.workers import passes
from stoker.runners.loaders.workers.chains import Chain
from stoker.runners.loaders.workers.channel import Item
from stoker.runners.loaders.workers.faults import StageError, Stopped
from stoker.runners.loaders.workers.threads import ThreadHand
from stoker.runners.loaders.workers.worker_processes import ProcessPool, WorkerProcess
from torch.utils.data import DataLoader, Dataset
from waiting import patient

LONG = patient(60.0)


def mapped(function: Any, size: int = 60, **options: Any) -> Pipeline:
    return Pipeline([Source(range(size)), Map(function, name="udf", **options)], queue_items=4)


def moved_at(pipeline: Pipeline, moves: dict[int, tuple[int, bool]]) -> list[Any]:
    """One pass; behind so many items, so many workers of that kind."""
    seen = []
    for item in pipeline:
        seen.append(item)
        if (move := moves.get(len(seen))) is not None:
            pipeline.set((1, move[0]), {"udf": move[1]})
    return seen


def meanwhile() -> Iterator[None]:
    """Until a process that starts must long be there: how many items pass meanwhile depends on how busy the machine is."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        yield


def test_there_and_back_and_in_order() -> None:
    with nothing_left(), mapped(own_process, 10**9) as pipeline:
        assert pipeline.processes == {"read": False, "udf": False}
        items = iter(pipeline)
        assert next(items) == (0, os.getpid())
        pipeline.set((1, 2), {"udf": True})
        for _ in meanwhile():
            if (last := next(items))[1] != os.getpid():
                break
        assert pipeline.processes == {"read": False, "udf": True}
        pipeline.set((1, 3), {"udf": False})
        for _ in meanwhile():
            before, last = last, next(items)
            assert last[0] == before[0] + 1
            if last[1] == os.getpid():
                break
        assert last[1] == os.getpid()


def test_after_the_way_back_no_process_is_kept() -> None:
    with nothing_left(), mapped(own_process) as pipeline:
        seen = moved_at(pipeline, {5: (2, True), 50: (2, False)})
        assert [value for value, _ in seen] == list(range(60))
        assert all(pid == os.getpid() for _, pid in pipeline)


def test_the_next_pass_begins_where_the_work_was_moved_to() -> None:
    with nothing_left(), mapped(own_process) as pipeline:
        pipeline.set((1, 2), {"udf": True})
        assert os.getpid() not in {pid for _, pid in pipeline}


def test_threads_work_until_the_processes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, gate = ProcessPool.acquire, threading.Event()

    def waits(pool: ProcessPool) -> WorkerProcess:
        assert gate.wait(LONG)
        return acquire(pool)

    monkeypatch.setattr(ProcessPool, "acquire", waits)
    with nothing_left(), mapped(own_process, 10**9, workers=3) as pipeline:
        items = iter(pipeline)
        next(items)
        pipeline.set((1, 2), {"udf": True})
        assert {next(items)[1] for _ in range(100)} == {os.getpid()}
        udf = pipeline.observe().stages[1]
        assert (udf.processes, udf.starting, pipeline.values) == (True, 2, (1, 2))
        gate.set()
        assert any(next(items)[1] != os.getpid() for _ in meanwhile())


steps = st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), max_size=30)


@pytest.mark.slow
@settings(max_examples=12)
@given(steps=steps, ordered=st.booleans(), buffer=st.integers(1, 40), first=st.integers(1, 3))
def test_any_sequence_of_sizes_and_moves_keeps_each_sample_once_and_in_its_place(
    steps: list[tuple[int, bool, bool]], ordered: bool, buffer: int, first: int
) -> None:
    stages = [
        Source(range(60), workers=first),
        Shuffle(buffer),
        Map(uneven, name="udf", workers=first),
        Batch(3, collate=list),
        Prefetch(1),
    ]
    with nothing_left(), Pipeline(stages, ordered=ordered, queue_items=5) as pipeline:
        for _ in range(2):
            seen, changes = [], iter(steps)
            for item in pipeline:
                seen += item
                if (change := next(changes, None)) is not None:
                    count, udf, batch = change
                    pipeline.set((count, count, 5 - count, 1), {"udf": udf, "batch": batch})
            assert sorted(seen) == list(range(60))
            if ordered:
                with Pipeline([stages[0], stages[1]]) as plain:
                    assert [*seen] == in_pass(plain, pipeline)


def in_pass(plain: Pipeline, pipeline: Pipeline) -> list[Any]:
    """What the stages before the first Map give in the pass that has just ended."""
    number = pipeline.state_dict()["pass"] - 1
    plain.load_state_dict(plain.state_dict() | {"pass": number})
    return list(plain)


# -- what goes wrong meanwhile


def test_a_worker_that_is_killed_during_a_move(tmp_path: Path) -> None:
    """It is done again by another process, with which the stage goes on."""
    with nothing_left(), mapped(KillsItself(40, once=tmp_path / "died"), 10**9) as pipeline:
        items = iter(pipeline)
        assert next(items) == 0
        (tmp_path / "died").touch()  # not in this process
        pipeline.set((1, 2), {"udf": True})
        pids = wait_for_processes(pipeline, items)
        os.kill(pids[0], signal.SIGKILL)
        rest = [next(items) for _ in range(200)]
        assert rest == list(range(rest[0], rest[0] + 200))


def wait_for_processes(pipeline: Pipeline, items: Iterator[Any]) -> list[int]:
    """Take items until the processes of the stage are there."""
    until = time.monotonic() + LONG
    while pipeline.observe().stages[1].starting and time.monotonic() < until:
        next(items)
    return pipeline._kinds.pool(1).pids()


@pytest.mark.parametrize("killed", [1, 2], ids=["one of two", "both"])
def test_a_killed_process_that_cannot_be_replaced_is_done_without(killed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its item is done in a thread: nothing is lost, and the job goes on."""

    def refuses(pool: ProcessPool) -> WorkerProcess:
        raise StokerError("no more processes")

    with nothing_left(), mapped(own_process, 10**9) as pipeline:
        items = iter(pipeline)
        next(items)
        pipeline.set((1, 2), {"udf": True})
        pids = wait_for_processes(pipeline, items)
        last = next(items)
        monkeypatch.setattr(ProcessPool, "acquire", refuses)
        for pid in pids[:killed]:
            os.kill(pid, signal.SIGKILL)
        for _ in meanwhile():
            before, last = last, next(items)
            assert last[0] == before[0] + 1
            if pipeline.processes == ({"read": False, "udf": True} if killed == 1 else {"read": False}) and last[1] not in pids[:killed]:
                break
        rest = [next(items) for _ in range(200)]
        udf = pipeline.observe().stages[1]
    assert [value for value, _ in rest] == list(range(last[0] + 1, last[0] + 201))
    assert {pid for _, pid in rest[100:]} == ({pids[1]} if killed == 1 else {os.getpid()})
    assert (udf.processes, udf.stays) == ((True, "") if killed == 1 else (False, "no more processes"))


def test_a_killed_process_that_cannot_be_replaced_is_an_error_where_processes_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, calls = ProcessPool.acquire, itertools.count()

    def refuses(pool: ProcessPool) -> WorkerProcess:
        if next(calls):
            raise StokerError("no more processes")
        return acquire(pool)

    monkeypatch.setattr(ProcessPool, "acquire", refuses)
    with nothing_left(), pytest.raises(StokerError, match="no more processes"):
        list(mapped(KillsItself(5), processes=True))


def test_a_function_that_raises_during_a_move() -> None:
    with nothing_left(), pytest.raises(Broken) as raised:
        moved_at(mapped(FailsAt(30, Broken("bad"))), {2: (3, True)})
    assert raised.value.__notes__[-1] == "in stage 'udf' of the pipeline, item 30"


def test_a_function_that_hangs_in_its_process_is_an_error_where_it_has_a_limit() -> None:
    pipeline = mapped(sleeps_in_a_process, 10**9, limit=0.5)
    with nothing_left(), pytest.raises(StageError, match=r"stage 'udf', item \d+: its function has not returned within the limit of 0.5 s"):
        for count, _ in enumerate(pipeline):
            if count == 3:
                pipeline.set((1, 2), {"udf": True})


def test_a_function_that_hangs_in_a_thread_does_not_keep_the_others_from_moving() -> None:
    hangs = threading.Event()

    class HangsHere:
        def __call__(self, value: int) -> tuple[int, int]:
            assert value != 5 or hangs.wait(LONG)
            return own_process(value)

        def __reduce__(self) -> Any:
            return _own_process, ()

    with nothing_left(), Pipeline([Source(range(60)), Map(HangsHere(), name="udf", workers=2)], ordered=False) as pipeline:
        items = iter(pipeline)
        seen = [next(items) for _ in range(5)]
        pipeline.set((1, 2), {"udf": True})
        while len(seen) < 59:
            seen.append(next(items))
        hangs.set()
        seen += items
    assert sorted(value for value, _ in seen) == list(range(60))


def _own_process() -> Callable[[int], tuple[int, int]]:
    return own_process


def test_closing_during_a_move_ends_all() -> None:
    pipeline = mapped(sleeps_in_a_process, 10**9, workers=2)
    with nothing_left():
        items = iter(pipeline)
        next(items)
        pipeline.set((1, 2), {"udf": True})
        for _ in range(20):
            next(items)
        pipeline.close()


def test_what_cannot_be_sent_stays_in_threads_and_the_reason_is_kept() -> None:
    with nothing_left(), mapped(lambda value: value) as pipeline:
        items = iter(pipeline)
        next(items)
        with pytest.raises(UsageError, match="stage 'udf': its function cannot be sent to worker processes"):
            pipeline.set((1, 2), {"udf": True})
        assert list(items) == list(range(1, 60))
        udf = pipeline.observe().stages[1]
    assert (udf.processes, udf.movable) == (False, False)
    assert "cannot be sent to worker processes" in udf.stays


def test_what_no_process_can_load_goes_back_to_threads(caplog: pytest.LogCaptureFixture) -> None:
    with nothing_left(), mapped(CannotBeLoaded(), 10**9) as pipeline:
        items = iter(pipeline)
        pipeline.set((1, 3), {"udf": True})
        until = time.monotonic() + LONG
        count = 0
        while pipeline.observe().stages[1].movable and time.monotonic() < until:
            assert next(items) == count
            count += 1
        udf = pipeline.observe().stages[1]
        assert [next(items) for _ in range(20)] == list(range(count, count + 20))
    assert (udf.processes, udf.movable) == (False, False)
    assert "cannot be loaded in a worker process: no such file" in udf.stays
    assert "the stage stays in threads" in caplog.text


@pytest.mark.parametrize("function", [returns_a_lock, returns_a_lambda, returns_a_generator, returns_a_nested_tensor])
def test_what_gives_results_that_cannot_be_sent_goes_back_to_threads(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It ended the pass at the item that the first process was given."""
    with nothing_left(), mapped(function, 10**9) as pipeline:
        items = iter(pipeline)
        pipeline.set((1, 3), {"udf": True})
        until = time.monotonic() + LONG
        seen = []
        while pipeline.observe().stages[1].movable and time.monotonic() < until:
            seen.append(next(items))
        seen += [next(items) for _ in range(30)]
        udf = pipeline.observe().stages[1]
    assert (udf.processes, udf.movable) == (False, False)
    assert "the function's return value cannot be sent from a worker process" in udf.stays
    assert caplog.text.count("the stage stays in threads") == 1
    if function is returns_a_lambda:
        assert [value() for value in seen] == list(range(len(seen)))


def test_what_is_given_items_that_cannot_be_sent_goes_back_to_threads(caplog: pytest.LogCaptureFixture) -> None:
    stages = [Source(range(10**9)), Map(returns_a_lambda, name="make"), Map(is_left_there, name="udf")]
    with nothing_left(), Pipeline(stages, queue_items=4) as pipeline:
        items = iter(pipeline)
        pipeline.set((1, 1, 3), {"udf": True})
        until = time.monotonic() + LONG
        while pipeline.observe().stages[2].movable and time.monotonic() < until:
            assert next(items) == os.getpid()
        assert [next(items) for _ in range(30)] == [os.getpid()] * 30
        udf = pipeline.observe().stages[2]
    assert "an item cannot be sent to a worker process" in udf.stays
    assert caplog.text.count("the stage stays in threads") == 1


def test_a_loader_whose_collate_gives_what_cannot_be_sent_stays_in_threads(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Numbers(), batch_size=2, collate_fn=returns_a_generator)
    with nothing_left(), staged(loader) as pipeline:
        items = iter(pipeline)
        pipeline.set((2, 1, 4), {"read": True})
        until = time.monotonic() + LONG
        seen = []
        while pipeline.observe().stages[0].movable and time.monotonic() < until:
            seen += next(items)
        for batch in itertools.islice(items, 30):
            seen += batch
        assert not pipeline.observe().stages[0].movable
    assert seen == [[2 * n, 2 * n + 1] for n in range(len(seen))]
    assert caplog.text.count("the stage stays in threads") == 1


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        return index


def test_where_no_process_can_be_started_the_work_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(pool: ProcessPool) -> WorkerProcess:
        raise StokerError("no more processes")

    monkeypatch.setattr(ProcessPool, "acquire", refuses)
    with nothing_left(), mapped(uneven) as pipeline:
        assert moved_at(pipeline, {1: (4, True)}) == list(range(60))
        assert pipeline.processes == {"read": False}


def test_a_process_that_comes_as_the_stage_goes_back_loses_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot be started; while the stage is put back into threads, of which none is there yet, the other process comes."""
    hands, going_back, through = itertools.count(), threading.Event(), threading.Event()

    class Killed:
        def __init__(self, _: ProcessPool, *, apart: bool) -> None:
            if next(hands) == 0:
                raise StokerError("no more processes")
            assert going_back.wait(LONG)

        def call(self, item: Item) -> Any:
            raise Stopped  # its pool has been ended

        def let_go(self, *, drained: bool) -> None:
            through.set()

    class Late(ThreadHand):
        def __init__(self, function: Callable[[Any], Any], *unread: Any) -> None:
            assert function is not same or through.wait(LONG)
            super().__init__(function, *unread)

    def told(kinds: Kinds, index: int, why: str) -> None:
        going_back.set()
        keep(kinds, index, why)

    keep = Kinds.keep_in_threads
    monkeypatch.setattr(passes, "ProcessHand", Killed)
    monkeypatch.setattr(passes, "ThreadHand", Late)
    monkeypatch.setattr(Kinds, "keep_in_threads", told)
    with nothing_left(), Pipeline([Source(range(60)), Map(same, name="udf")], ordered=False) as pipeline:
        pipeline.set((1, 2), {"udf": True})
        assert sorted(pipeline) == list(range(60))


def test_threads_asked_for_where_there_are_threads_are_no_error() -> None:
    """A tuner may ask for them when the stage has just been put back."""
    with nothing_left(), mapped(lambda value: value) as pipeline:
        with pytest.raises(UsageError, match="cannot be sent"):
            pipeline.set((1, 2), {"udf": True})
        pipeline.set((1, 2), {"udf": False})
        assert pipeline.values == (1, 2)
        with pytest.raises(UsageError, match=r"^stage 'udf': its function cannot be sent"):
            pipeline.prepare("udf")


@pytest.mark.parametrize(
    ("stages", "name"),
    [
        ([Source(range(3)), Map(same, name="udf", processes=False)], "udf"),
        ([Source(range(3)), Map(same, name="udf", processes=True)], "udf"),
        ([Source(lambda: iter(range(3))), Map(same, name="udf")], "read"),
        ([Source(range(3)), Shuffle(2), Map(same, name="udf")], "shuffle"),
    ],
    ids=["threads asked for", "processes asked for", "an iterable", "a shuffle"],
)
def test_what_says_itself_who_works_is_not_moved(stages: list[Any], name: str) -> None:
    with nothing_left(), Pipeline(stages) as pipeline:
        assert name not in pipeline.processes
        with pytest.raises(UsageError, match=f"stage '{name}': its 'processes' option fixes the kind of its workers"):
            pipeline.prepare(name)


def test_a_stage_that_is_not_there() -> None:
    with mapped(same) as pipeline, pytest.raises(UsageError, match="no stage is called 'decode'; there are read, udf"):
        pipeline.set((1, 1), {"decode": True})


# -- data in memory


def test_processes_share_one_copy_of_the_data_and_write_to_copies_of_their_own() -> None:
    data = Weighty(64)
    with nothing_left(), Pipeline([Source(data, processes=True, workers=3)]) as pipeline:
        seen = list(pipeline)
        assert len({where for _, _, where in seen}) == 1
        assert seen[0][2].startswith("p ")
        assert [value for value, _, _ in seen] == list(range(64))
        assert data.data[:64].tolist() == list(range(64))


def test_what_would_be_shared_is_known_before_a_process_is_there() -> None:
    with nothing_left(), Pipeline([Source(Weighty(4, mib=8))]) as pipeline:
        shared, each = pipeline.prepare("read")
        assert shared == 8 << 20
        assert 0 < each < 10_000
        assert pipeline._kinds.pool(0).pids() == []


def test_data_that_there_is_no_room_to_copy_are_not_kept_and_may_be_tried_again() -> None:
    texts = ["x" * 1000 + str(number) for number in range(4000)]
    with nothing_left(), Pipeline([Source(texts)]) as pipeline:
        with pytest.raises(UsageError, match="stage 'read': a copy of its function's data takes more than the 1 MiB of memory"):
            pipeline.prepare("read", 1 << 20)
        assert pipeline.processes == {"read": False}
        assert pipeline.prepare("read", 8 << 20)[1] > 4_000_000
        pool = weakref.ref(pipeline._kinds.pool(0))
        pipeline.forget("read")
        assert pool() is None
        assert pipeline.prepare("read")[1] > 4_000_000


def test_what_holds_a_tensor_of_a_device_is_not_moved() -> None:
    with nothing_left(), Pipeline([Source(range(3)), Map(OnDevice(), name="udf")]) as pipeline:
        with pytest.raises(UsageError, match="cannot be sent to worker processes: it holds a tensor on cuda:0"):
            pipeline.prepare("udf")
        assert pipeline.processes == {"read": False}
        assert list(pipeline) == [0, 1, 2]


class OnDevice:
    """As a function that holds a tensor in the memory of a GPU."""

    def __init__(self) -> None:
        self.weight = torch.ones(2).as_subclass(Elsewhere)

    def __call__(self, value: int) -> int:
        return value


class Elsewhere(torch.Tensor):
    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


def test_data_that_a_late_process_was_sent_after_the_way_back_are_let_go() -> None:
    pool = ProcessPool(Chain((Weighty(4, mib=1).__getitem__,), ("read",)))
    with nothing_left():
        pool.keep_spare(True)
        pool.keep_spare(False)
        before = memory_files()
        late = pool.acquire()
        assert memory_files() > before
        pool.release(late, keep=True)
        assert memory_files() <= before


def memory_files() -> set[Path]:
    """Descriptors of this process that are of memory files of ours."""
    return {file for file in Path("/proc/self/fd").iterdir() if "memfd:stoker" in link(file)}


def test_data_that_changed_between_two_passes_are_sent_anew() -> None:
    data = Weighty(4, mib=1)
    with nothing_left(), Pipeline([Source(data, processes=True)]) as pipeline:
        assert [value for value, _, _ in pipeline] == [0, 1, 2, 3]
        data.data = data.data + 10
        assert [value for value, _, _ in pipeline] == [10, 11, 12, 13]


def test_data_that_changed_while_no_process_waited_are_sent_anew() -> None:
    """Before the first pass, and after one that was left early."""
    data = Weighty(4, mib=1)
    with nothing_left(), Pipeline([Source(data, processes=True)]) as pipeline:
        for change in (10, 20):
            data.data = np.arange(1 << 18, dtype=np.float32) + change
            assert next(iter(pipeline))[0] == change
            pipeline.close()


class Words:
    """A data set that is pickled word by word."""

    def __init__(self) -> None:
        self.words = ["first"] * 40

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.words[index], os.getpid()


def test_data_that_have_outgrown_the_memory_for_them_are_read_in_threads_again(caplog: pytest.LogCaptureFixture) -> None:
    data = Words()
    with nothing_left(), Pipeline([Source(data, name="read")]) as pipeline:
        pipeline.prepare("read", 10_000)
        pipeline.set((1,), {"read": True})
        assert os.getpid() not in {pid for _, pid in pipeline}
        data.words = [f"{index:01000}" for index in range(40)]
        assert list(pipeline) == [(word, os.getpid()) for word in data.words]
        assert "'read': a copy of its function's data has grown beyond the memory" in pipeline.observe().stages[0].stays
    assert "it goes on in threads" in caplog.text
