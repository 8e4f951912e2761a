"""Two columns of a Parquet file as lines of JSON: ``python -m stoker.engine.adhoc.parquet_rows FILE TEXT LABEL``.

It is a program of its own, as a job has no DuckDB, which only the engine imports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb

_SLICE = 10_000  #: rows held at a time


def main(arguments: Sequence[str]) -> int:
    path, *wanted = arguments
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            columns = [about[0] for about in connection.execute("SELECT * FROM read_parquet($1) LIMIT 0", [path]).description or ()]
            for name in wanted:
                if columns.count(name) != 1:
                    sys.stderr.write(f"has no column {name!r}; there are {', '.join(columns)}\n")
                    return 1
            quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted)
            rows = connection.execute(f"SELECT {quoted} FROM read_parquet($1)", [path])
            while some := rows.fetchmany(_SLICE):
                for row in some:
                    sys.stdout.write(json.dumps(dict(zip(wanted, row, strict=True)), default=str) + "\n")
    except duckdb.Error as error:
        unread = "cannot be read as Parquet" if Path(path).exists() else "does not exist"
        sys.stderr.write(f"{unread}: {' '.join(str(error).split())[:200]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
