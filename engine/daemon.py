"""The daemon: one process that owns the database, serves the API and runs the policies.

    python -m stoker.engine.daemon --home HOME [--tcp HOST:PORT [--tls-cert FILE --tls-key FILE]] [--ui PORT] [--accept-loss]

Exit codes: 0 stopped, 2 bad configuration, 4 another daemon has this home, 8 the database can't be used,
70 the database failed while running (restart: nothing acknowledged is lost).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import uvicorn

from .api.app import application
from .api.connections import Connection, Connections, Sealed, raise_descriptors
from .client import KEEP_ALIVE
from .config import load as load_config
from .errors import Conflict, StokerError, StoreError, UsageError
from .home import Home
from .hosts.certificates import serving
from .pages.look import timed_look
from .pages.site import site
from .services import Services, leave_behind
from .store.store import known
from .streams import steady_stderr

QUEUE = 512  #: connections to a listener that wait until they are accepted
AT_ONCE = 16  #: connections that a listener accepts before other work has its turn
#: seconds after which a computing thread gives way to another; with Python's default, 5 ms, each query of a tick may wait that long
SWITCH_INTERVAL = 0.0005
FINISH_WITHIN = 2  #: seconds for requests that are being answered when the daemon is told to stop
log = logging.getLogger(__name__)


async def serve(services: Services, tcp: tuple[str, int] | None, ui: int | None = None, sealed: ssl.SSLContext | None = None) -> None:
    """Answer requests until told to stop."""
    loop = asyncio.get_running_loop()
    services.board.attach(loop)
    sockets = [(unix_socket(services.home.socket), False)]
    if tcp is not None:
        sockets.append((tcp_socket(*tcp), True))
    connections = Connections(raise_descriptors())
    servers = [_server(application(services, tcp=over_tcp), connections if over_tcp else None, sealed) for _, over_tcp in sockets]
    pages = _server(site(services), connections)
    services.page.serve = lambda sock: pages.serve(sockets=[sock])
    services.page.stream.look = partial(timed_look, services)
    if ui is not None:
        services.page.open(ui)
    services.page.open_again()
    services.at_end += [services.page.stream.end, *(partial(setattr, server, "should_exit", True) for server in [*servers, pages])]
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, services.stop_serving)
    services.start()
    services.desk.start()
    gc.freeze()  # all that was imported stays: looking through it again and again would stop all threads, 30 to 170 ms each time
    log.info("serving at %s", services.home.socket, extra={"action": "daemon.up"})
    try:
        async with connections.watched():
            await asyncio.gather(*(server.serve(sockets=[sock]) for server, (sock, _) in zip(servers, sockets, strict=True)))
            await services.page.ended()
    finally:
        services.board.detach()
        services.home.socket.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: one process may run several listeners, and none may keep the others waiting for long."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)  # by default asyncio accepts as many connections at once as may wait
        for sock in sockets or []:
            sock.listen(QUEUE)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: object, connections: Connections | None, sealed: ssl.SSLContext | None = None) -> _Server:
    """A listener; ``connections`` guards one that strangers can reach, ``sealed``: it speaks TLS."""
    http: Any = "auto"
    if connections is not None:
        http = partial(Connection, connections) if sealed is None else partial(Sealed, connections, sealed)
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=http,
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
    """A listening socket that only its owner can open. It replaces one left by a killed daemon, but not a live one."""
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
        words = f"--tcp {host}:{port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"{words}; choose another port, or end what holds it") from None
        raise UsageError(f"{words}; name an address of this host, and a port that you may open") from None


class Lock:
    """The home's lock, whose file holds "PID serves" until its daemon has ended properly."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        file.seek(0)
        pid, _, serves = file.read().partition(" ")
        self.killed = pid if serves else ""  #: pid of the former daemon if it did not end properly; an older version wrote only its pid
        self.note(str(os.getpid()))

    def note(self, pid: str) -> None:
        with contextlib.suppress(OSError):  # the lock holds even if a full disk refuses the note
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), f"{pid} serves".encode() if pid else b"")


@contextlib.contextmanager
def only_one(home: Home) -> Iterator[Lock]:
    """Hold the home's lock; the kernel releases it however this process ends."""
    with open(home.daemon_lock, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().partition(" ")[0].strip() or "unknown"
            raise Conflict(f"{home.path}: a daemon is already running here (pid {pid})") from None
        yield Lock(file)


def make_types_ready() -> None:
    """Let msgspec (0.22) read all message types before threads start: if two threads are the first to read a type, the process crashes."""
    kinds = msgspec.Struct.__subclasses__()
    for kind in kinds:  # which grows
        msgspec.json.Decoder(kind)
        kinds += kind.__subclasses__()


def run(
    home: Home,
    tcp: tuple[str, int] | None = None,
    *,
    ui: int | None = None,
    accept_loss: bool = False,
    sealed: ssl.SSLContext | None = None,
) -> int:
    """Serve until stopped; the exit code. Raises StokerError when it cannot start."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    make_types_ready()
    home.create()
    with only_one(home) as lock:
        try:
            if tcp is not None:
                tcp_socket(*tcp).close()  # a wrong one is refused now: to open the database may take long
            services = Services(home, load_config(home), accept_loss=accept_loss, killed=lock.killed)
        except BaseException:
            lock.note(lock.killed)  # left for the next daemon to record
            raise
        try:
            asyncio.run(serve(services, tcp, ui, sealed))
        except StokerError:  # its address was refused: it has ended, and was not killed
            lock.note("")
            raise
        finally:
            services.close()
        if services.exit_code == 0:
            lock.note("")
        if left := [*services.hanging, *_threads_left()]:
            leave_behind(left, services.exit_code)
        services.end_quietly()
        return services.exit_code


def _threads_left() -> list[str]:
    """Threads that hang, for which Python would wait for ever. Idle threads end in a moment."""
    end = time.monotonic() + 0.2
    while True:
        left = [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--tcp: {text!r} is not HOST:PORT, for example 127.0.0.1:7465")
    return host.strip("[]"), int(port)


def _sealed(tcp: str | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None or not tcp:
        raise UsageError("--tls-cert, --tls-key: both go together, and with --tcp, which they are for")
    return serving(cert, key)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stoker.engine.daemon", description="Run the Stoker daemon in the foreground.")
    parser.add_argument("--home", type=Path, help="state directory (default: $STOKER_HOME or ~/.local/state/stoker)")
    parser.add_argument("--tcp", metavar="HOST:PORT", help="also listen on TCP; every request there needs a token")
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="certificate (PEM, with its chain) with which TCP is TLS")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its key")
    parser.add_argument("--ui", metavar="PORT", type=int, help="also answer the page on this port of the loopback")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--accept-loss", action="store_true", help="start although commits that were acknowledged are not in the database")
    options = parser.parse_args()
    steady_stderr()
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it warns of each skipped run; engine/tasks.py reports those
    try:
        home = Home(options.home.expanduser().absolute()) if options.home else Home.default()
        sealed = _sealed(options.tcp, options.tls_cert, options.tls_key)
        tcp = parse_address(options.tcp) if options.tcp else None
        return run(home, tcp, ui=options.ui, accept_loss=options.accept_loss, sealed=sealed)
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
