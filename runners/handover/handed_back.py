"""A node that is handed back: when that is due by itself, and how long its runner waits for a daemon that is away then."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from ...engine.identity import boot_clock
from ..host.runs import Run, RunPhase

log = logging.getLogger("stoker.runner")

LONGEST_ABSENCE = 60.0  #: seconds without the daemon after which a runner that is handed back leaves untold, once its jobs have ended
LAST_WORDS = 10.0  #: seconds before its time is up at which a runner begins to leave, besides the grace of its jobs


class HandedBack:
    """``until``: when it is by itself (boot clock), so that its jobs have left by then; None: when it is told."""

    def __init__(self, until: float | None) -> None:
        self.until = until
        self._since: float | None = None  #: monotonic, when its jobs were stopped; later, when the last of them was seen to run

    def is_due(self, running: Collection[Run]) -> bool:
        """Whether its time is up, but for what its jobs need to stop, and a little for the daemon to hear of it."""
        grace = max((run.assignment.grace for run in running), default=0.0)
        return self.until is not None and boot_clock() >= self.until - grace - LAST_WORDS

    def due_in(self) -> float:
        """Seconds until it is due if nothing runs, inf: it is not by itself."""
        return float("inf") if self.until is None else max(self.until - LAST_WORDS - boot_clock(), 0.0)

    def begin(self) -> None:
        """Its jobs are stopped from now on. Again: nothing new."""
        if self._since is None:
            self._since = time.monotonic()
            log.info("the node is handed back: its jobs are stopped", extra={"action": "hand-back"})

    def waits_in_vain(self, runs: Collection[Run], taken: float = 0.0) -> bool:
        """Whether all has ended, and no daemon has taken anything of it for too long, or lately when its time is up.

        ``taken``: when one last did (monotonic). The next runner of this node and home tells how its jobs ended.
        """
        if self._since is None:
            return False
        if any(run.phase is not RunPhase.ENDED for run in runs):
            self._since = time.monotonic()
            return False
        late = self.until is not None and boot_clock() >= self.until
        return time.monotonic() - max(self._since, taken) > (LAST_WORDS if late else LONGEST_ABSENCE)


def say_untold(runs: Collection[Run], node: str) -> None:
    """In the log of a runner that leaves."""
    if ended := sum(run.phase is RunPhase.ENDED for run in runs):
        jobs = f"{ended} job{'s' * (ended > 1)}"
        log.warning("no daemon has taken how %s ended: the next runner of node %s and this home tells it", jobs, node)
