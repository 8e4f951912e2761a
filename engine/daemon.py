"""The daemon: one process that owns the database, serves the API and runs the policies.

    python -m stoker.engine.daemon --home HOME [--tcp HOST:PORT] [--accept-loss]

Exit codes: 0 stopped, 2 bad configuration, 4 another daemon has this home, 8 the database can't be used,
70 the database failed while running (restart: nothing acknowledged is lost).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec
import uvicorn

from .adhoc.desk import Desk
from .admission import Admission
from .api.app import application
from .api.auth import Tokens
from .api.call import MOST_LARGE
from .api.connections import Connection, Connections, raise_descriptors
from .api.pools import Kind, Pools
from .api.run_uploads import RunUploads
from .api.snapshots import Snapshots
from .api.uploads import Uploads
from .board import Board
from .client import KEEP_ALIVE
from .config import Config
from .config import load as load_config
from .counts import Counts
from .deadlines import DeadlineWatch
from .errors import Conflict, StokerError, StoreError, UsageError
from .estimating import INTERVAL as ESTIMATING
from .estimating import Estimating
from .fleet import Fleet
from .home import Home
from .hooks import Hooks
from .recurring import Recurring
from .remote_logs import RemoteLogs
from .scheduling import Scheduling
from .store.lockdown import lock_down
from .store.maintenance import Retention, clear_unfinished, export_events, nightly_backup, thin
from .store.store import Committed, Store, known
from .streams import steady_stderr
from .tasks import Tasks
from .workflow.settings import Note, note
from .workflow.watch import StopAll, look_at_leases, stop_all

FAILED_EXIT = 70  #: EX_SOFTWARE
QUEUE = 512  #: connections to a listener that wait until they are accepted
AT_ONCE = 16  #: that are accepted before others have their turn
ENDS_WITHIN = 4.2  #: seconds from being told to stop to the end of the process, whatever runs
FINISH_WITHIN = 2  #: of them, for requests that are being answered
FOR_HOOKS, FOR_STORE = 0.5, 1.0  #: of them, kept for what ends after the tasks, and for the database, which ends last
LEASE_CLOCK = 1.0  #: seconds between looks at leases that expire
log = logging.getLogger(__name__)


class Daemon:
    """Everything that lives in the daemon's process; `run` serves until it is told to stop."""

    def __init__(self, home: Home, config: Config, *, accept_loss: bool = False) -> None:
        self.home = home
        self.config = config
        self.started_at = time.time()
        directories = [home.backups, home.archive, home.scratch]
        for directory in directories:
            directory.mkdir(exist_ok=True, mode=0o700)
        clear_unfinished(home)
        self.store = Store.open(
            home.database,
            backups=home.backups,
            config={"memory_limit": config.limits.memory},
            prepare=lambda con: lock_down(con, directories, [home.database]),
            accept_loss=accept_loss,
        )
        # A restored backup, or a new database, must not give a job the number, and so the checkpoints, of another one.
        for table, used in zip(("jobs", "leases"), home.used_numbers(), strict=True):
            self.store.skip_numbers(table, used)
        if self.store.lost:
            log.warning("accepted as lost: %s", self.store.lost, extra={"action": "store.loss"})
            self.store.write(note, Note("loss.accepted", "daemon", self.store.lost))
        self.tokens = Tokens(self.store)
        self.tokens.refresh()
        self.fleet = Fleet(self.store, silent_after=config.runners.silent_after)
        self.board = Board(self.store)
        self.board.refresh()
        self.remote_logs = RemoteLogs(self.board, self.fleet, home)
        self.counts = Counts(self.store)
        self.tasks = Tasks(self._on_task)
        self.recurring = Recurring(self.store, self.tasks)
        self.hooks = Hooks(self.store, config.hooks)
        self.scheduling = Scheduling(self.store, self.tasks, config)
        self.deadlines = DeadlineWatch(self.store)
        self.estimating = Estimating(self.store, self.scheduling.know_overheads)
        self.admission = Admission(self.store, self.scheduling)
        limits = config.limits
        self.desk = Desk(
            self.store, home, at_once=limits.queries, memory=limits.query_memory << 20, tell=lambda why: self._tell("sql.restart", why)
        )
        self.uploads = Uploads()
        self.run_uploads = RunUploads()
        self.pools = Pools()
        self.snapshots = Snapshots(self.pools)
        self.large_bodies = asyncio.Semaphore(MOST_LARGE)
        self.ending: asyncio.Task[None] | None = None  #: waits until the runners have left
        self.ends_at: float | None = None  #: monotonic time by which this process ends, once it was told to
        self._last_resort: threading.Thread | None = None
        self._ended = threading.Event()
        self.exit_code = 0
        self._looked = self.started_at
        self.hanging: list[str] = []  #: what would not end, once closed
        self._servers: list[uvicorn.Server] = []

    def start(self) -> None:
        """Listen to commits and start the periodic tasks."""
        self.store.listen(self._committed)
        self.store.listen(self.counts.committed)
        self.store.listen(self.snapshots.committed)
        self.store.listen(self.hooks.committed)
        self.store.listen(self.estimating.committed)
        self.tasks.start()
        self.tasks.every("policies", 3600.0, self.scheduling.reload)
        self.tasks.every("recurring", 3600.0, self.recurring.reload)
        self.tasks.every("lease clock", LEASE_CLOCK, self._look_at_clock)
        self.tasks.every("runner watch", self.fleet.heartbeat / 2, self.fleet.watch)
        self.tasks.every("deadline watch", 5.0, self.deadlines.look)
        self.tasks.every("estimates", ESTIMATING, self.estimating.look)
        self.tasks.every("retention", 3600.0, self._retain)
        if self.config.backup.cron:
            self.tasks.cron("backup", self.config.backup.cron, lambda: nightly_backup(self.store, self.home))
        self.scheduling.start()
        self.recurring.reload()

    def _look_at_clock(self) -> None:
        """What time brings: leases that expire, attempts out of time, jobs whose back-off is over."""
        now, before = time.time(), self._looked
        policies = self.scheduling
        look_at_leases(self.store, now, policies.asked_at, policies.spared, lambda pool: self.tasks.wake(f"policy {pool}"))
        for (pool,) in self.store.rows("policy/backoffs_over", before, now):
            self.tasks.wake(f"policy {pool}")
        self._looked = now
        if self.board.stale:  # a refresh failed: what it would have said is still owed
            self.board.refresh()

    def _retain(self) -> None:
        keep = Retention(**msgspec.structs.asdict(self.config.retention))
        self.store.write(thin, keep)
        export_events(self.store, self.home, keep)

    def _committed(self, commit: Committed) -> None:
        """After each commit, on the writer's thread: bring what is kept in memory up to date."""
        if "fatal" in commit.topics:
            self.exit_code = FAILED_EXIT
            self.stop_serving()
            return
        if commit.topics & {"leases", "nodes"}:
            self.board.refresh()
        if "nodes" in commit.topics:
            self.fleet.reload()
        if "tokens" in commit.topics:
            self.tokens.refresh()
        if "schedules" in commit.topics:
            self.tasks.wake("recurring")

    def _on_task(self, kind: str, task: str, words: str) -> None:
        self._tell(kind, f"{task}: {words}", {"task": task})

    def _tell(self, kind: str, words: str, detail: dict[str, Any] | None = None) -> None:
        """Put an event of the daemon's own on record."""
        with contextlib.suppress(StokerError):
            self.store.submit(note, Note(kind, "daemon", words, detail or {}))

    def dismiss(self, *, workers: bool, actor: str) -> list[str]:
        """Tell all runners to leave, with ``workers`` after they have stopped their jobs; those that were told."""
        nodes = [str(row[0]) for row in self.store.rows("api/live_nodes")]
        for node in nodes:
            self.fleet.change(node, "draining", actor, "stoker is going down", leaving=True)
        if workers:
            self.store.write(stop_all, StopAll("drain", actor))
        return nodes

    async def stop_when_left(self, nodes: list[str]) -> None:
        """Stop serving once the answer has gone out and these runners have reported that they leave; at the latest after the longest
        grace period."""
        end = time.monotonic() + 120.0
        try:
            while nodes and time.monotonic() < end:
                states = dict(await self.pools.run(Kind.STATUS, self.store.rows, "api/node_states"))
                if all(states.get(node) == "stopped" for node in nodes):
                    break
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.05)
        finally:
            self.stop_serving()

    @property
    def stopping(self) -> bool:
        """Whether all that waits for something to answer with answers now."""
        return self.ends_at is not None

    def stop_serving(self) -> None:
        """End: `ENDS_WITHIN` from now, whatever runs."""
        if self.ends_at is None:
            self.ends_at = time.monotonic() + ENDS_WITHIN
            self._last_resort = threading.Thread(target=self._end_in_time, args=[self.ends_at], name="last resort", daemon=True)
            self._last_resort.start()
        for server in self._servers:
            server.should_exit = True
        self.board.close()

    def _end_in_time(self, moment: float) -> None:
        if not self._ended.wait(max(0.0, moment - time.monotonic())):
            _leave_behind(["the end itself"], self.exit_code)

    def end_quietly(self) -> None:
        """Nothing hangs: the last resort is not needed. A thread that is left would keep DuckDB's objects, which it complains of."""
        self._ended.set()
        if self._last_resort is not None:
            self._last_resort.join()

    def close(self) -> None:
        """Stop the tasks, write what is folded, checkpoint: as far as there is time."""
        ends_at = self.ends_at or time.monotonic() + ENDS_WITHIN
        self.pools.close()
        self.hanging = self.tasks.stop(ends_at - FOR_HOOKS - FOR_STORE)
        self.desk.close()
        self.hooks.close(ends_at - FOR_STORE)
        with contextlib.suppress(StokerError):  # counters only; the disk may be full
            self.scheduling.flush()
        if not self.store.close(ends_at):
            self.hanging.append("the database")

    async def serve(self, tcp: tuple[str, int] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.board.attach(self._loop)
        sockets = [(unix_socket(self.home.socket), False)]
        if tcp is not None:
            sockets.append((tcp_socket(*tcp), True))
        connections = Connections(raise_descriptors())
        self._servers = [_server(application(self, tcp=over_tcp), connections if over_tcp else None) for _, over_tcp in sockets]
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self.stop_serving)
        self.start()
        self.desk.start()
        log.info("serving at %s", self.home.socket, extra={"action": "daemon.up"})
        try:
            async with connections.watched():
                await asyncio.gather(*(server.serve(sockets=[sock]) for server, (sock, _) in zip(self._servers, sockets, strict=True)))
        finally:
            self.board.detach()
            self.home.socket.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: one process may run several listeners. None of them is served for long alone."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)  # with asyncio, as many connections are accepted at once as may wait
        for sock in sockets or []:
            sock.listen(QUEUE)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: object, connections: Connections | None) -> _Server:
    """A listener; ``connections`` guard one that strangers can reach."""
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http="auto" if connections is None else partial(Connection, connections),  # type: ignore[arg-type]
            backlog=AT_ONCE,
            log_level="error",  # a line for each request that is no HTTP would let strangers fill the disk
            access_log=False,
            timeout_graceful_shutdown=FINISH_WITHIN,
            timeout_keep_alive=KEEP_ALIVE,
            lifespan="off",
            ws="none",
        )
    )


def unix_socket(path: Path) -> socket.socket:
    """A listening socket that only its owner can open. One left by a daemon that was killed is replaced; a live one is not."""
    if len(os.fsencode(path)) > 100:
        raise UsageError(f"{path}: too long for a Unix socket (100 bytes); choose a shorter home with --home or STOKER_HOME")
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(str(path))
        raise Conflict(f"{path}: something answers on this socket; is another daemon running? ('stoker status')")
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    finally:
        probe.close()
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(QUEUE)
    return sock


def tcp_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=QUEUE)
    except OSError as error:
        raise Conflict(f"--tcp {host}:{port}: {error.strerror or error}; choose another port, or end what holds it") from None


@contextlib.contextmanager
def only_one(home: Home) -> Iterator[IO[str]]:
    """Hold the home's lock; the kernel releases it whatever happens to this process."""
    with open(home.path / "daemon.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Conflict(f"{home.path}: a daemon is already running here (pid {file.read().strip() or 'unknown'})") from None
        with contextlib.suppress(OSError):  # for people only: the lock itself holds, on a full disk too
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield file


def run(home: Home, tcp: tuple[str, int] | None = None, *, accept_loss: bool = False) -> int:
    """Serve until stopped; the exit code. Raises StokerError when it cannot start."""
    home.create()
    with only_one(home):
        daemon = Daemon(home, load_config(home), accept_loss=accept_loss)
        try:
            asyncio.run(daemon.serve(tcp))
        finally:
            daemon.close()
        if left := [*daemon.hanging, *_threads_left()]:
            _leave_behind(left, daemon.exit_code)
        daemon.end_quietly()
        return daemon.exit_code


def _threads_left() -> list[str]:
    """Threads that Python would wait for, for ever, when they hang. What has nothing to do any more ends in a moment."""
    end = time.monotonic() + 0.2
    while True:
        left = [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def _leave_behind(what: list[str], code: int) -> NoReturn:
    """Exit at once, whatever runs. All that was acknowledged is durable."""
    log.error("left hanging: %s", ", ".join(what), extra={"action": "daemon.hanging"})
    logging.shutdown()
    os._exit(code)


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--tcp: {text!r} is not HOST:PORT, for example 127.0.0.1:7465")
    return host.strip("[]"), int(port)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stoker.engine.daemon", description="Run the Stoker daemon in the foreground.")
    parser.add_argument("--home", type=Path, help="state directory (default: $STOKER_HOME or ~/.local/state/stoker)")
    parser.add_argument("--tcp", metavar="HOST:PORT", help="also listen on TCP; every request there needs a token")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--accept-loss", action="store_true", help="start although commits that were acknowledged are not in the database")
    options = parser.parse_args()
    steady_stderr()
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a skipped run is a warning of its; engine/tasks.py judges those
    try:
        home = Home(options.home.expanduser().absolute()) if options.home else Home.default()
        return run(home, parse_address(options.tcp) if options.tcp else None, accept_loss=options.accept_loss)
    except StokerError as error:
        return _refused(error)
    except OSError as error:
        if (words := known(error)) is None:
            raise
        return _refused(StoreError(words))


def _refused(error: StokerError) -> int:
    sys.stderr.write(f"stoker: error: {error}\n")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
