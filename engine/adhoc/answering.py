"""The forked process that answers one statement: it bounds itself, runs it, writes the answer, and ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ..errors import LimitExceeded, StokerError
from ..store.backup import copy_database
from ..store.lockdown import lock_down
from .query import AnswerLimits, run_parquet, run_query, too_large
from .replica import descriptors_of
from .wire import Ask, Head, pack_answer

if TYPE_CHECKING:
    import socket

    from .replica import Replica

SPILL, SPILL_OF_FREE = 4 << 30, 1 / 8  #: most bytes of spilling on disk, and as a share of the free ones
SPILL_SHARE = 1 / 8  #: of the memory: beyond it, sorts and hash tables spill
ANSWER_BYTES = 768 << 20  #: bytes for the rows of an answer, beside the query's memory
NICENESS = 5  #: the daemon comes first, then jobs
_DEATH_SIGNAL = 1  #: PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)


def answer_and_exit(replica: Replica, ask: Ask, out: socket.socket, folder: Path) -> NoReturn:
    """Never returns: the caller's further code is for the parent only."""
    try:
        _bound(ask)
        answer = _answer(replica, ask, folder)
    except StokerError as error:
        answer = _refusal(error)
    except MemoryError:
        answer = _refusal(LimitExceeded(f"query: it needs more memory than the {ask.memory >> 20} MiB it may use"))
    except BaseException:
        sys.stderr.write(f"the statement {ask.text[:200]!r} failed:\n{traceback.format_exc()}")
        answer = _refusal(StokerError("the statement could not be served: the daemon's log has the details"))
    try:
        with contextlib.suppress(OSError):  # the asker is gone
            out.sendall(answer)
    finally:
        os._exit(0)  # without closing the database, which is the parent's


def _refusal(error: StokerError) -> bytes:
    return pack_answer(Head(0, error=error.code, message=str(error)))


def _bound(ask: Ask) -> None:
    """Limits that the kernel enforces: time, memory, precedence, and an end with the parent's."""
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, ask.until - time.monotonic()))
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # if memory runs out on the host, this goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = mapped + ask.memory + ANSWER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(replica: Replica, ask: Ask, folder: Path) -> bytes:
    con = replica.con
    folder.mkdir(mode=0o700)
    _only_read(replica.path)
    quoted = str(folder / "spill").replace("'", "''")
    con.execute(f"SET temp_directory = '{quoted}'")
    held = con.execute("SELECT coalesce(sum(memory_usage_bytes), 0) FROM duckdb_memory()").fetchall()[0][0]  # by the copy itself
    con.execute(f"SET memory_limit = '{held + ask.memory} bytes'")
    con.execute(f"SET operator_memory_limit = '{int(ask.memory * SPILL_SHARE)} bytes'")
    free = shutil.disk_usage(folder).free
    lock_down(con, [folder], spill=f"{min(SPILL, int(free * SPILL_OF_FREE))} bytes")
    if ask.format == "copy":
        return _copy(replica, folder)
    limits = AnswerLimits(rows=ask.rows)
    if ask.format == "parquet":
        parquet = run_parquet(con, ask.text, limits, replica.tables, folder)
        return pack_answer(Head(len(parquet.body), "application/vnd.apache.parquet", parquet.truncated), parquet.body)
    result = run_query(con, ask.text, limits, replica.tables)
    if ask.format == "csv":
        body, media = result.csv(), "text/csv"
    else:
        body, media = msgspec.json.encode(result.json()), "application/json"
    if len(body) > limits.answer:  # rows were counted by characters, of which some take six bytes
        raise too_large(limits)
    return pack_answer(Head(len(body), media, result.truncated), body)


def _only_read(database: Path) -> None:
    """Replace the descriptor of the copy's file, which the parent still uses, by one that cannot write."""
    reading = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
    for number in descriptors_of(database.stat()):
        if number != reading:
            os.dup2(reading, number)


def _copy(replica: Replica, folder: Path) -> bytes:
    """A copy of the copy, as a file of its own; answers with its path."""
    target = folder.with_name(f"{folder.name}.duckdb")
    made = folder / "copy.duckdb"
    copy_database(replica.con, made)
    made.replace(target)
    body = str(target).encode()
    return pack_answer(Head(len(body), "text/plain"), body)
