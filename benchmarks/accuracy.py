"""Whether the simulator's figures are true: beside closed forms, and beside what public simulators print on the same input.

    python benchmarks/accuracy.py [--jobs 2000] [--long 4000000] [--traces DIRECTORY] [--policy fifo srtf …]

Queues: the simulator runs FIFO on so many ``--jobs``; "largest difference" is that of a job's waiting time from the exact recursion on the
same jobs. An average of so few jobs is far from the mean by chance alone, so the recursion is gone through ``--long`` times and its average
compared with the closed form ("error %"). Peers: average job completion times, with the peers' simplifications. ``--traces`` (or the
environment variable STOKER_TRACES) names the directory that has ``side_by_side/`` and ``titan/``; without it that table is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import arguments, folder, machine, progress, show
from expected import PEERS, Peer, exponential, first_free, lindley, mean_wait, mean_wait_of_one, peer_workload, poisson
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.study import choose
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Floats

SEED = 0


class Queue(NamedTuple):
    name: str
    servers: int
    load: float
    services: Callable[[int], Floats]
    mean_wait: float


def exponentials(jobs: int) -> Floats:
    return exponential(jobs, SEED)


def constants(jobs: int) -> Floats:
    return np.ones(jobs)


def two_lengths(jobs: int) -> Floats:
    """Three of four jobs take 1/4, the others 13/4: 1 on average."""
    return np.random.default_rng([SEED, 2]).choice([0.25, 3.25], jobs, p=[0.75, 0.25])


QUEUES = (
    Queue("M/M/1, load 0.7", 1, 0.7, exponentials, mean_wait(1, 0.7)),
    Queue("M/M/2, load 0.7", 2, 1.4, exponentials, mean_wait(2, 1.4)),
    Queue("M/M/4, load 0.7", 4, 2.8, exponentials, mean_wait(4, 2.8)),
    Queue("M/M/8, load 0.8", 8, 6.4, exponentials, mean_wait(8, 6.4)),
    Queue("M/D/1, load 0.6", 1, 0.6, constants, mean_wait_of_one(0.6, 1.0)),
    Queue("M/G/1, two lengths, load 0.6", 1, 0.6, two_lengths, mean_wait_of_one(0.6, 0.75 * 0.25**2 + 0.25 * 3.25**2)),
)


def recursion(arrivals: Floats, services: Floats, servers: int) -> Floats:
    return lindley(arrivals, services) if servers == 1 else first_free(arrivals, services, servers)


def simulated(workload: Workload, nodes: str, policy: str, options: Options) -> tuple[Floats, Floats]:
    """Starts and ends."""
    (choice,) = choose([policy], [])
    made = registry.create(choice.policy, choice.config, interval=options.interval)
    fates = simulate(workload, Cluster.parse(nodes), made, options).fates
    return fates.started, fates.ended


def measure_queue(queue: Queue, jobs: int, long: int) -> dict[str, Any]:
    arrivals, services = poisson(jobs, queue.load, SEED), queue.services(jobs)
    started, _ = simulated(
        make_workload(queue.name, arrivals, services, np.ones(jobs, dtype=np.int64)), f"1x{queue.servers}", "fifo", Options()
    )
    exact = recursion(arrivals, services, queue.servers)
    average = float(recursion(poisson(long, queue.load, SEED), queue.services(long), queue.servers).mean())
    return {
        "queue": queue.name,
        "jobs": jobs,
        "waiting, simulated": float((started - arrivals).mean()),
        "by recursion": float(exact.mean()),
        "largest difference": float(np.abs(started - arrivals - exact).max()),
        "recursion's jobs": long,
        "its average": average,
        "closed form": queue.mean_wait,
        "error %": 100.0 * (average / queue.mean_wait - 1.0),
    }


def measure_peer(peer: Peer, traces: Path) -> dict[str, Any]:
    workload = peer_workload(traces, peer.trace)
    _, ended = simulated(workload, peer.nodes, peer.policy, peer.options)
    average = float((ended - workload.submitted).mean())
    return {
        "trace": peer.trace,
        "policy": peer.policy,
        "resume s": peer.options.costs.resume,
        "rounds": f"{peer.options.interval:g} s" if peer.options.interval else "–",
        "average JCT s": f"{average:,.2f}",
        "theirs s": f"{peer.jct:,.2f}",
        "error %": 100.0 * (average / peer.jct - 1.0),
        "who": peer.who,
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--long", type=int, default=4_000_000)
    parser.add_argument("--traces", type=folder, default=os.environ.get("STOKER_TRACES") or None)
    parser.add_argument("--policy", nargs="+", help="only these peers' policies")
    options = parser.parse_args(given)
    began, tables = machine(), {}
    queues = []
    for queue in QUEUES:
        progress(queue.name)
        queues.append(measure_queue(queue, options.jobs, options.long))
    tables["First come, first served: mean waiting, in mean services"] = queues
    peers = []
    for peer in PEERS if options.traces else ():
        if options.policy is None or peer.policy.split(",")[0] in options.policy:
            progress(f"{peer.trace}, {peer.policy}")
            peers.append(measure_peer(peer, options.traces))
    if peers:
        tables["Average job completion time beside public simulators"] = peers
    show(options, began, tables)


if __name__ == "__main__":
    main()
