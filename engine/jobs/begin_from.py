"""Jobs that begin with another's weights: checks, and the release of those that wait for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..adapters.stored_adapters import JOINT, cold, data_of
from ..protocol import MOST_WORDS, Begun
from ..spec.model import SERVES, JobSpec
from ..store.transaction import Transaction
from .moves import Move, move
from .states import FINAL, State

LEAST_JOINT_GAIN = 1.1  #: least ratio of a job's steps alone to its steps with a common phase, for training two together


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A job whose weights others would begin with."""

    name: str  #: or number, for people
    spec: JobSpec
    state: State
    saved: bool  #: it has a checkpoint
    begin_from: int | None = None  #: the source of its own weights
    owner: str = ""
    left: bool = False  #: the bank has its adapter


def sources_of(rows: Iterable[Sequence[Any]]) -> dict[int, WeightSource]:
    """Of the query ``store/weight_sources``, by number."""
    return {
        job: WeightSource(str(job), msgspec.json.decode(spec, type=JobSpec), State(state), saved, begin_from, owner, left)
        for job, spec, state, saved, begin_from, owner, left in rows
    }


def objection(spec: JobSpec, source: WeightSource) -> str | None:
    """Why a job can never begin with those weights; None: it can, once there is a checkpoint. Tensors are compared when it begins."""
    of, name = source.spec, f"job {source.name}"
    if of.command is not None:
        return f"{name} runs a command, whose checkpoints only itself can read; name a job with a recipe or an entrypoint"
    if of.kind == SERVES:
        return f"{name} serves a model and saves no checkpoint; name the job that trained it"
    if spec.recipe != of.recipe:
        return f"{name} trains {of.recipe or of.entrypoint}, and this one {spec.recipe or spec.entrypoint}: the models differ"
    if None not in (spec.starts_from, of.starts_from) and spec.starts_from != of.starts_from:
        return f"{name} starts from the backbone {of.starts_from}, and this one from {spec.starts_from}: the models differ"
    if source.state in FINAL and not source.saved:
        return f"{name} has ended as {source.state} without a checkpoint"
    return None


def adapter_objection(spec: JobSpec, source: WeightSource, user: str) -> str | None:
    """Why a job can never begin with that job's adapter; None: as far as is known it can, once that has ended."""
    of, name = source.spec, f"job {source.name}"
    if source.owner != user:
        return f"{name} is {source.owner}'s, and jobs begin with adapters of their own user's jobs only"
    if of.recipe != spec.recipe:
        return f"{name} trains {of.recipe or of.entrypoint or 'a command'}, and this one {spec.recipe}: what it leaves does not fit"
    if of.kind == SERVES:
        return f"{name} serves a model and leaves no adapter; name the job that trained it"
    if of.replicas is not None:
        return f"{name} trains as replicas, which leave no adapter; name another job, or give weights: in place of begin"
    if None not in (spec.starts_from, of.starts_from) and spec.starts_from != of.starts_from:
        return f"{name} starts from the backbone {of.starts_from}, and this one from {spec.starts_from}: they are never mixed"
    for param, default in (("petl", "full"), ("r", None), ("targets", None), ("layers", None)):
        mine, other = (each.params.get(param, default) for each in (spec, of))
        if None not in (mine, other) and mine != other:
            return f"{name} has {param}: {other}, and this one {mine}: forms of what is trained are never mixed"
    if source.state in FINAL and not source.left:
        return f"{name} has ended as {source.state}, and its adapter is not in the bank (see 'stoker adapters --all')"
    return None


def partner_objection(spec: JobSpec, partner: WeightSource, user: str) -> str | None:
    """Why a job can never train its first steps with that one, which would hold the lease; None: as far as is known it can."""
    of, name = partner.spec, f"job {partner.name}"
    if partner.state not in (State.SUBMITTED, State.PENDING) or partner.saved:
        return f"{name} has begun to train; give begin: job:{partner.name} to begin with what it leaves"
    if of.merge != "transfer":
        return f"{name} does not say merge: transfer, so it trains with nobody together"
    for param in ("batch_size", "layers", "petl", "r", "targets"):
        mine, other = (each.params.get(param) for each in (spec, of))
        if None not in (mine, other) and mine != other:
            return f"{name} has {param}: {other}, and this one {mine}: only the same can be trained together"
    return adapter_objection(spec, partner, user)


def planned(rows: Callable[[list[int]], Iterable[Sequence[Any]]], wanted: Mapping[int, int]) -> dict[int, str]:
    """Objections to jobs that a plan begins with others' weights, by job; ``rows``: of ``store/weight_sources``."""
    known = sources_of(rows(sorted({*wanted, *wanted.values()})))
    found = {job: _objection_now(known.get(job), known.get(source), source) for job, source in wanted.items()}
    return {job: words for job, words in found.items() if words is not None}


def not_together(
    rows: Callable[[list[int]], Iterable[Sequence[Any]]], gain: Callable[[str, str, str], float | None], wanted: Mapping[int, int]
) -> dict[int, str]:
    """Objections to jobs that a plan trains together with others; ``gain``: measured for an owner's two data sets."""
    known = sources_of(rows(sorted({*wanted, *wanted.values()})))
    found: dict[int, str] = {}
    for job, partner in wanted.items():
        one, two = known.get(job), known.get(partner)
        if one is None or two is None:
            found[job] = "there is no such job"
        elif two.spec.merge_job is None and two.spec.merge != "transfer":
            found[job] = f"job {partner} does not say merge: transfer, so it trains with nobody together"
        elif two.saved:
            found[job] = f"job {partner} has begun to train"
        elif (words := partner_objection(two.spec, one, two.owner)) is not None:
            found[job] = words
        elif two.spec.merge_job is None:
            known_gain = gain(one.owner, data_of(one.spec), data_of(two.spec))
            if known_gain is None:
                found[job] = f"nothing was measured of such a pair; merge: job:{job} in one of them tries it"
            elif known_gain < LEAST_JOINT_GAIN:
                found[job] = f"{known_gain:.2f} x fewer steps are expected, and less than {LEAST_JOINT_GAIN:g} is not worth it"
    return found


def _objection_now(job: WeightSource | None, source: WeightSource | None, number: int) -> str | None:
    if job is None or source is None or job is source:
        return "there is no such job" if job is not source else "that is itself"
    if job.spec.command is not None:
        return "it runs a command, which loads its weights itself"
    if job.begin_from != number and (job.begin_from or job.spec.weights):
        return f"it begins with {f'those of job {job.begin_from}' if job.begin_from else job.spec.weights} already"
    return objection(job.spec, source) or (None if source.saved else f"job {source.name} has saved no checkpoint yet")


def held_back(tx: Transaction, wanted: Mapping[int, int], actor: str) -> dict[int, int]:
    """The pairs of a plan's common first steps, by the job that holds the lease; the other one waits for that from now on. Jobs that
    were cancelled, held or started since the plan was made are left out."""
    found: dict[int, int] = dict(tx.execute("free_partners", list(wanted), list(wanted.values()))) if wanted else {}
    tx.insert("dependencies", [{"job_id": partner, "needs": job, "mode": "any", "met": False} for job, partner in found.items()])
    moves = []
    for job, partner in found.items():
        reason = f"waits to train its first steps together with job {job}"
        moves.append(Move(partner, State.SUBMITTED, reason, actor, changes={"begins": JOINT, "begin_after": job}))
    move(tx, moves)
    return found


def trained_together(tx: Transaction, told: Sequence[tuple[int, Begun]]) -> None:
    """Take runners' reports on common first steps: the partners have waited for these, and may start."""
    jobs = [job for job, one in told if one.source is not None and one.state in (JOINT, "cold")]
    leases = {job: rest for job, *rest in tx.execute("joint_leases", jobs)} if jobs else {}
    rows: dict[int, dict[str, Any]] = {}
    waited: dict[int, int] = {}
    for job, one in told:
        partner, ours, theirs, waits = leases.get(job, (None, "", "", False))
        if partner is None or one.source != partner:
            continue
        both = {"same_data": False, "expected": None, "state": one.state, "step": one.step, "decided_at": tx.now}
        if one.state == JOINT:
            data = data_of(msgspec.json.decode(ours, type=JobSpec))
            rows[job] = {"job_id": job, "source": partner, "data": data, "labels": one.labels, "cost": 0, "why": one.why, **both}
        if waits:
            data, source = data_of(msgspec.json.decode(theirs, type=JobSpec)), job if one.state == JOINT else None
            why = f"has trained {one.step} steps together with job {job}" if source else f"job {job} {one.why}"[:MOST_WORDS]
            rows[partner] = {"job_id": partner, "source": source, "data": data, "labels": None, "cost": one.step, "why": why, **both}
            waited[partner] = job
    tx.upsert("beginnings", ["job_id"], list(rows.values()))
    tx.update("jobs", ["id"], [{"id": job, "begins": JOINT, "begin_after": first} for job, first in waited.items()])
    _let_go(tx, waited)


def first_held(tx: Transaction, jobs: Sequence[int]) -> None:
    """Jobs are held by people, for an unknown time: partners that a plan, not their specs, gave them go on alone."""
    waiting = tx.execute("waiting_partners", list(jobs)) if jobs else []
    apart(tx, {partner: (job, "is held, so they do not train together") for job, partner, planned in waiting if planned})


def apart(tx: Transaction, wanted: Mapping[int, tuple[int, str]]) -> None:
    """Cancel common first steps: each job with the other one, and the reason."""
    texts = {job: text for job, _, text, _ in tx.execute("owners_and_specs", list(wanted))} if wanted else {}
    specs = {job: msgspec.json.decode(text, type=JobSpec) for job, text in texts.items()}
    rows = [cold(specs[job], job, f"job {first} {why}"[:MOST_WORDS], tx.now) for job, (first, why) in wanted.items()]
    tx.upsert("beginnings", ["job_id"], rows)
    _let_go(tx, {job: first for job, (first, _) in wanted.items()})


def _let_go(tx: Transaction, waited: Mapping[int, int]) -> None:
    """Release jobs that waited for common first steps."""
    tx.update("dependencies", ["job_id", "needs"], [{"job_id": job, "needs": first, "met": True} for job, first in waited.items()])
    ready = tx.execute("ready", list(waited)) if waited else []
    move(tx, [Move(job, State.PENDING, f"job {waited[job]} has trained with it, or can't", "daemon") for (job,) in ready])


def first_saved(tx: Transaction, jobs: Sequence[int]) -> None:
    """These have saved their first checkpoint: jobs that wait only for it may start.

    A job that still waits for common first steps with one of them waits in vain: a job's first reported checkpoint comes after those
    steps."""
    late = tx.execute("waiting_partners", list(jobs)) if jobs else []
    apart(tx, {partner: (job, "has done its first steps without it") for job, partner, _ in late})
    waiting = [row[0] for row in tx.execute("weight_waiters", list(jobs))] if jobs else []
    ready = tx.execute("ready", waiting) if waiting else []
    move(tx, [Move(job, State.PENDING, "there is a checkpoint with which it can begin", "daemon") for (job,) in ready])
