"""Batches in shared memory, by number, for jobs that need the same ones: the first that needs a batch makes it, the others find it.

The ring is a file in shared memory with a page of words, and places for batches. No process has to be started: each member maps the file.

- Bytes of the file are locked (POSIX record locks, by process), so the kernel frees the locks of the dead: byte 0 during reads and changes
  of the page, a byte per member ("I live"), a byte per batch being made ("I make it").
- The ring keeps the batches that will be needed soonest (Belady, 1966): each member's row has its next batch, and all go through the same
  numbers in order, so the future is known. A batch that no other member will need is not kept.
- A member that is behind, dead or stopped delays no other: each makes a batch for itself if it has left the ring or comes too late.
- A member that waits for a batch sleeps on a futex, and checks at intervals whether its maker lives.
- Closing any descriptor of the file gives up the locks of the whole process: one `BatchRing` a process and file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os
import pickle
import platform
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..loaders.workers import ipc
from .record_locks import holder, lock, unlock

ROWS = 128  #: members at once
PLACES = 32  #: batches at most
_BEING_MADE = 64  #: batches that are being made at once
_SLOT_BYTES, _SLOTS, _MAKING_NS, _MADE, _NEWEST, _WORD = range(6)  #: words of the head; `_WORD` is the futex
_ROW, _ROW_WORDS = 64, 7  #: first word of the rows; words of a row, the fields of `MemberRow`
_SLOT, _SLOT_WORDS = _ROW + ROWS * _ROW_WORDS, 4  #: batch + 1 (0: none), bytes, writes so far, its writer (byte of a lock)
_MAKER = _SLOT + PLACES * _SLOT_WORDS  #: 1 + each batch being made, by its number modulo `_BEING_MADE`
_WORDS = _MAKER + _BEING_MADE
_HEAD = -(-_WORDS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
_LOCK_ROW, _LOCK_MAKER = 1, 1 + ROWS  #: first locked bytes
_BUSY = 0.25  #: seconds after which a member goes on without the locked page: the lock's holder may be stopped
_MAKER_CHECK_INTERVAL = 0.05  #: seconds between checks whether the maker of a batch lives
_LEAST_PATIENCE, _PATIENCE = 1.0, 3.0  #: least seconds, and times a batch's making, after which a member makes it for itself
_ALIGN = 64
_SPARE = 1.25  #: room for batches that are larger than the first
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE = 0, 1
_libc = ctypes.CDLL(None, use_errno=True)


class MemberRow(NamedTuple):
    """A row of the page."""

    next: int  #: batch
    lease: int  #: 0: none
    apart: int  #: it makes all batches for itself
    made: int
    found: int
    again: int  #: made, though another had made them before
    bytes: int  #: of found batches


class FoundBatch(NamedTuple):
    """A batch, and its origin: `found`, `made`, or made `again`."""

    value: Any
    how: str
    bytes: int = 0


class NoRoom(Exception):
    """There is no shared memory for it; the message says why."""


class BatchRing:
    """A process's view of the ring in ``path``, which takes at most ``memory`` bytes."""

    def __init__(self, path: Path, memory: int) -> None:
        self.path, self.memory, self.row = path, memory, -1
        self.trouble = ""  #: why nothing is kept
        self._threads = threading.Lock()
        self._mine: set[int] = set()  #: bytes of makers that this process has locked
        self._file, self._map = _opened(path)
        self._words = memoryview(self._map).cast("Q")
        self._slept_on = ctypes.c_uint32.from_buffer(self._map, _WORD * 8)
        self._places: memoryview | None = None

    # ---- members ----

    def enter(self, lease: int, first: int) -> None:
        """Take a row, as a member whose next batch is ``first``. NoRoom: all are taken."""
        with self._page() as ours:
            for row in range(ROWS) if ours else ():
                if self._lock(_LOCK_ROW + row):
                    self.row = row
                    self._write(MemberRow(first, lease, 0, 0, 0, 0, 0))
                    return
        raise NoRoom(f"{ROWS} jobs use it already" if ours else "another job has locked it and is stopped")

    @property
    def in_place(self) -> bool:
        """Whether its file is still the one that others find."""
        try:
            return os.fstat(self._file).st_ino == self.path.stat().st_ino
        except OSError:
            return False

    def members(self) -> list[int]:
        """Leases of the living members."""
        return [self._words[self._at(row) + 1] for row in self._living()]

    def leave(self) -> None:
        """Leave the ring; the last member removes the file."""
        with self._page():
            if self.row >= 0:
                self._words[self._at(self.row) + 1] = 0
                self._unlock(_LOCK_ROW + self.row)
                self.row = -1
                if not self._living() and self.in_place:  # else the file is another ring, of members who came later
                    with contextlib.suppress(OSError):
                        self.path.unlink()
        del self._slept_on
        self._words.release()
        if self._places is not None:
            self._places.release()  # and with it the mapping
        self._map.close()
        os.close(self._file)

    @property
    def member(self) -> MemberRow:
        """This member's counts."""
        at = self._at(self.row)
        return MemberRow(*self._words[at : at + _ROW_WORDS])

    def keep_apart(self) -> None:
        """From now on all batches are made for this member alone, in any of its processes."""
        with self._page():
            self._write(self.member._replace(apart=1))

    def _write(self, member: MemberRow) -> None:
        at = self._at(self.row)
        self._words[at : at + _ROW_WORDS] = memoryview(struct.pack(f"{_ROW_WORDS}Q", *member)).cast("Q")  # in one go

    # ---- batches ----

    def get(self, number: int, make: Callable[[], Any]) -> FoundBatch:
        """Batch ``number``: found, or made by ``make``. Any thread may call it, but each number only one."""
        found = self._get(number, make)
        with self._page():
            now = self.member
            counted = {found.how: getattr(now, found.how) + 1, "bytes": now.bytes + found.bytes}
            self._write(now._replace(next=max(now.next, number + 1), **counted))
        return found

    def _get(self, number: int, make: Callable[[], Any]) -> FoundBatch:
        until = time.monotonic() + self._patience
        while True:
            seen = self._slept_on.value
            claim, coming = None, False
            with self._page() as ours:
                slot = self._slot_of(number)
                if slot is None and ours and not (coming := self._being_made(number)):
                    claim = self._claim(number)
            if slot is not None:
                if (found := self._read(slot, number)) is not None:
                    return found
                continue
            if not coming or time.monotonic() > until:
                return self._make(number, make, claim)
            self._sleep(seen)

    def _make(self, number: int, make: Callable[[], Any], claim: int | None) -> FoundBatch:
        begun = time.monotonic_ns()
        try:
            value = make()
            took = time.monotonic_ns() - begun
            how = "made"
            with self._page() as ours:
                if ours:
                    how = "again" if number < self._words[_NEWEST] else "made"
                    self._words[_NEWEST] = max(self._words[_NEWEST], number + 1)
                    self._words[_MAKING_NS] += took
                    self._words[_MADE] += 1
            if claim is not None:
                self._keep(number, value, claim)
            return FoundBatch(value, how)
        finally:
            if claim is not None:
                with self._page():
                    self._words[_MAKER + claim] = 0
                    self._unlock(_LOCK_MAKER + claim)
                self._wake()

    @property
    def seconds(self) -> float:
        """Mean seconds of making a batch."""
        return self._words[_MAKING_NS] / 1e9 / max(1, self._words[_MADE])

    @property
    def _patience(self) -> float:
        return max(_LEAST_PATIENCE, _PATIENCE * self.seconds)

    # ---- the maker ----

    def _claim(self, number: int) -> int | None:
        """The right to make a batch for all; None: another batch is being made in its place."""
        claim = number % _BEING_MADE
        if not self._lock(_LOCK_MAKER + claim):
            return None
        self._words[_MAKER + claim] = number + 1
        return claim

    def _being_made(self, number: int) -> bool:
        claim = number % _BEING_MADE
        return self._words[_MAKER + claim] == number + 1 and self._held(_LOCK_MAKER + claim)

    # ---- kept batches ----

    def _slot_of(self, number: int) -> int | None:
        slots = range(self._words[_SLOTS])
        return next((slot for slot in slots if self._words[self._at_slot(slot)] == number + 1), None)

    def _keep(self, number: int, value: Any, claim: int) -> None:
        if all(row == self.row for row in self._living()):
            return
        try:
            data, views = ipc.dumps(value)
        except Exception as error:
            self.trouble = f"its batches cannot be kept: {' '.join(str(error).split())}"
            return
        lengths = [view.nbytes for view in views]
        head = struct.pack(f"<QQ{len(views)}Q", len(data), len(views), *lengths) + data
        starts = _starts(len(head), lengths)
        size = starts[-1] + lengths[-1] if lengths else len(head)
        with self._page() as ours:
            slot = self._chosen(number, size) if ours else None
            if slot is None:
                return
            at = self._at_slot(slot)
            self._words[at], self._words[at + 3] = 0, _LOCK_MAKER + claim
            self._words[at + 2] += 1
        assert self._places is not None
        place = slot * self._words[_SLOT_BYTES]
        parts = (memoryview(head), *views)
        for start, part in zip((0, *starts), parts, strict=True):
            self._places[place + start : place + start + len(part)] = part
        with self._page():
            self._words[at + 1], self._words[at], self._words[at + 3] = size, number + 1, 0

    def _chosen(self, number: int, size: int) -> int | None:
        """The place of the batch that will be needed last, if that is later than this one."""
        if not self._words[_SLOT_BYTES]:
            self._divide(size)
        if size > self._words[_SLOT_BYTES] or not self._mapped():
            return None
        coming = [self._words[self._at(row)] for row in self._living() if row != self.row]
        ahead = {slot: _needed_in(self._words[self._at_slot(slot)] - 1, coming) for slot in range(self._words[_SLOTS]) if self._free(slot)}
        if not ahead:
            return None
        latest = max(ahead, key=lambda slot: ahead[slot])
        return latest if _needed_in(number, coming) < ahead[latest] else None

    def _free(self, slot: int) -> bool:
        """Whether no living process writes to the slot."""
        writer = self._words[self._at_slot(slot) + 3]
        return not writer or not self._held(writer)

    def _divide(self, size: int) -> None:
        """Divide the file into places, by the size of the first batch."""
        room = -(-int(size * _SPARE) // mmap.PAGESIZE) * mmap.PAGESIZE
        slots = min(PLACES, self.memory // room)
        while slots >= 2:
            try:
                os.posix_fallocate(self._file, _HEAD, slots * room)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.ftruncate(self._file, _HEAD)
                slots //= 2
                continue
            self._words[_SLOT_BYTES], self._words[_SLOTS] = room, slots
            return
        limit = min(self.memory, _free_bytes(self.path.parent))
        self.trouble = f"two batches of {size >> 10} KiB do not fit into {limit >> 10} KiB of shared memory"

    def _mapped(self) -> bool:
        if self._places is None and self._words[_SLOT_BYTES]:
            self._places = memoryview(mmap.mmap(self._file, self._words[_SLOT_BYTES] * self._words[_SLOTS], offset=_HEAD))
        return self._places is not None

    def _read(self, slot: int, number: int) -> FoundBatch | None:
        """None: it has left the place meanwhile."""
        at = self._at_slot(slot)
        before, size = self._words[at + 2], self._words[at + 1]
        if not self._mapped():
            return None
        assert self._places is not None
        place = slot * self._words[_SLOT_BYTES]
        copy = _aligned_buffer(size)
        copy[:] = self._places[place : place + size]
        with self._page():
            if self._words[at] != number + 1 or self._words[at + 2] != before:
                return None
        pickled, count = struct.unpack_from("<QQ", copy)
        lengths = struct.unpack_from(f"<{count}Q", copy, 16)
        end = 16 + 8 * count + pickled
        buffers = [copy[start : start + length] for start, length in zip(_starts(end, lengths), lengths, strict=True)]
        return FoundBatch(pickle.loads(copy[end - pickled : end], buffers=buffers), "found", size)

    # ---- the page, and its locks ----

    def _at(self, row: int) -> int:
        return _ROW + row * _ROW_WORDS

    def _at_slot(self, slot: int) -> int:
        return _SLOT + slot * _SLOT_WORDS

    def _living(self) -> list[int]:
        """Rows of living members; rows of dead ones are cleared."""
        rows = [row for row in range(ROWS) if self._words[self._at(row) + 1]]
        for row in rows:
            if row != self.row and not self._held(_LOCK_ROW + row):
                self._words[self._at(row) + 1] = 0
        return [row for row in rows if self._words[self._at(row) + 1]]

    @contextlib.contextmanager
    def _page(self) -> Iterator[bool]:
        """Holds the page's lock. False: it cannot be had, as its holder is stopped."""
        with self._threads:
            until, pause = time.monotonic() + _BUSY, 0.00005
            while not (ours := self._lock(0)) and time.monotonic() < until:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.002)
            try:
                yield ours
            finally:
                if ours:
                    self._unlock(0)

    def _lock(self, byte: int) -> bool:
        if byte in self._mine or not lock(self._file, byte):
            return False
        if byte:
            self._mine.add(byte)
        return True

    def _unlock(self, byte: int) -> None:
        self._mine.discard(byte)
        unlock(self._file, byte)

    def _held(self, byte: int) -> bool:
        return byte in self._mine or holder(self._file, byte) is not None

    def _sleep(self, seen: int) -> None:
        if _FUTEX is None:
            time.sleep(0.002)
            return
        timeout = struct.pack("qq", 0, int(_MAKER_CHECK_INTERVAL * 1e9))
        _libc.syscall(_FUTEX, ctypes.byref(self._slept_on), _WAIT, ctypes.c_uint32(seen), timeout, None, 0)

    def _wake(self) -> None:
        self._slept_on.value = (self._slept_on.value + 1) & 0xFFFFFFFF
        if _FUTEX is not None:
            _libc.syscall(_FUTEX, ctypes.byref(self._slept_on), _WAKE, 0x7FFFFFFF, None, None, 0)


def living(path: Path) -> list[int]:
    """Leases of a ring's living members. Not for a file of which this process has a `BatchRing`: it would lose its locks."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        words = struct.unpack(f"{_WORDS}Q", os.pread(file, _WORDS * 8, 0).ljust(_WORDS * 8, b"\0"))
        return [words[_ROW + row * _ROW_WORDS + 1] for row in range(ROWS) if holder(file, _LOCK_ROW + row) is not None]
    finally:
        os.close(file)


def _opened(path: Path) -> tuple[int, mmap.mmap]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NoRoom(f"{path}: {error.strerror}") from None
    try:
        os.posix_fallocate(file, 0, _HEAD)  # a page without memory would end the process when it is written
        return file, mmap.mmap(file, _HEAD)
    except OSError as error:
        os.close(file)
        raise NoRoom(f"{path}: {error.strerror}") from None


def _needed_in(number: int, coming: Sequence[int]) -> float:
    """The number of batches until a member needs this one; ``coming``: the members' next batches."""
    return min((number - at for at in coming if at <= number), default=math.inf)


def _starts(after: int, lengths: Sequence[int]) -> list[int]:
    """The offset of each buffer, aligned like torch's own."""
    starts = []
    for length in lengths:
        starts.append(-(-after // _ALIGN) * _ALIGN)
        after = starts[-1] + length
    return starts


def _aligned_buffer(size: int) -> memoryview:
    whole = bytearray(size + _ALIGN)
    shift = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % _ALIGN
    return memoryview(whole)[shift : shift + size]


def _free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
