"""Tables beside a trace, for formats without durations or throughputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Throughputs:
    """Steps a second by job type and GPUs, of one kind of GPU."""

    path: Path
    worker: str
    rates: Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class DurationTable:
    """Seconds, by the columns of the table."""

    path: Path
    columns: tuple[str, ...]
    seconds: Mapping[tuple[str, ...], float]
