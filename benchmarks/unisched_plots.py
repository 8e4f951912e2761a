"""Plots of the evaluation of UniSched, one a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unisched_figures import Averages, Metric, Point
from unisched_front import others

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES, DPI = (9.0, 3.2), 160


def draw(averages: Averages, folder: Path) -> Path:
    """One image of the figure: bars in groups, a panel a metric; of a front one metric against the other, a panel a point."""
    from matplotlib.figure import Figure

    grid = averages.grid
    rows = grid.points if grid.front else grid.metrics
    figure = Figure(figsize=(INCHES[0], INCHES[1] * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), squeeze=False)[:, 0]
    if grid.front:
        for axes, point in zip(panels, grid.points, strict=True):
            _front(axes, averages, point)
    else:
        for axes, metric in zip(panels, grid.metrics, strict=True):
            _bars(axes, averages, metric)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(f"{grid.number}  {grid.title}", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"figure-{grid.number}.png"
    figure.savefig(path, dpi=DPI)
    return path


def _bars(axes: Axes, averages: Averages, metric: Metric) -> None:
    grid = averages.grid
    width = 0.85 / len(grid.variants)
    for place, variant in enumerate(grid.variants):
        heights = [averages.of(point, variant, metric) or 0.0 for point in grid.points]
        axes.bar([x + (place + 0.5) * width - 0.425 for x in range(len(heights))], heights, width, label=variant.label, color=f"C{place}")
    axes.set_xticks(range(len(grid.points)), [point.label for point in grid.points], fontsize=8)
    axes.set_xlabel(grid.along, fontsize=8)
    axes.set_ylabel(_label(metric), fontsize=8)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    _plain(axes)


def _front(axes: Axes, averages: Averages, point: Point) -> None:
    """The settings as a curve with what distinguishes each, the others as points."""
    grid = averages.grid
    first, second = grid.metrics
    places = {variant: (averages.of(point, variant, first), averages.of(point, variant, second)) for variant in grid.variants}
    curve = [places[variant] for variant in grid.front]
    axes.plot([x for x, _ in curve], [y for _, y in curve], "o-", color="C0", markersize=4, label=grid.front[0].label)
    for variant in grid.front[1:]:
        axes.annotate(variant.label.partition("=")[2], places[variant], textcoords="offset points", xytext=(3, 4), fontsize=7)
    for number, variant in enumerate(others(averages), 1):
        axes.plot(*places[variant], "s", color=f"C{number}", markersize=5, label=variant.label)
    axes.set_title(point.label, fontsize=8, loc="left")
    axes.set_xlabel(_label(first), fontsize=8)
    axes.set_ylabel(_label(second), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(color="#E4E4E4", linewidth=0.7)
    _plain(axes)


def _label(metric: Metric) -> str:
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _plain(axes: Axes) -> None:
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
