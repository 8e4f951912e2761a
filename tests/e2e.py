"""Real processes for end-to-end tests: daemons, runners, the command line."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
from hastened import place
from stoker.engine.client import Client
from stoker.engine.home import Home
from waiting import PATIENCE, patient, until, watched

__all__ = [
    "DaemonProcess",
    "Jobs",
    "RunnerProcess",
    "Said",
    "command",
    "daemon_apart",
    "end_workers",
    "free_port",
    "rank_of",
    "refused",
    "runner_afar",
    "until",
]


def free_port() -> int:
    """A TCP port that nobody has: below those that the kernel gives to whoever asks for any, so that nobody is given it meanwhile."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class _Process:
    """A process of Stoker in a session of its own, with its output in a file; `kill` is kill -9. What it needs is imported: `forked`."""

    def __init__(self, home: Home, log: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.log = home.path / log
        self.env = env or {}
        self.command = command
        self.process: forked.Forked | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        self.log.open("ab").close()  # there, though the process has said nothing yet
        self.process = forked.start(self.command, self.log, {**os.environ, **self.env})
        watched.add(self)

    def said(self) -> str:
        return self.log.read_text()

    def died(self) -> str | None:
        """How it ended, with its last words, when it was neither told to end here nor by a command, which lets it leave with 0."""
        if self.process is None or not (code := self.process.poll()):
            return None
        return f"{self.log.name} tells how a process ended with {code}:\n{self.said()[-3000:]}"

    def kill(self) -> None:
        assert self.process is not None
        watched.discard(self)
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        assert self.process is not None
        watched.discard(self)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patient(90))

    def end(self) -> None:
        """Leave nothing of it behind, however it is."""
        watched.discard(self)
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


#: On a machine that may be busy the limits that a daemon sets itself and its SQL process are longer, as those of the tests are.
BUSY = f"""
from stoker.engine import services
from stoker.engine.adhoc import desk
services.ENDS_WITHIN *= {min(PATIENCE, 2)}
desk.HANG_PATIENCE *= {PATIENCE}
"""


def daemon_command(changes: str = "") -> list[str]:
    """What starts a daemon; ``changes``: lines of Python that give some of its constants other values."""
    if PATIENCE != 1:
        changes = BUSY + changes
    if not changes:
        return [sys.executable, "-m", "stoker.engine.daemon"]
    return [sys.executable, "-c", f"{changes}\nimport sys\nfrom stoker.engine import daemon\nsys.exit(daemon.main())"]


class DaemonProcess(_Process):
    """A daemon in a process of its own; ``changes`` to it: `daemon_command`."""

    def __init__(self, home: Home, *arguments: str, env: Mapping[str, str] | None = None, changes: str = "") -> None:
        super().__init__(home, "daemon.log", [*daemon_command(changes), "--home", str(home.path), *arguments], env)
        self._clients: list[Client] = []

    def start(self) -> Client:
        self.launch()
        client = self.client()
        assert self.process is not None
        until(
            lambda: client.get("/v1/status", timeout=5.0),
            90,
            says=lambda: f"the daemon has said:\n{self.said()[-3000:]}",
            alive=(self.process,),
        )
        return client

    def client(self, url: str = "", token: str = "") -> Client:
        """A connection, closed when the daemon is ended."""
        self._clients.append(Client(self.home, url=url, token=token))
        return self._clients[-1]

    def end(self) -> None:
        for client in self._clients:
            client.close()
        super().end()


@contextlib.contextmanager
def daemon_apart(template: Path | None = None, config: str = "", changes: str = "") -> Iterator[DaemonProcess]:
    """A daemon with a home of its own, for all tests of a module; ``template``: the database that it starts from."""
    home = Home(Path(tempfile.mkdtemp(prefix="stoker-")))
    try:
        if template is not None:
            shutil.copyfile(template, home.database)
        home.config.write_text(config)
        daemon = DaemonProcess(home, changes=changes)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.end()
    finally:
        shutil.rmtree(home.path, ignore_errors=True)


def agent_command(*, hastened: bool) -> list[str]:
    """What starts an agent; ``hastened``: its trainings are forked from a process that has imported what they import."""
    if not hastened:
        return [sys.executable, "-m", "stoker.runners.host.agent"]
    changes = f"import sys\nsys.path.append({str(Path(__file__).parent / 'on_the_host')!r})\nimport hastened\nhastened.hasten({place()!r})"
    return [sys.executable, "-c", f"{changes}\nfrom stoker.runners.host import agent\nsys.exit(agent.main())"]


class RunnerProcess(_Process):
    """A runner's agent in a process of its own. Its workers outlive it: stop the jobs first, or `end_workers`.

    It starts jobs cold unless told otherwise: a fork server takes 2 s of a core to load, and most tests have one job. By day trainings are
    forked all the same (`hastened`), by night they begin in fresh processes. ``STOKER_TEST_WARM=auto``: all tests run with warm starts.
    """

    def __init__(self, home: Home, node: str = "here", slots: int = 2, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.node = node
        warm = [] if "--warm" in arguments else ["--warm", os.environ.get("STOKER_TEST_WARM", "off")]
        options = ["--home", str(home.path), "--node", node, "--slots", str(slots), *warm, *arguments]
        by_day = warm == ["--warm", "off"] and os.environ.get("HYPOTHESIS_PROFILE") != "nightly"
        super().__init__(home, f"runner-{node}.log", [*agent_command(hastened=by_day), *options], env)

    def start(self, daemon: Client | None = None) -> None:
        """Until it has registered; ``daemon`` where that has another home, as on another host."""
        self.launch()
        client = daemon or Client(self.home, url="", token="")
        until(lambda: any(row["id"] == self.node and row["pid"] == self.pid for row in client.get("/v1/runners")["runners"]))
        if daemon is None:
            client.close()


@contextlib.contextmanager
def runner_afar(start_daemon: Callable[..., DaemonProcess]) -> Iterator[tuple[Jobs, Home, RunnerProcess]]:
    """Jobs of a daemon whose one runner is on another host, as far as can be told; that runner's home."""
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}").client()
    token = client.post("/v1/tokens", {"name": "far", "role": "runner"})["token"]
    there = Home(Path(tempfile.mkdtemp(prefix="stoker-far-")))
    runner = RunnerProcess(there, "far", 1, env={"STOKER_URL": f"http://127.0.0.1:{port}", "STOKER_TOKEN": token})
    runner.start(client)
    yield Jobs(client), there, runner
    runner.end()
    end_workers(there)
    shutil.rmtree(there.path, ignore_errors=True)


def servers_of(agent: int) -> list[int]:
    """Pids of the fork servers of a runner, which leave with it."""
    from stoker.runners.lease import processes

    table = processes.table()
    return [found.process.pid for found in table.values() if found.parent == agent and not found.dead and is_server(found.process.pid)]


def is_server(pid: int) -> bool:
    try:
        return b"stoker.runners.warm.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def end_workers(home: Home) -> None:
    """Kill every worker that was started for this home, with its supervisor: both carry or watch its tag."""
    from stoker.runners.lease import processes
    from stoker.runners.lease.rundir import RunDir

    for run in RunDir.find(home.path):
        if (run.path / "exit.json").exists():
            continue
        registered = run.read("supervisor.json")
        if registered and registered["pid"]:
            processes.send(processes.Process(registered["pid"], registered["started"]), signal.SIGKILL)
        processes.end_tagged(run.tag)


@dataclass(frozen=True)
class Said:
    """What one command answered."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """Its error; fails unless it is exactly one line, and no traceback."""
        assert self.err.count("\n") == 1 and self.err.startswith("stoker: error: "), self.err
        assert "Traceback" not in self.err and self.out == "", (self.out, self.err)
        return self.err.strip()


#: Code of a job that counts and saves until it is asked to stop, and says where it begins.
SAVES = """
import stoker, time
path = stoker.checkpoint_dir() / "n"
n = int(path.read_text()) if path.exists() else 0
print("begins at", n, flush=True)
while not stoker.should_stop():
    n += 1
    path.write_text(str(n))
    stoker.report(step=n, checkpoint=n)
    time.sleep(0.05)
"""


def command(
    home: Home,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    changes: str = "",
) -> Said:
    """One command of the command line, in a process of its own; ``changes``: as of `daemon_command`."""
    program = ["-c", f"{changes}\nimport sys\nfrom stoker.engine.cli import main\nsys.exit(main.main())"]
    argv = [sys.executable, *(program if changes else ["-m", "stoker.engine.cli.main"]), "--home", str(home.path), *arguments]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = forked.start(argv, Path(out.name), env or os.environ, errors=Path(err.name), cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return Said(code, *(Path(file.name).read_text() for file in (out, err)))


def refused(home: Home, *arguments: str) -> Said:
    """A daemon that does not start: its exit code and what it said."""
    with tempfile.NamedTemporaryFile() as log:
        process = forked.start([*daemon_command(), "--home", str(home.path), *arguments], Path(log.name), os.environ)
        try:
            return Said(process.wait(patient(120)), "", Path(log.name).read_text())
        finally:
            process.kill()  # one that has started


class Jobs:
    """Jobs of one daemon, submitted and watched through its API."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def submit(self, name: str, *argv: str, **fields: Any) -> int:
        """Submit one job; ``argv`` is its command, unless ``fields`` name a recipe."""
        job: dict[str, Any] = {"name": name, **fields}
        if argv:
            job["command"] = list(argv)
        return self.submit_all(job)[0]

    def submit_all(self, *jobs: dict[str, Any]) -> list[int]:
        body = {"jobs": list(jobs), "provenance": {"argv": ["test"], "cwd": "/"}}
        return [row["id"] for row in self.client.post("/v1/jobs", body)["jobs"]]

    def shell(self, name: str, script: str, **fields: Any) -> int:
        return self.submit(name, "sh", "-c", script, **fields)

    def python(self, name: str, script: str, **fields: Any) -> int:
        return self.submit(name, sys.executable, "-c", script, **fields)

    def show(self, job: int | str) -> dict[str, Any]:
        row: dict[str, Any] = self.client.get(f"/v1/jobs/{job}")["job"]
        return row

    def listed(self, job: int | str) -> dict[str, Any]:
        """What a listing tells of it, for a tenth of the daemon's CPU time that `show` takes."""
        if isinstance(job, str):  # several jobs may have had that name
            return self.show(job)
        (row,) = self.client.get("/v1/jobs", id=str(job), all="1")["jobs"]
        return dict(row)

    def state(self, job: int | str) -> str:
        return str(self.listed(job)["state"])

    def ended(self, job: int | str, seconds: float = 150.0) -> dict[str, Any]:
        """The job once it has ended."""
        until(lambda: self.listed(job)["finished_at"], seconds, pause=0.08)
        return self.show(job)

    def act(self, action: str, job: int | str, **body: Any) -> None:
        self.client.post(f"/v1/jobs/{job}/{action}", body)

    def waits(self, job: int | str) -> str | None:
        """The code of why it waits, None when it does not or nobody has looked yet."""
        waiting = self.client.get(f"/v1/jobs/{job}")["waiting"] if isinstance(job, str) else self.listed(job)
        code: str | None = None if waiting is None else waiting["code"]
        return code

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.post("/v1/sql", {"query": query})["rows"]]

    def events(self, kind: str) -> list[dict[str, Any]]:
        columns = ("seq", "job_id", "lease_id", "node_id", "before", "after", "actor", "reason")
        rows = self.sql(f"SELECT {', '.join(columns)} FROM events WHERE kind = '{kind}' ORDER BY seq")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def run_dir(self, job: int | str) -> Path:
        """Directory of its newest lease."""
        ((path,),) = self.sql(
            f"SELECT run_dir FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {int(job)} ORDER BY l.id DESC LIMIT 1"
        )
        return Path(path)


def rank_of(jobs: Jobs) -> int | None:
    """Process of a rank of the newest lease, None: there is none yet. By the directory of its run: other tests have leases too."""
    newest = jobs.sql("SELECT run_dir FROM workers ORDER BY lease_id DESC LIMIT 1")
    if not newest:
        return None
    run = f"STOKER_RUN_DIR={newest[0][0]}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"stoker.runners.worker.worker" in command and run in environment and any(word.startswith(b"RANK=") for word in environment):
            return int(path.name)
    return None
