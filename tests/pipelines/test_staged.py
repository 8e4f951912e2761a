"""A DataLoader cut into stages gives what the DataLoader gives."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_work import nothing_left
from stoker.engine.errors import UsageError
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.staged import staged
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, WeightedRandomSampler
from waiting import patient


class Squares(Dataset[dict[str, Any]]):
    """Samples of several kinds of value."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "square": torch.full((3,), float(index * index)), "name": f"item {index}"}


class AtOnce(Squares):
    """Reads a batch in one go."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] | {"name": f"{index} of {len(indices)}"} for index in indices]


class Endwise(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class Noise(Dataset[tuple[float, float, float]]):
    """Draws from every global generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return torch.rand(()).item(), float(np.random.rand()), random.random()


class Uneven(BatchSampler):
    """Batches of 1, 2, 3 … indices."""

    def __iter__(self) -> Iterator[list[int]]:
        indices, size = list(self.sampler), 1
        while indices:
            yield indices[:size]
            indices, size = indices[size:], size + 1


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def all_of(pipeline: Pipeline, workers: int = 1) -> list[Any]:
    pipeline.set(tuple(workers if knob.unit == "workers" else value for knob, value in zip(pipeline.knobs, pipeline.values, strict=True)))
    with pipeline:
        return list(pipeline)


def sampler_of(kind: str, dataset: Squares, generator: torch.Generator | None) -> dict[str, Any]:
    if kind == "replaced":
        return {"sampler": RandomSampler(dataset, replacement=True, num_samples=2 * len(dataset) + 1, generator=generator)}
    if kind == "weighted":
        return {"sampler": WeightedRandomSampler([1.0 + index for index in range(len(dataset))], len(dataset), generator=generator)}
    return {"shuffle": kind == "shuffled", "generator": generator}


@given(
    size=st.integers(1, 40),
    batch_size=st.one_of(st.none(), st.integers(1, 12)),
    drop_last=st.booleans(),
    kind=st.sampled_from(["in order", "shuffled", "replaced", "weighted"]),
    own_generator=st.booleans(),
    at_once=st.booleans(),
    collated=st.booleans(),
    workers=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_the_same_batches_in_the_same_order(
    size: int,
    batch_size: int | None,
    drop_last: bool,
    kind: str,
    own_generator: bool,
    at_once: bool,
    collated: bool,
    workers: int,
    seed: int,
) -> None:
    def make() -> DataLoader[Any]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed + 1) if own_generator else None
        dataset = (AtOnce if at_once else Squares)(size)
        collate = {"collate_fn": (lambda batch: (len(batch), batch))} if collated else {}
        return DataLoader(
            dataset, batch_size, drop_last=drop_last and batch_size is not None, **sampler_of(kind, dataset, generator), **collate
        )

    loader = make()
    expected = [list(loader), list(loader)]
    drawn = torch.rand(3)
    loader = make()
    pipeline = staged(loader)
    assert len(pipeline) == len(loader)
    pipeline.set(tuple(workers if knob.unit == "workers" else 1 for knob in pipeline.knobs))
    with pipeline:
        assert same([list(pipeline), list(pipeline)], expected), "two passes"
    assert torch.equal(torch.rand(3), drawn), "what is drawn afterwards is the same too"


@given(size=st.integers(0, 30), batch_size=st.one_of(st.none(), st.integers(1, 9)), drop_last=st.booleans(), workers=st.integers(1, 4))
def test_an_iterable_data_set_too(size: int, batch_size: int | None, drop_last: bool, workers: int) -> None:
    loader = DataLoader(Endwise(size), batch_size, drop_last=drop_last and batch_size is not None)
    assert same(all_of(staged(loader), workers), list(loader))


def test_batches_of_a_sampler_of_ones_own() -> None:
    loader = DataLoader(Squares(20), batch_sampler=Uneven(SequentialSampler(range(20)), 1, False))
    assert same(all_of(staged(loader), 3), list(loader))


@pytest.mark.parametrize(("batch_size", "samples"), [(8, 8.0), (None, 1.0)], ids=["batches", "samples"])
def test_what_is_observed_are_samples(batch_size: int | None, samples: float) -> None:
    with staged(DataLoader(Squares(24), batch_size)) as pipeline:
        list(pipeline)
        assert pipeline.observe().batch_size == samples


def test_a_data_set_alone_gives_its_samples() -> None:
    assert [sample["index"] for sample in all_of(staged(Squares(5)))] == [0, 1, 2, 3, 4]


def test_the_epoch_of_a_sampler_counts() -> None:
    """A sampler that is told the epoch between two passes, as those of data parallelism are, is heard."""
    sampler = torch.utils.data.DistributedSampler(Squares(10), num_replicas=2, rank=1, seed=3)
    loader = DataLoader(Squares(10), 2, sampler=sampler)
    with staged(loader) as pipeline:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert same(list(pipeline), list(loader))


def begin_worker(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    os.environ["STOKER_TEST_WORKER"] = f"{number == info.id} {len(info.dataset)}"


def tell_worker(batch: list[dict[str, Any]]) -> tuple[int, str, list[int]]:
    return os.getpid(), os.environ.get("STOKER_TEST_WORKER", ""), [sample["index"] for sample in batch]


def test_workers_of_a_loader_with_workers_are_processes() -> None:
    loader = DataLoader(Squares(12), 3, num_workers=2, worker_init_fn=begin_worker, collate_fn=tell_worker)
    batches = all_of(staged(loader), 2)
    assert [indices for *_, indices in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert {told for _, told, _ in batches} == {"True 12"}
    assert os.getpid() not in {process for process, *_ in batches}


def test_random_augmentation_does_not_depend_on_the_number_of_processes() -> None:
    def drawn(workers: int) -> list[Any]:
        torch.manual_seed(5)
        return all_of(staged(DataLoader(Noise(), 4, num_workers=1)), workers)

    first = drawn(1)
    assert same(drawn(3), first)
    values = [value for batch in first for column in batch for value in column.tolist()]
    assert len(set(values)) == len(values), "each batch draws anew"


def test_threads_can_be_asked_for() -> None:
    pipeline = staged(DataLoader(Squares(4), 2, num_workers=2, collate_fn=tell_worker), processes=False)
    assert {process for process, *_ in all_of(pipeline)} == {os.getpid()}


def test_what_comes_first_may_go_first() -> None:
    assert staged(DataLoader(Squares(4), in_order=False)).ordered is False
    assert staged(DataLoader(Squares(4))).ordered is True


class Sharded(IterableDataset[tuple[int, int, int, int]]):
    """Each worker reads every so manieth number: (number, worker, of how many, draw). As large a draw as there is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.passes = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        self.passes += 1
        if info is None:
            yield from ((number, -1, self.passes, torch.zeros(2)) for number in range(self.size))
            return
        assert info.dataset is self
        assert info.seed == torch.initial_seed()
        for number in range(info.id, self.size, info.num_workers):
            yield number, info.id, self.passes, torch.rand(40_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ({"drop_last": True}, {"batch_size": None})),
        {"persistent_workers": True},
    ],
    ids=str,
)
def test_workers_of_an_iterable_data_set_read_the_parts_that_a_loader_s_read(options: dict[str, Any]) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Sharded(17), **({"batch_size": 3, "num_workers": 3, "generator": generator} | options))

    theirs, expected = loader(), []
    for _ in range(2):
        expected.append(list(theirs))
    theirs._iterator = None
    with nothing_left(), staged(loader()) as pipeline:
        assert len(pipeline) == (17 if options == {"batch_size": None} else 5 if "drop_last" in options else 6)
        assert same([list(pipeline), list(pipeline)], expected)
        for _ in pipeline:  # left early
            break


def begin_part(number: int) -> None:
    torch.utils.data.get_worker_info().dataset.size += 100 * number  # type: ignore[union-attr]


def test_worker_init_of_an_iterable_data_set_and_one_of_a_local_class() -> None:
    class Local(Sharded):
        pass

    loader = DataLoader(Local(4), 2, num_workers=2, worker_init_fn=begin_part)
    with nothing_left(), staged(loader) as pipeline:
        assert [batch[0].tolist() for batch in pipeline] == [batch[0].tolist() for batch in loader]
    with staged(loader_without_init(loader), processes=False) as pipeline:
        assert [batch[1].tolist() for batch in pipeline] == [[-1, -1], [-1, -1]], "one reader here"


def loader_without_init(loader: DataLoader[Any]) -> DataLoader[Any]:
    return DataLoader(loader.dataset, loader.batch_size, num_workers=loader.num_workers)


def test_an_error_in_a_part_reaches_the_training() -> None:
    class Torn(Sharded):
        def __iter__(self) -> Iterator[Any]:
            yield from range(3)
            raise ValueError("torn part")

    with nothing_left(), staged(DataLoader(Torn(9), 3, num_workers=1)) as pipeline, pytest.raises(ValueError, match="torn part"):
        list(pipeline)


def test_a_data_set_of_a_local_class_is_read_by_threads_and_said_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Local(Squares):
        pass

    loader = DataLoader(Local(6), 2, num_workers=2)
    assert same(all_of(staged(loader), 2), list(DataLoader(Local(6), 2)))
    (told,) = caplog.messages
    assert told.startswith("num_workers=2: threads read in place of processes: stage 'read': its function")
    assert "Local" in told
    assert "\n" not in told
    with pytest.raises(UsageError, match="cannot be sent to worker processes"):
        staged(loader, processes=True)


def told_with(batch: list[Any]) -> tuple[Any, bool, bool]:
    made = torch.utils.data.default_collate(batch)
    return made, any(part.is_shared() for part in made), torch.utils.data.get_worker_info() is not None


class Large(Dataset[Any]):
    """Samples of half a MiB as tensor, and as array."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        assert torch.utils.data.get_worker_info() is not None, "visible while it is read"
        return torch.full((1 << 17,), float(index)), np.full(1 << 17, index, np.float32)


class LargeParts(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Large()[index] for index in range(8))


@pytest.mark.parametrize("data", [Large(), LargeParts()], ids=["indexed", "parts"])
def test_processes_collate_in_memory_of_their_own_and_know_that_they_are_workers(data: Any) -> None:
    """Torch's default_collate stacks in /dev/shm where it sees that this is a worker."""
    with staged(DataLoader(data, 4, num_workers=1, collate_fn=told_with)) as pipeline:
        seen = list(pipeline)
    assert [(shared, worker) for _, shared, worker in seen] == [(False, True)] * 2
    for part in (0, 1):
        assert torch.equal(torch.cat([made[part] for made, *_ in seen])[:, 0], torch.arange(8.0))


SMALL = """
import sys
from stoker.runners.loaders.staged import staged
from test_staged import Large, LargeParts
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for data in (Large(), LargeParts()):
        with staged(DataLoader(data, 8, num_workers=1)) as pipeline:
            print([[part.shape[0] for part in batch] for batch in pipeline])
"""


@pytest.fixture
def unshared() -> Iterator[Path]:
    """A folder that is not in shared memory, as those of the tests may be."""
    build = Path(__file__).parents[2] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        yield Path(folder)


UNSHARED = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.mark.slow
@pytest.mark.nightly  # with room enough: test_processes_collate_in_memory_of_their_own
def test_a_container_s_small_shared_memory_is_no_limit(unshared: Path) -> None:
    """8 MiB a batch, and 2 of /dev/shm."""
    try:
        subprocess.run([*UNSHARED, "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "/dev/shm"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system cannot be mounted here")
    script = unshared / "script.py"
    script.write_text(SMALL)
    mounted = f"mount -t tmpfs -o size=2m tmpfs /dev/shm && exec {sys.executable} {script}"
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*UNSHARED, "sh", "-c", mounted],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(unshared)},
    )
    assert done.stdout == "[[8, 8]]\n" * 2, done.stderr


class Peculiar(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: [1, 2, 3], {}, "list is neither a Pipeline nor a DataLoader"),
        (lambda: Peculiar(Squares(3)), {}, "Peculiar has an iteration of its own"),
        (lambda: DataLoader(Squares(9), num_workers=1, worker_init_fn=begin_worker), {"processes": False}, "processes: worker_init_fn"),
    ],
    ids=["list", "subclass", "init-in-threads"],
)
def test_what_cannot_be_cut_is_refused_with_a_remedy(make: Any, options: dict[str, bool], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        staged(make(), **options)
    assert "give" in str(caught.value) or "build" in str(caught.value)
    assert "\n" not in str(caught.value)


class Broken(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise RuntimeError("no such pixel")
        return super().__getitem__(index)


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_of_the_data_set_reaches_the_training(processes: bool) -> None:
    with staged(DataLoader(Broken(8), 2), processes=processes) as pipeline, pytest.raises(Exception, match="no such pixel"):
        list(pipeline)


class Torn(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 50:
            raise ValueError("torn")
        return super().__getitem__(index)


class TornAtOnce(Torn, AtOnce):
    pass


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(
    ("dataset", "batch_size", "note"), [(Torn, 8, "index 50"), (Torn, None, "index 50"), (TornAtOnce, 4, "indices [48, 49, 50, 51]")]
)
def test_an_exception_names_the_index(dataset: type[Squares], batch_size: int | None, note: str, processes: bool) -> None:
    with staged(DataLoader(dataset(64), batch_size), processes=processes) as pipeline, pytest.raises(ValueError, match="torn") as raised:
        list(pipeline)
    assert f"reading {note} of the data set" in raised.value.__notes__
