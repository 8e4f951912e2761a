"""The causal graph of a tuned pool in three layers: keys and workload, explaining metrics, the objective (002 fig. 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import BLUE, FONT, GREEN, GREY, ORANGE, figure, label

_HEIGHT = 0.32  #: inches for each node of the fullest layer
BETWEEN = ("queueing", "utilisation", "preemptions", "fragmentation")  #: metrics of `policies.autosched.search`
_COLOURS = (BLUE, ORANGE, GREEN)

Edge = Mapping[str, Any]


def draw(edges: Sequence[Edge]) -> Figure | None:
    """A panel for each model; None: there is none."""
    models: dict[tuple[str, str, str], list[Edge]] = {}
    for edge in edges:
        models.setdefault((edge["pool"], edge["policy"], edge["objective"]), []).append(edge)
    if not models:
        return None
    layers = {model: layers_of(own, model[2]) for model, own in models.items()}
    made = figure(sum(0.6 + _HEIGHT * max(len(layer) for layer in one) for one in layers.values()))
    panels = made.subplots(len(models), 1, squeeze=False)[:, 0]
    for axes, (model, own) in zip(panels, models.items(), strict=True):
        _panel(axes, own, layers[model])
        pool, policy, objective = model
        axes.set_title(f"{label(pool)}: {label(policy)}, {objective}, of {own[0]['samples']} simulations", fontsize=FONT, loc="left")
    return made


def layers_of(edges: Sequence[Edge], objective: str) -> tuple[list[str], list[str], list[str]]:
    """Keys and workload; explaining metrics, with or without a known cause; the objective. Each in alphabetical order."""
    names = {name for edge in edges for name in (edge["cause"], edge["effect"])}
    between = names & {*BETWEEN}
    return sorted(names - between - {objective}), sorted(between), [objective]


def _panel(axes: Axes, edges: Sequence[Edge], layers: tuple[list[str], list[str], list[str]]) -> None:
    at = {}
    for place, layer in enumerate(layers):
        for name, height in zip(layer, np.linspace(1.0, 0.0, len(layer) + 2)[1:-1].tolist(), strict=True):
            at[name] = (place / 2, height)
            style = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": _COLOURS[place]}
            axes.text(*at[name], label(name), fontsize=FONT - 1, ha="center", va="center", bbox=style, zorder=3)
    for edge in edges:
        begin, end = at[edge["cause"]], at[edge["effect"]]
        bend = 0.25 if begin[0] == end[0] else 0.0
        arrow = {"arrowstyle": "->", "color": GREY, "shrinkA": 32, "shrinkB": 32, "connectionstyle": f"arc3,rad={bend}"}
        axes.annotate("", xy=end, xytext=begin, arrowprops=arrow, zorder=2)
    axes.set_xlim(-0.15, 1.15)
    axes.set_ylim(0.0, 1.0)
    axes.axis("off")
