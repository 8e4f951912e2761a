"""Reasons that are computed when they are read: a simulation of a million decisions shows none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class Later(Sequence[T_co]):
    """The sequence of ``make``, made at the first read."""

    def __init__(self, make: Callable[[], Sequence[T_co]]) -> None:
        self._make = make

    @cached_property
    def _items(self) -> Sequence[T_co]:
        return self._make()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self._items[index]
