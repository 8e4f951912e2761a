"""Backbones that a process was forked with: a recipe finds loaded what its fork server has loaded for it (docs/warm.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_held: dict[str, Any] = {}


def hold(name: str, load: Callable[[str], Any]) -> None:
    """Load a backbone, a module or what has one as ``model``, for whoever is forked from this process."""
    from torch import nn

    from . import huge_pages

    _held[name] = found = load(name)
    if isinstance(model := getattr(found, "model", found), nn.Module):
        huge_pages.settle(model)


def take(name: str, load: Callable[[str], T]) -> T:
    """What was held, once: who trains it changes it. Else it is loaded.

    ``load`` must neither draw from a random generator nor depend on the job: what is held equals what would be loaded.
    """
    found: T = _held.pop(name) if name in _held else load(name)
    return found
