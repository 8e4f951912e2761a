"""Types of the columns, and tests for membership and equal rows."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Strings = NDArray[np.object_]

_COMPARED_SINGLY = 8  #: numbers up to which each is compared by itself


def among(ids: Ints, some: Collection[int]) -> Bools:
    """Whether each of ``ids`` is in ``some``."""
    if len(some) > _COMPARED_SINGLY:
        return np.isin(ids, list(some))
    found = np.zeros(len(ids), dtype=bool)
    for one in some:
        found |= ids == one
    return found


def kinds_of(*columns: Ints | Floats) -> Ints:
    """Equal numbers for rows with equal values in all columns; unknown values are equal."""
    kinds = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes = np.unique(np.nan_to_num(column, nan=-1.0), return_inverse=True)[1]
        kinds = np.unique(kinds * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    return kinds
