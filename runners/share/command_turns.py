"""Turns for commands that know nothing of them: their supervisor takes the turn, and stops their processes while another has it.

The turn is the supervisor's, and so is the word to go on: whoever else is killed, it goes on at once. Who is stopped cannot leave a step
before it is over, so equals change by time: a command computes for as long as it has waited. What a GPU has been given before computes on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...engine.identity import Process
from ..host import processes
from ..host.rundir import TAKES_TURNS
from .told_turns import ToldTurns
from .turn import Turn

LOOK, SELDOM = 0.001, 0.05  #: seconds between looks at the turn, and at what the agent says
SHORTEST, LONGEST = 0.02, 2.0  #: seconds for which it computes before an equal has its turn


class CommandTurns(threading.Thread):
    """Of what runs below ``root``, our process. ``end`` leaves it running."""

    def __init__(self, run_dir: Path, lease: int, root: int) -> None:
        super().__init__(name="turns", daemon=True)
        self._root, self._told = root, ToldTurns(run_dir, lease, leaving=lambda: False)
        self._by_itself = str(run_dir / TAKES_TURNS)
        self._ends = threading.Event()
        self._known: list[Process] = []  #: those below, when last looked at
        self._stopped: list[Process] = []
        self._follow_at = 0.0  #: when it looks again at what the agent says
        self.trouble: Callable[[str], None] = lambda words: None  #: told once, why it takes no turns

    def end(self) -> None:
        """All of it goes on, from now on without turns."""
        self._ends.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            while not self._ends.is_set() and not os.path.exists(self._by_itself):  # noqa: PTH110
                self._told.follow()
                if self._told.turn is None:
                    self._go_on()
                    self._ends.wait(SELDOM)
                else:
                    self._in_turn(self._told.turn)
        except Exception as error:  # it computes without turns rather than never
            self.trouble(f"takes no turns on its GPU: {error}")
        finally:
            self._go_on()
            self._told.close()

    def _in_turn(self, turn: Turn) -> None:
        """Wait for the turn, compute, and give it."""
        asked = time.monotonic()
        turn.ask()
        if not turn.granted():
            self._stop()
            while not turn.granted():
                if self._is_over(turn):
                    return
        self._go_on()
        began = time.monotonic()
        slice_ = min(max(began - asked, SHORTEST), LONGEST)
        while not turn.wanted(by_equals=time.monotonic() - began >= slice_):
            if self._is_over(turn):
                break
        else:
            self._halt()
        turn.give()

    def _is_over(self, turn: Turn) -> bool:
        """Whether it takes this turn no longer, looked at after a moment."""
        over = self._ends.wait(LOOK)
        if time.monotonic() >= self._follow_at:
            self._follow_at = time.monotonic() + SELDOM
            self._told.follow()
            if self._told.turn is not turn:  # and is closed
                return True
            over = over or os.path.exists(self._by_itself)  # noqa: PTH110
        if over:
            turn.withdraw()
        return over

    def _stop(self) -> None:
        """Stop all of it; what is forked meanwhile too."""
        self._halt()
        while True:
            found = [one.process for one in processes.descendants(self._root, processes.table())]
            self._known = found
            if set(found) <= set(self._stopped):
                return
            self._halt()

    def _halt(self) -> None:
        """Stop those that are known, which takes no time to speak of."""
        for process in self._known:
            if process not in self._stopped and processes.send(process, signal.SIGSTOP):
                self._stopped.append(process)

    def _go_on(self) -> None:
        for process in self._stopped:
            processes.send(process, signal.SIGCONT)
        self._stopped = []
