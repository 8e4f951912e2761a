"""Two trainings on one slot, packed by Lucid, beside the same training alone: the slow-down of each, and what both do in all.

    python benchmarks/packing.py [--seconds 30] [--jobs waits computes] [--gpu]

One daemon, and a runner with one slot: jobs that share it are pinned to its core. With ``--gpu`` it is the GPU of this host. `waits`
sleeps for 20 ms in each step, as for its data; `computes` keeps the core busy. Steps a second are counted from the jobs' own records while
both train, and alone in the same way before. ``both / one after the other`` is what the slot does in all, beside what it does when the
jobs take turns. Two more columns are what Stoker has measured by itself: `utilisation` of the job alone, and the slow-down of the pair
(table `slowdowns`; it takes 10 s).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec, Stop

CONFIG = """
[runners]
telemetry_interval = 0.5
"""
PARAMS: dict[str, dict[str, Any]] = {
    "waits": {"batch_size": 16, "samples": 4096, "width": 8, "step_ms": 20.0},
    "computes": {"batch_size": 256, "samples": 4096, "width": 512, "step_ms": 0.0},
}


def spec(name: str, kind: str) -> JobSpec:
    params = {**PARAMS[kind], "eval_every": 0, "checkpoint_every": 0}
    return JobSpec(name=name, recipe="toy", backbone=kind, params=params, stop=Stop(iterations=100_000_000), grace=20.0, gpu_memory=4 << 30)


class Job:
    """A job from its submission on; what it has done is read from its own records."""

    def __init__(self, daemon: Daemon, name: str, kind: str) -> None:
        self.daemon, self.name, self.client = daemon, name, daemon.client()
        self.client.post_raw("/v1/jobs", msgspec.json.encode(submission(spec(name, kind))))

    def records(self) -> list[tuple[float, int]]:
        """(s since the epoch, step) of each."""
        rows = self.daemon.query(f"SELECT run_dir FROM workers w JOIN leases l ON l.id = lease_id JOIN jobs j ON j.id = l.job_id "
                                 f"WHERE j.name = '{self.name}' ORDER BY l.id DESC LIMIT 1")  # fmt: skip
        path = Path(rows[0][0]) / "reports-0.jsonl" if rows and rows[0][0] else None
        if path is None or not path.exists():
            return []
        lines = map(json.loads, path.read_text().rpartition("\n")[0].splitlines())
        return [(line["ts"], line["step"]) for line in lines if line.get("values")]

    def trains(self) -> bool:
        return len(self.records()) > 1

    def pace(self, begin: float, end: float) -> float:
        """Steps a second from its first record after ``begin`` to its last before ``end``."""
        inside = [(ts, step) for ts, step in self.records() if begin <= ts <= end]
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) / (last - first)

    def cancel(self) -> None:
        self.client.post(f"/v1/jobs/{self.name}/cancel", {})
        self.daemon.wait_for("the job ends", lambda: self.client.get(f"/v1/jobs/{self.name}")["job"]["finished_at"])


def alone(daemon: Daemon, kind: str, seconds: float) -> tuple[float, float]:
    """Steps a second of one job, and how busy it keeps the slot."""
    job = Job(daemon, f"{kind}-alone", kind)
    daemon.wait_for("the job trains", job.trains)
    begin = time.time()
    time.sleep(seconds)
    known = f"SELECT utilisation FROM speeds WHERE model = 'toy/{kind}' AND utilisation IS NOT NULL"
    daemon.wait_for("its use of the slot is measured", lambda: bool(daemon.query(known)))
    pace = job.pace(begin, time.time())
    busy = float(daemon.query(known)[0][0])
    job.cancel()
    return pace, busy


def packed(daemon: Daemon, kind: str, seconds: float) -> tuple[list[float], float]:
    """Steps a second of each of two jobs beside each other, and the slow-down that Stoker has measured of them, NaN: none yet."""
    jobs = [Job(daemon, f"{kind}-{name}", kind) for name in ("left", "right")]
    daemon.wait_for("both train", lambda: all(job.trains() for job in jobs))
    shares = daemon.query("SELECT share FROM live_shares")
    if shares != [["packed"], ["packed"]]:
        raise SystemExit(f"Lucid should have packed both: {shares}")
    begin = time.time()
    time.sleep(seconds)
    end = time.time()
    paces = [job.pace(begin, end) for job in jobs]
    found = daemon.query(f"SELECT slowdown FROM slowdowns WHERE model = 'toy/{kind}'")
    for job in jobs:
        job.cancel()
    return paces, float(found[0][0]) if found else math.nan


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--jobs", nargs="+", default=list(PARAMS), choices=list(PARAMS))
    parser.add_argument("--gpu", action="store_true", help="on the GPU of this host, not on a CPU slot")
    options = parser.parse_args(given)
    began = machine()
    rows = []
    with Daemon() as daemon:
        daemon.home.config.write_text(CONFIG)
        daemon.start()
        daemon.start_runner(None if options.gpu else 1)
        daemon.client().post("/v1/policy", {"policy": "lucid", "interval": 5.0, "config": {"pack_knob": 4}})
        for kind in options.jobs:
            progress(f"{kind}, alone")
            pace, busy = alone(daemon, kind, options.seconds)
            progress(f"{kind}, two beside each other")
            paces, measured = packed(daemon, kind, options.seconds)
            row: dict[str, Any] = {"job": kind, "utilisation": busy, "alone steps/s": pace}
            row |= {f"{name} steps/s": one for name, one in zip(("left", "right"), paces, strict=True)}
            row |= {f"{name} slower": pace / one for name, one in zip(("left", "right"), paces, strict=True)}
            row |= {"both / one after the other": sum(paces) / pace}
            rows.append(row | ({} if math.isnan(measured) else {"slow-down measured": measured}))
    show(options, began, {"Two jobs on one slot": rows})


if __name__ == "__main__":
    main()
