"""Submission: jobs enter the tables, all of a request or none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import Gathered, NotFound, StokerError, UsageError, nearest
from ..spec.expand import base_name
from ..spec.model import JobSpec, Submission
from ..states import FINAL, State
from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    submission: Submission
    user: str
    schedule: int | None = None


@dataclass(slots=True)
class _Context:
    """What the whole batch needs to know, read once."""

    keys: dict[str, int]  #: idempotency key to job
    names: dict[str, int]  #: name to newest job
    states: dict[int, State]
    largest: dict[str, int]  #: GPUs of each pool
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.tables.setdefault(table, []).append(row)


def submit(tx: Transaction, batch: Sequence[SubmitRequest]) -> Sequence[list[dict[str, Any]] | StokerError]:
    """Accept jobs; answers with ``[{id, name, state, existing}]`` a request."""
    context = _context(tx, batch)
    answers: list[list[dict[str, Any]] | StokerError] = []
    for request in batch:
        jobs = request.submission.jobs
        known = {spec.name: context.keys[spec.idempotency_key] for spec in jobs if spec.idempotency_key in context.keys}
        fresh = [spec for spec in jobs if spec.name not in known]  # a repetition is answered, not judged again
        try:
            check(fresh, context.largest)
            edges = _resolve(fresh, known, context)
        except StokerError as error:
            answers.append(error)
            continue
        answers.append(_accept(tx, request, edges, context))
    for table in ("jobs", "tiers", "dependencies", "provenance"):
        tx.insert(table, context.tables.get(table, []))
    tx.touch("queue")
    return answers


def check(jobs: Sequence[JobSpec], largest: dict[str, int]) -> None:
    """Refuse at once what could never run. ``largest`` maps a pool to its GPUs; one whose runners are away is not judged."""
    errors = Gathered()
    for spec in jobs:
        if spec.pool not in largest:
            if largest and spec.pool != "default":
                pools = f"{nearest(spec.pool, largest)}; pools: {', '.join(sorted(largest))}"
                errors.add(UsageError(f"pool: no runner offers pool {spec.pool!r}{pools}"))
        elif 0 < largest[spec.pool] < spec.gpus_min:
            has = f"pool {spec.pool!r} has {largest[spec.pool]}"
            errors.add(UsageError(f"gpus: {base_name(spec.name)} asks for {spec.gpus_min} GPUs, {has}: ask for fewer, or add a runner"))
    errors.tell()


def _context(tx: Transaction, batch: Sequence[SubmitRequest]) -> _Context:
    specs = [spec for request in batch for spec in request.submission.jobs]
    keys = [spec.idempotency_key for spec in specs if spec.idempotency_key]
    wanted = sorted({dependency.job for spec in specs for dependency in spec.after})
    keyed = tx.execute("idempotency", keys) if keys else []
    named = tx.execute("find_jobs", wanted) if wanted else []
    return _Context(
        keys={key: job for job, key, _ in keyed},
        names={name: job for name, job, _ in named},
        states={
            job: State(state) for job, state in [*((job, state) for job, _, state in keyed), *((job, state) for _, job, state in named)]
        },
        largest=dict(tx.execute("pool_sizes")),
    )


def _resolve(fresh: Sequence[JobSpec], known: Mapping[str, int], context: _Context) -> dict[str, list[tuple[int | str, str]]]:
    """For each new job its dependencies: the number of an earlier job, or the name of a new one in the same request.

    ``known``: jobs of the request that were submitted before, by name.
    """
    own = {spec.name for spec in fresh}
    edges: dict[str, list[tuple[int | str, str]]] = {}
    for spec in fresh:
        found = edges.setdefault(spec.name, [])
        for dependency in spec.after:
            if dependency.job in own and dependency.job != spec.name:
                found.append((dependency.job, dependency.mode))
                continue
            job = known.get(dependency.job) or context.names.get(dependency.job)
            if job is None:
                raise NotFound(f"after: {spec.name} waits for {dependency.job!r}, and there is no such job{nearest(dependency.job, own)}")
            if dependency.mode == "ok" and context.states[job] in (State.FAILED, State.CANCELLED):
                raise UsageError(f"after: job {dependency.job} has ended as {context.states[job]}, so {spec.name} could never start")
            found.append((job, dependency.mode))
    return edges


def _accept(
    tx: Transaction, request: SubmitRequest, edges: Mapping[str, list[tuple[int | str, str]]], context: _Context
) -> list[dict[str, Any]]:
    specs = request.submission.jobs
    numbers, existing = _number(tx, specs, context)
    answer = []
    for spec in specs:
        job = numbers[spec.name]
        if spec.name in existing:
            answer.append({"id": job, "name": spec.name, "state": None, "existing": True})
            continue
        needs = [(numbers[target] if isinstance(target, str) else target, mode) for target, mode in edges[spec.name]]
        unmet = 0
        for number, mode in needs:
            met = context.states.get(number) in FINAL
            unmet += not met
            context.add("dependencies", {"job_id": job, "needs": number, "mode": mode, "met": met})
        state = State.SUBMITTED if unmet or spec.hold else State.PENDING
        reason = "held" if spec.hold else f"waits for {unmet} other job{'s' * (unmet > 1)}" if unmet else "ready"
        _write(tx, request, spec, job, state, reason, _array(specs, spec, numbers), context)
        context.names[spec.name], context.states[job] = job, state
        answer.append({"id": job, "name": spec.name, "state": str(state), "existing": False})
    return answer


def _number(tx: Transaction, specs: Sequence[JobSpec], context: _Context) -> tuple[dict[str, int], set[str]]:
    """Numbers of the jobs of a request by name, and the names of those that their key has submitted before."""
    numbers: dict[str, int] = {}
    existing: set[str] = set()
    for spec in specs:
        key = spec.idempotency_key
        if key is not None and key in context.keys:
            numbers[spec.name] = context.keys[key]
            existing.add(spec.name)
            continue
        numbers[spec.name] = tx.number("jobs")
        if key is not None:
            context.keys[key] = numbers[spec.name]
    return numbers, existing


def _array(specs: Sequence[JobSpec], task: JobSpec, numbers: Mapping[str, int]) -> int | None:
    """Number of the array that a task belongs to: that of its first task, which may have been submitted before."""
    if task.array_size is None:
        return None
    first = next((s for s in specs if s.array_index == 0 and base_name(s.name) == base_name(task.name)), task)
    return numbers[first.name]


def _write(
    tx: Transaction, request: SubmitRequest, spec: JobSpec, job: int, state: State, reason: str, array: int | None, context: _Context
) -> None:
    user = spec.user or request.user
    context.add("jobs", {**job_row(spec, tx.now), "id": job, "owner": user, "state": state, "state_reason": reason,
                         "eligible_at": tx.now if state is State.PENDING else None, "array_id": array,
                         "schedule_id": request.schedule})  # fmt: skip
    for tier in spec.demand.tiers:
        context.add("tiers", {"job_id": job, "deadline": tier.deadline, "reward": tier.reward})
    provenance = request.submission.provenance
    context.add("provenance", {**msgspec.structs.asdict(provenance), "job_id": job, "argv": json.dumps(provenance.argv)})
    tx.event("job.state", user, job=job, after=State.SUBMITTED, reason="submitted")
    if state is State.PENDING:
        tx.event("job.state", "daemon", job=job, before=State.SUBMITTED, after=state, reason=reason)


def job_row(spec: JobSpec, now: float) -> dict[str, Any]:
    """Columns of `jobs` that follow from the spec, and the zeros a job begins with."""
    return {
        "name": spec.name, "kind": spec.kind, "pool": spec.pool, "state_since": now, "priority": spec.priority, "held": spec.hold,
        "gpus_min": spec.gpus_min, "gpus_max": spec.gpus_max, "gpu_memory": spec.gpu_memory, "demand": spec.demand.kind,
        "deadline": spec.deadline, "model": spec.model, "signature": spec.signature, "total_steps": spec.stop.iterations,
        "est_duration": spec.estimate, "submitted_at": now, "attempts": 0, "failures": 0, "preemptions": 0, "cancel_requested": False,
        "run_time": 0.0, "attained": 0.0, "array_index": spec.array_index, "array_cap": spec.array_cap,
        "idempotency_key": spec.idempotency_key, "labels": json.dumps(spec.labels), "spec": msgspec.json.encode(spec).decode(),
    }  # fmt: skip
