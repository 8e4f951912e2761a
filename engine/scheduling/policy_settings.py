"""The policies of pools, as operators set them. Rows are never overwritten: the newest one is in force."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Auto:
    """Whether a pool tunes itself (AutoSched, 002 ch. 6)."""

    enabled: bool
    period: float = 3600.0  #: seconds from one search to the next (002 ch. 6.5.2)
    objective: str = "jct"


@dataclass(frozen=True, slots=True)
class PolicySetting:
    pool: str
    policy: str
    interval: float  #: seconds
    config: Mapping[str, Any]
    set_by: str
    code: str = ""  #: digest of the source of a user's own policy
    auto: Auto | None = None  #: None: as before
    instead_of: int | None = None  #: set only if this version is still in force (0: none was set); None: in any case


def set_policy(tx: Transaction, batch: Sequence[PolicySetting]) -> Sequence[int]:
    """Set the policy of a pool; returns the version of its configuration, 0: another one came first. The next tick uses it."""
    newest: dict[str, int] = dict(tx.execute("newest_policies"))
    versions: list[int] = []
    for s in batch:
        possible = s.instead_of in (None, newest.get(s.pool, 0))
        versions.append(tx.number("policy_settings") if possible else 0)
        if possible:
            newest[s.pool] = versions[-1]
    kept = [(s, version) for s, version in zip(batch, versions, strict=True) if version]
    tx.insert("policy_settings", [
        {"id": version, "pool": s.pool, "policy": s.policy, "interval": s.interval, "config": json.dumps(s.config), "set_by": s.set_by,
         "ts": tx.now}
        for s, version in kept
    ])  # fmt: skip
    for s, version in kept:
        detail = {"pool": s.pool, "interval": s.interval, "config": dict(s.config), "id": version, "code": s.code or None}
        tx.event("policy.set", s.set_by, after=s.policy, detail=detail)
    tx.insert("auto_tuning", [
        {"id": tx.number("auto_tuning"), "pool": s.pool, "enabled": s.auto.enabled, "period": s.auto.period, "objective": s.auto.objective,
         "set_by": s.set_by, "ts": tx.now}
        for s, _ in kept if s.auto is not None
    ])  # fmt: skip
    if kept:
        tx.touch("policy")
    return versions
