"""Stored simulations: a run is written with all its jobs and its use over time in one transaction, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..store.transaction import Transaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class NewRun:
    row: Mapping[str, Any]  #: columns of `sim_runs`, without number, time and user
    jobs: Columns  #: columns of `sim_jobs`, without the run
    usage: Columns  #: columns of `sim_usage`, without the run
    user: str


def add_run(tx: Transaction, batch: Sequence[NewRun]) -> Sequence[int]:
    """Store runs; returns their numbers."""
    numbers = []
    for new in batch:
        number = tx.number("sim_runs")
        told = {key: json.dumps(value) if key in ("config", "options") else value for key, value in new.row.items()}
        tx.insert("sim_runs", [{"id": number, **told, "ran_at": tx.now, "ran_by": new.user}])
        for table, columns in (("sim_jobs", new.jobs), ("sim_usage", new.usage)):
            rows = max((len(column) for column in columns.values()), default=0)
            if rows:
                tx.insert_columns(table, {"run_id": np.full(rows, number), **columns})
        numbers.append(number)
    return numbers
