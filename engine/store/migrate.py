"""Numbered migrations, each applied in one transaction together with its own record."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from .sqlfiles import MIGRATIONS

if TYPE_CHECKING:
    import duckdb

_LEDGER = "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name VARCHAR, checksum VARCHAR, applied TIMESTAMP)"

_RECORD = "INSERT INTO migrations VALUES (?, ?, ?, make_timestamp(epoch_us(now())))"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def available(directory: Path = MIGRATIONS) -> list[Migration]:
    """Migrations of this program, in order; their numbers run from 1 without gaps."""
    found: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name)
        if not match or int(match[1]) != len(found) + 1:
            raise StoreError(f"{path}: migrations are named 0001_name.sql and numbered without gaps")
        found.append(Migration(int(match[1]), match[2], path.read_text()))
    return found


def applied(con: duckdb.DuckDBPyConnection) -> dict[int, tuple[str, str]]:
    """The applied migrations of a file, number to (name, checksum); empty for a new file. Never writes."""
    if not con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'migrations'").fetchall()[0][0]:
        return {}
    return {row[0]: (row[1], row[2]) for row in con.execute("SELECT number, name, checksum FROM migrations").fetchall()}


def pending(con: duckdb.DuckDBPyConnection, known: list[Migration]) -> list[Migration]:
    """The migrations that are still to be applied to the file; StoreError when that can't be done safely."""
    done = applied(con)
    for number, (name, checksum) in sorted(done.items()):
        if number > len(known):
            raise StoreError(
                f"the database is newer than this program (it has migration {number:04}_{name}, the program knows {len(known)}): "
                "upgrade stoker, or restore the backup that was made before the upgrade"
            )
        if known[number - 1].checksum != checksum:
            raise StoreError(f"migration {number:04}_{name} was edited after it was applied: restore the original file, add a new one")
    return [migration for migration in known if migration.number not in done]


def apply(con: duckdb.DuckDBPyConnection, migrations: list[Migration]) -> None:
    """Apply migrations in order, each with its record in one transaction, each followed by a checkpoint."""
    con.execute(_LEDGER)
    for migration in migrations:
        con.execute("BEGIN")
        try:
            con.execute(migration.text)
            con.execute(_RECORD, [migration.number, migration.name, migration.checksum])
            con.execute("COMMIT")
        except Exception:
            con.execute("ROLLBACK")
            raise
        con.execute("CHECKPOINT")
