"""The clock of the daemon, and what becomes of the tables when somebody sets the time of day.

Tables hold times of day, for people. What they are compared with is `Clock`: the time of day as it was found, and on by the boot clock,
which nobody sets and which goes on while the machine sleeps. So no lease, pause, timeout or age sees a jump. The daemon notices it within a
second or two, and `set_clock` moves by as much all that has not ended, in one transaction with the event and the new reading; only then
does the `Clock` go on from that. A daemon that was killed before, or was down meanwhile, does it at its start.

Deadlines and schedules are times that people gave: they stay. What has ended stays as it was recorded, unless it would lie in the future.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..identity import ahead_of_boot, boot_clock
from .transaction import Transaction

CLOCK_JUMP_SECONDS = 3.0  #: seconds by which the time of day has to differ from what the boot clock says: less is no jump
#: tables some of whose times move, in this order: what moves in one may depend on those after it
MOVED_TABLES = ("workers", "progress", "leases", "jobs", "tunings", "telemetry", "prices", "job_files")
MOVED_WHOLE = ("waiting", "nodes", "gpus", "fork_servers", "schedules")


class Clock:
    """Seconds since the epoch when it is called: the time of the daemon."""

    def __init__(self, ahead: Callable[[], float] = ahead_of_boot, boot: Callable[[], float] = boot_clock) -> None:
        self._read, self._boot = ahead, boot
        self.ahead = ahead()  #: of the boot clock; what it is called gives

    def __call__(self) -> float:
        return self.ahead + self._boot()

    def jump(self) -> float:
        """Seconds by which the time of day was set since, backwards if below 0; 0: it was not."""
        by = self._read() - self.ahead
        return by if abs(by) >= CLOCK_JUMP_SECONDS else 0.0


@dataclass(frozen=True, slots=True)
class ClockSet:
    """A reading of the clock: on which boot, and how far the time of day is ahead of the boot clock."""

    boot_id: str
    ahead: float
    by: float = 0.0  #: seconds by which it was set since the reading before
    now: float = 0.0  #: the new time
    words: str = ""  #: that people are told


def set_clock(tx: Transaction, batch: Sequence[ClockSet]) -> Sequence[None]:
    """Take a new reading; where the clock was set, what has not ended moves with it."""
    for one in batch:
        if one.by:
            tx.now = one.now  # for all that follows in this transaction, too
            for table in MOVED_TABLES:
                tx.purge(f"clock/{table}", one.by, one.now)
            for table in MOVED_WHOLE:
                tx.purge(f"clock/{table}", one.by)
            tx.event("clock.set", "daemon", reason=one.words, detail={"seconds": one.by})
            tx.touch("clock", "queue", "leases", "policy", "nodes", "estimates")
        tx.upsert("clock", ["id"], [{"id": 1, "boot_id": one.boot_id, "ahead": one.ahead}])
    return [None] * len(batch)


def set_since(known: tuple[str, float] | None, last: float, boot_id: str, clock: Clock) -> float:
    """Seconds by which the clock was set since the reading that the tables have (boot, ahead), 0: it was not. ``last``: of the last commit.

    After a boot nobody knows how long the machine was off: all that is known is that no commit lies in the future.
    """
    by = clock.ahead - known[1] if known is not None and known[0] == boot_id else min(clock() - last, 0.0)
    return by if abs(by) >= CLOCK_JUMP_SECONDS else 0.0
