"""Controllers of pipelines by name: Stoker's, and the baselines of 003 ch. 5 that only benchmarks have."""

from __future__ import annotations

from typing import Any

from climb import Autotune, AutotuneAdaptive
from plumber import Plumber, PlumberAdaptive
from stoker.runners.loaders.tuning import known_controllers
from stoker.runners.loaders.tuning.controller import Controller

_BASELINES: dict[str, Any] = {kind.name: kind for kind in (Autotune, AutotuneAdaptive, Plumber, PlumberAdaptive)}
#: weak ones first
NAMES = ("unoptimised", "fixed", "uniform", *_BASELINES, "rate", "dqn", "rate+dqn")


def create(name: str) -> Controller:
    """With its default options. UsageError for a name that there is not."""
    if name not in _BASELINES:
        return known_controllers.create(name)
    controller: Controller = _BASELINES[name](_BASELINES[name].Options())
    return controller
