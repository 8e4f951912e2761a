"""Writing estimates that are made from jobs' metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Estimate:
    """A row of `iteration_estimates`; see its columns."""

    job_id: int
    at_step: int
    iterations: int
    low: int
    high: int
    probability: float
    spread: float | None
    points: int
    seconds: float


def write_estimates(tx: Transaction, batch: Sequence[Sequence[Estimate]]) -> Sequence[None]:
    """Replace each job's estimate by the newest one: older ones can be computed again from `metrics`."""
    latest = {estimate.job_id: estimate for estimates in batch for estimate in estimates}
    tx.upsert("iteration_estimates", ["job_id"], [{**asdict(estimate), "updated_at": tx.now} for estimate in latest.values()])
    tx.touch("estimates")
    return [None] * len(batch)
