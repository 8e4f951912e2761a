"""How fast the simulator is: events a second, the share of them that is plan(), memory, and how the cost of an event grows.

    python benchmarks/simulator.py [--trace FILE] [--nodes 100x8] [--policy fifo srtf tiresias] [--large 100000]

Without --trace the workload is made up: Poisson arrivals, log-normal durations, GPU requests as Philly's, two weeks at a load
of 0.8. With --trace philly_pollux_2w_20170922_20171005.csv it is that of the thesis (002 ch. 6.6.1: two weeks of Philly on
100 servers of 8 GPUs). Goals, of CPU time, reading the file included: 6 s each for FIFO, SRTF and Tiresias; 30 s for 100 000 jobs.

"naive loop" is the simulator that one writes in an hour, in the same run, on the same jobs: at every event it sorts all jobs
and fills a count of GPUs, with no placement, no checks and no record but the end of each job; public simulators do it so. It is
measured on a slice of the trace, as its cost grows with the jobs at hand. Growth: the cost of an event with ten times as many
jobs that have ended, and with many that wait.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.engine.traces.read import read
from stoker.engine.traces.trace import to_workload
from stoker.policies import registry

CONFIG: dict[str, dict[str, Any]] = {"srtf": {"hysteresis": 1.0}}


def made_up(jobs: int, gpus: int, load: float = 0.8, seed: int = 0) -> Workload:
    """Jobs that keep ``gpus`` GPUs busy to ``load`` on the average."""
    rng = np.random.default_rng(seed)
    size = rng.choice([1, 2, 4, 8, 16, 32], jobs, p=[0.86, 0.04, 0.05, 0.035, 0.01, 0.005])
    duration = np.clip(rng.lognormal(7.0, 2.0, jobs), 1.0, 1e6).round()
    span = float((size * duration).sum()) / (gpus * load)
    return make_workload("made up", np.sort(rng.uniform(0, span, jobs)).round(), duration, size)


def naive_srtf(submitted: Sequence[float], duration: Sequence[float], size: Sequence[int], gpus: int) -> list[float]:
    """Ends of the jobs under preemptive SRTF without placement, as a plain loop over all jobs at hand finds them."""
    left, ended = list(duration), [0.0] * len(duration)
    active: list[int] = []
    running: list[int] = []
    now, upcoming = 0.0, 0
    while upcoming < len(submitted) or active:
        soonest = min((left[job] for job in running), default=float("inf"))
        moment = min(now + soonest, submitted[upcoming] if upcoming < len(submitted) else float("inf"))
        for job in running:
            left[job] -= moment - now
            if left[job] <= 1e-9:
                ended[job] = moment
                active.remove(job)
        now = moment
        while upcoming < len(submitted) and submitted[upcoming] <= now:
            active.append(upcoming)
            upcoming += 1
        active.sort(key=lambda job: left[job])
        free, running = gpus, []
        for job in active:
            if size[job] <= free:
                free -= size[job]
                running.append(job)
    return ended


def run(workload: Workload, cluster: Cluster, policy: str) -> tuple[Result, float]:
    cpu = time.process_time()
    result = simulate(workload, cluster, registry.create(policy, CONFIG.get(policy, {})), Options())
    return result, time.process_time() - cpu


def row(name: str, workload: Workload, cluster: Cluster, policy: str, read_cpu: float = 0.0) -> dict[str, Any]:
    progress(f"{policy}, {name}, {len(workload)} jobs on {cluster}")
    result, cpu = run(workload, cluster, policy)
    return {
        "policy": policy,
        "jobs": len(workload),
        "cpu s": cpu + read_cpu,
        "wall s": result.wall_seconds,
        "events/s of cpu": result.events / cpu,
        "decisions": result.decisions,
        "plan() %": 100 * result.plan_seconds / result.wall_seconds,
        "average JCT s": float(np.nanmean(result.fates.ended - workload.submitted)),
    }


def beside_naive(workload: Workload, cluster: Cluster) -> list[dict[str, Any]]:
    progress("beside a naive loop")
    cpu = time.process_time()
    ended = naive_srtf(workload.submitted.tolist(), workload.duration.tolist(), workload.gpus_min.tolist(), cluster.total)
    naive = time.process_time() - cpu
    result, ours = run(workload, cluster, "srtf")
    jct = [float(np.mean(ends - workload.submitted)) for ends in (np.array(ended), result.fates.ended)]
    names = ("naive loop", "stoker")
    return [
        {"simulator": name, "jobs": len(workload), "cpu s": used, "jobs/s of cpu": len(workload) / used, "average JCT s": mean}
        for name, used, mean in zip(names, (naive, ours), jct, strict=True)
    ]


def growth(scale: int) -> list[dict[str, Any]]:
    """Cost of an event: few jobs that ended, many that ended, many that wait (all submitted at once)."""
    cluster = Cluster.parse("8x8")
    few, many = made_up(scale, cluster.total), made_up(10 * scale, cluster.total)
    at_once = make_workload("at once", np.zeros(scale), many.duration[:scale], many.gpus_min[:scale])
    rows = []
    for name, workload in (("few have ended", few), ("ten times as many have ended", many), ("all wait from the start", at_once)):
        progress(name)
        result, cpu = run(workload, cluster, "srtf")
        waiting = float(result.usage.waiting.mean())
        rows.append({"case": name, "jobs": len(workload), "waiting, mean": waiting, "us of cpu an event": 1e6 * cpu / result.events})
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trace", help="file in any format that 'stoker trace import' reads")
    parser.add_argument("--nodes", default="100x8")
    parser.add_argument("--policy", nargs="+", default=["fifo", "srtf", "tiresias"])
    parser.add_argument("--jobs", type=int, default=13_000, help="jobs of the workload that is made up")
    parser.add_argument("--large", type=int, default=100_000, help="jobs of the large one; 0: none")
    parser.add_argument("--naive", type=int, default=2_000, help="jobs that the naive loop is given")
    options = parser.parse_args(given)
    began, cluster = machine(), Cluster.parse(options.nodes)
    cpu = time.process_time()
    workload = to_workload(read(Path(options.trace))) if options.trace else made_up(options.jobs, cluster.total)
    reading = time.process_time() - cpu
    tables = {
        f"{workload.name} on {cluster}, reading it included": [row(workload.name, workload, cluster, p, reading) for p in options.policy]
    }
    if options.large:
        large = made_up(options.large, cluster.total)
        tables[f"{options.large} jobs on {cluster}"] = [row("made up", large, cluster, "srtf")]
    tables["Beside a naive loop, SRTF, one node of 64 GPUs"] = beside_naive(made_up(options.naive, 64, load=1.2), Cluster.parse("1x64"))
    tables["Growth of the cost of an event"] = growth(max(options.naive // 2, 10))
    tables["Memory"] = [{"peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}]
    show(options, began, tables)


if __name__ == "__main__":
    main()
