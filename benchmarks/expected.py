"""What a true simulator must give: recursions and closed forms of queueing theory, and what public simulators print on given input."""

from __future__ import annotations

import csv
import gzip
import heapq
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies.contract import Floats

# Queues: times in units of the mean service


def poisson(jobs: int, rate: float, seed: int) -> Floats:
    """Arrival times."""
    return np.cumsum(np.random.default_rng([seed, 0]).exponential(1.0 / rate, jobs))


def exponential(jobs: int, seed: int) -> Floats:
    """Service times."""
    return np.random.default_rng([seed, 1]).exponential(1.0, jobs)


def lindley(arrivals: Floats, services: Floats) -> Floats:
    """Waiting times of a FIFO queue with one server: W(n+1) = max(0, W(n) + S(n) - A(n+1)) (Lindley 1952), all at once."""
    walk = np.concatenate(([0.0], np.cumsum(services[:-1] - np.diff(arrivals))))
    return walk - np.minimum.accumulate(walk)


def first_free(arrivals: Floats, services: Floats, servers: int) -> Floats:
    """Waiting times of a FIFO queue with several servers: each job starts on the one that is free first (Kiefer and Wolfowitz 1955)."""
    free = [0.0] * servers
    waits = np.empty(len(arrivals))
    for job, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        start = max(arrival, free[0])
        waits[job] = start - arrival
        heapq.heapreplace(free, start + service)
    return waits


def erlang_c(servers: int, load: float) -> float:
    """Chance that a job waits in M/M/c with ``load`` = arrival rate x mean service, below ``servers``."""
    blocked = 1.0  # Erlang B by its recursion
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return servers * blocked / (servers - load * (1.0 - blocked))


def mean_wait(servers: int, load: float) -> float:
    """M/M/c, first come first served."""
    return erlang_c(servers, load) / (servers - load)


def mean_wait_of_one(load: float, second_moment: float) -> float:
    """M/G/1, first come first served (Pollaczek and Khinchine); ``second_moment``: of the service time."""
    return load * second_moment / (2.0 * (1.0 - load))


# Public simulators


@dataclass(frozen=True, slots=True)
class Peer:
    """The average job completion time (s) that another simulator prints, with its model in ``nodes`` and ``options``."""

    trace: str
    nodes: str
    policy: str
    jct: float
    who: str
    options: Options = Options()


_ITP, _ITP01, _PHILLY = ("itp06", "1x128"), ("itp01", "1x64"), ("philly_11cb48_2w", "1x8")
_TIRESIAS, _LUCID, _REFERENCE = "Tiresias' simulator", "Lucid's simulator", "independent reference"
_AS_LUCID = Options(Costs(resume=40.0))  #: what a preempted job of up to 8 GPUs has to do more
_TITAN, _ROUNDS = "Titan's simulator", Options(interval=300.0)
PEERS = (
    Peer(*_ITP, "fifo", 81_209.76, _TIRESIAS),
    Peer(*_ITP, "fifo,backfill=true", 42_499.73, _TIRESIAS),
    Peer(*_ITP, "sjf", 35_081.56, _LUCID),
    Peer(*_ITP, "sjf,backfill=true", 36_402.19, _REFERENCE),
    Peer(*_ITP, "srtf,hysteresis=1", 29_500.92, _TIRESIAS),
    Peer(*_ITP, "srtf,hysteresis=1,measure=service", 29_251.87, _TIRESIAS),
    Peer(*_ITP, "tiresias,priority=time", 34_575.90, _TIRESIAS),
    Peer(*_ITP, "tiresias", 37_540.11, _TIRESIAS + ", demotions on time"),  # docs/accuracy.md
    Peer(*_ITP01, "tiresias,priority=time", 36_983.36, _TIRESIAS),
    Peer(*_ITP01, "tiresias", 29_712.13, _TIRESIAS + ", demotions on time"),
    Peer(*_PHILLY, "fifo", 46_086.23, _TIRESIAS),
    Peer(*_PHILLY, "fifo,backfill=true", 3_837.07, _TIRESIAS),
    Peer(*_PHILLY, "sjf", 14_400.65, _LUCID),
    Peer(*_PHILLY, "sjf,backfill=true", 3_811.33, _REFERENCE),
    Peer(*_PHILLY, "srtf,hysteresis=1", 2_313.17, _TIRESIAS),
    Peer(*_PHILLY, "srtf,hysteresis=1,measure=service", 2_323.86, _REFERENCE),
    Peer(*_PHILLY, "tiresias", 2_468.61, _TIRESIAS),
    Peer(*_PHILLY, "srtf,hysteresis=1", 2_324.58, _LUCID, _AS_LUCID),
    Peer(*_PHILLY, "tiresias,queues=2,threshold_1=18000", 2_512.15, _LUCID, replace(_AS_LUCID, interval=60.0)),
    Peer("FM-1-roberta-base", "8x4", "sjf,backfill=true", 1_278.42, _TITAN, _ROUNDS),  # what it calls srtf displaces nobody
    Peer("FM-1-roberta-large", "8x4", "sjf,backfill=true", 1_770.85, _TITAN, _ROUNDS),
    Peer("FM-2-roberta-base", "8x4", "sjf,backfill=true", 3_179.67, _TITAN, _ROUNDS),
    Peer("FM-1-roberta-base", "8x4", "tiresias", 1_288.94, _TITAN, _ROUNDS),
    Peer("FM-1-roberta-large", "8x4", "tiresias", 1_790.85, _TITAN, _ROUNDS),
)


def peer_workload(traces: Path, name: str) -> Workload:
    if name.startswith("FM-"):
        return fine_tuning(traces, name)
    return itp(traces, f"cluster{name[3:]}") if name == "itp01" else side_by_side(traces, name)


def itp(traces: Path, cluster: str) -> Workload:
    """One of the clusters of the trace published as ITP; of jobs that were submitted in one second the least number goes first."""
    with gzip.open(traces / "itp" / "itp_raw_69351.csv.gz", "rt") as file:
        rows = [(int(row["submission_time"]), row["job_id"], row) for row in csv.DictReader(file) if row["cluster"] == cluster]
    rows.sort(key=lambda row: row[:2])
    submitted, duration = [float(at - rows[0][0]) for at, _, _ in rows], [float(row["duration"]) for _, _, row in rows]
    return make_workload(cluster, submitted, duration, [int(row["num_gpu"]) for _, _, row in rows])


def side_by_side(traces: Path, name: str) -> Workload:
    """One of the neutral files ``job_id, job_key, submit, duration, num_gpu, vc``."""
    with (traces / "side_by_side" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    submitted, duration = ([float(row[column]) for row in rows] for column in ("submit", "duration"))
    return make_workload(name, submitted, duration, [int(row["num_gpu"]) for row in rows])


def fine_tuning(traces: Path, name: str) -> Workload:
    """One of Titan's workloads, which have no durations; jobs take what its ``srtf``, which displaces nobody, records that they took."""
    with (traces / "titan" / "traces" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    took = {row["name"]: float(row["staying_time"]) - float(row["pending_time"]) for row in titan_recorded(traces, name)}
    submitted, gpus = [float(row["submission_time"]) for row in rows], [int(row["num_gpus"]) for row in rows]
    return make_workload(name, submitted, [took[row["name"]] for row in rows], gpus, key=[row["name"] for row in rows])


def titan_recorded(traces: Path, name: str) -> list[dict[str, str]]:
    """What it recorded of each job of a workload under its ``srtf``."""
    with gzip.open(traces / "titan" / "titan_recorded_jobs.csv.gz", "rt") as file:
        return [row for row in csv.DictReader(file) if (row["scheduler"], row["trace_setting"]) == ("srtf", name)]
