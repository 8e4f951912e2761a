"""What a daemon costs while nothing happens, with an empty database and with a long history.

    python benchmarks/idle.py [--runners 16] [--seconds 30] [--history 0 100000]

With 16 idle runners in their long polls: CPU of the daemon's process as a share of one core, with runners of CPU slots (which are
silent while idle) and of GPUs (each reports a sample every 5 s). Then its resident memory and its file, the time of a start (from
the start of the process to the first answer) and of `stoker ps` and `stoker ps --all` (whole process of the CLI; the least of 5).
The runners speak the real protocol but start nothing, and are threads of this process, whose CPU is not counted. The history is
written by SQL: every job has 6 events, a decision, 10 metrics and 10 GPU samples. Goal: below 3 % of a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Daemon, Runner, arguments, machine, progress, show
from stoker.engine.store.store import Store

TELEMETRY = 5.0  #: seconds between the samples that a runner with a GPU reports


def write_history(path: Path, jobs: int) -> None:
    store = Store.open(path)
    if jobs:
        text = Path(__file__).with_name("history.sql").read_text()
        store.exclusive(lambda con: con.execute(f"SET VARIABLE jobs = {jobs}; {text}"))
    store.close()


class Idler:
    """A runner that waits for work, and reports its GPU's samples when asked to."""

    def __init__(self, daemon: Daemon, number: int) -> None:
        self.poller = Runner(daemon.client(), f"node{number}")
        self.reporter = Runner(daemon.client(), f"node{number}")
        self.poller.hello()
        self.reporter.session = self.poller.session
        self.over = threading.Event()
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while not self.over.is_set():
            try:
                self.poller.poll()
            except Exception:  # the daemon is gone: the benchmark is over
                return

    def report(self, first: float, until: float) -> None:
        """A sample each interval, from ``first`` seconds on."""
        while not self.over.wait(first) and time.monotonic() < until:
            self.reporter.report(samples=[self.reporter.sample()])
            first = TELEMETRY


def measure(jobs: int, runners: int, seconds: float) -> dict[str, Any]:
    progress(f"history of {jobs} jobs: writing it")
    with Daemon() as daemon:
        write_history(daemon.home.database, jobs)
        size = daemon.home.database.stat().st_size
        cold = daemon.start()
        daemon.stop()
        start = min(cold, daemon.start())
        idlers = [Idler(daemon, number) for number in range(runners)]
        time.sleep(min(seconds, 3.0))  # what the greetings set off
        progress(f"history of {jobs} jobs: idle for {seconds:.0f} s")
        silent = share(daemon, seconds)
        progress(f"history of {jobs} jobs: idle for {seconds:.0f} s, with telemetry")
        until = time.monotonic() + seconds
        offsets = [number * min(TELEMETRY, seconds) / runners for number in range(runners)]
        reporters = [threading.Thread(target=idler.report, args=[first, until]) for idler, first in zip(idlers, offsets, strict=True)]
        for reporter in reporters:
            reporter.start()
        telling = share(daemon, seconds)
        memory = daemon.usage()[1]
        row = {
            "history, jobs": jobs,
            "file MiB": size / (1 << 20),
            "start s": start,
            "idle CPU %": 100 * silent,
            "with telemetry CPU %": 100 * telling,
            "RSS MiB": memory / (1 << 20),
            "ps s": ps(daemon),
            "ps --all s": ps(daemon, "--all"),
        }
        row["RSS after ps MiB"] = daemon.usage()[1] / (1 << 20)
        for idler in idlers:
            idler.over.set()
        for reporter in reporters:
            reporter.join()
        return row


def share(daemon: Daemon, seconds: float) -> float:
    """CPU time of the daemon per second."""
    before, start = daemon.usage()[0], time.monotonic()
    time.sleep(seconds)
    return (daemon.usage()[0] - before) / (time.monotonic() - start)


def ps(daemon: Daemon, *arguments: str) -> float:
    """Seconds of `stoker ps` as a person waits for it."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        command = [sys.executable, "-m", "stoker", "--home", str(daemon.home.path), "ps", *arguments]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env={name: value for name, value in os.environ.items() if name[:7] != "STOKER_"}
        )
        taken.append(time.perf_counter() - start)
    return min(taken)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runners", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each idle measurement")
    parser.add_argument("--history", nargs="+", type=int, default=[0, 100_000], help="jobs")
    options = parser.parse_args(given)
    began = machine()
    rows = [measure(jobs, options.runners, options.seconds) for jobs in options.history]
    show(options, began, {f"A daemon with {options.runners} idle runners": rows})


if __name__ == "__main__":
    main()
