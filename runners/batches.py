"""Which samples a step takes, and how they come: a seeded order that can be taken up again anywhere, and a loader that can be left."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from . import script

_POLL = 0.1  #: seconds between looks at the request to stop, while a batch is awaited

T = TypeVar("T")


class Dataset(Protocol):
    """A map-style dataset, as torch.utils.data has them."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Interrupted(Exception):
    """Stoker has asked the job to stop, in the middle of something that need not be finished."""


def interruptible(items: Iterable[T]) -> Iterator[T]:
    """The items, until the job is asked to stop: then Interrupted. For loops in the set-up and in `Task.evaluate`."""
    for item in items:
        if script.should_stop():
            raise Interrupted
        yield item


class Order:
    """The global batches of all epochs: a permutation an epoch from (seed, epoch) alone, an incomplete last batch left out.

    A function of the step, so that nothing but the step has to be restored, and the same for any number of ranks.
    """

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.steps_per_epoch = samples // batch_size
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> list[int]:
        """Indices of the samples of a rank in step ``step`` (from 0)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch, self._permutation = epoch, torch.randperm(self.samples, generator=generator)
        batch = self._permutation[index * self.batch_size : (index + 1) * self.batch_size]
        return batch[rank::ranks].tolist()


class Loader:
    """Fetches in a thread, strictly one batch at a time, while the main thread waits and watches for the request to stop.

    Nothing is fetched ahead: a dataset may draw from the global random generators, and then the order of all draws, and
    so the training, is the same in every run.
    """

    def __init__(self, dataset: Dataset, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate
        self._wanted: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self._fetched: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A daemon: a fetch that never returns must not keep the process from leaving.
        threading.Thread(target=self._serve, name="loader", daemon=True).start()

    def fetch(self, indices: Sequence[int]) -> Any:
        """The batch. Raises Interrupted when the job is asked to stop meanwhile; the loader must not be used after that."""
        self._wanted.put(indices)
        while True:
            try:
                batch = self._fetched.get(timeout=_POLL)
            except queue.Empty:
                if script.should_stop():
                    raise Interrupted from None
                continue
            if isinstance(batch, BaseException):
                raise batch
            return batch

    def _serve(self) -> None:
        while True:
            indices = self._wanted.get()
            try:
                self._fetched.put(self._collate([self._dataset[index] for index in indices]))
            except BaseException as error:
                self._fetched.put(error)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all tensors in it on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
