"""The daemon's side of ad-hoc SQL: questions in, answers out, and a process behind them that may die at any moment.

At the first question a thread starts the process, gives it the database, and from then on passes on each commit. If the process
dies, or does not keep up, there is a new one. Questions wait meanwhile, within their own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGALRM, Signals
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ..errors import LimitExceeded, StoreError, Unreachable, UsageError
from ..store.changes import Change, encode
from .replica import PRIVATE, copy_log, descriptors_of, head_of, log_of
from .turns import Turns
from .wire import LARGEST_MESSAGE, Ask, Drop, Failed, Head, Load, Ready, StatementEnded, decode_for_daemon, frame, pair, unpack_answer

if TYPE_CHECKING:
    from ..home import Home
    from ..store.store import Committed, Store

FORMATS = ("json", "csv", "parquet")
LONGEST_TEXT = 20_000  #: characters
MAX_ROWS = 1_000_000
MAX_SECONDS = 300.0
GRACE = 0.5  #: seconds beyond its time for which an answer is awaited
COPY_MEMORY = 1 << 30  #: bytes that the copy may take: cached ones, and changes since it was last settled
MOST_BEHIND = 20_000  #: commits that wait to be sent; a process that leaves more unread is ended
MOST_UNSENT = 256 << 20  #: bytes of answers that clients have not taken yet
HANG_PATIENCE = 5.0  #: further seconds of silence after which the process itself counts as hanging
LONGEST_PAUSE = 30.0  #: seconds between two starts, if they fail
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """One statement and what it may use."""

    text: str
    format: str = "json"
    rows: int = 10_000
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST_TEXT:
            raise UsageError(f"query: {len(self.text)} characters; at most {LONGEST_TEXT} are taken")
        if self.format not in FORMATS:
            raise UsageError(f"format: {self.format!r} is not one of {', '.join(FORMATS)}")
        if not 1 <= self.rows <= MAX_ROWS:
            raise UsageError(f"limit: {self.rows} is outside its range 1 to {MAX_ROWS}")
        if not 0 < self.seconds <= MAX_SECONDS:
            raise UsageError(f"timeout: {self.seconds:g} s is outside its range 0 to {MAX_SECONDS:g}")


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    body: bytes
    media: str
    truncated: bool


class _Process:
    """One life of the process, and the sockets that lead to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True)
        self.feed, theirs = pair(socket.SOCK_STREAM)
        self.desk, their_desk = pair(socket.SOCK_SEQPACKET)
        self.desk.setblocking(False)
        for end in (self.desk, their_desk):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
        numbers = (theirs.fileno(), their_desk.fileno())
        with theirs, their_desk:
            self.running = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.server", *map(str, numbers)],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # a process that forks has one thread
            )
        self.commits: queue.SimpleQueue[tuple[int, list[Change]] | None] = queue.SimpleQueue()  #: None: the end
        self.ready = False
        self.served = False  #: it was ready once
        self.moved = False  #: the database was written to while it was copied
        self.heard = 0  #: messages
        self.why = ""  #: the reason of its end, in its own words
        self.asked: dict[int, asyncio.Future[int]] = {}  #: running statements; the future gets the signal that ends one
        self.gone = threading.Event()  #: nothing more is heard of it

    def end(self) -> None:
        self.running.kill()
        self.running.wait()
        self.feed.close()
        self.desk.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Desk:
    """Answers statements. `start` and what asks belong to the event loop, `committed` to the writer, `_keep` to a thread."""

    def __init__(self, store: Store, home: Home, *, at_once: int, memory: int, tell: Callable[[str], None]) -> None:
        self._store = store
        self._home = home
        self._memory = memory
        self._tell = tell  #: hears in words why the process had to be started anew
        self._turns = Turns(at_once)
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        self._commits = 0  #: heard of from the writer
        self._process: _Process | None = None  #: the one that hears of commits
        self._unsent = 0  #: bytes that `hold` counts
        self._trouble = ""  #: why there is none at the moment, and will not be soon
        self._wanted = threading.Event()  #: set by the first query: without queries no copy is kept
        self._closing = threading.Event()
        self._changed = asyncio.Event()  #: replaced whenever one of the last two changes
        self._thread = threading.Thread(target=self._keep, name="sql-feed", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._store.listen(self.committed)
        self._thread.start()

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self._wanted.set()
        if (process := self._process) is not None:
            process.running.kill()
            process.gone.set()
            process.commits.put(None)
        if self._thread.ident is not None:
            self._thread.join(1.0)

    # Questions: in the event loop.

    async def ask(self, user: str, question: Question) -> SqlAnswer:
        """The answer. Raises the error of a wrong statement, or LimitExceeded when it was cut off."""
        head, body = await self._ask(user, question.text, question.format, question.rows, question.seconds)
        return SqlAnswer(body, head.media, head.truncated)

    async def copy(self, user: str) -> Path:
        """A new database file with all that people may read; it is the caller's, to move or to remove."""
        _, body = await self._ask(user, "", "copy", 1, MAX_SECONDS)
        return Path(body.decode())

    async def _ask(self, user: str, text: str, format: str, rows: int, seconds: float) -> tuple[Head, bytes]:
        self._wanted.set()
        after, until = self._commits, self._loop.time() + seconds
        process = None
        try:
            async with asyncio.timeout(seconds) as limit, self._turns.of(user):
                process = await self._serving()
                limit.reschedule(until + GRACE)
                return await self._answered(process, Ask(next(self._numbers), after, text, format, rows, seconds, until, self._memory))
        except TimeoutError:
            if process is None:
                words = "others were being answered" if self._process else "the process that answers was being started"
                raise LimitExceeded(f"query: not begun within {seconds:g} s, for {words}; try again") from None
            self._loop.call_later(HANG_PATIENCE, self._end_if_silent, process, process.heard)
            raise LimitExceeded(_late(seconds)) from None

    def hold(self, size: int) -> Callable[[], None]:
        """Count the bytes of an answer until it has been taken; to be called then. Raises LimitExceeded when too many wait to be."""
        if self._unsent + size > MOST_UNSENT:
            raise LimitExceeded(f"query: {MOST_UNSENT >> 20} MiB of answers wait until those who asked take them; try again later")
        self._unsent += size

        def taken() -> None:
            self._unsent -= size

        return taken

    def _end_if_silent(self, process: _Process, heard: int) -> None:
        """A statement ends itself in time, and the process tells of each: one that has told of none since hangs."""
        if process.heard == heard and process is self._process:
            process.running.kill()

    async def _serving(self) -> _Process:
        """The process, once it can be asked."""
        while self._process is None or not self._process.ready:
            if self._trouble:
                raise StoreError(f"SQL can't be answered at the moment: {self._trouble}; 'stoker doctor' may know more")
            await self._changed.wait()
        return self._process

    async def _answered(self, process: _Process, ask: Ask) -> tuple[Head, bytes]:
        ended = process.asked[ask.id] = self._loop.create_future()
        ours, theirs = pair(socket.SOCK_STREAM)
        writer = None
        try:
            with theirs:
                socket.send_fds(process.desk, [msgspec.msgpack.encode(ask)], [theirs.fileno()])
            reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 22)
            received = await reader.read(-1)
            return unpack_answer(received) or _died(await ended, ask)
        except OSError:
            raise Unreachable(_RESTARTED) from None
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                process.desk.send(msgspec.msgpack.encode(Drop(ask.id)))
            raise
        finally:
            process.asked.pop(ask.id, None)
            if writer is None:
                ours.close()
            else:
                writer.close()

    def _hear(self, process: _Process) -> None:
        """Receive a message of the process; an empty one means that it has ended."""
        try:
            body = process.desk.recv(LARGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        message = decode_for_daemon(body) if body else None
        process.heard += 1
        match message:
            case StatementEnded():
                if (ended := process.asked.pop(message.id, None)) is not None and not ended.done():
                    ended.set_result(message.signal)
            case Failed():
                process.why, process.moved = message.why, message.moved
            case Ready():
                process.ready, process.served, self._trouble = True, True, ""
                self._notify()
            case None:
                self._loop.remove_reader(process.desk)
                process.ready = False
                for ended in process.asked.values():
                    if not ended.done():
                        ended.set_exception(Unreachable(_RESTARTED))
                        ended.exception()  # marks it as read: a client that has its answer does not look
                process.gone.set()
                process.commits.put(None)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # Commits: on the writer's thread.

    def committed(self, commit: Committed) -> None:
        """Hand on what a commit has done."""
        if not commit.changes:
            return
        self._commits += 1
        if (process := self._process) is None:
            return
        if process.commits.qsize() > MOST_BEHIND:
            process.running.kill()
        else:
            process.commits.put((self._commits, [change for change in commit.changes if change.table not in PRIVATE]))

    # The process: on a thread.

    def _keep(self) -> None:
        """From the first question on there is always a process, until `close`."""
        self._wanted.wait()
        hold, failures = False, 0
        while not self._closing.is_set():
            served, moved, words = False, False, ""
            try:
                process = _Process(self._home.scratch / f"sql-{os.getpid()}-{next(self._lives)}")
                words = self._live(process, hold)
                served, moved = process.served, process.moved
            except Exception as error:  # the disk is full, the database has failed, the loop has ended, or it is our own error
                words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            hold = moved
            if self._closing.is_set() or moved:
                continue
            failures = 0 if served else failures + 1
            log.warning("the process of ad-hoc SQL ended: %s", words, extra={"action": "sql.restart"})
            self._tell(words)
            if failures:
                self._pause(words, min(LONGEST_PAUSE, 2.0**failures))

    def _pause(self, words: str, seconds: float) -> None:
        self._trouble = f"{words} (it is tried again in {seconds:g} s)"
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._notify)
        self._closing.wait(seconds)

    def _live(self, process: _Process, hold: bool) -> str:
        """One life of the process; returns the reason of its end."""
        try:
            self._loop.call_soon_threadsafe(self._loop.add_reader, process.desk, self._hear, process)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._feed(process, hold)
            process.running.kill()
            if not self._closing.is_set():
                process.gone.wait()  # its descriptors may be reused only once the loop knows that it has ended
        finally:
            self._process = None
            process.end()
        code = process.running.returncode
        return process.why or (f"it was ended by {_name(-code)}" if code < 0 else f"it exited with {code}")

    def _feed(self, process: _Process, hold: bool) -> None:
        """Give it the database, then each commit."""
        number, load = self._store.exclusive(lambda _: self._begin(process, hold))
        process.feed.sendall(frame(number, msgspec.msgpack.encode(load)))
        while (entry := process.commits.get()) is not None:
            number, changes = entry
            process.feed.sendall(frame(number, encode(changes)))

    def _begin(self, process: _Process, hold: bool) -> tuple[int, Load]:
        """Between two commits: from here on the process gets them, and the file and its log have all earlier ones.

        With ``hold`` they are copied now, while commits wait: there was a checkpoint during the last attempt.
        No checkpoint is made here: DuckDB refuses it while a reader sees the state before the last commit.
        """
        database, head = self._store.path, b""
        descriptor = _descriptor(database)
        log = log_of(database)
        logged = log.stat().st_size if log.exists() else 0
        if hold:
            taken = process.folder / "taken.duckdb"
            _copy(descriptor, taken)
            copy_log(database, logged, taken)
            database = taken
        else:
            head = head_of(descriptor)
        self._process = process
        return self._commits, Load(str(database), head, logged, str(process.folder), COPY_MEMORY)


_RESTARTED = "the process that answers SQL ended, and is back in a moment: ask again"


def _name(number: int) -> str:
    return Signals(number).name if number in set(Signals) else f"signal {number}"


def _late(seconds: float) -> str:
    return f"query: stopped after its time limit of {seconds:g} s; narrow it, or ask for more time"


def _died(number: int, ask: Ask) -> NoReturn:
    """Raise the error for a statement whose process ended without an answer."""
    if number == SIGALRM:
        raise LimitExceeded(_late(ask.seconds))
    name = _name(number) if number else "an error of its own"
    raise LimitExceeded(f"query: it ended its process ({name}), as large or odd statements may; nothing else was hurt: simplify it")


def _descriptor(path: Path) -> int:
    """The database's own descriptor. Opening and closing the file here once more would undo DuckDB's lock on it."""
    for number in descriptors_of(path.stat()):
        return number
    raise StoreError(f"{path}: the file that is open is another one: it was moved or replaced")


def _copy(descriptor: int, target: Path) -> None:
    size, offset = os.fstat(descriptor).st_size, 0
    with open(target, "xb") as file:
        while offset < size:
            offset += os.sendfile(file.fileno(), descriptor, offset, size - offset)
