"""The time line of a swapped step as text: the work of each stream, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 72  #: columns of a time line
_DIGITS = "123456789abcdefghijklmnopqrstuvwxyz"
_STREAMS = ("load", "compute", "out")


def draw(timeline: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """A line for each stream, with the number of the part at work, and a line for the direction."""
    wide = max(map(len, _STREAMS))
    lines = []
    for stream in _STREAMS:
        busy = [act for act in timeline if act["stream"] == stream]
        lines.append(f"{stream:<{wide}}  {_line(busy, seconds, lambda act: _digit(act['part']))}")
    computing = [act for act in timeline if act["stream"] == "compute"]
    lines.append(f"{'':<{wide}}  {_line(computing, seconds, lambda act: '<' if act['direction'] != 'forward' else '>')}")
    return "\n".join([*lines, "numbers: parts (10 is a); > forward, < backward, the last part both; . idle", ""])


def _digit(part: int) -> str:
    return _DIGITS[part] if part < len(_DIGITS) else "+"


def _line(acts: Sequence[Mapping[str, Any]], seconds: float, sign: Any) -> str:
    """Each column shows the act with most of its time; an act too short for a column shows where no other is."""
    step = seconds / WIDTH if seconds else 1.0
    line = []
    for column in range(WIDTH):
        begin, end = column * step, (column + 1) * step
        shares = [(min(act["end"], end) - max(act["begin"], begin), act) for act in acts]
        most, act = max(shares, key=lambda share: share[0], default=(0.0, None))
        line.append(sign(act) if most > 0 and act is not None else ".")
    return "".join(line).rstrip()
