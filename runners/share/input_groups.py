"""Jobs that share their input, as the agent of their host sees them: it says where their batches lie, and clears up after the dead.

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
    """What a job is told of its group."""

    directory: str
    memory: int  #: bytes that a ring may take
    lease: int
    leases: int  #: of the group that are on this host as the job starts, its own with them


def told(run_dir: Path) -> InputGroup | None:
    """What the agent has said to the job of this run directory; None: nothing."""
    try:
        return msgspec.json.decode((run_dir / INPUT).read_bytes(), type=InputGroup)
    except FileNotFoundError:
        return None


class InputGroups:
    """``share``: of the main memory of the host that a ring may take."""

    def __init__(self, home: Path, share: float = 0.1, memory: Path = MEMORY) -> None:
        self.share = share
        self._place = memory / f"stoker-input-{os.getuid()}-{_digest(str(home.resolve()))}"

    def tell(self, run: RunDir, group: str, leases: int) -> None:
        """Say to one that is about to start where the batches of its group lie. ``leases``: of the group here, its own with them."""
        memory = int(self.share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        said = InputGroup(str(self._place / _digest(group)), memory, run.lease, leases)
        run.write(INPUT, msgspec.to_builtins(said))

    def clean(self) -> None:
        """Take away rings in which nobody lives. Who has just opened one finds that out, and makes another."""
        for ring in self._place.glob("*/*.ring"):
            if not living(ring):
                clear(ring)


def clear(ring: Path) -> None:
    """Take away a ring and its description, and the directory after the last one."""
    for file in (ring, ring.with_suffix(".json")):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        ring.parent.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
