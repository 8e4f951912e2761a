"""The GPU-by-time chart: one row a GPU, one bar a lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .data import Report
from .style import FONT, GREY, INK, PALETTE, WIDTH, days, figure, finish, ink_on, label, time_axis

FAILURES = frozenset({"failed", "oom", "hang", "timeout", "lost", "start-failed", "unkillable"})
_HALF_HEIGHT = 0.40  #: half the height of a bar, in rows
_MOST_LABELS, _MOST_EDGES, _MOST_ROWS, _MANY_FAILURES = 400, 600, 40, 60
_LEAST_OF_A_NAME = 6  #: characters; a shorter beginning of a name would be unclear
_MARGIN = 0.85  #: approximate share of the axes in the figure's width
_CHARACTER = 0.62  #: approximate width of a character, relative to the font size

Bar = Mapping[str, Any]


def draw(report: Report) -> Figure | None:
    if not report.bars:
        return None
    rows = {gpu["id"]: place for place, gpu in enumerate(report.gpus)}
    bars = [bar for bar in report.bars if bar["gpu_id"] in rows]
    made = figure(min(1.3 + 0.42 * len(rows), 11.0))
    axes = made.subplots()
    colours = _colours(bars)
    preempted = [bar for bar in bars if bar["outcome"] == "preempted"]
    failed = [bar for bar in bars if bar["outcome"] in FAILURES]
    _add(axes, [bar for bar in bars if bar["outcome"] != "preempted"], rows, colours, hatch=None)
    _add(axes, preempted, rows, colours, hatch="////")
    ends, at_rows = [days(bar["ends"]) for bar in failed], [rows[bar["gpu_id"]] for bar in failed]
    size = 8.0 if len(failed) <= _MANY_FAILURES else 3.5
    axes.plot(ends, at_rows, "X", color=INK, markeredgecolor="white", markeredgewidth=size / 8, markersize=size, zorder=4, clip_on=False)
    _label(axes, report, bars, rows, colours)
    _name_rows(axes, report)
    time_axis(axes, report.begin, report.end)
    finish(axes, grid="x")
    _legend(axes, bool(preempted), bool(failed), any(not bar["chosen"] for bar in bars))
    return made


def _colours(bars: Sequence[Bar]) -> dict[int, str]:
    """Colour of each job, in the order of their first runs; jobs outside the report are grey."""
    jobs = dict.fromkeys(bar["job_id"] for bar in bars if bar["chosen"])
    return {job: PALETTE[place % len(PALETTE)] for place, job in enumerate(jobs)}


def _add(axes: Axes, bars: Sequence[Bar], rows: Mapping[str, int], colours: Mapping[int, str], hatch: str | None) -> None:
    """One collection for all bars: thousands of patches would take minutes."""
    corners = []
    for bar in bars:
        left, right, middle = days(bar["begins"]), days(bar["ends"]), rows[bar["gpu_id"]]
        corners.append(
            [(left, middle - _HALF_HEIGHT), (right, middle - _HALF_HEIGHT), (right, middle + _HALF_HEIGHT), (left, middle + _HALF_HEIGHT)]
        )
    axes.add_collection(
        PolyCollection(
            corners,
            facecolors=[colours.get(bar["job_id"], GREY) for bar in bars],
            edgecolors="white",
            linewidths=0.8 if len(bars) <= _MOST_EDGES else 0.0,  # of a thin bar only the edge would be visible
            hatch=hatch,
            zorder=2,
        )
    )


def _label(axes: Axes, report: Report, bars: Sequence[Bar], rows: Mapping[str, int], colours: Mapping[int, str]) -> None:
    points = WIDTH * 72 * _MARGIN / (report.end - report.begin)
    size = FONT - 1.5
    labelled = 0
    for bar in sorted(bars, key=lambda bar: bar["begins"] - bar["ends"]):
        room = int(((bar["ends"] - bar["begins"]) * points - 4) / (size * _CHARACTER))
        text = _fitting(bar["name"], f"#{bar['job_id']}", room)
        if text is None or labelled == _MOST_LABELS:
            continue
        labelled += 1
        colour = colours.get(bar["job_id"], GREY)
        backing = {"facecolor": colour, "edgecolor": "none", "pad": 1.0} if bar["outcome"] == "preempted" else None
        middle = days((bar["begins"] + bar["ends"]) / 2)
        axes.text(middle, rows[bar["gpu_id"]], label(text, room), size=size, color=ink_on(colour), ha="center", va="center",
                  bbox=backing, zorder=3, clip_on=True)  # fmt: skip


def _fitting(name: str, number: str, room: int) -> str | None:
    """Name and number of a job in ``room`` characters: too long a name is cut if enough of it is left."""
    if len(name) + 1 + len(number) > room >= _LEAST_OF_A_NAME + 2 + len(number):
        name = name[: room - 2 - len(number)] + "…"
    return next((text for text in (f"{name} {number}", name, number) if len(text) <= room), None)


def _name_rows(axes: Axes, report: Report) -> None:
    several = len({gpu["node_id"] for gpu in report.gpus}) > 1
    every = -(-len(report.gpus) // _MOST_ROWS)
    shown = list(enumerate(report.gpus))[::every]
    word = {"cpu": "slot", "cuda": "GPU"}
    names = [f"{gpu['node_id']}:{gpu['idx']}" if several else f"{word[gpu['kind']]} {gpu['idx']}" for _, gpu in shown]
    axes.set_yticks([place for place, _ in shown], [label(name) for name in names])
    axes.set_ylim(len(report.gpus) - 0.5, -0.5)
    axes.set_ylabel(report.device)


def _legend(axes: Axes, preempted: bool, failed: bool, others: bool) -> None:
    keys: list[Patch | Line2D] = []
    if preempted:
        keys.append(Patch(facecolor="#888888", edgecolor="white", hatch="////", label="preempted attempt"))
    if failed:
        keys.append(Line2D([], [], color=INK, marker="X", markersize=8, markeredgecolor="white", linestyle="", label="attempt failed"))
    if others:
        keys.append(Patch(facecolor=GREY, label="other jobs"))
    if keys:
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=FONT - 1)
