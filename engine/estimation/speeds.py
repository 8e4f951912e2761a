"""Measured speeds of steps, folded into `speeds` and `slowdowns`: moving averages, corrected by every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.contract import SWITCHED, precedence
from ..protocol import Speed
from ..store.transaction import Transaction

_PAST_WEIGHT = 5  #: weight of the past in a moving average, in reports


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """One report of a lease: its speed, the job's total steps if known, and the time of the report (s since the epoch)."""

    lease: int
    speed: Speed
    total: int | None
    ts: float

    @property
    def since(self) -> float:
        """When the first measured step began: ``steps`` steps, each about as long as the median."""
        return self.ts - self.speed.steps * self.speed.compute


def learn_speeds(tx: Transaction, found: Sequence[MeasuredSpeed]) -> None:
    """Store measurements of leases, in order.

    Measurements with other shares of the batch than the gang's say nothing about its steps; those made beside another job tell how much
    slower it is then.
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
        tx.touch("queue", "estimates")  # waiting jobs of this kind need no profile any more


def learn_slowdowns(tx: Transaction, found: Sequence[tuple[Mapping[str, Any], Sequence[MeasuredSpeed]]]) -> None:
    """Learn how many times longer steps take beside one other job than alone: from leases that share, where their speed alone is known.

    A report counts only if during all its steps the same other lease, and no third one, ran on the same GPUs and shared them in the same
    way, switched ones with equal priority.
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
                continue  # its waiting depends on how busy the one with larger priority was
            key = (lease["model"], beside["model"], lease["gpu_name"], lease["share"])
            row = rows.setdefault(key, {**dict(zip(_PAIR, key, strict=True)), "slowdown": None, "samples": 0})
            weight = 1 / min(row["samples"] + 1, _PAST_WEIGHT)
            slowdown = mix(row["slowdown"], one.speed.compute / lease["compute"], weight)
            row.update(slowdown=slowdown, samples=row["samples"] + 1, updated_at=tx.now)
            changed[key] = row
    tx.upsert("slowdowns", list(_PAIR), list(changed.values()))
    if any(row["samples"] == 1 for row in changed.values()):
        tx.touch("queue")  # other jobs may be packed together now


def _precedence(lease: Mapping[str, Any]) -> int:
    return int(precedence(lease["kind"], lease["priority"]))


_PAIR = ("model", "beside", "gpu_name", "kind")  #: keys of `slowdowns`


def _only_other(others: Sequence[Mapping[str, Any]], report: MeasuredSpeed) -> Mapping[str, Any] | None:
    """The one other lease that ran on the same GPUs all the time, None: none did, or several."""
    there = [one for one in others if one["granted_at"] < report.ts and (one["ended_at"] is None or one["ended_at"] > report.since)]
    if len(there) != 1:
        return None
    (one,) = there
    ran = one["started_at"] is not None and one["started_at"] <= report.since and (one["ended_at"] is None or one["ended_at"] >= report.ts)
    return one if ran and one["whole"] else None


_COLUMNS = ("signature", "gpu_name", "model", "gang", "compute", "within_node", "across_nodes", "peak_memory", "samples")


def fold(known: Mapping[str, Any], speed: Speed, *, across: bool) -> dict[str, Any]:
    """A row of `speeds` with one more report: a plain mean at first, then a moving one. ``across``: the ranks were on several nodes."""
    samples = known["samples"] or 0
    weight = 1 / min(samples + 1, _PAST_WEIGHT)
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
    """Set how busy jobs keep a GPU, and how much memory of a slot they take: rows of `speeds` with its keys; None: unchanged."""
    keys = ["signature", "gpu_name"]
    for rows in batch:
        for name in ("utilisation", "peak_memory"):
            tx.update("speeds", keys, [{key: row[key] for key in (*keys, name)} for row in rows if row[name] is not None])
    tx.touch("queue")  # waiting jobs may be packed now
    return [None] * len(batch)


def mix(old: float | None, new: float | None, weight: float) -> float | None:
    """``old`` moved towards ``new`` by this share of the way; where one of them is None, the other."""
    if old is None or new is None:
        return new if old is None else old
    return old + weight * (new - old)
