"""Jobs that fail sooner than they ever save anything, which keep a run from its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

_IN_VAIN = 10_000  #: failures of a job since it last saved any work, after which it is taken never to end
_ROUNDING = 1e-6  #: seconds of work by which what is left may fall for the last digits of sums of times


class Failures:
    """Counts the failures of each job in which it got no further."""

    def __init__(self, key: Sequence[str], *, until: float | None) -> None:
        """``key``: the jobs' names; a run that stops ``until`` some moment ends whatever fails."""
        self._key, self._endless = key, until is None
        self._seen: dict[int, tuple[float, int]] = {}  #: least work left after a failure, and failures since, by job

    def hopeless(self, job: int, left: float) -> str:
        """Count a failure after which a job has so much work left; why it will never end, empty: it may."""
        least, failures = self._seen.get(job, (math.inf, 0))
        self._seen[job] = (left, 1) if left < least - _ROUNDING else (least, failures + 1)
        if failures < _IN_VAIN or not self._endless:
            return ""
        return (
            f"job {self._key[job]!r} never ends: it has failed {failures} times since it last saved any work; give a shorter "
            "--checkpoint-interval or fewer --failures-per-gpu-hour, or a moment to stop with --until"
        )
