"""After kill -9: open the database, close it cleanly, open it again, look everything up by key, write, close. In a process of its own.

    python chaos_reopen.py FILE

The sequence with which DuckDB 1.4 and 1.5 silently lost index entries (duckdb#23645), and failed at the next write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chaos_checks import lost_keys
from stoker.engine.jobs.control import Control, control
from stoker.engine.store.store import Store


def main(path: Path) -> int:
    Store.open(path).close()
    store = Store.open(path)
    with store.read() as con:
        wrong = lost_keys(con)
        jobs = con.execute("SELECT id, priority FROM jobs WHERE finished_at IS NULL ORDER BY id").fetchall()
    for job, priority in jobs:
        store.write(control, Control("priority", (job,), "chaos", priority))
    store.close()
    print("\n".join(wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
