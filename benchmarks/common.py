"""What the benchmarks share: a daemon of their own, runners that only speak the protocol, tables, and what the machine was doing."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import psutil
from stoker.engine.client import Client
from stoker.engine.errors import StokerError, Unreachable
from stoker.engine.home import Home
from stoker.engine.protocol import (
    HELLO,
    POLL,
    REPORT,
    VERSION,
    Assignments,
    GpuInfo,
    Hello,
    Poll,
    Record,
    Records,
    Report,
    Sample,
    Welcome,
    WorkerUpdate,
)
from stoker.engine.spec.model import JobSpec, Provenance, Submission

Row = Mapping[str, Any]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the daemon and its home go too
    sys.excepthook = _tell
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A wrong option or file in one line, as of a command."""
    if not isinstance(error, StokerError | OSError | ValueError) or os.environ.get("STOKER_DEBUG"):
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"{Path(sys.argv[0]).name}: error: {error}; STOKER_DEBUG=1 shows where", file=sys.stderr)


def folder(text: str) -> Path:
    """The type of an option."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such directory")
    return Path(text)


def progress(text: str) -> None:
    """Say on stderr what is being measured."""
    print(f"  {text} …", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What a figure has to be read with."""
    import duckdb

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown"
    )
    return {
        "when": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": sys.version.split()[0],
        "duckdb": duckdb.__version__,
    }


def show(options: argparse.Namespace, began: Row, tables: Mapping[str, Sequence[Row]]) -> None:
    """Print the tables, each under its title, or all of it as JSON. ``began``: `machine` as it was before the measurement."""
    if options.json:
        print(json.dumps({"machine": {**began, "load_after": machine()["load"]}, "tables": tables}))
        return
    print(", ".join(f"{name} {value}" for name, value in began.items()) + f", load after {machine()['load']}")
    for title, rows in tables.items():
        if not rows:
            continue
        print(f"\n{title}")
        columns = list(rows[0])
        cells = [columns, *([_text(row[column]) for column in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            print(
                "  "
                + "  ".join(cell.rjust(width) if n else cell.ljust(width) for n, (cell, width) in enumerate(zip(line, widths, strict=True)))
            )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def milliseconds(seconds: Iterable[float]) -> dict[str, float]:
    """Median and p99 in milliseconds."""
    p50, p99 = np.percentile(np.fromiter(seconds, dtype=float), [50, 99]) * 1e3
    return {"p50 ms": float(p50), "p99 ms": float(p99)}


def submission(*jobs: JobSpec) -> Submission:
    return Submission(jobs=list(jobs), provenance=Provenance(argv=["stoker", "submit"], cwd="/", client="benchmark"))


def at_once(clients: int, seconds: float, make: Callable[[int], Callable[[], object]]) -> tuple[list[float], float]:
    """Run ``make(client)()`` over and over in ``clients`` threads for ``seconds``; the latencies, and the time it took in all.

    What was begun within the time is ended and counted, and the time runs until then.
    """
    gate = threading.Barrier(clients + 1)

    def work(number: int) -> list[float]:
        call = make(number)
        call()  # connections, caches
        gate.wait()
        end = time.perf_counter() + seconds
        taken = []
        while (start := time.perf_counter()) < end:
            call()
            taken.append(time.perf_counter() - start)
        return taken

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(work, number) for number in range(clients)]
        gate.wait()
        start = time.perf_counter()
        latencies = [taken for future in futures for taken in future.result()]
        return latencies, time.perf_counter() - start


class Daemon:
    """A daemon with a home of its own, in a process of its own; ended with everything below its home at the end."""

    def __init__(self) -> None:
        self.home = Home(Path(tempfile.mkdtemp(prefix="stoker-bench-")))
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Daemon:
        return self

    def start(self, *options: str) -> float:
        """Start it; seconds from the start of its process until it answers."""
        start = time.perf_counter()
        self.daemon = self.spawn("stoker.engine.daemon", "--home", str(self.home.path), "--log-level", "warning", *options)
        self.wait_for("the daemon answers", self._answers)
        return time.perf_counter() - start

    def _answers(self) -> bool:
        if self.daemon.poll() is not None:
            raise SystemExit(f"the daemon has ended with code {self.daemon.returncode}\n{self._logs()}")
        try:
            self.client().get("/healthz")
        except Unreachable:
            return False
        return True

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.home.path.glob("*.log"))

    def stop(self) -> None:
        """A clean stop of the daemon alone."""
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait()

    def start_runner(self, slots: int | None, *options: str) -> subprocess.Popen[bytes]:
        """A real agent with CPU slots; None: with the GPUs of this host."""
        offered = () if slots is None else ("--slots", str(slots))
        return self.spawn("stoker.runners.host.agent", "--home", str(self.home.path), "--node", "bench", *offered, *options)

    def spawn(self, module: str, *args: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_") or name == "STOKER_CACHE"}
        with (self.home.path / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *args], stdout=log, stderr=log, env=environment | {"OMP_NUM_THREADS": "1"}
            )
        self.processes.append(process)
        return process

    def client(self) -> Client:
        return Client(self.home, url="", token="", timeout=120.0)

    def usage(self) -> tuple[float, int]:
        """CPU seconds that the daemon has used, and its resident memory in bytes."""
        process = psutil.Process(self.daemon.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss

    def query(self, text: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.client().post("/v1/sql", {"query": text, "limit": 100_000})["rows"]
        return rows

    def wait_for(self, what: str, test: Callable[[], bool], seconds: float = 120.0) -> None:
        began = time.monotonic()
        while not test():
            waited = time.monotonic() - began
            if waited > seconds:
                raise SystemExit(f"{what}: did not happen in {seconds:.0f} s\n{self._logs()}")
            time.sleep(min(max(0.02, waited / 20), 0.5))  # what is measured needs the CPU time that each question takes of the daemon

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.home.path, ignore_errors=True)


class Runner:
    """A runner that only speaks the protocol: it takes leases and reports them as it is told, and starts nothing."""

    def __init__(self, client: Client, node: str, gpus: int = 1) -> None:
        self.client, self.node = client, node
        self.gpus = [GpuInfo(id=f"GPU-{node}-{index}", index=index, kind="cuda", name="none", memory=80 << 30) for index in range(gpus)]
        self.session = self.version = 0

    def greeting(self) -> Hello:
        return Hello(protocol=VERSION, version="benchmark", node=self.node, host="localhost", boot_id="benchmark", pid=1, pid_started=0.0,
                     home="/", address="localhost", pool="default", gpus=self.gpus, leases=[])  # fmt: skip

    def hello(self) -> Welcome:
        answer = self.client.post_raw(HELLO, msgspec.json.encode(self.greeting()))
        welcome = msgspec.json.decode(answer, type=Welcome)
        self.session = welcome.session
        return welcome

    def poll(self, wait: float = 20.0) -> Assignments:
        """The assignments as soon as they are others than at the last call."""
        message = Poll(node=self.node, session=self.session, version=self.version, wait=wait)
        raw = self.client.post_raw(POLL, msgspec.json.encode(message), timeout=wait + 60)
        answer = msgspec.json.decode(raw, type=Assignments)
        self.version = answer.version
        return answer

    def report(self, **contents: Any) -> None:
        message = Report(node=self.node, session=self.session, **contents)
        self.client.post_raw(REPORT, msgspec.json.encode(message))

    def run(self, lease: int) -> None:
        """Say that the worker of a lease runs."""
        now = time.time()
        begun = WorkerUpdate(lease=lease, state="starting", ts=now, run_dir="/nowhere")
        running = WorkerUpdate(lease=lease, state="running", ts=now, pid=1, pid_started=0.0, boot_id="benchmark", run_dir="/nowhere")
        self.report(workers=[begun, running])

    def complete(self, lease: int) -> None:
        """Say that it has run and ended well."""
        self.run(lease)
        self.report(workers=[WorkerUpdate(lease=lease, state="exited", ts=time.time(), exit_code=0, outcome="completed")])

    def sample(self) -> Sample:
        return Sample(ts=time.time(), gpu=self.gpus[0].id, utilisation=0.0, memory_used=0, power=60.0, temperature=30.0)


class Training:
    """What an agent reports of one training job twice a second: the new steps with their values, now and then a GPU's sample."""

    STEPS = 5  #: in one report

    def __init__(self, runner: Runner, lease: int) -> None:
        self.runner, self.lease = runner, lease
        self.step = 0

    def next(self) -> Report:
        now = time.time()
        records = []
        for _ in range(self.STEPS):
            self.step += 1
            records.append(
                Record(seq=self.step, ts=now, step=self.step, values={"loss": 1.0 / self.step, "samples": 32.0 * self.step}, total=10**9)
            )
        samples = [self.runner.sample()] if self.step % (10 * self.STEPS) == 0 else []
        return Report(
            node=self.runner.node,
            session=self.runner.session,
            records=[Records(lease=self.lease, rank=0, records=records)],
            samples=samples,
        )
