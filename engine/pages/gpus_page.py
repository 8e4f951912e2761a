"""GPUs over time: which job held each, the share held, and the measured use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from .. import format as fmt
from ..api.thread_pools import Kind
from ..errors import UsageError
from ..json_rows import objects
from ..store.reading import read
from .components import Cell, Stay, bar, empty, grid, state, time_line
from .markup import Safe, h, join
from .visit import Visit, at, page

SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86_400.0, "7d": 7 * 86_400.0}  #: spans that may be shown
SLICES = 120  #: slices of time in a plot
MOST_BARS = 2000
QUERY_SECONDS = 20.0  #: limit of a query


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    start: float
    end: float

    @classmethod
    def of(cls, visit: Visit) -> Span:
        name = visit.asked("span") or "1h"
        if name not in SPANS:
            raise UsageError(f"span: {name[:20]!r} is not one of {', '.join(SPANS)}")
        now = visit.daemon.clock()
        return cls(name, now - SPANS[name], now)

    @property
    def step(self) -> float:
        return (self.end - self.start) / SLICES


async def _rows(visit: Visit, query: str, span: Span) -> list[dict[str, Any]]:
    """Rows of a query about this time, shared by requests of the same second."""
    store = visit.daemon.store
    values = {"start": span.start, "end": span.end, "step": span.step, "jobs": None, "most": MOST_BARS}

    def ask() -> list[dict[str, Any]]:
        found = read(store, query, values, rows=100_000, seconds=QUERY_SECONDS)
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

    rows: list[dict[str, Any]] = await visit.daemon.snapshots.ask(Kind.REPORT, (query, span.name), ask, topics=())
    return rows


async def gpus(visit: Visit) -> Response:
    span = Span.of(visit)
    use = await _rows(visit, "pages/gpu_use", span)
    bars = await _rows(visit, "report/bars", span)
    runners = await visit.read(objects, visit.daemon.store, "api/runners")
    choice = [h("a", name, href=f"gpus?span={name}", class_="button", aria_current="true" if name == span.name else None) for name in SPANS]
    stays = [
        Stay(
            row["gpu_id"], row["begins"], row["ends"], f"{row['job_id']} {row['name']}",
            f"job {row['job_id']} {row['name']}, attempt {row['attempt']}: {fmt.duration(row['ends'] - row['begins'])},"
            f" {row['outcome'] or 'goes on'}", row["job_id"], f"jobs/{row['job_id']}",
        )
        for row in bars
    ]  # fmt: skip
    if not use:
        shown: list[Safe] = [empty("No runner offers a GPU or a CPU slot. Start one with", "stoker runner start")]
    else:
        shown = [
            h("h2", "Who had which GPU"),
            time_line("GPUs by time", [row["id"] for row in use], stays, span.start, span.end),
            h("h2", "Use over time"),
            h("div", empty("The plot is drawn by the page's script; the table below says the same of the whole time."), class_="plots",
              data_plots=f"gpus/use?span={span.name}"),
            h("h2", "Use of each"),
            _use(use),
        ]  # fmt: skip
    return page(
        visit, "GPUs", h("h1", "GPUs"), h("p", choice, class_="actions", role="group", aria_label="Time"), shown, _runners(visit, runners)
    )


def _use(rows: list[dict[str, Any]]) -> Safe:
    columns = ("GPU", "pool", "product", "held", "measured", "most memory", "power")
    made = (
        (
            [
                Cell(row["id"]),
                Cell(row["pool"]),
                Cell(row["name"] or row["kind"]),
                Cell(bar(row["leased"], fmt.percent(row["leased"]))),
                Cell(bar(row["used"], fmt.percent(row["used"])) if row["used"] is not None else ""),
                Cell(_memory(row), "n"),
                Cell("" if row["power"] is None else f"{row['power']:.0f} W", "n"),
            ],
            "",
        )
        for row in rows
    )
    return grid("Use of each GPU", columns, made)


def _memory(row: Mapping[str, Any]) -> str:
    if row["memory_used"] is None:
        return ""
    return fmt.size(row["memory_used"]) + (f" of {fmt.size(row['memory'])}" if row["memory"] else "")


def _runners(visit: Visit, runners: list[dict[str, Any]]) -> Safe:
    columns = ("runner", "host", "state", "GPUs held", "version", "action")
    made = (
        ([Cell(row["id"]), Cell(row["host"]), Cell(state(row["state"])), Cell(f"{row['busy']} of {row['gpus']}", "n"), Cell(row["version"]),
          Cell(_actions(visit, row))], "")
        for row in runners
    )  # fmt: skip
    return join(h("h2", "Runners"), grid("Runners", columns, made)) if runners else join()


def _actions(visit: Visit, row: Mapping[str, Any]) -> Safe | None:
    action = {"up": "drain", "draining": "resume"}.get(row["state"])
    if action is None or not visit.may("admin"):
        return None
    return h("a", f"{action.capitalize()}…", href=f"runners/{row['id']}/{action}", class_="button")


async def use(visit: Visit) -> dict[str, Any]:
    rows = await _rows(visit, "pages/gpu_slices", Span.of(visit))
    moments = [row["moment"] for row in rows]
    held = {"name": "held", "x": moments, "y": [row["leased"] for row in rows]}
    busy = {"name": "measured busy", "x": moments, "y": [row["used"] for row in rows]}
    memory = {"name": "GiB", "x": moments, "y": [None if row["memory"] is None else row["memory"] / (1 << 30) for row in rows]}
    plots = [{"title": "GPUs held, and measured busy", "time": True, "series": [held, busy]}]
    if any(value is not None for value in memory["y"]):
        plots.append({"title": "Memory taken (GiB)", "time": True, "series": [memory]})
    return {"plots": plots}


PAGES = [at("/gpus", "read", gpus), at("/gpus/use", "read", use)]
