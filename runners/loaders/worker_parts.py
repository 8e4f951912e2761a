"""An iterable data set, each part of it read by one of a DataLoader's workers, as with WebDataset.

The DataLoader's own workers read it. A worker's number determines its part, so their number is always as asked for. They are left as
torch makes them, `get_worker_info` and the order of their batches included. Only their batches take another way: each in a memory
file, as from the processes of other stages, not in shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any

from torch.utils.data import DataLoader

from .collate import keep_to_own_memory
from .workers import ipc


class Parts:
    """The batches of such a loader, collated; called once a pass by the thread that iterates, which starts the workers."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._given = loader
        self._loader = self._rebuilt()

    def __call__(self) -> Iterator[Any]:
        return self._values(iter(self._loader))  # the workers are made now, and not in the thread that takes the first

    def _values(self, parcels: Any) -> Iterator[Any]:
        whole = False
        try:
            for parcel in parcels:
                yield parcel.value
            whole = True
        finally:
            if not self._loader.persistent_workers:
                parcels._shutdown_workers()  # a kept exception would keep them alive
            elif not whole:
                self.close()
                parcels._shutdown_workers()

    def close(self) -> None:
        """End persistent workers."""
        if self._loader.persistent_workers:
            self._loader = self._rebuilt()

    def _rebuilt(self) -> DataLoader[Any]:
        given = self._given
        return DataLoader(
            given.dataset,
            batch_size=given.batch_size,
            drop_last=given.drop_last,
            num_workers=given.num_workers,
            collate_fn=_Packing(given.collate_fn),
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            generator=given.generator,
            prefetch_factor=given.prefetch_factor,
            persistent_workers=given.persistent_workers,
            in_order=given.in_order,
        )


class CountedParts(Parts):
    """The same for a loader that knows its length."""

    def __len__(self) -> int:
        return len(self._given)


class _Packing:
    """A loader's collate, in its worker."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> _Parcel:
        keep_to_own_memory()
        return _Parcel(self._collate(samples))


class _Parcel:
    """A batch on its way. It is pickled as it is made, since the queue would hide a failure."""

    def __init__(self, value: Any) -> None:
        self._packed = ipc.Packed(value)

    def __reduce__(self) -> Any:
        packed = self._packed
        return _arrived, (packed.data, packed.lengths, packed.inline, None if packed.file < 0 else reduction.DupFd(packed.file))


class _Arrived:
    def __init__(self, value: Any) -> None:
        self.value = value


def _arrived(data: bytes, lengths: list[int], inline: list[bytes], sent: Any) -> _Arrived:
    if sent is None:
        return _Arrived(ipc.unpacked(data, lengths, inline))
    file = sent.detach()
    try:
        return _Arrived(ipc.unpacked(data, lengths, inline, file))
    finally:
        os.close(file)
