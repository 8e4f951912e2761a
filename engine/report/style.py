"""The style of Stoker's figures: size, colours that colour-blind readers can distinguish, local time, units, safe labels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TypeVar

from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullLocator

from ...policies.contract import Floats

T = TypeVar("T")

# Okabe and Ito's palette, its yellow last because it is faint on paper.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#F0E442")
BLUE, ORANGE, GREEN, VERMILION, GREY, INK = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[5], "#BBBBBB", "#222222"
WIDTH = 9.0  #: inches
DPI = 160  #: resolution of a PNG
FONT = 9.0  #: points
_DAY = 86_400.0
_SECOND, _MINUTE, _HOUR = (1.0, "s"), (60.0, "min"), (3600.0, "h")
_UNITS = ((2 * _DAY, (_DAY, "d")), (2 * 3600.0, _HOUR), (120.0, _MINUTE))
_ROUND = {"s": (10, 15, 20, 30), "min": (10, 15, 20, 30), "h": (3, 6, 12), "d": ()}  #: steps that divide the next unit
_FINEST = 0.001  #: s; the resolution of all measurements
_LAST_DECIMAL = {"s": 5, "min": 5, "h": 2, "d": math.inf}  #: steps up to here are decimal (1, 2, 5, …)
#: Ticks of a logarithmic axis.
_LOG_TICKS = {
    0.01: "0.01 s", 0.1: "0.1 s", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 6 * 3600.0: "6 h", _DAY: "1 d",
    10 * _DAY: "10 d", 100 * _DAY: "100 d", 1000 * _DAY: "1000 d",
}  # fmt: skip


def figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def write_figures(figures: Mapping[str, Callable[[T], Figure | None]], of: T, out: Path) -> dict[str, bytes]:
    """Write the PNGs, and remove those of an earlier report that have no data now; returns name to image."""
    images = {}
    for name, draw in figures.items():
        path = out / f"{name}.png"
        path.unlink(missing_ok=True)
        if (made := draw(of)) is not None:
            made.set_dpi(DPI)
            # `savefig` would draw it twice.
            FigureCanvasAgg(made).print_png(path, metadata={"Software": "stoker"})  # type: ignore[no-untyped-call]
            images[name] = path.read_bytes()
    return images


def finish(axes: Axes, grid: str = "both") -> None:
    """Light grid behind the data, no box around it."""
    axes.set_axisbelow(True)
    if grid == "x":
        axes.grid(axis="x", color="#E4E4E4", linewidth=0.7)
    else:
        axes.grid(axis="both", color="#E4E4E4", linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=FONT - 1)
    axes.xaxis.label.set_fontsize(FONT)
    axes.yaxis.label.set_fontsize(FONT)


def days(seconds: float) -> float:
    """A time in days, as in matplotlib's dates."""
    return seconds / _DAY


def all_days(seconds: Floats) -> Floats:
    return seconds / _DAY


def zone(moment: float) -> tuple[tzinfo | None, str]:
    """The local time zone at a time, and its name."""
    local = datetime.fromtimestamp(moment).astimezone()
    return local.tzinfo, local.tzname() or "local"


def time_axis(axes: Axes, begin: float, end: float) -> None:
    """Local time along x; the label names the day and the zone."""
    local, name = zone(end)
    first, last = (datetime.fromtimestamp(moment, local).strftime("%Y-%m-%d") for moment in (begin, end))
    span = end - begin
    form = "%H:%M:%S" if span < 600 else "%H:%M" if span < 1.5 * _DAY else "%m-%d\n%H:%M" if span < 14 * _DAY else "%m-%d"
    axes.xaxis.set_major_locator(dates.AutoDateLocator(tz=local, minticks=4, maxticks=9))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(dates.DateFormatter(form, tz=local))  # type: ignore[no-untyped-call]
    axes.set_xlim(days(begin), days(end))
    axes.set_xlabel(f"{first} ({name})" if first == last else f"{first} to {last} ({name})")


def legend_above(axes: Axes, columns: int) -> None:
    """A legend above the data, so that it covers none; no legend without labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False, fontsize=FONT - 1)


def durations(axes: Axes, longest: float, most: int = 8) -> str:
    """Label x with seconds up to ``longest`` in at most ``most`` steps, in a readable unit; returns the unit's name."""
    size, name = next((unit for above, unit in _UNITS if longest >= above), _SECOND)
    axes.xaxis.set_major_locator(MultipleLocator(_step(longest / size / most, name) * size))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / size:.6g}"))
    return name


def _step(least: float, name: str) -> float:
    """Distance of the ticks in units: 1, 2 or 5, or a divisor of the next unit."""
    least = max(least, _FINEST)
    power = 10.0 ** math.floor(math.log10(least))
    decimal = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)
    steps = [float(step) for step in _ROUND[name] if step >= least]
    return steps[0] if steps and decimal > _LAST_DECIMAL[name] else decimal


def log_durations(axes: Axes) -> None:
    """Label a logarithmic x axis of seconds."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(_LOG_TICKS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _LOG_TICKS.get(seconds, "")))


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).get_charmap())


def label(text: str, most: int = 28) -> str:
    """A name as plain text: no mathematics, no glyphs that the font lacks, and not longer than ``most``."""
    shown = "".join(char if ord(char) in _glyphs() and char.isprintable() else "\N{WHITE SQUARE}" for char in text)
    shown = shown if len(shown) <= most else shown[: most - 1] + "…"
    return shown.replace("$", r"\$")


def ink_on(colour: str) -> str:
    """Black or white, whichever is more readable on this colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 130 else INK
