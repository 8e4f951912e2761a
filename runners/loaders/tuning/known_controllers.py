"""Controllers by name. A controller is imported when it is asked for, as the agent needs torch."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from ....engine.errors import UsageError, nearest
from . import controller_options as options
from .controller import Controller


class Entry(NamedTuple):
    module: str
    attribute: str
    doc: str  #: one line


CONTROLLERS: dict[str, Entry] = {
    "unoptimised": Entry("fixed", "Unoptimised", "one worker a stage"),
    "fixed": Entry("fixed", "Fixed", "values set by hand"),
    "uniform": Entry("fixed", "Uniform", "cores divided evenly among the stages"),
    "rate": Entry("rate", "Rate", "workers in proportion to measured cost, within cores, demand and locks"),
    "dqn": Entry("dqn", "Dqn", "InTune's agent: a DQN, pre-trained on simulated pipelines, fine-tuned while it runs"),
    "rate+dqn": Entry("dqn", "RateDqn", "the rate controller's allocation, refined by the agent"),
}
NAMES = tuple(CONTROLLERS)


def load(name: str) -> Any:
    """The class of a controller; UsageError names the nearest name."""
    if name not in CONTROLLERS:
        raise UsageError(f"controller: none is named {name!r}{nearest(name, CONTROLLERS) or '; there are ' + ', '.join(CONTROLLERS)}")
    entry = CONTROLLERS[name]
    return getattr(importlib.import_module(f".controllers.{entry.module}", __package__), entry.attribute)


def create(name: str, **values: Any) -> Controller:
    """A controller with its options; UsageError names the option, the mistake and the remedy."""
    kind = load(name)
    controller: Controller = kind(options.make(kind.Options, values, name))
    return controller


def describe() -> list[dict[str, Any]]:
    """Name, rule and options of each, for people."""
    return [{"name": name, "doc": entry.doc, "options": options.describe(load(name).Options)} for name, entry in CONTROLLERS.items()]
