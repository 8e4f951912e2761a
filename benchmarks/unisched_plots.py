"""Plots of the evaluation of UniSched, one a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unisched_figures import Averages, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES, DPI = (9.0, 3.2), 160


def draw(averages: Averages, folder: Path) -> Path:
    """One image of the figure: bars in groups, a panel a metric."""
    from matplotlib.figure import Figure

    grid = averages.grid
    figure = Figure(figsize=(INCHES[0], INCHES[1] * len(grid.metrics)), layout="constrained")
    panels = figure.subplots(len(grid.metrics), squeeze=False)[:, 0]
    for axes, metric in zip(panels, grid.metrics, strict=True):
        _bars(axes, averages, metric)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False, fontsize=8)
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
    axes.set_ylabel(f"{metric.name} ({metric.unit})" if metric.unit else metric.name, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
