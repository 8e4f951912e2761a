"""A schedule that truly exists: who runs in slot 0 on which cells, and lease by lease on how many GPUs of later slots."""

from __future__ import annotations

import numpy as np

from ..arrays import Ints
from .columns import NONE, Columns
from .problem import Problem

_NO_LEASES: Ints = np.zeros(0, dtype=np.int64)


class Schedule:
    """Columns that have been taken, at most one a job, with the leases of each. Slot 0 fits in cells, later slots in GPUs."""

    def __init__(self, problem: Problem, columns: Columns) -> None:
        self.problem, self.columns = problem, columns
        self.first = problem.first_slot
        self.demand = problem.demand
        self.cells = problem.supply
        aims = columns.tier != NONE
        job = columns.job[aims]
        last = self.first[job] + problem.tier_leases[columns.tier[aims]] * problem.lease[job]
        horizon = max(len(problem.busy), int(last.max(initial=0)), int(problem.lease.max(initial=1)))
        self.free = np.full(horizon, problem.capacity)
        self.free[: len(problem.busy)] -= problem.busy
        self.column: dict[int, int] = {}  #: of each job that has one
        self.leases: dict[int, Ints] = {}  #: numbers of the leases after slot 0, ascending
        self.extra: dict[int, int] = {}  #: option of each job that runs now though that earns nothing
        self.value = 0.0

    def copy(self) -> Schedule:
        twin = object.__new__(Schedule)
        twin.problem, twin.columns, twin.first, twin.demand = self.problem, self.columns, self.first, self.demand
        twin.cells, twin.free, twin.value = self.cells.copy(), self.free.copy(), self.value
        twin.column, twin.leases, twin.extra = dict(self.column), dict(self.leases), dict(self.extra)
        return twin

    def has(self, job: int) -> bool:
        return job in self.column or job in self.extra

    def take(self, column: int) -> bool:
        """Give the column to its job, which has none, where there is room for it."""
        columns = self.columns
        job, now, gpus, later = int(columns.job[column]), bool(columns.now[column]), int(columns.gpus[column]), int(columns.later[column])
        option = int(columns.option[column])
        if now and not self._can_start(job, option, gpus):
            return False
        leases = self._find(job, int(columns.tier[column]), gpus, later) if later else _NO_LEASES
        if leases is None:
            return False
        self._occupy(job, gpus, leases, 1)
        if now:
            self._start(job, option, gpus, 1)
        self.column[job], self.leases[job] = column, leases
        self.value += float(columns.value[column])
        return True

    def drop(self, job: int) -> int:
        """Take the column of the job away, and say which it was."""
        column, columns = self.column.pop(job), self.columns
        gpus = int(columns.gpus[column])
        self._occupy(job, gpus, self.leases.pop(job), -1)
        if columns.now[column]:
            self._start(job, int(columns.option[column]), gpus, -1)
        self.value -= float(columns.value[column])
        return column

    def put_back(self, job: int, column: int, leases: Ints) -> None:
        """Undo ``drop``, with nothing else changed in between."""
        columns, gpus = self.columns, int(self.columns.gpus[column])
        self._occupy(job, gpus, leases, 1)
        if columns.now[column]:
            self._start(job, int(columns.option[column]), gpus, 1)
        self.column[job], self.leases[job] = column, leases
        self.value += float(columns.value[column])

    def replace(self, column: int) -> bool:
        """Exchange the column of its job for this one, or leave all as it is."""
        job = int(self.columns.job[column])
        leases, before = self.leases[job], self.drop(job)
        if self.take(column):
            return True
        self.put_back(job, before, leases)
        return False

    def start(self, job: int, option: int) -> bool:
        """Let a job that has no column run now under the option, where there is room."""
        gpus = int(self.problem.option_gpus[option])
        if not self._can_start(job, option, gpus):
            return False
        self._start(job, option, gpus, 1)
        self.extra[job] = option
        self.value += float(self.problem.now_reward[job] + self.problem.option_bonus[option])
        return True

    def _can_start(self, job: int, option: int, gpus: int) -> bool:
        if (self.demand[option] > self.cells).any():
            return False
        lease = int(self.problem.lease[job])
        return lease == 1 or bool((self.free[1:lease] >= gpus).all())

    def _start(self, job: int, option: int, gpus: int, sign: int) -> None:
        self.cells = self.cells - sign * self.demand[option]
        self.free[1 : int(self.problem.lease[job])] -= sign * gpus

    def _find(self, job: int, tier: int, gpus: int, later: int) -> Ints | None:
        """Numbers of the leases with most room, the latest among equals, ascending."""
        first, lease, last = int(self.first[job]), int(self.problem.lease[job]), int(self.problem.tier_leases[tier])
        begin = 1 if first == 0 else 0
        room = self.free[first + begin * lease : first + last * lease]
        if lease > 1:
            room = room.reshape(-1, lease).min(axis=1)
        possible = np.flatnonzero(room >= gpus)
        if len(possible) < later:
            return None
        if len(possible) > later:
            possible = possible[np.sort(np.argsort(room[possible], kind="stable")[-later:])]
        return possible + begin

    def _occupy(self, job: int, gpus: int, leases: Ints, sign: int) -> None:
        lease = int(self.problem.lease[job])
        slots = leases + self.first[job] if lease == 1 else (leases[:, None] * lease + np.arange(lease) + self.first[job]).ravel()
        self.free[slots] -= sign * gpus
