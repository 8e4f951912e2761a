"""An ordinary DataLoader as a pipeline of stages: the same batches in the same order, from workers that can be resized.

    Source "read"    dataset[index] for the indices of a batch, which come from the sampler
    Map    "batch"   collate_fn
    Prefetch         finished batches, in MiB

An item is a whole batch, as for the DataLoader's own workers: a data set's ``__getitems__``, batches of different sizes and any
batch sampler stay what they are, and a queue is crossed once a batch, not once a sample. Worker processes collate what they have
read, as the DataLoader's do, so that one batch of tensors comes back and not its samples one by one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sized
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, IterDataPipe, MapDataPipe

from ...engine.errors import UsageError
from ..train import rng
from .collate import keep_to_own_memory
from .drawn_order import DrawnOrder
from .pipeline import Pipeline
from .stages import Map, Prefetch, Source, Stage
from .worker_parts import CountedParts, Parts

log = logging.getLogger("stoker.loaders")


def staged(loader: DataLoader[Any] | Dataset[Any], *, processes: bool | None = None, limit: float | None = None) -> Pipeline:
    """Pipeline that gives the batches of ``loader``. A data set alone gives its samples, as ``DataLoader(dataset, batch_size=None)``.

    processes: workers are processes, for code that holds the interpreter's lock; False: threads; None: processes where the loader's
        num_workers is not 0, else threads to begin with, which a tuner may move. In processes the global generators are seeded for each
        batch by the loader's seed and the number of the batch, so that random augmentation does not depend on how many workers there are.
    limit: seconds for one batch to be read, and to be collated; longer is an error that names the stage.

    Raises UsageError, with a remedy, for loaders that cannot be cut into stages.
    """
    if isinstance(loader, Dataset):
        loader = DataLoader(loader, batch_size=None)
    _check(loader)
    if loader.worker_init_fn is not None and loader.num_workers and processes is False:
        raise UsageError("processes: worker_init_fn prepares a worker process; give processes=True, or a loader without it")
    if isinstance(loader.dataset, IterableDataset):
        if loader.num_workers and processes is not False:
            parts = (CountedParts if _is_counted(loader) else Parts)(loader)
            return _pipeline(loader, [Source(parts, name="read", limit=limit)], at_close=parts.close)
        return _pipeline(loader, _iterable(loader, processes, limit))
    if loader.num_workers and processes is None:
        return _in_processes_if_sendable(loader, limit)
    return _pipeline(loader, _map_style(loader, processes, limit))


def _in_processes_if_sendable(loader: DataLoader[Any], limit: float | None) -> Pipeline:
    """With processes; with threads if its data set cannot be sent: a DataLoader forks its workers, so it need not be."""
    try:
        return _pipeline(loader, _map_style(loader, True, limit))
    except UsageError as error:
        if loader.worker_init_fn is not None:
            raise
        pipeline = _pipeline(loader, _map_style(loader, False, limit))
        log.warning("num_workers=%d: threads read in place of processes: %s", loader.num_workers, error)
        return pipeline


def _pipeline(loader: DataLoader[Any], stages: list[Stage], at_close: Callable[[], None] | None = None) -> Pipeline:
    if loader.pin_memory and torch.accelerator.is_available():
        stages.append(Map(_pin, name="pin", processes=False))
    return Pipeline([*stages, Prefetch()], ordered=loader.in_order, name="loader", samples_per_item=_batch_size(loader), at_close=at_close)


def _batch_size(loader: DataLoader[Any]) -> int:
    """Samples of an item of the source; 1 when its batches differ."""
    sizes = (getattr(place, "batch_size", None) for place in (loader, loader.batch_sampler))
    return next((size for size in sizes if isinstance(size, int)), 1)


def _map_style(loader: DataLoader[Any], processes: bool | None, limit: float | None) -> list[Stage]:
    read = Read(loader)
    return [
        Source(read, sampler=_indices(loader), name="read", processes=processes, in_processes=InProcess(read, loader), limit=limit),
        Map(loader.collate_fn, name="batch", processes=False, along=True, limit=limit),
    ]


def _indices(loader: DataLoader[Any]) -> Indices:
    return (CountedIndices if _is_counted(loader) else Indices)(loader)


def _is_counted(loader: DataLoader[Any]) -> bool:
    if isinstance(loader.dataset, IterableDataset):
        return isinstance(loader.dataset, Sized)  # the loader would remember a call of len(), and warn of batches beyond it
    try:
        len(loader)
    except TypeError:
        return False
    return True


def _iterable(loader: DataLoader[Any], processes: bool | None, limit: float | None) -> list[Stage]:
    return [
        Source((CountedSamples if _is_counted(loader) else Samples)(loader), name="read", limit=limit),
        Map(loader.collate_fn, name="batch", processes=processes, limit=limit),
    ]


def _check(loader: object) -> None:
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"loader: {type(loader).__name__} is neither a Pipeline nor a DataLoader nor a Dataset; build a Pipeline of it: "
            "Pipeline([Source(iterable), Map(function, name='udf'), Batch(size), Prefetch()])"
        )
    dataset = loader.dataset
    if type(loader).__iter__ is not DataLoader.__iter__ or type(loader)._get_iterator is not DataLoader._get_iterator:
        raise UsageError(
            f"loader: {type(loader).__name__} has an iteration of its own, which stages would leave out; "
            "give a plain DataLoader, or use it as Source(loader) of a Pipeline"
        )
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise UsageError("loader: a DataPipe is seeded by the DataLoader's own workers; give a plain Dataset, or use Source(loader)")


class Wanted(NamedTuple):
    """One item of the source: the index or indices to read, and the seed of all draws."""

    where: Any  #: index, or a list of them
    seed: int


class Indices:
    """The indices of a pass, drawn exactly as the DataLoader draws them; begun by the thread that iterates."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self.order = DrawnOrder(loader.sampler, loader=loader)

    def __iter__(self) -> Iterator[Wanted]:
        return self.order.draw(self._draw)

    def _draw(self) -> tuple[Iterator[Wanted], Any]:
        loader = self._loader
        sampler = iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        seed = _base_seed(loader)
        # A sampler draws its own seed for its first index. That is asked for here, not in the source's thread, so that no draw of
        # the training comes in between.
        first = list(islice(sampler, 1))
        return (Wanted(where, (seed + number) % 2**63) for number, where in enumerate(chain(first, sampler))), first


class CountedIndices(Indices):
    """The same for a sampler that knows its length."""

    def __len__(self) -> int:
        return len(self._loader)


class Samples:
    """The batches of an iterable data set, uncollated; called once a pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __call__(self) -> Iterator[Any]:
        _base_seed(self._loader)  # the DataLoader draws one too, so that later draws are the same
        samples = iter(self._loader.dataset)
        size = self._loader.batch_size
        return samples if size is None else _batches(samples, size, self._loader.drop_last)


class CountedSamples(Samples):
    """The same for a loader that knows its length."""

    def __len__(self) -> int:
        return len(self._loader)


def _batches(samples: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while (batch := list(islice(samples, size))) and not (drop_last and len(batch) < size):
        yield batch


def _base_seed(loader: DataLoader[Any]) -> int:
    """Drawn from the loader's generator before the sampler draws from it, as torch.utils.data does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


class Read:
    """A map-style data set, by batches of indices, or by single ones if the loader does not batch."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.dataset: Any = loader.dataset
        self._batches = loader.batch_sampler is not None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, wanted: Wanted) -> Any:
        """An exception gets a note with the index, as the item of the pipeline is a batch."""
        where = wanted.where
        try:
            if not self._batches:
                return self.dataset[wanted.where]
            if at_once := getattr(self.dataset, "__getitems__", None):
                return at_once(wanted.where)
            samples = []
            for where in wanted.where:
                samples.append(self.dataset[where])
            return samples
        except Exception as error:
            error.add_note(f"reading {'indices' if isinstance(where, list) else 'index'} {where!r} of the data set")
            raise


class InProcess:
    """Reads in a worker process, under a seed of the batch's own; a collate there continues its draws."""

    def __init__(self, read: Read, loader: DataLoader[Any]) -> None:
        self._read = read
        self._begin, self._workers = loader.worker_init_fn, loader.num_workers
        self._begun_in = 0  #: process

    def __len__(self) -> int:
        return len(self._read)

    def __getitem__(self, wanted: Wanted) -> Any:
        rng.seed_all(wanted.seed)
        if self._begun_in != os.getpid():
            self._begun_in = os.getpid()
            self._start(wanted.seed)
        return self._read[wanted]

    def _start(self, seed: int) -> None:
        """The work of a DataLoader's worker before its first batch. Workers come and go, so the id is the process's."""
        from torch.utils.data._utils import worker

        keep_to_own_memory()
        number = os.getpid()
        worker._worker_info = worker.WorkerInfo(id=number, num_workers=max(1, self._workers), seed=seed, dataset=self._read.dataset)
        if self._begin is not None:
            self._begin(number)


def _pin(batch: Any) -> Any:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
