"""What an entrypoint imports: the function that it names returns a `Task`."""

from __future__ import annotations

from .train.batches import interruptible
from .train.task import Task

__all__ = ["Task", "interruptible"]
