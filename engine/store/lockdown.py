"""Settings of the open database that no statement can take back: what SQL may reach outside the file is decided here, once.

They hold for the whole database instance, not for a connection: DuckDB has no others. So the daemon locks
itself in too; its backups, archives and Parquet answers go to the directories named here, and from there to
wherever a person wants them by ordinary file operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

#: In this order: directories can't be named once external access is off, and nothing can be set once locked.
_SETTINGS = (
    ("TimeZone", "'UTC'"),
    ("autoinstall_known_extensions", "false"),
    ("autoload_known_extensions", "false"),
    ("allow_community_extensions", "false"),
    ("python_enable_replacements", "false"),  # else FROM x reads a DataFrame x of the daemon's own frames
    ("allowed_directories", None),
    ("allowed_paths", None),
    # Of a connection: how much of the memory its query may take before it spills; and of the daemon's own on a full disk.
    ("allowed_configs", "['operator_memory_limit', 'checkpoint_threshold']"),
    ("enable_external_access", "false"),
    ("lock_configuration", "true"),
)


def lock_down(con: duckdb.DuckDBPyConnection, directories: Iterable[Path], files: Iterable[Path] = (), *, spill: str = "4GB") -> None:
    """Allow files below ``directories`` and ``files`` (databases, with their logs), bound what spills, lock the configuration.

    ``memory_limit`` must be set before, in the ``config`` of `connect`.
    """
    databases = [str(path) + suffix for path in files for suffix in ("", ".wal", ".wal.checkpoint", ".wal.recovery")]
    allowed = {"allowed_directories": [str(path.resolve()) for path in directories], "allowed_paths": databases}
    for name, value in (("max_temp_directory_size", _text(spill)), *_SETTINGS):
        con.execute(f"SET GLOBAL {name} = {value or '[' + ', '.join(map(_text, allowed[name])) + ']'}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
