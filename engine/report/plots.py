"""The figures of a report. Each function takes the report and returns a figure, or None without data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .. import format as fmt
from . import causes_plot, gantt, pipeline_plot
from .data import ONE_BY_ONE, Report
from .style import (
    BLUE,
    FONT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    VERMILION,
    all_days,
    durations,
    figure,
    finish,
    label,
    legend_above,
    log_durations,
    time_axis,
)

_MOST_MODELS = 15
_COLUMNS = 3

WAITS = {
    "dependency": ("other jobs", GREY),
    "held": ("held by a person", "#777777"),
    "cap": ("max_running of its array", "#999933"),
    "gpus": ("{devices}, before the first start", BLUE),
    "preempted": ("{devices}, after a preemption", ORANGE),
    "lost": ("{devices}, after its worker was lost", PALETTE[3]),
    "retry": ("retry of a failed attempt", VERMILION),
    "start": ("start-up, {devices} in hand", GREEN),
}


def jct(report: Report) -> Figure | None:
    """Cumulative distribution of the JCT of completed jobs."""
    seconds, share = report.jct.floats("jct"), report.jct.floats("share")
    if not len(seconds):
        return None
    made = figure(3.2)
    axes = made.subplots()
    axes.step(np.concatenate(([seconds[0]], seconds)), np.concatenate(([0.0], share)), where="post", color=BLUE, linewidth=1.8)
    if len(seconds) <= 60:
        axes.plot(seconds, share, "o", color=BLUE, markersize=3.5)
    for key, words, style in (("median", "median", "--"), ("p99", "p99", ":")):
        mark = report.summary["jct"][key]
        axes.axvline(mark, color=INK, linestyle=style, linewidth=1.0, label=f"{words} {fmt.duration(mark)}")
    name = ""
    if seconds[0] > 0 and seconds[-1] > 100 * seconds[0]:
        log_durations(axes)
    else:
        axes.set_xlim(left=0)
        name = f" ({durations(axes, float(seconds[-1]))})"
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"job completion time{name}")
    axes.set_ylabel(f"completed jobs (n = {report.summary['jobs']['completed']})")
    finish(axes)
    legend_above(axes, 2)
    return made


def waiting(report: Report) -> Figure | None:
    """Seconds waited by reason: a bar for each job, or the mean of each model's jobs when they are many."""
    if not report.waits:
        return None
    one_by_one = report.summary["jobs"]["total"] <= ONE_BY_ONE
    bars = _wait_bars(report, one_by_one)
    longest = max(sum(parts.values()) for parts in bars.values())
    made = figure(1.3 + 0.22 * len(bars))
    axes = made.subplots()
    left = np.zeros(len(bars))
    for code, (text, colour) in WAITS.items():
        words = text.format(devices=f"{report.device}s")
        widths = np.array([parts.get(code, 0.0) for parts in bars.values()])
        if widths.any():
            axes.barh(np.arange(len(bars)), widths, left=left, color=colour, height=0.75, label=words, edgecolor="white", linewidth=0.5)
            left += widths
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.02 or 1.0)
    name = durations(axes, longest)
    axes.set_xlabel(f"waited ({name})" if one_by_one else f"waited, mean of the model's jobs ({name})")
    finish(axes, grid="x")
    legend_above(axes, 3)
    return made


def _wait_bars(report: Report, one_by_one: bool) -> dict[str, dict[str, float]]:
    """Label of each bar, and its parts by reason."""
    total: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    jobs: dict[str, int] = {}
    names: dict[str, str] = {}
    for row in report.waits:
        total[row["label"]][row["code"]] += row["seconds"]
        jobs[row["label"]], names[row["label"]] = row["jobs"], row["name"]
    if one_by_one:
        return {f"{label(names[key], 24)} #{key}": parts for key, parts in total.items()}
    ranked = sorted(total, key=lambda key: -sum(total[key].values()))
    for key in ranked[_MOST_MODELS:]:
        jobs["other models"] = jobs.get("other models", 0) + jobs.pop(key)
        for code, seconds in total.pop(key).items():
            total["other models"][code] += seconds
    longest_first = sorted(ranked[:_MOST_MODELS], key=lambda key: -sum(total[key].values()) / jobs[key])
    shown = [*longest_first, *(["other models"] if len(ranked) > _MOST_MODELS else [])]
    return {f"{label(key)} (n = {jobs[key]})": {code: s / jobs[key] for code, s in total[key].items()} for key in shown}


def utilisation(report: Report) -> Figure | None:
    """Share of the GPUs under lease, and their measured utilisation."""
    if not report.gpus:
        return None
    made = figure(2.8)
    axes = made.subplots()
    edges = all_days(report.edges)
    axes.stairs(report.leased, edges, fill=True, color=BLUE, alpha=0.25, label="under lease")
    axes.stairs(report.leased, edges, color=BLUE, linewidth=1.4)
    if not np.isnan(report.measured).all():
        source = "GPU" if report.device == "GPU" else "CPU use of the workers"
        axes.stairs(report.measured, edges, baseline=None, color=VERMILION, linewidth=1.6, label=f"measured ({source})")
    axes.set_ylim(0, max(1.05, float(np.nanmax(np.append(report.measured, 0.0))) * 1.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(f"of {len(report.gpus)} {report.device}{'s' * (len(report.gpus) > 1)}")
    time_axis(axes, report.begin, report.end)
    finish(axes)
    legend_above(axes, 2)
    return made


def queue(report: Report) -> Figure | None:
    """Jobs that wait and run, over time."""
    if not report.summary["jobs"]["total"]:
        return None
    made = figure(2.8)
    axes = made.subplots()
    devices = f"{report.device}s"
    lines = {
        "waiting": (f"wait for {devices}", ORANGE, "-"),
        "running": (f"hold {devices}", BLUE, "-"),
        "blocked": ("held, or need other jobs", INK, ":"),
    }
    for series, (words, colour, style) in lines.items():
        steps = report.queue[series]
        if steps.value.any():
            axes.step(all_days(steps.moment), steps.value, where="post", color=colour, linestyle=style, linewidth=1.6, label=words)
            if series == "waiting":
                axes.fill_between(all_days(steps.moment), steps.value, step="post", color=colour, alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_ylabel("jobs")
    time_axis(axes, report.begin, report.end)
    finish(axes)
    legend_above(axes, 3)
    return made


def loss(report: Report) -> Figure | None:
    """Loss by step: a panel for each job, a line for each attempt."""
    jobs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in report.curves:
        jobs[row["job_id"]].append(row)
    if not jobs:
        return None
    columns = min(_COLUMNS, len(jobs))
    rows = -(-len(jobs) // columns)
    made = figure(0.6 + (2.0 if rows > 1 else 2.8) * rows)
    panels = made.subplots(rows, columns, squeeze=False).ravel()
    keys: dict[str, Any] = {}
    for panel, points in zip(panels, jobs.values(), strict=False):
        keys |= _loss_panel(panel, points)
    for panel in panels[len(jobs) :]:
        panel.set_visible(False)
    made.supxlabel("training step", size=FONT)
    made.supylabel("loss", size=FONT)
    if keys:
        made.legend(keys.values(), keys.keys(), loc="outside upper right", ncols=2, frameon=False, fontsize=FONT - 1)
    return made


def _loss_panel(axes: Axes, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw one job; returns the markers that the legend must explain."""
    attempts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        attempts[point["attempt"]].append(point)
    keys: dict[str, Any] = {}
    finite = []
    for place, reports in enumerate(attempts.values()):
        steps = np.array([point["step"] for point in reports], dtype=float)
        values = np.array([math.nan if point["value"] is None else point["value"] for point in reports], dtype=float)
        values[~np.isfinite(values)] = np.nan
        broken = np.isnan(values)
        colour = PALETTE[place % len(PALETTE)]
        axes.plot(steps, values, color=colour, linewidth=1.2, marker="." if len(steps) < 3 else None)
        finite.append(values[~broken])
        if place and not broken.all():
            first = int(np.argmin(broken))
            keys["a later attempt begins"] = axes.plot(steps[first], values[first], "o", mfc="white", mec=INK, markersize=5, zorder=4)[0]
        if broken.any():
            bottom = np.zeros(int(broken.sum()))
            keys["loss is not a number"] = axes.plot(
                steps[broken], bottom, "x", color=VERMILION, markersize=5, transform=axes.get_xaxis_transform(), clip_on=False
            )[0]
    known = np.concatenate(finite)
    if len(known) and known.min() > 0 and known.max() > 100 * known.min():
        axes.set_yscale("log")
    axes.set_title(label(f"{points[0]['name']} #{points[0]['job_id']}"), size=FONT, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    finish(axes)
    return keys


FIGURES: Mapping[str, Callable[[Report], Figure | None]] = {
    "gantt": gantt.draw,
    "jct": jct,
    "waiting": waiting,
    "utilisation": utilisation,
    "queue": queue,
    "loss": loss,
    "pipeline": lambda report: pipeline_plot.draw(report.pipeline),
    "causes": lambda report: causes_plot.draw(report.causes),
}
