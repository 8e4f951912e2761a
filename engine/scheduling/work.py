"""The remaining work of jobs: the SQL view `work` in NumPy, because its joins are too slow for a policy's tick.

The view stays the definition, for people and for other queries; tests compare the two row by row. Queries about
started jobs run for those only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...policies.contract import Bools, Floats, Ints
from .query_columns import Array, Beside, Columns, GroupedRows, fetch, fetch_of, first_known, floats, ints

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Work:
    """A row a job; the columns of the view `work`, with NaN for NULL."""

    ahead: Floats
    ahead_most: Floats
    done: Floats
    spread: Floats
    duration: Floats
    gpu_memory: Floats
    measured: Bools


def work_of(con: duckdb.DuckDBPyConnection, jobs: Columns, speeds: Columns, products: Array) -> Work:
    """``jobs`` as sql/policy/jobs has them, ``speeds`` of their signatures as sql/policy/speeds, ``products`` of their pool's GPUs."""
    ids = ints(jobs["id"])
    progress = fetch_of(con, "policy/progress", ids[ints(jobs["attempts"]) > 0])  # profiling runs do not count as attempts and leave none
    followed = progress["job_id"] if progress else ids[:0]  # iterations are estimated from reports
    estimates = fetch_of(con, "policy/iterations", followed)
    profiles = fetch(con, "policy/profiles")
    model = Beside(jobs["model_on_gpus"], _by_model(profiles) if len(profiles["model_on_gpus"]) else {}, "model_on_gpus")
    like = _like(ints(jobs["signature"]), speeds, products)
    return _work(jobs, Beside(ids, progress, "job_id"), Beside(ids, estimates, "job_id"), like, model)


def _by_model(profiles: Columns) -> Columns:
    """Measurements of ended jobs by model and number of GPUs, on any product."""
    groups = GroupedRows(profiles["model_on_gpus"])
    return {
        "model_on_gpus": groups.keys,
        "pace": groups.least(floats(profiles["seconds_per_step"])),
        "slowest": groups.most(floats(profiles["seconds_per_step"])),
        "duration": groups.mean(floats(profiles["duration"])),
        "memory": groups.most(floats(profiles["peak_memory"])),
    }


def _like(signatures: Ints, speeds: Columns, products: Array) -> Beside:
    """Measurements of the same signature on GPUs of these products, else on any; the slowest counts."""
    if not speeds:
        return Beside(signatures, {}, "signature")
    communication = first_known(floats(speeds["within_node"]), floats(speeds["across_nodes"], 0.0))
    groups = GroupedRows(ints(speeds["signature"]))
    here = np.isin(speeds["product"], products)

    def most(values: Floats) -> Floats:
        return first_known(groups.most(np.where(here, values, np.nan)), groups.most(values))

    columns = {
        "signature": groups.keys,
        "pace": most(speeds["compute"] + (speeds["gang"] - 1) * communication),
        "memory": most(floats(speeds["peak_memory"])),
    }
    return Beside(signatures, columns, "signature")


def _work(jobs: Columns, progress: Beside, estimates: Beside, like: Beside, model: Beside) -> Work:
    step = progress.floats("step", 0.0)
    most = first_known(progress.floats("total_steps"), floats(jobs["total_steps"]))
    expected = estimates.floats("iterations")  # fitted some steps ago
    needed = np.where(expected < most, np.maximum(expected, step), most)
    own = first_known(progress.floats("seconds_per_step"), like.floats("pace"))
    pace, slowest = (first_known(own, model.floats(name)) for name in ("pace", "slowest"))
    asked = floats(jobs["gpu_memory"])
    with np.errstate(divide="ignore", invalid="ignore"):
        done = step / needed
    return Work(
        ahead=(needed - step) * pace,
        ahead_most=(most - step) * slowest,
        done=done,
        spread=estimates.floats("spread"),
        duration=first_known(floats(jobs["est_duration"]), model.floats("duration")),
        gpu_memory=np.where(asked > 0, asked, first_known(like.floats("memory"), model.floats("memory"))),
        measured=like.there,
    )
