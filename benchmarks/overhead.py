"""What training costs more under Stoker: the same script bare and as a job, in turn, on the same machine.

    python benchmarks/overhead.py [--rounds 7] [--steps 300]

The script (a small CNN on one thread) reports every step and asks at every step whether to stop; bare, these calls do nothing. It
times its loop itself: wall and CPU time of its own process. Under Stoker, daemon and runner are at work beside it: their CPU time from
submission to end is shown too, as a share of one core (the supervisor sleeps in between). Each round is a pair, the order alternates;
the figure is the median of the pairs' ratios, with the quartiles as its spread. Where other work shares the machine, CPU time is the
figure to look at. Goal: below 1 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec

SCRIPT = Path(__file__).with_name("overhead_script.py").resolve()
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Pairs:
    """Runs of the script, bare and as jobs of one daemon."""

    def __init__(self, daemon: Daemon, runner: subprocess.Popen[bytes], steps: int) -> None:
        self.daemon, self.steps = daemon, steps
        self.machinery = [daemon.daemon.pid, runner.pid]
        self.used: list[float] = []  #: CPU seconds of daemon and runner per second
        self.count = 0

    def bare(self) -> dict[str, float]:
        return self._run(lambda argv: subprocess.run(argv, check=True, env=ENVIRONMENT, cwd=self.daemon.home.path))

    def stoker(self) -> dict[str, float]:
        return self._run(self._submit)

    def _submit(self, argv: Sequence[str]) -> None:
        client = self.daemon.client()
        job = JobSpec(name=f"run-{self.count}", command=tuple(argv), workdir=str(self.daemon.home.path))
        before, start = self._cpu(), time.monotonic()
        client.post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
        self.daemon.wait_for("the job writes what it took", Path(argv[2]).exists, 600)  # asking the daemon would cost it CPU time
        self.used.append((self._cpu() - before) / (time.monotonic() - start))
        self.daemon.wait_for("the job ends", lambda: client.get(f"/v1/jobs/{job.name}")["job"]["state"] == "completed")

    def _run(self, start: Callable[[Sequence[str]], object]) -> dict[str, float]:
        self.count += 1
        file = self.daemon.home.path / f"taken-{self.count}.json"
        start([sys.executable, str(SCRIPT), str(file), str(self.steps)])
        taken: dict[str, float] = json.loads(file.read_text())
        return taken

    def _cpu(self) -> float:
        """CPU seconds of daemon and runner."""
        times = [psutil.Process(pid).cpu_times() for pid in self.machinery]
        return sum(one.user + one.system for one in times)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(given)
    began = machine()
    bare, under = [], []
    with Daemon() as daemon:
        daemon.start()
        pairs = Pairs(daemon, daemon.start_runner(1), options.steps)
        for number in range(options.rounds):
            progress(f"pair {number + 1} of {options.rounds}")
            if number % 2:
                under.append(pairs.stoker())
                bare.append(pairs.bare())
            else:
                bare.append(pairs.bare())
                under.append(pairs.stoker())
    rows: list[dict[str, Any]] = []
    for kind in ("wall", "cpu"):
        ratios = np.array([job[kind] / alone[kind] for job, alone in zip(under, bare, strict=True)])
        low, middle, high = 100 * (np.percentile(ratios, [25, 50, 75]) - 1)
        row = {name: float(np.median([one[kind] for one in runs])) for name, runs in (("bare s", bare), ("stoker s", under))}
        rows.append({"time": kind, **row, "overhead %": float(middle), "lower quartile %": float(low), "upper quartile %": float(high)})
    beside = [{"beside it": "daemon and runner", "CPU % of a core": 100 * float(np.median(pairs.used))}]
    show(options, began, {f"{options.steps} steps of training": rows, "At work meanwhile": beside})


if __name__ == "__main__":
    main()
