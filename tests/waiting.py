"""Waiting for what other processes bring about, for as long as these live. STOKER_TEST_PATIENCE multiplies every limit."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stoker.engine.errors import StokerError

PATIENCE = float(os.environ.get("STOKER_TEST_PATIENCE") or 1)


def patient(seconds: float) -> float:
    """A limit of a test: of what takes far less on a quiet machine."""
    return seconds * PATIENCE


class Process(Protocol):
    """What can be asked whether it has ended, as subprocess.Popen."""

    pid: int

    def poll(self) -> int | None: ...


class Watched(Protocol):
    """A process of a test."""

    def died(self) -> str | None:
        """How it ended, when that is not what the test has told it to."""


#: the processes that tests have started: each of them is one that somebody waits for
watched: weakref.WeakSet[Watched] = weakref.WeakSet()


def until(
    what: Callable[[], Any],
    seconds: float = 150.0,
    says: Callable[[], Any] | None = None,
    alive: Sequence[Process] = (),
    pause: float = 0.05,
) -> Any:
    """The first true answer; fails when there is none in time, with what ``says`` says. An error of the daemon counts as not yet.

    Fails at once when a process of ``alive`` has ended, or one of `watched` has died.
    Asked rarer the longer it takes: a question is some 10 ms of the daemon's CPU time, which what is waited for needs itself.
    """
    began, limit, last = time.monotonic(), patient(seconds), False
    while True:
        try:
            if found := what():
                return found
            said: object = says() if says is not None else "false"
        except StokerError as error:
            said = error if says is None else f"{error}\n{says()}"
        waited = time.monotonic() - began
        assert waited < limit, f"it did not come true within {limit:g} s: {said}"
        if dead := _dead(alive):
            assert not last, f"it can come true no more: {dead}; {said}"
        last = bool(dead)  # what has ended may have brought it about just before
        if not last:
            time.sleep(min(max(pause, waited / 6), 0.4))


def until_left(trainer: Any) -> None:
    """A training that was left may still load a batch, and draws for it from the generators of this process, where the next one draws."""
    trainer.feed._loader._thread.join(patient(60))


def _dead(alive: Sequence[Process]) -> str | None:
    for process in alive:
        if (code := process.poll()) is not None:
            return f"process {process.pid} ended with {code}"
    return next((died for one in list(watched) if (died := one.died())), None)
