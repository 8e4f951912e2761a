"""Plots of the simulated evaluation, after figures 7 and 8 of the paper (003 ch. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from intune_simulated_runs import Run, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 160
SMOOTHED = 3  #: windows
NOTE = "simulated machine and pipeline; nothing here was measured on hardware"


def over_time(scenario: Scenario, by_controller: Mapping[str, Sequence[Run]], folder: Path) -> Path:
    """Figure 7: throughput over unoptimised, CPU use, and share of the model's demand, over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    base = _mean([run.throughput for run in by_controller["unoptimised"]]) if "unoptimised" in by_controller else None
    for name, runs in by_controller.items():
        minutes = np.arange(len(runs[0].throughput)) * runs[0].window / 60
        throughput = _mean([run.throughput for run in runs])
        panels[0].plot(minutes, throughput if base is None else throughput / base, label=name, linewidth=1)
        panels[1].plot(minutes, 100 * _mean([run.cpu for run in runs]), linewidth=1)
        panels[2].plot(minutes, 100 * _mean([run.fed for run in runs]), linewidth=1)
    titles = ("throughput, times unoptimised" if base is not None else "samples/s", "CPU use, %", "share of the model's demand, %")
    for axes, title in zip(panels, titles, strict=True):
        _dress(axes, title, "minutes")
        for event, phase in zip(scenario.events, scenario.phases(), strict=True):
            axes.axvline(phase.start * 5 / 60, color="#BBBBBB", linewidth=0.6, linestyle=":")
            axes.annotate(f"{event.cpus:g}", (phase.start * 5 / 60, 0.98), xycoords=("data", "axes fraction"), fontsize=6, va="top")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    figure.suptitle(f"{scenario.name}: cores as marked ({NOTE})", fontsize=9)
    return _save(figure, folder / f"figure-7-{scenario.name}.png")


def scaling(panels: Mapping[str, Mapping[str, Mapping[str, float]]], folder: Path) -> Path:
    """Figure 8: one panel a study; controller to point to throughput over AUTOTUNE's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for place, (name, points) in enumerate(lines.items()):
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, linewidth=1, color=f"C{place}", label=name)
        axes.axhline(1.0, color="#888888", linewidth=0.8)
        _dress(axes, "throughput over AUTOTUNE's", title)
        axes.tick_params(axis="x", labelrotation=30)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    figure.suptitle(NOTE, fontsize=9)
    return _save(figure, folder / "figure-8.png")


def _mean(rows: Sequence[Sequence[float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    mean = np.mean(np.asarray(rows, dtype=np.float64), axis=0)
    padded = np.concatenate([np.full(SMOOTHED - 1, mean[0]), mean])
    smooth: np.ndarray[tuple[int], np.dtype[np.float64]] = np.convolve(padded, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    return smooth


def _dress(axes: Axes, title: str, along: str) -> None:
    axes.set_title(title, fontsize=8)
    axes.set_xlabel(along, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)


def _save(figure: object, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)  # type: ignore[attr-defined]
    return path
