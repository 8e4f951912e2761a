"""`stoker up` and `stoker down`: the daemon and one local runner, kept running in the foreground or in the background."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....runners.network.addresses import address_of_daemon, interfaces, require_own
from ... import format as fmt
from ...errors import Conflict, StokerError, Unreachable, UsageError
from ...home import Home
from ..command import App, Command, examples, pass_app
from ..numbers import FiniteRange, Size
from ..output import Answer, error_line, json_option, note, write
from .children import Child, describe_exit, end, left

if TYPE_CHECKING:
    from ...client import Client

START_TIMEOUT = 60.0  #: seconds until the daemon answers; DuckDB's log replay after a crash has taken 2.5 s
STOP_GRACE = 30.0  #: seconds until a child that was asked to leave is killed
TICK = 0.2
LEAST_STAY = 60.0  #: least seconds for which a runner is of any use
ACCEPT_LOSS = "--accept-loss"
PAGE_PORT = 7466  #: of the page, if none is given
JOINED = ("up", "draining", "drained")  #: states of a runner that has joined; one that was drained stays so
RUNNER_GIVEN_UP = "the runner cannot run"
OTHER_RUNNER = 15.0  #: seconds in which one that was started by hand has found the daemon again
HOPELESS = (UsageError.exit_code, Conflict.exit_code)  #: exit codes that a repetition would have again


def lock_file(home: Home) -> Path:
    """Held by `up` as long as it lives, so that a second one is refused and `down` knows the end."""
    return home.path / "up.lock"


def _is_locked(home: Home) -> bool:
    try:
        with open(lock_file(home)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


@contextmanager
def _sole(home: Home) -> Iterator[None]:
    with open(lock_file(home), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = f"'stoker up' already runs on {home.path}, and starts its daemon anew when that dies"
            raise Conflict(f"{found}; end it with 'stoker down', or look with 'stoker status'") from None
        with suppress(OSError):  # for `down` when no daemon answers; the disk may be full
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def _daemon_argv(home: Home, given: Mapping[str, object], accept_loss: bool) -> list[str]:
    argv = [sys.executable, "-m", "stoker.engine.daemon", "--home", str(home.path)]
    options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    return [*argv, *options, *([ACCEPT_LOSS] if accept_loss else [])]


def names_of_host(tcp: str | None) -> list[str]:
    """Names of this host for clients: its names, its addresses, and the host of ``--tcp``."""
    named = (tcp or "").rpartition(":")[0].strip("[]")
    own = [address for _, address in interfaces() if not address.startswith("fe80:")]
    names = [named if named not in ("", "*", "0.0.0.0", "::") else "", socket.gethostname(), socket.getfqdn(), "localhost", *own]
    return [name for name in dict.fromkeys(names) if name]


def _certificate(home: Home, tcp: str | None, tls: bool, cert: Path | None, key: Path | None) -> dict[str, object]:
    """TLS options of the daemon, after a check of the files."""
    if not tls and cert is None and key is None:
        return {}
    if tls and (cert or key):
        raise UsageError("--tls: has a certificate of its own, made here; leave it out where --tls-cert and --tls-key name files")
    if not tcp:
        raise UsageError("--tls: is for --tcp HOST:PORT, which is not given; the socket needs none")
    if not tls and (cert is None or key is None):
        raise UsageError("--tls-cert, --tls-key: both go together: a certificate and its key")
    from ...hosts import certificates

    if cert is None or key is None:
        cert, key = certificates.own(home.tls)
        if not cert.exists():
            certificates.make_own(home.tls, names_of_host(tcp))
    certificates.serving(cert, key)
    return {"--tls-cert": cert.absolute(), "--tls-key": key.absolute()}


def runner_argv(home: Home, node: str | None, pool: str, options: Mapping[str, object]) -> list[str]:
    """Command line of the agent; options that are None are left out."""
    argv = [sys.executable, "-m", "stoker.runners.host.agent", "--home", str(home.path), "--node", node or _host(), "--pool", pool]
    return [*argv, *(str(word) for option, value in options.items() if value is not None for word in (option, value))]


def _host() -> str:
    return socket.gethostname().split(".")[0]


SLOT_MEMORY = click.option(
    "--slot-memory",
    type=Size(),
    metavar="SIZE",
    help="Memory that each CPU slot is declared to have, for schedulers; it is not enforced (default: unknown, all jobs fit).",
)


ADDRESS = click.option(
    "--address", metavar="HOST", help="Address at which other hosts reach this one, for gangs (default: that of the route to the daemon)."
)


class Supervisor:
    """Keeps the daemon and its runner running until it is asked to end, or the daemon is shut down."""

    def __init__(self, app: App, daemon: Child, runner: Child | None) -> None:
        self.daemon = daemon
        self.runner = runner
        self.client = _local(app)
        self.stopping = False

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        try:
            self._start()
            while not self.stopping and self._watch():
                time.sleep(TICK)
        finally:
            # The runner first: it can still report; its workers live on and are adopted by the next one.
            for child in (self.runner, self.daemon):
                if child is not None:
                    child.stop(STOP_GRACE)

    def _stop(self, _number: int, _frame: Any) -> None:
        self.stopping = True

    def _start(self) -> None:
        """Start the daemon, wait until it answers, then the runner. A daemon that cannot start at all is not tried again."""
        self.daemon.start()
        end = time.monotonic() + START_TIMEOUT
        while not self.stopping and not self._answered():
            if (code := self.daemon.ended()) is not None and code < 0:
                break  # killed from outside, not refused by itself: `_watch` starts it again
            if code is not None:
                error_line(f"the daemon did not start ({describe_exit(code)}); what it said stands above; 'stoker doctor' may know more")
                raise click.exceptions.Exit(code or 1)
            if time.monotonic() > end:
                raise Unreachable(f"the daemon has not answered within {START_TIMEOUT:.0f} s; 'stoker doctor' may know why")
            time.sleep(0.05)
        if self.runner is not None and not self.stopping:
            self.runner.start()

    def _answered(self) -> bool:
        try:
            self.client.get("/healthz")
        except StokerError:
            return False
        # The present loss has been accepted, a later one has not.
        self.daemon.argv = [word for word in self.daemon.argv if word != ACCEPT_LOSS]
        self.client.close()
        return True

    def _watch(self) -> bool:
        """Restart dead children; False if there is none left to keep."""
        if self.daemon.ended() == 0:
            self._await_runner()
            return False
        if self.runner is not None and self.runner.ended() == 0:
            note("the runner has left, as it was told to; start another with 'stoker runner start'")
            self.runner = None
        if self.runner is not None and (code := self.runner.ended()) in HOPELESS:
            error_line(
                f"{RUNNER_GIVEN_UP} ({describe_exit(code)}) and is not tried again; what it said stands above;"
                " start another with 'stoker runner start'"
            )
            self.runner = None
        for child in (self.daemon, self.runner):
            if child is None:
                continue
            if (code := child.ended()) is not None:
                note(f"the {child.name} died ({describe_exit(code)}); restarting it in {fmt.duration(child.plan_restart())}")
            elif child.restart_if_due():
                note(f"the {child.name} was restarted")
        if ACCEPT_LOSS in self.daemon.argv:  # it was killed before it answered
            self._answered()
        return True

    def _await_runner(self) -> None:
        """After `down`: let a leaving runner finish."""
        end = time.monotonic() + 1.0
        while self.runner is not None and self.runner.running and time.monotonic() < end:
            time.sleep(TICK / 4)


def _local(app: App) -> Client:
    """A client of the daemon of this home, whatever STOKER_URL says."""
    from ...client import Client

    client = Client(app.home, url="", timeout=5.0)
    click.get_current_context().call_on_close(client.close)
    return client


def _refuse_second(app: App) -> None:
    """Refuse where a daemon runs that a person has started. One of another `up` is that one's, or is left by it: `_sole` tells."""
    if left(app.home.daemon_lock):
        return
    try:
        running = _local(app).get("/v1/status")
    except Unreachable:
        return
    raise Conflict(f"a daemon already runs on {app.home.path} (pid {running['pid']}); look with 'stoker status', end it with 'stoker down'")


def _take_over(home: Home, children: Sequence[Child]) -> None:
    """End what a killed `up` has left and these are to replace, in order: nobody would start it again when it dies."""
    found = [(child.name, process) for child in children if child.lock and (process := left(child.lock))]
    if not found:
        return
    from ...config import load

    load(home)  # while the configuration is wrong, nothing could take their place
    for name, process in found:
        if not end(process, STOP_GRACE):
            raise Conflict(f"the {name} (pid {process.pid}), left by a 'stoker up' that was killed, does not end: look at it with 'ps'")
    names = " and ".join(f"its {name} (pid {process.pid})" for name, process in found)
    note(f"an earlier 'stoker up' was killed: {names} had gone on, and will be started anew; jobs go on")


def _detach(app: App, options: list[str], node: str | None) -> None:
    """Run `up` in the background, its output in a log, and wait until the daemon answers and the runner of that name has joined."""
    app.home.logs.mkdir(exist_ok=True)
    log = app.home.logs / "up.log"
    argv = [sys.executable, "-m", "stoker", "--home", str(app.home.path), "up", *options]
    with open(log, "ab") as file:
        begin = file.tell()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    client, end = _local(app), time.monotonic() + START_TIMEOUT
    while True:
        code = process.poll()
        with open(log, "rb") as file:
            file.seek(begin)
            said = file.read().decode(errors="replace")
        if code is not None:
            click.echo(said, nl=False, err=True)
            raise click.exceptions.Exit(code or 1)
        try:
            status = client.get("/v1/status")
            # Runners heard since this daemon started, not those of a former one.
            heard = [row for row in status["runners"] if row["state"] in JOINED and row["last_seen"] >= status["started_at"]]
            joined = [row for row in heard if row["id"] == node]
            if joined or node is None:
                break
        except StokerError:
            status, joined = None, []
        if RUNNER_GIVEN_UP in said:  # one that was started by hand may have its name, and be back in a moment
            end = min(end, time.monotonic() + OTHER_RUNNER)
        if time.monotonic() > end:
            click.echo(said, nl=False, err=True)
            if RUNNER_GIVEN_UP in said:
                raise Conflict(
                    "the daemon is up, and its runner is not; start one with 'stoker runner start', or end all with 'stoker down'"
                )
            missing = "the runner has not joined" if status else "the daemon has not answered"
            raise Unreachable(f"{missing} within {START_TIMEOUT:.0f} s; what was said stands above and in {log}")
        time.sleep(0.05)
    gpus = sum(runner["gpus"] for runner in joined)
    write(
        f"Stoker is up: daemon pid {status['pid']}, {gpus} GPUs or slots, log {log}\n"
        "Next:  stoker submit -- python train.py    run something\n"
        "       stoker top                          watch it; in a browser: stoker ui\n"
        "       stoker down                         stop\n"
    )
    for row in joined:
        if row["state"] != "up":
            note(f"runner {row['id']} is still {row['state']}: 'stoker runner resume {row['id']}' lets it start jobs")


@click.command(cls=Command)
@click.option("--detach", "-d", is_flag=True, help="Run in the background; return when the daemon answers and the runner has joined.")
@click.option("--slots", type=click.IntRange(min=1), help="CPU slots to offer, and no GPU (default: the GPUs; without any, a slot a core).")
@SLOT_MEMORY
@click.option("--pool", default="default", show_default=True, help="Pool that the GPUs of this host join.")
@click.option("--node", metavar="NAME", help="Name of the runner (default: the host's).")
@click.option("--no-runner", is_flag=True, help="The daemon alone.")
@click.option("--tcp", metavar="HOST:PORT", help="Also answer on TCP; needs tokens ('stoker token create').")
@click.option("--tls", is_flag=True, help="TCP over TLS, with a certificate that is made once ('stoker tls' tells how clients know it).")
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="The same with a certificate of yours, and its chain (PEM)."
)
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The key of that.")
@click.option(
    "--ui",
    type=click.IntRange(1, 65535),
    is_flag=False,
    flag_value=PAGE_PORT,
    metavar="[PORT]",
    help=f"Also answer the live page, on this port of 127.0.0.1 ({PAGE_PORT} if none is given); 'stoker ui' opens it.",
)
@ADDRESS
@click.option(ACCEPT_LOSS, is_flag=True, help="Start although commits that were acknowledged are not in the database.")
@pass_app
@examples(
    "stoker up",
    "stoker up --detach --slots 2 --slot-memory 8GiB",
    "stoker up --no-runner --tcp 0.0.0.0:7465",
    "stoker up --detach --ui",
    "stoker up --tcp 0.0.0.0:7465 --address 10.0.0.1",
    "stoker up --tcp 0.0.0.0:7465 --tls",
    "stoker up --detach --accept-loss",
)
def up(
    app: App,
    detach: bool,
    slots: int | None,
    slot_memory: int | None,
    pool: str,
    node: str | None,
    no_runner: bool,
    tcp: str | None,
    tls: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    ui: int | None,
    address: str | None,
    accept_loss: bool,
) -> None:
    """Start the daemon and a runner on this host, and keep both running.

    In the foreground, Ctrl-C ends them; running jobs go on and are taken over by the next 'stoker up'.
    To end the jobs too, use 'stoker down --workers'.

    A database with fewer commits than were acknowledged (its log was cut, or a backup was restored) is refused with exit code 8,
    unless --accept-loss is given.
    """
    home = app.home.create()
    _refuse_second(app)
    files = _certificate(home, tcp, tls, tls_cert, tls_key)
    daemon = Child("daemon", _daemon_argv(home, {"--tcp": tcp, **files, "--ui": ui}, accept_loss), home.daemon_lock)
    if address is not None:
        require_own(address)
    offers = {"--slots": slots, "--slot-memory": slot_memory, "--address": address}
    meets = {"--address": address or address_of_daemon(tcp)}  # a gang over hosts may meet here
    runner = None if no_runner else Child("runner", runner_argv(home, node, pool, {**offers, **meets}), home.runner_lock(node or _host()))
    with _sole(home):
        _take_over(home, [child for child in (runner, daemon) if child])  # the runner first: it can still report
    if detach:
        given = {**offers, "--pool": pool, "--node": node, "--tcp": tcp, **({} if tls else files), "--ui": ui}
        options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
        options += [name for name, given in (("--no-runner", no_runner), ("--tls", tls), (ACCEPT_LOSS, accept_loss)) if given]
        _detach(app, options, None if no_runner else node or _host())
        return
    with _sole(home):
        note(f"starting on {home.path}; Ctrl-C stops")
        Supervisor(app, daemon, runner).run()


@click.command(cls=Command)
@click.option("--workers", is_flag=True, help="Also stop the running jobs, each with its grace period, and the runners.")
@click.option("--timeout", type=FiniteRange(min=0), default=120.0, show_default=True, help="Seconds to wait for the end.")
@json_option
@pass_app
@examples("stoker down", "stoker down --workers")
def down(app: App, workers: bool, timeout: float) -> Answer:
    """Stop the daemon.

    Running jobs go on, and are taken over when it is started again; with --workers they write a checkpoint and stop,
    and go on from there.
    """
    try:
        pid = app.client.post("/v1/shutdown", {"runners": workers, "workers": workers})["pid"]
    except Unreachable:
        if not workers and not app.client.url and _is_locked(app.home):
            return _end_up(app.home, timeout)
        raise
    app.client.close()
    end = time.monotonic() + timeout
    while _answers(app) or (app.url is None and _is_locked(app.home)):
        if time.monotonic() > end:
            raise Conflict(f"the daemon (pid {pid}) is still stopping after {timeout:.0f} s; wait with a larger --timeout, or kill it")
        time.sleep(0.05)
    what = "the daemon and its workers have" if workers else "the daemon has"
    return Answer({"stopped": True, "pid": pid, "workers": workers}, lambda: write(f"{what} stopped\n"), done=f"{what} stopped")


def _end_up(home: Home, timeout: float) -> Answer:
    """End an `up` whose daemon does not answer: it may be failing to start one."""
    pid = int(lock_file(home).read_text() or 0)
    if pid == 0:
        raise Conflict(f"'stoker up' runs on {home.path}, and its daemon does not answer: end it by hand")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + timeout
    while _is_locked(home):
        if time.monotonic() > end:
            raise Conflict(f"'stoker up' (pid {pid}) is still stopping after {timeout:.0f} s; wait with a larger --timeout, or kill it")
        time.sleep(0.05)
    found = {"stopped": True, "pid": None, "workers": False}
    said = "no daemon answered; 'stoker up', which was to keep one running, has ended"
    return Answer(found, lambda: write(f"{said}\n"), done=said)


def _answers(app: App) -> bool:
    try:
        app.client_within(2.0).get("/healthz")
        return True
    except Unreachable:
        return False
