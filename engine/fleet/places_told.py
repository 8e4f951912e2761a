"""What runners tell of the places of checkpoints, and where those of jobs lie."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ..protocol import PlaceTold
from ..store.transaction import Transaction


def name_place(tx: Transaction, batch: Sequence[str]) -> Sequence[str]:
    """Give shared directories names; each keeps the one that it was given first."""
    names: list[str] = []
    for path in batch:
        known = [name for name, _ in tx.execute("shared_name", path)]
        names.append(known[0] if known else secrets.token_hex(8))
        if not known:
            tx.insert("shared_places", [{"path": path, "name": names[-1]}])
    return names


def take_place(tx: Transaction, node: str, told: PlaceTold) -> None:
    """From now on checkpoints of a runner's jobs lie there."""
    tx.update("nodes", ["id"], [{"id": node, "shared_place": told.name, "checkpoints": told.path}])
    tx.touch("nodes", "leases", "queue")


def saved_on(tx: Transaction, jobs: Mapping[int, tuple[str, str]]) -> None:
    """Jobs have saved on runners: their newest checkpoints lie in the places of these, or in those that they name ('': in none)."""
    nodes, told = ([where[i] for where in jobs.values()] for i in (0, 1))
    rows = tx.execute("places_of_saved", list(jobs), nodes, told) if jobs else []
    tx.update("jobs", ["id"], [{"id": job, "place": place} for job, before, place in rows if before != place])
