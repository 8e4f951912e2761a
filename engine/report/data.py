"""Data of a report, read by the queries of sql/report/ through any function that answers them by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...policies.contract import Floats

MOST_JOBS = 500  #: rows of the table of jobs
MOST_BARS = 20_000  #: bars of the Gantt chart
MOST_POINTS = 2_000  #: points of a distribution, steps of a time line
MOST_CURVES = 12  #: loss curves that one figure can hold
CURVE_POINTS = 300  #: points of each attempt
PIPELINE_POINTS = 2_000  #: shown steps of a tuner
ONE_BY_ONE = 30  #: waiting is shown for each job if there are no more jobs than this
SLICES = 120  #: slices of time, for utilisation
SHORTEST_SLICE = 10.0  #: seconds; shorter ones would fall between two samples of a GPU


@dataclass(frozen=True, slots=True)
class Table:
    """The answer to a query, as from `POST /v1/report`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    truncated: bool = False

    def column(self, name: str) -> list[Any]:
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def floats(self, name: str) -> Floats:
        """The column as numbers, NaN where it is NULL (JSON has no NaN: the API answers NULL for it)."""
        return np.array([math.nan if value is None else float(value) for value in self.column(name)], dtype=np.float64)

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


Query = Callable[[str, Mapping[str, object]], Table]  #: from a query's name and values, of which the query takes those that it needs


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs of a report: those that had not ended before ``since``, only from ``jobs`` if given."""

    since: float
    jobs: list[int] | None
    now: float

    @classmethod
    def of(cls, since: float | None, jobs: Sequence[int] | None, now: float | None) -> Scope:
        return cls(float(since or 0.0), None if jobs is None else [int(job) for job in jobs], float(now or time.time()))


class Reader:
    """Runs the queries of sql/report/ for one scope; remembers whether any answer was cut short."""

    def __init__(self, query: Query, scope: Scope) -> None:
        self._query = query
        self.scope = scope
        self.truncated = False

    def read(self, name: str, **values: object) -> Table:
        table = self._query(name, {"since": self.scope.since, "jobs": self.scope.jobs, "now": self.scope.now, **values})
        self.truncated |= table.truncated
        return table


@dataclass(frozen=True, slots=True)
class Steps:
    """A quantity that changes in steps and is constant in between."""

    moment: Floats
    value: Floats

    @classmethod
    def of(cls, moment: Floats, change: Floats, begin: float, end: float) -> Steps:
        """Add up changes from zero; the line begins and ends with the shown time."""
        value = np.cumsum(change)
        last = value[-1] if len(value) else 0.0
        return cls(np.concatenate(([begin], moment, [end])), np.concatenate(([0.0], value, [last])))

    def means(self, edges: Floats) -> Floats:
        """Averages between neighbouring edges, exact for a step function."""
        area = np.concatenate(([0.0], np.cumsum(np.diff(self.moment) * self.value[:-1])))
        at_edges = np.interp(edges, self.moment, area)
        means: Floats = np.diff(at_edges) / np.diff(edges)
        return means


@dataclass(frozen=True, slots=True)
class Report:
    """All data that is drawn and written, in plain values."""

    begin: float
    end: float
    made_at: float
    summary: dict[str, Any]
    jobs: list[dict[str, Any]]  #: newest first, at most MOST_JOBS
    gpus: list[dict[str, Any]]
    bars: list[dict[str, Any]]
    jct: Table  #: jct, share
    waits: list[dict[str, Any]]
    edges: Floats  #: edges of the slices of time
    leased: Floats  #: share of the GPUs under lease, by slice
    measured: Floats  #: measured share, by slice; NaN without samples
    queue: dict[str, Steps]  #: blocked, waiting, running
    curves: list[dict[str, Any]]
    pipeline: list[dict[str, Any]]  #: steps of the tuner that reported last
    causes: list[dict[str, Any]]  #: edges of the causal models of pools
    truncated: bool

    @property
    def device(self) -> str:
        """The word for the computing device, in the singular: a figure must not call a CPU slot a GPU."""
        kinds = {gpu["kind"] for gpu in self.gpus}
        return "CPU slot" if kinds == {"cpu"} else "GPU" if "cpu" not in kinds else "GPU or CPU slot"


def _extent(reader: Reader) -> tuple[int, float, float]:
    """Number of jobs, and the begin and end of their time; without jobs the last hour."""
    row = reader.read("extent").records()[0]
    now, since = reader.scope.now, reader.scope.since
    if not row["jobs"]:
        return 0, max(since, now - 3600.0), now
    begin = max(since, row["first_submitted"])
    end = now if row["unfinished"] else row["last_finished"]
    return row["jobs"], begin, max(end, begin + 1.0)


def _metrics(jobs: Sequence[dict[str, Any]], reached: Table) -> dict[int, tuple[str, float]]:
    """The metric of each job: that of its stopping rule, else an accuracy, else the first it reports."""
    values: dict[int, dict[str, float]] = {}
    for job, name, value in reached.rows:
        values.setdefault(job, {})[name] = value
    chosen = {}
    for job in jobs:
        names = values.get(job["id"], {})
        ranked = sorted(names, key=lambda name, wanted=job["metric"]: (name != wanted, "acc" not in name.lower(), name))  # type: ignore[misc]
        if ranked:
            chosen[job["id"]] = (ranked[0], names[ranked[0]])
    return chosen


def _jobs(reader: Reader) -> list[dict[str, Any]]:
    jobs = reader.read("jobs", most=MOST_JOBS).records()
    metrics = _metrics(jobs, reader.read("reached", jobs=[job["id"] for job in jobs]))
    for job in jobs:
        job["metric"], job["value"] = metrics.get(job["id"], (None, None))
    return jobs


def _utilisation(reader: Reader, count: int, begin: float, end: float) -> tuple[Floats, Floats, Floats]:
    """Edges of the slices, share of the GPUs under lease, share measured."""
    step = max((end - begin) / SLICES, SHORTEST_SLICE)
    edges = np.append(np.arange(begin, end - step * 1e-6, step), end)
    times = {"start": begin, "end": end}
    busy = reader.read("busy", step=(end - begin) / MOST_POINTS, **times)
    leased = Steps.of(busy.floats("moment"), busy.floats("change"), begin, end).means(edges)
    measured = np.full(len(leased), np.nan)
    samples = reader.read("measured", step=step, **times)
    slices = np.rint((samples.floats("moment") - begin) / step).astype(np.int64)
    inside = slices < len(measured)
    measured[slices[inside]] = samples.floats("gpus")[inside]
    return edges, leased / max(count, 1), measured / max(count, 1)


def _queue(reader: Reader, begin: float, end: float) -> dict[str, Steps]:
    table = reader.read("queue", step=(end - begin) / MOST_POINTS, start=begin, end=end)
    series = np.array(table.column("series"), dtype=object)
    moment, change = table.floats("moment"), table.floats("change")
    return {name: Steps.of(moment[series == name], change[series == name], begin, end) for name in ("running", "waiting", "blocked")}


def _weighted(values: Floats, edges: Floats) -> float | None:
    """Average over time of the known values."""
    known: NDArray[np.bool_] = ~np.isnan(values)
    return float(np.average(values[known], weights=np.diff(edges)[known])) if known.any() else None


def _headline(row: dict[str, Any]) -> dict[str, Any]:
    """The row of summary.sql in the form of the report."""

    def group(prefix: str, *names: str) -> dict[str, Any]:
        return {name: row[f"{prefix}_{name}"] for name in names}

    states = ("completed", "failed", "cancelled", "running", "waiting")
    return {
        "jobs": {"total": row["jobs"], **{state: row[state] for state in states}},
        "jct": group("jct", "mean", "median", "p99", "max"),
        "waiting": group("waiting", "mean", "median", "p99"),
        "deadlines": {"promised": row["promised"], "due": row["due"], "met": row["met"]},
        "reward": {
            "earned": row["earned"],
            "possible": row["possible"],
            "share": row["earned"] / row["possible"] if row["possible"] else None,
        },
        "preemptions": row["preemptions"],
        "failed_attempts": row["failures"],
    }


def collect(query: Query, scope: Scope) -> Report:
    """Read the data of a report."""
    reader = Reader(query, scope)
    count, begin, end = _extent(reader)
    times = {"start": begin, "end": end}
    gpus = reader.read("gpus", **times).records()
    edges, leased, measured = _utilisation(reader, len(gpus), begin, end)
    row = reader.read("summary").records()[0]
    jobs = _jobs(reader)
    summary = {
        "begin": begin,
        "end": end,
        "makespan": end - begin if count else None,
        **_headline(row),
        "gpus": {
            "count": len(gpus),
            "seconds": row["gpu_seconds"],
            "leased": _weighted(leased, edges) if gpus else None,
            "measured": _weighted(measured, edges) if gpus else None,
        },
        "cost": {"all": row["cost"], "storage": row["storage_cost"]},
        "reached": [{key: job[key] for key in ("id", "name", "metric", "value")} for job in reversed(jobs) if job["metric"]],
    }
    return Report(
        begin=begin,
        end=end,
        made_at=scope.now,
        summary=summary,
        jobs=jobs,
        gpus=gpus,
        bars=reader.read("bars", most=MOST_BARS, **times).records(),
        jct=reader.read("jct", most=MOST_POINTS),
        waits=reader.read("waits", by_job=count <= ONE_BY_ONE).records(),
        edges=edges,
        leased=leased,
        measured=measured,
        queue=_queue(reader, begin, end),
        curves=reader.read("curves", most=MOST_CURVES, points=CURVE_POINTS).records(),
        pipeline=reader.read("pipeline", points=PIPELINE_POINTS).records(),
        causes=reader.read("causes").records(),
        truncated=reader.truncated,
    )
