"""Measured speeds of steps, folded into `speeds` and `slowdowns`: moving averages, corrected by all that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.contract import SWITCHED, precedence
from ..protocol import Speed
from ..store.transaction import Transaction

_REMEMBERED = 5  #: reports that weigh in a moving average


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """One report of a lease: its speed, the job's steps in all, where it knows them, and when it was made (s since the epoch)."""

    lease: int
    speed: Speed
    total: int | None
    ts: float

    @property
    def since(self) -> float:
        """When the first of its steps began: ``steps`` of them, one after the other, in about as many times the median."""
        return self.ts - self.speed.steps * self.speed.compute


def learn_speeds(tx: Transaction, found: Sequence[MeasuredSpeed]) -> None:
    """Take measurements of leases, in order.

    Those made with other parts of the batch than the gang's tell nothing of its steps; those made beside another job, how it is slowed.
    """
    if not found:
        return
    measured: dict[int, list[MeasuredSpeed]] = {}
    for one in found:
        measured.setdefault(one.lease, []).append(one)
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    jobs: list[dict[str, Any]] = []
    shared: list[tuple[dict[str, Any], list[MeasuredSpeed]]] = []
    fresh = False
    for lease in tx.objects("measured_speeds", list(measured)):
        totals = [one.total for one in measured[lease["id"]] if one.total is not None]
        if lease["total_steps"] is None and totals:
            jobs.append({"id": lease["job_id"], "total_steps": totals[-1]})
        if lease["signature"] is None or not (lease["profile"] or lease["gpu_count"] == lease["gang"]):
            continue
        if lease["share"] != "exclusive":
            shared.append((lease, measured[lease["id"]]))
            continue
        key = (lease["signature"], lease["gpu_name"])
        row = rows.setdefault(key, {name: lease[name] for name in _COLUMNS})
        fresh |= row["samples"] is None
        for one in measured[lease["id"]]:
            row.update(fold(row, one.speed, across=lease["nodes"] > 1), updated_at=tx.now)
    tx.upsert("speeds", ["signature", "gpu_name"], list(rows.values()))
    tx.update("jobs", ["id"], jobs)
    learn_slowdowns(tx, shared)
    if fresh:
        tx.touch("queue", "estimates")  # who waits for it need not be profiled any more


def learn_slowdowns(tx: Transaction, found: Sequence[tuple[Mapping[str, Any], Sequence[MeasuredSpeed]]]) -> None:
    """How many times longer steps take beside one other job than alone: of leases that share, where their speed alone is known.

    Only reports count in all of whose steps the same other lease, and no third one, ran on the same GPUs, and shared them in the same way,
    switched ones as equals.
    """
    found = [(lease, reports) for lease, reports in found if lease["compute"] is not None]
    if not found:
        return
    others: dict[int, list[dict[str, Any]]] = {}
    for other in tx.objects("beside", [lease["id"] for lease, _ in found]):
        others.setdefault(other["lease"], []).append(other)
    models = sorted({lease["model"] for lease, _ in found})
    rows = {tuple(row[name] for name in _PAIR): row for row in tx.objects("known_slowdowns", models)}
    changed = {}
    for lease, reports in found:
        for one in reports:
            beside = _only_other(others.get(lease["id"], ()), one)
            if beside is None or beside["share"] != lease["share"]:
                continue
            if lease["share"] == SWITCHED and _precedence(lease) != _precedence(beside):
                continue  # what it waited for one that goes before is of how busy that was
            key = (lease["model"], beside["model"], lease["gpu_name"], lease["share"])
            row = rows.setdefault(key, {**dict(zip(_PAIR, key, strict=True)), "slowdown": None, "samples": 0})
            weight = 1 / min(row["samples"] + 1, _REMEMBERED)
            slowdown = mix(row["slowdown"], one.speed.compute / lease["compute"], weight)
            row.update(slowdown=slowdown, samples=row["samples"] + 1, updated_at=tx.now)
            changed[key] = row
    tx.upsert("slowdowns", list(_PAIR), list(changed.values()))
    if any(row["samples"] == 1 for row in changed.values()):
        tx.touch("queue")  # who may be packed with whom is another question now


def _precedence(lease: Mapping[str, Any]) -> int:
    return int(precedence(lease["kind"], lease["priority"]))


_PAIR = ("model", "beside", "gpu_name", "kind")  #: keys of `slowdowns`


def _only_other(others: Sequence[Mapping[str, Any]], report: MeasuredSpeed) -> Mapping[str, Any] | None:
    """The one other lease that ran on the same GPUs all the while, None: there was none, or there were several."""
    there = [one for one in others if one["granted_at"] < report.ts and (one["ended_at"] is None or one["ended_at"] > report.since)]
    if len(there) != 1:
        return None
    (one,) = there
    ran = one["started_at"] is not None and one["started_at"] <= report.since and (one["ended_at"] is None or one["ended_at"] >= report.ts)
    return one if ran and one["whole"] else None


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
    """Set how busy jobs keep a GPU, and how much memory they take of a slot: rows of `speeds` with its keys; None: as it was."""
    keys = ["signature", "gpu_name"]
    for rows in batch:
        for name in ("utilisation", "peak_memory"):
            tx.update("speeds", keys, [{key: row[key] for key in (*keys, name)} for row in rows if row[name] is not None])
    tx.touch("queue")  # who waits may be packed now
    return [None] * len(batch)


def mix(old: float | None, new: float | None, weight: float) -> float | None:
    """``old`` moved towards ``new`` by that share of the way; the other one where one is not known."""
    if old is None or new is None:
        return new if old is None else old
    return old + weight * (new - old)
