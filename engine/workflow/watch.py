"""What time brings: leases expire, attempts run out of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.store import Store
from ..store.transaction import Transaction
from .leases import Stop, stop


def look_at_leases(store: Store, now: float) -> None:
    """A periodic task: writes only when there is something to stop."""
    if store.rows("store/due_leases", now):
        store.write(run_out, None)


def run_out(tx: Transaction, batch: Sequence[None]) -> Sequence[int]:
    """Stop what has reached the end of its lease or its timeout; answers with how many."""
    due = tx.execute("due_leases", tx.now)
    stop(tx, [Stop(lease, reason, "daemon") for lease, reason in due])
    return [len(due)] * len(batch)


@dataclass(frozen=True, slots=True)
class StopAll:
    """Every live lease is to stop, or every one with a part on ``node``."""

    reason: str
    actor: str
    node: str | None = None


def stop_all(tx: Transaction, batch: Sequence[StopAll]) -> Sequence[int]:
    """Answers with how many leases were told to stop."""
    answers = []
    for wanted in batch:
        live = tx.execute("node_leases", wanted.node) if wanted.node else tx.execute("all_live_leases")
        stop(tx, [Stop(lease, wanted.reason, wanted.actor) for (lease,) in live])
        answers.append(len(live))
    return answers
