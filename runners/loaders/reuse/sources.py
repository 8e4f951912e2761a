"""The passes of a PyTorch DataLoader, sample by sample, each with its position in the pass: the input of a reuse buffer.

The loader's own workers still decode: it is rebuilt with the same data set, sampler and workers, and a collate that keeps samples
apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from ...train.rng import get_state, host_preserved, preserved, seed_host, set_state

Transform = Callable[[Any], Any]
Start = dict[str, Any]  #: the random generators as they were when a pass began


class Samples:
    """The passes of a loader. ``take`` and ``again`` are those of `buffer.Decoded`, positions count from 0 in each pass.

    ``seed``: a pass and the decoding of a sample draw from generators seeded by it, the pass and the sample's position, so that they
    can be repeated exactly; None: they draw from the global generators as the plain loader does. ``once``: an augmentation that is part
    of decoding.
    """

    def __init__(self, plain: DataLoader[Any], *, seed: int | None = None, once: Transform | None = None) -> None:
        self._plain, self._seed, self._once = plain, seed, once
        self._order = None if isinstance(plain.dataset, IterableDataset) else _Order(plain, tagged=seed is not None)
        self._data = _Decoding(plain.dataset, seed, once) if self._order and (seed is not None or once) else plain.dataset
        self._loader = self._rebuilt()
        self._chunks: Iterator[list[Any]] = iter(())
        self._chunk: deque[Any] = deque()
        self._next = 0
        self._kept: dict[int, Any] = {}  #: samples of a stream without an index, to be asked for again
        self._last: tuple[int, Any] = (-1, None)  #: the last sample taken of such a stream: the buffer may have had no room for it
        self.pass_number = 0
        self.running: object = None  #: stands for the pass that is being decoded

    @property
    def shuffled(self) -> bool:
        """Whether the samples come in a random order already."""
        return self._order is not None and not isinstance(self._plain.sampler, SequentialSampler)

    @property
    def indexed(self) -> bool:
        """Whether any sample can be decoded again; of a plain stream only those kept."""
        return self._order is not None

    def __len__(self) -> int:
        """Samples of a pass. Raises TypeError if the loader does not know."""
        batches = self._plain.batch_sampler
        if self._order is None:
            return len(self._plain.dataset)  # type: ignore[arg-type]
        if batches is None:
            return len(self._plain.sampler)  # type: ignore[arg-type]
        if isinstance(batches, BatchSampler):
            return len(batches) * batches.batch_size if batches.drop_last else len(batches.sampler)  # type: ignore[arg-type]
        raise TypeError("a batch sampler of one's own does not say how many samples it gives in all")

    def begin(self, pass_number: int) -> Start:
        """Start a pass. Returns the state with which `resume` repeats it."""
        if self._seed is None:
            start = self._generator_states()
            self._begin(pass_number, 0)
            return start
        with preserved():
            seed_host(self._seed, pass_number)
            for number, generator in enumerate(self._generators()):
                generator.manual_seed(self._seed * 1_000_003 + pass_number * 101 + number)
            start = self._generator_states()
            self._begin(pass_number, 0)
            self._fill()  # draws the order, while the generators are those of the seed
        return start

    def _generator_states(self) -> Start:
        return get_state() | {"generators": [generator.get_state() for generator in self._generators()]}

    def resume(self, pass_number: int, start: Start, taken: int, wanted: Container[int]) -> None:
        """Repeat a pass from its ``taken``-th sample on; `again` gives the earlier samples at the ``wanted`` positions."""
        with preserved():
            set_state(start)
            for generator, state in zip(self._generators(), start["generators"], strict=True):
                generator.set_state(state)
            self._begin(pass_number, taken if self.indexed else 0)
            if self.indexed:
                self._fill()  # draws the order, while the generators are those of that time
        while not self.indexed and self._next < taken:
            position, sample = self.take()
            if position in wanted:
                self._kept[position] = sample

    def _begin(self, pass_number: int, skip: int) -> None:
        self.pass_number, self._next = pass_number, skip
        self._chunk.clear()
        self._kept.clear()
        self._last = (-1, None)
        if self._order is not None:
            self._order.begin(pass_number, skip)
        self._chunks, self.running = iter(self._loader), object()

    def end(self, running: object) -> None:
        """Stop decoding in that pass, which was `running`, and end its workers; `again` still works."""
        if running is self.running:
            self._chunks, self.running = iter(()), None
            self._chunk.clear()

    def close(self) -> None:
        """The same for the present pass, persistent workers included. `begin` and `resume` start new ones."""
        self.end(self.running)
        self._loader = self._rebuilt()

    def take(self) -> tuple[int, Any]:
        self._fill()
        if not self._chunk:
            raise StopIteration
        sample = self._chunk.popleft()
        position, self._next = self._next, self._next + 1
        if self._order is None and self._once is not None:
            sample = self._augmented(sample, position)
        if self._order is None:
            self._last = position, sample
        return position, sample

    def again(self, position: int) -> Any:
        if self._order is not None:
            with host_preserved():
                return self._data[self._order.keys[position]]
        return self._last[1] if self._last[0] == position else self._kept.pop(position)

    def keep(self, position: int, sample: Any) -> None:
        """Keep a sample if it could not be decoded again."""
        if not self.indexed:
            self._kept[position] = sample

    def set_epoch(self, epoch: int) -> None:
        """For samplers and data sets that order themselves by it."""
        inner = getattr(self._plain.batch_sampler, "sampler", None)
        for target in (self._plain.sampler, self._plain.batch_sampler, inner, self._plain.dataset):
            if callable(set_epoch := getattr(target, "set_epoch", None)):
                set_epoch(epoch)
                return

    def _augmented(self, sample: Any, position: int) -> Any:
        assert self._once is not None
        if self._seed is None:
            return self._once(sample)
        with host_preserved():
            seed_host(self._seed, self.pass_number, position)
            return self._once(sample)

    def _fill(self) -> None:
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._chunk.extend(map(_unpacked, chunk) if self._plain.num_workers else chunk)

    def _generators(self) -> list[torch.Generator]:
        inner = getattr(self._plain.batch_sampler, "sampler", None)
        held = (self._plain.generator, getattr(self._plain.sampler, "generator", None), getattr(inner, "generator", None))
        unique = {id(generator): generator for generator in held if isinstance(generator, torch.Generator)}
        return list(unique.values())

    def _rebuilt(self) -> DataLoader[Any]:
        plain = self._plain
        options: dict[str, Any] = {
            "num_workers": plain.num_workers,
            "collate_fn": _packed_samples if plain.num_workers else _as_they_are,
            "timeout": plain.timeout,
            "worker_init_fn": plain.worker_init_fn,
            "multiprocessing_context": plain.multiprocessing_context,
            "generator": plain.generator,
            "prefetch_factor": plain.prefetch_factor,
            "persistent_workers": plain.persistent_workers,
        }
        if self._order is not None:
            return DataLoader(self._data, batch_sampler=self._order, **options)
        return DataLoader(plain.dataset, batch_size=plain.batch_size or 1, drop_last=plain.drop_last, **options)


class _Order:
    """The loader's batches of indices, from a position on; the keys of all positions of the pass so far are kept."""

    def __init__(self, plain: DataLoader[Any], *, tagged: bool) -> None:
        self._batches: Iterable[Iterable[Any]] = plain.batch_sampler if plain.batch_sampler is not None else _Singles(plain.sampler)
        self._tagged = tagged
        self._pass, self._skip = 0, 0
        self.keys: list[Any] = []

    def begin(self, pass_number: int, skip: int) -> None:
        self._pass, self._skip = pass_number, skip
        self.keys = []

    def __iter__(self) -> Iterator[list[Any]]:
        keys, skip = self.keys, self._skip
        for batch in self._batches:
            before = len(keys)
            chunk = [(self._pass, position, index) if self._tagged else index for position, index in enumerate(batch, before)]
            keys.extend(chunk)
            if wanted := chunk[max(0, skip - before) :]:
                yield wanted


class _Singles:
    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        return ([index] for index in self._sampler)


class _Decoding(Dataset[Any]):
    """A data set whose samples are decoded under seeds of their own (its index is then (pass, position, index)) and augmented once."""

    def __init__(self, data: Any, seed: int | None, once: Transform | None) -> None:
        self._data, self._seed, self._once = data, seed, once

    def __getitem__(self, key: Any) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Any]) -> list[Any]:
        if self._seed is None:
            return [self._decode(key) for key in keys]
        with host_preserved():  # once for all: it takes ten times as long as seeding
            return [self._seeded(self._seed, *key) for key in keys]

    def _seeded(self, seed: int, pass_number: int, position: int, index: Any) -> Any:
        seed_host(seed, pass_number, position)
        return self._decode(index)

    def _decode(self, index: Any) -> Any:
        sample = self._data[index]
        return self._once(sample) if self._once else sample


class _Array:
    """A tensor on its way from a worker.

    As tensors, thousands of samples in a buffer would each keep a shared-memory file open, beyond a process's limit; as arrays they
    are copied through the pipe.
    """

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def _packed(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        try:
            return _Array(sample.numpy())
        except (TypeError, RuntimeError):  # a type that NumPy lacks (bfloat16), a layout, a gradient
            return sample
    return _mapped(_packed, sample)


def _unpacked(sample: Any) -> Any:
    return torch.from_numpy(sample.array) if isinstance(sample, _Array) else _mapped(_unpacked, sample)


def _mapped(function: Transform, sample: Any) -> Any:
    """The sample with the function applied to the values in its containers."""
    if type(sample) is dict:
        return {key: function(value) for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*map(function, sample))
    if type(sample) in (tuple, list):
        return type(sample)(map(function, sample))
    return sample


def _packed_samples(samples: list[Any]) -> list[Any]:
    return [_packed(sample) for sample in samples] if isinstance(samples, list) else [_packed(samples)]


def _as_they_are(samples: Any) -> list[Any]:
    return samples if isinstance(samples, list) else [samples]
