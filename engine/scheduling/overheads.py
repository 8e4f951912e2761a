"""The measured cost of a suspension with its resumption. It is kept in memory, as every View needs it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...policies.contract import Floats, Ints

Row = tuple[str, int, int, float, int]  #: pool, code of the model, GPUs, seconds, times measured


class Overheads:
    """Seconds by model and number of GPUs. For a number never measured the model's mean stands, for a model never measured the pool's.

    The cost on 2 GPUs differs from that on 16 by a few seconds (002 fig. 5.3), so the cost of another number is better than none.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        sums: dict[tuple[str, int | None, int | None], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for pool, model, gpus, seconds, times in rows:
            for key in ((pool, model, gpus), (pool, model, None), (pool, None, None)):
                sums[key][0] += max(seconds, 0.0) * times  # negative where the clock was set back
                sums[key][1] += times
        self._means = {key: total / times for key, (total, times) in sums.items()}

    def of(self, pool: str, models: np.ndarray[Any, Any], gpus: Ints) -> Floats | None:
        """A row a job, from the codes of their models and the GPUs that they ask for; None: nothing was measured in this pool."""
        mean = self._means.get((pool, None, None), math.nan)
        if math.isnan(mean):
            return None
        model = np.unique(models, return_inverse=True)[1]
        _, first, kind = np.unique(model * (gpus.max(initial=0) + 1) + gpus, return_index=True, return_inverse=True)  # one look-up a kind
        pairs = zip(models[first].tolist(), gpus[first].tolist(), strict=True)
        return np.array([self._mean(pool, *pair, mean) for pair in pairs], dtype=np.float64)[kind]

    def _mean(self, pool: str, model: int, gpus: int, otherwise: float) -> float:
        means = self._means
        exact = means.get((pool, model, gpus))
        return exact if exact is not None else means.get((pool, model, None), otherwise)
