"""Measures which values a forward keeps from one call of a unit to a later one, and which gradients come back over the same cuts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from ..device.device import Device
from ..device.memory_ledger import MemoryLedger
from .interception import Unit
from .micro_batch import MicroBatch
from .model_units import Units
from .partition import Crossing
from .swap_executor import SwapExecutor


class _Lifetimes(MemoryLedger):  # type: ignore[no-untyped-call]
    """Records for each storage the place at which it was made, and the last place at which it still existed."""

    def __init__(self, device: Device) -> None:
        super().__init__(rounded=device.rounded)
        self.place, self.ended = 0, list[Crossing]()
        self._born: dict[int, int] = {}

    def count(self, tensor: torch.Tensor, known: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().count(tensor, known)
        if (key := tensor.untyped_storage()._cdata) in self._sizes:
            self._born.setdefault(key, self.place)

    def _gone(self, key: int) -> None:
        self.ended.append(Crossing(self._born.pop(key), self.place, self._sizes[key]))
        super()._gone(key)

    def crossings(self, last: int) -> tuple[Crossing, ...]:
        """``last``: the last place. A storage that still exists there is kept for the backward pass, so it crosses all later cuts."""
        alive = [Crossing(birth, last + 1, self._sizes[key]) for key, birth in self._born.items() if birth < last]
        return tuple(each for each in (*self.ended, *alive) if each.birth < each.last and each.size)


class _Forward(MicroBatch):
    """Goes forward only. Its ``visit`` stays 0, so that all its calls count as calls of one part."""

    @property
    def visit(self) -> int:
        return 0

    @visit.setter
    def visit(self, value: int) -> None:
        pass

    def _compute(self) -> None:
        assert self.work is not None
        self.root = self.work().grad_fn


def crossings(units: Units, batch: MicroBatch, device: Device) -> tuple[tuple[Crossing, ...], tuple[Crossing, ...]]:
    """Values and gradients of one micro-batch that are made at one place and used at another."""
    last = len(units) - 1
    executor = SwapExecutor(units, range(1, len(units)), device)
    assert batch.work is not None
    forward, lives = _Forward(batch.work, batch.generators), _Lifetimes(device)
    numbers: list[tuple[int, int]] = []  #: after each call: the number of autograd's next node, and the place of the call

    def called(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = executor._called(forward, unit, args, kwargs)
        numbers.append((_next_number(), forward.place - 1))
        return answer

    try:
        executor._begin((forward,))
        forward.called = called
        place = 0
        while not forward.ended:
            executor._load(place)
            executor._enter(place)
            if forward.wanted is None:
                with lives:
                    executor._go(place, forward)
            else:
                executor._go(place, forward)
            executor._leave(place)
            if forward.wanted is not None:
                place = forward.wanted[0]
                lives.place = max(lives.place, place)
        values = lives.crossings(last)
        gradients = _gradients(forward.root, numbers, last, device)
        del forward.root
    finally:
        executor.abandon((forward,))
    return values, gradients


def _next_number() -> int:
    """The number that autograd gives to a node that is made now."""
    with torch.enable_grad():
        node = torch.empty(0, requires_grad=True).view(0).grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _gradients(root: Any, numbers: Iterable[tuple[int, int]], last: int, device: Device) -> tuple[Crossing, ...]:
    """The place at which each gradient is used, and the last one from which it comes, in the order of the backward pass."""
    starts = sorted(numbers)

    def turn(node: Any) -> int:
        """The place with which autograd goes through a node. Operations after a call go back with the next call."""
        number = node._sequence_nr()
        place = max((place for first, place in starts if first <= number), default=-1)
        return min(place + 1, last)

    came: dict[tuple[Any, int], list[int]] = {}
    seen, waiting = set(), [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for onward, number in node.next_functions:
            if onward is not None:
                came.setdefault((onward, number), []).append(turn(node))
                waiting.append(onward)
    found = []
    for (node, number), turns in came.items():
        metadata = node._input_metadata
        if number >= len(metadata) or metadata[number] is None:
            continue
        size = device.rounded(math.prod(metadata[number].shape) * metadata[number].dtype.itemsize)
        birth = min(turns) if type(node).__name__ == "AccumulateGrad" else turn(node)
        found.append(Crossing(birth, max(turns), size))
    return tuple(each for each in found if each.birth < each.last)
