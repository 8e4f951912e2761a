"""Time of one policy tick, view building included, with 100, 1 000 and 10 000 pending jobs.

    python benchmarks/policy_tick.py [--policy priority] [--ticks 50]

A store on disk, GPUs all held by running jobs, nothing new to start: what a busy host pays at every event.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from stoker.engine.config import Config, PolicyDefault
from stoker.engine.protocol import VERSION, GpuInfo, Hello
from stoker.engine.scheduling import Scheduling
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.store.store import Store
from stoker.engine.tasks import Tasks
from stoker.engine.view import snapshot
from stoker.engine.workflow.runners import hello
from stoker.engine.workflow.submit import SubmitRequest, submit

GPUS = 8


def measure(policy: str, pending: int, ticks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of whole ticks, of building the view, and of plan(), each of length ``ticks``."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store.open(Path(directory) / "bench.duckdb")
        gpus = [GpuInfo(id=f"GPU-{i}", index=i, kind="cuda", name="bench", memory=80 << 30) for i in range(GPUS)]
        store.write(hello, Hello(protocol=VERSION, version="bench", node="n", host="h", boot_id="b", pid=1, pid_started=0.0, home="/",
                                 address="localhost", pool="default", gpus=gpus, leases=[]))  # fmt: skip
        rng = np.random.default_rng(0)
        jobs = [JobSpec(name=f"job-{i}", recipe="toy", priority=int(rng.integers(0, 5)), estimate=float(rng.exponential(3600.0)),
                        gpus_min=(n := int(rng.choice([1, 2, 4, 8]))), gpus_max=n, user=f"u{i % 20}") for i in range(pending + GPUS)]  # fmt: skip
        provenance = Provenance(argv=[], cwd="/")
        store.write(submit, SubmitRequest(Submission(jobs=jobs, provenance=provenance), "bench"))
        tasks = Tasks(lambda *_: None)
        scheduling = Scheduling(store, tasks, Config(policy=PolicyDefault(name=policy)))
        scheduling.reload()
        for _ in range(3):  # starts what fits, writes the reasons
            scheduling.tick("default")
        whole, view, plan = np.zeros(ticks), np.zeros(ticks), np.zeros(ticks)
        state = scheduling._pools["default"]
        for i in range(ticks):
            start = time.perf_counter()
            scheduling.tick("default")
            whole[i] = time.perf_counter() - start
            start = time.perf_counter()
            with store.read() as con:
                seen = snapshot(con, "default", time.time())
            view[i] = time.perf_counter() - start
            start = time.perf_counter()
            state.policy.plan(seen.view)
            plan[i] = time.perf_counter() - start
        store.close()
        return whole, view, plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", default=["fifo", "srtf", "priority"])
    parser.add_argument("--pending", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--ticks", type=int, default=50)
    options = parser.parse_args()
    print(f"{'policy':10} {'pending':>8} {'tick p50':>10} {'tick p99':>10} {'view p50':>10} {'plan p50':>10}   milliseconds")
    for policy in options.policy:
        for pending in options.pending:
            whole, view, plan = (1e3 * seconds for seconds in measure(policy, pending, options.ticks))
            p50, p99 = np.percentile(whole, [50, 99])
            print(f"{policy:10} {pending:8} {p50:10.1f} {p99:10.1f} {np.median(view):10.1f} {np.median(plan):10.1f}")


if __name__ == "__main__":
    main()
