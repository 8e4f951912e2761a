"""The believed speed of a model, by allocation, and its behaviour on a shared GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .goodput import Goodput


class Throughput:
    """Iterations per second by number of GPUs: on one node, and over several (002 Eqn 5.2, which has no third case).

    Between the points of a table the rate is interpolated linearly, as in 002 ch. 3.5.1 and Pollux's simulator; outside
    them it is that of the nearest point, so no unmeasured speed is promised.
    """

    def __init__(self, gpus: Sequence[int], rates: Sequence[float], spread: Sequence[float] | None = None) -> None:
        """``rates`` on one node, ``spread`` over several (None: the same), at ascending ``gpus``."""
        if not gpus or list(gpus) != sorted(set(gpus)) or gpus[0] < 1:
            raise ValueError(f"throughput: numbers of GPUs must ascend from at least 1, not {list(gpus)}")
        for column in (rates, spread if spread is not None else rates):
            if len(column) != len(gpus) or not all(math.isfinite(rate) and rate > 0 for rate in column):
                raise ValueError("throughput: needs one positive rate for each number of GPUs")
        self.gpus = np.asarray(gpus, dtype=np.float64)
        self.rates = np.asarray(rates, dtype=np.float64)
        self.spread = self.rates if spread is None else np.asarray(spread, dtype=np.float64)

    @classmethod
    def of_iteration(cls, compute: float, intra: float, inter: float, most: int = 64) -> Throughput:
        """002 Eqn 5.2: an iteration takes compute + (n - 1) communication seconds, ``intra`` on one node and ``inter`` over several.

        An iteration on n GPUs does the work of n iterations on one: rates are in iterations of one GPU.
        """
        gpus = range(1, most + 1)
        return cls(
            list(gpus),
            [n / (compute + (n - 1) * intra) for n in gpus],
            [n / (compute + (n - 1) * inter) for n in gpus],
        )

    def rate(self, gpus: int, *, spread: bool = False) -> float:
        """On one node, or ``spread`` over several, for any number of GPUs."""
        return float(np.interp(gpus, self.gpus, self.spread if spread else self.rates))

    def consolidated(self, gpus: int, node: int) -> float:
        """The rate on as few nodes as possible, if the largest node has ``node`` GPUs."""
        return self.rate(gpus, spread=gpus > node)


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured or estimated properties of one model (with its batch size)."""

    name: str
    throughput: Throughput | None = None  #: None: only the speed on its requested GPUs is known
    goodput: Goodput | None = None  #: statistical efficiency by batch size (Pollux); None: its batch size is fixed
    utilisation: float = math.nan  #: share of a GPU's compute that it uses alone, 0 to 1
    memory: float = math.nan  #: share of a GPU's memory that it uses, 0 to 1
    skew: float = math.nan  #: largest tensor as a share of the model (Tiresias' measure of the cost of spreading), 0 to 1
