"""The module for entrypoints to import: the function that a job names returns a `Task`."""

from __future__ import annotations

from .train.batches import interruptible
from .train.task import Task

__all__ = ["Task", "interruptible"]
