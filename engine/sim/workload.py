"""The workload of a simulation: jobs as columns, in the order of their submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...policies.contract import Floats, Ints, Profile, Strings
from ...policies.estimate.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their submission; every array has one row a job. Times are seconds from the workload's start.

    ``tier_start``, ``tier_deadline`` and ``tier_reward`` are the deadlines in CSR form, as in `policies.contract.Jobs`:
    absolute times, earliest first; a strict deadline is one tier. Rewards are 0 to 100.
    """

    name: str
    key: Sequence[str]  #: the job's name in its source
    submitted: Floats
    duration: Floats  #: seconds of work on ``gpus_min`` GPUs, as few nodes as possible
    most: Floats  #: the same up to its maximum of iterations: more if it stops at a metric's target before
    gpus_min: Ints
    gpus_max: Ints
    priority: Ints
    demand: Ints  #: policies.contract.Demand
    user: Ints  #: rows of ``users``
    model: Ints  #: rows of ``models``
    users: Sequence[str]
    models: Sequence[str]
    tier_start: Ints  #: length n + 1
    tier_deadline: Floats
    tier_reward: Floats
    estimate: Floats  #: the submitter's estimate (s); NaN: none
    gpu_memory: Floats  #: bytes on each GPU, 0: unknown
    iterations: Floats  #: of the whole job, NaN: unknown
    batch_size: Ints  #: global batch size it asks for, 0: unknown
    profile: Ints  #: rows of ``profiles``, -1: none
    profiles: Sequence[Profile] = ()
    by_performance: Sequence[bool] = field(default_factory=tuple)  #: stops at a metric's target; (): no job does
    kind: Strings | None = None  #: this and the next two as in `policies.contract.Jobs`
    backbone: Strings | None = None
    share: Strings | None = None
    slowdowns: Floats | None = None  #: of pairs of ``profiles``, as in `policies.contract.View`
    switched_slowdowns: Floats | None = None  #: the same for turns as equals
    transfers: Transfers | None = None  #: as in `policies.contract.View`
    #: GPUs that each job asks for as a gang, though it could run on any number from ``gpus_min`` on: see `as_asked`. None: ``gpus_min``.
    asked: Ints | None = None

    def __len__(self) -> int:
        return len(self.submitted)

    def last_deadline(self) -> Floats:
        """One per job; inf: it has no deadline."""
        last = np.full(len(self), np.inf)
        some = np.diff(self.tier_start) > 0
        last[some] = self.tier_deadline[self.tier_start[1:][some] - 1]
        return last


def make_workload(
    name: str,
    submitted: Sequence[float] | Floats,
    duration: Sequence[float] | Floats,
    gpus: Sequence[int] | Ints,
    *,
    key: Sequence[str] | None = None,
    gpus_max: Sequence[int] | Ints | None = None,
    priority: Sequence[int] | Ints | None = None,
    demand: Sequence[int] | Ints | None = None,
    users: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    tiers: Sequence[Sequence[tuple[float, float]]] | None = None,
    estimate: Sequence[float] | Floats | None = None,
    gpu_memory: Sequence[float] | Floats | None = None,
    iterations: Sequence[float] | Floats | None = None,
    batch_size: Sequence[int] | Ints | None = None,
    profiles: Sequence[Profile] = (),
    by_performance: Sequence[bool] = (),
    most: Sequence[float] | Floats | None = None,
    kind: Sequence[str] | None = None,
    backbone: Sequence[str] | None = None,
    share: Sequence[str] | None = None,
    slowdowns: Floats | None = None,
    switched_slowdowns: Floats | None = None,
    transfers: Transfers | None = None,
    asked: Sequence[int] | Ints | None = None,
) -> Workload:
    """Build a workload from plain columns in any order; rows of equal submission keep their order.

    ``users`` and ``models`` are names, one per job; ``tiers`` are (absolute deadline, reward) of each job; a job has the profile
    with the name of its model. Raises ValueError for columns of different lengths, and for negative or infinite values.
    """
    n = len(submitted)
    order = np.argsort(np.asarray(submitted, dtype=np.float64), kind="stable")
    rows: list[int] = order.tolist()

    def column(what: str, values: Sequence[Any] | Floats | Ints | None, missing: float, kind: type) -> np.ndarray:
        if values is None:
            return np.full(n, missing, dtype=kind)
        if len(values) != n:
            raise ValueError(f"{what}: {len(values)} rows, {n} jobs were submitted")
        return np.asarray(values, dtype=kind)[order]

    def names(what: str, values: Sequence[str] | None) -> tuple[list[str], Ints]:
        if values is None:
            return [""], np.zeros(n, dtype=np.int64)
        if len(values) != n:
            raise ValueError(f"{what}: {len(values)} rows, {n} jobs were submitted")
        known = sorted(set(values))
        code = {value: row for row, value in enumerate(known)}
        return [str(one) for one in known], np.array([code[value] for value in values], dtype=np.int64)[order]

    def words(what: str, values: Sequence[str] | None) -> Strings | None:
        return None if values is None else column(what, values, 0, object)

    user_names, user = names("users", users)
    model_names, model = names("models", models)
    row_of = {profile.name: row for row, profile in enumerate(profiles)}
    least = column("gpus", gpus, 1, np.int64)
    most_gpus = column("gpus_max", gpus if gpus_max is None else gpus_max, 1, np.int64)
    deadlines = [sorted(tiers[row]) for row in rows] if tiers is not None else []
    counts = [len(steps) for steps in deadlines] if tiers is not None else np.zeros(n)
    workload = Workload(
        name=name,
        key=[str(key[row]) for row in rows] if key is not None else [str(row) for row in range(n)],
        submitted=column("submitted", submitted, 0.0, np.float64),
        duration=column("duration", duration, 0.0, np.float64),
        most=column("most", duration if most is None else most, 0.0, np.float64),
        gpus_min=least,
        gpus_max=most_gpus,
        priority=column("priority", priority, 0, np.int64),
        demand=column("demand", demand, 0, np.int64),
        user=user,
        model=model,
        users=user_names,
        models=model_names,
        tier_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        tier_deadline=np.array([deadline for steps in deadlines for deadline, _ in steps], dtype=np.float64),
        tier_reward=np.array([reward for steps in deadlines for _, reward in steps], dtype=np.float64),
        estimate=column("estimate", estimate, np.nan, np.float64),
        gpu_memory=column("gpu_memory", gpu_memory, 0.0, np.float64),
        iterations=column("iterations", iterations, np.nan, np.float64),
        batch_size=column("batch_size", batch_size, 0, np.int64),
        profile=np.array([row_of.get(name, -1) for name in model_names], dtype=np.int64)[model],
        profiles=tuple(profiles),
        by_performance=[bool(by_performance[row]) for row in rows] if len(by_performance) else (),
        kind=words("kind", kind),
        backbone=words("backbone", backbone),
        share=words("share", share),
        slowdowns=slowdowns,
        switched_slowdowns=switched_slowdowns,
        transfers=transfers,
        asked=None if asked is None else np.clip(column("asked", asked, 1, np.int64), least, np.maximum(most_gpus, least)),
    )
    _check(workload)
    return workload


def as_asked(workload: Workload) -> Workload:
    """The same for a policy that gives each job a gang of exactly the GPUs that its submitter asks for.

    Work is in seconds on ``gpus_min`` GPUs, so durations are those on the gang.
    """
    asked = workload.asked
    if asked is None or (asked == workload.gpus_min).all():
        return workload
    faster = np.ones(len(workload))
    for row, (profile, least, n) in enumerate(zip(workload.profile.tolist(), workload.gpus_min.tolist(), asked.tolist(), strict=True)):
        if profile >= 0 and (throughput := workload.profiles[profile].throughput) is not None:
            faster[row] = throughput.rate(n) / throughput.rate(least)
    shorter = {name: getattr(workload, name) / faster for name in ("duration", "most", "estimate")}
    return replace(workload, gpus_min=asked, gpus_max=asked, asked=None, **shorter)


def joined(first: Workload, then: Workload) -> Workload:
    """The jobs of both, in that order; those of ``then`` come later. Profiles are those of ``first``, and ``then`` counts in them."""
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(first, name), getattr(then, name)))
        for name in (
            "submitted", "duration", "most", "gpus_min", "gpus_max", "priority", "demand", "tier_deadline", "tier_reward", "estimate",
            "gpu_memory", "iterations", "batch_size", "profile",
        )
    }  # fmt: skip
    users, models = list(dict.fromkeys([*first.users, *then.users])), list(dict.fromkeys([*first.models, *then.models]))
    user = np.array([users.index(name) for name in then.users], dtype=np.int64)
    model = np.array([models.index(name) for name in then.models], dtype=np.int64)
    columns["user"] = np.concatenate((first.user, user[then.user]))
    columns["model"] = np.concatenate((first.model, model[then.model]))
    for name in ("kind", "backbone", "share"):
        of_each = [getattr(one, name) for one in (first, then)]
        if any(words is not None for words in of_each):
            nothing = [np.full(len(one), "", dtype=object) for one in (first, then)]
            columns[name] = np.concatenate([none if words is None else words for words, none in zip(of_each, nothing, strict=True)])
    if first.asked is not None or then.asked is not None:
        columns["asked"] = np.concatenate([one.gpus_min if one.asked is None else one.asked for one in (first, then)])
    columns["tier_start"] = np.concatenate((first.tier_start, first.tier_start[-1] + then.tier_start[1:]))
    return replace(first, key=[*first.key, *then.key], users=users, models=models, by_performance=(), **columns)


def _check(workload: Workload) -> None:
    for name in ("submitted", "duration"):
        values = getattr(workload, name)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(f"{name}: job {workload.key[row]!r} has {values[row]}; it must be a number of seconds from 0 on")
    less = ~(np.isfinite(workload.most) & (workload.most >= workload.duration))
    if less.any():
        row = int(np.flatnonzero(less)[0])
        raise ValueError(
            f"most: job {workload.key[row]!r} has {workload.most[row]}; it must be no less than its {workload.duration[row]} s"
        )
    if (workload.gpus_min < 1).any():
        row = int(np.flatnonzero(workload.gpus_min < 1)[0])
        raise ValueError(f"gpus: job {workload.key[row]!r} has {workload.gpus_min[row]}; it must be at least 1")
    if (workload.gpus_max < workload.gpus_min).any():
        row = int(np.flatnonzero(workload.gpus_max < workload.gpus_min)[0])
        least = workload.gpus_min[row]
        raise ValueError(f"gpus_max: job {workload.key[row]!r} has {workload.gpus_max[row]}, fewer than the {least} that it needs")
