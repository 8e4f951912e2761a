"""Processes of this machine: found, signalled and ended by identity (engine/identity.py).

Everything is read from /proc with the standard library, because the supervisor imports this module too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...engine.identity import Process, Stat, alive, stat
from .rundir import ENV_TAG

_MASKS = re.compile(r"^(Sig(?:Cgt|Blk|Ign)):\s*([0-9a-f]+)$", re.MULTILINE)
_EXEC = 1.0  #: seconds to wait for a process that is in the middle of an exec


def myself() -> Process:
    own = stat(os.getpid())
    assert own is not None, "a running process has a stat"
    return own.process


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - a Path for each name is slow


def table() -> dict[int, Stat]:
    """All processes of the machine."""
    return {pid: found for pid in pids() if (found := stat(pid)) is not None}


def descendants(root: int, processes: dict[int, Stat]) -> list[Stat]:
    """All living descendants of ``root``; parents first."""
    children: dict[int, list[Stat]] = {}
    for found in processes.values():
        children.setdefault(found.parent, []).append(found)
    tree, level = [], children.get(root, [])
    while level:
        tree += level
        level = [child for parent in level for child in children.get(parent.pid, [])]
    return [found for found in tree if not found.dead]


def send(process: Process, number: int) -> bool:
    """Signal exactly this process, never another one that got its pid later. False: it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor stays with one process: if it is the right one now, it is when signalled.
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def catches(process: Process, number: int) -> bool:
    """Whether a signal runs code of the process: its handler, or, where the signal is blocked, the reader of a signalfd.

    A process in sigwait, such as tini, looks like one without a handler: the kernel shows neither mask.
    False where the signal is ignored or ends the process, and where the process is gone.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
    except OSError:
        return False
    masks = {name: int(mask, 16) for name, mask in _MASKS.findall(status)}
    taken = masks.get("SigCgt", 0) | masks.get("SigBlk", 0) & ~masks.get("SigIgn", 0)
    return alive(process) and bool(taken >> (number - 1) & 1)


def memory(found: Stat) -> int:
    """Bytes of main memory of a process; shared pages are divided among their processes (PSS), so that none is counted twice."""
    try:
        rollup = Path(f"/proc/{found.pid}/smaps_rollup").read_bytes()
    except OSError:  # gone, or another user's
        return found.memory
    shares = [line.split()[1] for line in rollup.splitlines() if line.startswith(b"Pss:")]
    return 1024 * int(shares[0]) if shares else found.memory


def watch(process: Process) -> int | None:
    """A descriptor that becomes readable when the process ends; None: it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return None
    if alive(process):
        return descriptor
    os.close(descriptor)
    return None


def tagged(tag: str) -> list[Process]:
    """Living processes with this tag in the environment of their start."""
    entry, until = f"{ENV_TAG}={tag}".encode(), time.monotonic() + _EXEC
    found = []
    for pid in pids():
        try:
            environment = _environment(pid, until)
        except ProcessLookupError:
            environment = _environment_of_threads(pid)
        except OSError:
            continue  # gone, or another user's and so not ours
        if entry in environment.split(b"\0") and (known := stat(pid)) is not None and not known.dead:
            found.append(known.process)
    return found


def _environment(pid: int, until: float) -> bytes:
    """The environment of a process at its start.

    A process in the middle of an exec shows neither arguments nor environment, on a busy core for milliseconds: it is read again then.
    """
    directory = Path(f"/proc/{pid}")
    while not (found := (directory / "environ").read_bytes()):
        if (directory / "cmdline").read_bytes():
            return (directory / "environ").read_bytes()  # the exec may have ended between the two reads
        known = stat(pid)
        if known is None or known.kernel or known.dead or time.monotonic() > until:
            break
        time.sleep(0.001)
    return found


def _environment_of_threads(pid: int) -> bytes:
    """The same for a process whose main thread has ended while another is stuck, as in the GPU driver: other threads still show it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:  # the last thread has ended meanwhile
        return b""
    for thread in threads:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/task/{thread}/environ").read_bytes()
    return b""


def end_tagged(tag: str, wait: float = 5.0) -> list[Process]:
    """Kill all processes with the tag; returns those that are still alive after ``wait`` seconds.

    It looks again after each round, since a process may have forked between the look and the kill. A dying process shows no environment
    any more, and holds its memory and its devices until it is dead.
    """
    end = time.monotonic() + wait
    known: set[Process] = set()
    while left := sorted({*tagged(tag), *filter(alive, known)}):
        known.update(left)
        for process in left:
            send(process, signal.SIGKILL)
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return left


def device_holders(prefix: str = "/dev/nvidia") -> dict[int, set[str]]:
    """Device files that processes hold open, by pid.

    NVML's list of processes is not enough: forked loader workers inherit the descriptors of a rank, outlive it
    and keep its memory, while NVML goes on naming the dead rank (github.com/GaTech-RL2/EgoVerse/pull/682).
    """
    held: dict[int, set[str]] = {}
    for pid in pids():
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        except OSError:
            continue
        for number in descriptors:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
            except OSError:
                continue
            if target.startswith(prefix):
                held.setdefault(pid, set()).add(target)
    return held


def words(found: Iterable[Process | Stat]) -> str:
    """'pid 12 (python), pid 13 (gone)', for messages."""
    return ", ".join(f"pid {process.pid} ({command(process.pid)})" for process in found)


def command(pid: int) -> str:
    """Name of a process, 'gone' when it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
