"""Turns for commands that know nothing of them: the supervisor takes the turn, and stops the processes while another job has it.

The supervisor holds the turn and continues the processes, whichever other process is killed. A command cannot be stopped at the end of a
step, so equals take turns by time: a command computes for as long as it has waited. Work already launched on the GPU computes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...engine.identity import Process, stat
from ..lease import processes
from ..lease.rundir import TAKES_TURNS
from .told_turns import ToldTurns
from .turn import Turn

LOOK, WAITS = 0.001, 0.005  #: seconds between looks while it has the turn, and while it waits for it; each look costs some CPU
LOOK_INTERVAL = 0.05  #: seconds between looks at the agent's file
SHORTEST, LONGEST = 0.02, 2.0  #: least and most seconds for which it computes before an equal gets the turn


class CommandTurns(threading.Thread):
    """Takes turns for the processes below ``root``, our process. ``end`` leaves them running."""

    def __init__(self, run_dir: Path, lease: int, root: int) -> None:
        super().__init__(name="turns", daemon=True)
        self._root, self._told = root, ToldTurns(run_dir, lease, leaving=lambda: False)
        self._by_itself = str(run_dir / TAKES_TURNS)
        self._ends = threading.Event()
        self._known: list[Process] = []  #: processes below, at the last look
        self._stopped: list[Process] = []
        self._follow_at = 0.0  #: time of the next look at the agent's file
        self.trouble: Callable[[str], None] = lambda words: None  #: called once with the reason why it takes no turns

    def end(self) -> None:
        """Continue all processes, from now on without turns."""
        self._ends.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            while not self._ends.is_set() and not os.path.exists(self._by_itself):  # noqa: PTH110
                self._told.follow()
                if self._told.turn is None:
                    self._go_on()
                    self._ends.wait(LOOK_INTERVAL)
                else:
                    self._in_turn(self._told.turn)
        except Exception as error:  # it computes without turns rather than never
            self.trouble(f"takes no turns on its GPU: {error}")
        finally:
            self._go_on()
            self._told.close()

    def _in_turn(self, turn: Turn) -> None:
        """Wait for the turn, compute, and give the turn back."""
        asked = time.monotonic()
        turn.ask()
        if not turn.granted():
            self._stop()
            while not turn.granted():
                if self._is_over(turn, WAITS):
                    return
        self._go_on()
        began = time.monotonic()
        slice_ = min(max(began - asked, SHORTEST), LONGEST)
        while not turn.wanted(by_equals=time.monotonic() - began >= slice_):
            if self._is_over(turn, LOOK):
                break
        else:
            self._halt()
        turn.give()

    def _is_over(self, turn: Turn, pause: float) -> bool:
        """Whether it no longer takes this turn, after a pause."""
        over = self._ends.wait(pause)
        if time.monotonic() >= self._follow_at:
            self._follow_at = time.monotonic() + LOOK_INTERVAL
            self._told.follow()
            if self._told.turn is not turn:  # and is closed
                return True
            over = over or os.path.exists(self._by_itself)  # noqa: PTH110
        if over:
            turn.withdraw()
        return over

    def _stop(self) -> None:
        """Stop all processes, also those forked meanwhile."""
        self._halt()
        while True:
            self._known = below(self._root)
            if set(self._known) <= set(self._stopped):
                return
            self._halt()

    def _halt(self) -> None:
        """Stop the known processes, which is quick."""
        for process in self._known:
            if process not in self._stopped and processes.send(process, signal.SIGSTOP):
                self._stopped.append(process)

    def _go_on(self) -> None:
        for process in self._stopped:
            processes.send(process, signal.SIGCONT)
        self._stopped = []


def below(root: int) -> list[Process]:
    """Living descendants of a process, by the kernel's list for each: all processes of a host are too many to read at each pause."""
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):  # noqa: PTH110 - a kernel without CONFIG_PROC_CHILDREN
        return [one.process for one in processes.descendants(root, processes.table())]
    found: list[Process] = []
    level = _children(root)
    while level:
        known = [one for pid in level if (one := stat(pid)) is not None and not one.dead]
        found += [one.process for one in known]
        level = [child for one in known for child in _children(one.pid)]
    return found


def _children(pid: int) -> list[int]:
    """Each thread has a list of the processes that it has started."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children
