"""Ends that come with time: leases expire, attempts run out of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..jobs.leases import LeaseStop, stop
from ..store.store import Store
from ..store.transaction import Transaction

PATIENCE = 10.0  #: seconds past its end for which a lease waits for a policy that is slow, hangs or fails


def look_at_leases(
    store: Store, now: float, asked_at: Callable[[str], float], spared: Callable[[str], Collection[int]], wake: Callable[[str], None]
) -> None:
    """A periodic task: writes only when there is something to stop.

    A lease that has run out is its pool's to renew or to end (`scheduling.tick`), so a pool that was not asked since (``asked_at``) is
    woken. What is left after that, as the policy failed, is ended here; so is what has waited for an answer for `PATIENCE`. What the pool
    lets go on as nobody waits (``spared``) is over for nobody.
    """
    over, late = [], set()
    for lease, reason, pool, end in store.rows("store/due_leases", now):
        if reason == "expired" and lease in spared(pool):
            continue
        if reason == "expired" and asked_at(pool) < end and now - end < PATIENCE:
            late.add(pool)
        else:
            over.append(lease)
    for pool in sorted(late):
        wake(pool)
    if over:
        store.write(run_out, over, urgent=True)


def run_out(tx: Transaction, batch: Sequence[Collection[int]]) -> Sequence[int]:
    """Stop those leases that are at their end or their timeout, and were not renewed meanwhile; answers with how many."""
    due = {lease: reason for lease, reason, _, _ in tx.execute("due_leases", tx.now)}
    over = [sorted(due.keys() & wanted) for wanted in batch]
    stop(tx, [LeaseStop(lease, due[lease], "daemon") for leases in over for lease in leases])
    return [len(leases) for leases in over]


@dataclass(frozen=True, slots=True)
class StopAll:
    """Every live lease is to stop, or every one with a part on ``node``, or of these the ``servers``, which never end."""

    reason: str
    actor: str
    node: str | None = None
    servers: bool = False

    @property
    def meant(self) -> tuple[str, ...]:
        """The query for the leases, and its values."""
        return ("node_servers" if self.servers else "node_leases", self.node) if self.node else ("all_live_leases",)


def stop_all(tx: Transaction, batch: Sequence[StopAll]) -> Sequence[int]:
    """Answers with how many leases were told to stop."""
    answers = []
    for wanted in batch:
        live = tx.execute(*wanted.meant)
        stop(tx, [LeaseStop(lease, wanted.reason, wanted.actor) for (lease,) in live])
        answers.append(len(live))
    return answers
