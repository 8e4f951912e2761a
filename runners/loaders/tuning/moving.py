"""Threads or processes: a stage whose threads wait for the interpreter's lock is tried in processes, and taken back if that was no gain.

Threads share one lock with one another and with the training, so a stage that computes in Python slows both, while cores are idle.
Processes do not; but each item has to be sent to them and back, and their start costs seconds of CPU. So a stage is moved if, for some
windows,

* there is more than one core, and not all of them are busy all the time;
* its threads wait for the lock, or it is held so much that the training must be waiting for it;
* it computes more than it waits for anything else: threads are right for a stage that waits;
* the possible throughput, by the CPU time of all stages, of the training and of sending, is clearly above the present one.

The share of the CPU time that holds the lock is not known, so that is only an upper bound for the gain. Hence the trial: once the
processes are there (the threads work until then), the throughput must have risen by `MEASURED_GAIN`. That is judged as soon as it is
sure, by a test of the windows before and since (for twice the throughput after two or three windows); else after `STEADY_WINDOWS`, by
their mean. If it has not risen, the stage goes back, and waits long before the next trial, each time twice as long. It never goes back
for another reason: an idle process costs only memory.
A resize meanwhile does not end the trial: on fewer cores threads that kept them busy would have done less in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .controller import Decision, Observation, StageReading, Values
from .costs import worker_knobs
from .gains import Gain, gain

ASKING_WINDOWS = 2  #: windows that must ask for it together
ASKING_SECONDS = 1.0  #: seconds that these take at least: in a shorter time there are few looks at the lock
LOOKED_AT = 6  #: most windows judged together
LOCK_WAIT_SHARE = 0.1  #: least share of a stage's working time, spent waiting for a lock, for a move
BUSY_TIME_SHARE = 0.6  #: share of the time without a free core from which on processes would have none either
LOCK_HELD_SHARE = 0.2  #: share of the time in which the lock is taken from which on the training must be waiting for it
PROMISED_GAIN = 1.15  #: times the throughput that must be possible
MEASURED_GAIN = 1.05  #: times the throughput that must be reached
STEADY_WINDOWS = 6  #: windows of steady values after which a move is judged by their mean, if the test was not sure before
WINDOWS_AT_MOST = 24  #: windows after which it is judged however often the values change
START_SECONDS_AT_MOST = 90.0  #: seconds that processes may take to start
REST_WINDOWS = 200  #: windows until a stage that came back is tried again; twice as many each time
CORES_FACTOR_TO_RETRY = 1.5  #: times the cores, with which it may be tried again at once

SENDING_SECONDS = 200e-6  #: seconds of CPU time of one message to a process and its answer: 130 to 260 µs measured
COPYING_SECONDS_PER_BYTE = 1e-9  #: seconds of CPU time for each byte of either
OWN_PROCESS_SHARE = 0.5  #: share of these two spent in this process, under its lock


@dataclass(slots=True)
class _Trial:
    """A stage that has been moved to processes."""

    stage: str
    before: list[float]  #: samples a second, of each window
    cpus: float
    busy: float  #: cores that were kept busy
    values: Values  #: that there were
    whole: float  #: time of the move or, later, of the last moment with all processes, by the observations' clock
    lived: int = 0  #: windows since all processes were there
    last: tuple[int, ...] = ()
    since: list[float] = field(default_factory=list)  #: samples a second of each window since the values have last changed

    def gain(self) -> Gain:
        """Gain over the most that threads would reach on the present cores."""
        part = min(1.0, self.cpus / self.busy) if self.busy > 0 else 1.0
        return gain([rate * part for rate in self.before], self.since)


@dataclass(slots=True)
class _Barred:
    windows: int
    cpus: float
    times: int = 1


class Moving:
    """The moves of one pipeline; gets every window."""

    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._barred: dict[str, _Barred] = {}
        self._windows: list[Observation] = []  # the last, with the same workers
        self.likely = ""  #: the stage that a window asked to be moved; "" where none did

    @property
    def trial(self) -> str:
        """The stage on trial; "" for none."""
        return "" if self._trial is None else self._trial.stage

    @property
    def presses(self) -> bool:
        """Whether a decision on a move is due soon."""
        return self._trial is not None or bool(self.likely)

    def overdue(self, seen: Observation) -> Decision | None:
        """Back to threads if processes do not start."""
        trial = self._trial
        if trial is None or seen.at - trial.whole < START_SECONDS_AT_MOST or not _reading(seen, trial.stage).starting:
            return None
        return self._back(seen, trial, f"its processes have not started within {START_SECONDS_AT_MOST:.0f} s")

    def judged(self, seen: Observation) -> Decision | None:
        """The verdict on the stage on trial, in a window in which no workers are starting; None: the trial goes on, or there is none."""
        trial = self._trial
        if trial is None:
            return None
        reading = _reading(seen, trial.stage)
        if not reading.processes:
            return self._not_moved(seen, trial, reading)
        if seen.cpus != trial.cpus:
            trial.cpus = seen.cpus
            if reading.starting and seen.cpus <= 1.0:
                return self._back(seen, trial, "one core is left, and its processes are not there yet")
            trial.lived, trial.since = 0, []
            return None
        trial.lived += 1
        trial.whole = seen.at
        if (workers := _workers(seen)) != trial.last:
            trial.last, trial.since = workers, []
        trial.since.append(seen.throughput)
        low, brought, high = trial.gain()
        if low < MEASURED_GAIN - 1.0 <= high and len(trial.since) < STEADY_WINDOWS and trial.lived < WINDOWS_AT_MOST:
            return None
        if brought < MEASURED_GAIN - 1.0:
            return self._back(seen, trial, f"processes brought {brought:+.0%}")
        self._trial = None
        self._barred.pop(trial.stage, None)
        return Decision(seen.values, f"{trial.stage} stays in processes: they brought {brought:+.0%}")

    def proposed(self, seen: Observation) -> Decision | None:
        """A stage to move, once enough windows have asked for it."""
        self._barred = {name: replace(each, windows=each.windows - 1) for name, each in self._barred.items()}
        self.likely = ""
        if self._trial is not None:
            return None
        if seen.resized or (self._windows and _workers(seen) != _workers(self._windows[-1])):
            self._windows = []
        if seen.resized:
            return None
        self._windows = [*self._windows[1 - LOOKED_AT :], seen]
        together = pooled(self._windows)
        found = max(self._candidates(together), key=lambda candidate: candidate[1], default=None)
        if found is None:
            return None
        self.likely = found[0]
        return self._moved(together, *found) if len(self._windows) >= ASKING_WINDOWS and together.window >= ASKING_SECONDS else None

    # -- to processes

    def _candidates(self, seen: Observation) -> list[tuple[str, float]]:
        """Stages that may do more in processes, and for each the most times the present throughput."""
        if seen.cpus <= 1.0 or seen.crowded >= BUSY_TIME_SHARE or not seen.throughput > 0:
            return []
        knobs = worker_knobs(seen)
        found = [
            (reading.name, self._promise(seen, reading)) for reading in seen.stages if reading.name in knobs and self._may(reading, seen)
        ]
        return [(name, promise) for name, promise in found if promise >= PROMISED_GAIN]

    def _may(self, reading: StageReading, seen: Observation) -> bool:
        barred = self._barred.get(reading.name)
        if barred is not None and barred.windows > 0 and seen.cpus < CORES_FACTOR_TO_RETRY * barred.cpus:
            return False
        if reading.processes or not reading.movable or not reading.parallel or not reading.items:
            return False
        waits_otherwise = reading.wait - reading.lock
        return waits_otherwise <= reading.cpu and (locked(reading) >= LOCK_WAIT_SHARE or seen.lock >= LOCK_HELD_SHARE)

    def _promise(self, seen: Observation, moved: StageReading) -> float:
        """The possible throughput with a stage in processes, as a multiple of the present one."""
        rate = seen.throughput / seen.batch_size
        training = seen.consumer_cpu / rate
        computing = sum(_computing(reading) for reading in seen.stages)
        sending = _sending(seen, moved)
        here = training + sum(_computing(reading) for reading in seen.stages if not reading.processes)
        left = here - _computing(moved) + OWN_PROCESS_SHARE * sending
        in_order = max((_computing(reading) for reading in seen.stages if not reading.parallel), default=0.0)
        used = min(seen.cpus, seen.cpu_used + seen.consumer_cpu)
        cores = used + (1.0 - seen.crowded) * (seen.cpus - used)  # other processes keep some of our unused cores busy
        possible = min(
            cores / (computing + training + sending),
            rate * here / left,  # the lock lets through as much computing in this process as now
            1.0 / in_order if in_order > 0 else math.inf,
            max(seen.demand / seen.batch_size, 1.0 / training if training > 0 else math.inf),
        )
        return possible / rate

    def _moved(self, seen: Observation, name: str, promise: float) -> Decision:
        reading = _reading(seen, name)
        busy = min(seen.cpus, seen.cpu_used + seen.consumer_cpu)
        self._trial = _Trial(name, [each.throughput for each in self._windows], seen.cpus, busy, seen.values, seen.at)
        self._windows, self.likely = [], ""
        place = worker_knobs(seen)[name]
        needed = promise * seen.throughput / seen.batch_size * (_computing(reading) + _sending(seen, reading))
        count = seen.knobs[place].clip(min(math.ceil(needed), math.floor(seen.cpus)))
        values = (*seen.values[:place], count, *seen.values[place + 1 :])
        kinds = f"{count} process{'es' * (count != 1)}"
        whose = f"threads wait {locked(reading):.0%} of their time for the interpreter's lock"
        if locked(reading) < LOCK_WAIT_SHARE:
            whose = f"the interpreter's lock is held {seen.lock:.0%} of the time, which keeps the training waiting"
        return Decision(values, f"{name}: {whose}: moved to {kinds}, which may do up to {promise:.1f} times as much", {name: True})

    # -- and back

    def _not_moved(self, seen: Observation, trial: _Trial, reading: StageReading) -> Decision | None:
        """The move was asked for, and refused or given up."""
        self._trial = None
        self._bar(trial.stage, seen)
        return Decision(seen.values, f"{trial.stage} stays in threads: {reading.stays}") if reading.stays else None

    def _back(self, seen: Observation, trial: _Trial, why: str) -> Decision:
        self._trial = None
        self._bar(trial.stage, seen)
        place = worker_knobs(seen).get(trial.stage)
        values = seen.values
        if place is not None:
            values = (*values[:place], seen.knobs[place].clip(trial.values[place]), *values[place + 1 :])
        return Decision(values, f"{trial.stage} moved back to threads: {why}", {trial.stage: False})

    def _bar(self, stage: str, seen: Observation) -> None:
        times = self._barred[stage].times + 1 if stage in self._barred else 1
        self._barred[stage] = _Barred(REST_WINDOWS * 2 ** (times - 1), seen.cpus, times)


def _computing(reading: StageReading) -> float:
    """Seconds of CPU time for a batch of the output."""
    return 0.0 if math.isnan(reading.cpu) else reading.cpu * reading.per_batch


def locked(reading: StageReading) -> float:
    """Share of its threads' time in the function spent waiting for a lock."""
    took = reading.cpu + reading.wait
    return reading.lock / took if took > 0 else 0.0


def pooled(windows: Sequence[Observation]) -> Observation:
    """Windows as one, since each has few looks at the lock. Values and counts are those of the last one."""
    last, span = windows[-1], sum(each.window for each in windows)

    def mean(of: Callable[[Observation], float]) -> float:
        return sum(of(each) * each.window for each in windows) / span

    return replace(
        last,
        window=span,
        stages=tuple(_pooled([each.stages[place] for each in windows]) for place in range(len(last.stages))),
        throughput=mean(lambda each: each.throughput),
        cpu_used=mean(lambda each: each.cpu_used),
        consumer_cpu=mean(lambda each: each.consumer_cpu),
        lock=mean(lambda each: each.lock),
        crowded=mean(lambda each: each.crowded),
    )


def _pooled(readings: Sequence[StageReading]) -> StageReading:
    last, working = readings[-1], [reading for reading in readings if reading.items]
    items = sum(reading.items for reading in working)
    if not items:
        return last

    def mean(of: Callable[[StageReading], float]) -> float:
        return sum(of(each) * each.items for each in working) / items

    return replace(last, items=items, cpu=mean(lambda each: each.cpu), wait=mean(lambda each: each.wait), lock=mean(lambda each: each.lock))


def _workers(seen: Observation) -> tuple[int, ...]:
    return tuple(reading.workers for reading in seen.stages)


def _reading(seen: Observation, name: str) -> StageReading:
    return next(reading for reading in seen.stages if reading.name == name)


def _sending(seen: Observation, reading: StageReading) -> float:
    """Seconds of CPU time to send the items of a batch to processes and back."""
    copied = COPYING_SECONDS_PER_BYTE * (reading.item_bytes + _input_bytes(seen, reading))
    return reading.per_batch * (SENDING_SECONDS / reading.together + copied)


def _input_bytes(seen: Observation, reading: StageReading) -> float:
    """Bytes of the input for one item of a stage."""
    before: StageReading | None = None
    for each in seen.stages:
        if each is reading:
            break
        before = each
    if before is None or math.isnan(before.item_bytes):
        return 0.0
    return before.item_bytes * before.per_batch / reading.per_batch
