"""A run in stored form: rows of `sim_runs`, `sim_jobs` and `sim_usage` as plain columns, and averages over seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from ....policies.contract import Floats, Ints
from ..study import PolicyChoice, Study, StudyOutcome
from . import figures as of
from .figures import Figures
from .result import Usage

MOST_MOMENTS = 2_000  #: kept of a run's record of the cluster's use
DIGITS = 6  #: after the point, of times in seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run with its row of `sim_runs`, which is slow to compute for many jobs."""

    outcome: StudyOutcome
    row: Mapping[str, Any]


def recorded(study: Study, outcome: StudyOutcome) -> Recorded:
    return Recorded(outcome, run_row(study, outcome))


def run_row(study: Study, outcome: StudyOutcome) -> dict[str, Any]:
    """The row of `sim_runs`, without the columns that do not depend on the run: study, version, and those of the daemon."""
    choice, result = outcome.run.choice, outcome.result
    row = {
        "trace": study.workload.name,
        "trace_id": study.source.trace_id,
        "trace_sha256": study.source.sha256,
        "policy": choice.policy,
        "config": dict(choice.config),
        "nodes": str(study.cluster),
        "options": options_row(study),
        "seed": outcome.run.seed,
        "status": "completed" if result else "failed",
        "error": outcome.error,
        **_counts(study, outcome),
        **_figures(study, outcome),
        "events": result.events if result else 0,
        "decisions": result.decisions if result else 0,
        "plan_seconds": result.plan_seconds if result else 0.0,
        "wall_seconds": result.wall_seconds if result else 0.0,
    }
    return {name: finite(value) for name, value in row.items()}


def _figures(study: Study, outcome: StudyOutcome) -> dict[str, Any]:
    """The figures; none for a failed run."""
    if outcome.result is not None:
        return msgspec.structs.asdict(of.figures(study.workload, outcome.result, study.cluster, study.until))
    nothing: dict[str, Any] = dict.fromkeys(Figures.__struct_fields__)
    return nothing | {"preemptions": 0, "lost_gpu_time": 0.0}


def jobs_of(study: Study) -> dict[str, int]:
    """The number of jobs in its runs, and of those left out; known before any run."""
    workload = study.workload
    large = workload.gpus_min > study.cluster.total
    late = ~large & (workload.submitted >= study.until)
    left_out = {"dropped": int(large.sum()), "not_submitted": int(late.sum())}
    return {"jobs": len(workload) - sum(left_out.values()), **left_out}


def _counts(study: Study, outcome: StudyOutcome) -> dict[str, int]:
    if outcome.result is None:
        return {"finished": 0, "rejected": 0, "undecided": 0, **jobs_of(study)}
    workload, fates = study.workload, outcome.result.fates
    rows = {
        "jobs": of.takes_part(workload, fates, study.until),
        "finished": of.finished(fates),
        "rejected": fates.rejected,
        "dropped": fates.dropped,
        "not_submitted": of.not_submitted(workload, fates, study.until),
        "undecided": of.undecided(workload, fates, study.until),
    }
    return {name: int(some.sum()) for name, some in rows.items()}


def options_row(study: Study) -> dict[str, Any]:
    """The options of the model, without the seed, which has its own column. ``profiles``: whether measured speeds were used."""
    row = dataclasses.asdict(study.options)
    del row["seed"]
    return row | {"profiles": bool(study.workload.profiles)}


def finite(value: Any) -> Any:
    """The value in JSON's types, nested values included: None for infinities and nan."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def job_columns(study: Study, outcome: StudyOutcome) -> dict[str, list[Any]]:
    """Columns of `sim_jobs`, for the jobs that take part; NaN for a time that a job had not reached by the end."""
    if outcome.result is None:
        return {}
    workload, fates = study.workload, outcome.result.fates
    columns: dict[str, np.ndarray[Any, Any]] = {
        "job": np.arange(len(workload)),
        "started": fates.started,
        "ended": fates.ended,
        "run_time": fates.run_time,
        "gpu_time": fates.gpu_time,
        "lost": fates.lost,
        "preemptions": fates.preemptions,
        "rho": of.rho_of(workload, fates, study.cluster),
        "reward": np.where(of.undecided(workload, fates, study.until), np.nan, of.reward_of(workload, fates)),
        "rejected": fates.rejected,
        "submitted": workload.submitted,
        "jct": fates.ended - workload.submitted,
        "gpus": workload.gpus_min if workload.asked is None else workload.asked,
    }
    kept = of.takes_part(workload, fates, study.until)
    return {
        name: (np.round(values[kept], DIGITS) if values.dtype == np.float64 else values[kept]).tolist() for name, values in columns.items()
    }


def usage_columns(usage: Usage) -> dict[str, list[Any]]:
    """Columns of `sim_usage`, thinned."""
    rows = thinned(usage, MOST_MOMENTS)
    return {
        "ts": np.round(usage.ts[rows], DIGITS).tolist(),
        "busy": usage.busy[rows].tolist(),
        "running": usage.running[rows].tolist(),
        "waiting": usage.waiting[rows].tolist(),
    }


def thinned(usage: Usage, most: int) -> Ints:
    """At most so many rows, the first and the last among them. Of each slice it takes the row that brings the areas so far nearest
    to the true ones, so that integrals over the kept rows hold."""
    if len(usage.ts) <= most:
        return np.arange(len(usage.ts))
    slices = _slices(usage.ts, most)
    states = np.stack((usage.busy, usage.running, usage.waiting)).astype(np.float64)
    area = np.zeros(states.shape)
    np.cumsum(states[:, :-1] * np.diff(usage.ts), axis=1, out=area[:, 1:])
    whole = np.maximum(area[:, -1:], 1.0)
    rows, kept = [0], area[:, :1]  # the areas under the kept rows, up to the last of them
    for begin, end in pairwise(slices[1:].tolist()):
        ts, last = usage.ts[begin:end], rows[-1]
        until_each = kept + states[:, last : last + 1] * (ts - usage.ts[last])
        until_end = until_each + states[:, begin:end] * (usage.ts[end] - ts)
        best = int(np.argmin((np.abs(until_end - area[:, end : end + 1]) / whole).sum(axis=0)))
        rows.append(begin + best)
        kept = until_each[:, best : best + 1]
    return np.array([*rows, len(usage.ts) - 1])


def _slices(moments: Floats, most: int) -> Ints:
    """First rows of slices, half of them even in time, half even in rows, so that neither calm nor busy times are left out."""
    grid = np.searchsorted(moments, np.linspace(moments[0], moments[-1], most // 2), side="right") - 1
    by_time = np.unique(grid)
    by_row = np.linspace(0, len(moments) - 1, most - len(by_time)).astype(np.int64)
    return np.unique(np.concatenate((by_time, by_row)))


@dataclass(frozen=True, slots=True)
class Average:
    """The runs of one policy with one configuration, averaged over their seeds."""

    choice: PolicyChoice
    seeds: int  #: runs that were completed
    #: By column of `sim_runs`, and ``decision_seconds`` and ``plan_share``; None if one of the seeds has none.
    mean: Mapping[str, float | None]
    spread: Mapping[str, float | None]  #: standard deviation over the seeds; None for a single one


def averages(runs: Sequence[Recorded]) -> list[Average]:
    """One for each choice with at least one completed run, in the order of the runs."""
    by_choice: dict[str, list[Recorded]] = {}
    for run in runs:
        if run.outcome.result is not None:
            by_choice.setdefault(run.outcome.run.choice.label, []).append(run)
    return [_average(some) for some in by_choice.values()]


def _average(runs: Sequence[Recorded]) -> Average:
    rows = [_numbers(run.row) for run in runs]
    mean: dict[str, float | None] = {}
    spread: dict[str, float | None] = {}
    for name in rows[0]:
        known = [float(value) for row in rows if (value := row[name]) is not None]
        told = len(known) == len(rows)  # seeds cut off before their end are those of the longest makespans
        mean[name] = float(np.mean(known)) if told else None
        spread[name] = float(np.std(known, ddof=1)) if told and len(known) > 1 else None
    return Average(runs[0].outcome.run.choice, len(runs), mean, spread)


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    numbers = {name: value for name, value in row.items() if value is None or isinstance(value, int | float)}
    for name in ("seed", "error", "trace_id", "trace_sha256"):
        numbers.pop(name, None)
    decisions, wall = row["decisions"], row["wall_seconds"]
    return numbers | {
        "decision_seconds": row["plan_seconds"] / decisions if decisions else None,
        "plan_share": row["plan_seconds"] / wall if wall else None,
    }
