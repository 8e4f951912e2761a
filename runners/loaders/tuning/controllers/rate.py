"""The closed form: each stage gets the workers for its measured cost, at the rate that the rest of the machine allows.

The rate is the least of three: the consumer's demand (more would cost memory, and cores that the trainer needs), the rate at which the
cores can compute all stages and the training together, and the limit of a stage that is serial or whose workers crowd one another. The
workers are the least that reach it (`allocation`), so a stage that waits for a disk gets many workers without being given cores.

A lock shows by its effect: the more threads wait for the interpreter's lock, the longer each waits, so the cost of a stage grows with
its workers. That growth is fitted (`costs`), and a stage gets no more workers than still help; the reason says so. If cores are idle
meanwhile, the stage is tried in processes (`moving`). If the pipeline is still slower than predicted, other processes use the cores, and
fewer workers would not help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..allocation import Load, attainable, fewest
from ..controller import Decision, Observation, StageReading, Values, in_cores
from ..controller_options import tunable
from ..costs import MIB, Costs, Smoothed, memory_knobs, with_workers
from ..growth import Growth
from ..moving import Moving

HAS_INPUT = 0.15  #: a stage starved for less than this share of its workers' time has enough input
PROCESS_PATIENCE_FACTOR = 3  #: times the patience before processes are taken away: starting one again costs seconds of CPU
BUFFERED_BATCHES = range(2, 65)  #: batches that a prefetch buffer may hold


@dataclass(frozen=True, slots=True)
class RateOptions:
    headroom: float = tunable(0.05, "share above the target rate for which stages are sized, as items are uneven", low=0.0, high=1.0)
    lead: float = tunable(0.1, "share above the consumer's demand, so that its buffer fills", low=0.0, high=1.0)
    gain: float = tunable(0.03, "least predicted gain in throughput for which values are changed", low=0.0, high=1.0)
    waste: float = tunable(0.15, "share of superfluous workers from which on they are taken away", low=0.0, high=1.0)
    patience: int = tunable(3, "windows that workers are superfluous before they are taken away", low=1, high=1000)
    weight: float = tunable(0.3, "of the newest window in a cost", low=0.01, high=1.0)
    surprise: float = tunable(0.25, "relative change of a cost, twice in a row, that makes it forget the old one", low=0.01, high=10.0)
    plateau: float = tunable(0.05, "share of the rate given up if a stage's workers crowd one another", low=0.0, high=0.5)


class Rate:
    """Workers in proportion to measured cost: the least that reach the limit of the cores, the consumer and locks."""

    name: ClassVar[str] = "rate"
    Options: ClassVar[type[RateOptions]] = RateOptions

    def __init__(self, options: RateOptions) -> None:
        self.options = options
        self._forget()
        self._kinds: list[bool] = []
        self._moving = Moving()
        self._scatter = 0.0  # standard deviation of a window's throughput while nothing changes, as a share of it
        self._before: Observation | None = None
        self._superfluous = 0
        self._idle_windows = 0

    def _forget(self) -> None:
        """Drop the measurements: they were of other workers."""
        self._costs = Costs(self.options.weight, self.options.surprise)
        self._demand = Smoothed(self.options.weight, self.options.surprise)
        self._training = Smoothed(self.options.weight, self.options.surprise)  # seconds of CPU time of a batch
        self._growth = Growth()

    def decide(self, seen: Observation) -> Decision:
        wanted = self._decided(seen)
        return replace(wanted, soon=self._moving.presses, likely=self._moving.likely)

    def _decided(self, seen: Observation) -> Decision:
        if kept := self._moving.overdue(seen):
            return kept
        if (waits := self._growth.waits_for(seen)) and not seen.resized:
            return Decision(seen.values, f"no change: {waits}")
        if (kinds := [reading.processes for reading in seen.stages]) != self._kinds:
            self._kinds, self._before = kinds, None
            self._forget()
        if judged := self._moving.judged(seen):
            return judged
        changed = self._costs.see(seen)
        if len(self._costs.unknown(seen)) == len(seen.stages):
            return self._slow_start(seen)
        if math.isfinite(seen.demand) and seen.demand > 0:
            self._demand.see(seen.demand / seen.batch_size)
        if seen.throughput > 0:
            self._training.see(seen.consumer_cpu * seen.batch_size / seen.throughput)
        if slower := self._growth.taken_back(seen, self._scatter, changed=bool(changed)):
            self._before = seen
            return Decision(*slower)
        self._see_scatter(seen)
        loads = self._loads(seen)
        rate, limit = self._target(seen, loads)
        wanted = self._wanted(seen, loads, rate)
        settled = self._settled(seen, loads, wanted, rate, limit, changed)
        moved = self._moving.proposed(seen)
        return moved or self._held(seen, settled)

    def _held(self, seen: Observation, settled: Decision) -> Decision:
        """A stage that may do more in processes, with a computing thread for each core, gets no more threads before that trial."""
        likely = next((reading for reading in seen.stages if reading.name == self._moving.likely), None)
        if likely is None or likely.workers < math.floor(seen.cpus) or settled.values == seen.values:
            return settled
        return Decision(_buffers_only(seen, settled.values), f"another window will tell whether {likely.name} is better off in processes")

    def _see_scatter(self, seen: Observation) -> None:
        before, self._before = self._before, seen
        if before is None or before.values != seen.values or seen.resized or not min(before.throughput, seen.throughput) > 0:
            return
        step = min(1.0, abs(seen.throughput / before.throughput - 1.0))
        self._scatter += self.options.weight * (step * math.sqrt(math.pi) / 2.0 - self._scatter)  # of two normal values E|a − b| = 2σ/√π

    def _slow_start(self, seen: Observation) -> Decision:
        """No item has finished, so no cost is known: the workers double, up to the cores, at the stages that have work."""
        self._idle_windows += 1
        stuck = [reading for reading in seen.stages if reading.starved < HAS_INPUT]
        if self._idle_windows < self.options.patience or not stuck or seen.memory_used >= seen.memory_total:
            return Decision(seen.values, "no item has finished yet")
        doubled = {reading.name: min(2 * reading.workers, max(1, math.floor(seen.cpus))) for reading in stuck if reading.parallel}
        return Decision(with_workers(seen, doubled), f"no item has finished yet; twice the workers for {', '.join(doubled) or 'nothing'}")

    # -- how fast it can be

    def _loads(self, seen: Observation) -> list[Load]:
        """Loads of the stages; one that gained nothing by its growth may not grow for a while."""
        most = {name: count for name, (count, _) in self._growth.ceilings.items()}
        loads = zip(seen.stages, self._costs.loads(seen), strict=True)
        return [replace(load, high=max(load.low, min(load.high, most.get(reading.name, load.high)))) for reading, load in loads]

    def _target(self, seen: Observation, loads: list[Load]) -> tuple[float, str]:
        """Batches a second to size the stages for, and the limit that sets them."""
        demand = self._demand.mean * (1.0 + self.options.lead) if math.isfinite(seen.demand) else math.inf
        possible = attainable([*loads, self._trainings_load(seen)], seen.cpus)
        if demand < possible:
            return demand, "all that the consumer takes"
        enough = possible * (1.0 - self.options.plateau)
        if sum(fewest(loads, enough)) < (1.0 - 3.0 * self.options.plateau) * sum(fewest(loads, possible)):
            # Near its top the curve of a crowded stage is flat and known badly: a little less takes far fewer workers.
            spared = [load.fewest(possible) - load.fewest(enough) for load in loads]
            most = spared.index(max(spared))
            computing = attainable(loads, math.inf) > possible * (1.0 + 1e-6)
            return enough, _computed(seen) if computing else _crowded(seen.stages[most], loads[most].fewest(enough))
        reading, load = min(zip(seen.stages, loads, strict=True), key=lambda pair: pair[1].capacity(pair[1].most))
        if load.capacity(load.most) <= possible * (1.0 + 1e-6):
            if reading.name in self._growth.ceilings:
                return possible, f"it was slower with more than {load.most} workers of {reading.name}"
            return possible, _crowded(reading, load.most) if reading.parallel else f"{reading.name} has one order, one worker at a time"
        return possible * (1.0 + self.options.headroom), _computed(seen)

    def _trainings_load(self, seen: Observation) -> Load:
        """The training computes on the same cores. Its speed is given; here it only takes its part of the cores."""
        return Load(0.0 if math.isnan(self._training.mean) else self._training.mean, 0.0, 1, max(1, math.ceil(seen.cpus)))

    # -- the workers and buffers for that rate

    def _wanted(self, seen: Observation, loads: list[Load], rate: float) -> Values:
        workers = dict(zip((reading.name for reading in seen.stages), fewest(loads, rate), strict=True))
        values = list(with_workers(seen, workers))
        for place, reading in memory_knobs(seen).items():
            values[place] = self._buffer(seen, values[place], place, reading, rate)
        return tuple(values)

    def _buffer(self, seen: Observation, now: int, place: int, reading: StageReading, rate: float) -> int:
        """MiB behind a stage for which Eqn 1 is highest: one more batch saves some waiting and costs some memory.

        The share of batches for which one side waits is that of the M/M/1/K queue, scaled by the squared coefficient of variation of
        the time between batches, as in Kingman's formula; that of one batch is the windows' variance times the batches in a window.
        """
        size = reading.item_bytes * reading.per_batch
        if not size > 0:  # also where it is not known
            return now
        load = rate / self._demand.mean if math.isfinite(seen.demand) and self._demand.mean > 0 else 0.0
        batches = seen.window * seen.throughput / seen.batch_size
        uneven = min(1.0, max(0.25, self._scatter**2 * batches))  # the consumer's own unevenness is not seen, so it is at least a quarter
        rest = seen.memory_used - reading.queue_bytes

        def reward(count: int) -> float:
            return (1.0 - uneven * lost(load, count)) * (1.0 - (rest + count * size) / seen.memory_total)

        return seen.knobs[place].clip(math.ceil(max(BUFFERED_BATCHES, key=reward) * size / MIB))

    # -- whether the change is worth it

    def _settled(self, seen: Observation, loads: list[Load], wanted: Values, rate: float, limit: str, changed: list[str]) -> Decision:
        """The wanted values if they are worth a change, else the present ones."""
        now = [reading.workers for reading in seen.stages]
        then = fewest(loads, rate)
        before, after = (min(load.capacity(n) for load, n in zip(loads, counts, strict=True)) for counts in (now, then))
        target = f"to reach {rate * seen.batch_size:,.0f} samples/s: {limit}"
        because = (f"cost of {', '.join(changed)} changed; " if changed else "") + ("resized; " if seen.resized else "")
        if wanted == seen.values:
            return Decision(wanted, because + target)
        gains = min(after, rate) > min(before, rate) * (1.0 + self._least_gain())
        spare = sum(n - m for n, m in zip(now, then, strict=True))
        self._superfluous = self._superfluous + 1 if spare > max(1.0, self.options.waste * sum(then)) else 0
        patience = 1 if changed else self.options.patience
        if any(reading.processes and n > m for reading, n, m in zip(seen.stages, now, then, strict=True)):
            patience = max(patience, PROCESS_PATIENCE_FACTOR * self.options.patience)
        if gains or seen.resized or self._superfluous >= patience:
            self._superfluous = 0
            return Decision(self._growth.steps(seen, wanted), because + target)
        values = _buffers_only(seen, wanted)
        return Decision(values, f"as it is; {target}" if values == seen.values else f"only the buffer; {target}")

    def _least_gain(self) -> float:
        """The option, or half of the windows' scatter (0.2 at most) if that is more: a smaller gain would be lost in it."""
        return max(self.options.gain, min(0.2, self._scatter / 2))


def lost(load: float, buffer: int) -> float:
    """Share of the slower side's rate that is lost in an M/M/1/K queue. ``load``: producer's rate over the consumer's; K = buffer + 1."""
    if load > 1.0:
        load = 1.0 / load
    size = buffer + 1
    if math.isclose(load, 1.0, rel_tol=1e-6):
        return 1.0 / (size + 1)
    return load**size * (1.0 - load) / (1.0 - load ** (size + 1))


def _computed(seen: Observation) -> str:
    beside = " beside the training" if seen.consumer_cpu * 20 > seen.cpus else ""
    return f"all that {in_cores(seen.cpus)} compute{'s' * (seen.cpus == 1)}{beside}"


def _crowded(reading: StageReading, count: int) -> str:
    kind, shared = ("processes", "a disk, a network") if reading.processes else ("threads", "the interpreter's lock")
    return f"{reading.name} hardly gains from more than {count} {kind}: they share {shared}, or something else"


def _buffers_only(seen: Observation, wanted: Values) -> Values:
    """The present workers, with the wanted buffers if they are far from the present ones."""
    values = list(seen.values)
    for place in memory_knobs(seen):
        if not values[place] / 1.5 <= wanted[place] <= values[place] * 1.5:
            values[place] = wanted[place]
    return tuple(values)
