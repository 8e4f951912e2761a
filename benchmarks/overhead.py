"""What training costs more under Stoker: a job's speed with Stoker at work and with all of Stoker stopped, by turns.

    python benchmarks/overhead.py [--pairs 60] [--seconds 2]

A job (a small CNN on one thread) trains for some seconds while it reports every step and asks at every step whether to stop, daemon,
runner and supervisor at work beside it; then as long bare: it says nothing, and they are stopped (SIGSTOP). Two separate runs of one
script differ by 10 % on a machine that is shared; turns of one process, seconds apart, in random order, differ less. The figure is the
median of the pairs' ratios, with its 95 % interval (bootstrap); "control" is the same for bare turns against the bare turns after
them: what noise alone makes of it. Goal: below 1 %.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec

SCRIPT = Path(__file__).with_name("overhead_script.py").resolve()
Pair = dict[str, dict[str, float]]


def measure(pairs: int, seconds: float) -> tuple[list[Pair], float]:
    """Pairs of turns, and CPU seconds that daemon and runner used per second of the job."""
    with Daemon() as daemon:
        daemon.start()
        runner = daemon.start_runner(1)
        machinery = [psutil.Process(pid) for pid in (daemon.daemon.pid, runner.pid)]
        file = daemon.home.path / "taken.json"
        argv = [sys.executable, str(SCRIPT), str(file), str(pairs), str(seconds), *(str(process.pid) for process in machinery)]
        job = JobSpec(name="turns", command=tuple(argv), workdir=str(daemon.home.path))
        before, start = _cpu(machinery), time.monotonic()
        daemon.client().post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
        daemon.wait_for("the job writes what it took", file.exists, 120 + 3 * pairs * seconds)
        used = (_cpu(machinery) - before) / (time.monotonic() - start)
        daemon.wait_for("the job ends", lambda: daemon.client().get("/v1/jobs/turns")["job"]["state"] == "completed")
        found: list[Pair] = json.loads(file.read_text())
    return found, used


def _cpu(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _median(ratios: np.ndarray[Any, Any]) -> dict[str, float]:
    """Median excess in per cent, with the bootstrap's 95 % interval."""
    samples = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return {name: 100 * (float(value) - 1) for name, value in (("overhead %", np.median(ratios)), ("from %", low), ("to %", high))}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    options = parser.parse_args(given)
    began = machine()
    progress(f"{options.pairs} pairs of turns, {2 * options.pairs * options.seconds:.0f} s")
    found, used = measure(options.pairs, options.seconds)
    rows: list[dict[str, Any]] = []
    for kind in ("wall", "cpu"):
        told, bare = (np.array([pair[turn][kind] for pair in found]) for turn in ("with", "without"))
        rows.append({"time": kind, "bare ms": float(np.median(bare)), "stoker ms": float(np.median(told)), **_median(told / bare)})
        if len(bare) > 1:
            rows.append({"time": f"{kind}, control", "bare ms": float(np.median(bare)), "stoker ms": None, **_median(bare[1:] / bare[:-1])})
    beside = [{"beside it": "daemon and runner, half of the time stopped", "CPU % of a core": 100 * used}]
    show(options, began, {"A step of training": rows, "At work meanwhile": beside})


if __name__ == "__main__":
    main()
