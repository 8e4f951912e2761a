"""A policy for tests: two jobs of one GPU on each GPU, those of the largest priority; whoever came first among equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from stoker.policies.contract import PACKED, Allocation, Group, Jobs, Phase, Plan, Reason, View, Waiting


class PacksAll:
    @dataclass(frozen=True)
    class Config:
        kind: str = PACKED

    name: ClassVar[str] = "packs-all"

    def __init__(self, config: Config) -> None:
        self.kind = config.kind

    def shares(self, jobs: Jobs, row: int) -> bool:
        if self.kind == PACKED:
            return jobs.share is None or jobs.share[row] in ("", PACKED)
        return jobs.share is not None and jobs.share[row] == self.kind

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        users: dict[int, list[int]] = {int(gpu): [] for gpu in np.flatnonzero(view.gpus.usable)}
        wanted = np.flatnonzero(jobs.phase != Phase.STOPPING)
        order = wanted[np.lexsort((jobs.id[wanted], jobs.phase[wanted] == Phase.PENDING, -jobs.priority[wanted]))]
        given: dict[int, Allocation] = {}
        for row in order.tolist():
            held = jobs.allocation(row).tolist()
            room = [
                gpu for gpu in held or users if gpu in users and all(self.shares(jobs, one) for one in (*users[gpu], row) if users[gpu])
            ]
            room = [gpu for gpu in room if len(users[gpu]) < 2]
            if not room:
                continue
            gpu = room[0] if held else min(room, key=lambda gpu: len(users[gpu]))
            users[gpu].append(row)
            given[int(jobs.id[row])] = Allocation((gpu,))
        out = [int(jobs.id[row]) for row in wanted.tolist() if len(jobs.allocation(row)) and int(jobs.id[row]) not in given]
        groups = [Group(self.kind, tuple(int(jobs.id[row]) for row in rows)) for rows in users.values() if len(rows) > 1]
        late = [int(jobs.id[row]) for row in wanted.tolist() if int(jobs.id[row]) not in given]
        return Plan(given, [Waiting(Reason("resources", "two jobs are on each GPU"), late)] if late else (), groups, preempt=out)
