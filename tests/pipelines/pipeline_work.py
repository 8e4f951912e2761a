"""Functions of the pipelines in tests: worker processes import them from here."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from waiting import patient

if TYPE_CHECKING:  # no worker process needs these
    import pytest
    from stoker.runners.loaders.pipeline import Pipeline
    from stoker.runners.loaders.workers.worker_processes import ProcessPool


def same(value: Any) -> Any:
    return value


def double(value: int) -> int:
    return 2 * value


def uneven(value: int) -> int:
    """Later items overtake earlier ones, if anything lets them."""
    time.sleep(0.0005 * (value * 7 % 4))
    return value


def own_process(value: int) -> tuple[int, int]:
    return value, os.getpid()


class FailsAt:
    def __init__(self, value: int, error: BaseException) -> None:
        self.value, self.error = value, error

    def __call__(self, value: int) -> int:
        if value == self.value:
            raise self.error
        return value


class Broken(Exception):
    pass


class Unsendable(Exception):
    """Pickles, and cannot be built again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def unsendable(value: int) -> int:
    raise Unsendable(value, value)


def returns_a_lock(value: int) -> Any:
    return threading.Lock()


def returns_a_lambda(value: int) -> Any:
    return lambda: value


def returns_a_generator(value: int) -> Any:
    return (number for number in (value,))


def returns_a_nested_tensor(value: int) -> Any:
    import torch

    return torch.nested.nested_tensor([torch.ones(value % 3 + 1), torch.ones(2)], layout=torch.strided)


def is_left_there(value: Any) -> int:
    return os.getpid()


class KillsItself:
    """Dies at a value: each time, or, with a file to remember it by, only the first time."""

    def __init__(self, value: int, once: Path | None = None) -> None:
        self.value, self.once = value, once

    def __call__(self, value: int) -> int:
        if value == self.value and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value


class DiesOnce:
    """At each of some values, in a process; files remember at which it has."""

    def __init__(self, values: tuple[int, ...], folder: Path) -> None:
        self.values, self.folder = values, folder

    def __call__(self, value: int) -> int:
        if value in self.values and not (self.folder / str(value)).exists():
            (self.folder / str(value)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value


class CannotBeLoaded:
    def __call__(self, value: int) -> int:
        return value

    def __reduce__(self) -> Any:
        return _refuse, ()


class EndsItsProcess:
    """When it is loaded, as the start of a script without a guard may."""

    def __call__(self, value: int) -> int:
        return value

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def _refuse() -> None:
    raise ValueError("no such file here")


def sleeps_in_a_process(value: int) -> int:
    """For ever, but in threads not at all."""
    if multiprocessing.parent_process() is not None:
        time.sleep(3600)
    return value


def sleeps_at_19_in_a_process(value: int) -> int:
    return sleeps_in_a_process(value) if value == 19 else value


class Reads:
    """A data set: what a function makes of the index, and the process that read it."""

    def __init__(self, samples: int, function: Any = same) -> None:
        self.samples, self.function = samples, function

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.function(index), os.getpid()


def with_own(sample: tuple[int, int]) -> tuple[int, int, int]:
    return *sample, os.getpid()


def first(sample: tuple[int, int]) -> int:
    """Its number, after a while."""
    return uneven(sample[0])


def naps(index: int) -> int:
    time.sleep(0.003)
    return index


def with_process(samples: list[Any]) -> tuple[list[Any], int]:
    """A collate."""
    return samples, os.getpid()


class Weighty:
    """A data set in memory. Of each sample: its first number, the process, and the file that the data are mapped from there."""

    def __init__(self, samples: int, mib: int = 8) -> None:
        self.data = np.arange(mib << 18, dtype=np.float32)
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[float, int, str]:
        own = float(self.data[index])
        self.data[index] = -1.0  # its own copy of that page, which nobody else is to see
        return own, os.getpid(), mapped_from(self.data.ctypes.data)


def mapped_from(address: int) -> str:
    """Sharing and inode of the mapping that an address is in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, _, inode, *_ = line.split()
        first, last = (int(bound, 16) for bound in span.split("-"))
        if first <= address < last:
            return f"{mode[3]} {inode}"
    return ""


def sleeps_for_ever(value: int) -> int:
    time.sleep(3600)
    return value


def arrays(value: int) -> dict[str, Any]:
    """Half a MiB in an array and two tensors, of which each number is known."""
    return {
        "array": np.full((128, 256), value, dtype=np.float32),
        "tensor": torch.full((3, 256, 128), value, dtype=torch.int16),
        "half": torch.full((64, 1024), float(value), dtype=torch.bfloat16),
        "label": value,
    }


def touched(sample: dict[str, Any]) -> float:
    """Reads all and writes into it, where it arrived."""
    sample["array"] += 1
    return float(sample["array"].mean()) + float(sample["tensor"].float().mean()) + float(sample["half"].float().mean())


def named_shared_memory(_: Any) -> list[str]:
    """What this process has of /dev/shm, mapped or open, beside the files of the tests, which may lie there."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    found = [line for line in (*mapped, *map(link, Path("/proc/self/fd").iterdir())) if "/dev/shm" in line]
    return [line for line in found if tempfile.gettempdir() not in line]


def link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""


def draws(_: int) -> tuple[float, float]:
    return float(np.random.rand()), float(torch.rand(()))


def burns(seconds: float) -> float:
    """CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds


def consumed(pipeline: Pipeline, moves: Sequence[tuple[int, bool]], most: float = math.inf) -> list[Any]:
    """What a pass gives, with a change behind each of the first: of the workers, and of the kind of those of the stage "udf"."""
    seen, changing = [], iter(moves)
    for given in pipeline:
        seen.append(given)
        if (change := next(changing, None)) is not None:
            pipeline.set((change[0],) * len(pipeline.knobs), {"udf": change[1]})
        if len(seen) >= most:
            break
    return seen


def has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of the stage "udf" gives one, and no more."""
    from stoker.engine.errors import StokerError
    from stoker.runners.loaders.workers.worker_processes import ProcessPool

    acquire, asked = ProcessPool.acquire, []

    def once(pool: ProcessPool) -> Any:
        asked.append(pool)
        if len(asked) > 1:
            raise StokerError("stage 'udf': cannot start a worker process")
        return acquire(pool)

    monkeypatch.setattr(ProcessPool, "acquire", once)


@contextmanager
def nothing_left() -> Iterator[None]:
    """No thread or process outlives the block."""
    threads, children = set(threading.enumerate()), set(multiprocessing.active_children())
    yield
    until = time.monotonic() + patient(60)
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < until:
        next(iter(left)).join(0.1)
    assert not left, left
    assert set(multiprocessing.active_children()) <= children
