"""The batches of jobs that train on the same data in the same order, each read, decoded and collated once (004, 2.3.5).

There is no reader process and no lockstep: the first job that needs a batch makes it, the others find it (`batch_ring`). A batch is a
function of data, seed, batch size and step, so each job gets the batch that it would make itself. That is checked: only jobs with equal
descriptions of their batches share, and a job also makes the first, second, fourth, ... batch that it finds, and compares them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from ..loaders.workers import ipc
from ..worker import script
from .batch_ring import BatchRing, NoRoom, living
from .input_groups import InputGroup, clear

log = logging.getLogger(__name__)

_LONGEST_START = 60.0  #: seconds for which the first job waits for those that start beside it
_CHECK_INTERVAL = 0.05
_REMOVAL_PATIENCE = 1.0  #: seconds of trying to join while others remove directories
_TOLD = 5.0  #: seconds between reports

Description = Mapping[str, Any]  #: properties of batches, by names for people; JSON


class SharedInput:
    """A job's place in its group. Worker processes get a copy, which opens the ring anew."""

    def __init__(self, ring: Path, memory: int, row: int = -1) -> None:
        self._path, self._memory, self._row = ring, memory, row
        self._opened: BatchRing | None = None
        self._found = 0
        self._told_at = time.monotonic()
        self._said: set[str] = set()

    @classmethod
    def join(cls, group: InputGroup, description: Description, first: int) -> SharedInput | None:
        """Join as a member whose next batch is ``first``. None: the input cannot be shared, and the log says why."""
        directory = Path(group.directory)
        digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
        shared = cls(directory / f"{digest}.ring", group.memory)
        try:
            shared._enter(group.lease, first, description)
        except (OSError, NoRoom) as error:
            log.info("its input is not shared: %s", error)
            return None
        _tell_others(directory, digest, description)
        if first == 0:
            shared._await(group.leases)
        log.info("shares its input with %d other jobs", len(shared._ring.members()) - 1)
        return shared

    def _enter(self, lease: int, first: int, description: Description) -> None:
        until = time.monotonic() + _REMOVAL_PATIENCE
        while True:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if any(folder.stat().st_uid != os.getuid() for folder in (self._path.parent, self._path.parent.parent)):
                    raise NoRoom(f"{self._path.parent} belongs to another user")  # whose pickles are not to be read
                self._opened = BatchRing(self._path, self._memory)
            except (FileNotFoundError, FileExistsError):
                if time.monotonic() > until:
                    raise
                continue  # the last member has just removed a directory
            self._opened.enter(lease, first)
            if self._opened.in_place:
                break
            self._opened.leave()  # the last member has just removed it
        self._row = self._opened.row
        self._path.with_suffix(".json").write_text(json.dumps(description))

    def _await(self, leases: int) -> None:
        """Wait for jobs started beside this one: only jobs that begin together find each other's batches."""
        until = time.monotonic() + _LONGEST_START
        while (known := len(self._beside())) < leases:
            if time.monotonic() > until or script.should_stop():
                log.info("begins with %d of the %d jobs that share its input", known, leases)
                return
            time.sleep(_CHECK_INTERVAL)

    def _beside(self) -> set[int]:
        """Leases of the group that have joined so far, also those with other batches."""
        others = (living(ring) for ring in self._path.parent.glob("*.ring") if ring != self._path)
        return set(self._ring.members()).union(*others)

    @property
    def _ring(self) -> BatchRing:
        if self._opened is None:
            self._opened = BatchRing(self._path, self._memory)
            self._opened.row = self._row
        return self._opened

    def __reduce__(self) -> Any:
        return SharedInput, (self._path, self._memory, self._row)

    def batch(self, number: int, make: Callable[[], Any]) -> Any:
        """Batch ``number``: found, or made by ``make``."""
        ring = self._ring
        if ring.member.apart:
            return make()
        found = ring.get(number, make)
        if ring.trouble:
            self._say(f"its input is not shared: {ring.trouble}")
        if found.how != "found":
            return found.value
        self._found += 1
        if self._found & (self._found - 1):
            return found.value
        mine = make()
        if not same(mine, found.value):
            ring.keep_apart()
            self._say(
                f"its input is not shared any more: batch {number} of another job differs from its own, after {self._found - 1} that were"
                " found; its data, augment or collate draws by itself or is not that of the others"
            )
        return mine

    def values(self, last: bool) -> dict[str, float]:
        """Counts of made and found batches for reports, from time to time. ``last``: now."""
        now = time.monotonic()
        if not last and now - self._told_at < _TOLD:
            return {}
        self._told_at = now
        member = self._ring.member
        return {
            "input_made": float(member.made + member.again),
            "input_found": float(member.found),
            "input_again": float(member.again),
            "input_bytes": float(member.bytes),
            "input_saved": member.found * self._ring.seconds,
        }

    def close(self) -> None:
        if self._opened is not None:
            self._opened.leave()
            self._opened = None
            if not self._path.exists():
                clear(self._path)

    def _say(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            log.warning("%s", words)


def described(function: Any) -> str:
    """A text for an augment or a collate, which differs for different functions."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None)
    try:
        content = _stable(code) if code is not None else pickle.dumps(function).hex()
    except Exception:
        return name
    return f"{name} {hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _stable(value: Any) -> str:
    """Code and its constants as a text that is the same in each process."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {[_stable(constant) for constant in value.co_consts]}"
    if isinstance(value, frozenset):
        return repr(sorted(map(_stable, value)))
    return repr(value)


def digest(value: Any) -> str:
    """Of a sample."""
    try:
        data, views = ipc.dumps(value)
    except Exception:
        return "?"
    found = hashlib.sha256(data)
    for view in views:
        found.update(view)
    return found.hexdigest()[:16]


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and digest(one) == digest(other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return digest(one) == digest(other)


def _tell_others(directory: Path, own: str, description: Description) -> None:
    """Log the jobs of the group with other batches, and the differences."""
    for file in directory.glob("*.json"):
        if file.stem == own or not (leases := living(file.with_suffix(".ring"))):
            continue
        try:
            theirs = json.loads(file.read_text())
        except (OSError, ValueError):  # it is just being written
            continue
        names = [name for name in {**description, **theirs} if description.get(name) != theirs.get(name)]
        differ = ", ".join(f"{name} is {theirs.get(name)}, here {description.get(name)}" for name in names[:3])
        log.warning("shares no input with lease %s, whose batches are others: %s", ", ".join(map(str, leases)), differ)
