"""Inference beside a training on one core: how much later its answers come than alone, and what the training keeps of its pace.

    python benchmarks/switching.py [--quick] [--trainings digits text] [--number 400] [--modes …] [--migrations 0]

The server (text-classifier, MiniLM, batch 1) and the training share one core, in each of these modes:

- kernel: the training in the lowest scheduling class, as Stoker has it on CPU slots (by autogroup, or SCHED_IDLE)
- turn: both take turns, the server with the higher priority; the training pauses in place at its layers
- SIGSTOP: the training is a command that knows nothing; its supervisor takes the turns
- processes: nothing but the scheduler of the kernel; SCHED_IDLE: the same with the training in that class and a session of its own
- threads: both in one process

Closed loop: a client thinks between an answer and its next request for as long as an answer takes alone. Open loop: requests come at
random, at half the rate that the server manages alone. Times are the pair's own: seconds of CPU of both (and of the supervisor). So what
others do on the host is in none. ``p50``, ``p95``, ``p99`` are over those of the same server alone, which is measured in turn with it.
``preempt``: from a request to a server that waits for one until it computes, ms. ``own``: steps of the training in a second of its own
CPU time, over alone. GPUs and MPS: not here, a slot is a core.

``--migrations N`` measures something else: a switched training of digits-cnn goes on upon another slot, under a real daemon and runner.
From the word to stop until its slot is free (its step ends, and it saves), and from its grant there to its first step, by a start from a
process that has loaded what it needs, or cold.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.spec.model import JobSpec, Share, Stop
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from stoker.runners.share import kernel_priority

PAIR = [sys.executable, str(Path(__file__).with_name("switching_pair.py"))]
MODES = ("kernel", "turn", "SIGSTOP", "SCHED_IDLE", "threads", "processes")
SERVER = "text-classifier"
SHARES = (50, 95, 99)
GOAL_P99, GOAL_PREEMPTED = 1.5, 20.0  #: times alone; ms


class Bench:
    """``number``: requests of each kind of load."""

    def __init__(self, place: Path, number: int) -> None:
        self.place, self.number, self.lease = place, number, 0
        self.core = max(os.sched_getaffinity(0))

    def page(self) -> tuple[Path, memoryview]:
        """Where a training counts."""
        self.lease += 1
        path = self.place / f"page-{self.lease}"
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            return path, memoryview(mmap.mmap(file.fileno(), 4096)).cast("d")

    def run_dir(self, priority: int) -> RunDir:
        """Of a job that takes turns."""
        self.lease += 1
        run = RunDir(self.place, 1, self.lease)
        run.path.mkdir(parents=True)
        run.replace("turn.json", {"path": str(self.place / "turn"), "priority": priority})
        return run

    def start(self, argv: Sequence[str], run: RunDir | None = None, **more: Any) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"OMP_NUM_THREADS": "1"}
        if run is not None:
            env |= {"STOKER_RUN_DIR": str(run.path), "STOKER_LEASE_ID": str(run.lease)}
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})  # what it starts is where it is
        try:
            return subprocess.Popen(list(argv), env=env, start_new_session=True, **more)
        finally:
            os.sched_setaffinity(0, everywhere)

    @contextmanager
    def training(self, mode: str, training: str) -> Iterator[tuple[Path, memoryview, list[int]]]:
        """One that has done some steps; with the processes whose time is its own."""
        path, page = self.page()
        argv = [*PAIR, "train", str(path), training]
        started = self.supervised(argv) if mode == "SIGSTOP" else self.start(argv, self.run_dir(0) if mode == "turn" else None)
        try:
            while page[0] < 3:
                if started.poll() is not None:
                    raise SystemExit(f"the training has ended with {started.returncode}")
                time.sleep(0.05)
            below = [one.pid for one in processes.descendants(started.pid, processes.table())]
            for pid in below or [started.pid]:
                if mode == "kernel":
                    kernel_priority.put(pid, kernel_priority.means(), low=True)
                elif mode == "SCHED_IDLE":
                    kernel_priority.put(pid, "idle", low=True)
            yield path, page, [started.pid, *below]
        finally:
            started.terminate()
            with suppress(subprocess.TimeoutExpired):
                started.wait(10)
            started.kill()
            started.wait()

    def supervised(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """A command with a supervisor that takes its turns; it is told of none itself."""
        run = self.run_dir(0)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "STOKER_TAG": run.tag, "STOKER_LEASE_ID": str(run.lease)}
        env.pop("STOKER_RUN_DIR", None)
        launch = {"argv": list(argv), "env": env, "cwd": str(self.place), "log_limit": 1 << 20, "kill_wait": 5.0, "turns": True}
        started = self.start([sys.executable, "-I", "-m", "stoker.runners.lease.supervisor", str(run.path)], stdin=subprocess.PIPE)
        assert started.stdin is not None
        with started.stdin as pipe:
            pipe.write(json.dumps(launch).encode())
        return started

    def server(self, role: str, path: Path, *given: str, run: RunDir | None = None) -> dict[str, Any]:
        argv = [*PAIR, role, str(path), SERVER, *given, str(self.number)]
        started = self.start(argv, run, stdout=subprocess.PIPE)
        said, _ = started.communicate()
        if started.returncode:
            raise SystemExit(f"the server has ended with {started.returncode}")
        found: dict[str, Any] = json.loads(said)
        return found

    def beside(self, mode: str, training: str) -> dict[str, Any]:
        if mode == "threads":
            return self.server("both", self.page()[0], training)
        with self.training(mode, training) as (path, _, pids):
            return self.server("serve", path, ",".join(map(str, pids)), run=self.run_dir(10) if mode in ("turn", "SIGSTOP") else None)

    def pace(self, training: str, seconds: float) -> float:
        """Steps of a training alone in a second of CPU."""
        with self.training("alone", training) as (_, page, _):
            before, until = list(page[:2]), page[1] + seconds
            while page[1] < until:
                time.sleep(0.1)
            steps, cpu = (now - then for now, then in zip(page[:2], before, strict=True))
            return float(steps / cpu)


def row(mode: str, training: str, load: str, found: dict[str, Any], pace: float) -> dict[str, Any]:
    seen, before = (found["times"][f"{load} {where}"] for where in ("beside", "alone"))
    alone = np.percentile(before["latency"], SHARES)
    times = np.percentile(seen["latency"], SHARES) / alone
    preempted = 1e3 * np.percentile(seen["preempted"], (50, 99))
    return {
        "training": training, "mode": mode, "load": load, "alone p50 ms": round(1e3 * float(alone[0]), 1),
        **{f"p{share}": round(float(of), 2) for share, of in zip(SHARES, times, strict=True)},
        "preempt p50 ms": round(float(preempted[0]), 2), "preempt p99 ms": round(float(preempted[1]), 2),
        "own": round(found["steps"] / found["cpu"] / pace, 2) if found["cpu"] else None,
        "goals": "met" if times[2] <= GOAL_P99 and preempted[1] < GOAL_PREEMPTED else "missed",
    }  # fmt: skip


def migrations(number: int) -> list[dict[str, Any]]:
    """Of a job that is held, while another one takes the slot that it had, and released when the other slot is free."""
    return [_migrations(number, start) for start in ("auto", "off")]


def _migrations(number: int, start: Literal["auto", "off"]) -> dict[str, Any]:
    moved = []
    with Daemon() as daemon:
        daemon.home.config.write_text('[policy]\nname = "switchflow"\n[guards]\nmin_run_time = 0.0\n')
        daemon.start()
        daemon.start_runner(2)
        client = daemon.client()

        def send(job: JobSpec) -> None:
            client.post_raw("/v1/jobs", msgspec.json.encode(submission(job)))

        def block(name: str) -> None:
            """A job that has a slot alone."""
            send(JobSpec(name=name, command=("sleep", "600"), share=Share(gpu="exclusive")))
            daemon.wait_for(
                "a slot is taken", lambda: bool(daemon.query(f"SELECT 1 FROM jobs WHERE name = '{name}' AND state = 'running'"))
            )

        def unblock(name: str) -> None:
            client.post(f"/v1/jobs/{name}/cancel", {})
            daemon.wait_for(
                "it is free", lambda: bool(daemon.query(f"SELECT 1 FROM jobs WHERE name = '{name}' AND finished_at IS NOT NULL"))
            )

        params, share = {"eval_every": 0}, Share(gpu="switched")
        send(JobSpec(name="moves", recipe="digits-cnn", share=share, stop=Stop(iterations=1_000_000), warm=start, params=params))
        for turn in range(number):
            progress(f"migration, warm: {start}, {turn + 1} of {number}")
            lease, slot, _ = _trains(daemon, turn)
            block(f"there-{turn}")
            client.post("/v1/jobs/moves/hold", {})
            gone = f"SELECT epoch(ended_at - stop_at) FROM leases WHERE id = {lease} AND ended_at IS NOT NULL"
            daemon.wait_for("it stops", lambda gone=gone: bool(daemon.query(gone)))  # type: ignore[misc]
            block(f"here-{turn}")
            unblock(f"there-{turn}")
            client.post("/v1/jobs/moves/release", {})
            _, there, begun = _trains(daemon, turn + 1)
            if there == slot:
                raise SystemExit(f"it should have moved from {slot}")
            unblock(f"here-{turn}")
            moved.append((float(daemon.query(gone)[0][0]), begun))
    stops, starts = np.array(moved).T
    return {"start": "warm" if start == "auto" else "cold", "migrations": number, "to leave s": float(np.median(stops)),
            "to its first step there s": float(np.median(starts)), "in all s": float(np.median(stops + starts))}  # fmt: skip


def _trains(daemon: Daemon, before: int) -> tuple[int, str, float]:
    """Its newest lease once it trains there: number, slot, seconds from the grant to the first step. ``before``: leases that it had."""
    asked = (
        "SELECT l.id, any_value(g.gpu_id), epoch(min(m.ts) - any_value(l.granted_at)) FROM leases l JOIN jobs j ON j.id = l.job_id "
        "JOIN lease_gpus g ON g.lease_id = l.id JOIN metrics m ON m.lease_id = l.id AND m.name = 'loss' "
        f"WHERE j.name = 'moves' AND l.attempt = {before + 1} AND l.ended_at IS NULL GROUP BY l.id HAVING count(*) > 20"
    )
    daemon.wait_for("it trains", lambda: bool(daemon.query(asked)))
    ((lease, gpu, seconds),) = daemon.query(asked)
    return int(lease), str(gpu), float(seconds)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trainings", nargs="+", default=["digits", "text"], choices=["digits", "text"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--number", type=int, help="requests of each measurement (default: 400, 60 where it is to be quick)")
    parser.add_argument("--quick", action="store_true", help="few requests, beside digits alone")
    parser.add_argument("--migrations", type=int, default=0, metavar="N", help="only measure N migrations between slots, warm and cold")
    options = parser.parse_args(given)
    if options.migrations:
        began = machine()
        show(options, began, {"A switched training goes on upon another slot": migrations(options.migrations)})
        return
    trainings, number = ["digits"] if options.quick else options.trainings, options.number or (60 if options.quick else 400)
    began, rows = machine(), []
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), number)
        for training in trainings:
            progress(f"{training} alone")
            pace = bench.pace(training, number / 80)
            for mode in options.modes:
                progress(f"{training}: {mode}")
                found = bench.beside(mode, training)
                rows += [row(mode, training, load, found, pace) for load in ("closed", "open")]
    show(options, began, {f"{SERVER}, {number} requests": rows})


if __name__ == "__main__":
    main()
