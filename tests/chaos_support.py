"""One Stoker under fire: a daemon, agents and a load of real jobs; kill -9 of any of them at random moments; and restarts."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import duckdb
from chaos_checks import ends_of_leases, examine
from chaos_load import Ledger, Load
from e2e import DaemonProcess, RunnerProcess, end_workers, until
from stoker.engine.errors import StokerError
from stoker.engine.home import Home
from stoker.engine.identity import Process
from stoker.runners import processes
from stoker.runners.rundir import RunDir

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
        "supervisor+worker": 1, "daemon while starting": 1, "daemon stopped": 1, "agent stopped": 1}  # fmt: skip


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

    ``trainings`` is the share of jobs that train, ``calm`` the longest time between two kills in seconds.
    """

    def __init__(self, directory: Path, seed: int, *, slots: int = 4, trainings: float = 0.03, calm: float = 3.0) -> None:
        self.directory, self.slots, self.calm = directory, slots, calm
        self.random = random.Random(seed)
        self.home = Home(directory / "home").create()
        self.home.config.write_text(CONFIG)
        (directory / "locks").mkdir()
        self.daemon = DaemonProcess(self.home)
        self.agents = [RunnerProcess(self.home, node, slots // 2) for node in ("a", "b")]
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
        (act,) = self.random.choices(list(ACTS), list(ACTS.values()))
        victims = act.split("+")
        if act == "daemon while starting":
            return self._kill_while_starting()
        if act == "daemon stopped":
            return self._stop_daemon()
        if act == "agent stopped":
            return self._stop_agent()
        done = []
        for victim in victims:
            if victim in ("supervisor", "worker"):
                done.append(self._kill_work(victim))
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

    def working(self) -> list[tuple[RunDir, Process]]:
        """Supervisors that live, also those that have not registered yet, with their runs."""
        found = []
        for pid in processes.pids():
            with contextlib.suppress(OSError, ValueError):
                *_, module, run, _ = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if module == "stoker.runners.supervisor" and Path(run).is_relative_to(self.home.path) and (known := processes.stat(pid)):
                    lease, _, node_rank = Path(run).name.removeprefix("run-").partition(".")
                    found.append((RunDir(self.home.path, int(Path(run).parent.name), int(lease), int(node_rank or 0)), known.process))
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
        self.client.wait_until_up(150)
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

    # -- the end

    def counts(self) -> dict[str, int]:
        with contextlib.suppress(StokerError):
            return dict(self.client.get("/v1/status")["jobs"])
        return {}

    def settle(self, seconds: float = 180.0) -> None:
        """Submit nothing more, and let everything come to its end."""
        self.load.end()
        end = time.monotonic() + seconds
        while open_jobs := self._open_jobs():
            self._nobody_fell()
            if time.monotonic() > end:
                rows = "\n".join(f"  job {row['id']} {row['state']}: {row['state_reason']}" for row in open_jobs)
                raise Violation(f"jobs that do not end within {seconds:g} s:\n{rows}")
            time.sleep(0.2)

    def _open_jobs(self) -> list[dict[str, Any]]:
        states = "submitted,profiling,pending,assigned,starting,running,suspending,merged"
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
