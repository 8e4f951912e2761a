"""Ends that must come before the interpreter's.

A thread that is in torch's code when the interpreter goes down, be it only to free a tensor, aborts the process: the interpreter ends it
by unwinding its stack, which C++ takes for an error. So whatever is still at work then is stopped and waited for, as close() does.
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
