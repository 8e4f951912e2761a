"""SwitchFlow: jobs that take turns share a GPU; inference goes before training, then the higher priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .contract import SWITCHED, Allocation, Bools, Group, Ints, Jobs, Phase, Plan, Reason, View, Waiting, precedence, tunable
from .placement.consolidated import Placement
from .queues.later import Later
from .queues.reasons import lacking, size_and_place


class SwitchFlow:
    """Jobs that ask for `share: {gpu: switched}` take turns on a GPU; all others have their GPUs alone.

    SwitchFlow (004 ch. 2): several models stay on a GPU and one of them computes. Inference goes before training whatever their
    priorities; within each the higher priority goes first, and equals take turns. In that order waiting jobs get GPUs. A job that
    takes turns joins others on the GPU that it fills best. The memory of all there must fit into it at once, or the job waits: their
    `share.memory`, `gpu_memory` or measured use; with `share: {memory: replay}` only the memory kept between turns, plus the largest
    further need of one of them. So the most jobs run; if a GPU is left, a job has it alone. No job is preempted, as a switch takes
    only time from the others; jobs that fit may overtake one that does not.
    """

    @dataclass(frozen=True)
    class Config:
        most: int = tunable(8, "most jobs that take turns on a GPU", low=1, high=32)

    name: ClassVar[str] = "switchflow"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        if not (view.jobs.phase == Phase.PENDING).any():
            return Plan({})
        tick = _Tick(view, self.config)
        tick.serve()
        tick.spread()
        tick.serve()  # in the place of a moved job another may fit
        return tick.plan()


def takes_turns(jobs: Jobs) -> Bools:
    """Jobs that ask for turns, on one GPU only: on several, each would wait for the turn on all."""
    asked = np.zeros(len(jobs), dtype=bool) if jobs.share is None else jobs.share == SWITCHED
    able: Bools = asked.astype(bool) & (jobs.gpus_min == 1)
    return able


class _Tick:
    """One plan in the making. Jobs and GPUs are rows."""

    def __init__(self, view: View, config: SwitchFlow.Config) -> None:
        self.view, self.jobs, self.most, jobs = view, view.jobs, config.most, view.jobs
        self.placement = Placement(view)
        self.switched = takes_turns(jobs)
        self.rank = -precedence(jobs.kind, jobs.priority)
        pending = np.flatnonzero(jobs.phase == Phase.PENDING)
        self.queue = pending[np.argsort(self.rank[pending], kind="stable")]
        self.given: dict[int, tuple[int, ...]] = {}  #: GPUs of starting jobs, in order of service
        self.on = self._residents()

    def _residents(self) -> dict[int, list[int]]:
        """GPUs on which all jobs take turns, and these jobs."""
        jobs = self.jobs
        taking = self.switched & (jobs.phase == Phase.ACTIVE) & (jobs.held == 1)
        closed = set(jobs.alloc_gpus[~taking[jobs.holder]].tolist()) | set(np.flatnonzero(~self.view.gpus.usable).tolist())
        on: dict[int, list[int]] = {}
        for row in np.flatnonzero(taking).tolist():
            gpu = int(jobs.allocation(row)[0])
            if gpu not in closed:
                on.setdefault(gpu, []).append(row)
        return on

    def serve(self) -> None:
        """Start jobs that fit: beside others if they can take turns, else on free GPUs. A failed start fails for all equal jobs."""
        kept = self.jobs.gpu_memory if self.jobs.kept is None else self.jobs.kept
        failed: set[tuple[int, float, bool, float]] = set()
        for row in self._unserved().tolist():
            switched = bool(self.switched[row])
            kind = (int(self.jobs.gpus_min[row]), float(self.jobs.asks[row]), switched, switched * float(kept[row]))
            if kind in failed:
                continue
            if switched and (gpu := self._best_fit(row)) is not None:
                self.on[gpu].append(row)
                self.given[row] = (gpu,)
            elif (gpus := self.placement.find_any(kind[0], memory=kind[1])) is not None:
                self.placement.take(gpus)
                self.given[row] = gpus
                if switched:
                    self.on[gpus[0]] = [row]
                    failed = {other for other in failed if not other[2]}  # they may take turns with it
            else:
                failed.add(kind)

    def _best_fit(self, row: int) -> int | None:
        """The GPU with the least memory left beside all that take turns there; if memory is not known, that with the fewest jobs."""
        suits = self.view.suits(row)
        rooms = ((self._room(gpu, row), len(rows), gpu) for gpu, rows in self.on.items() if len(rows) < self.most and suits[gpu])
        return min((room for room in rooms if room[0] >= 0), default=(0.0, 0, None))[2]

    def _room(self, gpu: int, row: int) -> float:
        """Bytes left there with it; negative: it does not fit; inf: not known."""
        whole = float(self.view.gpus.memory[gpu])
        return whole - self.jobs.beside_each_other([row, *self.on[gpu]]) if whole > 0 else np.inf

    def spread(self) -> None:
        """Move jobs that start beside others to GPUs of their own, as long as some are left."""
        for row, (gpu, *_) in list(self.given.items()):
            if self.switched[row] and len(self.on[gpu]) > 1:
                alone = self.placement.find(1, memory=float(self.jobs.asks[row]))
                if alone is not None:
                    self.placement.take(alone)
                    self.on[gpu].remove(row)
                    self.given[row], self.on[alone[0]] = alone, [row]

    def plan(self) -> Plan:
        ids, groups = self.jobs.id, [rows for rows in self.on.values() if len(rows) > 1 and any(row in self.given for row in rows)]
        stay = {row: tuple(self.jobs.allocation(row).tolist()) for rows in groups for row in rows if row not in self.given}
        return Plan(
            allocations={int(ids[row]): Allocation(gpus) for row, gpus in (stay | self.given).items()},
            groups=[Group(SWITCHED, tuple(ids[rows].tolist())) for rows in groups],
            waiting=Later(self._waiting),
            order=Later(self._order),
        )

    def _order(self) -> list[int]:
        return [int(job) for job in self.jobs.id[self._unserved()]]

    def _unserved(self) -> Ints:
        waits: Ints = self.queue[~np.isin(self.queue, list(self.given))]
        return waits

    def _waiting(self) -> list[Waiting]:
        rows = self._unserved()
        # These jobs lack memory: some GPU that they may have has a place, and they would fit there alone.
        places = [gpu for gpu, on in self.on.items() if len(on) < self.most]
        asks, first, which = np.unique(self.jobs.asks[rows], return_index=True, return_inverse=True)
        suited = np.array([self.view.suits(row)[places].any() for row in rows[first].tolist()], dtype=bool)
        short = self.switched[rows] & suited[which]
        found = lacking(self.view, rows[~short], self.placement)
        for need in np.unique(asks[which[short]]).tolist():
            text = f"needs {size_and_place(self.placement, need)}; the jobs that take turns on one leave less, and none is free"
            found.append(Waiting(Reason("memory", text), self.jobs.id[rows[short & (asks[which] == need)]]))
        return found
