"""Bytes that an item holds: exact for arrays and text, a cheap estimate for the rest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_LOOK = 16  #: elements of a long container that are looked at
_DEPTH = 6  #: of nested containers


def nbytes(item: Any, depth: int = _DEPTH) -> int:
    """Bytes of an item. Of a container longer than 32 elements, 16 spread over it stand for all."""
    size = getattr(item, "nbytes", None)  # ndarray, memoryview, and tensors of the torch that is installed
    if isinstance(size, int):
        return size
    if isinstance(item, bytes | bytearray | str):
        return len(item)
    if isinstance(item, int | float | bool) or item is None:
        return 32
    if depth <= 0:
        return sys.getsizeof(item, 64)
    if isinstance(item, Mapping):
        return 64 * len(item) + _elements(list(item.values()), depth)
    if isinstance(item, list | tuple | set | frozenset):
        return 8 * len(item) + _elements(item if isinstance(item, list | tuple) else list(item), depth)
    return _object(item, depth)


def _elements(elements: list[Any] | tuple[Any, ...], depth: int) -> int:
    if len(elements) <= 2 * _LOOK:
        return sum(nbytes(element, depth - 1) for element in elements)
    step = len(elements) // _LOOK
    seen = elements[::step]
    return sum(nbytes(element, depth - 1) for element in seen) * len(elements) // len(seen)


def _object(item: Any, depth: int) -> int:
    """Of an image by its area, of any other object by its attributes."""
    bands, area = getattr(item, "getbands", None), getattr(item, "size", None)
    if callable(bands) and isinstance(area, tuple) and len(area) == 2:  # PIL keeps four bytes a pixel for three bands
        return int(area[0]) * int(area[1]) * (1 if len(bands()) == 1 else 4)
    attributes = getattr(item, "__dict__", None)
    own = sys.getsizeof(item, 64)
    return own + (_elements(list(attributes.values()), depth) if attributes else 0)
