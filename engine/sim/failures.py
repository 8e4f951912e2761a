"""Jobs that always fail before they save anything, so that the run never ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

_IN_VAIN = 10_000  #: failures of a job since it last saved any work after which it counts as endless
_ROUNDING = 1e-6  #: seconds by which the work left may fall by rounding


class Failures:
    """Counts the failures of each job in which it got no further."""

    def __init__(self, key: Sequence[str], *, until: float | None) -> None:
        """``key``: the jobs' names. A run with an end ``until`` needs no such check."""
        self._key, self._endless = key, until is None
        self._seen: dict[int, tuple[float, int]] = {}  #: least work left after a failure, and failures since, by job

    def hopeless(self, job: int, left: float) -> str:
        """Count a failure of a job with so much work left; returns why it will never end, or "" if it may."""
        least, failures = self._seen.get(job, (math.inf, 0))
        self._seen[job] = (left, 1) if left < least - _ROUNDING else (least, failures + 1)
        if failures < _IN_VAIN or not self._endless:
            return ""
        return (
            f"job {self._key[job]!r} never ends: it has failed {failures} times since it last saved any work; give a shorter "
            "--checkpoint-interval or fewer --failures-per-gpu-hour, or a moment to stop with --until"
        )
