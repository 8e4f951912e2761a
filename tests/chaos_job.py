"""What crash tests run as jobs: keeps a log of its own, outside the database, and proves by kernel locks that it runs alone.

    python chaos_job.py DIRECTORY SECONDS [--fail N] [--deaf] [--child]

Locks of its job and of each of its slots are held for as long as the process lives, and go with it however it dies. One
that is held already is logged as a clash: the job, or the slot, is run twice at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import stoker

TICK = 0.1  #: seconds of a step
PREEMPTED = 75


class Diary:
    """One line a happening, appended by one write, with who wrote it and when by both clocks."""

    def __init__(self, path: Path, who: dict[str, Any]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._who = who

    def write(self, what: str, **facts: Any) -> None:
        line = {"what": what, **self._who, "mono": time.monotonic(), "wall": time.time(), **facts}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def lock(path: Path) -> int | None:
    """Descriptor of the lock, None when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def saved(path: Path, default: int = 0) -> int:
    return int(path.read_text()) if path.exists() else default


def save(path: Path, number: int) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(number))
    temporary.replace(path)


def garble(run: Path) -> None:
    """Write what cannot be read where ranks write, and for another rank: none of it may cost any other job its runner."""
    stoker.report(step=0, **{"loss/" + os.fsdecode(b"caf\xe9"): 0.5, "nul\0": 1.0, "\x1b[31m": 2.0})
    stray = b'{"seq": 1, "ts": 1.0, "step": 1, "values": {"\\udce9": 1}}\n'
    for name, content in (
        ("7", stray),
        ("8", b"[" * 100_000 + b"\n"),
        ("99999999999999", stray),
        ("9", b"\xff\xfe\0\n" + os.urandom(4096)),
    ):
        (run / f"reports-{name}.jsonl").write_bytes(content)
    for name in ("reports-10.jsonl", ".cpus.json.tmp", "exit.json"):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(run / name)
    (run / os.fsdecode(b"caf\xe9")).touch()
    Path("/proc/self/comm").write_bytes(b"\xff\xfe")
    sys.stdout.buffer.write(b"\xff\xfe\0\x1b[31m" + b"x" * 100_000 + b"\r")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--fail", type=int, default=0, help="first attempts that fail of themselves; -1: all of them")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM and requests to stop")
    parser.add_argument("--child", action="store_true", help="leave a process in a session of its own behind")
    parser.add_argument("--garble", action="store_true", help="write into its run directory what nobody can read")
    options = parser.parse_args()
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    mine = json.loads((Path(os.environ["STOKER_RUN_DIR"]) / "assignment.json").read_text())
    who = {name: mine[name] for name in ("lease", "job", "node_rank", "gpus")} | {"pid": os.getpid()}
    diary = Diary(options.directory / "diary.jsonl", who)
    held = [f"job-{mine['job']}.{mine['node_rank']}", *(f"slot-{gpu.replace('/', '-')}" for gpu in mine["gpus"])]
    locks = {name: lock(options.directory / "locks" / name) for name in held}
    diary.write("begin")
    for name, descriptor in locks.items():
        if descriptor is None:
            diary.write("clash", lock=name)
    if options.garble:
        garble(Path(os.environ["STOKER_RUN_DIR"]))
    if options.child:
        subprocess.Popen(["sleep", "20"], start_new_session=True)

    # Not chaos.RANK: save() would take the rank for a suffix, and all ranks would share one temporary file.
    checkpoint = stoker.checkpoint_dir() / f"chaos-{mine['node_rank']}"
    failed = saved(checkpoint.with_suffix(".failed"))
    total = max(1, round(options.seconds / TICK))
    for step in range(saved(checkpoint), total):
        if not options.deaf and stoker.should_stop():
            diary.write("end", code=PREEMPTED)
            return PREEMPTED
        time.sleep(TICK)
        save(checkpoint, step + 1)
        stoker.report(step=step + 1, total=total, loss=1.0 / (step + 1), checkpoint=step + 1)
        diary.write("step", step=step + 1)
    if options.fail < 0 or failed < options.fail:
        save(checkpoint.with_suffix(".failed"), failed + 1)
        save(checkpoint, 0)
        diary.write("end", code=3)
        return 3
    diary.write("end", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
