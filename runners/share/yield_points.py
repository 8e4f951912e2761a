"""Turns for a script that marks its own points to pause: `stoker.yield_point`. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from ..lease.rundir import ENV_LEASE, TAKES_TURNS
from .told_turns import ToldTurns


class YieldPoints:
    """If there are turns: from the first call on this process has the turn between two calls, and its supervisor takes none."""

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
    """Wait for launched work."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
