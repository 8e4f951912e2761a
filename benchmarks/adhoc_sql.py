"""What the copy of the database costs that ad-hoc SQL is answered from, and how soon it is there.

    python benchmarks/adhoc_sql.py [--clients 1 4 16] [--seconds 5] [--history 100000]

First the store's group commit with and without a process that follows it, in turns within one run: reports acknowledged per second,
and their ratio (goal: above 0.9). Then a daemon with a history (20 metrics a job): seconds from the start of its process until it
answers, and until SQL is answered (goal: less than 3 s later); from kill -9 of the process until SQL is answered again (goal: 2 s);
CPU of the process as a share of a core while 16 GPUs report a sample every 5 s and nothing else happens (goal: 0.5 %); and how long
statements take while 4 jobs report as fast as they can, each of which must see what was acknowledged before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from common import Daemon, Runner, Training, arguments, at_once, machine, milliseconds, progress, show, submission
from idle import TELEMETRY, Idler, write_history
from stoker.engine.adhoc.desk import Desk, Question
from stoker.engine.errors import StokerError
from stoker.engine.fleet.registration import report
from stoker.engine.home import Home
from stoker.engine.spec.model import JobSpec
from stoker.engine.store.store import Store
from store_writes import _send, _started, trainings_in


@contextlib.contextmanager
def following(store: Store, home: Home) -> Iterator[None]:
    """A process that follows the store, as in the daemon."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Desk:
        desk = Desk(store, home, at_once=4, memory=1 << 30, tell=print)
        desk.start()
        await desk.ask("benchmark", Question("SELECT 1"))
        return desk

    desk = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield
    finally:
        desk.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def commits(clients: int, seconds: float, follow: bool) -> tuple[list[float], float]:
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory))
        home.scratch.mkdir()
        store = Store.open(home.database)
        trainings = trainings_in(store, clients)
        with following(store, home) if follow else contextlib.nullcontext():
            measured = at_once(clients, seconds, lambda number: lambda: store.write(report, trainings[number].next()))
        store.close()
        return measured


def compare(clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    taken: dict[bool, list[float]] = {False: [], True: []}
    lasted = {False: 0.0, True: 0.0}
    for _ in range(rounds):
        for follow in (False, True):
            latencies, used = commits(clients, seconds / rounds, follow)
            taken[follow] += latencies
            lasted[follow] += used
    alone, followed = (len(taken[kind]) / lasted[kind] for kind in (False, True))
    return {
        "clients": clients,
        "alone /s": alone,
        **{f"alone {name}": value for name, value in milliseconds(taken[False]).items()},
        "followed /s": followed,
        **{f"followed {name}": value for name, value in milliseconds(taken[True]).items()},
        "ratio": followed / alone,
    }


def server_of(daemon: Daemon) -> psutil.Process:
    return next(child for child in psutil.Process(daemon.daemon.pid).children() if "adhoc.server" in " ".join(child.cmdline()))


def until_sql(daemon: Daemon) -> float:
    """Seconds until a statement is answered."""
    began = time.perf_counter()
    while True:
        with contextlib.suppress(StokerError):
            daemon.query("SELECT 1")
            return time.perf_counter() - began


def with_history(jobs: int, seconds: float) -> dict[str, Any]:
    progress(f"history of {jobs} jobs: writing it")
    with Daemon() as daemon:
        write_history(daemon.home.database, jobs)
        store = Store.open(daemon.home.database)
        store.exclusive(lambda con: con.execute("INSERT INTO metrics SELECT * REPLACE (name || '_too' AS name) FROM metrics"))
        store.close()
        answers = daemon.start()
        later = until_sql(daemon)
        ((metrics,),) = daemon.query("SELECT count(*) FROM metrics")
        size = daemon.home.database.stat().st_size
        server_of(daemon).kill()
        healed = until_sql(daemon)
        progress("idle, with telemetry")
        idlers = [Idler(daemon, number) for number in range(16)]
        time.sleep(2.0)
        until = time.monotonic() + seconds
        reporters = [threading.Thread(target=idler.report, args=[n * TELEMETRY / 16, until]) for n, idler in enumerate(idlers)]
        before, began = cpu(server_of(daemon)), time.perf_counter()
        for thread in reporters:
            thread.start()
        time.sleep(seconds)
        idle = (cpu(server_of(daemon)) - before) / (time.perf_counter() - began)
        for idler in idlers:
            idler.over.set()
        return {
            "jobs": jobs,
            "metrics": metrics,
            "file MiB": size >> 20,
            "daemon answers s": answers,
            "SQL later by s": later,
            "healed s": healed,
            "idle % of a core": 100 * idle,
            "resident MiB": server_of(daemon).memory_info().rss >> 20,
        }


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def under_load(clients: int, seconds: float) -> dict[str, Any]:
    progress("statements beside reports")
    with Daemon() as daemon:
        daemon.start()
        trainings = _trainings(daemon, clients)
        over = threading.Event()
        sent = [0] * clients

        def reporting(number: int) -> None:
            while not over.is_set():
                _send(trainings[number])
                sent[number] += 1

        threads = [threading.Thread(target=reporting, args=[number]) for number in range(clients)]
        for thread in threads:
            thread.start()
        taken, late = [], 0
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            known = sum(sent) * Training.STEPS * 2
            ((seen,),) = daemon.query("SELECT count(*) FROM metrics")
            taken.append(time.perf_counter() - began)
            late += seen < known
        over.set()
        for thread in threads:
            thread.join()
        return {"reports /s": sum(sent) / seconds, "statements": len(taken), **milliseconds(taken), "that missed an acknowledged one": late}


def _trainings(daemon: Daemon, clients: int) -> list[Training]:
    runners = [Runner(daemon.client(), f"node{number}") for number in range(clients)]
    for runner in runners:
        runner.hello()
    jobs = submission(*(JobSpec(name=f"job-{number}", recipe="toy") for number in range(clients)))
    daemon.client().post_raw("/v1/jobs", msgspec.json.encode(jobs))
    return [_started(runner) for runner in runners]


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="in turn, for each number of clients")
    parser.add_argument("--history", type=int, default=100_000, help="jobs")
    options = parser.parse_args(given)
    began = machine()
    tables = {}
    for clients in options.clients:
        progress(f"commits, {clients} clients")
        tables.setdefault("Store: reports acknowledged", []).append(compare(clients, options.seconds, options.rounds))
    tables["With a history"] = [with_history(options.history, options.seconds)]
    tables["Statements while jobs report"] = [under_load(4, options.seconds)]
    show(options, began, tables)


if __name__ == "__main__":
    main()
