"""Plots of the evaluation of PerFect: accuracy over CPU time, learning rates, and what decoding costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfect_case import Case, Measured
from perfect_statistics import Results
from perfect_tables import PERFECT, PLAIN, REPEATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 160


def draw(results: Results, folder: Path) -> list[Path]:
    """One image each, of what was trained."""
    plots = {"accuracy-over-cpu-time.png": _accuracy, "learning-rates.png": _rates, "decoding.png": _decoding}
    return [_saved(folder / name, plot, results) for name, plot in plots.items()]


def _saved(path: Path, plot: Callable[[Axes, Results], None], results: Results) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    axes = figure.subplots()
    plot(axes, results)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=DPI)
    return path


def _shown(results: Results, cases: Mapping[str, Case]) -> dict[str, list[Measured]]:
    return {label: results.of(case) for label, case in cases.items() if results.has(case)}


def _accuracy(axes: Axes, results: Results) -> None:
    cases = {"plain": PLAIN, "echo 3": Case("echo", 3), "PerFect 3": PERFECT, "PerFect 6": replace(PERFECT, repeat=6)}
    for label, case in cases.items():
        if not results.has(case):
            continue
        curves = [one.curve for one in results.timed(case)]
        points = [[(point.cpu, point.accuracy) for point in curve] for curve in curves]
        mean = [[statistics.fmean(values) for values in zip(*same, strict=True)] for same in zip(*points, strict=True)]
        axes.plot(*zip(*mean, strict=True), label=label)
    if results.has(PLAIN):
        axes.axhline(results.target(PLAIN), color="grey", linewidth=0.8, linestyle=":", label="target")
    axes.set_ylim(bottom=80)
    axes.set_xlabel("CPU time of the training process (s)")
    axes.set_ylabel("test accuracy (%)")


def _rates(axes: Axes, results: Results) -> None:
    three = {"plain": PLAIN, "PerFect 3, OneCycle by rule": PERFECT, "PerFect 3, searched peak": replace(PERFECT, peak="search")}
    six = {"PerFect 6, cosine by rule": replace(PERFECT, repeat=6, schedule="cosine")}
    for label, measured in _shown(results, three | six).items():
        axes.plot(measured[0].rates, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")


def _decoding(axes: Axes, results: Results) -> None:
    cases = {"plain": PLAIN}
    for repeat in REPEATS:
        cases |= {f"echo\n{repeat}": Case("echo", repeat), f"PerFect\n{repeat}": replace(PERFECT, repeat=repeat)}
    shown = {label: results.timed(case) for label, case in cases.items() if results.has(case)}
    decode = [statistics.fmean(one.decode_cpu for one in measured) for measured in shown.values()]
    rest = [statistics.fmean(one.cpu - one.decode_cpu for one in measured) for measured in shown.values()]
    axes.bar(list(shown), decode, label="decoding")
    axes.bar(list(shown), rest, bottom=decode, label="the rest of the training")
    axes.set_ylabel("CPU time (s)")
