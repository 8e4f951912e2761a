"""Careful growth: in steps, each only after the last workers have started, and taken back if the pipeline became slower.

A worker process costs seconds of CPU to start, on the cores that the pipeline and the training need. Measurements meanwhile show neither
the later speed of the workers nor the consumer's demand: a controller that trusted them would shrink, grow again, and never settle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .controller import Observation, StageReading, Values
from .costs import worker_knobs

PROCESS_GROWTH_FACTOR = 2  #: times the processes of a stage, in one step
THREADS, THREADS_AT_ONCE = 4, 16  #: times its threads, or so many if that is more: they start at once
FALL_SHARE = 0.1  #: loss, as a share of the throughput, from which on it has fallen
REMEMBERED = 40  #: windows for which a stage does not grow again to a size that made the pipeline slower
FALL_WINDOWS = 2  #: windows that must show it: one may be an outlier
BUSY_CORES_SHARE = 0.5  #: share of our unused cores that others keep busy, from which on they may cause a fall of the throughput


@dataclass(slots=True)
class _Grown:
    """The last growth, while it is on trial."""

    before: Observation
    fallen: int = 0  #: windows in a row that were slower


@dataclass(slots=True)
class Growth:
    """The growth of one pipeline; gets every window."""

    ceilings: dict[str, tuple[int, int]] = field(default_factory=dict)  #: a stage's limit of workers, and the windows for which it holds
    _trial: _Grown | None = None
    _unsettled: bool = False  #: workers were starting in the last window

    def waits_for(self, seen: Observation) -> str:
        """The workers, in words, that are still starting or have just started, so that the window does not show their effect."""
        starting = [reading for reading in seen.stages if reading.starting]
        before, self._unsettled = self._unsettled, bool(starting)
        if starting:
            return ", ".join(f"{reading.starting} of {reading.name}" for reading in starting) + " still starting"
        return "workers have just started" if before else ""

    def steps(self, seen: Observation, wanted: Values) -> Values:
        """The wanted values, or one step towards them."""
        stages = {reading.name: reading for reading in seen.stages}
        values = list(wanted)
        for name, place in worker_knobs(seen).items():
            values[place] = min(values[place], max(seen.values[place], _most_at_once(stages[name])))
        if any(values[place] > seen.values[place] for place in worker_knobs(seen).values()):
            self._trial = _Grown(seen)
        return tuple(values)

    def taken_back(self, seen: Observation, scatter: float, *, changed: bool) -> tuple[Values, str] | None:
        """The values before a growth that made the pipeline slower; the present ones while in doubt; None: no loss.

        Args:
            scatter: standard deviation of a window's throughput, as a share of it.
            changed: a cost has changed, which explains the throughput.
        """
        self.ceilings = {name: (most, left - 1) for name, (most, left) in self.ceilings.items() if left > 1}
        trial = self._trial
        if trial is None or changed or seen.resized or seen.values == trial.before.values:
            self._trial = None
            return None
        lost = _lost(trial.before, seen)
        if lost < max(FALL_SHARE, 2.0 * scatter) or seen.throughput >= (1.0 - FALL_SHARE) * seen.demand:
            self._trial = None
            return None
        trial.fallen += 1
        if trial.fallen < FALL_WINDOWS:
            return seen.values, f"{lost:.0%} slower since it grew; another window will tell"
        self._trial = None
        values = list(seen.values)
        for name, place in worker_knobs(seen).items():
            if values[place] > trial.before.values[place]:
                values[place] = trial.before.values[place]
                self.ceilings[name] = values[place], REMEMBERED
        return tuple(values), f"growth taken back: it was {lost:.0%} slower"


def _lost(before: Observation, seen: Observation) -> float:
    """The lost share of the throughput. If other processes take cores, the throughput per core that we get counts."""
    if not before.throughput > 0:
        return 0.0
    lost = 1.0 - seen.throughput / before.throughput
    had, has = (each.cpu_used + each.consumer_cpu for each in (before, seen))
    if max(before.crowded, seen.crowded) >= BUSY_CORES_SHARE and has > 0:
        lost = min(lost, 1.0 - seen.throughput / before.throughput * had / has)
    return lost


def _most_at_once(reading: StageReading) -> int:
    if reading.starting:
        return 0
    if reading.processes:
        return PROCESS_GROWTH_FACTOR * reading.workers
    return max(THREADS_AT_ONCE, THREADS * reading.workers)
