"""How many commits were acknowledged, kept beside the database, so that a start notices when the database has fewer.

DuckDB cannot tell a log that was cut, emptied or removed from one that was never longer. So each transaction has a number, which it
writes into the table `commits`; once it is durable, and before any request is answered, the number also goes into a small file beside the
database. That file is written in place without waiting for the disk: it outlives the process, and after a power failure it may be behind
the durable commits, but never ahead. It is only a check: without the file the daemon starts all the same, and says so.
"""

from __future__ import annotations

import datetime
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import StoreError
from .changes import Change, apply
from .sqlfiles import sql

if TYPE_CHECKING:
    import duckdb

SLOT = 4096  #: bytes of each of the two records that are written in turn, so that one of them is always whole
ACCEPT = "'stoker up --accept-loss'"
#: the error for a log that DuckDB refuses
BAD_LOG = f"its log, the .wal file, is damaged or of another moment: put the right one back, or go on without the commits in it: {ACCEPT}"
log = logging.getLogger(__name__)


class CommitMark(msgspec.Struct, frozen=True):
    """The last commit of a database."""

    database: str  #: when the database was made, the same for its copies; "": it is empty
    number: int  #: of its last commit
    at: float  #: when that was (s since the epoch)
    used: dict[str, int] = {}  #: the largest number given out in each numbered table


class Acknowledged:
    """The file beside a database. `write` never raises, so that no commit fails because of it."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_suffix(".acknowledged")
        self._file: int | None = None
        self._complained = False

    def read(self) -> CommitMark | None:
        """The newest undamaged record; None, and a line in the log, when there is none."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s cannot be read (%s): commits that were lost are not noticed", self.path, error.strerror)
            return None
        marks = [mark for mark in map(_parse, (content[:SLOT], content[SLOT:])) if mark is not None]
        if not marks:
            log.warning("%s is damaged: commits that were lost are not noticed; it is written anew", self.path)
            return None
        return max(marks, key=lambda mark: mark.number)

    def write(self, mark: CommitMark, *, sync: bool = False) -> None:
        data = msgspec.json.encode(mark)
        line = b"%08x %s" % (zlib.crc32(data), data)
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, line.ljust(SLOT - 1) + b"\n", mark.number % 2 * SLOT)
            if sync:
                os.fsync(self._file)
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("%s cannot be written (%s): commits that are lost now would not be noticed", self.path, error.strerror)
            self._complained = True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _parse(slot: bytes) -> CommitMark | None:
    checksum, _, data = slot.rstrip().partition(b" ")
    try:
        return msgspec.json.decode(data, type=CommitMark) if int(checksum, 16) == zlib.crc32(data) else None
    except (ValueError, msgspec.MsgspecError):
        return None


def open_checked(
    path: Path, connect: Callable[[], duckdb.DuckDBPyConnection], known: CommitMark | None, *, accept: bool
) -> tuple[duckdb.DuckDBPyConnection, str | None]:
    """Open the database; also returns the acknowledged commits that it has lost, in words, None: none.

    A loss raises StoreError, and all files stay as they are, unless it is accepted. With ``accept`` an unreadable log, or an unreadable end
    of it, is kept under another name.
    """
    wal = path.with_name(path.name + ".wal")
    if not path.exists() or path.stat().st_size == 0:
        lost = _gone(path, wal, known)
        if lost and not accept:
            raise StoreError(lost)
        if lost and wal.exists():
            wal.rename(_kept(wal))
        path.unlink(missing_ok=True)  # an empty file, left by a daemon that was killed before it wrote; DuckDB refuses it
        return connect(), lost
    con = _open_without_log(wal, connect) if accept else connect()
    try:
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        lost = _missing(known, counted(con))
        if lost and not accept:
            raise StoreError(f"{path}: {lost}")
        if lost and wal.exists():
            shutil.copyfile(wal, _kept(wal))
        _read_all(con)
        con.execute("PRAGMA enable_checkpoint_on_shutdown")
    except BaseException:
        con.close()
        raise
    return con, lost


def _open_without_log(wal: Path, connect: Callable[[], duckdb.DuckDBPyConnection]) -> duckdb.DuckDBPyConnection:
    """Open the database; a log that DuckDB refuses is moved aside."""
    try:
        return connect()
    except StoreError as error:
        if BAD_LOG not in str(error):
            raise
    kept = wal.rename(_kept(wal))
    log.warning("the log could not be read and is kept as %s", kept, extra={"action": "store.log"})
    return connect()


def _read_all(con: duckdb.DuckDBPyConnection) -> None:
    """Read every row: DuckDB checks a block only when it is read, and would find a damaged one that the start does not need much later.

    2 million rows take 0.1 s.
    """
    for (table,) in con.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
        con.execute(f'SELECT bit_xor(hash(whole)) FROM "{table}" whole').fetchall()


def counted(con: duckdb.DuckDBPyConnection) -> CommitMark:
    """The count in the database itself. A database older than the counting has none."""
    tables = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "migrations" not in tables:
        return CommitMark("", 0, 0.0)
    if "commits" not in tables:
        ((made, last),) = con.execute("SELECT CAST(min(applied) AS VARCHAR), epoch(max(applied)) FROM migrations").fetchall()
        return CommitMark(made, 0, last)
    ((number, at, made),) = con.execute(sql("store/counted")).fetchall()
    return CommitMark(made, number, at)


def count(number: int, at: float) -> Change:
    """The change that records the last commit in the database; ``at``: s since the epoch."""
    return Change("update", "commits", ("number", "committed_at"), [[number], [at]])


def accept(con: duckdb.DuckDBPyConnection, known: CommitMark | None) -> None:
    """Count the lost commits too, so that no number means two commits, and older files can be told from newer ones."""
    number = max(counted(con).number, known.number if known else 0) + 1
    apply(con, {"commits": {"number": "BIGINT", "committed_at": "TIMESTAMP"}}, count(number, time.time()))


def _gone(path: Path, wal: Path, known: CommitMark | None) -> str | None:
    """The loss when the database file is gone, in words."""
    restore = f"put it back, or restore the newest file of the backups folder; to begin anew: {ACCEPT}"
    if known is not None and known.number:
        return f"{path} is gone, and with it {_commits(known.number)}, the last of {_utc(known.at)} UTC: {restore}"
    if wal.exists() and wal.stat().st_size:
        return f"{path} is gone, its log {wal.name} is there: {restore}"
    return None


def _missing(known: CommitMark | None, found: CommitMark) -> str | None:
    """The commits that the database lacks, in words."""
    if known is None:
        if found.number:
            log.warning("no file tells how many commits were acknowledged: that none of them is lost is not known")
        return None
    if not known.number:
        return None
    if known.database != found.database:
        which = f"made at {found.database[:19]} UTC" if found.database else "that is empty"
        return (
            f"this is another database, {which}, than the one whose {_commits(known.number)} were acknowledged here, the last of"
            f" {_utc(known.at)} UTC: put that one back, or go on with this one: {ACCEPT}"
        )
    if (count := known.number - found.number) <= 0:
        return None
    return (
        f"{_commits(count)}, acknowledged from {_utc(found.at)} to {_utc(known.at)} UTC, {'is' if count == 1 else 'are'} not in it:"
        f" its log was cut or removed, or it is an older copy; put the right files back, or go on without: {ACCEPT}"
    )


def _commits(count: int) -> str:
    return "1 commit" if count == 1 else f"{count} commits"


def _utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def _kept(wal: Path) -> Path:
    return wal.with_name(f"{wal.name}.lost-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}Z")
