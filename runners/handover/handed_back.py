"""The return of a node: the time when it is due, and the time for which its runner then waits for an absent daemon."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from ...engine.identity import boot_clock
from ..host.runs import Run, RunPhase

log = logging.getLogger("stoker.runner")

LONGEST_ABSENCE = 60.0  #: seconds without the daemon after which a returning runner leaves without a report, once its jobs have ended
LAST_WORDS = 10.0  #: seconds before its deadline at which a runner begins to leave, in addition to its jobs' grace


class HandedBack:
    """``until``: its deadline (boot clock), by which its jobs must have left; None: only on request."""

    def __init__(self, until: float | None) -> None:
        self.until = until
        self._since: float | None = None  #: monotonic time at which its jobs were stopped; later, at which one was last seen to run

    def is_due(self, running: Collection[Run]) -> bool:
        """Whether its deadline is near: its jobs need time to stop, and the daemon a little to hear of it."""
        grace = max((run.assignment.grace for run in running), default=0.0)
        return self.until is not None and boot_clock() >= self.until - grace - LAST_WORDS

    def due_in(self) -> float:
        """Seconds until it is due if nothing runs; inf: only on request."""
        return float("inf") if self.until is None else max(self.until - LAST_WORDS - boot_clock(), 0.0)

    def begin(self) -> None:
        """Stop its jobs from now on. A second call changes nothing."""
        if self._since is None:
            self._since = time.monotonic()
            log.info("the node is handed back: its jobs are stopped", extra={"action": "hand-back"})

    def waits_in_vain(self, runs: Collection[Run], taken: float = 0.0) -> bool:
        """Whether all has ended, and the daemon has taken no message for too long (or, after the deadline, not lately).

        ``taken``: time of the last taken message (monotonic). The next runner of this node and home reports the ends of its jobs.
        """
        if self._since is None:
            return False
        if any(run.phase is not RunPhase.ENDED for run in runs):
            self._since = time.monotonic()
            return False
        late = self.until is not None and boot_clock() >= self.until
        vain = time.monotonic() - max(self._since, taken) > (LAST_WORDS if late else LONGEST_ABSENCE)
        if vain:
            log.warning("no daemon has taken a message for too long: the runner leaves, and what it has not sent stays here")
        return vain


def say_untold(runs: Collection[Run], node: str) -> None:
    """A line in the log of a leaving runner."""
    if ended := sum(run.phase is RunPhase.ENDED for run in runs):
        jobs = f"{ended} job{'s' * (ended > 1)}"
        log.warning("no daemon has heard of the end of %s: the next runner of node %s and this home reports it", jobs, node)
