"""Chronus: UniSched without its estimator and its joint optimisation (002 ch. 5.6.3; Gao et al., SoCC 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract import tunable
from ..unisched.settings import CONSOLIDATED, ESTIMATED, JOINT, MAXIMUM, SRTF, STATIC, UNIFIED, UniSchedConfig
from ..unisched.unisched import UniSched


class Chronus(UniSched):
    """Deadlines by an integer program over leases; remaining GPUs by the shortest remaining time; profiling on GPUs of its own.

    The three kinds of jobs are handled apart: profiling runs have a fixed part of the pool; the program chooses jobs with deadlines, only
    on as few nodes as possible; best-effort jobs, and jobs that have lost their deadlines, take the remaining GPUs, the shortest remaining
    time first. A job that stops at a metric is assumed to run to its maximum of iterations, and suspensions to be free. So it is UniSched
    with other settings, and the two hybrids of 5.6.3 are Chronus with some of them set back: with the Estimator
    ``iterations=estimated resumption_aware=true caution=2``, with the Selector
    ``placement=joint best_effort=joint profiler=unified late=0.01``.
    """

    @dataclass(frozen=True)
    class Config(UniSchedConfig):
        placement: str = tunable(CONSOLIDATED, "as in unisched", choices=(JOINT, CONSOLIDATED))
        best_effort: str = tunable(SRTF, "as in unisched", choices=(JOINT, SRTF))
        profiler: str = tunable(STATIC, "as in unisched", choices=(UNIFIED, STATIC))
        iterations: str = tunable(MAXIMUM, "as in unisched", choices=(ESTIMATED, MAXIMUM))
        resumption_aware: bool = tunable(False, "as in unisched")
        caution: float = tunable(0.0, "as in unisched", low=0.0, high=10.0)
        late: float = tunable(1.0, "as in unisched", low=0.0, high=1.0)

    name: ClassVar[str] = "chronus"
