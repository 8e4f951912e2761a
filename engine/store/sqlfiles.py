"""Every query longer than a line stands in a file below sql/; this is how code gets at it."""

from __future__ import annotations

import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = ROOT / "migrations"


@functools.cache
def sql(name: str) -> str:
    """Text of ``sql/NAME.sql``."""
    return (ROOT / "sql" / f"{name}.sql").read_text()


@functools.cache
def names(folder: str) -> tuple[str, ...]:
    """Queries of a folder of ``sql/``."""
    return tuple(sorted(path.stem for path in (ROOT / "sql" / folder).glob("*.sql")))


def view_files() -> list[Path]:
    """Definitions of the monitoring views, in the order in which they build on each other."""
    return sorted((ROOT / "sql" / "views").glob("*.sql"))
