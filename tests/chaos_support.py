"""One Stoker under fire: a daemon, agents and a load of real jobs; kill -9 of any of them at random moments; and restarts."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

import duckdb
from chaos_checks import ends_of_leases, examine
from chaos_load import Ledger, Load
from e2e import DaemonProcess, RunnerProcess, end_workers, servers_of, until
from small_disk import Quota
from stoker.engine.errors import StokerError, StoreError
from stoker.engine.home import Home
from stoker.engine.identity import Process
from stoker.engine.store.acknowledged import Acknowledged
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from waiting import patient

CONFIG = """
[policy]
interval = 0.5
[guards]
min_run_time = 0.3
max_preemptions = 5
cooldown = 2.0
[limits]
memory = "512MiB"
"""

#: what a round does, and how often in relation to the others
ACTS = {"daemon": 6, "agent": 5, "supervisor": 3, "worker": 3, "daemon+agent": 2, "agent+supervisor": 2, "daemon+worker": 2,
        "supervisor+worker": 1, "daemon while starting": 1, "daemon stopped": 1, "agent stopped": 1,
        "disk full": 2, "disk full+daemon": 1, "log damaged": 2}  # fmt: skip
#: and besides, where jobs start by a fork
WARM_ACTS = {"fork server": 4, "fork server stopped": 2, "agent+fork server": 2, "fork server+worker": 1}

#: words and queries of the summary
FACTS = {
    "jobs": "SELECT state, count(*) FROM jobs GROUP BY 1 ORDER BY 2 DESC",
    "leases": "SELECT outcome, count(*) FROM leases GROUP BY 1 ORDER BY 2 DESC",
    "rows": "SELECT 'metrics', count(*) FROM metrics UNION ALL SELECT 'events', count(*) FROM events",
}


class Violation(Exception):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Killed:
    """A lease whose supervisor or worker was killed."""

    lease: int
    what: str
    wall: float


@dataclass(slots=True)
class Times:
    """Seconds of recovery."""

    daemon: list[float] = field(default_factory=list)  #: kill to first answer, without the time that we left it down
    agent: list[float] = field(default_factory=list)  #: kill to registered, with what ran adopted
    killed: list[Killed] = field(default_factory=list)


class Chaos:
    """``directory`` gets the home, the diary of the jobs and their locks. Use as a context manager: nothing is left running.

    ``trainings`` is the share of jobs that train, ``calm`` the longest time between two kills in seconds,
    ``acts`` what may be done. ``warm``: jobs that train start by a fork where they can.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        slots: int = 4,
        trainings: float = 0.03,
        calm: float = 3.0,
        acts: Sequence[str] = tuple(ACTS),
        warm: bool = False,
    ) -> None:
        self.directory, self.slots, self.calm = directory, slots, calm
        self.acts = {act: ACTS[act] for act in acts} | (WARM_ACTS if warm else {})
        self.random = random.Random(seed)
        self.home = Home(directory / "home").create()
        self.home.config.write_text(CONFIG)
        (directory / "locks").mkdir()
        self.daemon = DaemonProcess(self.home)
        self.agents = [RunnerProcess(self.home, node, slots // 2, "--warm", "auto" if warm else "off") for node in ("a", "b")]
        self.client = self.daemon.client()
        self.load = Load(self.daemon.client(), directory, seed, slots=slots, trainings=trainings)
        self.times = Times()

    @property
    def diary(self) -> Path:
        """What the jobs write of themselves."""
        return self.directory / "diary.jsonl"

    @property
    def ledger(self) -> Ledger:
        return self.load.ledger

    def __enter__(self) -> Chaos:
        self.daemon.start()
        for agent in self.agents:
            agent.start()
        self.load.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.load.ending.set()
        for process in (*self.agents, self.daemon):
            process.end()
        end_workers(self.home)
        self.client.close()

    # -- one round

    def round(self) -> str:
        """Let it work for a moment, do one act, mend what was broken; answers with what was done."""
        time.sleep(self.random.choice([self.random.uniform(0.0, 0.5), self.random.uniform(0.5, self.calm)]))
        self._nobody_fell()
        (act,) = self.random.choices(list(self.acts), list(self.acts.values()))
        victims = act.split("+")
        special = {
            "daemon while starting": self._kill_while_starting,
            "daemon stopped": self._stop_daemon,
            "agent stopped": self._stop_agent,
            "disk full": self._fill_disk,
            "disk full+daemon": self._kill_on_full_disk,
            "log damaged": self._damage_log,
            "fork server stopped": lambda: f"{act:18} {self._signal_server(SIGSTOP)}",
        }
        if act in special:
            return special[act]()
        done = []
        for victim in victims:
            if victim in ("supervisor", "worker"):
                done.append(self._kill_work(victim))
        if "fork server" in victims:
            done.append(self._signal_server(SIGKILL))
        agent = self.random.choice(self.agents) if "agent" in victims else None
        if "daemon" in victims:
            self.daemon.kill()
        if agent is not None:
            agent.kill()
        began = time.monotonic()
        down = self.random.choice([0.0, 0.0, self.random.uniform(0.0, 0.8)])
        time.sleep(down)
        if agent is not None:
            agent.launch()
        if "daemon" in victims:
            done.append(self._revive_daemon(began + down))
        if agent is not None:
            done.append(self._await_agent(agent, None if "daemon" in victims else began + down))
        return f"{act:18} " + ", ".join(done)

    def _nobody_fell(self) -> None:
        for process in (self.daemon, *self.agents):
            assert process.process is not None
            if (code := process.process.poll()) is not None:
                raise Violation(f"{process.log.name} ended by itself with {code}:\n{process.said()[-3000:]}")
        if self.load.error is not None:
            raise Violation(f"the client was answered with {self.load.error!r}") from self.load.error

    def _kill_work(self, what: str) -> str:
        """kill -9 a supervisor, or a process below one."""
        if not (targets := self.working()):
            return f"no {what}"
        run, target = self.random.choice(targets)
        if what == "worker":
            below = processes.descendants(target.pid, processes.table())
            if not below:
                return "no worker"
            target = self.random.choice(below).process
        if not processes.send(target, SIGKILL):
            return f"{what} had ended"
        self.times.killed.append(Killed(run.lease, what, time.time()))
        return f"{what} of job {run.job}"

    def _signal_server(self, number: int) -> str:
        """Whatever it is at: it loads, it forks, it waits."""
        servers = [server for agent in self.agents for server in servers_of(agent.pid)]
        if not servers:
            return "no fork server"
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(servers), number)
        return "fork server"

    def working(self) -> list[tuple[RunDir, Process]]:
        """Supervisors that live, also those that have not registered yet, with their runs."""
        found = []
        for pid in processes.pids():
            with contextlib.suppress(OSError, ValueError):
                *_, module, run, _ = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if (
                    module == "stoker.runners.lease.supervisor"
                    and Path(run).is_relative_to(self.home.path)
                    and (known := processes.stat(pid))
                ):
                    lease, _, node_rank = Path(run).name.removeprefix("run-").partition(".")
                    found.append((RunDir(self.home.path, int(Path(run).parent.name), int(lease), int(node_rank or 0)), known.process))
        for forked in RunDir.find(self.home.path):
            if not (forked.path / "exit.json").exists() and (registered := forked.read("supervisor.json")) and registered["pid"]:
                supervisor = Process(registered["pid"], registered["started"])
                if processes.alive(supervisor) and processes.command(supervisor.pid) == "stoker-lease":
                    found.append((forked, supervisor))
        return found

    def _revive_daemon(self, since: float, *, clean: bool = False) -> str:
        """Start it again, every third time after another process has opened the file, closed it cleanly, and used it."""
        words = ""
        if self.random.random() < 0.33:
            before = time.monotonic()
            self.reopen()
            since += time.monotonic() - before
            words = ", reopened twice before"
        self.daemon.launch()
        until(lambda: self.client.get("/v1/status"), 150)
        seconds = time.monotonic() - since
        if not clean:
            self.times.daemon.append(seconds)
        return f"daemon answers after {seconds:.2f} s{words}"

    def reopen(self) -> None:
        """The sequence that lost index entries with DuckDB before 2.0: reopen, close cleanly, reopen, look up and write."""
        script = Path(__file__).with_name("chaos_reopen.py")
        done = subprocess.run([sys.executable, str(script), str(self.home.database)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Violation(f"after kill -9, reopening in another process: {done.stdout}{done.stderr}")

    def _await_agent(self, agent: RunnerProcess, since: float | None) -> str:
        def registered() -> bool:
            return any(row["id"] == agent.node and row["pid"] == agent.pid for row in self.client.get("/v1/runners")["runners"])

        until(registered)
        if since is None:
            return f"agent {agent.node} is back"
        self.times.agent.append(time.monotonic() - since)
        return f"agent {agent.node} has adopted after {self.times.agent[-1]:.2f} s"

    def _kill_while_starting(self) -> str:
        self.daemon.kill()
        for _ in range(self.random.randint(1, 2)):
            self.daemon.launch()
            time.sleep(self.random.uniform(0.2, 1.6))
            self.daemon.kill()
        return f"{'daemon, starting':18} " + self._revive_daemon(time.monotonic())

    def _stop_daemon(self) -> str:
        if (code := self.daemon.stop()) != 0:
            raise Violation(f"the daemon left with {code} at SIGTERM:\n{self.daemon.said()[-3000:]}")
        return f"{'daemon stopped':18} " + self._revive_daemon(time.monotonic(), clean=True)

    def _stop_agent(self) -> str:
        agent = self.random.choice(self.agents)
        if (code := agent.stop()) != 0:
            raise Violation(f"agent {agent.node} left with {code} at SIGTERM:\n{agent.said()[-3000:]}")
        agent.launch()
        return f"{'agent stopped':18} " + self._await_agent(agent, None)

    def _fill_disk(self) -> str:
        """For a while no file of the daemon can grow: what it cannot write it refuses, and it goes on by itself."""
        disk = Quota(self.home.path)
        disk.fill(self.daemon.pid, leaving=self.random.randint(1, 8192))
        time.sleep(self.random.uniform(0.3, 2.0))
        disk.free(self.daemon.pid)
        return f"{'disk full':18} the daemon goes on"

    def _kill_on_full_disk(self) -> str:
        """The daemon dies on a full disk, cannot start on it either, and starts when there is room."""
        disk = Quota(self.home.path)
        disk.fill(self.daemon.pid, leaving=self.random.randint(1, 8192))
        time.sleep(self.random.uniform(0.0, 1.0))
        self.daemon.kill()
        room = self.daemon.log.stat().st_size + 4096  # for its last words, and for nothing of the database
        words = self._refused_start(lambda: disk.limit(self.daemon.pid, room))
        if words is None or "may not grow" not in words:
            raise Violation(f"a daemon that may write nothing should have said so: {words}")
        return f"{'disk full+daemon':18} refused, then " + self._revive_daemon(time.monotonic())

    def _damage_log(self) -> str:
        """After kill -9 the log is cut, emptied, removed or flipped: the daemon refuses to start unless nothing is lost by that."""
        self.daemon.kill()
        log = self.home.database.with_name(self.home.database.name + ".wal")
        acknowledged = Acknowledged(self.home.database).read()
        if acknowledged is None:
            raise Violation("nothing tells how many commits were acknowledged")
        whole = log.read_bytes() if log.exists() else b""
        if not whole:
            return f"{'log damaged':18} there is none, " + self._revive_daemon(time.monotonic())
        how, place = self.random.choice(["cut", "emptied", "removed", "flipped"]), self.random.randrange(len(whole))
        log.unlink()
        if how != "removed":
            flipped = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
            log.write_bytes({"cut": whole[:place], "emptied": b"", "flipped": flipped}[how])
        before = log.read_bytes() if log.exists() else b""
        words = self._refused_start()
        if words is None:
            ((number,),) = self.client.post("/v1/sql", {"query": "SELECT number FROM commits"})["rows"]
            if number < acknowledged.number:
                raise Violation(f"the log was {how}: {acknowledged.number} commits were acknowledged, the daemon goes on with {number}")
            return f"{'log damaged':18} {how}, without a loss"
        if "--accept-loss" not in words or (log.read_bytes() if log.exists() else b"") != before:
            raise Violation(f"the log was {how}, and is another one now: {words}")
        log.write_bytes(whole)
        return f"{'log damaged':18} {how}, refused, put back, " + self._revive_daemon(time.monotonic())

    def _refused_start(self, then: Callable[[], None] = lambda: None) -> str | None:
        """Start the daemon, and do something as soon as it is a process; its last words when it refuses, None when it answers."""
        self.daemon.launch()
        then()
        process = self.daemon.process
        assert process is not None

        def settled() -> bool:
            with contextlib.suppress(StokerError):
                return process.poll() is not None or bool(self.client.get("/healthz"))
            return False

        until(settled)
        if (code := process.poll()) is None:
            return None
        before, error, words = self.daemon.said().rpartition("stoker: error: ")  # a line before may have been cut: no room
        if code != StoreError.exit_code or not error or words.count("\n") != 1 or "Traceback" in before:
            raise Violation(f"the daemon should have refused in one line, with 8; it ended with {code}:\n{self.daemon.said()[-3000:]}")
        return words

    # -- the end

    def counts(self) -> dict[str, int]:
        with contextlib.suppress(StokerError):
            return dict(self.client.get("/v1/status")["jobs"])
        return {}

    def settle(self, seconds: float = 180.0) -> None:
        """Submit nothing more, and let everything come to its end."""
        self.load.end()
        end = time.monotonic() + patient(seconds)
        while open_jobs := self._open_jobs():
            self._nobody_fell()
            if time.monotonic() > end:
                rows = "\n".join(f"  job {row['id']} {row['state']}: {row['state_reason']}" for row in open_jobs)
                raise Violation(f"jobs that do not end within {seconds:g} s:\n{rows}")
            time.sleep(0.2)

    def _open_jobs(self) -> list[dict[str, Any]]:
        states = "submitted,profiling,pending,assigned,starting,running,suspending"
        rows: list[dict[str, Any]] = self.client.get("/v1/jobs", state=states, arrays=1)["jobs"]
        return rows

    def examine(self) -> list[str]:
        """Stop everything and look from the outside; answers with what is wrong."""
        wrong = []
        for process in (*self.agents, self.daemon):
            if (code := process.stop()) != 0:
                wrong.append(f"{process.log.name}: exit code {code} at SIGTERM")
        return wrong + examine(self.home, self.diary, self.ledger)

    def facts(self) -> Iterator[str]:
        """How much was exercised. After `examine`."""
        with duckdb.connect(str(self.home.database), read_only=True) as con:
            for words, query in FACTS.items():
                yield f"{words}: " + ", ".join(f"{count} {what}" for what, count in con.execute(query).fetchall())

    def recoveries(self) -> Iterator[tuple[str, list[float]]]:
        """Name and seconds of each kind of recovery. After `examine`."""
        ended = ends_of_leases(self.home)
        yield "daemon killed → answers", self.times.daemon
        yield "agent killed → has adopted", self.times.agent
        for what in ("supervisor", "worker"):
            killed = [one for one in self.times.killed if one.what == what]
            yield f"{what} killed → lease ended", [ended[one.lease] - one.wall for one in killed if ended[one.lease] >= one.wall]


def quiet_environment() -> None:
    """Nothing of the person's own Stoker reaches the one under test."""
    for name in [name for name in os.environ if name.startswith("STOKER_") and name != "STOKER_CACHE"]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"
