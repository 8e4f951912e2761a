"""An agent's part in switched leases: it tells them the file of their turns, or lets the kernel decide by priority, and watches.

On CPU slots the kernel shares better than any turn (a request is served in 0.15 ms, not at the next layer). So there the job of lower
priority gets the lowest scheduling class, unless turns are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ...engine.protocol import Assignment
from ..host.gpus import Devices
from ..host.runs import Run
from ..lease import processes
from ..lease.rundir import TURN
from .kernel_priority import means, put
from .turn import look, path_of

Kind = Literal["kernel", "cooperative"]  #: the mechanism on CPU slots
Place = Literal["has", "waits", "behind"]  #: the turn; or the kernel puts it behind others


class Taking(NamedTuple):
    """Observations of the leases that take turns."""

    turn: dict[int, Place]
    waited: dict[int, float]  #: seconds in all
    stuck: set[int]  #: leases that hold the turn without a sign of life while others wait


class SlotTurns:
    """``kind``: the mechanism on CPU slots; on GPUs jobs take turns."""

    def __init__(self, devices: Devices, home: Path, kind: Kind = "kernel") -> None:
        self._devices, self._home, self.kind = devices, home, kind
        self._means = means()
        self._told: dict[int, tuple[str | None, int]] = {}
        self._by_kernel: dict[int, Place] = {}
        self._ranked: dict[int, bool] = {}  #: leases, and whether they are in the lowest class
        self._waited: dict[int, tuple[float, float]] = {}  #: leases' waiting seconds: before the count last restarted, and since
        self._rank_at = 0.0  #: time of the next check of all

    def tell(self, running: Sequence[Run]) -> None:
        """Write to all running and starting leases whether they take turns, if that has changed."""
        told: dict[int, tuple[str | None, int]] = {}
        for run in running:
            with run.isolated():  # tried again at the next look
                said = (self._place(run), run.assignment.priority)
                before = self._told.get(run.lease) or self._written(run)
                if said != before and (said[0] or before[0]):
                    run.dir.replace(TURN, {"path": said[0], "priority": said[1]})
                told[run.lease] = said
        self._told = told

    @staticmethod
    def _written(run: Run) -> tuple[str | None, int]:
        """An earlier agent's content of its file."""
        said = run.dir.read(TURN) or {}
        return said.get("path"), said.get("priority", 0)

    def _place(self, run: Run) -> str | None:
        """The file by which it takes turns."""
        gpu = self._devices.gpus.get(run.assignment.gpus[0])
        if run.assignment.share != "switched" or gpu is None or (gpu.kind == "cpu" and self.kind == "kernel"):
            return None
        return str(path_of(self._home, gpu.id))

    def rank(self, running: Sequence[Run]) -> None:
        """By the kernel: a lease that shares a slot with a higher priority is in the lowest class until that has left.

        While any is, all are checked again each second, as a process that begins a session leaves the class.
        """
        known = [run for run in running if run.identity is not None and run.assignment.share == "switched"]
        wanted = {run.lease: self._is_behind(run, running) for run in known}
        slots = {run.assignment.gpus[0] for run in known if wanted[run.lease]}
        self._by_kernel = {run.lease: "behind" if wanted[run.lease] else "has" for run in known if run.assignment.gpus[0] in slots}
        now = time.monotonic()
        if wanted == self._ranked and (now < self._rank_at or not any(wanted.values())):
            return
        table = processes.table()
        for run in known:
            if wanted[run.lease] or self._ranked.get(run.lease) is not False:
                for process in processes.descendants(run.identity.pid if run.identity else 0, table):
                    put(process.pid, self._means, low=wanted[run.lease])
        self._ranked, self._rank_at = wanted, now + 1.0

    def _is_behind(self, run: Run, running: Sequence[Run]) -> bool:
        gpu = self._devices.gpus.get(run.assignment.gpus[0])
        if run.assignment.share != "switched" or gpu is None or gpu.kind != "cpu" or self.kind != "kernel":
            return False
        beside = [other for other in running if other is not run and other.assignment.gpus == run.assignment.gpus]
        return any(other.assignment.priority > run.assignment.priority for other in beside)

    def look(self, graces: dict[int, float]) -> Taking:
        """One look at all turns. ``graces``: seconds for which each lease may keep the turn from a living one without a sign."""
        turn: dict[int, Place] = {}
        stuck = set()
        for path in self._places():
            seen = look(path)
            turn |= dict.fromkeys(seen.waiting, "waits")
            if seen.holder is not None:
                turn[seen.holder] = "has"
                if seen.waiting and seen.silent > graces.get(seen.holder, float("inf")):
                    stuck.add(seen.holder)
            for lease, seconds in seen.waited.items():
                before, last = self._waited.get(lease, (0.0, 0.0))
                # Its count restarts if it has left the turns for a while.
                self._waited[lease] = (before + last if seconds < last else before, seconds)
        turn |= self._by_kernel
        self._waited = {lease: known for lease, known in self._waited.items() if lease in self._told}
        return Taking(turn, {lease: sum(known) for lease, known in self._waited.items()}, stuck)

    def _places(self) -> list[Path]:
        return [Path(path) for path in sorted({path for path, _ in self._told.values() if path is not None})]


def memory_together(leases: Sequence[Assignment]) -> int:
    """Bytes of a GPU that they take together: those that each keeps, and the most that the turn's holder needs in addition."""
    kept = [min(lease.kept_memory or lease.gpu_memory, lease.gpu_memory) for lease in leases]
    return sum(kept) + max((lease.gpu_memory - own for lease, own in zip(leases, kept, strict=True)), default=0)
