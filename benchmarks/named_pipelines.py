"""Simulated pipelines with names: those of the paper's evaluation (003 ch. 5), those that break a controller's assumptions, random ones.

The paper prints no costs. What stands here is chosen so that its words come out: a model that waits for its data, UDF and disk that
dominate (Fig. 4), 32 to 128 cores that are all worth having (Fig. 7), a quarter of an hour of windows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from simulated_pipeline import MIB, Consumer, Machine, SimulatedPipeline, Stage
from stoker.runners.loaders.tuning.controller import Unit

GIB = 2**30
ROW_BYTES = 4.0 * (26 + 13)  #: of Criteo: 26 categorical and 13 continuous columns of 4 bytes
CRITEO_BATCH = 24_096  #: 003 ch. 5, Datasets and Pipelines
CUSTOM_BATCH = 20_000  #: "in the tens of thousands", the same place


def custom(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """The paper's production pipeline: read, shuffle, UDF, batch, prefetch over a network file system; a small model."""
    rows = float(CUSTOM_BATCH)
    stages = (
        Stage("read", cpu=150e-6, wait=450e-6, per_batch=rows, item_bytes=2_000, worker_bytes=24 * MIB),
        Stage("shuffle", cpu=20e-6, per_batch=rows, item_bytes=2_000, worker_bytes=64 * MIB),
        Stage("udf", cpu=500e-6, per_batch=rows, item_bytes=400, worker_bytes=160 * MIB),
        Stage("batch", cpu=0.6, item_bytes=400 * rows, worker_bytes=16 * MIB),
        Stage("prefetch", cpu=0.02, item_bytes=400 * rows, unit=Unit.MIB, high=65_536),
    )
    machine = Machine(cpus, 64 * GIB, bandwidth=80_000)
    return SimulatedPipeline(stages, machine, Consumer(40.0, 4 * GIB, 0.5), batch_size=CUSTOM_BATCH, noise=noise, seed=seed, name="custom")


def criteo(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """Criteo click logs: text rows, hashing of 26 categorical columns and logarithms of 13, batches of 24 096."""
    rows = float(CRITEO_BATCH)
    stages = (
        Stage("read", cpu=25e-6, wait=60e-6, per_batch=rows, item_bytes=ROW_BYTES, worker_bytes=24 * MIB),
        Stage("shuffle", cpu=6e-6, per_batch=rows, item_bytes=ROW_BYTES, worker_bytes=32 * MIB),
        Stage("udf", cpu=160e-6, per_batch=rows, item_bytes=ROW_BYTES, worker_bytes=96 * MIB),
        Stage("batch", cpu=0.25, item_bytes=ROW_BYTES * rows, worker_bytes=16 * MIB),
        Stage("prefetch", cpu=0.01, item_bytes=ROW_BYTES * rows, unit=Unit.MIB, high=65_536),
    )
    machine = Machine(cpus, 64 * GIB, bandwidth=80_000)
    return SimulatedPipeline(stages, machine, Consumer(60.0, 8 * GIB, 0.3), batch_size=CRITEO_BATCH, noise=noise, seed=seed, name="criteo")


def of_length(count: int, cpus: float = 128, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """2 to 6 stages and a model latency of 0, as in 003 ch. 5.2.1: longer pipelines add batching, shuffling, a UDF, prefetching, a join."""
    if not 2 <= count <= 6:
        raise ValueError(f"count: {count} stages; 2 to 6 are defined")
    whole = custom(cpus)
    join = Stage("join", cpu=90e-6, wait=200e-6, per_batch=CUSTOM_BATCH, item_bytes=400, worker_bytes=48 * MIB)
    read, shuffle, udf, batch, prefetch = whole.stages
    chosen = {
        2: (read, batch),
        3: (read, shuffle, batch),
        4: (read, shuffle, udf, batch),
        5: (read, shuffle, udf, batch, prefetch),
        6: (read, shuffle, udf, join, batch, prefetch),
    }[count]
    return SimulatedPipeline(
        chosen, whole.machine, Consumer(math.inf, 4 * GIB), batch_size=CUSTOM_BATCH, noise=noise, seed=seed, name=f"{count} stages"
    )


def images(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """JPEG decoding for a GPU that takes 1500 images a second, unevenly: what is more than enough only costs memory."""
    stages = (
        Stage("read", cpu=0.3e-3, wait=8e-3, per_batch=128, item_bytes=120_000, worker_bytes=8 * MIB),
        Stage("decode", cpu=6e-3, per_batch=128, item_bytes=600_000, worker_bytes=128 * MIB),
        Stage("augment", cpu=3e-3, per_batch=128, item_bytes=600_000, worker_bytes=96 * MIB),
        Stage("batch", cpu=12e-3, item_bytes=600_000 * 128, worker_bytes=16 * MIB),
        Stage("prefetch", cpu=2e-3, item_bytes=600_000 * 128, unit=Unit.MIB, high=65_536),
    )
    machine = Machine(cpus, 32 * GIB, bandwidth=80_000)
    return SimulatedPipeline(stages, machine, Consumer(1500 / 128, 6 * GIB, 0.5), batch_size=128, noise=noise, seed=seed, name="images")


def _changed(base: SimulatedPipeline, of_stages: Mapping[str, Mapping[str, Any]]) -> tuple[Stage, ...]:
    return tuple(dataclasses.replace(stage, **of_stages.get(stage.name, {})) for stage in base.stages)


def _mismatch(
    name: str, cpus: float, seed: int, noise: float, bandwidth: float | None = None, **of_stages: Mapping[str, float]
) -> SimulatedPipeline:
    base = criteo(cpus)
    stages = _changed(base, of_stages)
    machine = base.machine if bandwidth is None else dataclasses.replace(base.machine, bandwidth=bandwidth)
    return SimulatedPipeline(stages, machine, base.consumer, batch_size=base.batch_size, noise=noise, seed=seed, name=name)


def locked(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """Criteo with a UDF in Python threads: 15 % of its time holds the interpreter lock: 7 workers' worth, whatever the cores."""
    return _mismatch("interpreter lock", cpus, seed, noise, udf={"locked": 0.15})


def clashing(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """Criteo with a disk that seeks and a UDF that shares a hash table: beyond some workers each further one makes the stage slower."""
    return _mismatch(
        "clashing workers", cpus, seed, noise, read={"contention": 0.02, "coherency": 0.01}, udf={"contention": 0.01, "coherency": 0.0015}
    )


def narrow_bus(cpus: float = 32, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """Criteo on a machine whose memory bus is full at 3 batches a second, half of what 32 cores could do; the stalls look like CPU time."""
    moved = 40 * ROW_BYTES
    return _mismatch("narrow bus", cpus, seed, noise, bandwidth=3.0 * CRITEO_BATCH * moved / 1e6, udf={"moved": moved})


def case_study(cpus: float = 128, *, seed: int = 0, noise: float = 0.03) -> SimulatedPipeline:
    """003 ch. 3.3: with one worker a stage 11 % of what the model could take, 41 % by the best hand, whatever of 128 cores is added.

    No pipeline of independent workers looks so: the UDF must gain at most 3.7 times from workers, hence its contention of 0.25.
    """
    base = custom(cpus)
    stages = _changed(base, {"udf": {"contention": 0.29}, "read": {"contention": 0.1}})
    one_each = 1 / max((stage.cpu + stage.wait) * stage.per_batch for stage in stages)
    consumer = Consumer(one_each / 0.11, 4 * GIB)
    return SimulatedPipeline(stages, base.machine, consumer, batch_size=CUSTOM_BATCH, noise=noise, seed=seed, name="case study")


PRESETS: dict[str, Callable[..., SimulatedPipeline]] = {
    "custom": custom,
    "criteo": criteo,
    "images": images,
    "locked": locked,
    "clashing": clashing,
    "narrow_bus": narrow_bus,
    "case_study": case_study,
}


def random_pipeline(seed: int, *, stages: int | None = None, noise: float = 0.05) -> SimulatedPipeline:
    """A pipeline of 2 to 6 stages (or so many) on a machine of 2 to 128 cores, drawn from the seed: what the agent is trained on.

    Every other has what no closed form foresees: an interpreter lock, workers that clash, a narrow memory bus.
    """
    rng = np.random.default_rng([seed, 0xB0])
    count = stages or int(rng.integers(2, 7))
    cpus = float(2 ** rng.uniform(1, 7)) if rng.random() < 0.5 else float(2 ** rng.integers(1, 8))
    cpus = max(2.0, round(cpus))
    memory = int(cpus * rng.uniform(0.5, 4) * GIB) + GIB
    batch = float(2 ** rng.integers(5, 15))
    batch_bytes = math.exp(rng.uniform(math.log(0.25 * MIB), math.log(24 * MIB)))
    drawn = tuple(_drawn_stage(rng, index, count, batch, batch_bytes, memory / cpus) for index in range(count))
    per_batch = sum(stage.cpu * stage.per_batch for stage in drawn)
    rate = cpus / per_batch  # batches a second if all cores did nothing but this
    demand = math.inf if rng.random() < 0.25 else rate * math.exp(rng.uniform(math.log(0.2), math.log(4.0)))
    bandwidth = 0.0
    if rng.random() < 0.15:
        moved = 20 * batch_bytes
        drawn = (*drawn[:-1], dataclasses.replace(drawn[-1], moved=moved / drawn[-1].per_batch))
        bandwidth = moved * rate * rng.uniform(0.3, 1.0) / 1e6
    machine = Machine(cpus, memory, bandwidth, clock=float(rng.uniform(2, 4)), process_bytes=0.1 * memory * rng.random())
    consumer = Consumer(demand, 0.3 * memory * rng.random(), float(rng.random()))
    return SimulatedPipeline(drawn, machine, consumer, batch_size=batch, noise=noise, seed=seed, name=f"random {seed}")


def _drawn_stage(rng: np.random.Generator, index: int, count: int, batch: float, batch_bytes: float, per_core: float) -> Stage:
    last = index == count - 1
    if last and count > 2 and rng.random() < 0.7:
        return Stage("prefetch", cpu=0.002 * rng.random(), item_bytes=batch_bytes, unit=Unit.MIB, high=65_536)
    whole = last or (index == count - 2 and count > 3)  # works on batches, not on samples
    per_batch = 1.0 if whole else batch
    cost = math.exp(rng.uniform(math.log(0.003), math.log(0.6))) / per_batch
    waiting = rng.uniform(0.5, 0.95) if index == 0 or rng.random() < 0.15 else 0.0
    odd, much = rng.random() < 0.25, rng.random() < 0.3
    return Stage(
        f"stage {index}",
        cpu=cost * (1 - waiting),
        wait=cost * waiting,
        per_batch=per_batch,
        item_bytes=batch_bytes / per_batch,
        parallel=index == 0 or bool(rng.random() < 0.9),
        processes=bool(rng.random() < 0.3),
        locked=float(rng.uniform(0.05, 1.0)) if rng.random() < 0.1 else 0.0,
        contention=float(rng.uniform(0, 0.3 if much else 0.05)) if odd else 0.0,
        coherency=float(10 ** rng.uniform(-4, -1.3)) if odd and not much else 0.0,
        worker_bytes=per_core * rng.uniform(0.0, 0.15),
    )
