"""Submission: jobs enter the tables, all of a request or none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from ..adapters.stored_adapters import begins_of
from ..errors import Conflict, Gathered, NotFound, StokerError, UsageError, nearest
from ..spec.check import MAX_EDGES, require_time
from ..spec.model import SERVES, JobSpec, Submission, base_name
from ..spec.same import differences
from ..store.transaction import Transaction
from .begin_from import WeightSource, adapter_objection, objection, partner_objection, sources_of
from .states import FINAL, State


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    submission: Submission
    user: str
    schedule: int | None = None


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A job that was submitted with an idempotency key."""

    id: int
    spec: JobSpec
    submitted_at: float


Jobs = tuple[int, ...]  #: numbers in order
Pools = dict[str, dict[int, int]]  #: of each pool the number of GPUs by bytes; 0: not known, any job may fit


@dataclass(slots=True)
class _Names:
    """The jobs that a word in `after:` means: a number is any user's; a name or a key is one's own newest, else any user's of that name.

    Each is a job alone, or the tasks of an array.
    """

    numbers: dict[str, Jobs] = field(default_factory=dict)
    own: dict[tuple[str, str], Jobs] = field(default_factory=dict)  #: by owner, and name or key
    anybody: dict[str, Jobs] = field(default_factory=dict)  #: by name

    def find(self, word: str, user: str) -> Jobs:
        return self.numbers.get(word) or self.own.get((user, word)) or self.anybody.get(word) or ()

    def add(self, owner: str, name: str, jobs: Jobs, *, is_key: bool = False) -> None:
        """A job or an array; the newest of a name is kept."""
        self.own[owner, name] = max(jobs, self.own.get((owner, name), ()))
        if not is_key:  # a key is its owner's only
            self.anybody[name] = max(jobs, self.anybody.get(name, ()))


@dataclass(slots=True)
class _Context:
    """Data for the whole batch, read once."""

    #: Job by owner and idempotency key. Keys belong to users: the table has the owner beside each key, so two users may have the
    #: same key, and old rows, from when keys were common to all, keep theirs.
    keys: dict[tuple[str, str], _Keyed]
    names: _Names
    states: dict[int, State]
    pools: Pools
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    servers: set[int] = field(default_factory=set)  #: looked-up jobs that serve a model
    sources: dict[int, WeightSource] = field(default_factory=dict)  #: looked-up sources of weights
    kept: dict[int | None, int | None] = field(default_factory=dict)  #: by signature, see `_kept`

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.tables.setdefault(table, []).append(row)


def submit(tx: Transaction, batch: Sequence[SubmitRequest]) -> Sequence[list[dict[str, Any]] | StokerError]:
    """Accept jobs; answers with ``[{id, name, state, existing}]`` per request."""
    context = _context(tx, batch)
    answers: list[list[dict[str, Any]] | StokerError] = []
    for request in batch:
        try:
            answers.append(_accept(tx, request, *_checked(tx, request, context), context))
        except StokerError as error:
            answers.append(error)
    for table in ("jobs", "tiers", "dependencies", "provenance"):
        tx.insert(table, context.tables.get(table, []))
    tx.touch("queue")
    return answers


def _checked(
    tx: Transaction, request: SubmitRequest, context: _Context
) -> tuple[dict[str, int], dict[str, list[tuple[int | str, str]]], dict[str, int | str], dict[str, int | str]]:
    """The jobs of a request that are there already, and for the others whom they wait for and begin with; StokerError refuses it."""
    known = _known(tx, request, context)
    fresh = [spec for spec in request.submission.jobs if spec.name not in known]  # a repetition is answered, not checked again
    check(fresh, context.pools, tx.now if request.schedule is None else 0.0)
    edges = _resolve(fresh, known, request.user, context)
    sources = _weights(tx, fresh, known, request.user, context)
    return known, edges, sources, _begins(tx, fresh, known, edges, request.user, context)


def on_trial(tx: Transaction, request: SubmitRequest) -> tuple[dict[str, tuple[int, State]], list[JobSpec]]:
    """What a dry run finds: the jobs that are there already, by name, and all specs without those of their dependencies that are met.
    Refuses what `submit` would refuse."""
    context = _context(tx, [request])
    known, _, sources, begins = _checked(tx, request, context)
    own = {spec.name for spec in request.submission.jobs}

    def ended(spec: JobSpec, word: str) -> bool:
        jobs = (known[word],) if word in known else context.names.find(word, _owner(spec, request))
        return (word in known or word not in own or word == spec.name) and all(context.states[job] in FINAL for job in jobs)

    left = []
    for spec in request.submission.jobs:
        source, first = sources.get(spec.name), begins.get(spec.name)
        saved = isinstance(source, int) and context.sources[source].saved
        over = isinstance(first, int) and context.states.get(first) in FINAL
        left.append(
            msgspec.structs.replace(
                spec,
                after=tuple(dependency for dependency in spec.after if not ended(spec, dependency.job)),
                weights=None if saved else spec.weights,
                begin=None if over else spec.begin,
                merge=None if over else spec.merge,
            )
        )
    return {name: (job, context.states[job]) for name, job in known.items()}, left


def check(jobs: Sequence[JobSpec], pools: Pools, now: float) -> None:
    """Refuse jobs that could never run, or have no time left. Pools without present runners are not checked."""
    errors = Gathered()
    for spec in jobs:
        with errors.part():
            require_time(spec, now)
        if spec.memory is not None and spec.memory.accumulate == "auto":
            errors.add(
                UsageError(
                    "memory.accumulate: auto is chosen by 'stoker submit' and 'stoker swap plan', which measure; write the number they find"
                )
            )
        if spec.pool in pools:
            with errors.part():
                _require_gpus(spec, pools[spec.pool])
        elif pools and spec.pool != "default":
            known = f"{nearest(spec.pool, pools)}; pools: {', '.join(sorted(pools))}"
            begin = f"'stoker policy set NAME --pool {spec.pool} --create' names one before its runners join"
            errors.add(UsageError(f"pool: no runner offers pool {spec.pool!r}{known}; {begin}"))
    errors.tell()


def pools_of(rows: Iterable[tuple[str, int, int]]) -> Pools:
    """Of the query ``store/pool_sizes``."""
    pools: Pools = {}
    for pool, memory, count in rows:
        pools.setdefault(pool, {})[memory] = count
    return pools


def _require_gpus(spec: JobSpec, gpus: Mapping[int, int]) -> None:
    """UsageError if the pool has too few GPUs, or too few with the job's memory."""
    count, name = sum(gpus.values()), base_name(spec.name)
    if spec.replicas is not None and 0 < count < spec.replicas.max:
        raise UsageError(
            f"replicas.max: {name} asks for up to {spec.replicas.max} replicas, pool {spec.pool!r} has {count} GPUs: "
            "lower it, or add a runner"
        )
    if 0 < count < spec.gpus_min:
        raise UsageError(f"gpus: {name} asks for {spec.gpus_min} GPUs, pool {spec.pool!r} has {count}: ask for fewer, or add a runner")
    needed = spec.memory_of_a_gpu
    if sum(number for size, number in gpus.items() if size >= needed or not size) >= min(spec.gpus_min, count):
        return
    large = [size for size in sorted(gpus, key=lambda size: size or math.inf, reverse=True) for _ in range(gpus[size])]
    most = large[spec.gpus_min - 1] >> 20  # MiB of each of so many
    field = "share.memory" if spec.share and spec.share.bytes else "gpu_memory" if spec.gpu_memory else "memory.cap"
    remedy = "lower it, or add a runner"
    if field == "gpu_memory" and spec.command is None and spec.gpus_max == 1:
        remedy += f", or write 'memory: {{cap: {most}MiB}}' in its place, which trains in less"
    raise UsageError(
        f"{field}: {name} needs {-(-needed >> 20)} MiB of {'each GPU' if spec.gpus_min > 1 else 'a GPU'}, "
        f"pool {spec.pool!r} has {most} MiB at most: {remedy}"
    )


def _context(tx: Transaction, batch: Sequence[SubmitRequest]) -> _Context:
    specs = [spec for request in batch for spec in request.submission.jobs]
    keys = [spec.idempotency_key for spec in specs if spec.idempotency_key]
    wanted = sorted(
        {
            job
            for spec in specs
            for job in (*(item.job for item in spec.after), spec.weights_job, spec.begin_job, spec.merge_job)
            if job is not None
        }
    )
    context = _Context(keys={}, names=_Names(), states={}, pools=pools_of(tx.execute("pool_sizes")))
    for job, owner, key, state, spec, submitted_at in tx.execute("idempotency", keys) if keys else ():
        context.keys[owner, key] = _Keyed(job, msgspec.json.decode(spec, type=JobSpec), submitted_at)
        context.states[job] = State(state)
    found = tx.execute("find_jobs", wanted) if wanted else []
    context.states |= {job: State(state) for *_, job, state, _ in found}
    context.servers |= {job for *_, job, _, kind in found if kind == SERVES}
    for (word, fits, owner), rows in groupby(found, key=lambda row: row[:3]):
        jobs = tuple(row[3] for row in rows)
        if fits == "number":
            context.names.numbers[word] = jobs
        else:
            context.names.add(owner, word, jobs, is_key=fits == "key")
    return context


def _known(tx: Transaction, request: SubmitRequest, context: _Context) -> dict[str, int]:
    """Jobs of the request that its user has submitted before with their keys, by name. Conflict if a key belongs to a different job."""
    known: dict[str, int] = {}
    for spec in request.submission.jobs:
        before = context.keys.get((_owner(spec, request), spec.idempotency_key or ""))
        if before is None:
            continue
        if fields := differences(before.spec, spec, tx.now - before.submitted_at):
            raise Conflict(
                f"idempotency_key: {spec.idempotency_key!r} is that of job {before.id} {before.spec.name}, and {spec.name} differs from it "
                f"in {', '.join(fields)}: give another key, or submit the same again"
            )
        known[spec.name] = before.id
    return known


def _owner(spec: JobSpec, request: SubmitRequest) -> str:
    return spec.user or request.user


def _resolve(fresh: Sequence[JobSpec], known: Mapping[str, int], user: str, context: _Context) -> dict[str, list[tuple[int | str, str]]]:
    """For each new job its dependencies: the number of an earlier job, or the name of a new one in the same request.

    ``known``: jobs of the request that were submitted before, by name.
    """
    own = {spec.name for spec in fresh}
    servers = {spec.name for spec in fresh if spec.kind == SERVES}
    edges: dict[str, list[tuple[int | str, str]]] = {}
    for spec in fresh:
        found = edges.setdefault(spec.name, [])
        for dependency in spec.after:
            if dependency.mode == "ok" and dependency.job in servers:
                raise _without_end(spec, dependency.job)
            if dependency.job in own and dependency.job != spec.name:
                found.append((dependency.job, dependency.mode))
                continue
            jobs = (known[dependency.job],) if dependency.job in known else context.names.find(dependency.job, spec.user or user)
            if not jobs:
                near = nearest(dependency.job, {base_name(name) for name in own} - {base_name(spec.name)})
                raise NotFound(f"after: {spec.name} waits for {dependency.job!r}, and there is no such job{near}")
            if dependency.mode == "ok" and context.servers.intersection(jobs):
                raise _without_end(spec, dependency.job)
            for job in jobs if dependency.mode == "ok" else ():
                if context.states[job] in (State.FAILED, State.CANCELLED):
                    what = f"job {dependency.job}" if len(jobs) == 1 else f"job {job}, a task of {dependency.job},"
                    raise UsageError(f"after: {what} has ended as {context.states[job]}, so {spec.name} could never start")
            found += [(job, dependency.mode) for job in jobs]
    if sum(map(len, edges.values())) > MAX_EDGES:
        raise UsageError(f"after: more than {MAX_EDGES} dependencies between single jobs; put a small job between the arrays")
    return edges


def _without_end(spec: JobSpec, server: str) -> UsageError:
    words = f"{server} serves a model until it is cancelled, so {spec.name} could never start"
    return UsageError(f"after: {words}; write {{job: {server}, mode: any}} to start it when the server has ended")


def _weights(tx: Transaction, fresh: Sequence[JobSpec], known: Mapping[str, int], user: str, context: _Context) -> dict[str, int | str]:
    """For each new job that begins with another's weights: the number of that other, or its name if it is new in the same request."""
    own = {spec.name: spec for spec in fresh}
    found: dict[str, int | str] = {}
    for spec in fresh:
        if (word := spec.weights_job) is None:
            continue
        found[spec.name], source = _source(tx, ("weights", "begin with those of"), spec, word, own, known, user, context)
        if (words := objection(spec, source)) is not None:
            raise UsageError(f"weights: {spec.name}: {words}")
    return found


def _begins(
    tx: Transaction,
    fresh: Sequence[JobSpec],
    known: Mapping[str, int],
    edges: Mapping[str, list[tuple[int | str, str]]],
    user: str,
    context: _Context,
) -> dict[str, int | str]:
    """The same for jobs that begin with another's adapter, after its end, or train their first steps together with it."""
    own = {spec.name: spec for spec in fresh}
    found: dict[str, int | str] = {}
    for spec in fresh:
        field, word = ("merge", spec.merge_job) if spec.merge_job is not None else ("begin", spec.begin_job)
        if word is None:
            continue
        what = (field, "begin with the adapter of" if field == "begin" else "train its first steps together with")
        found[spec.name], source = _source(tx, what, spec, word, own, known, user, context)
        if field == "merge" and found[spec.name] in [target for target, _ in edges[spec.name]]:
            raise UsageError(f"merge: {spec.name}: 'after' names job {word} too, for whose end it would wait; remove one of them")
        objects = adapter_objection if field == "begin" else partner_objection
        if (words := objects(spec, source, spec.user or user)) is not None:
            raise UsageError(f"{field}: {spec.name}: {words}")
    return found


def _source(
    tx: Transaction,
    what: tuple[str, str],
    spec: JobSpec,
    word: str,
    own: Mapping[str, JobSpec],
    known: Mapping[str, int],
    user: str,
    context: _Context,
) -> tuple[int | str, WeightSource]:
    """The job that ``word`` means for a new one: its number, or its name if it is of the same request. ``what``: field, and words."""
    if word in own and word != spec.name:
        return word, WeightSource(word, own[word], State.PENDING, saved=False, owner=own[word].user or user)
    jobs = (known[word],) if word in known else context.names.find(word, spec.user or user)
    if not jobs:
        near = nearest(word, own.keys() - {spec.name})
        before = " before it" if word == spec.name else ""
        raise NotFound(f"{what[0]}: {spec.name} is to {what[1]} job {word!r}, and there is no such job{before}{near}")
    if len(jobs) > 1:
        raise UsageError(f"{what[0]}: {word} is an array of {len(jobs)} tasks; name one of them, such as job:{word}[0]")
    if jobs[0] not in context.sources:
        context.sources |= sources_of(tx.execute("weight_sources", list(jobs)))
    return jobs[0], context.sources[jobs[0]]


def _accept(
    tx: Transaction,
    request: SubmitRequest,
    known: Mapping[str, int],
    edges: Mapping[str, list[tuple[int | str, str]]],
    sources: Mapping[str, int | str],
    begins: Mapping[str, int | str],
    context: _Context,
) -> list[dict[str, Any]]:
    specs = request.submission.jobs
    numbers = {spec.name: known.get(spec.name) or tx.number("jobs") for spec in specs}
    answer = []
    arrays: dict[tuple[str, str], list[int]] = {}
    first = _first_tasks(specs, numbers)
    for spec in specs:
        job = numbers[spec.name]
        if spec.array_size is not None:
            arrays.setdefault((_owner(spec, request), base_name(spec.name)), []).append(job)
        if spec.name in known:
            answer.append({"id": job, "name": spec.name, "state": None, "existing": True})
            continue
        needs = [(numbers[target] if isinstance(target, str) else target, mode) for target, mode in edges[spec.name]]
        begin_after = numbers[target] if isinstance(target := begins.get(spec.name), str) else target
        if begin_after is not None and begin_after not in [number for number, _ in needs]:
            needs.append((begin_after, "any"))
        unmet = 0
        for number, mode in needs:
            met = context.states.get(number) in FINAL
            unmet += not met
            context.add("dependencies", {"job_id": job, "needs": number, "mode": mode, "met": met})
        begin_from = numbers[target] if isinstance(target := sources.get(spec.name), str) else target
        unsaved = begin_from is not None and not (begin_from in context.sources and context.sources[begin_from].saved)
        state = State.SUBMITTED if unmet or unsaved or spec.hold else State.PENDING
        reason = f"waits for job {begin_from} to save a checkpoint" if unsaved else "ready"
        reason = "held" if spec.hold else f"waits for {unmet} other job{'s' * (unmet > 1)}" if unmet else reason
        array = first.get(base_name(spec.name)) if spec.array_size else None
        _write(tx, request, spec, job, state, reason, array, begin_from, begin_after, context)
        _remember(spec, job, state, _owner(spec, request), tx.now, context)
        answer.append({"id": job, "name": spec.name, "state": str(state), "existing": False})
    for (owner, name), tasks in arrays.items():
        context.names.add(owner, name, tuple(sorted(tasks)))
    return answer


def _remember(spec: JobSpec, job: int, state: State, owner: str, now: float, context: _Context) -> None:
    """Keep a new job for the later requests of the batch."""
    context.states[job] = state
    if spec.kind == SERVES:
        context.servers.add(job)
    context.sources[job] = WeightSource(str(job), spec, state, saved=False, owner=owner)
    context.names.add(owner, spec.name, (job,))
    if spec.idempotency_key is not None:
        context.names.add(owner, spec.idempotency_key, (job,), is_key=True)
        context.keys[owner, spec.idempotency_key] = _Keyed(job, spec, now)


def _first_tasks(specs: Sequence[JobSpec], numbers: Mapping[str, int]) -> dict[str, int]:
    """Number of each array by its name: that of its first task here, which may have been submitted before, and need not be task 0."""
    tasks = sorted((spec for spec in specs if spec.array_index is not None), key=lambda spec: -(spec.array_index or 0))
    return {base_name(task.name): numbers[task.name] for task in tasks}


def _write(
    tx: Transaction,
    request: SubmitRequest,
    spec: JobSpec,
    job: int,
    state: State,
    reason: str,
    array: int | None,
    begin_from: int | None,
    begin_after: int | None,
    context: _Context,
) -> None:
    user = _owner(spec, request)
    context.add("jobs", {**job_row(spec, tx.now), "id": job, "owner": user, "state": state, "state_reason": reason,
                         "eligible_at": tx.now if state is State.PENDING else None, "array_id": array,
                         "schedule_id": request.schedule, "begin_from": begin_from,
                         "begins": begins_of(spec), "begin_after": begin_after, "kept_memory": _kept(tx, spec, context)})  # fmt: skip
    for tier in spec.demand.tiers:
        context.add("tiers", {"job_id": job, "deadline": tier.deadline, "reward": tier.reward})
    provenance = request.submission.provenance
    context.add("provenance", {**msgspec.structs.asdict(provenance), "job_id": job, "argv": json.dumps(provenance.argv)})
    tx.event("job.state", user, job=job, after=State.SUBMITTED, reason="submitted")
    if state is State.PENDING:
        tx.event("job.state", "daemon", job=job, before=State.SUBMITTED, after=state, reason=reason)


def _kept(tx: Transaction, spec: JobSpec, context: _Context) -> int | None:
    """The GPU memory that equal jobs kept while others had the turn; None: not known, or all."""
    if spec.share is None or not spec.share.replays:
        return None
    if spec.signature not in context.kept:
        context.kept[spec.signature] = tx.execute("kept_memory", spec.signature)[0][0]
    return context.kept[spec.signature]


def job_row(spec: JobSpec, now: float) -> dict[str, Any]:
    """Columns of `jobs` that follow from the spec, and the zeros a job begins with."""
    return {
        "name": spec.name, "kind": spec.kind, "pool": spec.pool, "state_since": now, "priority": spec.priority, "held": spec.hold,
        "gpus_min": spec.gpus_min, "gpus_max": spec.gpus_max, "gpu_memory": spec.memory_of_a_gpu, "demand": spec.demand.kind,
        "deadline": spec.deadline, "model": spec.model, "signature": spec.signature, "total_steps": spec.stop.iterations,
        "est_duration": spec.estimate, "submitted_at": now, "attempts": 0, "failures": 0, "preemptions": 0, "cancel_requested": False,
        "run_time": 0.0, "attained": 0.0, "array_index": spec.array_index, "array_cap": spec.array_cap,
        "idempotency_key": spec.idempotency_key, "share": spec.share and spec.share.gpu, "input": spec.share and spec.share.input,
        "backbone": spec.starts_from, "labels": json.dumps(spec.labels), "spec": msgspec.json.encode(spec).decode(),
    }  # fmt: skip
