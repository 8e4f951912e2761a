"""Searches for configurations and the pools that tune themselves, as rows (`tunings`, `auto_tuning`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class NewTuning:
    pool: str
    summary: Mapping[str, Any]  #: of `summary.summary_of`
    period: float
    outcome: str
    why: str
    asked_by: str


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """The measured gain of a search that was applied."""

    id: int
    gain: float
    outcome: str
    why: str


def add_tuning(tx: Transaction, batch: Sequence[NewTuning]) -> Sequence[int]:
    """Store searches; answers with their numbers."""
    rows = []
    for new in batch:
        told = new.summary
        rows.append(
            {"id": tx.number("tunings"), "pool": new.pool, "policy": told["policy"], "objective": told["objective"], "ts": tx.now,
             "before": json.dumps(told["before"]),
             "after": json.dumps(told["after"]), "predicted_gain": told["gain"],
             "measured_gain": None,
             "period": new.period, "expected": told["expected"], "trials": told["trials"], "simulated": told["simulated_trials"],
             "rejected": told["rejected"], "failed": told["failed"], "seconds": told["seconds"], "outcome": new.outcome, "why": new.why,
             "asked_by": new.asked_by}
        )  # fmt: skip
    tx.insert("tunings", rows)
    return [int(row["id"]) for row in rows]


def measure_tuning(tx: Transaction, batch: Sequence[MeasuredGain]) -> Sequence[None]:
    """Write down the measured gains of searches."""
    tx.update("tunings", ["id"], [{"id": one.id, "measured_gain": one.gain, "outcome": one.outcome, "why": one.why} for one in batch])
    return [None] * len(batch)
