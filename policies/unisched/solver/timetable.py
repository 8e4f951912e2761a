"""A schedule that truly exists: who runs in slot 0 on which cells, and lease by lease on how many GPUs of later slots."""

from __future__ import annotations

from copy import copy as shallow
from itertools import pairwise

import numpy as np

from ...arrays import Ints
from .choices import NONE, Columns
from .problem import Problem

_NO_LEASES: Ints = np.zeros(0, dtype=np.int64)


class Schedule:
    """Columns that have been taken, at most one a copy of a job, with the leases of each. Slot 0 fits in cells, later slots in GPUs.

    ``copy_start``: (n + 1,) numbers of the first copy of each job of the problem; None: every job is its own only copy.
    """

    def __init__(self, problem: Problem, columns: Columns, copy_start: Ints | None = None) -> None:
        self.problem, self.columns = problem, columns
        self.copy_start = np.arange(len(problem) + 1) if copy_start is None else copy_start
        self.first = problem.first_slot
        self.demand = problem.demand
        self.horizon = self._horizon()
        self._clear()

    def _horizon(self) -> int:
        problem, columns = self.problem, self.columns
        aims = columns.tier != NONE
        job = columns.job[aims]
        last = self.first[job] + problem.tier_leases[columns.tier[aims]] * problem.lease[job]
        return max(len(problem.busy), int(last.max(initial=0)), int(problem.lease.max(initial=1)))

    def _clear(self) -> None:
        problem = self.problem
        self.cells = problem.supply
        self.free = np.full(self.horizon, problem.capacity)
        self.free[: len(problem.busy)] -= problem.busy
        ends = self.copy_start.tolist()
        self.idle = [
            list(range(end - 1, begin - 1, -1)) for begin, end in pairwise(ends)
        ]  #: by job, copies without anything, next one last
        self.column: dict[int, int] = {}  #: of each copy that has one
        self.leases: dict[int, Ints] = {}  #: numbers of the leases after slot 0, ascending
        self.extra: dict[int, int] = {}  #: option of each copy that runs now though that earns nothing
        self.value = 0.0

    def empty(self) -> Schedule:
        """Of the same problem, with nothing taken."""
        twin = shallow(self)
        twin._clear()
        return twin

    def copy(self) -> Schedule:
        twin = shallow(self)
        twin.cells, twin.free, twin.idle = self.cells.copy(), self.free.copy(), [list(copies) for copies in self.idle]
        twin.column, twin.leases, twin.extra = dict(self.column), dict(self.leases), dict(self.extra)
        return twin

    def take(self, column: int) -> bool:
        """Give the column to a copy of its job that has nothing, where there is one, and room for it."""
        columns = self.columns
        job, now, gpus, later = int(columns.job[column]), bool(columns.now[column]), int(columns.gpus[column]), int(columns.later[column])
        option = int(columns.option[column])
        if not self.idle[job] or (now and not self._can_start(job, option, gpus)):
            return False
        leases = self._find(job, int(columns.tier[column]), gpus, later) if later else _NO_LEASES
        if leases is None:
            return False
        self._hold(self.idle[job].pop(), column, leases)
        return True

    def put_back(self, copy: int, column: int, leases: Ints) -> None:
        """Give the column with these leases, for which there is room, to this copy of its job, which has nothing."""
        self.idle[int(self.columns.job[column])].remove(copy)
        self._hold(copy, column, leases)

    def _hold(self, copy: int, column: int, leases: Ints) -> None:
        columns = self.columns
        job, gpus = int(columns.job[column]), int(columns.gpus[column])
        self._occupy(job, gpus, leases, 1)
        if columns.now[column]:
            self._start(job, int(columns.option[column]), gpus, 1)
        self.column[copy], self.leases[copy] = column, leases
        self.value += float(columns.value[column])

    def drop(self, copy: int) -> int:
        """Take the column of the copy away, and say which it was."""
        column, columns = self.column.pop(copy), self.columns
        job, gpus = int(columns.job[column]), int(columns.gpus[column])
        self._occupy(job, gpus, self.leases.pop(copy), -1)
        if columns.now[column]:
            self._start(job, int(columns.option[column]), gpus, -1)
        self.value -= float(columns.value[column])
        self.idle[job].append(copy)
        return column

    def replace(self, copy: int, column: int) -> bool:
        """Exchange the column of the copy for this one of its job, or leave all as it is."""
        leases, before = self.leases[copy], self.drop(copy)
        if self.take(column):
            return True
        self.put_back(copy, before, leases)
        return False

    def start(self, job: int, option: int) -> bool:
        """Let a copy of the job that has nothing run now under the option, where there is one, and room."""
        gpus = int(self.problem.option_gpus[option])
        if not self.idle[job] or not self._can_start(job, option, gpus):
            return False
        self._start(job, option, gpus, 1)
        self.extra[self.idle[job].pop()] = option
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
