"""What a daemon stands: many clients that poll while jobs are submitted, hostile SQL, connections that say nothing, and nonsense.

    python benchmarks/hostile.py [--clients 200] [--jobs 40000] [--seconds 20] [--half-open 20000] [--only polling sql connections bodies]

A daemon with `--jobs` jobs, a quarter of them pending (10 000 at most), the rest a history, and a runner of 8 GPUs whose jobs report twice
a second. First, `--clients` connections poll it (half of them the status, the others the listing of `stoker ps`), each every `--interval`
seconds (0: as fast as it is answered), while one client submits a job ten times a second. Goals: status p50 < 50 ms, submit p99 < 1 s.

Then more than 300 statements (`hostile_sql.py`), six at a time with a limit of 1 s each, beside ten submissions a second. Goals: those that
must be refused are, each is answered within its limit and a second, submit p99 < 0.5 s, tick p99 < 150 ms, nothing is started anew.

Then it is attacked in other ways, in one row each. "tried": how often; "let through": how many of these were not refused as they should
be (a connection that was neither answered nor closed in time, a body that was answered otherwise than with 4xx); "stalls": how many
requests of a well-behaved client over the Unix socket took longer than 0.5 s meanwhile, of all that it made, ten a second; and the
longest of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostile_sql
import msgspec
from common import Daemon, Runner, Training, arguments, machine, milliseconds, progress, show, submission
from idle import write_history
from stoker.engine.spec.model import JobSpec

PENDING = 10_000  #: jobs at most
STALL = 0.5  #: seconds of a request after which the daemon counts as stalled
CLOSED_WITHIN = 15.0  #: seconds in which nonsense is answered, and a connection without a token closed
OPENS_WITHIN = 10.0  #: seconds after which an attacker gives up to open one
PROCESS = 5_000  #: connections that one process of an attack opens


# The daemon that is attacked


def pending_job(number: int) -> JobSpec:
    return JobSpec(name=f"pending-{number}", recipe="digits-cnn", params={"seed": number}, user=f"user{number % 20}", estimate=600.0)


def fill(daemon: Daemon, jobs: int) -> None:
    """Submit what waits, with a connection of its own."""
    client, waiting = daemon.client(), min(jobs // 4, PENDING)
    for start in range(0, waiting, 500):
        specs = [pending_job(number) for number in range(start, min(start + 500, waiting))]
        client.post_raw("/v1/jobs", msgspec.json.encode(submission(*specs)))


class Work:
    """A runner of GPUs whose jobs report twice a second until it is ended: each report is a commit."""

    def __init__(self, daemon: Daemon, gpus: int = 8) -> None:
        self._over = threading.Event()
        self._runner = Runner(daemon.client(), "node0", gpus)
        self._runner.hello()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        jobs: dict[int, Training] = {}
        while not self._over.wait(0.5 / max(len(jobs), 1)):
            for lease in self._runner.poll(wait=0.0).leases if not jobs else ():
                self._runner.run(lease.lease)
                jobs[lease.lease] = Training(self._runner, lease.lease)
            if jobs:
                turn = jobs.pop(next(iter(jobs)))
                self._runner.client.post_raw("/v1/runner/report", msgspec.json.encode(turn.next()))
                jobs[turn.lease] = turn

    def end(self) -> None:
        self._over.set()
        self._thread.join()


# Clients that poll


class Poller:
    """One connection that asks the same again and again. Without http.client, whose cost in 200 threads would hide the daemon's."""

    def __init__(self, path: Path, question: str, interval: float) -> None:
        self._path, self._interval = path, interval
        self._request = f"GET {question} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        self.taken: list[float] = []
        self.failed = 0

    async def run(self, first: float, end: float) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 24)
        await asyncio.sleep(first)
        while time.monotonic() < end:
            began = time.monotonic()
            writer.write(self._request)
            status, _ = await answer(reader)
            self.taken.append(time.monotonic() - began)
            self.failed += status != 200
            await asyncio.sleep(max(0.0, began + self._interval - time.monotonic()))
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split(None, 2)[1]), await reader.readexactly(length)


QUESTIONS = {"status": "/v1/status", "ps": "/v1/jobs?all=0&arrays=0&limit=1000"}


def poll(path: Path, clients: int, interval: float, seconds: float) -> dict[str, tuple[list[float], int]]:
    """Latencies and failures by question."""

    async def run() -> dict[str, tuple[list[float], int]]:
        end = time.monotonic() + seconds
        words = list(itertools.islice(itertools.cycle(QUESTIONS), clients))
        pollers = [Poller(path, QUESTIONS[word], interval) for word in words]
        await asyncio.gather(*(one.run(interval * number / clients, end) for number, one in enumerate(pollers)))
        found: dict[str, tuple[list[float], int]] = {}
        for word in QUESTIONS:
            mine = [one for asked, one in zip(words, pollers, strict=True) if asked == word]
            found[word] = [taken for one in mine for taken in one.taken], sum(one.failed for one in mine)
        return found

    return asyncio.run(run())


def submit(daemon: Daemon, seconds: float) -> list[float]:
    """Submit ten jobs a second, and look that each is there at once; the latencies of the submissions."""
    client, end, taken = daemon.client(), time.monotonic() + seconds, []
    while (began := time.monotonic()) < end:
        client.post_raw("/v1/jobs", msgspec.json.encode(submission(pending_job(secrets.randbits(40)))))
        taken.append(time.monotonic() - began)
        time.sleep(max(0.0, began + 0.1 - time.monotonic()))
    return taken


def measure_polling(daemon: Daemon, clients: int, interval: float, seconds: float) -> list[dict[str, Any]]:
    progress(f"{clients} clients poll for {seconds:g} s")
    before, began = daemon.usage()[0], time.monotonic()
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # of its own: its clients' work is not to delay the submitter
        polled = pool.apply_async(poll, (daemon.home.socket, clients, interval, seconds))
        submitted = submit(daemon, seconds)
        found = polled.get()
    share = (daemon.usage()[0] - before) / (time.monotonic() - began)
    rows = [(word, len(taken), taken, failed) for word, (taken, failed) in found.items()] + [("submit", len(submitted), submitted, 0)]
    return [
        {"request": word, "clients": 1 if word == "submit" else clients, "answered": count, "failed": failed, **milliseconds(taken),
         "longest ms": 1e3 * max(taken), "daemon's CPU %": 100 * share, "daemon's MiB": daemon.usage()[1] / (1 << 20)}
        for word, count, taken, failed in rows
    ]  # fmt: skip


# Attacks


@dataclass
class Target:
    """What is attacked."""

    daemon: Daemon
    port: int
    token: str
    connections: int  #: that an attack by connections opens
    held: float  #: seconds for which it holds them


@dataclass
class Tally:
    """What became of an attack."""

    tried: int = 0
    through: list[str] = field(default_factory=list)  #: what was not refused, in words


@dataclass(frozen=True)
class Attack:
    kind: str
    name: str
    run: Callable[[Target], Tally]


class Probe:
    """A well-behaved client over the Unix socket, ten times a second; each turn on a connection of its own, as each command is."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._over = daemon, threading.Event()
        self.taken: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def _run(self) -> None:
        for question in itertools.cycle(("/healthz", "/v1/status")):
            if self._over.wait(0.1):
                return
            began = time.monotonic()
            with contextlib.suppress(Exception), contextlib.closing(self._daemon.client()) as client:
                client.get(question)
            self.taken.append(time.monotonic() - began)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def hold(port: int, count: int, first: bytes, rest: bytes, every: float, seconds: float) -> None:
    """Open connections, send ``first``, then a byte of ``rest`` ``every`` seconds, until they are closed, for so many ``seconds``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def one(number: int) -> None:
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            source = (f"127.0.{number % 8}.{2 + number % 200}", 0)
            opening = asyncio.open_connection("127.0.0.1", port, local_addr=source)
            reader, writer = await asyncio.wait_for(opening, OPENS_WITHIN)
            writer.write(first)
            for byte in itertools.cycle(rest or b"\0"):
                with contextlib.suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(1 << 16), min(every, max(end - time.monotonic(), 0.01))):
                        return
                if time.monotonic() > end:
                    writer.transport.abort()
                    return
                if rest:
                    writer.write(bytes([byte]))

    async def run() -> None:
        held = []
        for start in range(0, count, 500):
            held += [asyncio.ensure_future(one(number)) for number in range(start, min(start + 500, count))]
            await asyncio.sleep(0.1)
        await asyncio.gather(*held)

    asyncio.run(run())


def sockets(target: Target) -> set[str]:
    """What the daemon has open, by the kernel's numbers."""
    found = set()
    for path in Path(f"/proc/{target.daemon.daemon.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(path.readlink()))
    return {word for word in found if word.startswith("socket:")}


def connections(first: bytes, rest: bytes = b"", every: float = 60.0) -> Callable[[Target], Tally]:
    """An attack by connections that never end their first request. Let through are those that the daemon itself holds for longer than
    `CLOSED_WITHIN`: what the attacker holds for open may be given up already, or in the kernel's queue."""

    def run(target: Target) -> Tally:
        began, before, most = time.monotonic(), sockets(target), 0
        counts = [min(PROCESS, target.connections - start) for start in range(0, target.connections, PROCESS)]
        with multiprocessing.get_context("spawn").Pool(len(counts)) as pool:
            attack = pool.starmap_async(hold, [(target.port, count, first, rest, every, target.held) for count in counts])
            while time.monotonic() < began + target.held - CLOSED_WITHIN:
                most = max(most, len(sockets(target) - before))
                time.sleep(0.1)
            old = sockets(target) - before
            time.sleep(CLOSED_WITHIN)
            left = old & sockets(target)
            attack.get()
        progress(f"the daemon held {most} of them at a time")
        return Tally(target.connections, ["still held"] * len(left))

    return run


NONSENSE: list[bytes] = [
    b"", b"name: a", b'{"jobs": [{"name": ', b'{"jobs": [{"name": "\xff\xfe"}]}', b"[]", b"17", b"null", b"[" * 100_000, b'{"a":' * 100_000,
    b'{"jobs": [], "provenance": {"argv": [], "cwd": "/"}}', b"[" + b" " * (65 << 20), b"1" * 5_000_000, b'"' + b"a" * 5_000_000 + b'"',
    *(json.dumps({"jobs": [{"name": "x", "command": ["true"], **wrong}], "provenance": {"argv": [], "cwd": "/"}}).encode() for wrong in (
        {"name": ""}, {"name": "x" * 100_000}, {"gpus_min": -1}, {"gpus_min": 10**30}, {"priority": 10**30}, {"gpu_memory": 2**63},
        {"pool": "../x"}, {"command": []}, {"command": "true"}, {"command": ["\ud800"]}, {"timeout": -1.0}, {"retries": 1e300},
        {"colour": "red"}, {"cron": "* * *"}, {"after": [{"job": "\x1b[2J"}]},
    )),
]  # fmt: skip
PATHS = [f"/v1/{name}" for name in ["jobs", "runner/hello", "runner/poll", "runner/report", "policy", "traces", "simulations", "tokens"]]


def nonsense(target: Target) -> Tally:
    """Each body to each path, over TCP with an admin's token."""
    tally = Tally()
    for path, body in itertools.product(PATHS, NONSENSE):
        fields = f"Host: x\r\nConnection: close\r\nAuthorization: Bearer {target.token}\r\nContent-Length: {len(body)}"
        status = ask(target.port, f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode(), body)
        tally.tried += 1
        if not 400 <= status < 500:
            tally.through.append(f"{path} {body[:60]!r}: {status}")
    return tally


GARBAGE = [
    b"\0" * 1000, b"\xff" * 100_000, b"GET / HTTP/9.9\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"\r\n" * 50_000, b"A" * 1_000_000,
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000, b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000,
    b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    b"GET /v1/jobs/%00%ff%2e%2e HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
]  # fmt: skip


def garbage(target: Target) -> Tally:
    """What is no HTTP, or hardly: the answer is 4xx or a closed connection."""
    tally = Tally()
    for body in GARBAGE:
        status = ask(target.port, body, b"")
        tally.tried += 1
        if not (status == 0 or 400 <= status < 500):
            tally.through.append(f"{body[:60]!r}: {status}")
    return tally


def ask(port: int, head: bytes, body: bytes) -> int:
    """Status of the answer, 0: the connection was closed without one, 599: neither came in time."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=CLOSED_WITHIN) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(head + body)
            said = peer.recv(100)
    except TimeoutError:
        return 599
    except OSError:
        return 0
    return int(said.split(None, 2)[1]) if said.startswith(b"HTTP/") else 0


HALF = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n"
ATTACKS = [
    Attack("connections", "say nothing", connections(b"")),
    Attack("connections", "half a request", connections(HALF)),
    Attack("connections", "a byte of a header every 2 s", connections(HALF + b"X: ", b"y", 2.0)),
    Attack("connections", "a byte of a body every 2 s", connections(HALF + b"Content-Length: 1000000\r\n\r\n", b"[", 2.0)),
    Attack("bodies", "nonsense", nonsense),
    Attack("bodies", "no HTTP", garbage),
]


def attack(target: Target, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    for one in ATTACKS:
        if one.kind not in kinds:
            continue
        progress(f"attack: {one.kind}, {one.name}")
        with Probe(target.daemon) as probe:
            tally = one.run(target)
        for words in tally.through[:10]:
            progress(f"let through: {words}")
        yield {
            "attack": one.name,
            "kind": one.kind,
            "tried": tally.tried,
            "let through": len(tally.through),
            "stalls": sum(taken > STALL for taken in probe.taken),
            "requests meanwhile": len(probe.taken),
            "longest ms": 1e3 * max(probe.taken, default=0.0),
        }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def main(given: Sequence[str] | None = None) -> None:
    kinds = ["polling", "sql", *dict.fromkeys(one.kind for one in ATTACKS)]
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=200, help="that poll (default: 200)")
    parser.add_argument("--jobs", type=int, default=40_000, help="in the database (default: 40000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of polling (default: 20)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between the questions of one client (default: 1)")
    parser.add_argument("--askers", type=int, default=6, help="of hostile statements at a time (default: 6)")
    parser.add_argument("--half-open", type=int, default=20_000, help="connections of an attack (default: 20000)")
    parser.add_argument("--held", type=float, default=45.0, help="seconds for which an attack holds them (default: 45)")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="parts to run")
    options = parser.parse_args(given)
    began, tables = machine(), {}
    with Daemon() as daemon:
        progress(f"a history of {options.jobs} jobs: writing it")
        write_history(daemon.home.database, options.jobs - min(options.jobs // 4, PENDING))
        port = free_port()
        daemon.start("--tcp", f"127.0.0.1:{port}")
        fill(daemon, options.jobs)
        work = Work(daemon)
        if "polling" in options.only:
            tables["Clients that poll"] = measure_polling(daemon, options.clients, options.interval, options.seconds)
        if "sql" in options.only:
            tables["Statements"] = [hostile_sql.measure(daemon, options.askers)]
        token = daemon.client().post("/v1/tokens", {"name": "bench", "role": "admin"})["token"]
        if rows := list(attack(Target(daemon, port, token, options.half_open, options.held), options.only)):
            tables["Attacks"] = rows
        work.end()
    show(options, began, tables)


if __name__ == "__main__":
    main()
