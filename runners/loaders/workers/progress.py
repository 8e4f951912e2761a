"""The delivered items of a pass: enough to continue exactly, whatever was in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Progress:
    """Of one pass.

    Attributes:
        number: of the pass, from 0.
        delivered: items that the consumer was given.
        high: all positions of the source below it were delivered, except ``pending``. Their number is bounded by the
            content of shuffles and queues, not by the data.
    """

    def __init__(self, number: int = 0, delivered: int = 0, high: int = 0, pending: Iterable[int] = ()) -> None:
        self.number, self.delivered, self.high = number, delivered, high
        self.pending = set(pending)

    def deliver(self, positions: tuple[int, ...]) -> None:
        self.delivered += 1
        for position in positions:
            if position >= self.high:
                self.pending.update(range(self.high, position))
                self.high = position + 1
            else:
                self.pending.discard(position)

    def state(self) -> dict[str, Any]:
        return {"pass": self.number, "delivered": self.delivered, "high": self.high, "pending": sorted(self.pending)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Progress:
        return cls(state["pass"], state["delivered"], state["high"], state["pending"])
