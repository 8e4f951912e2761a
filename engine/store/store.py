"""The store: one DuckDB file, one writer with group commit, and readers that never wait for it.

Commands are functions ``(Transaction, batch) -> results``. The writer takes all queued requests, runs each
command once over all of its own (vectorised), commits everything in ONE transaction, and only then
answers. A request that can't be served gets its own StokerError and does not disturb the others.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..disk_room import BLOCK_BYTES, room
from ..errors import NoRoom, StokerError, StoreError, UsageError
from . import migrate
from .acknowledged import BAD_LOG, Acknowledged, CommitMark, accept, open_checked
from .changes import Change
from .define_views import define_views
from .reserve import Reserve
from .sqlfiles import run
from .transaction import Catalog, Transaction

if TYPE_CHECKING:
    import duckdb

P = TypeVar("P")
R = TypeVar("R")
Command = Callable[[Transaction, Sequence[P]], Sequence[R | StokerError]]

READER_PATIENCE = 2.0  #: seconds to wait for readers before the database file is replaced; then they are interrupted
INTERRUPTED_WITHIN = 0.3  #: seconds to wait for interrupted queries when the database is closed; the rest is left
MAX_BATCH = 512  #: requests in one transaction
_FULL = ("No space left", "Out of disk space", "not enough disk space")  #: words in errors of DuckDB and the system
_LIMITED = ("File too large", "Disk quota exceeded")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    command: Command[Any, Any] | None  #: None: the payload is exclusive work, done between two transactions
    payload: Any
    answer: Future[Any]
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The news of a commit for listeners."""

    topics: frozenset[str]
    events: Sequence[dict[str, Any]]
    changes: Sequence[Change] = ()  #: the changes to the tables, in order


class _Readers:
    """Cursors for readers, kept for reuse; `paused` waits until none is in use, and gives out no new one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._lent: list[duckdb.DuckDBPyConnection] = []
        self._busy = 0
        self._closed = False

    def take(self, make: Callable[[], duckdb.DuckDBPyConnection]) -> duckdb.DuckDBPyConnection:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._busy += 1
            if self._idle:
                self._lent.append(self._idle.pop())
                return self._lent[-1]
        try:
            cursor = make()
            with self._changed:
                self._lent.append(cursor)
            return cursor
        except BaseException:
            self.give(None, sound=False)
            raise

    def give(self, cursor: duckdb.DuckDBPyConnection | None, *, sound: bool) -> None:
        """Take a cursor back; one that is not ``sound`` (its query failed) is not used again."""
        if cursor is not None and not sound:
            with contextlib.suppress(Exception):
                cursor.close()
        with self._changed:
            self._busy -= 1
            if cursor is not None:
                self._lent = [lent for lent in self._lent if lent is not cursor]
            if cursor is not None and sound:
                self._idle.append(cursor)
            self._changed.notify_all()

    @contextlib.contextmanager
    def paused(self, patience: float = math.inf, *, polite: float = 0.0) -> Iterator[None]:
        """Running queries have ``polite`` seconds to end, then they are interrupted; after ``patience`` more seconds they are left.

        They are interrupted repeatedly, as an interruption between two queries has no effect.
        """
        with self._changed:
            self._closed = True
            begun = time.monotonic()
            while self._busy and time.monotonic() < begun + polite + patience:
                for cursor in self._lent if time.monotonic() >= begun + polite else ():
                    cursor.interrupt()
                self._changed.wait(0.02)
            for cursor in self._idle:
                cursor.close()
            self._idle.clear()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Store:
    """The database, opened only by the daemon. `open` migrates the file; `close` checkpoints it."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        path: Path,
        *,
        config: dict[str, Any] | None = None,
        prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
        clock: Callable[[], float] = time.time,
        max_batch: int = MAX_BATCH,
        acknowledged: Acknowledged | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self.path = path
        self.refused: str | None = None  #: why commits are refused now for want of room on the disk; None: they are not
        self.lost: str | None = None  #: acknowledged commits that the database lacks, in words; their loss was accepted
        self._config = config
        self._prepare = prepare
        self.failed: BaseException | None = None
        self.commits = 0
        self._con = con
        self._clock = clock
        self._max_batch = max_batch
        self._catalog = Catalog(con)
        self._acknowledged = acknowledged
        self._reserve = reserve
        ((self._checkpoints_at,),) = con.execute("SELECT current_setting('checkpoint_threshold')").fetchall()
        self._sparing = False  #: no checkpoints are made
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._listeners: list[Callable[[Committed], None]] = []
        self._readers = _Readers()
        self._gate = threading.Lock()  # guards the queue: after `close` no request can be queued behind the sentinel
        self._open = True
        self._writer = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._writer.start()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        backups: Path | None = None,
        config: dict[str, Any] | None = None,
        prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
        accept_loss: bool = False,
        reserve: Reserve | None = None,
        **options: Any,
    ) -> Store:
        """Open (or create) the file, migrate it after a backup, check it, define the views.

        ``config`` has DuckDB's settings for opening; ``prepare`` is called on every opened connection, also after `replace`.
        ``reserve``: room for urgent commits on a full disk, and for this opening if the disk is full already.

        Raises StoreError with the remedy when the file is held by another process, corrupt, newer or edited, or when it has fewer commits
        than were acknowledged and ``accept_loss`` is not set.
        """
        acknowledged = Acknowledged(path)
        known = acknowledged.read()
        opened = partial(_opened, path, known, backups, config, prepare, reserve, accept_loss=accept_loss)
        try:
            con, lost = opened()
        except NoRoom:
            if reserve is None or not reserve.size:
                raise
            con, lost = opened()  # a job has taken the room meanwhile
        store = cls(con, path, config=config, prepare=prepare, acknowledged=acknowledged, reserve=reserve, **options)
        store.lost = lost
        if reserve is not None and room(path.parent).state == "full":
            store._spare(True)
        for table, used in (known.used if known else {}).items():
            store.skip_numbers(table, used)
        store._acknowledge(sync=True)
        return store

    def skip_numbers(self, table: str, used: int) -> None:
        """Do not give out numbers up to ``used``, which are in use outside the database. To be called before the first write."""
        self._catalog.skip(table, used)

    def listen(self, listener: Callable[[Committed], None]) -> None:
        """Call ``listener`` after each commit and before its answers, on the writer's thread: be quick, and wait for no write."""
        self._listeners.append(listener)

    def submit(self, command: Command[P, R], payload: P, *, urgent: bool = False) -> Future[R]:
        """Queue a write; the future is done when it is durable, or holds the error of a refusal.

        ``urgent``: the write stops work or makes room, so on a full disk it may use the reserve.
        """
        return self._put(command, payload, urgent)

    def _put(self, command: Command[Any, Any] | None, payload: Any, urgent: bool = False) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._gate:
            if self._open and self.failed is None:
                self._requests.put(_Request(command, payload, answer, urgent))
                return answer
        raise StoreError("the database is closed" if self.failed is None else f"the database has failed: {self.failed}; restart the daemon")

    def write(self, command: Command[P, R], payload: P, *, urgent: bool = False) -> R:
        """Write and wait until it is durable."""
        return self.submit(command, payload, urgent=urgent).result()

    @contextlib.contextmanager
    def read(self, *, kept: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for one reader, from a pool. It reads the last commit.

        A cursor that is not ``kept`` is closed after use; this is for readers that change its settings.
        """
        cursor = self._readers.take(lambda: self._con.cursor())  # noqa: PLW0108 - `replace` may put another connection here while it waits
        try:
            yield cursor
        except BaseException:
            self._readers.give(cursor, sound=False)
            raise
        self._readers.give(cursor, sound=kept)

    @property
    def size(self) -> int:
        """Bytes on disk, the write-ahead log included."""
        return self.path.stat().st_size + (self._log.stat().st_size if self._log.exists() else 0)

    @property
    def _log(self) -> Path:
        return _log_of(self.path)

    @contextlib.contextmanager
    def trial(self) -> Iterator[Transaction]:
        """What a write command would find now, for its SELECTs alone."""
        with self.read() as con:
            yield Transaction(con, self._catalog, self._clock())

    def rows(self, name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of ``sql/NAME.sql``."""
        with self.read() as con:
            return run(con, name, *parameters).fetchall()

    def objects(self, name: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of ``sql/NAME.sql`` as dictionaries."""
        with self.read() as con:
            result = run(con, name, *parameters)
            columns = [column[0] for column in result.description or ()]
            return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

    def exclusive(self, work: Callable[[duckdb.DuckDBPyConnection], R]) -> R:
        """Run ``work`` on the writer's connection between two transactions (backup, export, checkpoint)."""
        answer: Future[R] = self._put(None, work)
        return answer.result()

    def replace(self, make: Callable[[duckdb.DuckDBPyConnection], Path]) -> None:
        """Replace the database by another file, between two transactions; readers wait meanwhile.

        ``make`` gets the writer's connection and returns the path of a complete file beside the database.
        """

        def work(con: duckdb.DuckDBPyConnection) -> None:
            fresh = make(con)
            with self._readers.paused(polite=READER_PATIENCE):  # a report may read for minutes, during which nothing would be scheduled
                con.execute("CHECKPOINT")
                con.close()
                try:
                    os.replace(fresh, self.path)
                    self._con = connect(self.path, self._config)
                    if self._prepare is not None:
                        self._prepare(self._con)
                except BaseException as error:
                    self._fail(error)  # no data is lost, but this process no longer has a database
                    raise

        self.exclusive(work)

    def spare_checkpoints(self, sparing: bool) -> None:
        """Set whether checkpoints are left out and the log grows: a checkpoint that finds no room breaks the connection."""
        if sparing != self._sparing:
            self.exclusive(lambda _: self._spare(sparing))

    def close(self, until: float | None = None) -> bool:
        """Finish the queued requests, checkpoint, close the file.

        With ``until`` (monotonic time) running queries are interrupted, and the result is False when the writer has not ended by then.
        Acknowledged commits are in the log in any case, which the next start reads.
        """
        import duckdb

        with self._gate:
            if not self._open:
                return True
            self._open = False
            self._requests.put(None)
        self._writer.join(None if until is None else max(0.0, until - time.monotonic()))
        if self._writer.is_alive():
            return False
        with self._readers.paused(math.inf, polite=math.inf) if until is None else self._readers.paused(INTERRUPTED_WITHIN):
            if self.failed is None:
                self._checkpoint()
            with contextlib.suppress(duckdb.Error):  # it fails while a query runs that ignores its interruption
                self._con.close()
        if self._acknowledged is not None:
            self._acknowledged.close()
        return True

    def _checkpoint(self) -> None:
        import duckdb

        try:
            self._con.execute("CHECKPOINT")
        except duckdb.Error as error:  # acknowledged commits are in the log, which the next start reads
            log.error("the database is closed without a checkpoint: %s", explain(error), extra={"action": "store.checkpoint"})

    # The writer's thread.

    def _write_loop(self) -> None:
        closing = False
        while not closing:
            batch = []
            request = self._requests.get()
            while request is not None:
                if request.answer.set_running_or_notify_cancel():  # from here on it cannot be cancelled, so it can be answered
                    batch.append(request)
                if len(batch) >= self._max_batch:
                    break
                try:
                    request = self._requests.get_nowait()
                except queue.Empty:
                    break
            closing = request is None
            try:
                self._serve(batch)
            except BaseException as error:  # a mistake in Stoker; if the writer died silently all requests would wait for ever
                log.critical("the writer failed", exc_info=error, extra={"action": "store.fatal"})
                self._fail(error)
                self._refuse([request for request in batch if not request.answer.done()])

    def _serve(self, batch: list[_Request]) -> None:
        """Serve the batch in order, exclusive work between two transactions."""
        start = 0
        for position, request in enumerate(batch):
            if request.command is None:
                self._commit(batch[start:position])
                self._run_exclusive(request)
                start = position + 1
        self._commit(batch[start:])

    def _run_exclusive(self, request: _Request) -> None:
        try:
            request.answer.set_result(request.payload(self._con))
        except BaseException as error:
            request.answer.set_exception(error if isinstance(error, StokerError) else StoreError(explain(error)))

    def _commit(self, batch: list[_Request]) -> None:
        if not batch:
            return
        if self.failed is not None:
            self._refuse(batch)
            return
        try:
            results, committed = self._transact(batch)
        except Exception as error:
            self._recover(batch, error)
            return
        self.commits += 1
        if self._reserve is not None:
            self._reserve.enough()
        if self.refused and not all(request.urgent for request in batch) and room(self.path.parent).state != "full":
            self.refused = None
        self._acknowledge()
        self._tell(committed)
        for request, result in zip(batch, results, strict=True):
            if isinstance(result, StokerError):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)

    def _spare(self, sparing: bool) -> None:
        import duckdb

        if sparing != self._sparing:
            with contextlib.suppress(duckdb.Error):
                self._con.execute(f"SET GLOBAL checkpoint_threshold = '{'1 TB' if sparing else self._checkpoints_at}'")
            self._sparing = sparing

    def _acknowledge(self, *, sync: bool = False) -> None:
        """Write the number of the last commit beside the database, before requests are answered."""
        if self._acknowledged is not None:
            self._acknowledged.write(self._catalog.mark(), sync=sync)

    def _tell(self, committed: Committed) -> None:
        for listener in self._listeners:
            try:
                listener(committed)
            except Exception:
                log.exception("a listener of the store failed", extra={"action": "store.listener"})

    def _fail(self, error: BaseException) -> None:
        """Refuse every write from now on; the daemon notices and ends."""
        self.failed = error
        self._tell(Committed(frozenset({"fatal"}), ()))

    def _refuse(self, batch: Sequence[_Request]) -> None:
        for request in batch:
            request.answer.set_exception(StoreError(f"the database has failed: {self.failed}; restart the daemon"))

    def _transact(self, batch: list[_Request]) -> tuple[list[Any], Committed]:
        by_command: dict[Command[Any, Any], list[int]] = {}
        for position, request in enumerate(batch):
            assert request.command is not None, "exclusive work has been taken out"
            by_command.setdefault(request.command, []).append(position)
        tx = Transaction(self._con, self._catalog, self._clock())
        results: list[Any] = [None] * len(batch)
        self._con.execute("BEGIN")
        for command, positions in by_command.items():
            answers = command(tx, [batch[position].payload for position in positions])
            for position, answer in zip(positions, answers, strict=True):
                results[position] = answer
        events = tx.flush()
        number = tx.count()
        self._con.execute("COMMIT")
        self._catalog.committed(number, tx.now)
        return results, Committed(frozenset(tx.topics), events, tx.changes)

    def _recover(self, batch: list[_Request], error: Exception) -> None:
        """Undo the transaction and serve the requests one by one, so that only the faulty one fails."""
        import duckdb

        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            # After these errors DuckDB's handle can't be used: stop, and let the systemd unit restart the daemon.
            log.critical("the database failed: %s", error, extra={"action": "store.fatal"})
            self._fail(error)
            self._refuse(batch)
            return
        with contextlib.suppress(duckdb.Error):
            self._con.execute("ROLLBACK")
        if len(batch) > 1:
            for request in batch:
                self._commit([request])
            return
        if _is_of_room(error) and not isinstance(error, StokerError):
            if batch[0].urgent and self._reserve is not None and self._reserve.give(self._log):
                self._spare(True)
                self._commit(batch)
                return
            self.refused = explain(error)
        if isinstance(error, duckdb.DataError):  # the checks let through a value that its column cannot hold; the log names it
            log.error("a write failed: %s", explain(error), exc_info=error, extra={"action": "store.write"})
            error = UsageError("a value of this request is larger than the database can hold; the daemon's log names it")
        elif not isinstance(error, StokerError):
            # A traceback for each write would fill a full disk further.
            log.error("a write failed: %s", explain(error), exc_info=None if known(error) else error, extra={"action": "store.write"})
            error = _refusal(error)
        batch[0].answer.set_exception(error)


def _opened(
    path: Path,
    known: CommitMark | None,
    backups: Path | None,
    config: dict[str, Any] | None,
    prepare: Callable[[duckdb.DuckDBPyConnection], None] | None,
    reserve: Reserve | None,
    *,
    accept_loss: bool,
) -> tuple[duckdb.DuckDBPyConnection, str | None]:
    """A connection to the migrated and checked database, and the commits that it has lost, None: none."""
    try:
        con, lost = open_checked(path, lambda: connect(path, config), known, accept=accept_loss)
    except StokerError:
        raise
    except Exception as error:
        raise _refusal(error, path) from error
    try:
        # On a full disk the reserve has room for the log, but not for a checkpoint, whose failure would break the connection.
        full = room(path.parent).state == "full" and reserve is not None and reserve.give(_log_of(path), BLOCK_BYTES)
        _upgrade(con, path, backups)
        self_check(con)
        if not full:
            require_room(path)
        define_views(con)
        if not full:
            con.execute("CHECKPOINT")
        if lost is not None:
            accept(con, known)
        if prepare is not None:
            prepare(con)
    except StokerError:
        con.close()
        raise
    except Exception as error:
        con.close()
        raise _refusal(error, path) from error
    return con, lost


def connect(path: Path, config: dict[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
    """Open the file for this process alone; StoreError says that another process holds it, or why it cannot be used.

    Each query runs only on its caller's thread: Stoker's queries read some thousand rows at most, where a second thread
    costs more than it saves (a policy's tick: p99 33 to 20 ms), and the host's cores are for the jobs' loaders.
    """
    import duckdb

    try:
        return duckdb.connect(str(path), config={"threads": 1, **(config or {})})
    except duckdb.Error as error:
        raise _refusal(error, path) from None


def _refusal(error: BaseException, path: Path | None = None) -> StoreError:
    """A database error as a StoreError for people."""
    kind = NoRoom if _is_of_room(error) else StoreError
    return kind(explain(error) if path is None else f"{path}: {explain(error)}")


def _is_of_room(error: BaseException) -> bool:
    return any(words in str(error) for words in (*_FULL, *_LIMITED))


def explain(error: BaseException) -> str:
    """A database error as one line with the remedy."""
    return known(error) or " ".join(str(error).split())[:500]


def known(error: BaseException) -> str | None:
    """The meaning of a database error for people, None when its kind is not known."""
    text = " ".join(str(error).split())
    if "Conflicting lock" in text or "Could not set lock" in text:
        return "the database file is held by another process: is another daemon running? ('stoker status')"
    if any(words in text for words in _FULL):
        return "the disk is full: free some space ('stoker doctor' shows how much is left); nothing that was acknowledged is lost"
    if any(words in text for words in _LIMITED):
        return "the database may not grow: raise the limit of the file size (ulimit -f) or the quota; nothing that was acknowledged is lost"
    if "WAL" in text and "Could not read enough bytes" not in text and "Corrupt database" not in text:
        return BAD_LOG
    if "not a valid DuckDB database" in text or "Could not read enough bytes" in text or "Corrupt" in text or "checksum" in text.lower():
        return "the database file is damaged: move it away and restore the newest file of the backups folder"
    if "newer version" in text or "storage version" in text.lower():
        return "the database was written by a newer DuckDB: upgrade the duckdb package"
    return None


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _upgrade(con: duckdb.DuckDBPyConnection, path: Path, backups: Path | None) -> None:
    todo = migrate.pending(con, migrate.available())
    if todo and migrate.applied(con) and backups is not None:
        from .backup import copy_database

        backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy_database(con, backups / f"{path.stem}-before-{todo[0].number:04}.duckdb")
    if todo:
        migrate.apply(con, todo)


def require_room(path: Path) -> None:
    """Raise OSError if the next commits could not be stored, which an opening without writes would not notice."""
    with tempfile.TemporaryFile(dir=path.parent) as file:
        os.posix_fallocate(file.fileno(), 0, BLOCK_BYTES)


def self_check(con: duckdb.DuckDBPyConnection) -> None:
    """Compare scans with lookups by key: DuckDB before 2.0 could lose index entries after a crash (duckdb#23645)."""
    for table, key in (("jobs", "id"), ("leases", "id"), ("events", "seq"), ("nodes", "id")):
        newest = con.execute(f'SELECT max("{key}") FROM "{table}"').fetchall()[0][0]
        if newest is not None and not con.execute(f'SELECT 1 FROM "{table}" WHERE "{key}" = $1', [newest]).fetchall():
            raise StoreError(f"the index of table {table} has lost entries: restore the newest backup, or run 'stoker compact' on it")
