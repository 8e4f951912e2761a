"""What else reads a DataLoader finds it in an autotuned one: its attributes, and its part of the data where accelerate divides it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.loaders import Map, Pipeline, Source, autotuned
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler, TensorDataset

READ = (
    "dataset",
    "batch_size",
    "sampler",
    "batch_sampler",
    "drop_last",
    "num_workers",
    "collate_fn",
    "generator",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
DATA = TensorDataset(torch.arange(12))


def numbers(batches: Any) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in batches]


def test_the_loader_s_attributes_are_there() -> None:
    loader = DataLoader(DATA, batch_size=5, shuffle=True, generator=torch.Generator(), drop_last=True)
    with autotuned(loader) as tuned:
        for name in READ:
            assert getattr(tuned, name) is getattr(loader, name), name
        assert len(tuned) == len(loader) == 2
        assert not hasattr(tuned, "no_such")
        assert not hasattr(tuned, "_iterator"), "what is its own is not a part of it"
    with autotuned(DATA) as tuned:
        assert tuned.dataset is DATA
    with autotuned(Pipeline([Source(range(3)), Map(abs)])) as tuned:
        assert not hasattr(tuned, "dataset")


def test_the_epoch_can_be_set_through_it() -> None:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
    with autotuned(DataLoader(DATA, 3, sampler=sampler)) as tuned:
        tuned.sampler.set_epoch(5)
        assert numbers(tuned) == numbers(DataLoader(DATA, 3, sampler=sampler))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class OfTwo(BatchSampler):
    """Every second batch, as accelerate's sampler gives."""

    num_processes = 2

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(super().__iter__())[::2])


class Prepared:
    """What accelerate makes of a DataLoader: it iterates one of its own, moves the batches, and sees one ahead which is the last."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.base_dataloader: Any = DataLoader(loader.dataset, batch_sampler=OfTwo(loader.sampler, loader.batch_size or 1, False))
        self.at_the_end = False

    def __iter__(self) -> Iterator[Any]:
        self.at_the_end = False
        waiting: list[Any] = []
        for (batch,) in self.base_dataloader:
            yield from waiting
            waiting = [batch + 100]
        self.at_the_end = True
        yield from waiting

    def __len__(self) -> int:
        return len(self.base_dataloader)


def prepare(given: Any) -> Any:
    """As `Accelerator.prepare`: what it does not know is returned as it is."""
    return Prepared(given) if isinstance(given, DataLoader) else given


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class PartialState:
        _shared_state: ClassVar[dict[str, int]] = {"num_processes": 2}
        num_processes = 2

    state = ModuleType("accelerate.state")
    state.PartialState = PartialState  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", state)


@pytest.mark.usefixtures("two_processes")
def test_one_that_accelerate_gave_back_undivided_says_so_before_its_first_batch() -> None:
    with autotuned(DataLoader(DATA, 2)) as tuned:
        assert prepare(tuned) is tuned
        with pytest.raises(UsageError, match=r"2 processes, .* not divided .* write autotuned\(accelerator\.prepare\(loader\)\)") as raised:
            iter(tuned)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("two_processes")
def test_one_with_a_part_of_its_own_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    for loader in (
        DataLoader(DATA, 2, sampler=DistributedSampler(DATA, num_replicas=2, rank=1)),
        DataLoader(DATA, batch_sampler=OfTwo(SequentialSampler(DATA), 2, False)),
    ):
        with autotuned(loader) as tuned:
            assert numbers(tuned) == numbers(loader)
    assert not caplog.messages
    with autotuned(DataLoader(Stream(), 2)) as tuned:
        assert numbers(tuned) == [[0, 1], [2, 3]], "a stream may divide itself"
    assert "unless its data set gives each process a part" in caplog.text


@pytest.mark.usefixtures("two_processes")
def test_one_of_a_prepared_loader_gives_what_that_gives() -> None:
    prepared = prepare(DataLoader(DATA, 2))
    expected = numbers(torch.utils.data.default_collate([batch]) for batch in Prepared(DataLoader(DATA, 2)))
    with autotuned(prepared) as tuned:
        for _ in range(2):
            seen = []
            for batch in tuned:
                seen.append(([batch.tolist()], prepared.at_the_end))
            assert [[batch] for (batch,), _ in seen] == expected == [[[100, 101]], [[104, 105]], [[108, 109]]]
            assert [last for _, last in seen] == [False, False, True]
        assert len(tuned) == len(prepared)
        assert tuned.pipeline.observe().stages, "by stages"


def test_without_accelerate_nothing_is_asked() -> None:
    with autotuned(DataLoader(DATA, 6)) as tuned:
        assert len(list(tuned)) == 2
