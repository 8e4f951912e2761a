"""Bytes that an item keeps in memory: its data and the objects that hold it, exact for arrays and text, an estimate for the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

QUEUED_ITEM_BYTES = 352  #: bytes of a queue's own objects for an item: Item, positions, numbers, an entry of a dictionary
_TENSOR = 512  #: of a tensor with its storage, without its elements, by the measured growth of a process
_ARRAY = 112  #: of an ndarray
_LOOK = 16  #: elements of a long container that are visited
_DEPTH = 6  #: of nested containers
_VISITS = 1000  #: objects of an item that are visited at most: in a graph each one leads to all others
_VIEW_ALONE = 3  #: references to the base of an array: its view's, a name's, and the call's
_COO = ("_indices", "_values")
_COMPRESSED = ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values")


def nbytes(item: Any) -> int:
    """Bytes of an item. In a container longer than 32 elements, 16 spread over it stand for all; an object there twice counts once.

    A view counts its own elements, or its whole base if it alone keeps that in memory.
    """
    return _Count().of(item, _DEPTH)


class _Count:
    """Of one item."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # holds the objects, or their ids would be given to others

    def of(self, item: Any, depth: int) -> int:
        if item is None or isinstance(item, bool):  # there is one of each
            return 0
        if id(item) in self._seen:
            return 0
        if len(self._seen) >= _VISITS:
            return sys.getsizeof(item, 64)
        if depth <= 0:  # not marked as seen: it may be met again on a shorter way
            return sys.getsizeof(item, 64)
        self._seen[id(item)] = item
        if isinstance(item, int | float | bytes | bytearray | str):
            return sys.getsizeof(item)
        if isinstance(item, Mapping):
            return sys.getsizeof(item, 64) + self._elements(list(item.values()), depth)
        if isinstance(item, list | tuple | set | frozenset):
            return sys.getsizeof(item) + self._elements(item if isinstance(item, list | tuple) else list(item), depth)
        size = _array(item)
        return self._object(item, depth) if size is None else size

    def _elements(self, elements: list[Any] | tuple[Any, ...], depth: int) -> int:
        if len(elements) <= 2 * _LOOK:
            return sum(self.of(element, depth - 1) for element in elements)
        first, *others = elements[:: len(elements) // _LOOK]
        # An object that all refer to is counted with the first, and must not be multiplied.
        own = self.of(first, depth - 1)
        return own + sum(self.of(element, depth - 1) for element in others) * (len(elements) - 1) // len(others)

    def _object(self, item: Any, depth: int) -> int:
        """Bytes of an image by its area, of any other object by its attributes."""
        bands, area = getattr(item, "getbands", None), getattr(item, "size", None)
        if callable(bands) and isinstance(area, tuple) and len(area) == 2:  # PIL keeps four bytes a pixel for three bands
            return sys.getsizeof(item, 64) + int(area[0]) * int(area[1]) * (1 if len(bands()) == 1 else 4)
        attributes = getattr(item, "__dict__", None)
        own = sys.getsizeof(item, 64)
        return own + (self._elements(list(attributes.values()), depth) if attributes else 0)


def _array(item: Any) -> int | None:
    """Bytes of an ndarray, a memoryview, or a tensor of the installed torch; None for any other object."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.Tensor):
        return _TENSOR + max(_dense(item), _kept(item))
    if numpy is not None and isinstance(item, numpy.ndarray):
        base = item.base
        kept = base.nbytes if isinstance(base, numpy.ndarray) and base.flags.owndata and sys.getrefcount(base) <= _VIEW_ALONE else 0
        return _ARRAY + int(max(item.nbytes, kept))
    size = None
    with suppress(Exception):  # a property may raise whatever it likes
        size = item.nbytes
    return sys.getsizeof(item, 64) + size if isinstance(size, int) else None


def _dense(tensor: Any) -> int:
    if "sparse" not in str(tensor.layout):
        return int(tensor.nbytes)
    return sum(_TENSOR + int(part.nbytes) for part in _parts(tensor, _COO if tensor.is_sparse else _COMPRESSED))


def _parts(tensor: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        with suppress(RuntimeError):  # a compressed layout has either the names of rows or those of columns
            yield getattr(tensor, name)()


def _kept(tensor: Any) -> int:
    """Bytes of the storage that a view alone keeps in memory."""
    base = tensor._base
    if base is None or sys.getrefcount(base) > _alone():
        return 0
    with suppress(RuntimeError):  # a sparse base has no storage of its own
        return int(base.untyped_storage().nbytes())
    return 0


@cache
def _alone() -> int:
    """References to a base that only its view holds: versions of torch differ in whether they count their own."""
    import torch

    view = torch.zeros(2)[:1]
    base = view._base
    return sys.getrefcount(base)
