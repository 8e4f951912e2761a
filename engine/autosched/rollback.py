"""Whether a configuration that was put in force has kept what was predicted of it.

The jobs that were at hand when it was applied take so much of the period that follows: each until it ends, or all of it. The trial of the
configuration before said how much that would have been without the change. Jobs that come later play no part, as the arrivals that were
expected need not have come.
"""

from __future__ import annotations

HARM = 0.9  #: measured gain under which it is taken back; less is within the error of predicted durations


def measured_gain(expected: float, taken: float | None) -> float | None:
    """Expected without the change over taken; None: there was nothing to measure."""
    return expected / taken if taken and expected > 0 else None


def has_harmed(gain: float) -> bool:
    return gain < HARM
