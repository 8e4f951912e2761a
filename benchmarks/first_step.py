"""From `submit` to the first training step, with a cold daemon and with a warm one, and where the time goes.

    python benchmarks/first_step.py [--rounds 5]

cold: the daemon and its runner are started, the home is empty; the time runs from the start of the daemon's process.
warm: both are up and idle; the time runs from the call that submits. A real runner starts a real worker that imports torch and trains a
linear layer: what is left is what Stoker and the imports cost. The parts come from the tables (submitted_at, granted_at, the event
in which the runner says that it has the lease, started_at, the first record) and from the worker itself (start of its process, torch
imported, task built). The time of a median round is shown, part by part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec

PARTS = ("start", "commit", "policy", "poll", "supervisor", "imports", "build", "first step")
MEANING = {
    "start": "processes of daemon and runner until both are there",
    "commit": "submit called until it is committed",
    "policy": "until a policy's plan grants the lease",
    "poll": "until the runner has taken it up",
    "supervisor": "until the worker's process starts",
    "imports": "Python and torch",
    "build": "the task",
    "first step": "trained and recorded",
    "total": "all of it",
}


def cold() -> dict[str, float]:
    with Daemon() as daemon:
        start = time.time()
        daemon.start()
        daemon.start_runner(1)
        _wait_for_runner(daemon)
        return parts(daemon, "cold", start)


def warm(rounds: int) -> list[dict[str, float]]:
    with Daemon() as daemon:
        daemon.start()
        daemon.start_runner(1)
        _wait_for_runner(daemon)
        parts(daemon, "unmeasured", time.time())
        return [parts(daemon, f"warm-{number}", time.time()) for number in range(rounds)]


def _wait_for_runner(daemon: Daemon) -> None:
    client = daemon.client()
    daemon.wait_for("the runner registers", lambda: bool(client.get("/v1/runners")["runners"]))


def parts(daemon: Daemon, name: str, start: float) -> dict[str, float]:
    """Submit the probe, wait for its end; seconds of each part from ``start`` on."""
    job = JobSpec(name=name, entrypoint="first_step_probe:task", workdir=str(Path(__file__).resolve().parent))
    called = time.time()
    daemon.client().post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
    client = daemon.client()
    daemon.wait_for("the probe ends", lambda: client.get(f"/v1/jobs/{name}")["job"]["state"] in ("completed", "failed"))
    ((number, state, submitted, granted),) = daemon.query(
        "SELECT j.id, j.state, epoch(j.submitted_at), epoch(l.granted_at) FROM jobs j JOIN leases l ON l.job_id = j.id "
        f"WHERE j.name = '{name}'"
    )
    if state != "completed":
        raise SystemExit(client.get(f"/v1/jobs/{name}/logs")["text"])
    ((stepped, run_dir),) = daemon.query(
        f"SELECT min(epoch(m.ts)), any_value(w.run_dir) FROM metrics m JOIN workers w ON w.lease_id = m.lease_id WHERE m.job_id = {number}"
    )
    taken = (Path(run_dir) / "assignment.json").stat().st_mtime  # what an agent writes first of a lease that is new to it
    stamps = json.loads((Path(run_dir) / "stamps.json").read_text())
    moments = [start, called, submitted, granted, taken, stamps["process"], stamps["imported"], stamps["built"], stepped]
    return {**dict(zip(PARTS, np.diff(moments).tolist(), strict=True)), "total": stepped - start}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(given)
    began = machine()
    progress("cold")
    colds = [cold() for _ in range(options.rounds)]
    progress("warm")
    warms = warm(options.rounds)
    median = {
        kind: {part: float(np.median([one[part] for one in rounds])) for part in rounds[0]}
        for kind, rounds in (("cold", colds), ("warm", warms))
    }
    rows = [
        {"part": part, "cold ms": 1e3 * median["cold"][part], "warm ms": 1e3 * median["warm"][part], "what": MEANING[part]}
        for part in MEANING
    ]
    show(options, began, {"From submit to the first step, medians": rows})


if __name__ == "__main__":
    main()
