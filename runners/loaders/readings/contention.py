"""Contention for the interpreter's lock: measures the time to get it, and the places where threads wait, some twenty times a second.

The kernel cannot tell a wait for that lock from a sleep, so the meters of workers count it as waiting. Two signs tell them apart.
A thread that has slept has to take the lock; if that takes longer than waking up, another thread held it. And a thread that waits for
a lock is in the system call futex, one that waits for a disk or a network in another, as /proc shows for each thread.

The observer holds the lock, so it sees a thread that computes in Python as waiting. Its samples therefore only divide the waiting time
of the meters, and that division is wrong by no more than the thread's CPU time.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .meters import RunDelay

_EVERY = 0.05  #: seconds between two looks
_AWAKE = 0.3e-3  #: seconds that waking up may take: 0.16 ms with no other thread awake
_CROWDED = 1e-3  #: seconds for which a woken thread is ready without a core, if all cores are busy
_LOOKED_AT = 2  #: threads of a stage, at random, in one look
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")  #: number of the system call
_TASKS = Path("/proc/self/task")


class Looks(NamedTuple):
    """Since the pass began."""

    looks: int = 0
    held: int = 0  #: of the looks, those that had to wait for the interpreter's lock
    crowded: int = 0  #: of the looks, those that had to wait for a core
    locked: Mapping[int, int] = {}  #: by stage, threads seen waiting for a lock
    waiting: Mapping[int, int] = {}  #: the same, for anything
    cpu: float = 0.0  #: seconds of CPU time of the looks

    def since(self, before: Looks) -> Looks:
        return Looks(
            self.looks - before.looks,
            self.held - before.held,
            self.crowded - before.crowded,
            {stage: count - before.locked.get(stage, 0) for stage, count in self.locked.items()},
            {stage: count - before.waiting.get(stage, 0) for stage, count in self.waiting.items()},
            self.cpu - before.cpu,
        )

    def share(self, found: int) -> float:
        """Share of the time, by the ``found`` of all looks."""
        return found / self.looks if self.looks else 0.0

    def locked_share(self, stage: int) -> float:
        """Share of the waits of a stage's threads that were for a lock; 0 if none was seen waiting."""
        waiting = self.waiting.get(stage, 0)
        return self.locked.get(stage, 0) / waiting if waiting else 0.0


class Contention:
    """A thread that looks until it is ended. ``at_work``: by stage, the kernel's numbers of the threads that are in its function."""

    def __init__(self, at_work: Callable[[], Mapping[int, Sequence[int]]]) -> None:
        self._at_work = at_work
        self.seen = Looks()  #: replaced as a whole by each look, so that a reader sees one moment
        self._leave = threading.Event()
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._run, name="stoker-lock", daemon=True)

    def start(self) -> None:
        """If the limit of threads is reached, it stays idle and sees nothing."""
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def end(self) -> None:
        self._leave.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _run(self) -> None:
        delay = RunDelay()
        while True:
            delayed, began = delay.read(), time.perf_counter()
            if self._leave.wait(_EVERY):
                break
            late, waited = time.perf_counter() - began - _EVERY, delay.read() - delayed
            self._look(held=late - waited > _AWAKE, crowded=waited > _CROWDED)
        delay.close()

    def _look(self, *, held: bool, crowded: bool) -> None:
        before = self.seen
        locked, waiting = Counter(before.locked), Counter(before.waiting)
        for stage, threads in self._at_work().items():
            for thread in self._random.sample(threads, min(_LOOKED_AT, len(threads))):
                if call := waits_in(thread):
                    waiting[stage] += 1
                    locked[stage] += call == _FUTEX
        self.seen = Looks(before.looks + 1, before.held + held, before.crowded + crowded, locked, waiting, time.thread_time())


def waits_in(thread: int) -> str:
    """Number of the system call that a thread of this process is in; "" if it runs, has ended, or cannot be seen."""
    try:
        file = os.open(_TASKS / str(thread) / "syscall", os.O_RDONLY | os.O_CLOEXEC)
        try:
            number = os.read(file, 32).split(b" ", 1)[0].decode()
        finally:
            os.close(file)
    except OSError:
        return ""
    return number if number.isdecimal() else ""
