"""Simulations: the studies, and the figures and plots of each."""

from __future__ import annotations

import urllib.parse
from typing import Any

from starlette.responses import Response

from .. import format as fmt
from ..api.thread_pools import Kind
from ..errors import NotFound
from ..json_rows import objects
from .components import Cell, empty, grid, moment
from .markup import h
from .visit import Visit, at, page

MOST_STUDIES = 200  #: studies, and runs of a study
PIECES = 300  #: pieces of a plot over time
SHARES = [*(place / 20 for place in range(20)), 0.99, 1.0]  #: the same as in `study_jcts`
MOST_DRAWN_RUNS = 8  #: runs in a plot


async def simulations(visit: Visit) -> Response:
    study = visit.asked("study")[:200]
    if study:
        return await _study(visit, study)
    rows = await visit.read(objects, visit.daemon.store, "pages/studies", MOST_STUDIES)
    columns = ("study", "trace", "policies", "runs", "failed", "when", "by")
    made = (
        (
            [
                Cell(h("a", row["study"], href=f"simulations?{urllib.parse.urlencode({'study': row['study']})}")),
                Cell(row["trace"]),
                Cell(", ".join(row["policies"]), "long"),
                Cell(str(row["runs"]), "n"),
                Cell(str(row["failed"]), "n"),
                Cell(moment(row["ran_at"])),
                Cell(row["ran_by"]),
            ],
            "",
        )
        for row in rows
    )
    shown = grid("Studies", columns, made) if rows else empty("No simulation is stored. Make one with", "stoker simulate --help")
    return page(visit, "Simulations", h("h1", "Simulations"), shown)


async def _study(visit: Visit, study: str) -> Response:
    runs = await _runs(visit, study)
    columns = (
        "policy",
        "seed",
        "nodes",
        "jobs",
        "finished",
        "JCT, mean",
        "median",
        "p99",
        "waited, mean",
        "makespan",
        "utilisation",
        "preemptions",
    )
    made = (
        (
            [
                Cell(_named(row, runs)),
                Cell(str(row["seed"]), "n"),
                Cell(row["nodes"]),
                Cell(f"{row['jobs']:,}", "n"),
                Cell(f"{row['finished']:,}", "n"),
                *(Cell(fmt.duration(row[name]), "n") for name in ("jct_avg", "jct_p50", "jct_p99", "wait_avg", "makespan")),
                Cell(fmt.percent(row["utilisation"]), "n"),
                Cell(f"{row['preemptions']:,}", "n"),
            ],
            f"✗ {row['error']}" if row["error"] else "",
        )
        for row in runs
    )
    first = runs[0]
    url = f"simulations/plots?{urllib.parse.urlencode({'study': study})}"
    drawn = h("div", empty("The plots are drawn by the page's script; the table above has their figures."), class_="plots", data_plots=url)
    about = h("p", f"Trace {first['trace']} on {first['nodes']}, by {first['ran_by']}, ", moment(first["ran_at"]))
    rest = h("p", f"The plots show the newest {MOST_DRAWN_RUNS} of {len(runs)} runs.") if len(runs) > MOST_DRAWN_RUNS else None
    return page(visit, f"Study {study}", h("h1", f"Study {study}"), about, grid("Runs", columns, made), h("h2", "Plots"), rest, drawn)


async def _runs(visit: Visit, study: str) -> list[dict[str, Any]]:
    runs = await visit.read(objects, visit.daemon.store, "api/sim_runs", study, MOST_STUDIES)
    if not runs:
        raise NotFound(f"there is no study {study!r}")
    return runs


def _named(row: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    alone = sum(one["policy"] == row["policy"] for one in runs) == 1
    config = ", ".join(f"{key}={fmt.plain(value)}" for key, value in row["config"].items())
    return row["policy"] if alone else f"{row['policy']} {config or 'defaults'}, seed {row['seed']}"


async def plots(visit: Visit) -> dict[str, Any]:
    study = visit.asked("study")[:200]
    runs = await _runs(visit, study)
    store = visit.daemon.store

    def read() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return objects(store, "pages/study_jcts", study), objects(store, "pages/study_usage", study, PIECES)

    jcts, usage = await visit.daemon.snapshots.ask(Kind.REPORT, ("study", study), read, topics=())
    names = {row["id"]: _named(row, runs) for row in runs[:MOST_DRAWN_RUNS]}
    found: list[dict[str, Any]] = [
        {"title": "Job completion time: share done within", "unit": "s",
         "series": [{"name": names[row["id"]], "x": row["jcts"], "y": SHARES} for row in jcts if row["id"] in names]},
        {"title": "GPUs held", "unit": "s", "steps": True,
         "series": [{"name": names[row["run_id"]], "x": row["moments"], "y": row["busy"]} for row in usage if row["run_id"] in names]},
        {"title": "Jobs that wait", "unit": "s", "steps": True,
         "series": [{"name": names[row["run_id"]], "x": row["moments"], "y": row["waiting"]} for row in usage if row["run_id"] in names]},
    ]  # fmt: skip
    return {"plots": [plot for plot in found if plot["series"]]}


PAGES = [at("/simulations", "read", simulations), at("/simulations/plots", "read", plots)]
