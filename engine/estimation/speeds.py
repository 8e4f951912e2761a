"""What runs measured of the speed of a step, folded into `speeds`: moving averages, so that what runs keeps correcting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..protocol import Speed
from ..store.transaction import Transaction

_REMEMBERED = 5  #: reports that weigh in a moving average


def learn_speeds(tx: Transaction, found: Sequence[tuple[int, Speed, int | None]]) -> None:
    """Take measurements of leases, in order, each with the job's steps in all, where it knows them.

    Those made with other parts of the batch than the gang's, or beside other jobs on its GPUs, tell nothing of its steps.
    """
    if not found:
        return
    measured: dict[int, list[Speed]] = {}
    totals: dict[int, int] = {}
    for number, speed, total in found:
        measured.setdefault(number, []).append(speed)
        if total is not None:
            totals[number] = total
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    jobs: list[dict[str, Any]] = []
    fresh = False
    for lease in tx.objects("measured_speeds", list(measured)):
        if lease["total_steps"] is None and lease["id"] in totals:
            jobs.append({"id": lease["job_id"], "total_steps": totals[lease["id"]]})
        if lease["signature"] is None or lease["share"] != "exclusive" or not (lease["profile"] or lease["gpu_count"] == lease["gang"]):
            continue
        key = (lease["signature"], lease["gpu_name"])
        row = rows.setdefault(key, {name: lease[name] for name in _COLUMNS})
        fresh |= row["samples"] is None
        for speed in measured[lease["id"]]:
            row.update(fold(row, speed, across=lease["nodes"] > 1), updated_at=tx.now)
    tx.upsert("speeds", ["signature", "gpu_name"], list(rows.values()))
    tx.update("jobs", ["id"], jobs)
    if fresh:
        tx.touch("queue", "estimates")  # who waits for it need not be profiled any more


_COLUMNS = ("signature", "gpu_name", "model", "gang", "compute", "within_node", "across_nodes", "peak_memory", "samples")


def fold(known: Mapping[str, Any], speed: Speed, *, across: bool) -> dict[str, Any]:
    """A row of `speeds` with one more report: at first a plain mean, then a moving one. ``across``: its ranks were on several nodes."""
    samples = known["samples"] or 0
    weight = 1 / min(samples + 1, _REMEMBERED)
    changes = {
        "compute": mix(known["compute"], speed.compute, weight),
        "peak_memory": max(filter(None, (known["peak_memory"], speed.memory)), default=None),
        "samples": samples + 1,
    }
    if speed.communication is not None:
        name = "across_nodes" if across else "within_node"
        changes[name] = mix(known[name], speed.communication, weight)
    return changes


def write_utilisations(tx: Transaction, batch: Sequence[Sequence[Mapping[str, Any]]]) -> Sequence[None]:
    """Set how busy jobs keep a GPU: rows of `speeds` with its keys."""
    for rows in batch:
        tx.update("speeds", ["signature", "gpu_name"], list(rows))
    tx.touch("queue")  # who waits may be packed now
    return [None] * len(batch)


def mix(old: float | None, new: float | None, weight: float) -> float | None:
    """``old`` moved towards ``new`` by that share of the way; the other one where one is not known."""
    if old is None or new is None:
        return new if old is None else old
    return old + weight * (new - old)
