"""Durations, memory sizes and times in their written forms, and back. Errors are ValueErrors that name the accepted forms."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

LONGEST_DURATION = 100 * 365 * 86_400.0  #: a hundred years: longer is a slip, and would leave the range of dates
LARGEST_SIZE = 1 << 50  #: 1 PiB
#: the beginnings of the years 2 and 9999: between them every moment is a date in every time zone
EARLIEST, LATEST = -62_104_060_800.0, 253_370_764_800.0

_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|[wdhms])", re.ASCII)
_BYTES = {"": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate(("k", "m", "g", "t"), start=1)
    for suffix, base in (("", 1024), ("i", 1024), ("ib", 1024), ("b", 1000))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)

DURATION_FORMS = "a duration such as 30, 90s, 10m, 1h30m or 2d"
SIZE_FORMS = "a size such as 8GiB, 500MiB or a number of bytes"
_TIME_OF_DAY = re.compile(r"\s*([01]?\d|2[0-3]):([0-5]\d)\s*", re.ASCII)
TIME_FORMS = "a duration such as 2h, or a time such as 2030-01-31T18:00 (local) or 2030-01-31T18:00Z"
MOMENT_FORMS = "a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z"


def duration(value: str | float) -> float:
    """Seconds of ``30``, ``"90s"``, ``"1h30m"``, ``"2d"``; units must fall, so that ``"30m1h"`` is seen as the slip it is."""
    if isinstance(value, (int, float)):
        seconds = _seconds(value)
    elif re.fullmatch(r"\s*\d+(\.\d+)?\s*", value, re.ASCII):
        seconds = float(value)
    else:
        seconds = _sum(value)
    if not 0 <= seconds <= LONGEST_DURATION:
        raise ValueError(f"must be between 0 and 100 years, not {value!r}")
    return round(seconds, 3)


def _seconds(value: float) -> float:
    try:
        return float(value) if math.isfinite(value) else -1.0
    except OverflowError:  # an int beyond the floats
        return math.inf


def _sum(text: str) -> float:
    total, end, last = 0.0, 0, math.inf
    while match := _DURATION.match(text, end):
        unit = _SECONDS[match[2]]
        if unit >= last:
            break
        total, end, last = total + float(match[1]) * unit, match.end(), unit
    if end == 0 or text[end:].strip():
        raise ValueError(f"must be {DURATION_FORMS}, not {text!r}")
    return total


def format_duration(seconds: float) -> str:
    """The shortest text that `duration` reads as the same number."""
    milliseconds, parts = round(seconds * 1000), []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def size(value: str | int) -> int:
    """Bytes of ``"8GiB"``, ``"8G"`` (the same), ``"8GB"`` (decimal) or a plain number."""
    if isinstance(value, int):
        count = value
    else:
        match = _SIZE.fullmatch(value)
        if match is None or match[2].lower() not in _BYTES | {"b": 1}:
            raise ValueError(f"must be {SIZE_FORMS}, not {value!r}")
        number = float(match[1])
        count = LARGEST_SIZE + 1 if math.isinf(number) else round(number * _BYTES.get(match[2].lower(), 1))
    if not 0 <= count <= LARGEST_SIZE:
        raise ValueError(f"must be between 0 and 1 PiB, not {value!r}")
    return count


def format_size(count: int) -> str:
    """The shortest text that `size` reads as the same number."""
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << power) == 0:
            return f"{count >> power}{name}"
    return str(count)


def moment(value: str | float, now: float) -> float:
    """A point in time: a duration from ``now`` on, the next ``18:30``, or an ISO time. Times without a zone are local."""
    if isinstance(value, (int, float)) or _DURATION.match(value) or value.strip().isdecimal():
        return round(now + duration(value), 3)
    if time_of_day := _TIME_OF_DAY.fullmatch(value):
        return _next(int(time_of_day[1]), int(time_of_day[2]), now)
    return clock(value, MOMENT_FORMS)


def _next(hour: int, minute: int, now: float) -> float:
    """The first moment after ``now`` at which local clocks show this time of day."""
    local = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)  # without a zone it is read by the rules of each day
    today = local.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
    # When clocks are put back an hour comes twice, and fold=1 is its second time.
    when, day = next((day.timestamp(), day) for day in (today, today.replace(fold=1), today + timedelta(days=1)) if day.timestamp() > now)
    _require_local(day)
    return when


def _require_local(local: datetime) -> None:
    """ValueError of a local time that clocks skip when they are put forward."""
    if datetime.fromtimestamp(local.timestamp(), UTC).astimezone().replace(tzinfo=None) != local.replace(fold=0):
        raise ValueError(
            f"{local:%Y-%m-%d %H:%M} does not exist: clocks are put forward then; give a time before or after, or UTC with a Z"
        )


def is_relative(value: str | float) -> bool:
    """Whether `moment` would count ``value`` from now on."""
    return isinstance(value, (int, float)) or bool(_DURATION.match(value)) or value.strip().isdecimal()


def clock(text: str, forms: str = TIME_FORMS) -> float:
    """Seconds since the epoch of an ISO time with a time of day; without an offset it is local time."""
    # A date alone is refused: it could mean the day's beginning or its end, a day apart.
    if not re.match(r"\d{4}-\d{2}-\d{2}[T ]\d{2}", text.strip(), re.ASCII):
        raise ValueError(f"must be {forms}, not {text!r}")
    try:
        given = datetime.fromisoformat(text.strip())
        ts = round(given.astimezone(UTC).timestamp(), 3)
        again = given.replace(fold=1).astimezone(UTC).timestamp() if given.tzinfo is None else ts
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"must be {forms}, not {text!r}") from None
    if given.tzinfo is None:
        _require_local(given)
        if round(again, 3) != ts:
            raise ValueError(f"{text!r} comes twice, as clocks are put back then: give it with an offset, or UTC with a Z")
    return ts
