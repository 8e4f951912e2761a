"""Backbones that people keep warm in a pool, independently of its policy: `stoker pool warm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class KeepWarm:
    pool: str
    backbones: tuple[str, ...]  #: all that are to be kept warm
    user: str


def keep_warm(tx: Transaction, batch: Sequence[KeepWarm]) -> Sequence[None]:
    """Set which backbones pools keep warm; runners are told at once."""
    for asked in batch:
        before = sorted(row[0] for row in tx.execute("pool_backbones", asked.pool))
        wanted = sorted(set(asked.backbones))
        if before == wanted:
            continue
        tx.delete("pool_backbones", "pool", [asked.pool])
        tx.insert("pool_backbones", [{"pool": asked.pool, "backbone": name, "set_by": asked.user, "ts": tx.now} for name in wanted])
        tx.event("pool.warm", asked.user, before=", ".join(before) or None, after=", ".join(wanted) or None, detail={"pool": asked.pool})
        tx.touch("nodes")
    return [None] * len(batch)
