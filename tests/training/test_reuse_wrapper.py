"""`reuse(loader)`: what the plain loader gives, each sample r times a pass, and exact when it is taken up again."""

from __future__ import annotations

import math
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import through_a_file
from stoker.engine.errors import UsageError
from stoker.runners.loaders.autotuned import autotuned
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.reuse.wrapper import ReusingLoader, reuse
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Source
from stoker.runners.train import rng
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset


class Squares(Dataset[Any]):
    """Sample i is (i, i * i); ``noisy``: and a random number drawn when it is decoded."""

    def __init__(self, length: int, *, noisy: bool = False) -> None:
        self.length, self.noisy = length, noisy
        self.decoded: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.decoded.append(index)
        number = torch.tensor(index)
        return (number, number * number, torch.rand(())) if self.noisy else (number, number * number)


class Counting(IterableDataset[Any]):
    """A stream: each worker has its own part of it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id if info else 0, self.length, info.num_workers if info else 1))


def tossed(sample: Any) -> Any:
    """An augmentation that draws from all three generators."""
    return (*sample, torch.rand(()), random.random())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def numbers(batches: Any) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in batches]


def saved(loader: ReusingLoader) -> dict[str, Any]:
    return through_a_file(loader.state_dict())


@given(st.integers(1, 60), st.integers(1, 9), st.booleans(), st.booleans())
def test_one_use_is_sample_for_sample_the_plain_loader(samples: int, batch: int, shuffle: bool, drop_last: bool) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Squares(samples, noisy=True), batch_size=batch, shuffle=shuffle, drop_last=drop_last)

    rng.seed_all(5)
    plain = [*loader(), *loader()]
    rng.seed_all(5)
    wrapped = reuse(loader(), repeat=1)
    twice = [*wrapped, *wrapped]
    assert same(twice, plain)
    assert 2 * len(wrapped) == len(twice) == wrapped.steps
    assert wrapped.stage == 2


@given(st.integers(1, 60), st.integers(1, 9), st.integers(2, 5), st.booleans())
def test_every_pass_uses_every_sample_exactly_r_times(samples: int, batch: int, repeat: int, shuffle: bool) -> None:
    data = Squares(samples)
    loader = reuse(DataLoader(data, batch_size=batch, shuffle=shuffle), repeat=repeat)
    for number in (1, 2):
        length = len(loader)
        batches = numbers(loader)
        assert len(batches) == length
        assert Counter(index for got in batches for index in got) == dict.fromkeys(range(samples), repeat)
        assert all(len(set(got)) == len(got) for got in batches)
        assert loader.fresh == number * samples
    assert len(data.decoded) == 2 * samples


SOURCES = {
    "loader": lambda: DataLoader(Squares(16, noisy=True), batch_size=4, shuffle=True, generator=torch.Generator()),
    "stream": lambda: DataLoader(Counting(16), batch_size=4),
    "iterable": lambda: [(torch.tensor(index),) for index in range(16)],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("augment", ["each-use", "once"])
@pytest.mark.parametrize("stop", [0, 5, 12, 15])
def test_a_run_taken_up_again_anywhere_gives_the_identical_rest(source: str, augment: Any, stop: int) -> None:
    transform = tossed if source != "stream" else None

    def loader() -> ReusingLoader:
        return reuse(SOURCES[source](), 3, batch_size=4, transform=transform, augment=augment, seed=11)

    rng.seed_all(3)
    first = loader()
    batches = ([batch, list(first.uses)] for _ in range(2) for batch in first)
    for _ in range(stop):
        next(batches)
    state = saved(first)
    rest = list(batches)
    again = loader()
    rng.seed_all(99)
    again.load_state_dict(state)
    after_first_pass = [[batch, list(again.uses)] for batch in again]
    assert same([batch for batch, _ in after_first_pass], [batch for batch, _ in rest[: len(after_first_pass)]])
    assert [uses for _, uses in after_first_pass] == [uses for _, uses in rest[: len(after_first_pass)]]
    assert again.fresh == first.fresh - 16 * (2 - again.epochs)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("at", [0, 1, 7, 12])
def test_after_the_switch_the_pass_ends_with_the_samples_not_used_yet_and_the_next_are_plain(source: str, at: int) -> None:
    loader = reuse(SOURCES[source](), 3, batch_size=4)
    used: Counter[int] = Counter()
    for step, batch in enumerate(loader, 1):
        used.update(numbers([batch])[0])
        if step == at:
            before = set(used)
            loader.switch()
            state = saved(loader)
            again = reuse(SOURCES[source](), 3, batch_size=4)
            again.load_state_dict(state)
            others = [index for got in numbers(again) for index in got]
            assert again.stage == 2
            assert sorted(others) == sorted(set(range(16)) - before)
    assert set(used) == set(range(16))
    loader.switch()
    assert (loader.stage, len(loader)) == (2, 4)
    assert Counter(index for got in numbers(loader) for index in got) == dict.fromkeys(range(16), 1)
    assert loader.fresh == 32


def test_a_switch_within_a_pass_uses_nothing_twice_from_then_on() -> None:
    loader = reuse(DataLoader(Squares(40), batch_size=4, shuffle=True), 3)
    batches = iter(loader)
    before = {index for got in numbers(next(batches) for _ in range(6)) for index in got}
    loader.switch()
    after = [index for got in numbers(batches) for index in got]
    assert len(after) == len(set(after))
    assert sorted(before | set(after)) == list(range(40))
    assert not before & set(after)


def test_workers_decode_and_give_the_same_as_none() -> None:
    def batches(workers: int) -> list[Any]:
        rng.seed_all(1)
        data = DataLoader(Squares(30, noisy=True), batch_size=4, shuffle=True, num_workers=workers)
        return list(reuse(data, 3, transform=tossed, seed=2))

    assert same(batches(2), batches(0))


def test_a_seed_saves_and_restores_the_global_generators_by_batches_and_not_by_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes ten times as long as to seed, and many times as long as a small augmentation."""
    saved_states, get = [], torch.get_rng_state
    monkeypatch.setattr(torch, "get_rng_state", lambda: saved_states.append(1) or get())
    loader = reuse(DataLoader(Squares(64, noisy=True), batch_size=16), 3, transform=tossed, seed=2)
    rng.seed_all(4)
    before = random.random(), torch.rand(())
    rng.seed_all(4)
    batches = list(loader)
    assert len(batches) == 12
    assert len(saved_states) <= 12 + 64 // 16 + 4, "of uses there are 192"
    assert (random.random(), torch.rand(())) == before
    drawn = torch.cat([batch[3] for batch in batches])
    assert len(set(drawn.tolist())) == 192, "each use draws anew"


def test_a_stream_divided_among_workers_is_used_r_times() -> None:
    got = numbers(reuse(DataLoader(Counting(30), batch_size=4, num_workers=2), 3))
    assert Counter(index for batch in got for index in batch) == dict.fromkeys(range(30), 3)


def test_augmentation_differs_at_each_use_or_is_made_once() -> None:
    data = TensorDataset(torch.arange(20))

    def looks(augment: Any) -> set[int]:
        seen: dict[int, set[float]] = {}
        for index, _, drawn in reuse(data, 3, batch_size=4, transform=tossed, augment=augment):
            for one, number in zip(index.tolist(), drawn.tolist(), strict=True):
                seen.setdefault(one, set()).add(number)
        return {len(numbers) for numbers in seen.values()}

    assert looks("each-use") == {3}
    assert looks("once") == {1}


def test_first_uses_of_a_batch_are_told() -> None:
    loader = reuse(Squares(40), 3, batch_size=4)
    seen: set[int] = set()
    for batch in loader:
        fresh = {index for index, use in zip(numbers([batch])[0], loader.uses, strict=True) if use == 0}
        assert fresh == set(numbers([batch])[0]) - seen
        seen |= set(numbers([batch])[0])


def test_ranks_have_their_part_and_another_order_each_epoch() -> None:
    data = Squares(24)
    loaders = [reuse(DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=rank)), 2) for rank in range(2)]
    orders = []
    for epoch in (0, 1):
        for loader in loaders:
            loader.set_epoch(epoch)
        parts = [[index for got in numbers(loader) for index in got] for loader in loaders]
        orders.append(parts)
        assert Counter(parts[0] + parts[1]) == dict.fromkeys(range(24), 2)
        assert not set(parts[0]) & set(parts[1])
    assert set(orders[0][0]) != set(orders[1][0])
    iterator = iter(loaders[0])
    next(iterator)
    again = reuse(DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=0)), 2)
    again.load_state_dict(saved(loaders[0]))
    assert numbers(again) == numbers(iterator)


def test_memory_is_bounded_in_bytes_for_streams_of_growing_samples() -> None:
    samples = [torch.zeros(size, dtype=torch.uint8) for size in range(1, 40)]
    loader = reuse(samples, 3, batch_size=1, shuffle_buffer=30, memory=2000)
    seen: Counter[int] = Counter()
    for batch in loader:
        seen[batch.shape[1]] += 1
        assert loader._buffer.held_bytes <= 2000
    assert seen == dict.fromkeys(range(1, 40), 3)


def test_an_iterator_gives_one_pass_only() -> None:
    loader = reuse(iter([1, 2, 3, 4]), 2, batch_size=2)
    assert sum(len(batch) for batch in loader) == 8
    with pytest.raises(UsageError, match="an iterator gives its samples once"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat": 0}, r"reuse\.repeat: 0 uses"),
        ({"shuffle_buffer": 3}, r"reuse\.shuffle_buffer: 3 samples hold less than one batch"),
        ({"augment": "twice"}, r"reuse\.augment: 'twice'"),
        ({"batch_size": None}, "batch_size: a data set"),
        ({"memory": 0}, r"reuse\.memory: 0 bytes"),
        ({"repeat": 10**9}, r"reuse\.repeat: 1000000000 uses of a sample are not possible; give 1 \(no reuse\) to 1000$"),
        ({"repeat": None}, r"reuse\.repeat: None is not a whole number"),
        ({"repeat": True}, r"reuse\.repeat: True is not a whole number"),
        ({"batch_size": 0}, r"reuse\.batch_size: 0 samples make no batch"),
        ({"seed": 1.5}, r"reuse\.seed: 1\.5 is not a whole number"),
        ({"transform": 3}, r"reuse\.transform: 3 cannot be called"),
        ({"data": 7}, r"reuse: int is neither a DataLoader nor a data set"),
    ],
)
def test_settings_that_cannot_work_are_one_line_that_names_the_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reuse(**({"data": Squares(10), "batch_size": 4} | options))


def test_a_state_with_reuse_is_not_loaded_without() -> None:
    loader = reuse(Squares(10), 3, batch_size=2)
    next(iter(loader))
    with pytest.raises(UsageError, match=r"reuse\.repeat"):
        reuse(Squares(10), 1, batch_size=2).load_state_dict(saved(loader))


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 14), st.integers(2, 4), st.booleans())
def test_the_length_is_right_for_small_buffers_too(samples: int, batch: int, more: int, repeat: int, drop_last: bool) -> None:
    loader = reuse(DataLoader(Squares(samples), batch_size=batch, drop_last=drop_last), repeat, batch + more, seed=3)
    for _ in range(2):
        before = len(loader)
        batches = iter(loader)
        within = len(loader)
        assert before == within == sum(1 for _ in batches)


def test_the_length_where_the_last_batches_are_short() -> None:
    lengths = [len(reuse(DataLoader(Squares(41), batch_size=4), 3, shuffle_buffer=size)) for size in (4, 5, 12)]
    assert lengths == [33, 33, 31]
    assert len(reuse(DataLoader(Squares(1), batch_size=4), 3)) == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_no_worker_process_is_left(persistent: bool) -> None:
    def loader() -> ReusingLoader:
        plain = DataLoader(Squares(40), batch_size=4, num_workers=2, persistent_workers=persistent)
        return reuse(plain, repeat=2, seed=1)

    others = set(multiprocessing.active_children())

    def own() -> int:
        return len(set(multiprocessing.active_children()) - others)

    expected = numbers(loader())
    with loader() as left:
        for _ in left:
            assert own() == 2
            break
        if not persistent:
            assert own() == 0, "as of a plain loader whose loop was left"
        state = saved(left)
        batches = iter(left)
        next(batches)
    assert own() == 0
    with pytest.raises(RuntimeError, match="given up by close"):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(state)
    assert numbers(resumed) == expected[1:]
    resumed.close()
    assert len(numbers(left)) == 20, "another pass may begin"
    left.close()
    assert own() == 0


def squared(sample: int) -> int:
    return sample * sample


@pytest.mark.parametrize("tuned", [False, True], ids=["pipeline", "autotuned"])
def test_samples_of_a_pipeline_are_reused(tuned: bool) -> None:
    pipeline = Pipeline([Source(list(range(12))), Map(squared, workers=2), Prefetch(1)])
    batches = reuse(autotuned(pipeline, controller="fixed") if tuned else pipeline, 2, batch_size=4)
    with pipeline:
        for _ in range(2):
            seen = Counter(int(sample) for batch in batches for sample in batch)
            assert seen == Counter({number * number: 2 for number in range(12)})
        batches.switch()
        assert sorted(int(sample) for batch in batches for sample in batch) == [number * number for number in range(12)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pipeline([Source(list(range(9))), Batch(3)]),
        lambda: autotuned(Pipeline([Source(list(range(9))), Batch(3)])),
        lambda: autotuned(DataLoader(list(range(9)), batch_size=3)),
        lambda: autotuned(DataLoader(list(range(9)), batch_size=3), processes=True),
    ],
    ids=["pipeline", "autotuned", "loader", "processes"],
)
def test_batches_of_a_pipeline_are_refused_with_the_remedy(make: Any) -> None:
    with pytest.raises(UsageError, match=r"^reuse: the (pipeline|loader) gives batches.*without Batch.*batch_size=") as caught:
        reuse(make(), batch_size=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"repeat": 2.5}, "repeat"), ({"memory": "4GiB"}, "memory"), ({"shuffle_buffer": 7.5}, "shuffle_buffer")],
    ids=["repeat", "memory", "buffer"],
)
def test_what_is_no_whole_number_is_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=rf"^reuse\.{field}: .* is not a whole number"):
        reuse(list(range(9)), batch_size=3, **wrong)


def test_autotuned_names_a_memory_that_is_no_number() -> None:
    with pytest.raises(UsageError, match=r"^memory: '4GiB' is not a whole number of bytes"):
        autotuned(DataLoader(list(range(9))), memory="4GiB")  # type: ignore[arg-type,type-var]


@pytest.mark.parametrize("seed", [None, 3])
def test_what_the_transform_raises_names_the_sample(seed: int | None) -> None:
    def fails(sample: Any) -> Any:
        raise ValueError("no face found")

    with pytest.raises(ValueError, match="no face found") as caught:
        next(iter(reuse(Squares(20), batch_size=4, transform=fails, seed=seed)))
    (note,) = caught.value.__notes__
    assert note.startswith("in the transform of the sample at position ") and note.endswith("of a pass of the data, its use 1")


def test_ragged_samples_are_named() -> None:
    def grown(sample: Any) -> Any:
        return torch.zeros(int(sample[0]) + 1)

    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(iter(reuse(Squares(4), batch_size=4, transform=grown)))
    assert sorted(caught.value.__notes__[0]) == sorted("collating the samples at positions 0, 1, 2, 3 of a pass of the data")


def test_what_is_reused_may_be_augmented_in_the_stages_of_a_pipeline() -> None:
    samples = reuse(DataLoader(Squares(50), batch_size=8, shuffle=True, collate_fn=list), repeat=3)
    stages = [Source(samples, name="reuse"), Map(lambda batch: [2 * int(sample[0]) for sample in batch], workers=2), Prefetch()]
    with Pipeline(stages) as pipeline:
        for _ in range(2):
            batches = list(pipeline)
            assert len(batches) == len(pipeline) == math.ceil(150 / 8)
            assert all(len(set(batch)) == len(batch) for batch in batches)
            assert Counter(number for batch in batches for number in batch) == {2 * index: 3 for index in range(50)}
