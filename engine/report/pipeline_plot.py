"""A data pipeline over time: its throughput, the sizes of its stages, its memory, the reward, and the tuner's actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...policies.contract import Floats
from .style import BLUE, DPI, GREEN, GREY, INK, ORANGE, PALETTE, VERMILION, all_days, figure, finish, label, legend_above, time_axis

_GIB = 1 << 30
_MIB = 1 << 20
_LIMIT_FACTOR_DRAWN = 4.0  #: a memory limit of so many times the used memory is not drawn, but mentioned
Step = Mapping[str, Any]  #: a step of the history from `GET /v1/jobs/REF/pipeline` and sql/report/pipeline.sql


def draw(steps: Sequence[Step]) -> Figure | None:
    """Four panels on one time axis; None without a step. The lines are broken between attempts."""
    if not steps:
        return None
    at = all_days(_column(steps, "ts"))
    made = figure(8.4)
    panels = made.subplots(4, 1, sharex=True)
    breaks = [place for place in range(1, len(steps)) if steps[place]["lease_id"] != steps[place - 1]["lease_id"]]
    for panel, lines in zip(panels, (_throughput, _stages, _memory, _reward), strict=True):
        lines(panel, steps, at, breaks)
        finish(panel)
        legend_above(panel, 6)
    first, last = float(steps[0]["ts"]), float(steps[-1]["ts"])
    time_axis(panels[-1], first, max(last, first + 1.0))
    return made


def write(steps: Sequence[Step], path: Path) -> None:
    """Write the figure as PNG; OSError if that fails."""
    made = draw(steps)
    assert made is not None
    made.savefig(path, format="png", dpi=DPI, metadata={"Software": "stoker"})


def _column(steps: Sequence[Step], name: str) -> Floats:
    return np.array([math.nan if step[name] is None else float(step[name]) for step in steps], dtype=np.float64)


def _set(axes: Axes, at: Floats, value: Floats, breaks: list[int], **style: Any) -> None:
    """Draw a value that a step sets: it holds until the next step, but not across attempts."""
    ends = at[[place - 1 for place in breaks]]
    axes.step(np.insert(at, breaks, ends), np.insert(value, breaks, math.nan), where="post", marker=_marker(at), **style)


def _measured(axes: Axes, at: Floats, value: Floats, breaks: list[int], **style: Any) -> None:
    """Draw a value that was measured since the step before."""
    axes.step(np.insert(at, breaks, at[breaks]), np.insert(value, breaks, math.nan), where="pre", marker=_marker(at), **style)


def _marker(at: Floats) -> str | None:
    """A marker for a single step, which makes no line."""
    return "." if len(at) < 2 else None


def _throughput(axes: Axes, steps: Sequence[Step], at: Floats, breaks: list[int]) -> None:
    demand = _column(steps, "demand")
    if not np.isnan(demand).all():
        _measured(axes, at, demand, breaks, color=INK, linestyle=":", linewidth=1.2, label="the training would take")
    _measured(axes, at, _column(steps, "throughput"), breaks, color=BLUE, linewidth=1.6, label="delivered")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("samples a second")


def _stages(axes: Axes, steps: Sequence[Step], at: Floats, breaks: list[int]) -> None:
    names = list(
        dict.fromkeys(stage["stage"] for step in steps for stage in step["stages"] if stage["unit"] != "MiB")
    )  # not those sized by memory
    for place, name in enumerate(names):
        workers = [next((s["workers"] for s in step["stages"] if s["stage"] == name), None) for step in steps]
        values = np.array([math.nan if w is None else float(w) for w in workers])
        wide = 1.4 + 0.9 * (len(names) - 1 - place)  # lines on top of each other stay visible
        _set(axes, at, values, breaks, color=PALETTE[place % len(PALETTE)], linewidth=wide, label=label(name))
    _set(axes, at, _column(steps, "cpus"), breaks, color=GREY, linestyle="--", linewidth=1.2, label="cores")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_ylabel("workers")
    _marks(axes, steps, at, "acted", marker="^", color=GREEN, label="changed")


def _memory(axes: Axes, steps: Sequence[Step], at: Floats, breaks: list[int]) -> None:
    used, total = _column(steps, "memory_used") / _GIB, _column(steps, "memory_total") / _GIB
    buffers = np.array(
        [sum(s["value"] or 0 for s in step["stages"] if s["unit"] == "MiB") * _MIB / _GIB for step in steps], dtype=np.float64
    )
    near = total.max() < _LIMIT_FACTOR_DRAWN * used.max()  # a far limit would press the used memory to the bottom
    if near:
        _set(axes, at, total, breaks, color=INK, linestyle=":", linewidth=1.2, label="may be used")
    _measured(axes, at, used, breaks, color=ORANGE, linewidth=1.6, label="in use" if near else f"in use, of {total.max():.3g}")
    if buffers.any():
        _set(axes, at, buffers, breaks, color=PALETTE[3], linewidth=1.2, label="buffers may hold")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("memory (GiB)")
    _marks(axes, steps, at, "held", marker="x", color=VERMILION, label="refused by the guard")


def _reward(axes: Axes, steps: Sequence[Step], at: Floats, breaks: list[int]) -> None:
    _measured(axes, at, _column(steps, "reward"), breaks, color=PALETTE[6], linewidth=1.6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("reward")


def _marks(axes: Axes, steps: Sequence[Step], at: Floats, what: str, **style: Any) -> None:
    """Marks along the bottom of the panel at the times of events."""
    moments = at[[bool(step[what]) for step in steps]]
    if len(moments):
        axes.plot(
            moments, np.full(len(moments), 0.03), linestyle="", markersize=4.5, transform=axes.get_xaxis_transform(), clip_on=False, **style
        )
