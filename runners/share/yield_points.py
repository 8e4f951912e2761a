"""Turns for a script that says itself where it may be held up: what `stoker.yield_point` does. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from ..lease.rundir import ENV_LEASE, TAKES_TURNS
from .told_turns import ToldTurns


class YieldPoints:
    """From its first call on where there are turns to take this process has the turn between two calls, and its supervisor takes none."""

    def __init__(self, run_dir: Path) -> None:
        self._told = ToldTurns(run_dir, int(os.environ.get(ENV_LEASE, "0")), leaving=(run_dir / "stop.json").exists)
        self._mark = run_dir / TAKES_TURNS

    def __call__(self) -> None:
        self._told.follow()
        turn = self._told.turn
        if turn is None:
            return
        if not turn.held:
            with contextlib.suppress(OSError):  # a full disk: then it takes turns with its supervisor too
                self._mark.touch()
            turn.take()
        elif turn.wanted():
            _settle()
            turn.pause()
        elif turn.wanted(by_equals=True):
            _settle()
            turn.give()
            turn.take()


def _settle() -> None:
    """What has been launched computes still."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
