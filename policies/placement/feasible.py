"""The gangs that a pool, or a part of it, could hold if all of it were free."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ..contract import Bools
from .consolidated import Placement


def holdable_in(part: Placement, gpus: Bools) -> Callable[[int, float], bool]:
    """A test whether ``part``, which has ``gpus`` of the pool, could hold a gang of so many GPUs of so much memory; usable GPUs only."""

    @cache
    def empty() -> Placement:
        emptied = part.copy()
        emptied.release(np.flatnonzero(gpus))
        return emptied

    @cache
    def holdable(n: int, memory: float) -> bool:
        return empty().find(n, memory=memory) is not None

    return holdable
