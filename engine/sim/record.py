"""What is kept of a run: rows of `sim_runs`, `sim_jobs` and `sim_usage` as plain columns, and averages over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...policies.contract import Floats
from . import figures as of
from .figures import Figures
from .options import Options
from .result import Usage
from .study import Choice, Outcome, Study
from .workload import Workload

MOST_MOMENTS = 2_000  #: of the cluster's use over time that are kept of a run
DIGITS = 6  #: after the point, of times in seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run with its row of `sim_runs`, which takes a moment to work out for many jobs."""

    outcome: Outcome
    row: Mapping[str, Any]


def recorded(study: Study, outcome: Outcome) -> Recorded:
    return Recorded(outcome, run_row(study, outcome))


def run_row(study: Study, outcome: Outcome) -> dict[str, Any]:
    """The row of `sim_runs`, but for what is not of the run: study, version, and what the daemon adds."""
    choice, result = outcome.run.choice, outcome.result
    return {
        "trace": study.workload.name,
        "policy": choice.policy,
        "config": dict(choice.config),
        "nodes": str(study.cluster),
        "options": options_row(study.options),
        "seed": outcome.run.seed,
        "status": "completed" if result else "failed",
        "error": outcome.error,
        **_counts(study.workload, outcome),
        **_figures(study, outcome),
        "events": result.events if result else 0,
        "decisions": result.decisions if result else 0,
        "plan_seconds": result.plan_seconds if result else 0.0,
        "wall_seconds": result.wall_seconds if result else 0.0,
    }


def _figures(study: Study, outcome: Outcome) -> dict[str, Any]:
    """Of a run that failed there are none."""
    if outcome.result is not None:
        return dataclasses.asdict(of.figures(study.workload, outcome.result, study.cluster))
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Figures))
    return nothing | {"preemptions": 0, "lost_gpu_time": 0.0}


def _counts(workload: Workload, outcome: Outcome) -> dict[str, int]:
    if outcome.result is None:
        return {"jobs": len(workload), "finished": 0, "rejected": 0, "dropped": 0}
    fates = outcome.result.fates
    dropped = int(fates.dropped.sum())
    return {
        "jobs": len(workload) - dropped,
        "finished": int(of.finished(fates).sum()),
        "rejected": int(fates.rejected.sum()),
        "dropped": dropped,
    }


def options_row(options: Options) -> dict[str, Any]:
    """What was modelled; the seed is a column of its own."""
    row = dataclasses.asdict(options)
    del row["seed"]
    return row


def job_columns(study: Study, outcome: Outcome) -> dict[str, list[Any]]:
    """Columns of `sim_jobs`, of the jobs that were simulated; NaN where a job never came to it."""
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
        "reward": of.reward_of(workload, fates),
        "rejected": fates.rejected,
    }
    kept = ~fates.dropped
    return {
        name: (np.round(values[kept], DIGITS) if values.dtype == np.float64 else values[kept]).tolist() for name, values in columns.items()
    }


def usage_columns(usage: Usage) -> dict[str, list[Any]]:
    """Columns of `sim_usage`, thinned: the state as it was at evenly spaced moments."""
    rows = thinned(usage.ts, MOST_MOMENTS)
    return {
        "ts": np.round(usage.ts[rows], DIGITS).tolist(),
        "busy": usage.busy[rows].tolist(),
        "running": usage.running[rows].tolist(),
        "waiting": usage.waiting[rows].tolist(),
    }


def thinned(moments: Floats, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of at most so many moments, the first and the last among them."""
    if len(moments) <= most:
        return np.arange(len(moments))
    grid = np.linspace(moments[0], moments[-1], most)
    return np.unique(np.searchsorted(moments, grid, side="right") - 1)


@dataclass(frozen=True, slots=True)
class Average:
    """The runs of one policy with one configuration, averaged over their seeds."""

    choice: Choice
    seeds: int  #: runs that were completed
    mean: Mapping[str, float | None]  #: by column of `sim_runs`, with ``decision_seconds`` and ``plan_share`` besides
    spread: Mapping[str, float | None]  #: standard deviation over the seeds, None of a single one


def averages(runs: Sequence[Recorded]) -> list[Average]:
    """One for each choice that has at least one completed run, in the order in which the runs are given."""
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
        mean[name] = float(np.mean(known)) if known else None
        spread[name] = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Average(runs[0].outcome.run.choice, len(runs), mean, spread)


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    numbers = {name: value for name, value in row.items() if value is None or isinstance(value, int | float)}
    for name in ("seed", "error"):
        del numbers[name]
    decisions, wall = row["decisions"], row["wall_seconds"]
    return numbers | {
        "decision_seconds": row["plan_seconds"] / decisions if decisions else None,
        "plan_share": row["plan_seconds"] / wall if wall else None,
    }
