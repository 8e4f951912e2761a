"""A bound on the real time of foreign code: a policy that hangs is cut off in the middle of its loop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

MAX_TIMER_SECONDS = 1e6  #: seconds of a timer, which knows no infinity


class Hangs(BaseException):
    """It takes too long. No policy catches this by ``except Exception``."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `Hangs` in the main thread after so many seconds, inf: never. Other threads have no such bound."""
    try:
        before = signal.signal(signal.SIGALRM, _cut_off)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), MAX_TIMER_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _cut_off(_number: int, _frame: FrameType | None) -> None:
    raise Hangs
