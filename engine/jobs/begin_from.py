"""Jobs that begin with the weights of another one: which can, and when those that wait for a checkpoint go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..spec.model import SERVES, JobSpec
from ..store.transaction import Transaction
from .moves import Move, move
from .states import FINAL, State


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A job with whose weights others would begin."""

    name: str  #: or number, as people are told
    spec: JobSpec
    state: State
    saved: bool  #: there is a checkpoint of it
    begin_from: int | None = None  #: with whose weights it begins itself
    owner: str = ""
    left: bool = False  #: an adapter of it is in the bank


def sources_of(rows: Iterable[Sequence[Any]]) -> dict[int, WeightSource]:
    """Of the query ``store/weight_sources``, by number."""
    return {
        job: WeightSource(str(job), msgspec.json.decode(spec, type=JobSpec), State(state), saved, begin_from, owner, left)
        for job, spec, state, saved, begin_from, owner, left in rows
    }


def objection(spec: JobSpec, source: WeightSource) -> str | None:
    """Why a job can never begin with those weights; None: it can, once there is a checkpoint. Whether tensors fit shows when it begins."""
    of, name = source.spec, f"job {source.name}"
    if of.command is not None:
        return f"{name} runs a command, whose checkpoints nothing else can read; name a job with a recipe or an entrypoint"
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
    """Why a job can never begin with the adapter of that job; None: as far as is known it can, once that has ended."""
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


def planned(rows: Callable[[list[int]], Iterable[Sequence[Any]]], wanted: Mapping[int, int]) -> dict[int, str]:
    """What there is to object to jobs that a plan begins with the weights of others, by job; ``rows``: of ``store/weight_sources``."""
    known = sources_of(rows(sorted({*wanted, *wanted.values()})))
    found = {job: _objection_now(known.get(job), known.get(source), source) for job, source in wanted.items()}
    return {job: words for job, words in found.items() if words is not None}


def _objection_now(job: WeightSource | None, source: WeightSource | None, number: int) -> str | None:
    if job is None or source is None or job is source:
        return "there is no such job" if job is not source else "that is itself"
    if job.spec.command is not None:
        return "it runs a command, which reads what it begins with itself"
    if job.begin_from != number and (job.begin_from or job.spec.weights):
        return f"it begins with {f'those of job {job.begin_from}' if job.begin_from else job.spec.weights} already"
    return objection(job.spec, source) or (None if source.saved else f"job {source.name} has saved no checkpoint yet")


def first_saved(tx: Transaction, jobs: Sequence[int]) -> None:
    """These have saved their first checkpoint: who waits for it, and for nothing else, may start."""
    waiting = [row[0] for row in tx.execute("weight_waiters", list(jobs))] if jobs else []
    ready = tx.execute("ready", waiting) if waiting else []
    move(tx, [Move(job, State.PENDING, "there is a checkpoint with which it can begin", "daemon") for (job,) in ready])
