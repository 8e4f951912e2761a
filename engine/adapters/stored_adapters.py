"""The bank in the tables: ended jobs' adapters, the beginnings of jobs that are granted GPUs, and the outcomes."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec

from ..protocol import Begun, LeftAdapter
from ..spec.model import JobSpec
from ..store.transaction import Transaction
from .adapter_choice import Banked, Gain, Gains, OfferedAdapter, offers

AUTO = "auto"
JOINT = "joint"  #: with its half of a common training with the job `begin_after`
NEWEST_KEPT = 2  #: newest adapters of the same data that the bank keeps; older ones stay with their jobs only
#: params that do not change a job's number of steps to its target, or only by chance
_NO_LESSON = frozenset({"seed", "checkpoint_every"})


def begins_of(spec: JobSpec) -> str | None:
    """Of the column `jobs.begins`."""
    return JOINT if spec.merge_job is not None else "job" if spec.begin_job is not None else AUTO if spec.begin == AUTO else None


def form_of(spec: JobSpec) -> str:
    """The first word of `adapters.petl`."""
    return str(spec.params.get("petl") or "full")


def data_of(spec: JobSpec) -> str:
    """Name of the data set, or the whole path of a file."""
    named = spec.params.get("data") or spec.params.get("dataset")
    if not isinstance(named, str) or not named:
        return f"that of {spec.recipe}"
    is_file = "/" in named or PurePath(named).suffix in (".csv", ".jsonl", ".parquet", ".txt")
    return str(PurePath(spec.workdir, named)) if is_file else named


def lesson_of(spec: JobSpec) -> int:
    """Digest of all that decides a job's number of steps from its backbone."""
    params = {name: value for name, value in spec.params.items() if name not in _NO_LESSON}
    memory = spec.memory.batches if spec.memory is not None else 1
    said = [spec.recipe, spec.starts_from, data_of(spec), params, msgspec.to_builtins(spec.stop), memory]
    return int.from_bytes(hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()[:8]) >> 1


@dataclass(frozen=True, slots=True)
class Beginning:
    """The possible beginnings of a lease; of `leases.options`."""

    offers: list[dict[str, Any]] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)  #: its metric at the first evaluation from the backbone, if known

    def to_json(self) -> dict[str, Any]:
        return {"offers": self.offers, "curve": self.curve} if self.offers else {}


def choose(tx: Transaction, wanted: Mapping[int, int | None]) -> dict[int, Beginning]:
    """Beginnings of jobs that are granted GPUs, may begin with an adapter and have not begun; ``wanted``: the policy's choices."""
    found: dict[int, Beginning] = {}
    rows: list[dict[str, Any]] = []
    for job, owner, begins, named, text, begun, state, steps in tx.execute("beginners", list(wanted)) if wanted else ():
        found[job] = Beginning()
        if begun:
            continue
        spec = msgspec.json.decode(text, type=JobSpec)
        if begins == JOINT and state == JOINT:
            found[job] = _half(job, named, steps)
            continue
        if begins == JOINT and begins_of(spec) != AUTO:  # else a plan had chosen the partner, without effect
            if state is None:
                rows.append(cold(spec, job, f"job {named} ended before it had trained with it", tx.now))
            continue
        planned = named if begins == "job" else wanted[job]
        chosen, why = _named(tx, spec, owner, planned) if begins == "job" else _auto(tx, spec, owner, planned)
        given = [
            {"job": one.banked.job, "data": one.banked.data, "digest": one.banked.digest, "expected": one.expected, "why": one.why,
             "same_kind": one.same_kind, "named": begins == "job"}
            for one in chosen
        ]  # fmt: skip
        curve = tx.execute("cold_curve", lesson_of(spec), spec.stop.metric) if given and spec.stop.metric else []
        found[job] = Beginning(given, [(int(step), float(value)) for step, value in curve])
        if state not in (None, "planned", "cold"):
            continue  # it has reported more than that
        first = chosen[0] if chosen else None
        rows.append({
            "job_id": job, "source": first and first.banked.job, "data": data_of(spec), "labels": None, "same_data": False,
            "expected": first and first.expected, "state": "planned" if first else "cold", "step": 0, "cost": 0, "why": why,
            "decided_at": tx.now,
        })  # fmt: skip
    tx.upsert("beginnings", ["job_id"], rows)
    return found


def cold(spec: JobSpec, job: int, why: str, now: float) -> dict[str, Any]:
    """Row of `beginnings` of a job that trains from its backbone."""
    return {"job_id": job, "source": None, "data": data_of(spec), "labels": None, "same_data": False, "expected": None, "state": "cold",
            "step": 0, "cost": 0, "why": why, "decided_at": now}  # fmt: skip


def _half(job: int, source: int, steps: int) -> Beginning:
    why = f"has trained {steps} steps together with job {source}"
    about = {"job": source, "data": "", "digest": "", "expected": None, "why": why, "same_kind": False, "named": True}
    return Beginning([{**about, "part": f"joint-{job}", "steps": steps}])


def _named(tx: Transaction, spec: JobSpec, owner: str, source: int | None) -> tuple[list[OfferedAdapter], str]:
    found = tx.execute("adapter_of", source)
    if not found:
        return [], f"job {source} has left no adapter, so it trains from its backbone"
    *row, gone, whose = found[0]
    if whose != owner:
        return [], f"the adapter of job {source} is {whose}'s, so it trains from its backbone"
    if gone is not None:
        return [], f"the adapter of job {source} is gone ({gone}), so it trains from its backbone"
    one = Banked(*row)
    pair = _gains(tx, owner).pairs.get((one.data, data_of(spec)))
    known = pair.ratio if pair is not None and pair.helped else None
    words = f"{known:.1f} x fewer steps expected, as measured for this pair of data" if known else "as it was told"
    return [OfferedAdapter(one, known, words)], words


def _auto(tx: Transaction, spec: JobSpec, owner: str, planned: int | None) -> tuple[list[OfferedAdapter], str]:
    data = data_of(spec)
    rows = tx.execute("bank_for", owner, spec.recipe, form_of(spec), spec.starts_from)
    bank = [Banked(*row) for row in rows]
    kinds = tx.execute("labels_of_data", owner, data)
    chosen = offers(bank, data, kinds[0][0] if kinds else None, _gains(tx, owner))
    chosen.sort(key=lambda one: one.banked.job != planned)
    if chosen:
        return chosen, chosen[0].why
    if not bank:
        form = form_of(spec)
        return [], f"no ended job of {owner} has left an adapter for it{'' if form == 'full' else f' with petl: {form}'}"
    return [], f"none of the {len(bank)} adapters for it is known to help, or has labels of the same kind and other data"


def _gains(tx: Transaction, owner: str) -> Gains:
    """From all known beginnings of a user's jobs."""
    pairs: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    kinds: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for source, data, source_labels, labels, gain in tx.execute("measured_gains", owner):
        pairs[source, data].append(gain)
        if labels is not None:
            kinds[source_labels, labels].append(gain)
    return Gains({key: gain_of(found) for key, found in pairs.items()}, {key: gain_of(found) for key, found in kinds.items()})


def gain_of(found: Sequence[float | None]) -> Gain:
    """``found``: the gain of each beginning; None: it was undone."""
    helped = [math.log(gain) for gain in found if gain is not None and gain > 0]
    return Gain(len(helped), math.exp(sum(helped) / len(helped)) if helped else 1.0, sum(gain is None for gain in found))


def keep(tx: Transaction, begun: Sequence[tuple[int, Begun]], left: Sequence[tuple[int, LeftAdapter]]) -> None:
    """Store runners' reports on beginnings and adapters, each with its job, in order."""
    told: dict[int, dict[str, Any]] = {}
    lost: dict[int, dict[int, str]] = defaultdict(dict)
    for job, one in begun:
        source = None if one.state == "cold" else one.source  # else a job with which it can't train together
        told[job] = {"job_id": job, "source": source, "labels": one.labels, "same_data": one.same_data, "state": one.state,
                     "expected": one.expected, "step": one.step, "cost": one.cost, "why": one.why, "decided_at": tx.now}  # fmt: skip
        lost[job].update(one.damaged)
    tx.update("beginnings", ["job_id"], list(told.values()))
    for job, words in lost.items():
        own = tx.execute("own_adapters", job, list(words)) if words else []
        tx.update("adapters", ["job_id"], [{"job_id": source, "gone": words[source]} for (source,) in own])
    if not left:
        return
    rows = []
    newest = dict(left)
    for job, owner, text, state in tx.execute("owners_and_specs", list(newest)):
        spec, made = msgspec.json.decode(text, type=JobSpec), newest[job]
        if spec.recipe is None:
            continue  # no job can begin with an adapter without a recipe
        begun_with = made.begun or state in ("begun", "kept", JOINT)  # its runner, on another host, may have forgotten that
        rows.append({
            "job_id": job, "owner": owner, "recipe": spec.recipe, "backbone": made.backbone, "revision": made.revision, "petl": made.petl,
            "data": data_of(spec), "digest": made.digest, "labels": made.labels, "lesson": lesson_of(spec), "steps": made.steps,
            "reached": made.reached, "begun": begun_with, "bytes": made.bytes, "ended_at": tx.now, "gone": made.unusable,
        })  # fmt: skip
    tx.upsert("adapters", ["job_id"], rows)
    superseded = tx.execute("superseded_adapters", NEWEST_KEPT)
    tx.update("adapters", ["job_id"], [{"job_id": job, "gone": "newer ones of the same data are kept"} for (job,) in superseded])
