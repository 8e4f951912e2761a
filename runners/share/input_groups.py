"""The agent's part for jobs that share their input: it tells them the place of their batches, and removes the rings of the dead.

A group is the jobs of a user that name the same ``share.input``. Its directory in shared memory has a ring (`batch_ring`) for each
description of batches, and beside it that description.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from ..lease.rundir import INPUT, RunDir
from .batch_ring import living

MEMORY = Path("/dev/shm")


class InputGroup(msgspec.Struct, frozen=True):
    """A job's group."""

    directory: str
    memory: int  #: bytes that a ring may take
    lease: int
    leases: int  #: of the group on this host as the job starts, its own included


def told(run_dir: Path) -> InputGroup | None:
    """The group of this run directory's job, as written by the agent; None: it has none."""
    try:
        return msgspec.json.decode((run_dir / INPUT).read_bytes(), type=InputGroup)
    except FileNotFoundError:
        return None


class InputGroups:
    """``share``: of the host's main memory, for one ring."""

    def __init__(self, home: Path, share: float = 0.1, memory: Path = MEMORY) -> None:
        self.share = share
        self._place = memory / f"stoker-input-{os.getuid()}-{_digest(str(home.resolve()))}"

    def tell(self, run: RunDir, group: str, leases: int) -> None:
        """Tell a job that is about to start the place of its group's batches. ``leases``: of the group here, its own included."""
        memory = int(self.share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        said = InputGroup(str(self._place / _digest(group)), memory, run.lease, leases)
        run.write(INPUT, msgspec.to_builtins(said))

    def clean(self) -> None:
        """Remove rings without a living member. A job that has just opened one notices that, and makes another."""
        for ring in self._place.glob("*/*.ring"):
            if not living(ring):
                ring.unlink(missing_ok=True)
                clear(ring)


def clear(ring: Path) -> None:
    """Remove the description of a ring that is gone, the group's directory after the last one, and the home's after the last group.

    Not the ring: another member may have made it anew, and who joins later would not find that one.
    """
    ring.with_suffix(".json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        ring.parent.rmdir()
        ring.parent.parent.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
