"""A data pipeline on a machine, simulated by its flow: what an agent is trained on, and what controllers are compared on.

Each window is a fluid model of the stages, in batches of the pipeline's output:

* a stage with w workers finishes w / (items a batch × time of an item) batches a second; the workers of one stage slow one another
  by the universal scalability law (Gunther, 1993): time × (1 + contention (w − 1) + coherency w (w − 1));
* when the stages together want more of a shared resource than there is (cores; the interpreter lock, one core for all threads; the
  memory bus), the CPU time of every stage that takes of it is stretched by one factor until they fit: proportional share. Workers that
  wait for input or for room want nothing, so cores do not lie idle; that more threads than cores run costs `Machine.switching` at most;
* bounded queues stand between the stages: a change reaches the consumer when what was queued is gone;
* worker processes cost what it takes to send them their items, and hold no lock but for that; a stage can be moved to them and back;
* a consumer of uneven pace loses what a buffer of k batches cannot even out (throughput of the M/M/1/K queue);
* memory is process + consumer + workers × (their own + the item in hand) + queues. Above the machine's the pipeline is killed, and is
  back as it started after `teardown` windows (003 ch. 3.3: "a teardown and reset").

Where real pipelines differ: items vary in cost, so queues are neither full nor empty; shared resources stretch one stage more than
another; caches and turbo clocks couple stages in ways that no term here has; workers take time to start. Noise stands in for the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from stoker.engine.errors import UsageError
from stoker.runners.loaders.tuning.controller import Knob, Observation, StageReading, Unit, Values

MIB = 2**20
QUEUED_PER_WORKER = 2  #: items that the channel behind a stage holds for each of its workers
BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage of a simulated pipeline costs. Times in seconds and sizes in bytes for one item of this stage."""

    name: str
    cpu: float
    wait: float = 0.0
    per_batch: float = 1.0  #: items that make one batch of the output
    item_bytes: float = 0.0
    unit: Unit = Unit.WORKERS  #: MiB: one worker, and the knob is the size of the buffer behind it
    parallel: bool = True  #: False: one worker, no knob
    processes: bool = False
    locked: float = 0.0  #: share of the CPU time that holds the interpreter lock; without effect where the workers are processes
    moved: float = 0.0  #: bytes over the memory bus
    contention: float = 0.0  #: universal scalability law: what each other worker adds to an item's time
    coherency: float = 0.0  #: the same, for each pair of workers; above 0 there is a number of workers that is best
    worker_bytes: float = 0.0  #: what a worker takes beside the item in its hands
    high: int = 1024  #: of the knob
    movable: bool = False  #: between threads and processes
    sending: float = 200e-6  #: CPU time of an item that is sent to a process and back; half of it under the interpreter's lock

    @property
    def tunable(self) -> bool:
        return self.unit is Unit.MIB or self.parallel

    def crowding(self, workers: int) -> float:
        """The factor by which its workers slow one another."""
        return 1.0 + self.contention * (workers - 1) + self.coherency * workers * (workers - 1)


@dataclass(frozen=True, slots=True)
class Machine:
    cpus: float
    memory: int  #: bytes
    bandwidth: float = 0.0  #: of the memory bus, MB/s; 0: not measured and no limit
    clock: float = 3.0  #: GHz, for whom it may concern: the stages' costs are already those of this clock
    process_bytes: float = 0.5 * 2**30
    starting: int = 2  #: windows that worker processes take to start
    switching: float = 0.15  #: share of the cores that is lost at most when more threads than cores want to run


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who takes the batches."""

    batches: float = math.inf  #: that it takes a second when it never waits: 1 / model latency
    bytes: float = 0.0
    unevenness: float = 0.0  #: 0: a metronome; 1: exponential times between batches
    cpu: float = 0.0  #: CPU time of a batch, on the same cores; it is part of 1 / `batches`
    locked: float = 0.0  #: share of it that holds the interpreter lock: what the stages' threads hold of it slows the consumer


@dataclass(frozen=True, slots=True)
class Flow:
    """What a pipeline does under given values, in batches a second."""

    capacity: tuple[float, ...]  #: of each stage alone, at this stretch
    stretch: tuple[float, ...]  #: of each stage's CPU time by the tightest of the shared resources
    tightest: str  #: cores: then the difference is time in which a thread could run; lock: it shows as waiting; bus: as CPU time
    demand: float  #: what the consumer takes, whose own CPU time is stretched too where it holds the lock
    held: float  #: share of the time in which the interpreter lock is held
    evenness: float  #: share of the throughput that the buffer leaves an uneven consumer
    stock: float  #: batches that stand in that buffer for it, on average

    @property
    def throughput(self) -> float:
        return self.evenness * min(*self.capacity, self.demand)


def kept(produced: float, demand: float, buffered: float, unevenness: float) -> float:
    """Share of min(produced, demand) that an uneven consumer gets through a buffer of so many batches: M/M/1/K, K = buffer + 1."""
    if unevenness == 0 or not math.isfinite(demand) or produced <= 0:
        return 1.0
    load, size = produced / demand, buffered + 1
    if abs(load - 1) < 1e-6:
        carried = size / (size + 1)
    elif load > 1:  # the same fraction, of the inverse: no overflow at large K
        inverse = 1 / load
        carried = (1 - inverse**size) / (1 - inverse ** (size + 1))
    else:
        carried = load * (1 - load**size) / (1 - load ** (size + 1))
    return 1 - unevenness + unevenness * carried * demand / min(produced, demand)


def stocked(produced: float, demand: float, buffered: float, unevenness: float) -> float:
    """Batches that stand in that buffer on average, for the unevenness' sake: the mean of the M/M/1/K queue."""
    if unevenness == 0 or not math.isfinite(demand) or produced <= 0:
        return 0.0
    load, size = produced / demand, buffered + 1
    if abs(load - 1) < 1e-6:
        mean = size / 2
    elif load > 1:  # by symmetry: the free places of the inverse
        mean = size - _mean_of_queue(1 / load, size)
    else:
        mean = _mean_of_queue(load, size)
    return unevenness * min(mean, buffered)


def _mean_of_queue(load: float, size: float) -> float:
    full = math.pow(load, size + 1)
    return load / (1 - load) - (size + 1) * full / (1 - full)


class SimulatedPipeline:
    """A pipeline that is not there: `step(values)` lives through one window and says what was seen.

    `values` holds one number a knob; stages that are not parallel have no knob. Raises UsageError for stages that nothing can run.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        machine: Machine,
        consumer: Consumer | None = None,
        *,
        batch_size: float,
        window: float = 5.0,
        noise: float = 0.03,
        teardown: int = 3,
        seed: int = 0,
        name: str = "simulated",
    ) -> None:
        if not any(stage.tunable for stage in stages):
            raise UsageError("stages: none of them has anything to set; give at least one that is parallel or holds a buffer")
        self.name = name
        self.stages = tuple(stages)
        self.machine = machine
        self.consumer = consumer or Consumer()
        self.batch_size = batch_size
        self.window = window
        self.noise = noise
        self.teardown = teardown
        self.knobs = tuple(Knob(stage.name, stage.unit, 1, stage.high) for stage in stages if stage.tunable)
        self.start: Values = tuple(self._least(knob) for knob in self.knobs)  #: one worker a stage, and buffers of two batches
        self.values = self.start
        self.ooms = 0  #: windows in which the pipeline was killed for memory
        self._rng = np.random.default_rng(seed)
        self._queued = [0.0] * len(self.stages)  # batches behind each stage
        self._starting: dict[str, int] = {}  # stages that become processes, and windows until they are
        self._down = 0  # windows until it is back
        self._windows = 0
        self._resized = False

    # -- what may happen to it

    def resize(self, cpus: float | None = None, memory: int | None = None) -> None:
        """Another machine from the next window on."""
        self.machine = dataclasses.replace(
            self.machine, cpus=self.machine.cpus if cpus is None else cpus, memory=self.machine.memory if memory is None else memory
        )
        self._resized = True

    def recost(self, stage: str, factor: float) -> None:
        """The items of a stage cost so many times what they cost now. KeyError: no such stage."""
        if stage not in {each.name for each in self.stages}:
            raise KeyError(stage)
        self.stages = tuple(
            dataclasses.replace(each, cpu=each.cpu * factor, wait=each.wait * factor) if each.name == stage else each
            for each in self.stages
        )

    # -- one window

    def step(self, values: Values, processes: Mapping[str, bool] | None = None) -> Observation:
        """Sets the values (clipped to the knobs), lives through a window, and says what a tuner would have measured.

        ``processes``: stages whose workers are to be processes (True), for which threads work until they have started, or threads.
        """
        self._move_stages(processes or {})
        if len(values) != len(self.knobs):
            raise ValueError(f"values: {len(values)} were given for {len(self.knobs)} knobs")
        self._windows += 1
        if self._down:
            self._down -= 1
            return self._seen_down()
        self.values = tuple(knob.clip(value) for knob, value in zip(self.knobs, values, strict=True))
        workers, room = self.workers(self.values), self.room(self.values)
        flow = self.flow(self.values)
        moved, self._queued = self._move(flow, room)
        memory = self.memory(workers, [*self._queued[:-1], max(self._queued[-1], flow.stock)])
        if memory > self.machine.memory:
            return self._killed()
        return self._seen(workers, flow, moved, memory)

    def workers(self, values: Values) -> tuple[int, ...]:
        """Workers of each stage."""
        given = self._by_stage(values)
        return tuple(given.get(stage.name, 1) if stage.unit is Unit.WORKERS else 1 for stage in self.stages)

    def room(self, values: Values) -> tuple[float, ...]:
        """Batches that fit behind each stage."""
        given, workers = self._by_stage(values), self.workers(values)
        return tuple(
            max(1.0, given[stage.name] * MIB / max(stage.item_bytes, 1.0)) / stage.per_batch
            if stage.unit is Unit.MIB
            else QUEUED_PER_WORKER * count / stage.per_batch
            for stage, count in zip(self.stages, workers, strict=True)
        )

    def memory(self, workers: Sequence[int], queued: Sequence[float]) -> float:
        """Bytes in use with so many workers, and so many batches queued behind each stage."""
        held = (
            count * (stage.worker_bytes + stage.item_bytes) + batches * stage.per_batch * stage.item_bytes
            for stage, count, batches in zip(self.stages, workers, queued, strict=True)
        )
        return self.machine.process_bytes + self.consumer.bytes + sum(held)

    def flow(self, values: Values) -> Flow:
        """The steady state: what each stage could do, and how far the shared resources stretch its CPU time."""
        workers = self.workers(values)
        crowded = [stage.per_batch * stage.crowding(count) for stage, count in zip(self.stages, workers, strict=True)]
        cpu = [stage.cpu * factor for stage, factor in zip(self.stages, crowded, strict=True)]
        wait = [stage.wait * factor for stage, factor in zip(self.stages, crowded, strict=True)]

        shares = self._shares(cpu)
        tightest = max(shares, key=shares.__getitem__)
        hit = [tightest != "lock" or (stage.locked > 0 and not stage.processes) for stage in self.stages]

        def capacity(stretch: float) -> tuple[float, ...]:
            times = (c * (stretch if stretched else 1.0) + z for c, z, stretched in zip(cpu, wait, hit, strict=True))
            return tuple(count / time if time > 0 else math.inf for count, time in zip(workers, times, strict=True))

        def demand(stretch: float) -> float:
            if tightest != "lock" or not self.consumer.locked:
                return self.consumer.batches
            return 1.0 / (1.0 / self.consumer.batches + self.consumer.cpu * (stretch - 1.0))

        def pressure(stretch: float) -> float:
            rate = min(*capacity(stretch), demand(stretch))
            return rate * shares[tightest] * (1 + self.machine.switching * (1 - 1 / stretch))

        stretch = _fitting(pressure)
        able, taken = capacity(stretch), demand(stretch)
        pace = (min(able), taken, self.room(values)[-1], self.consumer.unevenness)
        stretched = tuple(stretch if each else 1.0 for each in hit)
        return Flow(able, stretched, tightest, taken, min(1.0, min(*able, taken) * shares["lock"]), kept(*pace), stocked(*pace))

    def steady_reward(self, values: Values) -> float:
        """Eqn 1 once the queues are as they stay, without noise; 0 where that does not fit into memory."""
        flow = self.flow(values)
        memory = self.memory(self.workers(values), self._steady_queues(flow, self.room(values)))
        if memory > self.machine.memory:
            return 0.0
        return self.batch_size * flow.throughput * (1 - memory / self.machine.memory)

    # -- the parts

    def _move_stages(self, processes: Mapping[str, bool]) -> None:
        self._starting = {name: windows - 1 for name, windows in self._starting.items()}
        changes = {name: True for name, windows in self._starting.items() if windows <= 0}
        for name, wanted in processes.items():
            if wanted:
                self._starting[name] = self.machine.starting
            else:
                self._starting.pop(name, None)
                changes[name] = False
        for name in changes:
            self._starting.pop(name, None)
        self.stages = tuple(_as(stage, changes.get(stage.name, stage.processes)) for stage in self.stages)

    def _least(self, knob: Knob) -> int:
        stage = next(stage for stage in self.stages if stage.name == knob.stage)
        return knob.clip(1 if knob.unit is Unit.WORKERS else math.ceil(2 * stage.item_bytes / MIB))

    def _by_stage(self, values: Values) -> Mapping[str, int]:
        return {knob.stage: value for knob, value in zip(self.knobs, values, strict=True)}

    def _shares(self, cpu: Sequence[float]) -> dict[str, float]:
        """Share of the cores, of the interpreter lock and of the memory bus that one batch a second takes."""
        lock = self.consumer.cpu * self.consumer.locked
        for seconds, stage in zip(cpu, self.stages, strict=True):
            # What a movable stage costs in processes has what sending costs in it.
            lock += seconds * stage.locked if not stage.processes else stage.movable * stage.sending * stage.per_batch / 2
        moved = sum(stage.moved * stage.per_batch for stage in self.stages)
        bus = moved / (self.machine.bandwidth * 1e6) if self.machine.bandwidth else 0.0
        return {"cores": (sum(cpu) + self.consumer.cpu) / self.machine.cpus, "lock": lock, "bus": bus}

    def _steady_queues(self, flow: Flow, room: Sequence[float]) -> list[float]:
        """A queue is full where what stands before it can do more than what comes after it, else empty."""
        delivered = min(*flow.capacity, flow.demand)
        supply = np.minimum.accumulate(flow.capacity)
        queued = [size if able > delivered * (1 + 1e-9) else 0.0 for able, size in zip(supply, room, strict=True)]
        return [*queued[:-1], max(queued[-1], flow.stock)]

    def _move(self, flow: Flow, room: Sequence[float]) -> tuple[list[float], list[float]]:
        """Batches that each stage finished in the window and, last, that were delivered; and what is queued after it."""
        able = [self.window * flow.evenness * rate for rate in flow.capacity]
        moved: list[float] = []
        supply = math.inf
        for most, queued in zip(able, self._queued, strict=True):
            moved.append(min(most, supply))
            supply = queued + moved[-1]
        delivered = taken = min(self.window * flow.evenness * flow.demand, supply)
        for index in reversed(range(len(moved))):  # no more than there is room for; none where a buffer shrank, until it is spent
            moved[index] = max(0.0, min(moved[index], room[index] - self._queued[index] + taken))
            taken = moved[index]
        gone = [*moved[1:], delivered]
        after = [queued + came - left for queued, came, left in zip(self._queued, moved, gone, strict=True)]
        return [*moved, delivered], [max(0.0, queued) for queued in after]

    def _noisy(self, value: float) -> float:
        return value * math.exp(self.noise * self._rng.standard_normal()) if self.noise else value

    def _killed(self) -> Observation:
        self.ooms += 1
        self._down = self.teardown
        self.values = self.start
        self._queued = [0.0] * len(self.stages)
        return self._seen_down()

    def _seen_down(self) -> Observation:
        readings = tuple(
            StageReading(
                stage.name,
                workers=1,
                items=0,
                per_batch=stage.per_batch,
                cpu=math.nan,
                wait=math.nan,
                starved=0.0,
                blocked=0.0,
                queue=0,
                queue_bytes=0,
                item_bytes=math.nan,
                parallel=stage.parallel,
                processes=stage.processes,
                queue_limit=round(room * stage.per_batch),
            )
            for stage, room in zip(self.stages, self.room(self.values), strict=True)
        )
        return self._observation(readings, throughput=0.0, cpu_used=0.0, memory=float(self.machine.memory), demand=self.consumer.batches)

    def _seen(self, workers: Sequence[int], flow: Flow, moved: Sequence[float], memory: float) -> Observation:
        room = self.room(self.values)
        readings = tuple(self._reading(index, workers[index], room[index], flow, moved) for index in range(len(self.stages)))
        busy = sum(
            done * stage.per_batch * _shown(stage, count, stretch, flow.tightest)[0]
            for done, stage, count, stretch in zip(moved[:-1], self.stages, workers, flow.stretch, strict=True)
        )
        return self._observation(
            readings,
            throughput=self._noisy(moved[-1] * self.batch_size / self.window),
            cpu_used=min(self._noisy(busy / self.window), self.machine.cpus),
            memory=memory,
            demand=flow.demand,
            lock=flow.held,
            consumer_cpu=moved[-1] * self.consumer.cpu / self.window,
        )

    def _reading(self, index: int, workers: int, room: float, flow: Flow, moved: Sequence[float]) -> StageReading:
        stage, done = self.stages[index], moved[index]
        idle = 1.0 - min(1.0, done / (flow.capacity[index] * self.window))
        starved = index > 0 and self._queued[index - 1] <= 1e-9
        items = round(done * stage.per_batch)
        cpu, wait = _shown(stage, workers, flow.stretch[index], flow.tightest)
        return StageReading(
            stage.name,
            workers=workers,
            items=items,
            per_batch=stage.per_batch,
            cpu=self._noisy(cpu) if items else math.nan,
            wait=self._noisy(wait) if items else math.nan,
            starved=idle if starved else 0.0,
            blocked=0.0 if starved else idle,
            queue=round(self._queued[index] * stage.per_batch),
            queue_bytes=round(self._queued[index] * stage.per_batch * stage.item_bytes),
            item_bytes=stage.item_bytes if items else math.nan,
            parallel=stage.parallel,
            processes=stage.processes or stage.name in self._starting,
            queue_limit=round(room * stage.per_batch),
            starting=workers if stage.name in self._starting else 0,
            lock=stage.cpu * stage.crowding(workers) * (flow.stretch[index] - 1.0) if items and flow.tightest == "lock" else 0.0,
            movable=stage.movable,
        )

    def _observation(
        self, readings: tuple[StageReading, ...], *, throughput: float, cpu_used: float, memory: float, demand: float, **more: float
    ) -> Observation:
        resized, self._resized = self._resized, False
        return Observation(
            at=self._windows * self.window,
            window=self.window,
            stages=readings,
            knobs=self.knobs,
            values=self.values,
            batch_size=self.batch_size,
            throughput=throughput,
            demand=self._noisy(demand * self.batch_size),
            cpus=self.machine.cpus,
            cpu_used=cpu_used,
            memory_used=round(memory),
            memory_total=self.machine.memory,
            bandwidth=self.machine.bandwidth,
            clock=self.machine.clock,
            resized=resized,
            **more,
        )


def _as(stage: Stage, processes: bool) -> Stage:
    """The stage with its work done by workers of that kind."""
    if stage.processes == processes:
        return stage
    return dataclasses.replace(stage, processes=processes, cpu=stage.cpu + (stage.sending if processes else -stage.sending))


def _shown(stage: Stage, workers: int, stretch: float, tightest: str) -> tuple[float, float]:
    """CPU time and waiting of an item as meters tell them: a stall on memory is CPU time, the lock is waiting, a core is neither."""
    cpu, wait = stage.cpu * stage.crowding(workers), stage.wait * stage.crowding(workers)
    if tightest == "bus":
        return cpu * stretch, wait
    return cpu, wait + (cpu * (stretch - 1) if tightest == "lock" else 0.0)


def _fitting(pressure: Callable[[float], float]) -> float:
    """The least stretch at which the tightest resource is not over-used."""
    if pressure(1.0) <= 1.0:
        return 1.0
    low, high = 1.0, 2.0
    while pressure(high) > 1.0:
        low, high = high, high * 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if pressure(middle) > 1.0 else (low, middle)
    return high
