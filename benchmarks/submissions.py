"""Submissions per second that a daemon acknowledges, over its Unix socket: single jobs, and arrays of 100 tasks.

    python benchmarks/submissions.py [--clients 1 16] [--seconds 5]

Each client is a thread with a connection of its own that submits and waits until the jobs are durable. No runner is there, so the
jobs pile up while the daemon's policy goes on ordering them, as on a busy host. Each line is a fresh daemon.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from common import Daemon, arguments, at_once, machine, milliseconds, progress, show, submission
from stoker.engine.spec.model import JobSpec

TASKS = 100  #: of an array


def single(number: int) -> bytes:
    job = JobSpec(name=f"job-{number}", recipe="digits-cnn", params={"lr": 0.001, "seed": number}, user="ann", labels={"team": "vision"})
    return msgspec.json.encode(submission(job))


def array(number: int) -> bytes:
    tasks = (
        JobSpec(name=f"sweep-{number}[{task}]", recipe="digits-cnn", params={"seed": task}, array_index=task, array_size=TASKS, array_cap=4)
        for task in range(TASKS)
    )
    return msgspec.json.encode(submission(*tasks))


def measure(clients: int, seconds: float, kind: str, body: Callable[[int], bytes]) -> dict[str, Any]:
    numbers = itertools.count()
    with Daemon() as daemon:
        daemon.start()

        def submitter(_: int) -> Callable[[], object]:
            client = daemon.client()
            return lambda: client.post_raw("/v1/jobs", body(next(numbers)))

        before, _ = daemon.usage()
        latencies, lasted = at_once(clients, seconds, submitter)
        used = daemon.usage()[0] - before
    return {
        "clients": clients,
        "kind": kind,
        "submissions /s": len(latencies) / lasted,
        "jobs /s": len(latencies) * (TASKS if body is array else 1) / lasted,
        **milliseconds(latencies),
        "daemon's CPU ms each": 1e3 * used / len(latencies),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = parser.parse_args(given)
    began, rows = machine(), []
    for kind, body in (("single job", single), (f"array of {TASKS}", array)):
        for clients in options.clients:
            progress(f"{kind}, {clients} clients")
            rows.append(measure(clients, options.seconds, kind, body))
    show(options, began, {"Submissions acknowledged": rows})


if __name__ == "__main__":
    main()
