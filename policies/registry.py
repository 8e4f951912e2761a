"""Policies by name. A policy is imported when it is asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import own
from .nearest import meant

if TYPE_CHECKING:
    from .contract import Policy

POLICIES: dict[str, str] = {
    "chronus": "baselines.chronus:Chronus",
    "elasticflow": "baselines.elasticflow:ElasticFlow",
    "edf": "edf:Edf",
    "fifo": "fifo:Fifo",
    "gandiva": "baselines.gandiva:Gandiva",
    "genie": "baselines.genie:Genie",
    "hydra": "baselines.hydra:Hydra",
    "las": "las:Las",
    "lucid": "baselines.lucid:Lucid",
    "infless": "baselines.infless:Infless",
    "optimus": "baselines.optimus:Optimus",
    "pollux": "baselines.pollux:Pollux",
    "priority": "priority:Priority",
    "prompttuner": "prompttuner.prompttuner:PromptTuner",
    "sjf": "sjf:Sjf",
    "srtf": "srtf:Srtf",
    "switchflow": "switchflow:SwitchFlow",
    "threesigma": "baselines.threesigma:ThreeSigma",
    "themis": "baselines.themis:Themis",
    "tiresias": "baselines.tiresias:Tiresias",
    "unisched": "unisched.unisched:UniSched",
    "ymir": "ymir.ymir:Ymir",
}
_loaded: dict[str, own.Loaded] = {}  #: users' own, as last loaded
_loading = threading.RLock()


class NoSuchPolicy(ValueError):
    """No policy has this name."""


def load(name: str) -> type[Policy]:
    """The class of a policy: one of ours by name, or a user's as ``package.module:Class``."""
    return loaded(name).policy


def loaded(name: str) -> own.Loaded:
    """A policy with its source. Users' own are loaded once; `anew` loads them again."""
    if name in POLICIES:
        module, attribute = POLICIES[name].split(":")
        return own.Loaded(getattr(importlib.import_module(f".{module}", __package__), attribute))
    if ":" in name:
        with _loading:
            if name not in _loaded:
                _loaded[name] = own.load(name)
            return _loaded[name]
    near = meant(name, POLICIES)
    hint = f"did you mean {near!r}?" if near else f"known policies: {', '.join(sorted(POLICIES))}; your own is package.module:Class"
    raise NoSuchPolicy(f"policy: no policy is named {name!r}; {hint}")


@contextlib.contextmanager
def anew(name: str) -> Iterator[own.Loaded]:
    """Load the present code of a policy. If that or the block fails, the old code stays."""
    if name in POLICIES:
        yield loaded(name)
        return
    with _loading:
        before = _loaded.pop(name, None)
        try:
            yield loaded(name)
        except BaseException:
            _loaded.pop(name, None)
            if before:
                _loaded[name] = before
            raise


def create(name: str, values: Mapping[str, Any], policy: type[Policy] | None = None, *, interval: float | None = None) -> Policy:
    """A policy ready to plan, its configuration built from plain values; ValueError names the key and the remedy.

    ``policy``: its class, if one loaded earlier is meant.
    ``interval``: seconds of a round, whatever ``values`` say, for a policy that has the key ``round``.
    """
    from .keys import make_config

    policy = policy or load(name)
    if interval is not None and "round" in {field.name for field in dataclasses.fields(policy.Config)}:
        values = {**values, "round": interval}
    config = make_config(policy.Config, values)
    try:
        return policy(config)
    except (Exception, SystemExit) as error:  # it may be any code
        raise ValueError(f"policy: {name} cannot be made: {own.words(error)}") from error


def describe() -> list[dict[str, Any]]:
    """The content of ``stoker policy list``: each policy with its rule and its configuration."""
    return [describe_one(name) for name in sorted(POLICIES)]


def describe_one(name: str) -> dict[str, Any]:
    found = loaded(name)
    config = [_describe_field(field) for field in dataclasses.fields(found.policy.Config)]
    return {"name": name, "doc": inspect.getdoc(found.policy) or "", "config": config, "code": found.code, "modules": list(found.modules)}


def _describe_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    known = {key: field.metadata.get(key) for key in ("low", "high", "doc")}
    return {
        "name": field.name,
        "type": type(field.default).__name__,
        "default": field.default,
        "choices": list(field.metadata.get("choices", ())),
        **known,
    }
