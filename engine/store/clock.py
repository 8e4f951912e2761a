"""The clock of the daemon, and the changes to the tables when the time of day is set.

Tables hold times of day, for people. They are compared with `Clock`: the time of day at its first reading, advanced by the boot clock,
which cannot be set and goes on while the machine sleeps. So a jump affects no lease, pause, timeout or age. The daemon notices it within a
second or two, and `set_clock` moves the times of all that has not ended by as much, in one transaction with the event and the new reading;
only then does the `Clock` go on from that. A daemon that was killed before, or was down meanwhile, does this at its start.

Deadlines and schedules were given by people and stay. Times of ended things stay as recorded, unless they would lie in the future.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..identity import ahead_of_boot, boot_clock
from .transaction import Transaction

CLOCK_JUMP_SECONDS = 3.0  #: a smaller difference between the time of day and the boot clock is no jump
#: tables with times that move, in this order: a table's changes may depend on the tables after it
MOVED_TABLES = ("workers", "progress", "leases", "jobs", "tunings", "telemetry", "prices", "job_files")
MOVED_WHOLE = ("waiting", "nodes", "gpus", "fork_servers", "schedules")


class Clock:
    """The daemon's time: a call returns seconds since the epoch."""

    def __init__(self, ahead: Callable[[], float] = ahead_of_boot, boot: Callable[[], float] = boot_clock) -> None:
        self._read, self._boot = ahead, boot
        self.ahead = ahead()  #: seconds by which this clock is ahead of the boot clock

    def __call__(self) -> float:
        return self.ahead + self._boot()

    def jump(self) -> float:
        """Seconds by which the time of day was set since then, backwards if below 0; 0: it was not."""
        by = self._read() - self.ahead
        return by if abs(by) >= CLOCK_JUMP_SECONDS else 0.0


@dataclass(frozen=True, slots=True)
class ClockSet:
    """A reading of the clock: the boot, and how far the time of day is ahead of the boot clock."""

    boot_id: str
    ahead: float
    by: float = 0.0  #: seconds by which the clock was set since the last reading
    now: float = 0.0  #: the new time
    words: str = ""  #: the message to people


def set_clock(tx: Transaction, batch: Sequence[ClockSet]) -> Sequence[None]:
    """Store a new reading; if the clock was set, move the times of all that has not ended."""
    for one in batch:
        if one.by:
            tx.now = one.now  # for the rest of this transaction too
            for table in MOVED_TABLES:
                tx.purge(f"clock/{table}", one.by, one.now)
            for table in MOVED_WHOLE:
                tx.purge(f"clock/{table}", one.by)
            tx.event("clock.set", "daemon", reason=one.words, detail={"seconds": one.by})
            tx.touch("clock", "queue", "leases", "policy", "nodes", "estimates")
        tx.upsert("clock", ["id"], [{"id": 1, "boot_id": one.boot_id, "ahead": one.ahead}])
    return [None] * len(batch)


def set_since(known: tuple[str, float] | None, last: float, boot_id: str, clock: Clock) -> float:
    """Seconds by which the clock was set since the stored reading (boot, ahead), 0: it was not. ``last``: time of the last commit.

    After a boot it is unknown how long the machine was off: it is only known that no commit lies in the future.
    """
    by = clock.ahead - known[1] if known is not None and known[0] == boot_id else min(clock() - last, 0.0)
    return by if abs(by) >= CLOCK_JUMP_SECONDS else 0.0
