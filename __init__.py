"""Stoker keeps the GPUs of a host busy: an embedded, SQL-backed workflow engine for deep-learning training.

For training scripts: ``stoker.report(step=…, loss=…)``, ``stoker.should_stop()``, ``stoker.yield_point()``,
``stoker.checkpoint_dir()`` and ``stoker.done()``; outside Stoker they do nothing, so a script runs unchanged without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["checkpoint_dir", "done", "report", "should_stop", "yield_point"]

if TYPE_CHECKING:
    from .runners.worker.script import checkpoint_dir, done, report, should_stop, yield_point


def __getattr__(name: str) -> Any:
    if name in __all__:
        from .runners.worker import script

        return getattr(script, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names for scripts, imported yet or not: tab completion and ``help(stoker)`` use this."""
    return sorted({*globals(), *__all__})
