"""Jobs that may be spread over nodes: their model has no tensor that dwarfs the others (Tiresias, NSDI 2019, sec. 3)."""

from __future__ import annotations

import numpy as np

from ..contract import Bools, View


def spreadable(view: View, pack_limit: float) -> Bools | None:
    """Jobs whose largest tensor is at most ``pack_limit`` of the model; one of unknown skew is consolidated. None: no skew is known."""
    profile = view.jobs.profile
    if profile is None or not view.profiles:
        return None
    skew = np.array([known.skew for known in view.profiles], dtype=np.float64)
    small: Bools = (profile >= 0) & (skew[profile] <= pack_limit)  # NaN is not
    return small
