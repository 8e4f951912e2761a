"""Types of the columns, and which of them are among some."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Strings = NDArray[np.object_]

_FEW = 8  #: numbers that are looked for one by one


def among(ids: Ints, some: Collection[int]) -> Bools:
    """Which of ``ids`` are among ``some``."""
    if len(some) > _FEW:
        return np.isin(ids, list(some))
    found = np.zeros(len(ids), dtype=bool)
    for one in some:
        found |= ids == one
    return found
