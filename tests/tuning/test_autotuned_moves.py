"""Moves from threads to processes as a tuner makes them: what a DataLoader gives stays the same, and what cannot be is refused in words."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pipeline_work import nothing_left, own_process
from stoker.engine.errors import UsageError
from stoker.runners.loaders.autotuned import Autotuned, autotuned
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Map, Source
from stoker.runners.loaders.tuning.controller import Decision, Observation
from stoker.runners.loaders.tuning.guard import Guard, GuardOptions
from torch.utils.data import DataLoader, Dataset
from waiting import patient

pytestmark = pytest.mark.usefixtures("roomy")

LONG = patient(60.0)
GIB = 1 << 30


class Moves:
    """Wants a stage in processes, as soon as something is known of its items."""

    name: ClassVar[str] = "moves"

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def decide(self, seen: Observation) -> Decision:
        reading = next(each for each in seen.stages if each.name == self.stage)
        return Decision(seen.values, "it wants to", {} if reading.processes or not reading.items else {self.stage: True})


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)) ** 2, os.getpid()


class Unsendable(Squares):
    def __init__(self) -> None:
        self.lock: Callable[[], Any] = lambda: None


def loader(dataset: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))


def passes(tuned: Autotuned, until: Callable[[], bool]) -> list[list[Any]]:
    """Whole passes, until something has happened."""
    found: list[list[Any]] = []
    end = time.monotonic() + LONG
    while not until():
        assert time.monotonic() < end, "it did not come about"
        found.append(list(tuned))
    return found


def test_a_dataloader_gives_the_same_batches_before_during_and_after() -> None:
    with nothing_left(), autotuned(loader(Squares()), controller=Moves("read"), interval=0.05) as tuned:
        found = passes(tuned, lambda: tuned.pipeline.processes["read"] and not tuned.pipeline.observe().stages[0].starting)
        found.append(list(tuned))
        step = next(step for step in tuned.history if step.moved)
    plain = loader(Squares())
    for batches in found:
        for (mine, _), (theirs, _) in zip(batches, plain, strict=True):
            assert torch.equal(mine, theirs)
    assert {pid for _, pids in found[0][:1] for pid in pids.tolist()} == {os.getpid()}
    assert os.getpid() not in {pid for _, pids in found[-1] for pid in pids.tolist()}
    assert step.moved == {"read": True}
    assert "read 1 in processes" in str(step)


def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    with nothing_left(), autotuned(loader(Unsendable()), controller=Moves("read"), interval=0.05) as tuned:
        passes(tuned, lambda: any(step.refused for step in tuned.history))
        refused = next(step.refused for step in tuned.history if step.refused)
        assert refused.startswith("stage 'read': its function cannot be sent to worker processes")
        assert tuned.pipeline.processes == {}
        assert not any(step.moved for step in tuned.history)


def test_the_guard_has_the_last_word() -> None:
    with nothing_left(), autotuned(loader(Squares()), controller=Moves("read"), interval=0.05, memory=1 << 20) as tuned:
        passes(tuned, lambda: any("read in 1 process " in step.refused for step in tuned.history))
        refused = next(step.refused for step in tuned.history if "read in 1 process " in step.refused)
        assert "refused read in 1 process (given threads): might take" in refused
        assert tuned.pipeline.processes == {"read": False}


def test_a_stage_that_may_not_be_sized_is_not_moved() -> None:
    pipeline = Pipeline([Source(range(2000)), Map(own_process, name="udf")])
    with nothing_left(), autotuned(pipeline, knobs=["read"], controller=Moves("udf"), interval=0.05) as tuned:
        passes(tuned, lambda: len(tuned.history) > 3)
        assert pipeline.processes == {"read": False, "udf": False}


def test_who_goes_on_begins_in_processes() -> None:
    def make() -> Autotuned:
        return autotuned(Pipeline([Source(range(40)), Map(own_process, name="udf")]), controller="fixed")

    with nothing_left(), make() as first, make() as second:
        first.pipeline.set((1, 2), {"udf": True})
        for _ in itertools.islice(first, 3):
            pass
        second.load_state_dict(first.state_dict())
        assert second.pipeline.values == (1, 2)
        assert os.getpid() not in {pid for _, pid in second}


def test_who_goes_on_asks_the_guard_for_its_processes(caplog: pytest.LogCaptureFixture) -> None:
    def make(memory: int | None = None) -> Autotuned:
        return autotuned(Pipeline([Source(range(40)), Map(own_process, name="udf")]), controller="fixed", memory=memory)

    with nothing_left(), make() as first, make(memory=1 << 20) as second:
        first.pipeline.set((1, 2), {"udf": True})
        second.load_state_dict(first.state_dict())
        assert second.pipeline.processes == {"read": False, "udf": False}
    assert "the pipeline does not begin as it was: refused udf in 2 processes (given threads)" in caplog.text


def test_a_limit_for_a_batch_reaches_the_stages() -> None:
    with autotuned(loader(Squares()), limit=7.0) as tuned:
        assert [getattr(stage, "limit", None) for stage in tuned.pipeline.stages] == [7.0, 7.0, None]
    with pytest.raises(UsageError, match=r"limit: give it to the stages of the Pipeline: Map\(function, limit=7.0\)"):
        autotuned(Pipeline([Source(range(3))]), limit=7.0)


# -- the guard alone


def seen(**more: Any) -> Observation:
    from test_tuning_moving import reading, window

    return window(udf=reading(item_bytes=1e5, **more), memory_used=2 * GIB, memory_total=16 * GIB)


def allowed(guard: Guard, wanted: int, shared: int = 0, each: int = 0, **more: Any) -> tuple[int, str]:
    now = seen(**more)
    guard.allow(now, now.values)
    return guard.allow_processes(now, "udf", wanted, (shared, each))


def test_as_many_processes_as_fit_are_allowed() -> None:
    guard = Guard(GuardOptions(fraction=1.0, margin=0.0, worker=GIB))
    assert allowed(guard, 4) == (4, "")
    count, refused = allowed(guard, 100)
    assert 12 <= count <= 14  # 16 GiB less 2 in use and the queues
    assert refused.startswith(f"refused udf in 100 processes (given {count}): might take 104,")


def test_data_that_processes_share_count_once_and_those_that_each_has_for_each() -> None:
    guard = Guard(GuardOptions(fraction=1.0, margin=0.0, worker=GIB // 2))
    alone = allowed(guard, 100)[0]
    assert allowed(guard, 100, shared=4 * GIB)[0] == alone - 8
    assert allowed(guard, 100, each=GIB // 2)[0] == alone // 2


def test_a_process_takes_no_more_than_the_process_that_it_is_a_part_of() -> None:
    guard = Guard(GuardOptions(fraction=1.0, margin=0.0, worker=64 * GIB))
    assert allowed(guard, 100)[0] in (6, 7)


def test_half_of_what_is_left_may_be_copied() -> None:
    guard = Guard(GuardOptions(fraction=1.0, margin=0.0, worker=GIB))
    now = seen()
    assert guard.room(now) <= 7 * GIB
    guard.allow(now, now.values)
    assert 6 * GIB < guard.room(now) <= 7 * GIB  # 16 GiB less 2 in use and the queues
    assert Guard(memory=1 << 20).room(now) == 0


def test_what_threads_took_says_nothing_of_processes() -> None:
    guard = Guard(GuardOptions(worker=GIB))
    for workers in (1, 200):
        now = seen(workers=workers)
        guard.allow(now, now.values)
    now = seen(workers=2, processes=True)
    given, refused = guard.allow(now, (200,))
    assert given[0] < 50
    assert "refused udf 200 workers" in refused


def test_an_array_of_floats_is_not_copied_to_be_sent() -> None:
    data = np.zeros(1 << 20)
    with Pipeline([Source(data)]) as pipeline:
        assert pipeline.prepare("read")[0] == data.nbytes
