"""Known gains between jobs: of one with the weights of another, and of two that train together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..arrays import Floats
from .throughput import Throughput


@dataclass(frozen=True, slots=True)
class Joint:
    """Two tasks that train together, from the view of the first (spatial transfer, 002 ch. 3.2)."""

    work: float  #: samples of both tasks until the first is at its target, over its own samples alone
    throughput: Throughput  #: samples of both per second, over those of the first alone on its fewest GPUs

    def speed(self, gpus: int, *, spread: bool) -> float:
        """Work of the first per second; alone on the fewest GPUs it is 1."""
        return self.throughput.rate(gpus, spread=spread) / self.work


@dataclass(frozen=True, slots=True)
class Transfers:
    """By rows of ``View.profiles``."""

    #: [a, b]: the work of b from the weights of an ended a, over its work from the backbone; NaN: not known.
    begin: Floats
    joint: Mapping[tuple[int, int], Joint] = field(default_factory=dict)  #: (a, b): a's part in training with b; always both ways
