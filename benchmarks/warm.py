"""From submission to the first step of a job that starts by a fork, beside the same job in a fresh process, in one run.

    python benchmarks/warm.py [--rounds 5] [--jobs digits-cnn text-classifier entrypoint prompt-tune] [--gpu]

One daemon; its runner is started without and with ``--warm auto``. The time runs from the HTTP request to the first record of the job. Its
parts come from the tables (submitted_at, granted_at), from the files of the lease (assignment.json is written when the runner takes it up,
supervisor.json when its supervisor registers), and from its records. `own` is Stoker's part: until the supervisor has registered. `step` is
the second step of the job, `before it` the total without one such step. `exit` is from the last record to the end of the process. Medians.

prompt-tune tunes a prompt of SmolLM2-135M, and is left out where the package that carries it cannot be had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.errors import StokerError
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners.packages import SMOLLM2, fetch

PARTS = ("submit", "tick", "poll", "start", "first step")
JOBS = ("digits-cnn", "text-classifier", "entrypoint", "prompt-tune")
#: at most this total (s), and at least so many times sooner than cold; of an LLM's job without a step, which is most of it
GOALS: dict[str, tuple[float | None, float]] = {"prompt-tune": (None, 20.0)}
GOAL, EXIT = (0.25, 8.0), 0.05


def spec(name: str, kind: str) -> JobSpec:
    stop = Stop(iterations=3)
    if kind == "entrypoint":
        return JobSpec(name=name, entrypoint="first_step_probe:task", workdir=str(Path(__file__).resolve().parent), stop=stop)
    params: dict[str, Any] = {"eval_limit": 4} if kind == "prompt-tune" else {}
    return JobSpec(name=name, recipe=kind, params=params, stop=stop)


def measured(daemon: Daemon, kind: str, name: str) -> dict[str, float]:
    """Seconds of each part of one job, and whether it was forked."""
    client = daemon.client()
    called = time.time()
    client.post_raw("/v1/jobs", msgspec.json.encode(submission(spec(name, kind))))
    daemon.wait_for("the job ends", lambda: client.get(f"/v1/jobs/{name}")["job"]["finished_at"])
    ((state, submitted, granted, path, warm),) = daemon.query(
        "SELECT j.state, epoch(j.submitted_at), epoch(l.granted_at), w.run_dir, l.warm FROM jobs j JOIN leases l ON l.job_id = j.id "
        f"JOIN workers w ON w.lease_id = l.id WHERE j.name = '{name}'"
    )
    if state != "completed":
        raise SystemExit(client.get(f"/v1/jobs/{name}/logs")["text"])
    run = Path(path)
    records = [json.loads(line) for line in (run / "reports-0.jsonl").read_text().splitlines()]
    first, second = (next(record["ts"] for record in records if record["step"] == step) for step in (1, 2))
    moments = [called, submitted, granted, *((run / file).stat().st_mtime for file in ("assignment.json", "supervisor.json")), first]
    ended = json.loads((run / "exit.json").read_text())["ended_at"]
    total, own, step = first - called, moments[-2] - called, second - first
    found = {"own": own, "step": step, "before it": total - step, "total": total, "exit": ended - records[-1]["ts"], "warm": float(warm)}
    return dict(zip(PARTS, np.diff(moments).tolist(), strict=True)) | found


def rounds(daemon: Daemon, kind: str, way: str, count: int, gpu: bool) -> dict[str, float]:
    prefix = f"{kind}-{way.split(maxsplit=1)[0]}"  # a name has no space
    runner = daemon.start_runner(None if gpu else 1, "--warm", "auto" if way == "fork" else "off")
    try:
        client = daemon.client()
        daemon.wait_for("the runner registers", lambda: any(row["pid"] == runner.pid for row in client.get("/v1/runners")["runners"]))
        measured(daemon, kind, f"{prefix}-first")  # files in the cache, speeds measured, a server loaded
        if way == "fork":
            daemon.wait_for("a server is ready", lambda: bool(daemon.query("SELECT 1 FROM warm_now WHERE state = 'ready'")))
            measured(daemon, kind, f"{prefix}-second")
        found = [measured(daemon, kind, f"{prefix}-{number}") for number in range(count)]
    finally:
        runner.terminate()
        runner.wait()
    if any(one["warm"] != (way == "fork") for one in found):
        raise SystemExit(f"{kind}: not each job was started as it should be ({way}); see 'stoker explain'")
    return {part: float(np.median([one[part] for one in found])) for part in found[0]}


def judged(kind: str, way: str, cold: dict[str, float], this: dict[str, float]) -> dict[str, Any]:
    """How many times sooner than cold, and which goals are missed."""
    most, least = GOALS.get(kind, GOAL)
    of = "total" if most else "before it"
    sooner = cold[of] / this[of]
    late = way == "fork" and most is not None and this["total"] > most
    missed = [f"{most} s"] * late + [f"{least:g} ×"] * (way == "fork" and sooner < least) + ["exit"] * (this["exit"] > EXIT)
    return {"× sooner": sooner, "missed": ", ".join(missed) or "nothing"}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", default=JOBS, metavar="RECIPE")
    parser.add_argument("--gpu", action="store_true", help="on a GPU of this host, not on a CPU slot")
    options = parser.parse_args(given)
    kinds = list(options.jobs)
    if "prompt-tune" in kinds:
        try:
            fetch(SMOLLM2)
        except StokerError as error:
            progress(f"prompt-tune is left out: {error}")
            kinds.remove("prompt-tune")
    began = machine()
    rows = []
    with Daemon() as daemon:
        daemon.start()
        for kind in kinds:
            ways = {}
            for way in ("fresh process", "fork"):
                progress(f"{kind}, {way}")
                ways[way] = rounds(daemon, kind, way, options.rounds, options.gpu)
            for way, parts in ways.items():
                times = {f"{part} ms": 1e3 * seconds for part, seconds in parts.items() if part != "warm"}
                rows.append({"job": kind, "start by": way, **times, **judged(kind, way, ways["fresh process"], parts)})
    goals = "goals: 0.25 s and 8 × sooner (of an LLM 20 × without the step), exit 50 ms"
    show(options, began, {f"From submission to the first step, medians; {goals}": rows})


if __name__ == "__main__":
    main()
