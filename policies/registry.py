"""Policies by name. Nothing is imported until it is asked for."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .names import meant

if TYPE_CHECKING:
    from .contract import Policy

POLICIES: dict[str, str] = {
    "chronus": "chronus:Chronus",
    "elasticflow": "elasticflow:ElasticFlow",
    "edf": "edf:Edf",
    "fifo": "fifo:Fifo",
    "gandiva": "gandiva:Gandiva",
    "genie": "genie:Genie",
    "hydra": "hydra:Hydra",
    "las": "las:Las",
    "lucid": "lucid:Lucid",
    "infless": "infless:Infless",
    "optimus": "optimus:Optimus",
    "pollux": "pollux:Pollux",
    "priority": "priority:Priority",
    "sjf": "sjf:Sjf",
    "srtf": "srtf:Srtf",
    "threesigma": "threesigma:ThreeSigma",
    "themis": "themis:Themis",
    "tiresias": "tiresias:Tiresias",
    "unisched": "unisched.policy:UniSched",
}
_FOREIGN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def load(name: str) -> type[Policy]:
    """The class of a policy: one of ours by name, or anybody's as ``package.module:Class``."""
    if name in POLICIES:
        module, attribute = POLICIES[name].split(":")
        policy: type[Policy] = getattr(importlib.import_module(f".{module}", __package__), attribute)
        return policy
    if ":" in name:
        return _load_foreign(name)
    near = meant(name, POLICIES)
    hint = f"did you mean {near!r}?" if near else f"known policies: {', '.join(sorted(POLICIES))}; your own is package.module:Class"
    raise ValueError(f"policy: no policy is named {name!r}; {hint}")


def create(name: str, values: Mapping[str, Any]) -> Policy:
    """A policy ready to plan, its configuration built from plain values; ValueError names the key and the remedy."""
    from .contract import make_config

    policy = load(name)
    config = make_config(policy.Config, values)
    try:
        return policy(config)
    except (Exception, SystemExit) as error:  # it is anybody's code
        raise ValueError(f"policy: {name} cannot be made: {_words(error)}") from error


def describe() -> list[dict[str, Any]]:
    """What ``stoker policy list`` shows: each policy with its rule and its configuration."""
    return [describe_one(name) for name in sorted(POLICIES)]


def describe_one(name: str) -> dict[str, Any]:
    policy = load(name)
    return {"name": name, "doc": inspect.getdoc(policy) or "", "config": [_describe_field(f) for f in dataclasses.fields(policy.Config)]}


def _describe_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    known = {key: field.metadata.get(key) for key in ("low", "high", "doc")}
    return {
        "name": field.name,
        "type": type(field.default).__name__,
        "default": field.default,
        "choices": list(field.metadata.get("choices", ())),
        **known,
    }


def _load_foreign(name: str) -> type[Policy]:
    if not _FOREIGN.fullmatch(name):
        raise ValueError(f"policy: {name!r} is not package.module:Class")
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"policy: cannot import {module!r} ({error}); put it on PYTHONPATH, for a pool on the daemon's") from error
    except (Exception, SystemExit) as error:  # it is anybody's code
        raise ValueError(f"policy: {module!r} fails when it is imported: {_words(error)}") from error
    try:
        policy = getattr(found, attribute)
    except AttributeError:
        raise ValueError(f"policy: module {module!r} has no {attribute!r}") from None
    missing = [member for member in ("Config", "name", "plan") if not hasattr(policy, member)]
    if not missing and not dataclasses.is_dataclass(policy.Config):
        missing = ["a dataclass as Config"]
    if missing:
        raise ValueError(f"policy: {name} is no policy: it lacks {', '.join(missing)}; see docs/writing-a-policy.md")
    return policy  # type: ignore[no-any-return]


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
