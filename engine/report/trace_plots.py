"""The figures of a trace (after 002 Figure 6.1). Each function takes the description and returns a figure, or None without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from ...policies.contract import Floats
from .. import format as fmt
from ..traces.describe import REPEATED_OFTEN, Description, GpuRequest, JobGroup, by_request, cdf
from .style import BLUE, GREEN, INK, ORANGE, VERMILION, durations, figure, finish, label, legend_above, log_durations

_HOUR = 3600.0
_MOST_REQUESTS = 10
_MOST_GROUPS = 12
_MOST_DRAWN = 2000  #: values drawn in a violin
_MOST_STEPS = 4000  #: steps of a curve over time, more than the figure's width in pixels


def duration(of: Description) -> Figure | None:
    """Cumulative distribution of the duration (Figure 6.1a)."""
    if not len(of.duration):
        return None
    made = figure(3.2)
    axes = made.subplots()
    seconds, share = cdf(of.duration)
    if float(of.duration.max()) > 100 * max(float(of.duration.min()), 1.0):
        seconds = np.maximum(seconds, 1.0)
        log_durations(axes)
        name = ""
    else:
        name = f" ({durations(axes, float(seconds[-1]))})"
    axes.step(np.concatenate([seconds[:1], seconds]), np.concatenate([[0.0], share]), where="post", color=BLUE, linewidth=1.8)
    _marks(axes, of.duration)
    axes.set_xlabel(f"duration{name}")
    _share_axis(axes, f"jobs (n = {len(of.duration)})")
    return _finished(made, axes, 2)


def _marks(axes: Axes, seconds: Floats) -> None:
    for share, words, style in ((0.5, "median", "--"), (0.99, "p99", ":")):
        at = float(np.quantile(seconds, share))
        axes.axvline(max(at, 1.0), color=INK, linestyle=style, linewidth=1.0, label=f"{words} {fmt.duration(at)}")


def _share_axis(axes: Axes, words: str) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(words)


def _finished(made: Figure, axes: Axes, columns: int) -> Figure:
    finish(axes)
    legend_above(axes, columns)
    return made


def _requests(of: Description) -> list[tuple[str, GpuRequest]]:
    """Requests with their labels; if there are many, those up to each power of two are joined."""
    if len(of.requests) <= _MOST_REQUESTS:
        return [(str(one.gpus), one) for one in of.requests]
    upto = (2 ** np.ceil(np.log2(of.gpus))).astype(np.int64)
    joined = by_request(upto, of.service / upto)  # the service stays the same, whatever the number of GPUs in the label
    return [(str(one.gpus) if one.gpus < 3 else f"{one.gpus // 2 + 1}–{one.gpus}", one) for one in joined]


def requests(of: Description) -> Figure | None:
    """Share of the jobs and of the service by GPU request."""
    if not of.requests:
        return None
    made = figure(2.8)
    axes = made.subplots()
    found = _requests(of)
    places = np.arange(len(found))
    axes.bar(places - 0.2, [one.share for _, one in found], width=0.38, color=BLUE, label="of the jobs")
    axes.bar(places + 0.2, [one.service_share for _, one in found], width=0.38, color=ORANGE, label="of the service (GPUs × duration)")
    axes.set_xticks(places, [name for name, _ in found])
    axes.set_xlabel("GPUs requested")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share")
    return _finished(made, axes, 2)


def service(of: Description) -> Figure | None:
    """Distribution of the service by GPU request (Figure 6.1b)."""
    hours = [(name, one.service / _HOUR) for name, one in _requests(of)]
    found = [(name, np.log10(some[some > 0])) for name, some in hours]
    found = [(name, values) for name, values in found if len(values)]
    if not found:
        return None
    made = figure(3.2)
    axes = made.subplots()
    for place, (_, values) in enumerate(found):
        _violin(axes, place, values)
    axes.set_xticks(range(len(found)), [f"{name}\n{len(values)}" for name, values in found])
    axes.set_xlabel("GPUs requested, and jobs")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda power, _: f"{10**power:g}"))
    axes.set_ylabel("service (GPU-hours)")
    return _finished(made, axes, 2)


def _violin(axes: Axes, place: int, values: Floats) -> None:
    """Shape, quartiles and median of one request; without a shape its points."""
    drawn = np.sort(values)[:: max(1, len(values) // _MOST_DRAWN)]
    if len(np.unique(drawn)) > 2:
        for body in axes.violinplot([drawn], positions=[place], widths=0.8, showextrema=False)["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=BLUE, edgecolor=BLUE, alpha=0.35)
    else:
        axes.plot(np.full(len(drawn), place), drawn, "o", color=BLUE, markersize=3.5)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    first = {"label": "middle half"} if place == 0 else {}
    axes.vlines(place, low, high, color=INK, linewidth=3, **first)  # type: ignore[arg-type]
    axes.plot(place, middle, "o", mfc="white", mec=INK, markersize=4.5, zorder=4, label="median" if place == 0 else None, linestyle="none")


def arrivals(of: Description) -> Figure | None:
    """Jobs that arrive an hour: the periodic part (top) and bursts (bottom), Figure 6.1c."""
    found = of.arrivals
    if not len(found.counts):
        return None
    made = figure(4.2)
    top, bottom = made.subplots(2, 1, sharex=True)
    counts, edges = _steps(found.counts, found.start, found.bucket)
    each = "an hour" if found.bucket == _HOUR else f"in {found.bucket / _HOUR:g} hours"
    top.stairs(counts, edges, fill=True, color=BLUE, alpha=0.25, label="submitted")
    words = f"periodic; the period is {found.period / _HOUR:.3g} h" if found.period else "periodic: no period stands out of the noise"
    top.stairs(_steps(found.periodic, found.start, found.bucket)[0], edges, baseline=None, color=VERMILION, linewidth=1.4, label=words)
    bursty = _steps(found.bursty, found.start, found.bucket)[0]
    bottom.stairs(bursty, edges, color=GREEN, linewidth=1.0, label="the rest: bursts and lulls")
    for axes in (top, bottom):
        axes.set_ylabel(f"jobs {each}")
        finish(axes)
        legend_above(axes, 2)
    top.set_ylim(bottom=0)
    _from_the_start(bottom, edges)
    return made


def _steps(values: Floats, start: float, bucket: float) -> tuple[Floats, Floats]:
    """A series to draw and its edges; of a long one the means of several buckets."""
    width = -(-len(values) // _MOST_STEPS)
    firsts = np.arange(0, len(values), width)
    means = np.add.reduceat(values, firsts) / np.diff(firsts, append=len(values))
    return means, start + np.append(firsts, len(values)) * bucket


def _from_the_start(axes: Axes, edges: Floats) -> None:
    axes.set_xlabel(f"time from the start of the trace ({durations(axes, float(edges[-1] - min(edges[0], 0.0)))})")


def demand(of: Description) -> Figure | None:
    """GPUs in use if no job had to wait."""
    found = of.demand
    if not len(found.gpus):
        return None
    made = figure(2.8)
    axes = made.subplots()
    gpus, edges = _steps(found.gpus, found.start, found.bucket)
    axes.stairs(gpus, edges, fill=True, color=BLUE, alpha=0.3, label="demanded")
    if of.mean_demand is not None:
        last = float(of.submitted[-1])
        axes.plot(
            [edges[0], last],
            [of.mean_demand] * 2,
            color=INK,
            linestyle="--",
            linewidth=1.0,
            label=f"all service over the time of arrival: {of.mean_demand:.4g}",
        )
    if of.capacity:
        axes.axhline(of.capacity, color=VERMILION, linewidth=1.2, label=f"{of.capacity} GPUs of the cluster")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GPUs")
    _from_the_start(axes, edges)
    return _finished(made, axes, 3)


def recurrence(of: Description) -> Figure | None:
    """Cumulative distribution of the number of jobs in each job's task (Figure 6.1d)."""
    found = of.recurrence
    if not found.jobs:
        return None
    made = figure(3.2)
    axes = made.subplots()
    sizes, share = cdf(found.sizes.astype(np.float64))
    axes.step(np.concatenate([sizes[:1], sizes]), np.concatenate([[0.0], share]), where="post", color=BLUE, linewidth=1.8)
    words = f"{found.often:.0%} of the jobs repeat more than {REPEATED_OFTEN} times"
    axes.axvline(REPEATED_OFTEN, color=INK, linestyle="--", linewidth=1.0, label=words)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.set_xlabel(f"jobs of the same task ({', '.join(found.by)})")
    _share_axis(axes, f"jobs (n = {found.jobs})")
    return _finished(made, axes, 2)


def shares(of: Description) -> Figure | None:
    """The shares of users and pools in the service."""
    parts = [(name, groups) for name, groups in (("users", of.users), ("pools", of.pools)) if groups]
    if not parts:
        return None
    made = figure(0.9 + 0.22 * min(_MOST_GROUPS + 1, max(len(groups) for _, groups in parts)))
    for axes, (name, groups) in zip(made.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        _share_bars(axes, name, groups)
    return made


def _share_bars(axes: Axes, name: str, groups: Sequence[JobGroup]) -> None:
    shown = [(label(group.name, 20), group.share) for group in groups[:_MOST_GROUPS]]
    if rest := groups[_MOST_GROUPS:]:
        shown.append((f"{len(rest)} others", math.fsum(group.share for group in rest)))
    axes.barh(np.arange(len(shown)), [share for _, share in shown], color=BLUE, height=0.75)
    axes.set_yticks(range(len(shown)), [text for text, _ in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"service by {name.removesuffix('s')} (n = {len(groups)})")
    finish(axes, grid="x")


FIGURES: Mapping[str, Callable[[Description], Figure | None]] = {
    "duration": duration,
    "requests": requests,
    "service": service,
    "arrivals": arrivals,
    "demand": demand,
    "recurrence": recurrence,
    "shares": shares,
}
