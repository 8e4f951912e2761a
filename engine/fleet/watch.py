"""Ends by time: leases expire, attempts reach their timeout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..jobs.leases import LeaseStop, stop
from ..store.store import Store
from ..store.transaction import Transaction

PATIENCE = 10.0  #: seconds past its end for which a lease waits for a slow, hanging or failing policy


def look_at_leases(
    store: Store, now: float, asked_at: Callable[[str], float], spared: Callable[[str], Collection[int]], wake: Callable[[str], None]
) -> None:
    """A periodic task: writes only if there are leases to stop.

    The pool renews or ends a lease that has run out (`scheduling.tick`), so a pool that was not asked since (``asked_at``) is woken.
    Leases that remain after that, as the policy failed, are ended here; so are leases that have waited for an answer for `PATIENCE`.
    Leases that the pool lets go on while no job waits (``spared``) are not ended.
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
    """Stop the leases that are at their end or their timeout, and were not renewed meanwhile; answers with their number."""
    due = {lease: reason for lease, reason, _, _ in tx.execute("due_leases", tx.now)}
    over = [sorted(due.keys() & wanted) for wanted in batch]
    stop(tx, [LeaseStop(lease, due[lease], "daemon") for leases in over for lease in leases])
    return [len(leases) for leases in over]


@dataclass(frozen=True, slots=True)
class StopAll:
    """Stop every live lease, or every one with a part on ``node``, or of these only the ``servers``, which never end."""

    reason: str
    actor: str
    node: str | None = None
    servers: bool = False

    @property
    def meant(self) -> tuple[str, ...]:
        """The query for the leases, and its values."""
        return ("node_servers" if self.servers else "node_leases", self.node) if self.node else ("all_live_leases",)


def stop_all(tx: Transaction, batch: Sequence[StopAll]) -> Sequence[int]:
    """Answers with the number of leases asked to stop."""
    answers = []
    for wanted in batch:
        live = tx.execute(*wanted.meant)
        stop(tx, [LeaseStop(lease, wanted.reason, wanted.actor) for (lease,) in live])
        answers.append(len(live))
    return answers
