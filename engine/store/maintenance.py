"""Backups on demand, compaction, and the periodic thinning of old rows."""

from __future__ import annotations

import contextlib
import datetime
import filecmp
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError, UsageError
from ..home import Home
from .backup import copy_database
from .store import Store
from .transaction import Transaction

if TYPE_CHECKING:
    import duckdb

KEEP_BACKUPS = 7  #: scheduled backups that are kept


def backup(store: Store, home: Home, target: Path | None = None) -> dict[str, Any]:
    """Copy the database to ``target`` (default: a dated file of the home's backups) while the daemon goes on."""
    home.backups.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = home.backups / f"stoker-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}Z.duckdb"
    if target is not None:
        check_target(target)
    start = time.monotonic()
    tables = store.exclusive(lambda con: copy_database(con, own))
    if target is None:
        target = own
    else:  # the database itself may write only below its home; see lockdown
        move(own, target)
    return {"path": str(target), "bytes": target.stat().st_size, "seconds": time.monotonic() - start, "tables": tables}


def check_target(target: Path) -> None:
    """Raise UsageError when no new file can be made at ``target``."""
    if not target.is_absolute():
        raise UsageError(f"path: {target} is not absolute: the daemon's directory is not yours")
    if target.exists() or not target.parent.is_dir():
        raise UsageError(f"path: {target} exists already, or its directory does not: name a new file in a directory that is there")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(f"path: {target.parent} cannot be written by the daemon: name a directory that can")


def move(own: Path, target: Path) -> None:
    """Move a verified copy, perhaps to another file system: under its final name it is whole, or does not exist."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        # Only the owner may read it, and a link placed there beforehand is not followed.
        with open(own, "rb") as copy, open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            shutil.copyfileobj(copy, file)
            file.flush()
            os.fsync(file.fileno())
        if not filecmp.cmp(own, temporary, shallow=False):
            raise StoreError(f"what was written to {target} does not read back the same: look at its disk")
        os.replace(temporary, target)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror}") from None
    finally:
        own.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def clear_unfinished(home: Home) -> None:
    """Remove unfinished copies, exports and answers of a killed daemon. To be called by a starting daemon, which owns the home."""
    for folder, pattern in ((home.backups, ".*.tmp*"), (home.backups, ".*.compact"), (home.archive, ".*.tmp")):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for folder in home.scratch.glob("sql-*"):
        shutil.rmtree(folder, ignore_errors=True)


def nightly_backup(store: Store, home: Home) -> None:
    """Make a dated backup, and remove the oldest scheduled ones beyond `KEEP_BACKUPS`."""
    made = Path(backup(store, home)["path"])
    made.rename(made.with_name(made.name.replace("stoker-", "nightly-")))
    for old in sorted(home.backups.glob("nightly-*Z.duckdb"))[:-KEEP_BACKUPS]:
        old.unlink()


def compact(store: Store, home: Home) -> dict[str, int]:
    """Rewrite the database without the space of deleted rows; writers and readers wait meanwhile."""
    before = store.size

    def make(con: duckdb.DuckDBPyConnection) -> Path:
        home.backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = home.backups / f".{store.path.name}.compact"  # on the same file system, and where the database may write
        fresh.unlink(missing_ok=True)  # left by a compaction that was killed
        copy_database(con, fresh)
        return fresh

    store.replace(make)
    return {"before": before, "after": store.size}


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept, in days. Jobs, leases and final results are kept for ever."""

    telemetry_full: float = 2.0  #: every sample; later one a minute
    telemetry: float = 30.0
    metrics_full: float = 14.0  #: every record; later every tenth step, and the last
    pipelines_full: float = 14.0  #: every step of a tuner; later those with a change, one an hour, and the last
    decisions: float = 30.0
    events: float = 365.0  #: then exported to Parquet and removed


def thin(tx: Transaction, batch: Sequence[Retention]) -> Sequence[dict[str, int]]:
    """Remove rows past their time; returns the numbers of rows removed by kind."""
    day = 86_400.0
    answers = []
    for keep in batch:
        answers.append(
            {
                "telemetry": tx.purge("thin_telemetry", tx.now - keep.telemetry_full * day, tx.now - keep.telemetry * day),
                "metrics": tx.purge("thin_metrics", tx.now - keep.metrics_full * day),
                "pipelines": tx.purge("thin_pipelines", tx.now - keep.pipelines_full * day),
                "decisions": tx.purge("thin_decisions", tx.now - keep.decisions * day),
            }
        )
    return answers


def export_events(store: Store, home: Home, keep: Retention) -> Path | None:
    """Move events past their time to a Parquet file of the archive: it is written, verified and renamed before they are removed."""
    before = time.time() - keep.events * 86_400.0
    ((count, last),) = store.rows("store/old_events", before)
    if not count:
        return None
    home.archive.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = home.archive / f"events-to-{last}.parquet"

    def export(con: duckdb.DuckDBPyConnection) -> None:
        temporary = target.with_name(f".{target.name}.tmp")
        quoted = str(temporary).replace("'", "''")
        con.execute(f"COPY (SELECT * FROM events WHERE seq <= {int(last)} ORDER BY seq) TO '{quoted}' (FORMAT parquet)")
        written = con.execute(f"SELECT count(*) FROM read_parquet('{quoted}')").fetchall()[0][0]
        kept = con.execute("SELECT count(*) FROM events WHERE seq <= $1", [last]).fetchall()[0][0]
        if written != kept:
            temporary.unlink()
            raise OSError(f"{temporary}: {written} rows were written instead of {kept}")
        temporary.replace(target)

    store.exclusive(export)
    store.write(_remove_events, last)
    return target


def _remove_events(tx: Transaction, batch: Sequence[int]) -> Sequence[int]:
    """Remove the events up to each number; returns how many were removed."""
    return [tx.purge("remove_events", last) for last in batch]
