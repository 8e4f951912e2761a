"""Values in words: durations, times, bytes, bars. Pure functions, no terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .logfile import colourless
from .spec.reading.units import EARLIEST, LATEST

MISSING = "–"
_STEPS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))
_PARTS = " ▏▎▍▌▋▊▉"
_LARGEST = 1e15  #: longer numbers are not readable


def duration(seconds: float | None) -> str:
    """Two units at most: ``45s``, ``3m 05s``, ``2h 10m``, ``4d 3h``."""
    if seconds is None:
        return MISSING
    if seconds < 0:
        return "-" + duration(-seconds)
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds >= 0.001 else "<1ms"
    whole = round(seconds)
    for unit, name, small, small_name in _STEPS:
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit}{name} {rest:02d}{small_name}" if rest else f"{whole // unit}{name}"
    return f"{whole}s"


def coarse(seconds: float) -> str:
    """One unit, from an hour on two: ``45s``, ``3m``, ``1h 59m``."""
    if seconds < 1:
        return "0s"
    return duration(seconds) if seconds >= 3_600 else duration(seconds).split(" ")[0]


def relative(ts: float | None, now: float) -> str:
    """``in 3m``, ``5m ago``, ``now``."""
    if ts is None:
        return MISSING
    away = ts - now
    if abs(away) < 1:
        return "now"
    return f"in {coarse(away)}" if away > 0 else f"{coarse(-away)} ago"


def expected(ts: float | None, now: float) -> str:
    """The estimated time of a future event: ``in 3m``, or ``soon`` when it should have happened already."""
    return "soon" if ts is not None and ts < now + 1 else relative(ts, now)


def silence(nodes: Sequence[str], since: float, reported: float | None, now: float) -> str:
    """For a job on silent hosts: ``b silent for 2m, progress as of 3m ago``."""
    told = "" if reported is None else f", progress as of {relative(reported, now)}"
    return f"{', '.join(nodes)} silent for {coarse(now - since)}{told}"


def expectation(row: Mapping[str, Any]) -> str:
    """When a job reaches the metric at which it stops: ``to reach accuracy 0.9 at step ~1 200 (900 to 1 800), 85 % likely within …``."""
    step, low, high, most = (f"{row[name]:,}".replace(",", " ") for name in ("iterations", "low", "high", "maximum"))
    likely = f"{row['probability'] * 100:.0f} % likely within the maximum of {most}"
    return f"to reach {row['metric']} {row['target']:g} at step ~{step} ({low} to {high}), {likely}"


def serving(row: Mapping[str, Any]) -> str:
    """Since when a job serves, how many requests it has answered, and its newest minute: from the query ``api/serving``."""
    if not row["answers"]:
        return "loads its model, and answers nobody yet"
    words = f"serves since {clock(row['since'])}, {counted(row['answered'], 'request')} answered"
    if row["p50"] is not None:
        times = ", ".join(f"{name} {1000 * row[name]:.3g} ms" for name in ("p50", "p95", "p99"))
        words += f"; at {clock(row['minute'])[-8:-3]} {times} of {row['requests']}"
    return words + "".join(
        f", {row[name]} {what}" for name, what in (("refused", "refused"), ("errors", "answered with an error")) if row[name]
    )


def shared_input(row: Mapping[str, Any]) -> str:
    """The jobs with which a job shares its input, and the savings: from the query ``api/shared_input``."""
    beside = f"with {counted(len(row['beside']), 'job')} here ({', '.join(map(str, row['beside'][:8]))})" if row["beside"] else "alone now"
    words = f"{row['input']}, {beside}"
    if row["made"] is None:
        return words
    again = f" ({row['again']} again)" if row["again"] else ""
    saved = f", {size(row['bytes'])}, {duration(row['saved'])} saved" if row["found"] else ""
    return f"{words}: {row['made']:,} batches made{again}, {row['found']} found{saved}"


def replicas(row: Mapping[str, Any]) -> str:
    """How many of a group of replicas train, its progress and losses: from the query ``api/replicas``."""
    words = f"{row['training']} of {row['least']} to {row['most']} train"
    silent = row["silent"]
    if waiting := row["leases"] - row["training"] - len(silent):
        words += f", {waiting} more {'has a GPU and waits' if waiting == 1 else 'have GPUs and wait'}"
    if silent:
        nodes = list(dict.fromkeys(silent))
        words += f", {len(silent)} on {', '.join(nodes)} {'is' if len(silent) == 1 else 'are'} not heard and not begun elsewhere, "
        words += f"unless 'stoker runner forget {nodes[0]}' or runners.fence_after says that nothing runs there"
    words += f"; {row['samples']:,} samples committed in steps of {row['global_batch']}"
    return words + (f"; {duration(row['lost'])} lost in {counted(row['gaps'], 'gap')}" if row["gaps"] else "")


def local(ts: float) -> datetime:
    """Local time; for a time outside the range of dates, which an older daemon may have stored, the nearest date."""
    return datetime.fromtimestamp(min(max(ts, EARLIEST), LATEST)).astimezone()


def clock(ts: float | None) -> str:
    """Local time to the second."""
    return MISSING if ts is None else local(ts).strftime("%Y-%m-%d %H:%M:%S")


def moment(ts: float | None, now: float) -> str:
    """Local time, and how far it is from now."""
    return MISSING if ts is None else f"{clock(ts)} ({relative(ts, now)})"


def size(count: float | None) -> str:
    """Bytes with a binary unit, three digits."""
    if count is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def number(value: float | None, digits: int = 4) -> str:
    """A measured value with at least so many significant digits: ``0.01234``, ``2462``, ``18,520``."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LARGEST else f"{value:.{digits}g}"


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2,462 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{share * 100:.0f}%"


def bar(share: float | None, width: int) -> str:
    """A progress bar in eighths of a character."""
    if share is None:
        return " " * width
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_PARTS[part] if part else "")).ljust(width)


#: characters that move a cursor, colour, or reverse the writing: C0 and C1 without tabs and line ends, DEL, bidirectional controls
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def harmless(text: str) -> str:
    """Text of several lines without characters that would control the terminal."""
    return _STEERING.sub("�", text)


def harmless_json(text: str) -> str:
    """The same for JSON: these characters are escaped, so nothing is lost."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean(text: str) -> str:
    """Text without colour codes and control characters: a job's name or message must not control the terminal."""
    return "".join(char if char.isprintable() else "�" for char in colourless(text).replace("\n", " ").replace("\t", " "))


def plain(value: Any) -> str:
    """Any value of a table cell."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(number(value) if isinstance(value, float) else str(value))
