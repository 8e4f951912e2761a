"""The turn of a GPU: one of its switched jobs computes at a time, without a process that coordinates them.

A GPU has a file, ``HOME/turns/ID``. Under record locks (POSIX, by process) byte 0 is the turn, and byte 1 + slot says "I live". Its mapped
page has a slot per lease: the time since which it wants the turn, its priority, its last sign of life, and its number; each writes only
its own slot. Behind the slots stand the total waiting times.

- The page is advice, the lock is the truth: there are never two holders, whatever the page says.
- The kernel frees both at death, also by SIGKILL; a forked loader process keeps nothing, as record locks are not inherited.
  (flock would be, and starves between holders on several cores.)
- Only the agent takes the turn from a live process, by ending it (`runners.share.slot_turns`).
- Closing any descriptor of the file gives up the locks of the whole process: one `Turn` a process and file.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...engine.errors import StokerError
from . import record_locks

SLOTS = 32  #: leases on a GPU at once
MOST_URGENT = 1 << 62  #: priority of a job that is asked to leave, as it has a step to finish
PATIENCE = 0.25  #: seconds without a sign after which a waiting job is passed over, as it is stopped
_SINCE, _PRIORITY, _HEARD, _LEASE = range(4)
_WORDS = 4  #: of a slot
_PAGE = SLOTS * _WORDS * 8  #: bytes of the slots; jobs of an earlier version read no further
_NOTE = 2  #: words of a slot's note: its lease, and its waiting time
_FILE = _PAGE + SLOTS * _NOTE * 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002  #: seconds between looks of a waiting job


def path_of(home: Path, gpu: str) -> Path:
    return home / "turns" / gpu.replace("%", "%25").replace("/", "%2F")


class Turn:
    """This process's place at a GPU. ``leaving``: whether it is asked to end, and so goes first."""

    def __init__(self, path: Path, lease: int, priority: int = 0, leaving: Callable[[], bool] = lambda: False) -> None:
        self.path, self.priority, self.held, self._leaving = path, priority, False, leaving
        self._since = 0  #: monotonic time of our request
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._slot = self._enter()
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            needs = "the home needs room, and a file system with record locks (fcntl)"
            raise StokerError(f"share: no turns can be taken by {path}: {error.strerror}; {needs}") from None
        self._own = self._slot * _WORDS
        self._others = [slot * _WORDS for slot in range(SLOTS) if slot != self._slot]
        self._waited = _PAGE // 8 + self._slot * _NOTE + 1
        self._words[self._own + _SINCE] = 0
        self._words[self._own + _LEASE] = self._words[self._waited - 1] = lease
        self._words[self._waited] = 0

    def _enter(self) -> int:
        if os.fstat(self._file).st_size < _FILE:
            os.posix_fallocate(self._file, 0, _FILE)  # a page without room on the disk would end the process when it is written
        self._map = mmap.mmap(self._file, _FILE)
        self._words = memoryview(self._map).cast("q")
        for slot in range(SLOTS):
            if record_locks.lock(self._file, 1 + slot):
                return slot
        raise OSError(errno.EUSERS, f"{SLOTS} jobs share this GPU already")

    def take(self) -> None:
        """Wait for the turn, until the lock is free and no living job is before us, by priority and then by time."""
        if not self.held:
            self._since = time.monotonic_ns()
            self._take()

    def ask(self) -> None:
        """Queue for the turn, if the caller cannot wait in `take`; `granted` says when it has the turn."""
        self._since = time.monotonic_ns()
        self._announce()

    def withdraw(self) -> None:
        """Wait no longer."""
        self._words[self._own + _SINCE] = 0

    def pause(self) -> None:
        """Give way, and return with the turn, before equals that have asked since: equals change at the end of a step only."""
        self.give()
        self._take()

    def _take(self) -> None:
        self._announce()
        pause = _FIRST_PAUSE
        while not self.granted():
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_PAUSE)

    def _announce(self) -> None:
        words, own = self._words, self._own
        words[own + _PRIORITY] = MOST_URGENT if self._leaving() else self.priority
        words[own + _HEARD], words[own + _SINCE] = time.monotonic_ns(), self._since

    def granted(self) -> bool:
        """Check, for a queued job, whether it has the turn now."""
        words, own, now = self._words, self._own, time.monotonic_ns()
        words[self._waited] += now - words[own + _HEARD]
        words[own + _HEARD] = now
        if self._leaving():
            words[own + _PRIORITY] = MOST_URGENT
        if self._somebody_before() or not record_locks.lock(self._file, 0):
            return False
        self.held = True
        words[own + _SINCE] = 0
        return True

    def wanted(self, *, by_equals: bool = False) -> bool:
        """Whether a living job of higher priority waits for the turn that we have. The check is cheap enough for each layer."""
        words, own = self._words, self._own
        words[own + _HEARD] = time.monotonic_ns()
        priority = MOST_URGENT if words[own + _PRIORITY] == MOST_URGENT else self.priority - by_equals
        return any(words[at] and words[at + _PRIORITY] > priority and self._waits(at) for at in self._others)

    def give(self) -> None:
        if self.held:
            self.held = False
            record_locks.unlock(self._file, 0)

    def close(self) -> None:
        """Leave; a waiting job goes on."""
        self._words[self._own + _SINCE] = 0
        self._words.release()
        self._map.close()
        os.close(self._file)  # and with it all locks
        self.held = False

    def _somebody_before(self) -> bool:
        words, own = self._words, self._own
        mine = (-words[own + _PRIORITY], words[own + _SINCE], own)
        return any(words[at] and (-words[at + _PRIORITY], words[at], at) < mine and self._waits(at) for at in self._others)

    def _waits(self, at: int) -> bool:
        """Whether the waiting job of a slot lives, and is not stopped."""
        if time.monotonic_ns() - self._words[at + _HEARD] > PATIENCE * 1e9:
            return False
        return record_locks.holder(self._file, 1 + at // _WORDS) is not None


class Seen(NamedTuple):
    """A turn as seen by an outside process."""

    holder: int | None  #: its lease; None: the turn is free
    silent: float  #: seconds since the holder was last heard
    waiting: dict[int, int]  #: leases that wait, and their priorities
    waited: dict[int, float]  #: total seconds for which the leases have waited


def look(path: Path) -> Seen:
    """For a process that has no `Turn` of this file, as an agent."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return Seen(None, 0.0, {}, {})
    try:
        words = struct.unpack(f"{_FILE // 8}q", os.pread(file, _FILE, 0).ljust(_FILE, b"\0"))
        alive = {slot: pid for slot in range(SLOTS) if (pid := record_locks.holder(file, 1 + slot))}
        turn = record_locks.holder(file, 0)
    finally:
        os.close(file)
    slots = {words[slot * _WORDS + _LEASE]: words[slot * _WORDS : (slot + 1) * _WORDS] for slot in alive}
    holder = next((words[slot * _WORDS + _LEASE] for slot, pid in alive.items() if pid == turn), None)
    silent = (time.monotonic_ns() - slots[holder][_HEARD]) / 1e9 if holder in slots else 0.0
    notes = [words[_PAGE // 8 + slot * _NOTE :][:_NOTE] for slot in alive]
    waited = {lease: nanoseconds / 1e9 for lease, nanoseconds in notes if lease in slots}  # a job of an earlier version leaves no note
    return Seen(holder, silent, {lease: slot[_PRIORITY] for lease, slot in slots.items() if slot[_SINCE]}, waited)
