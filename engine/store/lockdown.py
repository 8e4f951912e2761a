"""Settings of the open database that no statement can take back: they limit what SQL may reach outside the file.

DuckDB has such settings only for the whole database instance, not for a connection. So they bind the daemon too:
its backups, archives and Parquet answers go to the directories named here, and are then moved by ordinary file
operations to the place that a person wants.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

#: In this order: directories can't be named once external access is off, and no setting can change once locked.
_SETTINGS = (
    ("TimeZone", "'UTC'"),
    ("autoinstall_known_extensions", "false"),
    ("autoload_known_extensions", "false"),
    ("allow_community_extensions", "false"),
    ("python_enable_replacements", "false"),  # else FROM x could read a DataFrame x in the daemon's Python frames
    ("allowed_directories", None),
    ("allowed_paths", None),
    # For one connection: how much memory its query may take before it spills; and for the daemon's own on a full disk.
    ("allowed_configs", "['operator_memory_limit', 'checkpoint_threshold']"),
    ("enable_external_access", "false"),
    ("lock_configuration", "true"),
)


def lock_down(con: duckdb.DuckDBPyConnection, directories: Iterable[Path], files: Iterable[Path] = (), *, spill: str = "4GB") -> None:
    """Allow files below ``directories`` and ``files`` (databases, with their logs), limit the spilled data, lock the configuration.

    ``memory_limit`` must be set before, in the ``config`` of `connect`.
    """
    databases = [str(path) + suffix for path in files for suffix in ("", ".wal", ".wal.checkpoint", ".wal.recovery")]
    allowed = {"allowed_directories": [str(path.resolve()) for path in directories], "allowed_paths": databases}
    for name, value in (("max_temp_directory_size", _text(spill)), *_SETTINGS):
        con.execute(f"SET GLOBAL {name} = {value or '[' + ', '.join(map(_text, allowed[name])) + ']'}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
