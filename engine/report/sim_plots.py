"""The figures of a simulation study: one curve for each policy, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...policies.contract import Floats
from ..sim.results.result import Bars
from .data import MOST_BARS, MOST_POINTS, Steps
from .style import FONT, INK, PALETTE, durations, figure, finish, label, legend_above, log_durations

MOST_CHARTS = 6  #: policies that have a Gantt chart
MOST_GPUS = 64  #: rows of a Gantt chart
_SLICES = 400  #: slices of time, for quantities over time
_SHORTEST = 1.0  #: s; the left edge of a logarithmic axis of times
_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class RunCurve:
    """One run. Times are seconds from the workload's start."""

    label: str
    gpus: int
    jct: Floats  #: job completion times of finished jobs
    wait: Floats
    moments: Floats  #: times at which the next two changed
    busy: Floats
    waiting: Floats
    stays: Bars


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure of merit, a bar for each policy; ``spread`` is None with a single seed."""

    title: str
    values: Sequence[float | None]
    spread: Sequence[float | None]
    is_time: bool = False
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    curves: Sequence[RunCurve]
    labels: Sequence[str]  #: of the bars in each panel
    panels: Sequence[Panel]
    gpus: int
    begin: float
    end: float


def _look(place: int) -> tuple[str, str]:
    """Colour and line style of a policy; when colours repeat the style differs."""
    return PALETTE[place % len(PALETTE)], _STYLES[place // len(PALETTE) % len(_STYLES)]


def jct(study: Comparison) -> Figure | None:
    """Cumulative distribution of the JCT."""
    return _distribution(study, [curve.jct for curve in study.curves], "job completion time")


def wait(study: Comparison) -> Figure | None:
    """Cumulative distribution of the queueing delay."""
    return _distribution(study, [curve.wait for curve in study.curves], "queueing delay")


def _distribution(study: Comparison, columns: Sequence[Floats], of_what: str) -> Figure | None:
    if not any(len(values) for values in columns):
        return None
    made = figure(3.4)
    axes = made.subplots()
    for place, (curve, values) in enumerate(zip(study.curves, columns, strict=True)):
        if not len(values):
            continue
        shares = np.linspace(0.0, 1.0, min(len(values), MOST_POINTS) + 1)
        colour, line = _look(place)
        at = np.maximum(np.quantile(values, shares, method="inverted_cdf"), _SHORTEST)
        axes.step(at, shares, where="post", color=colour, linestyle=line, linewidth=1.5, label=label(curve.label))
    log_durations(axes)
    axes.set_xlim(left=_SHORTEST)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"{of_what} (less than {_SHORTEST:g} s at the left edge)")
    axes.set_ylabel("finished jobs")
    finish(axes)
    legend_above(axes, 4)
    return made


def utilisation(study: Comparison) -> Figure | None:
    """Share of the GPUs that are held, over time."""
    made = _over_time(study, [curve.busy / curve.gpus for curve in study.curves], "of the GPUs")
    made.axes[0].set_ylim(0, 1.05)
    made.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    return made


def queue(study: Comparison) -> Figure | None:
    """Jobs that wait, over time."""
    made = _over_time(study, [curve.waiting for curve in study.curves], "jobs that wait")
    made.axes[0].set_ylim(bottom=0)
    return made


def _over_time(study: Comparison, columns: Sequence[Floats], of_what: str) -> Figure:
    """Averages over slices of time, exact for values that change in steps."""
    edges = np.linspace(study.begin, study.end, _SLICES + 1)
    made = figure(3.0)
    axes = made.subplots()
    for place, (curve, values) in enumerate(zip(study.curves, columns, strict=True)):
        moments = np.concatenate(([study.begin], np.clip(curve.moments, study.begin, study.end), [study.end]))
        levels = np.concatenate(([0.0], values, values[-1:] if len(values) else [0.0]))
        means = Steps(moments, levels).means(edges)
        colour, line = _look(place)
        axes.stairs(means, edges - study.begin, baseline=None, color=colour, linestyle=line, linewidth=1.4, label=label(curve.label))
    _simulated_time(axes, study)
    axes.set_ylabel(of_what)
    finish(axes)
    legend_above(axes, 4)
    return made


def gantt(study: Comparison) -> Figure | None:
    """Jobs on each GPU over time, a chart for each policy."""
    curves = [curve for curve in study.curves if len(curve.stays.job)][:MOST_CHARTS]
    if not curves:
        return None
    rows = min(study.gpus, MOST_GPUS)
    made = figure(0.7 + len(curves) * min(0.8 + 0.12 * rows, 3.0))
    panels = made.subplots(len(curves), 1, sharex=True, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=True):
        _bars(axes, curve.stays, rows, study.begin)
        axes.set_ylim(rows, 0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_title(label(curve.label), size=FONT, loc="left")
        finish(axes, grid="x")
    _simulated_time(panels[-1], study)
    made.supylabel("GPU" if rows == study.gpus else f"GPU (the first {rows} of {study.gpus})", size=FONT)
    return made


def _simulated_time(axes: Axes, study: Comparison) -> None:
    length = study.end - study.begin
    axes.set_xlim(0, length)
    axes.set_xlabel(f"simulated time ({durations(axes, length)})")


def _bars(axes: Axes, stays: Bars, rows: int, begin: float) -> None:
    """One collection for all bars, as thousands of patches would take minutes. If there are too many, only the longest are drawn."""
    chosen = np.flatnonzero((stays.gpu < rows) & (stays.ends > stays.begins))
    if len(chosen) > MOST_BARS:
        lengths = (stays.ends - stays.begins)[chosen]
        chosen = np.sort(chosen[np.argsort(-lengths, kind="stable")[:MOST_BARS]])
    left, right = stays.begins[chosen] - begin, stays.ends[chosen] - begin
    top, bottom = stays.gpu[chosen], np.minimum(stays.gpu[chosen] + stays.gpus[chosen], rows)
    corners = np.stack([np.stack(point, axis=-1) for point in ((left, top), (right, top), (right, bottom), (left, bottom))], axis=1)
    colours = [PALETTE[job % len(PALETTE)] for job in stays.job[chosen].tolist()]
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors="white", linewidths=0.4 if len(chosen) < 600 else 0.0))


def bars(study: Comparison) -> Figure | None:
    """The figures of merit side by side."""
    panels = [panel for panel in study.panels if any(value is not None for value in panel.values)]
    if not panels or not study.labels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    made = figure(0.4 + rows * (1.1 + 0.22 * len(study.labels)))
    all_axes = made.subplots(rows, columns, squeeze=False).ravel()
    for place, (axes, panel) in enumerate(zip(all_axes, panels, strict=False)):
        _panel(axes, panel, study.labels, named=place % columns == 0)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    return made


def _panel(axes: Axes, panel: Panel, labels: Sequence[str], named: bool) -> None:
    values = np.array([np.nan if value is None else value for value in panel.values], dtype=float)
    spread = np.array([0.0 if value is None else value for value in panel.spread], dtype=float)
    places = np.arange(len(labels))
    errors = spread if spread.any() else None
    colours = [_look(place)[0] for place in range(len(labels))]
    axes.barh(places, np.nan_to_num(values), xerr=errors, color=colours, height=0.7, error_kw={"elinewidth": 1.0, "ecolor": INK})
    axes.set_yticks(places, [label(text, 24) for text in labels] if named else [""] * len(labels))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, None if np.nan_to_num(values).any() else 1)
    if panel.is_share:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    name = f" ({durations(axes, float(np.nanmax(values)), 4)})" if panel.is_time else ""
    axes.set_title(f"{panel.title}{name}", size=FONT, loc="left")
    finish(axes, grid="x")


FIGURES: Mapping[str, Callable[[Comparison], Figure | None]] = {
    "bars": bars,
    "jct": jct,
    "wait": wait,
    "utilisation": utilisation,
    "queue": queue,
    "gantt": gantt,
}
