"""Backbones that a fork server has loaded: a recipe in its forks finds them here (docs/warm.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_held: dict[str, Any] = {}


def hold(name: str, load: Callable[[str], Any]) -> None:
    """Load a backbone for the forks of this process: a module, or an object with one as ``model``."""
    from torch import nn

    from . import huge_pages

    _held[name] = found = load(name)
    if isinstance(model := getattr(found, "model", found), nn.Module):
        huge_pages.settle(model)


def take(name: str, load: Callable[[str], T]) -> T:
    """The held backbone, once, as a training changes it; else it is loaded.

    ``load`` must neither draw from a random generator nor depend on the job: the held backbone must equal a newly loaded one.
    """
    found: T = _held.pop(name) if name in _held else load(name)
    return found
