"""Acknowledged reports of runners per second: group commit beside one transaction a report, on the same machine in the same run.

    python benchmarks/store_writes.py [--clients 1 4 16] [--seconds 5]

Each client is a thread that reports 5 steps (10 metrics) of its own running job and waits until they are durable. "one each" is the
same store and the same statements with batches of one; "grouped" is the store as it is. The rounds alternate, so that whatever
else the machine does meets both. The last table is the same over HTTP on the daemon's Unix socket.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from common import Daemon, Runner, Training, arguments, at_once, machine, milliseconds, progress, show, submission
from stoker.engine.client import Client
from stoker.engine.fleet.registration import hello, report
from stoker.engine.jobs.leases import Grant
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import REPORT, WorkerUpdate
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.spec.model import JobSpec
from stoker.engine.store.store import MAX_BATCH, Store


def trainings_in(store: Store, count: int) -> list[Training]:
    """As many running jobs, each on a runner of its own."""
    runners = [Runner(Client(), f"node{number}") for number in range(count)]
    for runner in runners:
        runner.session = store.write(hello, runner.greeting())
    jobs = submission(*(JobSpec(name=f"job-{number}", recipe="toy") for number in range(count)))
    ids = [job["id"] for job in store.write(submit, SubmitRequest(jobs, "benchmark"))]
    now = time.time()
    decision = Decision("default", "fifo", 0, now, now, 1, count, "ok", None, 0.0, 0.0, 0.0, "applied")
    grants = [Grant(job, ((runner.gpus[0].id, runner.node),), None) for job, runner in zip(ids, runners, strict=True)]
    leases = store.write(enact, Enactment(decision, grants)).leases
    trainings = [Training(runner, lease) for runner, lease in zip(runners, leases, strict=True)]
    for training in trainings:
        running = WorkerUpdate(lease=training.lease, state="running", ts=now, pid=1, pid_started=0.0, boot_id="b", run_dir="/")
        store.write(report, msgspec.structs.replace(training.next(), workers=[running]))
    return trainings


def direct(clients: int, seconds: float, max_batch: int) -> tuple[list[float], float]:
    with tempfile.TemporaryDirectory() as directory:
        store = Store.open(Path(directory) / "bench.duckdb", max_batch=max_batch)
        trainings = trainings_in(store, clients)
        measured = at_once(clients, seconds, lambda number: lambda: store.write(report, trainings[number].next()))
        store.close()
        return measured


def compare(clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Rounds of both kinds in turn."""
    taken: dict[int, list[float]] = {1: [], MAX_BATCH: []}
    lasted = {1: 0.0, MAX_BATCH: 0.0}
    for _ in range(rounds):
        for max_batch in (1, MAX_BATCH):
            latencies, seconds_used = direct(clients, seconds / rounds, max_batch)
            taken[max_batch] += latencies
            lasted[max_batch] += seconds_used
    one, grouped = (len(taken[kind]) / lasted[kind] for kind in (1, MAX_BATCH))
    return {
        "clients": clients,
        "one each /s": one,
        **{f"one each {name}": value for name, value in milliseconds(taken[1]).items()},
        "grouped /s": grouped,
        **{f"grouped {name}": value for name, value in milliseconds(taken[MAX_BATCH]).items()},
        "ratio": grouped / one,
    }


def over_http(clients: int, seconds: float) -> dict[str, Any]:
    with Daemon() as daemon:
        daemon.start()
        runners = [Runner(daemon.client(), f"node{number}") for number in range(clients)]
        for runner in runners:
            runner.hello()
        jobs = submission(*(JobSpec(name=f"job-{number}", recipe="toy") for number in range(clients)))
        daemon.client().post_raw("/v1/jobs", msgspec.json.encode(jobs))
        trainings = [_started(runner) for runner in runners]
        before, _ = daemon.usage()
        latencies, lasted = at_once(clients, seconds, lambda number: lambda: _send(trainings[number]))
        used = daemon.usage()[0] - before
        return {
            "clients": clients,
            "reports /s": len(latencies) / lasted,
            **milliseconds(latencies),
            "daemon's CPU ms a report": 1e3 * used / len(latencies),
        }


def _started(runner: Runner) -> Training:
    while not (answer := runner.poll()).leases:
        pass
    runner.run(answer.leases[0].lease)
    return Training(runner, answer.leases[0].lease)


def _send(training: Training) -> None:
    training.runner.client.post_raw(REPORT, msgspec.json.encode(training.next()))


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="in turn, for each number of clients")
    options = parser.parse_args(given)
    began = machine()
    stores, daemons = [], []
    for clients in options.clients:
        progress(f"store, {clients} clients")
        stores.append(compare(clients, options.seconds, options.rounds))
    for clients in options.clients:
        progress(f"daemon, {clients} clients")
        daemons.append(over_http(clients, options.seconds))
    show(options, began, {"Store: reports acknowledged": stores, "Daemon, over its Unix socket": daemons})


if __name__ == "__main__":
    main()
