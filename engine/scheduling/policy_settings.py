"""The policies of pools, as operators set them. Nothing is overwritten: the newest row is in force."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class PolicySetting:
    pool: str
    policy: str
    interval: float  #: seconds
    config: Mapping[str, Any]
    set_by: str
    code: str = ""  #: digest of the source of one's own


def set_policy(tx: Transaction, batch: Sequence[PolicySetting]) -> Sequence[int]:
    """Set the policy of a pool; answers with the version of its configuration. In force at the next tick."""
    rows: list[dict[str, Any]] = [
        {"id": tx.number("policy_settings"), "pool": s.pool, "policy": s.policy, "interval": s.interval, "config": json.dumps(s.config),
         "set_by": s.set_by, "ts": tx.now}
        for s in batch
    ]  # fmt: skip
    tx.insert("policy_settings", rows)
    for s, row in zip(batch, rows, strict=True):
        detail = {"pool": s.pool, "interval": s.interval, "config": dict(s.config), "id": row["id"], "code": s.code or None}
        tx.event("policy.set", s.set_by, after=s.policy, detail=detail)
    tx.touch("policy")
    return [row["id"] for row in rows]
