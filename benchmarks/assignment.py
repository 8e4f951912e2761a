"""Time from a policy's commit until the assignment is with an idle runner that polls for it.

    python benchmarks/assignment.py [--runners 1 16] [--rounds 20]

In each round one job for every runner is submitted at once; all runners are idle and wait in their polls. The time runs from
`leases.granted_at` (taken when the transaction that grants the lease begins, so the commit itself is counted in) until the
runner has decoded the answer that names the lease. The runners speak the real protocol over the daemon's socket but start nothing;
all of them are threads of this process, so with many of them their own work is counted too. Goal: p99 below 100 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from common import Daemon, Runner, arguments, machine, milliseconds, progress, show, submission
from stoker.engine.spec.model import JobSpec


class Taker(threading.Thread):
    """A runner that notes when each lease reaches it, and completes it."""

    def __init__(self, runner: Runner, arrived: dict[int, float]) -> None:
        super().__init__(daemon=True)
        self.runner, self.arrived = runner, arrived

    def run(self) -> None:
        while True:
            try:
                leases = [assignment.lease for assignment in self.runner.poll().leases]
            except Exception:  # the daemon is gone: the benchmark is over
                return
            now = time.time()
            for lease in leases:
                if lease not in self.arrived:
                    self.arrived[lease] = now
                    self.runner.complete(lease)


def measure(runners: int, rounds: int) -> dict[str, Any]:
    arrived: dict[int, float] = {}
    submitted: list[float] = []
    with Daemon() as daemon:
        daemon.start()
        for number in range(runners):
            runner = Runner(daemon.client(), f"node{number}")
            runner.hello()
            Taker(runner, arrived).start()
        for done in range(rounds):
            body = msgspec.json.encode(submission(*(JobSpec(name=f"job-{done}-{number}", recipe="toy") for number in range(runners))))
            submitted += [time.time()] * runners
            daemon.client().post_raw("/v1/jobs", body)
            wanted = (done + 1) * runners
            daemon.wait_for("the jobs of a round end", lambda: len(arrived) >= wanted and _ended(daemon) >= wanted)  # noqa: B023
        granted = dict(daemon.query("SELECT id, epoch(granted_at) FROM leases"))
    latencies = [at - granted[lease] for lease, at in arrived.items()]
    totals = [at - start for start, at in zip(submitted, (arrived[lease] for lease in sorted(arrived)), strict=True)]
    return {
        "runners": runners,
        "assignments": len(latencies),
        **{f"from the commit, {name}": value for name, value in milliseconds(latencies).items()},
        **{f"from submit, {name}": value for name, value in milliseconds(totals).items()},
    }


def _ended(daemon: Daemon) -> int:
    return int(daemon.client().get("/v1/status")["jobs"].get("completed", 0))


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runners", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(given)
    began, rows = machine(), []
    for runners in options.runners:
        progress(f"{runners} runners")
        rows.append(measure(runners, options.rounds))
    show(options, began, {"An assignment reaches an idle runner": rows})


if __name__ == "__main__":
    main()
