"""Counts the memory of tensors by their storages: each storage counts from the operation that makes it until nothing refers to it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages made while it was on, views counted once, each ``rounded`` as the device allocates it.

    It sees intermediate results and autograd's tensors, which a ledger of our own allocations would not.
    """

    def __init__(self, over: Any = None, rounded: Callable[[int], int] = int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._over, self._rounded = over, rounded  #: ``over`` is called with the bytes in use when they have grown
        self._sizes: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it; torch's guard against that would take longer than the work here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            if tensor.untyped_storage()._cdata not in self._sizes:
                self.count(tensor, {given.untyped_storage()._cdata for given in tensors_in((args, tuple(kwargs.values())))})
        return result

    def count(self, tensor: torch.Tensor, known: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Count its storage, unless it was on the device before (``known``: storages of an operation's inputs)."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or key in known:
            return
        self._sizes[key] = size = self._rounded(storage.nbytes())
        weakref.finalize(storage, self._gone, key).atexit = False
        self.now += size
        self.peak = max(self.peak, self.now)
        if self._over is not None:
            self._over(self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in an operation's input or output, nested in lists at most. (torch's own walk takes as long as a small operation.)"""
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:  # a sparse one has no storage of its own
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
