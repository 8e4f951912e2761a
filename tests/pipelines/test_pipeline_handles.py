"""Data sets that hold what threads cannot share, such as an open file, are read by one thread: right, as in a DataLoader, and said once."""

from __future__ import annotations

import functools
import io
import mmap
import sqlite3
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_work import nothing_left
from stoker.engine.errors import UsageError
from stoker.loaders import Map, Pipeline, Source, autotuned
from stoker.runners.loaders.handles import handle
from stoker.runners.loaders.pipeline import Pipeline as Stages
from stoker.runners.loaders.staged import staged
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

SAMPLES = 48
WIDTH = 4


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of the numbers from 0 on, each of four bytes."""
    path = tmp_path / "numbers.bin"
    path.write_bytes(b"".join(number.to_bytes(WIDTH, "little") for number in range(SAMPLES)))
    return path


class Numbers(Dataset[int]):
    """Seeks, and reads a moment later, in one file; ``lazy``: opened at the first sample."""

    def __init__(self, path: Path, *, lazy: bool = False) -> None:
        self.path = path
        self.file: Any = None if lazy else self.opened()

    def opened(self) -> Any:
        return self.path.open("rb")

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = self.opened()
        self.file.seek(WIDTH * index)
        time.sleep(0.0005)
        return int.from_bytes(self.file.read(WIDTH), "little")


class WithLock(Numbers):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return super().__getitem__(index)


class Indices(Dataset[int]):
    """Its samples are their indices, which a transform, if there is one, makes something of."""

    def __init__(self, transform: Callable[[int], int]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


class Looks:
    """A transform that looks its result up in a data set."""

    def __init__(self, data: Dataset[int]) -> None:
        self.tables = {"numbers": [data]}

    def __call__(self, index: int) -> int:
        return self.tables["numbers"][0][index]


def looking_up(data: Dataset[int]) -> Callable[[int], int]:
    return lambda index: data[index]


class Rows(Dataset[int]):
    """Of a database, through a connection that belongs to the thread which opened it."""

    def __init__(self, path: Path, *, lazy: bool, anybody: bool = False) -> None:
        self.path, self.anybody = path, anybody
        self.connection = None if lazy else self.opened()

    def opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=not self.anybody)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if self.connection is None:
            self.connection = self.opened()
        found: int = self.connection.execute("SELECT value FROM numbers WHERE value = ?", (index,)).fetchone()[0]
        time.sleep(0.0005)
        return found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE numbers (value INTEGER)")
        connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(SAMPLES)])
    connection.close()
    return path


def with_threads(pipeline: Stages, threads: int = 8) -> Stages:
    pipeline.set(tuple(threads if knob.unit == "workers" else value for knob, value in zip(pipeline.knobs, pipeline.values, strict=True)))
    return pipeline


def read(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


def readers(pipeline: Stages) -> int:
    """Threads that the stage may have."""
    return pipeline["read"].knob.high


IN_ONE_FILE: dict[str, tuple[Callable[[Path], Dataset[int]], str]] = {
    "open": (Numbers, "dataset.file"),
    "opened at the first sample": (functools.partial(Numbers, lazy=True), "dataset.file"),
    "of a part": (lambda path: Subset(Numbers(path), range(SAMPLES)), "dataset.dataset.file"),
    "of several": (lambda path: ConcatDataset([Subset(Numbers(path), range(SAMPLES))]), "dataset.datasets[0].dataset.file"),
    "of a transform": (lambda path: Indices(Looks(Numbers(path))), "dataset.transform.tables['numbers'][0].file"),
    "of a transform of a local function": (lambda path: Indices(looking_up(Numbers(path))), "dataset.transform.data.file"),
}


@pytest.mark.parametrize("kind", IN_ONE_FILE)
def test_a_data_set_that_seeks_and_reads_in_one_file_gives_what_a_loader_gives(
    kind: str, numbers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, path = IN_ONE_FILE[kind]
    loader = DataLoader(make(numbers), batch_size=2)
    with with_threads(staged(loader)) as pipeline:
        assert read(pipeline) == list(range(SAMPLES))
        assert readers(pipeline) == 1
        assert read(with_threads(pipeline)) == list(range(SAMPLES)), "the next pass, too"
        pipeline.close()
        assert read(with_threads(pipeline)) == list(range(SAMPLES)), "and after an end"
    (told,) = caplog.messages
    assert told.startswith(f"stage 'read': {path}")
    assert f"is an open file ({numbers}), which threads cannot share" in told
    assert "\n" not in told


def test_the_tuner_is_told_that_one_thread_is_all(numbers: Path) -> None:
    with autotuned(DataLoader(Numbers(numbers), batch_size=2), interval=0.05) as tuned:
        for _ in range(30):
            assert read(tuned) == list(range(SAMPLES))
            if len(tuned.history) >= 3:
                break
        assert {step.given[0] for step in tuned.history} == {1}


def test_two_loaders_of_the_halves_of_a_split_take_turns(numbers: Path) -> None:
    """Training and validation, of one file, at the same time."""
    data = Numbers(numbers)
    halves = [range(0, SAMPLES, 2), range(1, SAMPLES, 2)]
    with staged(DataLoader(Subset(data, halves[0]), 1)) as first, staged(DataLoader(Subset(data, halves[1]), 1)) as second:
        assert [read(pair) for pair in zip(first, second, strict=True)] == [[i, i + 1] for i in halves[0]]


@pytest.mark.parametrize("lazy", [False, True])
def test_an_error_of_such_a_data_set_is_the_training_s(lazy: bool, numbers: Path) -> None:
    class Torn(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 9:
                raise ValueError("torn")
            return super().__getitem__(index)

    with with_threads(staged(DataLoader(Torn(numbers, lazy=lazy), 4))) as pipeline, pytest.raises(ValueError, match="torn"):
        list(pipeline)


def test_one_with_a_lock_beside_its_file_is_read_by_many(numbers: Path, caplog: pytest.LogCaptureFixture) -> None:
    with with_threads(staged(DataLoader(WithLock(numbers), 2))) as pipeline:
        assert read(pipeline) == list(range(SAMPLES))
        assert readers(pipeline) > 1
    assert not caplog.messages


def test_a_file_for_each_thread_is_nobody_s_concern(numbers: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = threading.local()

    class Apart(Numbers):
        def __init__(self) -> None:
            super().__init__(numbers, lazy=True)
            self.own = own

        def __getitem__(self, index: int) -> int:
            if not hasattr(self.own, "data"):
                self.own.data = Numbers(numbers)
            return int(self.own.data[index])

    with with_threads(staged(DataLoader(Apart(), 2))) as pipeline:
        assert read(pipeline) == list(range(SAMPLES))
        assert readers(pipeline) > 1
    assert not caplog.messages


class Stuck(Dataset[int]):
    """Whose first sample does not come."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        self.gate.wait()
        return index


@pytest.mark.slow
def test_a_first_sample_that_does_not_come_keeps_nobody_from_closing() -> None:
    data = Stuck()
    with with_threads(staged(DataLoader(data, 2), limit=0.1)) as pipeline, pytest.raises(Exception, match="limit"):
        next(iter(pipeline))
    data.gate.set()


def test_functions_of_a_map_too(numbers: Path) -> None:
    data = Numbers(numbers)
    with with_threads(Pipeline([Source(range(SAMPLES)), Map(data.__getitem__, name="look")])) as pipeline:
        assert list(pipeline) == list(range(SAMPLES))
        assert [knob.high > 1 for knob in pipeline.knobs] == [True, False]


def test_a_connection_opened_at_the_first_sample_stays_with_its_thread(rows: Path) -> None:
    with with_threads(staged(DataLoader(Rows(rows, lazy=True), 2))) as pipeline:
        for _ in range(2):
            assert read(pipeline) == list(range(SAMPLES))


def test_a_connection_of_another_thread_is_refused_with_the_remedy(rows: Path) -> None:
    data = Rows(rows, lazy=False)
    with pytest.raises(
        UsageError, match=r"dataset\.connection is a database connection that belongs to one thread.*check_same_thread=False"
    ):
        staged(DataLoader(data, 2))
    data = Rows(rows, lazy=False, anybody=True)
    with with_threads(staged(DataLoader(data, 2))) as pipeline:
        assert read(pipeline) == list(range(SAMPLES))
        assert readers(pipeline) > 1, "threads may share it"


def test_processes_open_their_own_and_one_that_cannot_be_sent_is_named(numbers: Path) -> None:
    with with_threads(staged(DataLoader(Numbers(numbers, lazy=True), 2), processes=True), 2) as pipeline:
        assert read(pipeline) == list(range(SAMPLES))
    with pytest.raises(UsageError, match=r"dataset\.file is an open file .*: open it at the first sample in each process"):
        staged(DataLoader(Numbers(numbers), 2), processes=True)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def holding(value: Any) -> Any:
    class Holder:
        def __init__(self) -> None:
            self.held = value

    return Holder()


def found(value: Any) -> str | None:
    there = handle(holding(value), "data")
    return None if there is None else f"{there.path}: {there.what}"


def test_what_is_found_and_what_may_be_shared(numbers: Path, tmp_path: Path) -> None:
    packed, zipped = tmp_path / "a.tar", tmp_path / "a.zip"
    with tarfile.open(packed, "w") as archive, zipfile.ZipFile(zipped, "w") as other:
        archive.add(numbers, "numbers")
        other.write(numbers, "numbers")
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    with numbers.open("rb") as file, tarfile.open(packed) as archive, zipfile.ZipFile(zipped) as other:
        a_file = f"an open file ({numbers})"
        assert found(file) == f"data.held: {a_file}"
        assert found({"a": [file]}) == f"data.held['a'][0]: {a_file}"
        assert found(Slotted(file)) == f"data.held.inner: {a_file}"
        assert found(functools.partial(print, file)) == f"data.held.args[0]: {a_file}"
        assert found(lambda size: file.read(size + 1)) == f"data.held.file: {a_file}"
        assert found(archive) == f"data.held: an open archive ({packed})"
        assert found(other.open("numbers")) == "data.held: an open file (numbers)"
        assert found(connection.cursor()) == "data.held: a cursor of a database"
        assert found(number for number in range(3)) == "data.held: a generator"
        assert found(io.BytesIO(b"abc")) == "data.held: an open file"
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert found(mapped) is None, "slices of it move nothing"
        mapped.read(1)
        assert found(mapped) == "data.held: a memory map that is read as a file is"
        written = (tmp_path / "log").open("w")
        shared = [other, connection, written, threading.Lock(), threading.Event(), torch.zeros(3), torch.Generator(), {1, 2}, print, found]
        assert [value for value in shared if found(value) is not None] == []
        written.close()
        connection.close()
    assert found(file) is None, "it is closed"


def test_a_large_data_set_is_looked_at_in_a_moment() -> None:
    began = time.thread_time()
    assert found([[str(i), {"label": i}] for i in range(200_000)]) is None
    assert found(functools.reduce(lambda inner, _: [inner], range(5000), "deep")) is None
    circle: list[Any] = []
    circle.append(circle)
    assert found(circle) is None
    assert time.thread_time() - began < 20, "not each of its objects"
