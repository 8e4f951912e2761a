"""Calls that must be made before the interpreter ends.

A thread that is in torch's code when the interpreter ends, even only to free a tensor, aborts the process: the interpreter ends the
thread by unwinding its stack, which C++ takes for an error. So all threads still at work are stopped and joined, as close() does.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

_stops: set[weakref.WeakMethod[Callable[[], Any]]] = set()


def at_exit(stop: Callable[[], Any]) -> None:
    """Call this bound method when the interpreter is about to end, if its object is still there. It may be called twice."""
    _stops.add(weakref.WeakMethod(stop, _stops.discard))


@atexit.register
def _stop_all() -> None:
    for reference in list(_stops):
        if (stop := reference()) is not None:
            stop()
