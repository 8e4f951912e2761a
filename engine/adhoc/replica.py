"""A copy of the database that follows it: loaded from the file once, then updated with each commit.

It writes no log. Changes since the load are in memory until `settle` writes them into the copy's file. That file belongs
to the process, so a fork reads the state of its moment, as long as the file is not settled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.changes import apply, decode, merged
from ..store.sqlfiles import sql
from .query import readable

if TYPE_CHECKING:
    import duckdb

_HEADERS = 3 * 4096  #: bytes at the front of a DuckDB file, of which one changes with each checkpoint
PRIVATE = frozenset({"tokens", "page_sessions"})  #: tables that no query may read


class Moved(Exception):
    """The file was written to while it was copied."""


def head_of(descriptor: int) -> bytes:
    """The bytes that distinguish the checkpoints of a database file."""
    return hashlib.sha256(os.pread(descriptor, _HEADERS, 0)).digest()


def descriptors_of(file: os.stat_result) -> Iterator[int]:
    """This process's descriptors of the file."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the directory's own is closed by now
            if os.path.samestat(os.fstat(number), file):
                yield number


def log_of(database: Path) -> Path:
    """DuckDB's write-ahead log: the commits since the last checkpoint."""
    return database.with_name(database.name + ".wal")


def copy_of(database: Path, head: bytes, logged: int, target: Path) -> None:
    """Copy the file, and so many bytes of its log, while others write to the log; `Moved` if its last checkpoint differs or changes.

    A checkpoint writes to unused blocks first, then its header, and empties the log last. So while the header stays the
    same, so do all blocks to which it refers, and the log only grows.
    """
    with open(database, "rb") as file, open(target, "x+b") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        copy_log(database, logged, target)
        if not head_of(file.fileno()) == head_of(copy.fileno()) == head:
            raise Moved


def copy_log(database: Path, logged: int, target: Path) -> None:
    """Copy the first ``logged`` bytes of the log; `Moved` if it has fewer."""
    if not logged:
        return
    with contextlib.suppress(FileNotFoundError), open(log_of(database), "rb") as log, open(log_of(target), "xb") as copy:
        if os.sendfile(copy.fileno(), log.fileno(), 0, logged) == logged:
            return
    raise Moved


class Replica:
    """``number`` is that of its last commit."""

    def __init__(self, path: Path, number: int, memory: int) -> None:
        import duckdb

        # One thread, with no others for reading: a process can be forked only if no other thread holds a lock.
        # No spilling either, as children would overwrite this process's spilled data.
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1,
            "async_threads": 0,
            "memory_limit": f"{memory}B",
            "temp_directory": "",
        }
        self.con: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config=settings)
        quoted = str(path).replace("'", "''")
        self.con.execute(f"ATTACH '{quoted}' AS stoker (RECOVERY_MODE no_wal_writes)")
        self.con.execute("USE stoker")
        self.con.execute("SET GLOBAL checkpoint_threshold = '1TB'")  # never by itself: see `settle`
        self.con.execute(f"SET GLOBAL auto_checkpoint_skip_wal_threshold = {1 << 40}")
        for table in PRIVATE:
            self.con.execute(f'DROP TABLE IF EXISTS "{table}"')
        self.path = path
        self.number = number
        self.settle()  # what the log held
        self._waiting: list[bytes] = []
        self._types: dict[str, dict[str, str]] = {}
        for table, column, kind in self.con.execute(sql("store/columns")).fetchall():
            self._types.setdefault(table, {})[column] = kind
        self._newest = number
        self.tables = readable(self.con)

    @property
    def behind(self) -> bool:
        """Whether known commits are not in it yet."""
        return bool(self._waiting)

    def take(self, number: int, body: bytes) -> None:
        """Take a commit; `catch_up` applies it."""
        self._waiting.append(body)
        self._newest = number

    def catch_up(self) -> None:
        """Apply all taken commits, in one transaction."""
        if not self._waiting:
            return
        changes = [change for body in self._waiting for change in decode(body)]
        self.con.execute("BEGIN")
        for change in merged(changes):
            apply(self.con, self._types, change)
        self.con.execute("COMMIT")
        self.unsettled += sum(map(len, self._waiting))
        self.number = self._newest
        self._waiting.clear()

    def settle(self) -> None:
        """Write the changes in memory into the file. No fork may be reading it."""
        self.con.execute("CHECKPOINT")
        self.unsettled = 0  #: bytes of changes that are in memory only
