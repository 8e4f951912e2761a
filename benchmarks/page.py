"""What the live page costs: the daemon's CPU and its policy's ticks with no page, one page and many pages open.

    python benchmarks/page.py [--queued 200] [--pages 0 1 50] [--seconds 20] [--rounds 2]

One job runs, on a runner that speaks the real protocol and starts nothing; the others wait. Five times a second the priority of one of
them is changed, so that the policy is asked and each look at the queue finds something new: nothing is busier than that. The pages
are connections of this process, whose CPU is not counted; each counts the events and the bytes that it was sent. CPU is of the daemon's
process, as a share of one core; beside it, what it takes more than without a page. The rounds alternate. Ticks: as long as the daemon
says that they took. Goal: one page below 5 % of a core, 50 at most twice one, p99 of a tick by less than 10 % longer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import statistics
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

import msgspec
from common import Daemon, Runner, arguments, machine, milliseconds, progress, show, submission
from idle import share
from stoker.engine.client import Client
from stoker.engine.spec.model import JobSpec, Stop

CHANGES = 0.2  #: seconds between changes of a priority
SAMPLE = 0.05  #: seconds between looks at how long the last tick took
BATCH = 500  #: jobs of a submission


class Page:
    """An open page, as far as the daemon knows."""

    def __init__(self, port: int, cookie: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("GET", "/stream?", headers={"Cookie": cookie})
        self._sock = self.connection.sock  # http.client forgets it when the answer begins
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.events = self.bytes = 0
        self.gaps: list[float] = []  #: seconds between events
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        last = None
        try:
            while line := self.answer.readline():
                self.bytes += len(line)
                if line.startswith(b"data: "):
                    self.events += 1
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append(now - last)
                    last = now
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # it was closed

    def close(self) -> None:
        assert self._sock is not None
        self._sock.shutdown(socket.SHUT_RDWR)  # the thread that reads notices
        self.connection.close()


class Changes:
    """Somebody who changes priorities, and somebody who looks how long each tick took."""

    number = itertools.count(1)  #: goes on from measurement to measurement: a priority that is what it was changes nothing

    def __init__(self, daemon: Daemon, jobs: list[int]) -> None:
        self.over = threading.Event()
        self.ticks: dict[float, float] = {}  #: seconds by the moment at which it began
        self._jobs = jobs
        self._threads = [threading.Thread(target=work, args=[daemon.client()], daemon=True) for work in (self._change, self._sample)]
        for thread in self._threads:
            thread.start()

    def _change(self, client: Client) -> None:
        while not self.over.wait(CHANGES):
            number, job = divmod(next(self.number), len(self._jobs))
            client.post(f"/v1/jobs/{self._jobs[job]}/priority", {"priority": (number + job) % 7})

    def _sample(self, client: Client) -> None:
        while not self.over.wait(SAMPLE):
            for task in client.get("/v1/status")["tasks"]:
                if task["name"] == "policy default" and task["last_run"]:
                    self.ticks[task["last_run"]] = task["last_seconds"]

    def end(self) -> list[float]:
        self.over.set()
        for thread in self._threads:
            thread.join()
        return list(self.ticks.values())


def cookie_of(link: str) -> tuple[int, str]:
    """The port, and the cookie of a session that a link begins."""
    where = urllib.parse.urlsplit(link)
    assert where.port is not None
    connection = http.client.HTTPConnection("127.0.0.1", where.port)
    connection.request("GET", f"/?{where.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return where.port, (answer.getheader("Set-Cookie") or "").partition(";")[0]


def busy(daemon: Daemon, queued: int) -> list[int]:
    """One job that runs, and so many that wait; their numbers."""
    client, jobs = daemon.client(), list[int]()
    runner = Runner(daemon.client(), "node")
    runner.hello()
    for first in range(0, queued + 1, BATCH):
        count = min(BATCH, queued + 1 - first)
        specs = [JobSpec(name=f"job-{first + row}", recipe="toy", stop=Stop(iterations=1000), estimate=600.0) for row in range(count)]
        answer = client.post_raw("/v1/jobs", submission_bytes(specs), timeout=300.0)
        jobs += [job["id"] for job in json.loads(answer)["jobs"]]
    for assignment in runner.poll().leases:
        runner.run(assignment.lease)
    return jobs[1:]


def submission_bytes(specs: list[JobSpec]) -> bytes:
    return msgspec.json.encode(submission(*specs))


def measure(daemon: Daemon, port: int, cookie: str, jobs: list[int], pages: int, seconds: float) -> dict[str, Any]:
    changes = Changes(daemon, jobs)
    opened = [Page(port, cookie) for _ in range(pages)]
    time.sleep(2.5)  # until the first event, which has everything
    before = [(page.events, page.bytes, len(page.gaps)) for page in opened]
    changes.ticks.clear()
    cpu = share(daemon, seconds)
    ticks = changes.end()
    events = [page.events - was[0] for page, was in zip(opened, before, strict=True)]
    sent = [page.bytes - was[1] for page, was in zip(opened, before, strict=True)]
    gaps = [gap for page, was in zip(opened, before, strict=True) for gap in page.gaps[was[2] :]]
    for page in opened:
        page.close()
    time.sleep(1.5)  # the daemon notices
    return {"cpu": cpu, "ticks": ticks, "events": events, "sent": sent, "gaps": gaps, "rss": daemon.usage()[1]}


def row(pages: int, rounds: list[dict[str, Any]], bare: float, seconds: float) -> dict[str, Any]:
    cpu = statistics.median(one["cpu"] for one in rounds)
    ticks = sorted(tick for one in rounds for tick in one["ticks"])
    took = milliseconds(ticks) if ticks else {}
    events = [count for one in rounds for count in one["events"]]
    return {
        "pages": pages,
        "CPU %": 100 * cpu,
        "of it for pages %": 100 * (cpu - bare),
        "ticks": len(ticks),
        **{f"tick {name}": value for name, value in took.items()},
        "events a page and s": statistics.mean(events) / seconds if events else 0.0,
        "fewest of a page": min(events, default=0),
        "KiB a page and s": statistics.mean(one for each in rounds for one in each["sent"]) / seconds / 1024 if events else 0.0,
        "RSS MiB": max(one["rss"] for one in rounds) / (1 << 20),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--queued", type=int, default=200, help="jobs that wait")
    parser.add_argument("--pages", nargs="+", type=int, default=[0, 1, 50], help="pages that are open, the first without one")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(given)
    began = machine()
    found: dict[int, list[dict[str, Any]]] = {pages: [] for pages in options.pages}
    with Daemon() as daemon:
        daemon.start()
        jobs = busy(daemon, options.queued)
        port, cookie = cookie_of(daemon.client().post("/v1/ui", {"port": None})["url"])
        for number in range(options.rounds):
            for pages in options.pages:
                progress(f"round {number + 1} of {options.rounds}: {pages} pages")
                found[pages].append(measure(daemon, port, cookie, jobs, pages, options.seconds))
    bare = statistics.median(one["cpu"] for one in found[options.pages[0]])
    rows = [row(pages, rounds, bare, options.seconds) for pages, rounds in found.items()]
    show(options, began, {f"Open pages, {options.queued} jobs wait": rows})


if __name__ == "__main__":
    main()
