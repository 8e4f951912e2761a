"""What a forecast of a deadline costs, and on how many simulated runs it rests, by the number of jobs in the pool.

    python benchmarks/admission.py [--policy fifo srtf edf] [--jobs 10 100 1000] [--rounds 3]

The pool is full: jobs of 1 to 8 GPUs on nodes of 8, five jobs for each one that runs, half of them with deadlines. Asked is what
`stoker submit --deadline` asks: the end of a new job, and whose deadlines it costs. "runs" were simulated: where they are few, runs in
the order of the queue are scaled by them. Times are processor time of the one thread that works at it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.engine.forecast.admission import PROFILING, foresee
from stoker.engine.forecast.whatif import Question
from stoker.engine.forecast.work_draws import DurationDraws, Finished, Known
from stoker.engine.scheduling.guards import Evictions, PreemptionLimits
from stoker.engine.scheduling.ticks import Rules
from stoker.policies import registry
from stoker.policies.contract import Demand, Gpus, Jobs, Nodes, Phase, View

NODE = 8  #: GPUs
WAITING = 5  #: jobs for each one that runs
DEADLINES = 0.5  #: share of the jobs


def made_up(count: int, seed: int = 0) -> View:
    """A full pool with ``count`` jobs and one more, the new one, in the last row."""
    rng = np.random.default_rng(seed)
    gang = np.append(rng.choice([1, 2, 4, 8], count, p=[0.7, 0.1, 0.1, 0.1]), 1)
    left = np.append(rng.lognormal(7.0, 1.0, count), 3600.0)
    nodes = max(1, round(count * 1.8 / WAITING / NODE))
    held = (np.cumsum(gang) <= nodes * NODE) & (np.arange(count + 1) < count)
    timed = np.append(rng.random(count) < DEADLINES, True)
    deadline = np.where(timed, left * np.append(rng.uniform(2, 40, count), 4.0), math.inf)
    zeros, ran = np.zeros(count + 1), np.where(held, 300.0, 0.0)
    jobs = Jobs(
        id=np.arange(1, count + 2),
        submitted_at=np.linspace(-1000.0, 0.0, count + 1),
        phase=np.where(held, Phase.ACTIVE, Phase.PENDING).astype(np.int64),
        gpus_min=gang,
        gpus_max=gang,
        priority=zeros.astype(np.int64),
        demand=np.where(timed, Demand.STRICT, Demand.BEST_EFFORT).astype(np.int64),
        deadline=deadline,
        attained=ran * gang,
        run_time=ran,
        lease_time=ran,
        remaining=left,
        gpu_memory=zeros,
        preemptions=zeros.astype(np.int64),
        user=rng.integers(0, 10, count + 1),
        model=rng.integers(0, 10, count + 1),
        alloc_start=np.concatenate([[0], np.cumsum(gang * held)]),
        alloc_gpus=np.arange(int((gang * held).sum())),
        tier_start=np.concatenate([[0], np.cumsum(timed)]),
        tier_deadline=deadline[timed],
        tier_reward=np.ones(int(timed.sum())),
    )
    gpus = Gpus(
        id=np.array([f"gpu{number}" for number in range(nodes * NODE)], dtype=object),
        node=np.repeat(np.arange(nodes), NODE),
        index=np.tile(np.arange(NODE), nodes),
        usable=np.ones(nodes * NODE, dtype=bool),
        memory=np.zeros(nodes * NODE),
    )
    return View(0.0, "default", jobs, gpus, Nodes(np.array([f"n{number}" for number in range(nodes)], dtype=object)))


def measure(policy: str, count: int, rounds: int) -> dict[str, Any]:
    """One row: means over ``rounds`` pools."""
    spent, runs = [], []
    for seed in range(rounds):
        view = made_up(count, seed)
        nobody = np.zeros(len(view.jobs), dtype=bool)
        known = Known(["m"] * len(view.jobs), nobody, view.jobs.remaining + view.jobs.run_time, ~nobody, nobody)
        rules = Rules(policy, lambda: registry.create(policy, {}), PreemptionLimits(), Evictions())
        began = time.thread_time()
        durations = DurationDraws(view.jobs, known, Finished([], np.zeros(0), np.zeros(0)))
        simulated, _ = foresee(Question(view, count, np.array([count])), durations, rules, np.zeros(count + 1), PROFILING)
        spent.append(time.thread_time() - began)
        runs.append(simulated)
    return {
        "policy": policy,
        "jobs": count,
        "GPUs": len(view.gpus),
        "CPU ms": round(1000 * statistics.mean(spent)),
        "most ms": round(1000 * max(spent)),
        "runs": statistics.mean(runs),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--policy", nargs="+", default=["fifo", "srtf", "edf"], help="policies (default: fifo srtf edf)")
    parser.add_argument("--jobs", nargs="+", type=int, default=[10, 100, 1000], help="jobs in the pool (default: 10 100 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="pools of each kind (default: 3)")
    options = parser.parse_args(given)
    began = machine()
    rows = []
    for policy in options.policy:
        for count in options.jobs:
            progress(f"{policy}, {count} jobs")
            rows.append(measure(policy, count, options.rounds))
    show(options, began, {"A forecast of one deadline": rows})


if __name__ == "__main__":
    main()
