"""Events that change no other table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the history that changes no other table."""

    kind: str
    actor: str
    reason: str
    detail: Mapping[str, Any] | None = None
    job: int | None = None
    node: str | None = None


def note(tx: Transaction, batch: Sequence[Note]) -> Sequence[None]:
    for n in batch:
        tx.event(n.kind, n.actor, job=n.job, node=n.node, reason=n.reason, detail=n.detail)
    return [None] * len(batch)
