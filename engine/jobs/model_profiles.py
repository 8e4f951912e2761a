"""Profiles of models piece by piece, as runners tell them, kept in `part_times`: the newest of a model and device stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..protocol import PartTimes
from ..store.transaction import Transaction

_KEYS = ("signature", "device", "part", "direction")


def keep_part_times(tx: Transaction, told: Sequence[PartTimes]) -> None:
    """Store profiles, in order, in place of what was known of these models on these devices."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for profile in told:
        about = {"signature": profile.signature, "device": profile.device, "model": profile.model, "emulated": profile.emulated}
        for time in profile.rows:
            row = about | msgspec.structs.asdict(time) | {"updated_at": tx.now}
            rows[tuple(row[key] for key in _KEYS)] = row
    tx.upsert("part_times", _KEYS, list(rows.values()))
    for profile in told:  # one of fewer pieces than the one before
        tx.purge("old_part_times", profile.signature, profile.device, profile.parts)
