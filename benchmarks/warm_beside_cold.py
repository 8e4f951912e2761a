"""From submission to the first step of a job that starts by a fork, beside the same job in a fresh process, in one run.

    python benchmarks/warm_beside_cold.py [--rounds 10] [--jobs digits-cnn text-classifier entrypoint] [--gpu]

One daemon; its runner is started without and with ``--warm auto``. The time runs from the HTTP request to the first record of the job; the
parts come from the tables (submitted_at, granted_at), from the files of the lease (assignment.json is written when the runner takes it up,
supervisor.json when its supervisor registers), and from its records: `exit` is from the last one to the end of the process. Medians.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec, Stop

PARTS = ("submit", "tick", "poll", "start", "first step")


def spec(name: str, kind: str) -> JobSpec:
    stop = Stop(iterations=3)
    if kind == "entrypoint":
        return JobSpec(name=name, entrypoint="first_step_probe:task", workdir=str(Path(__file__).resolve().parent), stop=stop)
    return JobSpec(name=name, recipe=kind, stop=stop)


def measured(daemon: Daemon, kind: str, name: str) -> dict[str, float]:
    """Seconds of each part of one job."""
    client = daemon.client()
    called = time.time()
    client.post_raw("/v1/jobs", msgspec.json.encode(submission(spec(name, kind))))
    daemon.wait_for("the job ends", lambda: client.get(f"/v1/jobs/{name}")["job"]["finished_at"])
    ((state, submitted, granted, path),) = daemon.query(
        "SELECT j.state, epoch(j.submitted_at), epoch(l.granted_at), w.run_dir FROM jobs j JOIN leases l ON l.job_id = j.id "
        f"JOIN workers w ON w.lease_id = l.id WHERE j.name = '{name}'"
    )
    if state != "completed":
        raise SystemExit(client.get(f"/v1/jobs/{name}/logs")["text"])
    run = Path(path)
    told = [json.loads(line)["ts"] for line in (run / "reports-0.jsonl").read_text().splitlines()]
    moments = [called, submitted, granted, *((run / file).stat().st_mtime for file in ("assignment.json", "supervisor.json")), told[0]]
    ended = json.loads((run / "exit.json").read_text())["ended_at"]
    return {**dict(zip(PARTS, np.diff(moments).tolist(), strict=True)), "total": told[0] - called, "exit": ended - told[-1]}


def rounds(daemon: Daemon, kind: str, way: str, count: int, gpu: bool) -> dict[str, float]:
    runner = daemon.start_runner(None if gpu else 1, "--warm", "auto" if way == "warm" else "off")
    try:
        client = daemon.client()
        daemon.wait_for("the runner registers", lambda: any(row["pid"] == runner.pid for row in client.get("/v1/runners")["runners"]))
        measured(daemon, kind, f"{kind}-{way}-first")  # files in the cache, speeds measured, a server loaded
        time.sleep(10.0 if way == "warm" else 0.0)
        found = [measured(daemon, kind, f"{kind}-{way}-{number}") for number in range(count)]
    finally:
        runner.terminate()
        runner.wait()
    return {part: float(np.median([one[part] for one in found])) for part in found[0]}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", nargs="+", default=["digits-cnn", "text-classifier", "entrypoint"], metavar="RECIPE")
    parser.add_argument("--gpu", action="store_true", help="on a GPU of this host, not on a CPU slot")
    options = parser.parse_args(given)
    began = machine()
    rows = []
    with Daemon() as daemon:
        daemon.start()
        for kind in options.jobs:
            ways = {}
            for way in ("cold", "warm"):
                progress(f"{kind}, {way}")
                ways[way] = rounds(daemon, kind, way, options.rounds, options.gpu)
            for way, parts in ways.items():
                times = {f"{part} ms": 1e3 * seconds for part, seconds in parts.items()}
                rows.append({"job": kind, "start by": way, **times, "cold / this": ways["cold"]["total"] / parts["total"]})
    show(options, began, {"From submission to the first step, medians": rows})


if __name__ == "__main__":
    main()
