"""Known help between jobs: how far one gets with the weights of another, and how far two get that train together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..arrays import Floats
from .throughput import Throughput


@dataclass(frozen=True, slots=True)
class Joint:
    """Two tasks that train together, as the first of them sees it (spatial transfer, 002 ch. 3.2)."""

    work: float  #: samples of both tasks until the first is at its target, over the samples of its own that it needs alone
    throughput: Throughput  #: samples of both a second, over the samples a second of the first alone on the fewest GPUs it runs on

    def speed(self, gpus: int, *, spread: bool) -> float:
        """Work of the first a second, of which it does 1 alone on the fewest GPUs."""
        return self.throughput.rate(gpus, spread=spread) / self.work


@dataclass(frozen=True, slots=True)
class Transfers:
    """By rows of ``View.profiles``."""

    #: [a, b]: the work of b when it begins with the weights of an a that has ended, over its work from the backbone; NaN: not known.
    begin: Floats
    joint: Mapping[tuple[int, int], Joint] = field(default_factory=dict)  #: (a, b): a's part in training with b; both ways or not at all
