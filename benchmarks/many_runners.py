"""Many runners over TCP, each with a job that trains, beside a long queue: how long `ps` and the policy's ticks take.

    python benchmarks/many_runners.py [--runners 64] [--queued 10000] [--seconds 60] [--lasts 30] [--policy fifo] [--tls]

The runners speak the real protocol over TCP with a token, and start nothing: each has a long poll, reports what its job trains once a
second, and after ``--lasts`` seconds its end, so that the policy is asked, and starts the next one. They are threads of one process. Two
clients of another process ask over TCP what `stoker ps` asks, five times a second each. Ticks: as long as the daemon says that they took.
``--tls``: all of it over TLS. Goals: p99 of `ps` below 0.3 s, of a tick below 150 ms.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from common import Daemon, Runner, Training, arguments, machine, milliseconds, progress, show, submission
from stoker.engine.client import ENV_CA, Client
from stoker.engine.home import Home
from stoker.engine.hosts.certificates import make_own, own
from stoker.engine.protocol import REPORT
from stoker.engine.spec.model import JobSpec, Stop

ASKERS, PAUSE = 2, 0.2  #: clients that ask, and seconds between two questions of one
REPORTS = 1.0  #: seconds between reports of a runner, as of a real one that has nothing but records
SAMPLE = 0.1  #: seconds between looks at how long the last tick took
BATCH = 500  #: jobs of a submission
LISTED = {"all": 0, "arrays": 0, "limit": 1000}  #: what `stoker ps` asks


class Host:
    """A runner of one GPU: a thread waits for leases, another one reports."""

    def __init__(self, url: str, token: str, number: int, lasts: float) -> None:
        clients = [Client(Home(Path("/")), url, token, timeout=120.0) for _ in range(2)]
        self.poller, self.reporter = (Runner(client, f"node{number:03}") for client in clients)
        self.poller.hello()
        self.reporter.session = self.poller.session
        self.over, self._lasts, self._first = threading.Event(), lasts, lasts * (number % 16 + 1) / 16
        self.training: Training | None = None
        self.ended = 0
        for work in (self._poll, self._report):
            threading.Thread(target=work, daemon=True).start()

    def _poll(self) -> None:
        while not self.over.is_set():
            leases = [one.lease for one in self.poller.poll().leases]
            if leases and (self.training is None or self.training.lease not in leases):
                self.reporter.run(leases[0])
                self.training = Training(self.reporter, leases[0])

    def _report(self) -> None:
        began: dict[int, float] = {}
        while not self.over.wait(REPORTS):
            if (training := self.training) is None:
                continue
            self.reporter.client.post_raw(REPORT, msgspec.json.encode(training.next()))
            since = began.setdefault(training.lease, time.monotonic())
            if time.monotonic() - since > (self._first if not self.ended else self._lasts):
                self.training = None
                self.reporter.complete(training.lease)
                self.ended += 1


def ask(url: str, token: str, seconds: float) -> list[float]:
    """Seconds that each answer took."""
    taken: list[float] = []

    def work() -> None:
        client, end = Client(Home(Path("/")), url, token, timeout=120.0), time.monotonic() + seconds
        client.get("/v1/jobs", **LISTED)
        while time.monotonic() < end:
            began = time.perf_counter()
            client.get("/v1/jobs", **LISTED)
            taken.append(time.perf_counter() - began)
            time.sleep(PAUSE)

    threads = [threading.Thread(target=work) for _ in range(ASKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def ticks(client: Client, over: threading.Event, found: dict[float, float]) -> None:
    while not over.wait(SAMPLE):
        for task in client.get("/v1/status")["tasks"]:
            if task["name"] == "policy default" and task["last_run"]:
                found[task["last_run"]] = task["last_seconds"]


def submit(client: Client, count: int) -> None:
    for first in range(0, count, BATCH):
        specs = [
            JobSpec(name=f"job-{row}", recipe="toy", stop=Stop(iterations=1000), estimate=600.0 + row % 97, user=f"user{row % 20}")
            for row in range(first, min(first + BATCH, count))
        ]
        client.post_raw("/v1/jobs", msgspec.json.encode(submission(*specs)), timeout=300.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runners", type=int, default=64)
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait when it begins")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lasts", type=float, default=30.0, help="seconds that a job trains")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args(given)
    began = machine()
    with Daemon() as daemon, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        port, files = free_port(), []
        if options.tls:
            make_own(daemon.home.tls, ["127.0.0.1"])
            os.environ[ENV_CA] = str(daemon.home.tls / "ca.pem")
            cert, key = own(daemon.home.tls)
            files = ["--tls-cert", str(cert), "--tls-key", str(key)]
        daemon.home.config.write_text(f'[policy]\nname = "{options.policy}"\n')
        daemon.start("--tcp", f"127.0.0.1:{port}", *files)
        client, url = daemon.client(), f"http{'s' * options.tls}://127.0.0.1:{port}"
        token = {role: client.post("/v1/tokens", {"name": role, "role": role})["token"] for role in ("runner", "read")}
        progress(f"{options.queued} jobs are submitted")
        submit(client, options.queued + options.runners)
        hosts = [Host(url, token["runner"], number, options.lasts) for number in range(options.runners)]
        daemon.wait_for("all runners train", lambda: all(host.training for host in hosts))
        apart.submit(ask, url, token["read"], 0.0).result()  # that process is there
        progress(f"{options.runners} runners train for {options.seconds:.0f} s")
        over, found = threading.Event(), dict[float, float]()
        watch = threading.Thread(target=ticks, args=(client, over, found))
        cpu, since, ended = daemon.usage()[0], time.monotonic(), sum(host.ended for host in hosts)
        watch.start()
        asked = apart.submit(ask, url, token["read"], options.seconds).result()
        over.set()
        watch.join()
        used, ended = (daemon.usage()[0] - cpu) / (time.monotonic() - since), sum(host.ended for host in hosts) - ended
        for host in hosts:
            host.over.set()
        states = json.loads(json.dumps(daemon.query("SELECT count(*) FILTER (failures > 0) FROM jobs")))
    lines: list[dict[str, Any]] = [
        {"what": "ps", "answers": len(asked), **milliseconds(asked)},
        {"what": "tick", "answers": len(found), **milliseconds(found.values() or [0.0])},
    ]
    whole = {
        "runners": options.runners, "queued": options.queued, "jobs that ended": ended, "daemon's CPU %": 100 * used,
        "failed": states[0][0],
    }  # fmt: skip
    show(options, began, {"Answers": lines, "Beside them": [whole]})


if __name__ == "__main__":
    main()
