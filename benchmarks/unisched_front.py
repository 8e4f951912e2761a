"""The front of UniSched: what its settings reach of two metrics that are bought with each other, beside other schedulers' points."""

from __future__ import annotations

from typing import Any

from unisched_figures import DL, RATIO, SLO_AWARE, Averages, Point, Variant


def others(averages: Averages) -> list[Variant]:
    return [variant for variant in averages.grid.variants if variant not in averages.grid.front]


def nearest(averages: Averages) -> list[dict[str, Any]]:
    """A row a point and other scheduler: the setting of the front at which the less favourable of both ratios is best.

    Where both are 1 or more, UniSched is no worse in either metric.
    """
    grid, rows = averages.grid, []
    for point in grid.points:
        for other in others(averages):
            ratios = {setting: found for setting in grid.front if (found := _ratios(averages, point, other, setting))}
            if ratios:
                best = max(ratios, key=lambda setting: min(ratios[setting]))
                row = {grid.along: point.label, "beside": other.label, "UniSched": best.label}
                rows.append(row | {f"{metric.name} x": ratio for metric, ratio in zip(grid.metrics, ratios[best], strict=True)})
    return rows


def least(averages: Averages) -> list[dict[str, Any]]:
    """A row a point and setting: the least of each ratio over SLO-aware and over DL schedulers, for which the thesis has ranges."""
    grid, rows = averages.grid, []
    for point in grid.points:
        for setting in grid.front:
            row: dict[str, Any] = {}
            for name, labels in (("SLO-aware", SLO_AWARE), ("DL", DL)):
                group = [other for other in others(averages) if other.label in labels]
                found = [ratios for other in group if (ratios := _ratios(averages, point, other, setting))]
                columns = list(zip(*found, strict=True))
                if columns:
                    row |= {f"{metric.name} x, {name}": min(column) for metric, column in zip(grid.metrics, columns, strict=True)}
            if row:
                rows.append({grid.along: point.label, "of": setting.label} | row)
    return rows


def _ratios(averages: Averages, point: Point, other: Variant, setting: Variant) -> list[float]:
    """Of each metric the other scheduler's by the setting's; [] where one is not known."""
    found = [averages.compared(point, other, metric, RATIO, setting) for metric in averages.grid.metrics]
    known = [ratio for ratio in found if ratio is not None]
    return known if len(known) == len(found) else []
