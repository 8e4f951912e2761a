"""Loaders for training scripts: decoded data used several times, and a data pipeline that sizes itself while it runs.

    from stoker.loaders import autotuned, reuse

    for batch in autotuned(DataLoader(dataset, batch_size=64, shuffle=True)):
        ...
    loader = reuse(DataLoader(dataset, batch_size=64, shuffle=True), repeat=3, transform=augment)

Nothing here needs a daemon, a runner or a job; in a job of Stoker, what the tuner does is also told to the table ``pipelines``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runners.loaders.autotuned import Autotuned, autotuned
    from .runners.loaders.pipeline import Pipeline
    from .runners.loaders.reuse.buffer import ReuseBuffer
    from .runners.loaders.reuse.schedules import FineTune, HighestRates, fine_tune_schedule, rule_peak, search_peak
    from .runners.loaders.reuse.switch import Switch, SwitchRule
    from .runners.loaders.reuse.wrapper import ReusingLoader, reuse
    from .runners.loaders.staged import staged
    from .runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source
    from .runners.loaders.tuner import Step
    from .runners.loaders.tuning.controller import Controller, Decision, Knob, Observation, StageReading, Unit

__all__ = [
    "Autotuned",
    "Batch",
    "Controller",
    "Decision",
    "FineTune",
    "HighestRates",
    "Knob",
    "Map",
    "Observation",
    "Pipeline",
    "Prefetch",
    "ReuseBuffer",
    "ReusingLoader",
    "Shuffle",
    "Source",
    "StageReading",
    "Step",
    "Switch",
    "SwitchRule",
    "Unit",
    "autotuned",
    "fine_tune_schedule",
    "reuse",
    "rule_peak",
    "search_peak",
    "staged",
]

_NAMES = {
    "autotuned": ("Autotuned", "autotuned"),
    "pipeline": ("Pipeline",),
    "reuse.buffer": ("ReuseBuffer",),
    "reuse.schedules": ("FineTune", "HighestRates", "fine_tune_schedule", "rule_peak", "search_peak"),
    "reuse.switch": ("Switch", "SwitchRule"),
    "reuse.wrapper": ("ReusingLoader", "reuse"),
    "staged": ("staged",),
    "stages": ("Batch", "Map", "Prefetch", "Shuffle", "Source"),
    "tuner": ("Step",),
    "tuning.controller": ("Controller", "Decision", "Knob", "Observation", "StageReading", "Unit"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:  # torch and the loaders' own modules are imported only when they are used
        return getattr(import_module(f".runners.loaders.{_HOME[name]}", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
